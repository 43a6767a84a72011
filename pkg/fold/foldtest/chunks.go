package foldtest

import "github.com/refold-dev/refold/pkg/events"

// TextBlock returns the chunks of one text block that comes in the deltas given.
func TextBlock(index int64, deltas ...string) []events.Chunk {
	return block(events.BlockText, events.Chunk{Type: events.ChunkTextDelta, Index: index, Texts: deltas})
}

// ReasoningBlock returns the chunks of one block of reasoning.
func ReasoningBlock(index int64, deltas ...string) []events.Chunk {
	return block(events.BlockReasoning, events.Chunk{Type: events.ChunkReasoningDelta, Index: index, Texts: deltas})
}

// CallBlock returns the chunks of one tool call, whose argument string comes in the deltas given.
func CallBlock(index int64, id, name string, deltas ...string) []events.Chunk {
	return block(events.BlockToolCall, events.Chunk{
		Type: events.ChunkToolCallDelta, Index: index, ID: id, Name: name, Texts: deltas,
	})
}

func block(kind events.BlockType, delta events.Chunk) []events.Chunk {
	return []events.Chunk{
		{Type: events.ChunkBlockStart, Index: delta.Index, BlockType: kind},
		delta,
		{Type: events.ChunkBlockEnd, Index: delta.Index},
	}
}

// UsageChunk returns a usage chunk.
func UsageChunk(u events.Usage) events.Chunk { return events.Chunk{Type: events.ChunkUsage, Usage: u} }

// FinishChunk returns a finish chunk.
func FinishChunk(kind events.FinishKind) events.Chunk {
	return events.Chunk{Type: events.ChunkFinish, Finish: events.Finish{Kind: kind}}
}

// Reply appends llm/stream, one assistant/chunk with the blocks' chunks and a finish chunk, and the assistant/message.
func (l *Log) Reply(finish events.FinishKind, blocks ...[]events.Chunk) uint64 {
	l.Stream()
	var run []events.Chunk
	for _, b := range blocks {
		run = append(run, b...)
	}
	l.Chunks(append(run, FinishChunk(finish))...)
	return l.Answer()
}

// Turn appends a whole turn of one step: the user says one text, the model answers another. The header is the one in
// force, or that of the function Header.
func (l *Log) Turn(prompt, answer string) uint64 {
	l.TurnStart()
	l.StepStart()
	l.User(prompt)
	l.PayContexts()
	l.Header(l.header())
	l.Reply(events.FinishStop, TextBlock(0, answer))
	l.StepEnd()
	return l.TurnEnd(events.TurnCompleted)
}

// header returns the header in force, or that of the function Header.
func (l *Log) header() events.Header {
	if h, seq := l.State.Header(); seq > 0 {
		return h
	}
	return Header()
}
