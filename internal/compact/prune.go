package compact

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Pruner is how the text of a tool result is read and shortened.
type Pruner struct {
	// Load returns the text that an object holds. It is asked only for objects that hold more bytes than a result
	// may have characters. nil: results in objects are left alone.
	Load func(objects.Ref) (string, error)
	// Shorten returns the text with its middle left out, cut between grapheme clusters, and says so in it; ok is
	// false when there is nothing to leave out. nil: nothing is pruned.
	Shorten func(text string, head, tail int) (short string, ok bool)
}

// Pruned is a tool result to be replaced by a shorter one.
type Pruned struct {
	Index   int            // the node's position
	Seq     uint64         // the node
	Content []events.Block // of the new tool-result block; everything else of the result stays as it is
	Freed   int64          // by how much the content's own estimate shrinks, above 0
}

// Prune returns the tool results among the first before nodes that are to be shortened, oldest first: those with more
// than p.PruneChars characters of text that were not pruned before. Their text blocks become one, at the place of the
// first; images stay. A result that would not get shorter is left out. The error is the [Pruner]'s.
func Prune(nodes []Node, before int, p Policy, with Pruner) ([]Pruned, error) {
	p = p.withDefaults()
	if p.PruneChars < 0 || with.Shorten == nil {
		return nil, nil
	}
	var out []Pruned
	for i := range nodes[:before] {
		n := &nodes[i]
		if n.Pruned || n.Message == nil {
			continue
		}
		k := slices.IndexFunc(n.Message.Content, func(b events.Block) bool { return b.Type == events.BlockToolResult })
		if k < 0 || len(n.Message.Content) != 1 {
			continue
		}
		old := n.Message.Content[k].Content
		text, long, err := resultText(old, p.PruneChars, with.Load)
		if err != nil {
			return nil, fmt.Errorf("prune the result of event %d: %w", n.Seq, err)
		}
		if !long {
			continue
		}
		short, ok := with.Shorten(text, p.PruneHead, p.PruneTail)
		if !ok {
			continue
		}
		content := withText(old, short)
		if freed := blocksTokens(old) - blocksTokens(content); freed > 0 {
			out = append(out, Pruned{Index: i, Seq: n.Seq, Content: content, Freed: freed})
		}
	}
	return out, nil
}

// resultText returns the text of a tool result and whether it has more than limit characters (code points). A text
// in an object is loaded only when it may be that long.
func resultText(blocks []events.Block, limit int, load func(objects.Ref) (string, error)) (text string, long bool, err error) {
	var size int64 // bytes, at least as many as characters
	for i := range blocks {
		b := &blocks[i]
		if b.Type != events.BlockText {
			continue
		}
		if (b.Object != objects.Ref{}) && load == nil {
			return "", false, nil
		}
		size += int64(len(b.Text)) + b.Object.Bytes
	}
	if size <= int64(limit) {
		return "", false, nil
	}
	var parts []string
	for i := range blocks {
		b := &blocks[i]
		if b.Type != events.BlockText {
			continue
		}
		part := b.Text
		if (b.Object != objects.Ref{}) {
			if part, err = load(b.Object); err != nil {
				return "", false, err
			}
		}
		parts = append(parts, part)
	}
	text = events.JoinText(parts...)
	return text, characters(text) > limit, nil
}

// characters counts code points; half a surrogate pair is one.
func characters(s string) int {
	if utf8.ValidString(s) {
		return utf8.RuneCountInString(s)
	}
	n := 0
	for rest := s; rest != ""; n++ {
		_, size := utf8.DecodeRuneInString(rest)
		if size == 1 && len(rest) >= 3 && rest[0] == 0xED { // WTF-8 writes a surrogate as three bytes
			size = 3
		}
		rest = rest[size:]
	}
	return n
}

// withText returns the blocks with one text block in the place of all theirs.
func withText(blocks []events.Block, text string) []events.Block {
	var out []events.Block
	placed := false
	for i := range blocks {
		switch {
		case blocks[i].Type != events.BlockText:
			out = append(out, blocks[i])
		case !placed:
			out = append(out, events.Text(text))
			placed = true
		}
	}
	return out
}

// blank reports whether blocks hold no text but white space.
func blank(blocks []events.Block) bool {
	return !slices.ContainsFunc(blocks, func(b events.Block) bool {
		return strings.TrimSpace(b.Text) != "" || b.Object.Bytes > 0
	})
}
