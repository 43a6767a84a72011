package compact

import (
	"math/bits"
	"unicode/utf8"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// The cost of text in eighths of a token per character. Tokenisers differ; these lie near the middle for plain
// prose and on the safe side for what tokenisers know badly.
const (
	unitsPerToken = 8

	unitsASCII = 2  // four characters per token
	unitsTwo   = 4  // U+0080..U+07FF, Latin with marks, Greek, Cyrillic, Hebrew, Arabic: two per token
	unitsThree = 6  // the rest of the basic plane: four in three tokens
	unitsCJK   = 8  // Han, Kana, Hangul: one per token
	unitsFour  = 16 // emoji and rare scripts: two tokens each
	unitsByte  = 8  // each byte that is not UTF-8, half a surrogate pair has three: one token
)

// What stands around the text, in tokens.
const (
	messageTokens = 4 // role and separators
	callTokens    = 8 // frame of a tool call or a tool result
	toolTokens    = 8 // frame of a tool's schema

	objectBytesPerToken = 3 // text in an object, whose script is not known
	schemaBytesPerToken = 4 // JSON schemas

	pixelsPerToken = 750
	minImageTokens = 64
	maxImageTokens = 3200 // larger images are scaled down by their providers
	maxImageSide   = 1 << 20

	maxNodeTokens = 1 << 40 // one node or header counts at most this much, so that sums stay inside 64 bits
)

// TextTokens estimates the tokens of a text by the script of its characters: about four ASCII characters per token,
// two of the scripts with two bytes in UTF-8, one Chinese, Japanese or Korean character, half an emoji. It is 0 for
// the empty text only, never more than a token per byte plus one, and a text is never estimated above its parts.
func TextTokens(s string) int64 {
	var units int64
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			units += unitsASCII
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		units += unitsOf(r, n)
		i += n
	}
	return ceil(units, unitsPerToken)
}

// unitsOf returns the cost of a character that takes size bytes and is not ASCII.
func unitsOf(r rune, size int) int64 {
	switch {
	case size == 1:
		return unitsByte
	case size == 2:
		return unitsTwo
	case size == 4:
		return unitsFour
	case r >= 0x1100 && r <= 0x11FF, r >= 0x2E80 && r <= 0x9FFF, r >= 0xA960 && r <= 0xA97F, r >= 0xAC00 && r <= 0xD7FF,
		r >= 0xF900 && r <= 0xFAFF, r >= 0xFE30 && r <= 0xFE4F, r >= 0xFF00 && r <= 0xFFEF:
		return unitsCJK
	default:
		return unitsThree
	}
}

// ceil divides rounding up; n is not negative.
func ceil(n, by int64) int64 {
	q := n / by
	if n%by != 0 {
		q++
	}
	return q
}

func capped(n int64) int64 { return min(n, maxNodeTokens) }

// objectTokens estimates text that an object holds, from its length.
func objectTokens(r objects.Ref) int64 { return ceil(max(r.Bytes, 0), objectBytesPerToken) }

// ImageTokens estimates an image by its pixels: one token for 750, at least 64 and at most 3,200. A dimension below
// one counts as one.
func ImageTokens(width, height int64) int64 {
	w, h := min(max(width, 1), maxImageSide), min(max(height, 1), maxImageSide)
	return min(max(ceil(w*h, pixelsPerToken), minImageTokens), maxImageTokens)
}

// MessageTokens estimates a message. It is 0 for nil only.
func MessageTokens(m *events.Message) int64 {
	if m == nil {
		return 0
	}
	return capped(messageTokens + blocksTokens(m.Content))
}

func blocksTokens(blocks []events.Block) int64 {
	var n int64
	for i := range blocks {
		n = capped(n + blockTokens(&blocks[i]))
	}
	return n
}

func blockTokens(b *events.Block) int64 {
	var n int64
	switch b.Type {
	case events.BlockImage:
		return ImageTokens(b.Width, b.Height)
	case events.BlockToolCall:
		n = callTokens + TextTokens(b.ID) + TextTokens(b.Name) + TextTokens(b.Arguments)
	case events.BlockToolResult:
		n = callTokens + TextTokens(b.ToolCallID) + blocksTokens(b.Content)
	case events.BlockText, events.BlockReasoning:
		n = TextTokens(b.Text) + objectTokens(b.Object)
	}
	return capped(n)
}

// HeaderTokens estimates what a header puts before the history: the system prompt as text, the schemas of the tools
// by their bytes. It is 0 for nil and for a header with neither.
func HeaderTokens(h *events.Header) int64 {
	if h == nil {
		return 0
	}
	n := TextTokens(h.System) + objectTokens(h.SystemObject)
	if n > 0 {
		n += messageTokens
	}
	for i := range h.Tools {
		t := &h.Tools[i]
		n += toolTokens + TextTokens(t.Name) + TextTokens(t.Description) + ceil(int64(len(t.Parameters)), schemaBytesPerToken)
	}
	n += ceil(max(h.ToolsObject.Bytes, 0), schemaBytesPerToken)
	return capped(n)
}

// share returns whole*part/of rounded up, for 0 <= part <= of, of > 0 and whole >= 0. It does not overflow.
func share(whole, part, of int64) int64 {
	hi, lo := bits.Mul64(uint64(whole), uint64(part))
	q, r := bits.Div64(hi, lo, uint64(of))
	if r != 0 {
		q++
	}
	return int64(q)
}
