package foldtest

import (
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// Text draws well-formed text: plain, of many scripts, with characters that need escapes, lone surrogates and bytes
// that are not UTF-8.
func Text() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return events.JoinText(rapid.SliceOfN(piece(), 0, 4).Draw(t, "pieces")...)
	})
}

// Texts draws one to four texts, between which surrogate pairs may be split.
func Texts() *rapid.Generator[[]string] { return rapid.SliceOfN(Text(), 1, 4) }

func piece() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringN(0, 8, -1),
		rapid.SampledFrom([]string{
			" ", "\n", "the quick brown fox", `{"path":"a/b.go"}`, "\U0001F600", "\xed\xa0\xbd", "\xed\xb8\x80", "\u2028",
			"\x00", "\ufeff", `"\`, "9007199254740993", "<&>", "\u00e9\u0301",
		}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 6), events.TextFromBytes),
	)
}
