package tools

import (
	"fmt"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"github.com/refold-dev/refold/pkg/events"
)

// Cut returns the longest beginning of text that has at most maxBytes bytes and ends between two grapheme clusters (UAX
// 29), and whether anything was cut off. Only in a cluster that is itself longer than maxBytes does it end between two
// code points, so that a flood of combining marks cannot take everything before it along. text is well-formed WTF-8, as
// in events, and so is head: no cut goes through a surrogate.
func Cut(text string, maxBytes int) (head string, cut bool) {
	maxBytes = max(maxBytes, 0)
	if len(text) <= maxBytes {
		return text, false
	}
	end, _ := boundaries(text, maxBytes, maxBytes)
	return text[:end], true
}

// Limit returns a tool's output as the text of an event (see [events.TextFromBytes]) of at most maxBytes bytes, and
// whether anything was left out. Of an output that is longer it keeps a beginning and an end, and puts a line between
// them that says how many bytes of how many are left out; bytes that are not UTF-8 count as the one byte that they are,
// although their text has three. Both cuts are made as [Cut] makes them. Where maxBytes has no room for the line (100
// bytes always do), only a beginning is left.
func Limit(output []byte, maxBytes int) (text string, cut bool) {
	text = events.TextFromBytes(output)
	if len(text) <= max(maxBytes, 0) {
		return text, false
	}
	room := maxBytes - len(omission(len(output), len(output))) // no omission of this output has a longer line
	if room < 0 {
		return Cut(text, maxBytes)
	}
	head, _ := boundaries(text, room/2, maxBytes)
	_, tail := boundaries(text, len(text)-(room-head), maxBytes)
	return join(text, head, tail), true
}

// Prune returns text with only its first headClusters and last tailClusters grapheme clusters and a line between them
// that says how many bytes are left out, as [Limit] puts it. It returns text itself and false when that would not be
// shorter. text is well-formed WTF-8.
func Prune(text string, headClusters, tailClusters int) (string, bool) {
	c := clusters{text: text}
	for range headClusters {
		if c.pos == len(text) {
			return text, false
		}
		c.next()
	}
	tail := lastClusters(text, tailClusters)
	if tail <= c.pos {
		return text, false
	}
	if pruned := join(text, c.pos, tail); len(pruned) < len(text) {
		return pruned, true
	}
	return text, false
}

// omission is the line that stands for what was left out.
func omission(left, whole int) string {
	return fmt.Sprintf("\n[%d of %d bytes left out]\n", left, whole)
}

// join returns text without [head,tail), with a line in its place.
func join(text string, head, tail int) string {
	line := omission(ownBytes(text[head:tail]), ownBytes(text))
	if head == 0 {
		line = line[1:]
	}
	if tail == len(text) {
		line = line[:len(line)-1]
	}
	return text[:head] + line + text[tail:]
}

// ownBytes is the length of what text was made from by [events.TextFromBytes].
func ownBytes(text string) int {
	if utf8.ValidString(text) {
		return len(text)
	}
	return len(events.BytesFromText(text))
}

// boundaries returns the last grapheme cluster boundary in text[:n] and the first one from n on. Where the cluster
// between them is longer than longest bytes, it returns those between code points instead. It takes time in proportion
// to the distance to the next place that ends a cluster whatever stands around it, plus longest.
func boundaries(text string, n, longest int) (before, after int) {
	if n <= 0 {
		return 0, 0
	}
	if n >= len(text) {
		return len(text), len(text)
	}
	low := point(text, n)
	high := low
	if low < n {
		high = low + width(text, low)
	}
	c := clusters{text: text[:low+width(text, low)], pos: settled(text, low)}
	before = c.pos
	for c.pos < low { // whether a cluster ends at low depends on what is before it and on one code point after it
		if c.next(); c.pos <= low {
			before = c.pos
		}
	}
	if before == n {
		return n, n
	}
	end := point(text, before+min(max(longest, 0), len(text)-before))
	if end < len(text) {
		end += width(text, end)
	}
	c = clusters{text: text[:max(end, high)], pos: before}
	if c.next(); c.pos-before > longest {
		return low, high
	}
	return before, c.pos
}

// lastClusters returns where the last n grapheme clusters of text start, 0 when there are no more than n.
func lastClusters(text string, n int) int {
	if n <= 0 {
		return len(text)
	}
	if n >= len(text) {
		return 0
	}
	for size := 16 * n; ; {
		start := settled(text, point(text, max(len(text)-size, 0)))
		var starts []int
		for c := (clusters{text: text, pos: start}); c.pos < len(text); c.next() {
			starts = append(starts, c.pos)
		}
		if len(starts) >= n {
			return starts[len(starts)-n]
		}
		if start == 0 {
			return 0
		}
		size = 2 * (len(text) - start) // at least twice as far as was looked at, so that all looks together stay linear
	}
}

// clusters walks from one grapheme cluster boundary of text to the next.
type clusters struct {
	text  string
	pos   int // a boundary
	state int
	mid   bool // state is the one at pos, not that of a start
}

// next moves to the next boundary. It must not be called at the end of the text. A surrogate is one code point of no
// special class. uniseg sees three bytes that are not UTF-8, each of that class, so only the boundaries between them are
// wrong.
func (c *clusters) next() {
	if !c.mid {
		c.state, c.mid = -1, true
	}
	for {
		cluster, _, _, state := uniseg.FirstGraphemeClusterInString(c.text[c.pos:], c.state)
		c.pos += len(cluster)
		c.state = state
		if c.pos == len(c.text) || point(c.text, c.pos) == c.pos {
			return
		}
	}
}

// settled returns the last place up to n, which lies between two code points, where a grapheme cluster ends whatever
// else stands in the text: 0 at the least. Two code points tell, but for flags, of which one must count the letters, and
// for emoji joined to others.
func settled(text string, n int) int {
	for n > 0 && n < len(text) {
		prev := point(text, n-1)
		a, b := text[prev:n], text[n:n+width(text, n)]
		if a[0] < utf8.RuneSelf && b[0] < utf8.RuneSelf {
			if a != "\r" || b != "\n" {
				return n
			}
		} else if a != zeroWidthJoiner {
			if isSurrogate(a) {
				a = a[len(a)-1:] // as uniseg sees its end
			}
			pair := text[n-len(a) : n+len(b)]
			if cluster, _, _, _ := uniseg.FirstGraphemeClusterInString(pair, -1); len(cluster) == len(a) {
				return n
			}
		}
		n = prev
	}
	return n
}

const (
	zeroWidthJoiner = "\u200d"
	surrogateBytes  = 3
)

// isSurrogate reports whether text starts with a surrogate.
func isSurrogate(text string) bool {
	return len(text) >= surrogateBytes && text[0] == 0xED && text[1] >= 0xA0 && text[1] <= 0xBF && text[2] >= 0x80 && text[2] <= 0xBF
}

// width returns the length of the code point that starts at i.
func width(text string, i int) int {
	if isSurrogate(text[i:]) {
		return surrogateBytes
	}
	_, n := utf8.DecodeRuneInString(text[i:])
	return n
}

// point returns the start of the code point that the byte at i belongs to. A byte that belongs to none, in a text that
// is not well-formed, stands for itself.
func point(text string, i int) int {
	for start := i; start >= 0 && start > i-utf8.UTFMax && start < len(text); start-- {
		if utf8.RuneStart(text[start]) {
			if start+width(text, start) > i {
				return start
			}
			break
		}
	}
	return i
}
