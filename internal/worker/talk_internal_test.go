package worker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// talk is a session of a rig, with what it is told.
type talk struct {
	*rig
	id   events.ID
	logs *eventlog.Memory
	log  *hooked
	q    *memoryQueue
	l    *loop

	mu  sync.Mutex
	seq uint64
}

// hooked is a log that tells of each event that it has stored.
type hooked struct {
	eventlog.Log
	on func(*events.Event)
}

func (h *hooked) Append(ctx context.Context, e *events.Event, payload []byte) error {
	err := h.Log.Append(ctx, e, payload)
	if err == nil && h.on != nil {
		h.on(e)
	}
	return err
}

// talk begins a session.
func (r *rig) talk() *talk {
	r.t.Helper()
	logs := eventlog.NewMemory(time.Now)
	r.cfg.Sessions = logs
	return r.talkIn(logs)
}

func (r *rig) talkIn(logs *eventlog.Memory) *talk {
	r.t.Helper()
	k := &talk{rig: r, id: newID(), logs: logs, q: newQueue()}
	log, err := logs.Create(r.t.Context(), k.id)
	if err != nil {
		r.t.Fatal(err)
	}
	k.log = &hooked{Log: log}
	return k
}

// on has f called once, behind the n-th stored event for which ok holds.
func (k *talk) on(n int, ok func(events.Body) bool, f func()) {
	k.log.on = func(e *events.Event) {
		if ok(e.Body) {
			if n--; n == 0 {
				f()
			}
		}
	}
}

// is returns a condition that holds of one type of body.
func is[B events.Body](b events.Body) bool {
	_, ok := b.(B)
	return ok
}

// tell puts an input into the inbox.
func (k *talk) tell(in events.Input) *input {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seq++
	in.ID = newID()
	i := &input{Input: in, seq: k.seq}
	k.q.add(i)
	return i
}

func (k *talk) say(kind events.InputKind, text string) *input {
	return k.tell(events.Input{Kind: kind, Open: kind == events.InputPrompt, Content: []events.Block{events.Text(text)}})
}

func (k *talk) prompt(text string) *input { return k.say(events.InputPrompt, text) }

func (k *talk) cancel(keep bool) {
	k.tell(events.Input{Kind: events.InputCancel, Cause: "user", KeepQueue: keep})
}

// rest works until the session is at rest.
func (k *talk) rest() {
	k.t.Helper()
	if err := k.run(); err != nil {
		k.t.Fatal(err)
	}
}

// run works until the session is at rest or the loop fails.
func (k *talk) run() error {
	k.t.Helper()
	if k.l == nil {
		k.l = k.open(k.log, k.id, k.q)
	}
	ctx, cancel := context.WithTimeout(k.t.Context(), 20*time.Second)
	defer cancel()
	return k.l.rest(ctx)
}

// die ends the loop; another instance of the worker goes on.
func (k *talk) die() {
	k.l, k.log.on = nil, nil
	k.cfg.Instance = newID()
}

// crash works until the n-th event of which ok holds is stored, and ends there.
func (k *talk) crash(n int, ok func(events.Body) bool) {
	k.t.Helper()
	if k.l == nil {
		k.l = k.open(k.log, k.id, k.q)
	}
	ctx, cancel := context.WithCancel(k.t.Context())
	defer cancel()
	k.on(n, ok, cancel)
	if err := k.l.rest(ctx); err == nil {
		k.t.Fatal("the session came to rest before the event")
	}
	k.die()
}

// all returns the log and its fold, after it has rebuilt every request and compared it with what the provider got.
func (k *talk) all() ([]events.Event, *fold.State) {
	k.t.Helper()
	list, s := history(k.t, k.log, k.id)
	bodies := k.rebuild(list, k.id)
	recorded := make(map[uint64]string)
	for i := range list {
		if _, ok := list[i].Body.(*events.LLMStream); ok {
			recorded[list[i].Seq], bodies = bodies[0], bodies[1:]
		}
	}
	for _, sent := range k.sim.Requests() {
		if sent.Session != string(k.id) {
			continue
		}
		if string(sent.Body) != recorded[sent.Seq] {
			k.t.Errorf("event %d: sent\n%s\nrebuilt\n%s", sent.Seq, sent.Body, recorded[sent.Seq])
		}
	}
	return list, s
}

// want compares the log with a description, one event a line, but for chunks, contexts of requests and what stands
// before the first turn.
func (k *talk) want(lines ...string) {
	k.t.Helper()
	list, _ := k.all()
	if diff := cmp.Diff(lines, trace(list)); diff != "" {
		k.t.Errorf("session (-want +got):\n%s", diff)
	}
}

// trace describes the events of a log.
func trace(list []events.Event) (out []string) {
	names := make(map[string]string)
	for i := range list {
		if line := describe(&list[i], names); line != "" {
			out = append(out, line)
		}
	}
	return out
}

func describe(e *events.Event, names map[string]string) string {
	switch b := e.Body.(type) {
	case *events.SessionCreated, *events.AssistantChunk, *events.RequestContext:
		return ""
	case *events.LoopClaimed:
		if b.Reason == events.ClaimCreated {
			return ""
		}
		return "claimed " + string(b.Reason)
	case *events.TurnStart:
		return fmt.Sprintf("turn %d", b.Turn)
	case *events.TurnEnd:
		return strings.TrimSpace(fmt.Sprintf("turn end %s %s%s", b.Kind, b.Cause, b.Failure.Code))
	case *events.StepStart:
		return fmt.Sprintf("step %d", b.Step)
	case *events.StepEnd:
		return "step end"
	case *events.TurnCancelled:
		return fmt.Sprintf("cancelled turn %d keep %t", b.Turn, b.KeepQueue)
	case *events.InputDropped:
		return fmt.Sprintf("dropped %s %d", b.Kind, b.Claim.InboxSeq)
	case *events.SessionConfigured:
		return "configured"
	case *events.RequestHeader:
		return strings.TrimSpace(fmt.Sprintf("header %s %s", b.Reason, b.Header.Config.ReasoningEffort))
	case *events.RequestImages:
		return fmt.Sprintf("images %d %s", len(b.Images), b.Images[0].As)
	}
	return describeCall(e, names)
}

func describeCall(e *events.Event, names map[string]string) string {
	switch b := e.Body.(type) {
	case *events.UserMessage:
		return describeMessage(e, b)
	case *events.LLMStream:
		return fmt.Sprintf("call %s %d", b.Purpose, b.Attempt)
	case *events.LLMFailed:
		return "failed " + string(b.Failure.Code)
	case *events.LLMRetry:
		return fmt.Sprintf("retry %d", b.Retry)
	case *events.AssistantMessage:
		line := "answer " + string(b.Finish.Kind)
		for _, c := range b.Message.Content {
			if c.Type == events.BlockText {
				line += " " + c.Text
			}
			if c.Type == events.BlockToolCall {
				names[c.ID] = c.Name
				line += " " + c.Name + "()"
			}
		}
		return line
	case *events.ToolCall:
		return "tool " + b.Name
	case *events.ToolResult:
		if e.Surface.Kind == events.SurfaceReplace {
			return "pruned " + names[b.CallID()]
		}
		return strings.TrimSpace(fmt.Sprintf("result %s %s", names[b.CallID()], b.Error.Code))
	case *events.CompactionStart:
		return "compaction " + string(b.Reason)
	case *events.CompactionEnd:
		return "compaction end " + string(b.Outcome)
	}
	return string(e.Type())
}

func describeMessage(e *events.Event, b *events.UserMessage) string {
	text := ""
	for _, c := range b.Message.Content {
		if text += c.Text; c.Type == events.BlockImage {
			text += "<image>"
		}
	}
	switch {
	case e.Surface.Kind == events.SurfaceReplace:
		return "summary in place"
	case b.Delivery != "":
		return fmt.Sprintf("%s %s", b.Delivery, text)
	case b.InboxSeq > 0:
		return "prompt " + text
	}
	return fmt.Sprintf("%s %s: %s", b.Message.Source.Kind, b.Message.Source.Plugin, text)
}

// fake is a tool made for a test.
type fake struct {
	name   string
	safety tools.Safety
	run    func(ctx context.Context, arguments string) tools.Result
}

func (f *fake) Schema() events.Tool {
	return events.Tool{Name: f.name, Description: "A test.", Parameters: `{"type":"object","properties":{"n":{"type":"integer"}}}`}
}
func (f *fake) Safety() tools.Safety                                   { return f.safety }
func (f *fake) Run(ctx context.Context, arguments string) tools.Result { return f.run(ctx, arguments) }

// use gives the rig these tools and no others.
func (r *rig) use(list ...tools.Tool) {
	r.t.Helper()
	set, err := tools.NewSet(list...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.cfg.Tools = set
}

func output(text string) tools.Result { return tools.Result{Output: []byte(text)} }

// results returns the texts that tools gave, by tool.
func results(t *testing.T, list []events.Event) map[string]string {
	t.Helper()
	out, names := make(map[string]string), make(map[string]string)
	for i := range list {
		describe(&list[i], names)
		if b, ok := list[i].Body.(*events.ToolResult); ok {
			out[names[b.CallID()]] = b.Message.Content[0].Content[0].Text
		}
	}
	return out
}
