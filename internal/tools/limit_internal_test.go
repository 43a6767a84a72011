package tools

import (
	"slices"
	"strings"
	"testing"

	"github.com/rivo/uniseg"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// pieces are what texts for cuts are made of: every class of code point that matters at a boundary.
func pieces() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{
		"a", "b", " ", "\n", "\r", "\r\n", "\x00", "é", "日", "�", "\u00ad", "\u0600", // text, control, prepend
		"\u0301", "\u0308", "\u20e3", "\ufe0f", "\u200d", "\u0903", "\u093e", // extend, joiner, spacing mark
		"\U0001F1E9", "\U0001F1EA", "🇩🇪", "👩‍👩‍👧", "😀", "👍🏽", "❤️", "\U0001F3FD",
		"ᄀ", "ᅡ", "ᆨ", "가", "각",
		"\xed\xa0\xbd", "\xed\xb8\x80", "\xed\xb2\xff"[:2] + "\x80", "\xed\xb3\xbf", // lone surrogates
	})
}

// wtf8 draws well-formed text of up to max pieces.
func wtf8(limit int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return events.JoinText(append([]string{""}, rapid.SliceOfN(pieces(), 0, limit).Draw(t, "pieces")...)...)
	})
}

// allBoundaries is the dumb twin: it reads the text from its start, each surrogate as U+FFFD, which has the same class
// and the same length.
func allBoundaries(text string) []int {
	var plain strings.Builder
	for i := 0; i < len(text); {
		n := width(text, i)
		if isSurrogate(text[i:]) {
			plain.WriteString("\uFFFD")
		} else {
			plain.WriteString(text[i : i+n])
		}
		i += n
	}
	bounds := []int{0}
	for g := uniseg.NewGraphemes(plain.String()); g.Next(); {
		_, to := g.Positions()
		bounds = append(bounds, to)
	}
	return bounds
}

func TestBoundariesAreThoseOfTheWholeText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := wtf8(40).Draw(t, "text")
		n := rapid.IntRange(-1, len(text)+1).Draw(t, "n")
		longest := rapid.IntRange(0, 40).Draw(t, "longest")
		at := min(max(n, 0), len(text))
		all := allBoundaries(text)
		i, found := slices.BinarySearch(all, at)
		wantBefore, wantAfter := all[min(i, len(all)-1)], all[min(i, len(all)-1)]
		if !found {
			wantBefore = all[i-1]
			if wantAfter-wantBefore > longest {
				wantBefore = at
				for wantBefore > 0 && text[wantBefore]&0xC0 == 0x80 {
					wantBefore--
				}
				wantAfter = at
				for wantAfter < len(text) && text[wantAfter]&0xC0 == 0x80 {
					wantAfter++
				}
			}
		}
		before, after := boundaries(text, n, longest)
		if before != wantBefore || after != wantAfter {
			t.Fatalf("boundaries(%q, %d, %d) = %d, %d, want %d, %d", text, n, longest, before, after, wantBefore, wantAfter)
		}
	})
}

func TestLastClusters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := wtf8(80).Draw(t, "text")
		n := rapid.IntRange(-1, 40).Draw(t, "n")
		all := allBoundaries(text)
		want := all[max(len(all)-1-max(n, 0), 0)]
		if got := lastClusters(text, n); got != want {
			t.Fatalf("lastClusters(%q, %d) = %d, want %d", text, n, got, want)
		}
	})
}

func FuzzBoundaries(f *testing.F) {
	f.Add("a🇩🇪🇫🇷b", 5, 8)
	f.Add("\xed\xb2\x80\xed\xa0\x80", 4, 3)
	f.Add("\xff\x80\x80\x80\x80\x80", 3, 1)
	f.Fuzz(func(t *testing.T, text string, n, longest int) {
		before, after := boundaries(text, n, longest)
		at := min(max(n, 0), len(text))
		if before < 0 || before > at || after < at || after > len(text) {
			t.Fatalf("boundaries(%q, %d, %d) = %d, %d", text, n, longest, before, after)
		}
		if events.ValidText(text) && (!events.ValidText(text[:before]) || !events.ValidText(text[after:])) {
			t.Fatalf("boundaries(%q, %d, %d) = %d, %d: inside a code point", text, n, longest, before, after)
		}
		if n > 0 && n <= 1000 {
			if got, limit := lastClusters(text, n), len(text); got < 0 || got > limit {
				t.Fatalf("lastClusters(%q, %d) = %d", text, n, got)
			}
		}
	})
}
