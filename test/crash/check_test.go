package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// outcome is what a session came to, apart from ids, times and sequences.
type outcome struct {
	Shown    []shown
	Turns    []string  // how each ended
	Effects  string    // of the tools
	Requests []request // without those that repeat the one before
}

// shown is a message of the surface.
type shown struct {
	Who   string // user, model, tool or plugin
	Calls []string
	Call  string // tool: the id of the call that it answers
	Error bool   // tool
	Text  string
}

// request is what the provider was asked in a step.
type request struct {
	Turn, Step int64
	Body       string
}

// record is an outcome and what the log has beside it.
type record struct {
	outcome
	events []events.Event
	codes  map[string]events.ToolErrorCode // of the tools' results, by call
	texts  map[string]string               // of the same
	order  []string                        // the calls, in the order of their results
}

// read takes a finished session apart and checks what holds for each, however it came to its end.
func (r *run) read(t *testing.T) *record {
	t.Helper()
	state, list := r.fold(t.Context(), t)
	rec := &record{
		events: list, codes: make(map[string]events.ToolErrorCode), texts: make(map[string]string),
		outcome: outcome{Effects: r.marked(t), Requests: r.requests(t)},
	}
	for _, m := range state.Messages().All() {
		rec.Shown = append(rec.Shown, r.shown(t, &m))
	}
	results := make(map[string]int)
	for i := range list {
		switch b := list[i].Body.(type) {
		case *events.TurnEnd:
			rec.Turns = append(rec.Turns, fmt.Sprintf("%d %s", b.Turn, b.Kind))
		case *events.ToolResult:
			id := b.CallID()
			results[id]++
			rec.order = append(rec.order, id)
			rec.codes[id], rec.texts[id] = b.Error.Code, r.text(t, b.Message.Content)
		}
	}
	for _, id := range rec.order {
		if results[id] != 1 {
			t.Errorf("call %s has %d results", id, results[id])
		}
	}
	r.verified(t)
	r.usedOnce(t, list)
	r.repairedOnce(t, list)
	return rec
}

func (r *run) shown(t *testing.T, m *events.Message) (s shown) {
	t.Helper()
	s.Who = map[events.SourceKind]string{events.SourceUser: "user", events.SourceModel: "model", events.SourceTool: "tool", events.SourcePlugin: "plugin"}[m.Source.Kind]
	s.Text = r.text(t, m.Content)
	for _, b := range m.Content {
		switch b.Type {
		case events.BlockToolCall:
			s.Calls = append(s.Calls, b.ID+" "+b.Name+" "+b.Arguments)
		case events.BlockToolResult:
			s.Call, s.Error = b.ToolCallID, b.IsError
		default: // its text
		}
	}
	return s
}

// text returns the text of blocks, in order.
func (r *run) text(t *testing.T, blocks []events.Block) (s string) {
	t.Helper()
	for _, b := range blocks {
		s += b.Text + r.text(t, b.Content)
		if b.Object != (objects.Ref{}) {
			data, err := objects.Get(t.Context(), r.slot.client.Objects(), b.Object)
			if err != nil {
				t.Fatal(err)
			}
			s += string(data)
		}
	}
	return s
}

// requests rebuilds the session's requests and compares them with what the provider received: the same bytes, or
// nothing when the worker was killed before it came to it.
func (r *run) requests(t *testing.T) (out []request) {
	t.Helper()
	log, err := r.slot.client.Logs().Open(t.Context(), r.id)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make(map[uint64]struct{})
	for q, err := range replay.Requests(t.Context(), r.id, log, r.slot.client.Objects()) {
		if err := errors.Join(err, q.Err); err != nil {
			t.Fatalf("request %d: %v", q.Seq, err)
		}
		body, err := io.ReadAll(q.Body.Reader())
		if err != nil {
			t.Fatal(err)
		}
		known[q.Seq] = struct{}{}
		if q.Body.Digest() != q.Stream.Body {
			t.Errorf("request %d is not what the log says", q.Seq)
		}
		if sent, ok := r.bodies[q.Seq]; ok && !bytes.Equal(sent, body) {
			t.Errorf("request %d is not what the provider received:\n%s", q.Seq, cmp.Diff(string(sent), string(body)))
		}
		next := request{q.Stream.Turn, q.Stream.Step, string(body)}
		if n := len(out); n == 0 || out[n-1] != next {
			out = append(out, next)
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(r.bodies)) {
		if _, ok := known[seq]; !ok {
			t.Errorf("the provider received request %d, which the log does not have", seq)
		}
	}
	return out
}

// verified checks the log as a verifier does.
func (r *run) verified(t *testing.T) {
	t.Helper()
	log, err := r.slot.client.Logs().Open(t.Context(), r.id)
	if err != nil {
		t.Fatal(err)
	}
	checker := audit.NewChecker(audit.CheckerConfig{
		Session: r.id, Objects: audit.FromStore(r.slot.client.Objects()), Cold: true,
		Actual: func(_ context.Context, seq uint64) ([]byte, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			body, ok := r.bodies[seq]
			return body, ok
		},
	})
	for m, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		verdict, err := checker.Apply(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if verdict != nil && verdict.Result != audit.Match {
			t.Error(verdict)
		}
	}
}

// usedOnce checks that every input was sent and is claimed by one event.
func (r *run) usedOnce(t *testing.T, list []events.Event) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.left) > 0 {
		t.Errorf("%d inputs were never sent", len(r.left))
	}
	claims := make(map[uint64]int)
	for i := range list {
		seq := claimed(list[i].Body)
		if seq == 0 {
			continue
		}
		claims[seq]++
		if m, ok := list[i].Body.(*events.UserMessage); ok && m.Message.ID != r.inputs[seq] {
			t.Errorf("event %d claims input %d, whose id is not %s", list[i].Seq, seq, m.Message.ID)
		}
	}
	want := make(map[uint64]int)
	for seq := range r.inputs {
		want[seq] = 1
	}
	if diff := cmp.Diff(want, claims); diff != "" {
		t.Errorf("how often each input is used:\n%s", diff)
	}
}

// repairedOnce checks that the answers which the crashes cut off, and no others, are called interrupted, each once, that
// every worker claims the session at most once, and that a retry is announced and begun once.
func (r *run) repairedOnce(t *testing.T, list []events.Event) {
	t.Helper()
	var want, got []uint64
	for _, k := range r.kills {
		if k.open > 0 && !slices.Contains(want, k.open) {
			want = append(want, k.open)
		}
	}
	var stream, cancel uint64
	once := make(map[string]int)
	claims := 0
	for i := range list {
		switch b := list[i].Body.(type) {
		case *events.LLMStream:
			stream = list[i].Seq
		case *events.TurnCancelled:
			cancel = list[i].Seq
		case *events.LLMFailed:
			// A cancel that waited is taken first, and ends the request in its own way.
			cancelled := b.Failure.Code == events.FailureCancelled && cancel > stream && slices.Contains(want, stream)
			if b.Failure.Code == events.FailureInterrupted || cancelled {
				got = append(got, stream)
			}
		case *events.LoopClaimed:
			claims++
			once["claim of "+string(b.Instance)]++
		case *events.LLMRetry:
			once[fmt.Sprintf("retry %d of step %d.%d", b.Retry, b.Turn, b.Step)]++
		case *events.LLMRetryStarted:
			once[fmt.Sprintf("start of retry %d of step %d.%d", b.Retry, b.Turn, b.Step)]++
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests whose answer was interrupted:\n%s", diff)
	}
	if most := len(r.kills) + 1; claims > most {
		t.Errorf("%d claims by %d workers", claims, most)
	}
	for _, what := range slices.Sorted(maps.Keys(once)) {
		if n := once[what]; n > 1 {
			t.Errorf("%s stands %d times", what, n)
		}
	}
}

// fate returns how a crash changes the result of a call: not at all, when the code is empty.
func (r *run) fate(call string) events.ToolErrorCode {
	for _, k := range r.kills {
		for _, p := range k.pending {
			switch {
			case p.ID != call:
			case p.CallSeq == 0:
				return events.ToolNotStarted
			case p.Name == string(opMark):
				return events.ToolOutcomeUnknown
			}
		}
	}
	return ""
}

// compare checks that an interrupted session came to the same as the uninterrupted one, but for the calls that the crash
// cut off: those have the results that say so, and the model reads them. It returns what became of them.
func (r *run) compare(t *testing.T, base, got *record) (fates string) {
	t.Helper()
	want := outcome{
		Shown: slices.Clone(base.Shown), Turns: base.Turns, Effects: base.Effects, Requests: slices.Clone(base.Requests),
	}
	for _, call := range base.order {
		code := r.fate(call)
		if got.codes[call] != code {
			t.Errorf("call %s ended with %q, want %q", call, got.codes[call], code)
		}
		if code == "" {
			continue
		}
		fates += " " + string(code)
		if !strings.HasPrefix(got.texts[call], "Error: ") {
			t.Errorf("the model reads of call %s: %q", call, got.texts[call])
		}
		want.interrupt(call, base.texts[call], got.texts[call])
		if !slices.ContainsFunc(r.kills, func(k kill) bool { return strings.Contains(k.effects, call+"\n") }) {
			want.Effects = strings.ReplaceAll(want.Effects, call+"\n", "")
		}
	}
	if diff := cmp.Diff(want, got.outcome); diff != "" {
		t.Errorf("what differs from the uninterrupted session:\n%s", diff)
	}
	return strings.TrimPrefix(fates, " ")
}

// interrupt replaces the result of a call, here and wherever it is repeated.
func (o *outcome) interrupt(call, was, is string) {
	for i := range o.Shown {
		s := &o.Shown[i]
		if s.Call == call {
			s.Text, s.Error = is, true
		} else {
			s.Text = strings.ReplaceAll(s.Text, was, is)
		}
	}
	for i := range o.Requests {
		o.Requests[i].Body = strings.ReplaceAll(o.Requests[i].Body, was, is)
	}
}
