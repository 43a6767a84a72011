// Package eventstest generates valid events for property tests: every type, every optional field, and the texts
// that break careless encoders.
package eventstest

import (
	"math"
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Text generates well-formed text: ASCII, every control character, quotes and backslashes, U+2028, DEL, characters of
// two to four bytes, lone surrogates of both kinds, and the escaped form of bytes that are not UTF-8.
func Text() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return events.JoinText(rapid.SliceOfN(piece(), 0, 6).Draw(t, "pieces")...)
	})
}

// NonEmptyText generates text that is not empty.
func NonEmptyText() *rapid.Generator[string] {
	return Text().Filter(func(s string) bool { return s != "" })
}

func piece() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[ -~]{0,24}`),
		rapid.SampledFrom([]string{
			`"`, `\`, `/`, "<&>", "\x00", "\x1f", "\x7f", "\u0080", "\u2028", "\u2029", "\ufeff", "\ufffd", "\uffff",
			"\u00e9", "\ud7ff", "\ue000", "\U0001f600", "\U0010ffff", "\U00010000", "\r\n", `\ud83d`, `\u0000`, "你好",
		}),
		rapid.Map(rapid.Uint8Max(0x1f), func(c uint8) string { return string(rune(c)) }),
		Surrogate(),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 12), events.TextFromBytes),
	)
}

// Surrogate generates one lone surrogate, high or low, in its WTF-8 form.
func Surrogate() *rapid.Generator[string] {
	return rapid.Map(rapid.IntRange(0xD800, 0xDFFF), func(u int) string {
		return string([]byte{0xED, 0x80 | byte(u>>6&0x3F), 0x80 | byte(u&0x3F)})
	})
}

// ID generates a ULID.
func ID() *rapid.Generator[events.ID] {
	return rapid.Map(rapid.StringMatching(`[0-7][0-9A-HJKMNP-TV-Z]{25}`), func(s string) events.ID { return events.ID(s) })
}

// Hash generates a SHA-256 value, the zero one included.
func Hash() *rapid.Generator[events.Hash] {
	return rapid.Custom(func(t *rapid.T) events.Hash {
		if rapid.IntRange(0, 9).Draw(t, "zero") == 0 {
			return events.Hash{}
		}
		return events.HashPayload(rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "hashed"))
	})
}

// Ref generates a reference to an object.
func Ref() *rapid.Generator[objects.Ref] {
	return rapid.Custom(func(t *rapid.T) objects.Ref {
		return objects.Ref{
			Digest:    objects.Sum(rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "object")),
			Bytes:     rapid.Int64Range(0, objects.MaxBytes).Draw(t, "bytes"),
			MediaType: rapid.SampledFrom([]string{events.TextMediaType, events.ToolsMediaType, "image/png"}).Draw(t, "mediaType"),
		}
	})
}

// RawJSON generates a JSON value that is well-formed but seldom canonical: white space, escaped slashes, upper-case
// hexadecimal digits, duplicate names, numbers beyond 2^53.
func RawJSON() *rapid.Generator[events.RawJSON] {
	return rapid.Map(rawValue(3), func(s string) events.RawJSON { return events.RawJSON(s) })
}

func rawValue(depth int) *rapid.Generator[string] {
	scalar := rapid.OneOf(
		rapid.SampledFrom([]string{
			`null`, `true`, `false`, `0`, `-0`, `1E+2`, `0.10`, `123456789012345678901234567890`, `"\/"`, `"\u00E9"`,
			`"\uD83d\ude00"`, `"\ud800"`, "\"\u2028\"", `{}`, `[ ]`,
		}),
		rapid.Map(rapid.Int64(), func(n int64) string { return strconv.FormatInt(n, 10) }),
		rapid.Map(Text(), quote),
	)
	if depth == 0 {
		return scalar
	}
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 3).Draw(t, "kind")
		if kind > 1 {
			return scalar.Draw(t, "scalar")
		}
		var members []string
		for range rapid.IntRange(0, 3).Draw(t, "members") {
			m := rawValue(depth-1).Draw(t, "value")
			if kind == 1 {
				m = quote(Text().Draw(t, "name")) + space.Draw(t, "space") + ":" + space.Draw(t, "space") + m
			}
			members = append(members, space.Draw(t, "space")+m)
		}
		list := strings.Join(members, ",") + space.Draw(t, "space")
		if kind == 1 {
			return "{" + list + "}"
		}
		return "[" + list + "]"
	})
}

func quote(s string) string { return string(events.AppendQuote(nil, s)) }

// Number generates a number in ECMAScript's form, sometimes the absent one.
func Number() *rapid.Generator[events.Number] {
	return rapid.Custom(func(t *rapid.T) events.Number {
		if rapid.Bool().Draw(t, "absent") {
			return ""
		}
		f := rapid.OneOf(rapid.Float64Range(0, 2), rapid.Float64()).Draw(t, "number")
		n, err := events.NewNumber(f)
		if err != nil {
			return "0"
		}
		return n
	})
}

// Count generates a whole number in [0, 2^63), most often small.
func Count() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, math.MaxInt64), rapid.Just[int64](1<<53+1))
}

// Ordinal generates a whole number in [1, 2^63), most often small.
func Ordinal() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(1, 9), rapid.Int64Range(1, math.MaxInt64))
}

// Seq generates a sequence in [1, 2^64), most often small.
func Seq() *rapid.Generator[uint64] {
	return rapid.OneOf(rapid.Uint64Range(1, 50), rapid.Uint64Range(1, math.MaxUint64), rapid.Just[uint64](1<<53+1))
}
