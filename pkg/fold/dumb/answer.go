package dumb

import (
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

// Answer returns the content that an assistant message keeps of a model call's chunks, which are all of its chunks in
// order and form an answer.
func Answer(chunks []events.Chunk) []events.Block {
	var content []events.Block
	for _, start := range chunks {
		if start.Type != events.ChunkBlockStart {
			continue
		}
		block := block(chunks, start.Index, start.BlockType)
		if !dropped(block, finish(chunks)) {
			content = append(content, block)
		}
	}
	return content
}

// block puts the block with the index together from its deltas.
func block(chunks []events.Chunk, index int64, kind events.BlockType) events.Block {
	b := events.Block{Type: kind}
	var parts []string
	for _, c := range chunks {
		isDelta := c.Type == events.ChunkTextDelta || c.Type == events.ChunkReasoningDelta || c.Type == events.ChunkToolCallDelta
		if !isDelta || c.Index != index {
			continue
		}
		parts = append(parts, c.Texts...)
		if c.ID != "" {
			b.ID = c.ID
		}
		if c.Name != "" {
			b.Name = c.Name
		}
	}
	text := events.JoinText(parts...)
	if kind == events.BlockToolCall {
		b.Arguments = text
	} else {
		b.Text = text
	}
	return b
}

// finish returns how the answer ended, empty while it has not.
func finish(chunks []events.Chunk) events.FinishKind {
	for _, c := range chunks {
		if c.Type == events.ChunkFinish {
			return c.Finish.Kind
		}
	}
	return ""
}

// spaces are the characters that ECMAScript's trim removes.
const spaces = "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a" +
	"\u2028\u2029\u202f\u205f\u3000\ufeff"

func dropped(b events.Block, finish events.FinishKind) bool {
	if b.Type == events.BlockToolCall {
		return b.ID == "" || finish == events.FinishMaxTokens || finish == events.FinishAborted
	}
	blank := !slices.ContainsFunc([]rune(b.Text), func(r rune) bool { return !strings.ContainsRune(spaces, r) })
	return blank && finish == events.FinishAborted
}
