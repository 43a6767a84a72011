package foldtest

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

// Session returns a valid log of n events, at least 1, shaped like the session of an agent at work: about 60% of the
// events are runs of chunks of a few hundred bytes each. The same n gives the same log.
func Session(n int) []events.Event { return SessionLog(n, nil).Events }

// SessionLog is Session for those who need payloads or the fold too, or bodies: nil stands for [NoBody].
func SessionLog(n int, body BodyFunc) *Log { return SessionLogOf(SessionID, n, body) }

// SessionLogOf is SessionLog of the session with another ID.
func SessionLogOf(id events.ID, n int, body BodyFunc) *Log {
	w := &writer{Log: newLog(id), random: rand.New(rand.NewPCG(1, 2))}
	w.Body = body
	w.Begin()
	for len(w.Events) < n {
		w.work()
	}
	return w.Prefix(n)
}

// writer makes text that looks like an agent's.
type writer struct {
	*Log

	random *rand.Rand
	calls  int
}

// pick returns a number in [0,n).
func (w *writer) pick(n int) int { return w.random.IntN(n) }

// tokens returns n deltas as a model streams them.
func (w *writer) tokens(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = vocabulary[w.pick(len(vocabulary))]
	}
	return out
}

func (w *writer) prose(n int) string { return strings.Join(w.tokens(n), "") }

// work appends one turn: a prompt, a few steps with tools, an answer.
func (w *writer) work() {
	w.TurnStart()
	steps := 3 + w.pick(6)
	for step := range steps {
		w.StepStart()
		if step == 0 {
			w.User(w.prose(40))
		}
		w.Header(Header())
		w.Context(65536)
		last := step == steps-1
		w.answer(last)
		for _, p := range w.State.PendingTools() {
			w.ToolCall()
			w.ToolResult(events.Text(p.Arguments + "\n" + w.prose(120+w.pick(200))))
		}
		w.StepEnd()
	}
	w.TurnEnd(events.TurnCompleted)
}

// answer appends one model call: reasoning, then tool calls or, if last is set, the answer to the user.
func (w *writer) answer(last bool) {
	w.Stream()
	w.runs(0, events.BlockReasoning, "", 3+w.pick(4))
	finish := events.FinishToolCalls
	if last {
		w.runs(1, events.BlockText, "", 6+w.pick(8))
		finish = events.FinishStop
	} else {
		w.runs(1, events.BlockText, "", 1+w.pick(2))
		for i := range 1 + w.pick(2) {
			w.calls++
			w.runs(int64(2+i), events.BlockToolCall, "call_"+strconv.Itoa(w.calls), 2+w.pick(2))
		}
	}
	usage := UsageChunk(events.Usage{
		InputTokens: int64(100 + w.pick(900)), CacheReported: true, CacheReadTokens: int64(64 * w.pick(400)),
		OutputTokens: int64(50 + w.pick(400)),
	})
	w.Chunks(usage, FinishChunk(finish))
	w.Answer()
}

// runs appends one block in n chunk events.
func (w *writer) runs(index int64, kind events.BlockType, id string, n int) {
	delta := events.Chunk{Type: events.ChunkTextDelta, Index: index}
	switch kind {
	case events.BlockReasoning:
		delta.Type = events.ChunkReasoningDelta
	case events.BlockToolCall:
		delta.Type, delta.ID, delta.Name = events.ChunkToolCallDelta, id, "read"
	case events.BlockText, events.BlockToolResult, events.BlockImage:
	}
	for i := range n {
		var run []events.Chunk
		if i == 0 {
			run = append(run, events.Chunk{Type: events.ChunkBlockStart, Index: index, BlockType: kind})
		}
		delta.Texts = w.tokens(8 + w.pick(16))
		run = append(run, delta)
		if i == n-1 {
			run = append(run, events.Chunk{Type: events.ChunkBlockEnd, Index: index})
		}
		w.Chunks(run...)
	}
}

// vocabulary holds tokens of prose and code.
var vocabulary = [...]string{
	" the", " file", " to", " of", " and", " is", " in", "ing", " a", " that", ",", ".", "\n", "\n\n", "\t", " return",
	" err", " :=", " func", "(", ")", " {", "}", " if", " nil", " context", " session", " event", " \"", "\"", "://",
	" package", " test", "ed", "ly", " caf\u00e9", " \u2014", " \u65e5\u672c", " \U0001F680", "0", "1", "42", " error", " value",
}
