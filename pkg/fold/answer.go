package fold

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

// Answer adds up the chunks of one model call. The zero value is the answer before its first chunk.
type Answer struct {
	Usage         events.Usage // the last one reported
	UsageReported bool
	Finish        events.Finish
	Finished      bool // the finish chunk has come

	blocks []answerBlock
}

type answerBlock struct {
	kind     events.BlockType
	runs     [][]string // the deltas, in order; what they hold is the chunks' and never changed
	id, name string
	ended    bool
}

// text joins the deltas.
func (b *answerBlock) text() string {
	n := 0
	for _, run := range b.runs {
		for _, t := range run {
			n += len(t)
		}
	}
	text := make([]byte, 0, n)
	for _, run := range b.runs {
		for _, t := range run {
			text = events.AppendText(text, t)
		}
	}
	return string(text)
}

// says reports whether text is what the deltas add up to; it is well-formed.
func (b *answerBlock) says(text string) bool {
	rest := text
	for _, run := range b.runs {
		for _, t := range run {
			if !strings.HasPrefix(rest, t) {
				return text == b.text() // a surrogate pair may be split
			}
			rest = rest[len(t):]
		}
	}
	return rest == ""
}

// block returns the block as a message holds it.
func (b *answerBlock) block(text string) events.Block {
	if b.kind == events.BlockToolCall {
		return events.Block{Type: b.kind, ID: b.id, Name: b.name, Arguments: text}
	}
	return events.Block{Type: b.kind, Text: text}
}

var (
	errAfterFinish = errors.New("it follows the finish chunk")
	errNoBlock     = errors.New("it belongs to no open block of that kind")
)

// Add takes the next chunk and keeps its Texts, which the caller must not change afterwards. It fails when the chunk
// does not fit what came before: a delta without its block, a block out of order, anything after the finish.
func (a *Answer) Add(c *events.Chunk) error {
	if a.Finished {
		return errAfterFinish
	}
	switch c.Type {
	case events.ChunkBlockStart:
		if c.Index != int64(len(a.blocks)) {
			return fmt.Errorf("block %d starts where %d belongs", c.Index, len(a.blocks))
		}
		if c.BlockType == events.BlockToolResult || c.BlockType == events.BlockImage {
			return fmt.Errorf("a model gives no %s block", c.BlockType)
		}
		if a.blocks == nil {
			a.blocks = make([]answerBlock, 0, 4)
		}
		a.blocks = append(a.blocks, answerBlock{kind: c.BlockType, runs: make([][]string, 0, 8)})
	case events.ChunkTextDelta:
		return a.delta(c, events.BlockText)
	case events.ChunkReasoningDelta:
		return a.delta(c, events.BlockReasoning)
	case events.ChunkToolCallDelta:
		return a.delta(c, events.BlockToolCall)
	case events.ChunkBlockEnd:
		b := a.block(c.Index)
		if b == nil {
			return errNoBlock
		}
		b.ended = true
	case events.ChunkUsage:
		a.Usage, a.UsageReported = c.Usage, true
	case events.ChunkFinish:
		a.Finish, a.Finished = c.Finish, true
	}
	return nil
}

// block returns the open block with the index, or nil.
func (a *Answer) block(index int64) *answerBlock {
	if index < 0 || index >= int64(len(a.blocks)) || a.blocks[index].ended {
		return nil
	}
	return &a.blocks[index]
}

func (a *Answer) delta(c *events.Chunk, kind events.BlockType) error {
	b := a.block(c.Index)
	if b == nil || b.kind != kind {
		return errNoBlock
	}
	if kind == events.BlockToolCall {
		if b.id != "" && c.ID != b.id {
			return fmt.Errorf("call id %q, the block's is %q", c.ID, b.id)
		}
		b.id = c.ID
		if c.Name != "" {
			b.name = c.Name
		}
	}
	b.runs = append(b.runs, c.Texts)
	return nil
}

// Content returns the blocks that an assistant message keeps. Tool calls are dropped when the answer ran into its
// token limit, since their arguments may be cut off. Of an aborted answer tool calls and blocks of nothing but
// white space are dropped. White space is what ECMAScript's trim removes. A tool call without an id is dropped always.
func (a *Answer) Content() []events.Block {
	var out []events.Block
	for i := range a.blocks {
		if b := &a.blocks[i]; a.keeps(b) {
			out = append(out, b.block(b.text()))
		}
	}
	return out
}

// Texts returns the text blocks of Content: what an auxiliary call is made for.
func (a *Answer) Texts() []events.Block {
	return slices.DeleteFunc(a.Content(), func(b events.Block) bool { return b.Type != events.BlockText })
}

// is reports whether content is what Content returns, without joining the deltas.
func (a *Answer) is(content []events.Block) bool {
	n := 0
	for i := range a.blocks {
		b := &a.blocks[i]
		if !a.keeps(b) {
			continue
		}
		if n == len(content) {
			return false
		}
		text := content[n].Text
		if b.kind == events.BlockToolCall {
			text = content[n].Arguments
		}
		if !b.says(text) || !blockEqual(b.block(text), content[n]) {
			return false
		}
		n++
	}
	return n == len(content)
}

func (a *Answer) keeps(b *answerBlock) bool {
	aborted := a.Finish.Kind == events.FinishAborted
	if b.kind == events.BlockToolCall {
		return b.id != "" && !aborted && a.Finish.Kind != events.FinishMaxTokens
	}
	return !aborted || strings.TrimLeftFunc(b.text(), isSpace) != ""
}

// isSpace reports whether ECMAScript counts r as white space or as a line terminator.
func isSpace(r rune) bool {
	return r >= '\t' && r <= '\r' || r == ' ' || r == '\u00A0' || r == '\u1680' || r >= '\u2000' && r <= '\u200A' ||
		r == '\u2028' || r == '\u2029' || r == '\u202F' || r == '\u205F' || r == '\u3000' || r == '\uFEFF'
}

// Empty reports whether no block has come.
func (a *Answer) Empty() bool { return len(a.blocks) == 0 }

func (a *Answer) clone() Answer {
	c := *a
	c.blocks = make([]answerBlock, len(a.blocks))
	for i, b := range a.blocks {
		b.runs = slices.Clone(b.runs)
		c.blocks[i] = b
	}
	return c
}
