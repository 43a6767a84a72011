package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// seed adds the golden files that match pattern.
func seed(f *testing.F, pattern string) {
	f.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds %s: %v", pattern, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.TrimSuffix(b, []byte("\n")))
	}
}

// checkSentinel checks that a refusal is one of those that the package documents.
func checkSentinel(t *testing.T, err error) {
	t.Helper()
	for _, want := range []error{
		events.ErrSyntax, events.ErrInvalid, events.ErrVersion, events.ErrUnknownType, events.ErrLegacy, events.ErrTooLarge,
	} {
		if errors.Is(err, want) {
			return
		}
	}
	t.Fatalf("an error without a sentinel: %v", err)
}

func FuzzDecode(f *testing.F) {
	seed(f, "*.golden")
	f.Fuzz(func(t *testing.T, b []byte) {
		if canonicalOrRefused(t, b) {
			if !json.Valid(b) {
				t.Fatalf("accepted, but not JSON: %q", b)
			}
			return
		}
		_, err := events.Decode(b)
		checkSentinel(t, err)
	})
}

func FuzzDecodeInput(f *testing.F) {
	seed(f, "input-*.golden")
	for _, a := range []string{`"Qg=="`, `"Qh=="`, `"Qg
="`, `"QkE="`, `"Qg==","Qg=="`} {
		f.Add([]byte(inputPayload("inject", `,"content":[`+imageOf("B")+`],"attachments":[`+a+`]`)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := events.DecodeInput(b)
		if err != nil {
			checkSentinel(t, err)
			return
		}
		again, err := events.EncodeInput(&in)
		if err != nil || !bytes.Equal(again, b) || !json.Valid(b) {
			t.Fatalf("decoded, but is not canonical: %v\n%q\n%q", err, b, again)
		}
	})
}

func FuzzParseTools(f *testing.F) {
	seed(f, "tools.golden")
	f.Add([]byte("[]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tools, err := events.ParseTools(b)
		if err != nil {
			checkSentinel(t, err)
			return
		}
		again, err := events.AppendTools(nil, tools)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("parsed, but is not canonical: %v\n%q\n%q", err, b, again)
		}
	})
}

func FuzzUnquote(f *testing.F) {
	for _, s := range []string{`""`, `"\ud83d\ude00"`, `"\/\u0041"`, "\"caf\xe9\"", "\"\\ud83d\x80\"", "\"\u2028\\n\"", `"\uD83D"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := events.Unquote(b)
		// jsonValid is encoding/json's opinion; it takes bytes that are not UTF-8, as Unquote does.
		jsonValid := len(b) > 1 && b[0] == '"' && b[len(b)-1] == '"' && json.Valid(b)
		if (err == nil) != jsonValid {
			t.Fatalf("Unquote(%q) = %q, %v, encoding/json says %t", b, s, err, jsonValid)
		}
		if err != nil {
			checkSentinel(t, err)
			return
		}
		if !events.ValidText(s) {
			t.Fatalf("Unquote(%q) = %q, which is not well-formed", b, s)
		}
		if back, err := events.Unquote(events.AppendQuote(nil, s)); err != nil || back != s {
			t.Fatalf("%q became %q: %v", s, back, err)
		}
		if events.TextFromBytes(events.BytesFromText(s)) == s {
			return
		}
		if bytes.IndexByte(b, '\\') < 0 {
			t.Fatalf("without escapes, the bytes come back: %q", b)
		}
	})
}

func FuzzRawJSON(f *testing.F) {
	seed(f, "*.golden")
	for _, s := range []string{`0`, `-0.5E+3`, `"\ud800"`, ` 1`, `[[{}]]`, "\"\xff\"", `{"a":1,"a":[null,true,false]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := events.RawJSON(b).Validate()
		if err != nil {
			checkSentinel(t, err)
			return
		}
		if !json.Valid(b) {
			t.Fatalf("accepted, but not JSON: %q", b)
		}
		e := events.Event{Seq: 1, ID: sampleID, Ignorable: true, Body: &events.Unknown{Name: "vendor/new", Data: events.RawJSON(b)}}
		got, err := events.Decode(encode(t, e))
		if err != nil || got.Body.(*events.Unknown).Data != events.RawJSON(b) {
			t.Fatalf("%q does not survive: %v", b, err)
		}
	})
}

func FuzzDecodeLive(f *testing.F) {
	for _, e := range samples(f) {
		if b, ok := e.Body.(*events.AssistantChunk); ok {
			p, err := events.EncodeLive(b)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		chunks, err := events.DecodeLive(b)
		if err != nil {
			checkSentinel(t, err)
			return
		}
		again, err := events.EncodeLive(chunks)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("decoded, but is not canonical: %v\n%q\n%q", err, b, again)
		}
	})
}
