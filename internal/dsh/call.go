package dsh

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// modelCall is a call of which the reference system has recorded chunks and no end yet. Its chunks are held back until
// the end shows whether they add up to what was kept of them.
type modelCall struct {
	ref     turnStep // as the reference system numbers it
	attempt int64
	chunks  []events.Chunk
	answer  fold.Answer
	broken  bool // a chunk did not fit those before it
}

func (c *modelCall) add(chunk events.Chunk) {
	if c.broken {
		return
	}
	if err := c.answer.Add(&chunk); err != nil {
		c.broken = true
		return
	}
	c.chunks = append(c.chunks, chunk)
}

// dispatch records the llm/stream of a new call, at the place where the reference system recorded its first chunk.
// listed adds it to the session's requests.
func (t *translator) dispatch(r *row, ref turnStep, listed bool) error {
	if err := t.ready(false); err != nil {
		return err
	}
	if err := t.startRetry(); err != nil {
		return err
	}
	if err := t.showImages(r); err != nil {
		return err
	}
	req, err := t.state.Request()
	if err != nil {
		return err
	}
	body, err := t.builder.Build(&req, &t.set)
	if err != nil {
		return err
	}
	turn, step := t.place()
	attempt := t.state.Attempt() + 1
	_, err = t.plain(&events.LLMStream{
		Turn: turn, Step: step, Attempt: attempt, Purpose: events.PurposeLoop, Header: req.HeaderSeq, Surface: req.Surface,
		Codec: t.builder.Codec(), Body: body.Digest(), Objects: t.state.NewObjects(),
	})
	if err != nil {
		return err
	}
	t.call = &modelCall{ref: ref, attempt: attempt}
	if listed {
		t.out.Requests = append(t.out.Requests, Request{
			Turn: ref.Turn, Step: ref.Step, Attempt: attempt, FirstChunk: r.Seq, Body: body, renamed: slices.Clip(t.renamed),
		})
	}
	return nil
}

// chunk takes a chunk of the open call, or of a new one.
func (t *translator) chunk(r *row, ref turnStep, c events.Chunk) error {
	if t.call != nil && (t.call.ref != ref || t.call.answer.Finished && c.Type != events.ChunkUsage) {
		if err := t.abandon(); err != nil {
			return err
		}
	}
	if t.call == nil {
		if err := t.dispatch(r, ref, true); err != nil {
			return err
		}
	}
	t.call.add(c)
	return nil
}

// record appends chunk events, one for each chunk, and returns their sequences.
func (t *translator) record(chunks []events.Chunk) ([]uint64, error) {
	turn, step := t.place()
	seqs := make([]uint64, 0, len(chunks))
	for i := range chunks {
		for _, part := range t.parts(chunks[i]) {
			seq, err := t.plain(&events.AssistantChunk{Turn: turn, Step: step, Attempt: t.call.attempt, Chunks: []events.Chunk{part}})
			if err != nil {
				return nil, err
			}
			seqs = append(seqs, seq)
		}
	}
	return seqs, nil
}

// parts divides a long run of deltas.
func (t *translator) parts(c events.Chunk) []events.Chunk {
	const quotes = 3 // what an element of a list takes beside its text
	var out []events.Chunk
	n, from := 0, 0
	for i, text := range c.Texts {
		if n += len(text) + quotes; t.long(n) && i > from {
			part := c
			part.Texts = c.Texts[from:i:i]
			out = append(out, part)
			n, from = len(text)+quotes, i
		}
	}
	c.Texts = c.Texts[from:]
	return append(out, c)
}

// fail ends the open call without an answer.
func (t *translator) fail(f events.Failure) error {
	if _, err := t.record(t.call.chunks); err != nil {
		return err
	}
	turn, step := t.place()
	_, err := t.plain(&events.LLMFailed{Turn: turn, Step: step, Attempt: t.call.attempt, Failure: f})
	t.call = nil
	return err
}

// abandon ends a model call of which the reference system kept nothing: its process died, or it was cancelled.
func (t *translator) abandon() error {
	if t.call == nil {
		return nil
	}
	return t.fail(events.Failure{Message: "the reference system recorded no end of this call", Code: events.FailureInterrupted})
}

func (t *translator) chunkRow(r *row) error {
	var c struct {
		turnStep
		Chunk chunk `json:"chunk"`
	}
	if err := unmarshal(r.Data, &c); err != nil {
		return err
	}
	out := events.Chunk{Type: events.ChunkType(c.Chunk.Type), Index: c.Chunk.Index}
	switch out.Type {
	case events.ChunkBlockStart:
		out.BlockType = events.BlockType(c.Chunk.BlockType)
	case events.ChunkTextDelta, events.ChunkReasoningDelta:
		out.Texts = []string{string(c.Chunk.Text)}
	case events.ChunkToolCallDelta:
		out.ID, out.Name, out.Texts = string(c.Chunk.ID), string(c.Chunk.Name), []string{string(c.Chunk.Arguments)}
	case events.ChunkBlockEnd:
	case events.ChunkUsage:
		out.Index = 0
		out.Usage, _ = c.Chunk.Usage.event()
	case events.ChunkFinish:
		out.Index = 0
		if c.Chunk.Reason.Kind == "error" {
			return t.failed(r, c.turnStep, c.Chunk.Reason.Failure.event())
		}
		out.Finish = finishOf(string(c.Chunk.Reason.Kind))
	}
	if err := t.chunk(r, c.turnStep, out); err != nil {
		return err
	}
	if !ours(&out) {
		t.call.broken = true
	}
	return nil
}

// ours reports whether our log has a place for a chunk.
func ours(c *events.Chunk) bool {
	switch c.Type {
	case events.ChunkBlockStart:
		return slices.Contains([]events.BlockType{events.BlockText, events.BlockReasoning, events.BlockToolCall}, c.BlockType)
	case events.ChunkTextDelta, events.ChunkReasoningDelta, events.ChunkToolCallDelta, events.ChunkBlockEnd, events.ChunkUsage, events.ChunkFinish:
		return true
	}
	return false
}

func (t *translator) failed(r *row, ref turnStep, f events.Failure) error {
	if t.call != nil && (t.call.ref != ref || t.call.answer.Finished) {
		if err := t.abandon(); err != nil {
			return err
		}
	}
	if t.call == nil {
		if err := t.dispatch(r, ref, true); err != nil {
			return err
		}
	}
	return t.fail(f)
}

func finishOf(kind string) events.Finish {
	switch k := events.FinishKind(kind); k {
	case events.FinishStop, events.FinishToolCalls, events.FinishMaxTokens, events.FinishContentFilter, events.FinishAborted:
		return events.Finish{Kind: k}
	}
	return events.Finish{Kind: events.FinishStop, Raw: kind}
}

// answer translates an assistant message. What it shows is what the reference system sends from then on; when its
// chunks add up to something else they are told anew. A message without chunks was not dispatched as far as the log
// tells, and is no request of the list.
func (t *translator) answer(r *row) (uint64, error) {
	var a struct {
		turnStep
		Message     message `json:"message"`
		Usage       *usage  `json:"usage"`
		Interrupted bool    `json:"interrupted"`
	}
	if err := unmarshal(r.Data, &a); err != nil {
		return 0, err
	}
	if !isAppend(r.Surface) {
		return 0, errReplacedAnswer
	}
	m, err := t.message(r, &a.Message, events.RoleAssistant)
	if err != nil {
		return 0, err
	}
	if t.call == nil {
		if err := t.dispatch(r, a.turnStep, false); err != nil {
			return 0, err
		}
	}
	h, _ := t.state.Header()
	m.Source = events.Source{Kind: events.SourceModel, Provider: h.Config.Provider, Model: h.Config.Model}
	tools := t.rename(r, m.Content)
	reported, hasUsage := a.Usage.event()
	chunks, answer, ok := t.call.tell(m.Content, a.Interrupted, reported, hasUsage)
	if !ok {
		return 0, errUntold
	}
	seqs, err := t.record(chunks)
	if err != nil {
		return 0, err
	}
	turn, step := t.place()
	seq, err := t.append(&events.AssistantMessage{
		Turn: turn, Step: step, Message: m, Finish: answer.Finish, Interrupted: answer.Finish.Kind == events.FinishAborted,
		Usage: answer.Usage, UsageReported: answer.UsageReported,
	}, events.AppendOp(), seqs)
	t.call, t.tools = nil, tools
	return seq, err
}

// tell returns chunks that add up to content: those that came, when they do, and otherwise a short retelling.
func (c *modelCall) tell(content []events.Block, interrupted bool, u events.Usage, hasUsage bool) ([]events.Chunk, *fold.Answer, bool) {
	finish := events.Finish{Kind: events.FinishStop}
	switch {
	case c.answer.Finished:
		finish = c.answer.Finish
	case interrupted:
		finish.Kind = events.FinishAborted
	}
	if !c.broken {
		chunks, answer := c.chunks, c.answer
		if !answer.Finished {
			end := events.Chunk{Type: events.ChunkFinish, Finish: finish}
			if answer.Add(&end) == nil {
				chunks = append(slices.Clip(chunks), end)
			}
		}
		if slices.EqualFunc(answer.Content(), content, sameBlock) {
			return chunks, &answer, true
		}
	}
	if c.answer.UsageReported {
		u, hasUsage = c.answer.Usage, true
	}
	for _, f := range []events.Finish{finish, {Kind: events.FinishAborted}, {Kind: events.FinishStop}} {
		if f.Kind == events.FinishAborted && !interrupted {
			continue
		}
		chunks := retell(content, u, hasUsage, f)
		var answer fold.Answer
		fits := !slices.ContainsFunc(chunks, func(c events.Chunk) bool { return answer.Add(&c) != nil })
		if fits && slices.EqualFunc(answer.Content(), content, sameBlock) {
			return chunks, &answer, true
		}
	}
	return nil, nil, false
}

func retell(content []events.Block, u events.Usage, hasUsage bool, finish events.Finish) []events.Chunk {
	var out []events.Chunk
	for i := range content {
		b, index := &content[i], int64(i)
		delta := events.Chunk{Index: index, Type: events.ChunkTextDelta, Texts: []string{b.Text}}
		switch b.Type {
		case events.BlockReasoning:
			delta.Type = events.ChunkReasoningDelta
		case events.BlockToolCall:
			delta = events.Chunk{Index: index, Type: events.ChunkToolCallDelta, ID: b.ID, Name: b.Name, Texts: []string{b.Arguments}}
		case events.BlockText, events.BlockToolResult, events.BlockImage:
		}
		out = append(out,
			events.Chunk{Type: events.ChunkBlockStart, Index: index, BlockType: b.Type}, delta,
			events.Chunk{Type: events.ChunkBlockEnd, Index: index})
	}
	if hasUsage {
		out = append(out, events.Chunk{Type: events.ChunkUsage, Usage: u})
	}
	return append(out, events.Chunk{Type: events.ChunkFinish, Finish: finish})
}

// sameBlock compares blocks of an assistant message.
func sameBlock(a, b events.Block) bool {
	return a.Type == b.Type && a.Text == b.Text && a.ID == b.ID && a.Name == b.Name && a.Arguments == b.Arguments
}
