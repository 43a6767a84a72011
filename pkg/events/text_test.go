package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

// units is a second, naive model of text: the UTF-16 code units of an ECMAScript string.
func units(s string) []uint16 {
	var out []uint16
	for i := 0; i < len(s); {
		if s[i] == 0xED && i+2 < len(s) && s[i+1] >= 0xA0 {
			out = append(out, 0xD000|uint16(s[i+1]&0x3F)<<6|uint16(s[i+2]&0x3F))
			i += 3
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		out = utf16.AppendRune(out, r)
		i += n
	}
	return out
}

// fromUnits is the inverse of units: pairs become one code point, lone surrogates keep their three-byte form.
func fromUnits(us []uint16) string {
	var out []byte
	for i := 0; i < len(us); i++ {
		u := us[i]
		switch {
		case u < 0xD800 || u > 0xDFFF:
			out = utf8.AppendRune(out, rune(u))
		case u < 0xDC00 && i+1 < len(us) && us[i+1] >= 0xDC00 && us[i+1] <= 0xDFFF:
			out = utf8.AppendRune(out, utf16.DecodeRune(rune(u), rune(us[i+1])))
			i++
		default:
			out = append(out, 0xED, 0x80|byte(u>>6&0x3F), 0x80|byte(u&0x3F))
		}
	}
	return string(out)
}

func TestJoinTextAsCodeUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := eventstest.Text().Draw(t, "text")
		if !events.ValidText(s) {
			t.Fatalf("generated text is not valid: %q", s)
		}
		us := units(s)
		if fromUnits(us) != s {
			t.Fatalf("the model and the text differ: %q", s)
		}
		var parts []string
		for rest := us; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "units")
			parts = append(parts, fromUnits(rest[:n]))
			rest = rest[n:]
		}
		if got := events.JoinText(parts...); got != s {
			t.Fatalf("JoinText(%q) = %q, want %q", parts, got, s)
		}
	})
}

func TestJoinTextOfAny(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(eventstest.Text(), 0, 5).Draw(t, "parts")
		var us []uint16
		for _, p := range parts {
			us = append(us, units(p)...)
		}
		got := events.JoinText(parts...)
		if got != fromUnits(us) || !events.ValidText(got) {
			t.Fatalf("JoinText(%q) = %q", parts, got)
		}
	})
}

func TestValidText(t *testing.T) {
	for s, want := range map[string]bool{
		"": true, "abc\x00": true, "\u2028": true, "\U0010ffff": true, "\ud7ff\ue000": true,
		loneHigh: true, loneLow: true, loneLow + loneHigh: true, loneHigh + "x" + loneLow: true,
		loneHigh + loneHigh: true, "\xed\xa0\x80": true, "\xed\xbf\xbf": true,
		loneHigh + loneLow:               false, // a pair must be one code point
		loneHigh + loneHigh + loneLow:    false,
		"\xff":                           false,
		"\xed\xa0":                       false, // cut surrogate
		"\xed":                           false,
		"\xc0\x80":                       false, // overlong
		"\xf4\x90\x80\x80":               false, // beyond U+10FFFF
		"\xed\xa0\x7f":                   false,
		"ok" + string([]byte{0x80}) + "": false,
	} {
		if got := events.ValidText(s); got != want {
			t.Errorf("ValidText(%q) = %t", s, got)
		}
	}
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.OneOf(
			rapid.SliceOf(rapid.Byte()),
			rapid.SliceOf(rapid.SampledFrom([]byte{0xED, 0xA0, 0xB0, 0xB2, 0x80, 0xBF, 'a', 0xC3, 0xA9, 0xF0, 0x9F})),
		).Draw(t, "bytes")
		s := events.TextFromBytes(b)
		if !events.ValidText(s) {
			t.Fatalf("TextFromBytes(%q) = %q, which is not valid", b, s)
		}
		if got := events.BytesFromText(s); !bytes.Equal(got, b) {
			t.Fatalf("bytes %q became %q", b, got)
		}
		if utf8.Valid(b) && s != string(b) {
			t.Fatalf("UTF-8 %q became %q", b, s)
		}
	})
}

func TestTextFromBytes(t *testing.T) {
	for in, want := range map[string]string{
		"caf\xe9":      "caf\xed\xb3\xa9",                      // U+DCE9
		"\xed\xa0\xbd": "\xed\xb3\xad\xed\xb2\xa0\xed\xb2\xbd", // a surrogate's bytes are not UTF-8 either
		"\xf0\x9f\x98": "\xed\xb3\xb0\xed\xb2\x9f\xed\xb2\x98", // a cut emoji
		"\x80\u2028":   "\xed\xb2\x80\u2028", "\U0001f600": "\U0001f600",
	} {
		if got := events.TextFromBytes([]byte(in)); got != want {
			t.Errorf("TextFromBytes(%q) = %q, want %q", in, got, want)
		}
	}
	if got := events.BytesFromText(loneHigh + "\xed\xb2\x80"); string(got) != loneHigh+"\x80" {
		t.Errorf("BytesFromText changed a surrogate that is no escaped byte: %q", got)
	}
}

// TestAppendQuote holds what ECMAScript's JSON.stringify prints for each string.
func TestAppendQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":                               `""`,
		"abc":                            `"abc"`,
		`"`:                              `"\""`,
		`\`:                              `"\\"`,
		`/`:                              `"/"`,
		"\b\t\n\f\r":                     `"\b\t\n\f\r"`,
		"\x00\x01\x0b\x0e\x1f":           `"\u0000\u0001\u000b\u000e\u001f"`,
		"~ \x7f":                         "\"~ \x7f\"",
		"<script>&'":                     `"<script>&'"`,
		"\u0080\u00e9\u2028\u2029\ufeff": "\"\u0080\u00e9\u2028\u2029\ufeff\"",
		"\ufffd\uffff\ud7ff\ue000":       "\"\ufffd\uffff\ud7ff\ue000\"",
		"\U0001f600\U0010ffff":           "\"\U0001f600\U0010ffff\"",
		loneHigh:                         `"\ud83d"`,
		loneLow:                          `"\ude00"`,
		loneLow + loneHigh:               `"\ude00\ud83d"`,
		"\xed\xa0\x80\xed\xbf\xbf":       "\"\U000103ff\"", // not well-formed: see below
		"\xed\xaf\xbf|\xed\xb0\x80":      `"\udbff|\udc00"`,
		"1234567\"8":                     `"1234567\"8"`, // at each place of an eight-byte word
		"12345678\n":                     `"12345678\n"`,
		"\x1f234567é":                    "\"\\u001f234567é\"",
		"한국어 ퟿" + loneHigh + "한":         "\"한국어 ퟿\\ud83d한\"", // Hangul shares the lead byte of surrogates
		`{"path":"a\\b"}`:                `"{\"path\":\"a\\\\b\"}"`,
		"caf" + events.TextFromBytes([]byte{0xE9}): `"caf\udce9"`,
	} {
		if !events.ValidText(in) {
			in = events.JoinText(in[:3], in[3:])
		}
		if got := string(events.AppendQuote(nil, in)); got != want {
			t.Errorf("AppendQuote(%q) = %s, want %s", in, got, want)
		}
		back, err := events.Unquote([]byte(want))
		if err != nil || back != in {
			t.Errorf("Unquote(%s) = %q, %v, want %q", want, back, err, in)
		}
	}
	if got := string(events.AppendQuote([]byte("x="), "y")); got != `x="y"` {
		t.Errorf("AppendQuote does not append: %s", got)
	}
}

// TestAppendQuoteEveryPlace puts every byte that needs an escape at every place of short strings.
func TestAppendQuoteEveryPlace(t *testing.T) {
	for n := range 20 {
		for at := range n + 1 {
			for c := range 0x80 {
				in := string(bytes.Repeat([]byte{'a'}, at)) + string(rune(c)) + string(bytes.Repeat([]byte{'z'}, n-at))
				quoted := events.AppendQuote(nil, in)
				var out string
				if err := json.Unmarshal(quoted, &out); err != nil || out != in {
					t.Fatalf("AppendQuote(%q) = %s: %v", in, quoted, err)
				}
				escaped := len(quoted) != len(in)+2
				if escaped != (c < 0x20 || c == '"' || c == '\\') {
					t.Fatalf("AppendQuote(%q) = %s", in, quoted)
				}
			}
		}
	}
}

func TestQuoteRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := eventstest.Text().Draw(t, "text")
		quoted := events.AppendQuote(nil, s)
		if !json.Valid(quoted) {
			t.Fatalf("not JSON: %s", quoted)
		}
		got, err := events.Unquote(quoted)
		if err != nil || got != s {
			t.Fatalf("Unquote(%s) = %q, %v, want %q", quoted, got, err, s)
		}
	})
}

func TestUnquote(t *testing.T) {
	for in, want := range map[string]string{
		`""`:                        "",
		`"\/"`:                      "/",
		`"\u0041\u00e9\u00E9"`:      "Aéé",
		`"\uD83D\uDE00"`:            "\U0001f600",
		`"\ud83d\ude00"`:            "\U0001f600",
		`"\ud83dx\ude00"`:           loneHigh + "x" + loneLow,
		`"\ud83d\ud83d\ude00"`:      loneHigh + "\U0001f600",
		`"\ud83d"`:                  loneHigh,
		`"\ude00\ud83d"`:            loneLow + loneHigh,
		`"\b\f\n\r\t\"\\"`:          "\b\f\n\r\t\"\\",
		`"\u0000"`:                  "\x00",
		"\"\u2028\x7f\"":            "\u2028\x7f",
		"\"caf\xe9\"":               "caf\xed\xb3\xa9",
		"\"caf\xe9\\n\"":            "caf\xed\xb3\xa9\n",
		"\"\xed\xa0\xbd\"":          "\xed\xb3\xad\xed\xb2\xa0\xed\xb2\xbd",
		"\"\\u0041\xed\xa0\xbd\"":   "A\xed\xb3\xad\xed\xb2\xa0\xed\xb2\xbd",
		"\"\\ud83d\x80\"":           "\U0001f480", // U+D83D and U+DC80, the escaped byte
		"\"\\n\U0001f600\\ud83d한\"": "\n\U0001f600" + loneHigh + "한",
	} {
		got, err := events.Unquote([]byte(in))
		if err != nil || got != want || !events.ValidText(got) {
			t.Errorf("Unquote(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		``, `"`, `x`, `abc`, `"a`, `a"`, `"a"b"`, "\"\n\"", "\"\x00\"", `"\"`, `"\x"`, `"\u"`, `"\u00"`, `"\u00g0"`, `"\u004"`,
		`"\U0041"`, `""""`, `'a'`, "\"a\tb\"", "\"\\n\n\"", `"\ud83d\u"`,
	} {
		if got, err := events.Unquote([]byte(in)); !errors.Is(err, events.ErrSyntax) {
			t.Errorf("Unquote(%q) = %q, %v, want ErrSyntax", in, got, err)
		}
	}
}

func TestNewNumber(t *testing.T) {
	for want, f := range map[events.Number]float64{
		"1e+21": 1e21, "1e-7": 1e-7, "0.1": 0.1, "0": math.Copysign(0, -1), "5e-324": 5e-324, "-1.5": -1.5,
		"123456789012345680000": 123456789012345680000, "0.000001": 1e-6, "1.7976931348623157e+308": math.MaxFloat64,
		"100": 100, "1.25e-9": 1.25e-9, "0.30000000000000004": 0.30000000000000004, "9007199254740992": 1 << 53, "-1e-7": -1e-7,
		"999999999999999900000": 999999999999999900000, "1.5e+300": 1.5e300,
	} {
		if got, err := events.NewNumber(f); err != nil || got != want {
			t.Errorf("NewNumber(%g) = %q, %v, want %q", f, got, err, want)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if got, err := events.NewNumber(f); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("NewNumber(%g) = %q, %v", f, got, err)
		}
	}
}

func TestRawJSONValidate(t *testing.T) {
	deep := func(n int, open, end string) events.RawJSON {
		return events.RawJSON(string(bytes.Repeat([]byte(open), n)) + string(bytes.Repeat([]byte(end), n)))
	}
	for _, good := range []events.RawJSON{
		`null`, `-0`, `1E+2`, `[ 1 , 2 ]`, `{"a" : {"a":1,"a":2}}`, `"\/"`, `0.5e-3`, `"\ud800"`, "{\n}", deep(512, "[", "]"),
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%.40q: %v", string(good), err)
		}
	}
	for _, bad := range []events.RawJSON{
		``, ` 1`, `1 `, `1 2`, `01`, `-`, `1.`, `.5`, `1e`, `+1`, `nul`, `NaN`, `Infinity`, `{`, `[`, `[1,]`, `{"a"}`, `{"a":}`,
		`{a:1}`, `{"a":1,}`, `"\x"`, "\"\n\"", "\"\xff\"", `[}`, `0x10`, `"`, `'a'`, `tru`, deep(513, "[", "]"),
		deep(600, `{"a":`, "}"), deep(1<<20, "[", ""), "\"\xed\xa0\x80\"", `[1`, `{"a":1`, `{"a":1]`,
	} {
		if err := bad.Validate(); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%.40q: %v, want ErrInvalid", string(bad), err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		r := eventstest.RawJSON().Draw(t, "raw")
		if err := r.Validate(); err != nil || !json.Valid([]byte(r)) {
			t.Fatalf("%q: %v", r, err)
		}
	})
}

func TestSortLabels(t *testing.T) {
	in := []events.Label{{Name: "b", Value: "1"}, {Name: "a", Value: "2"}, {Name: "b", Value: "3"}}
	want := []events.Label{{Name: "a", Value: "2"}, {Name: "b", Value: "3"}}
	if got := events.SortLabels(in); !slices.Equal(got, want) {
		t.Errorf("SortLabels = %v, want %v", got, want)
	}
	if in[0].Name != "b" {
		t.Error("SortLabels changed its argument")
	}
}

func TestAppendChunk(t *testing.T) {
	delta := func(i int64, s string) events.Chunk {
		return events.Chunk{Type: events.ChunkTextDelta, Index: i, Texts: []string{s}}
	}
	shared := delta(0, "a")
	var run []events.Chunk
	for _, c := range []events.Chunk{shared, delta(0, "b"), delta(1, "c"), delta(0, "d"), {Type: events.ChunkBlockEnd}, {Type: events.ChunkBlockEnd}} {
		run = events.AppendChunk(run, c)
	}
	if len(run) != 5 || !slices.Equal(run[0].Texts, []string{"a", "b"}) || !slices.Equal(run[2].Texts, []string{"d"}) {
		t.Errorf("run = %+v", run)
	}
	run[0].Texts[0] = "x"
	if shared.Texts[0] != "a" {
		t.Error("the run shares memory with the chunk it was made from")
	}
}
