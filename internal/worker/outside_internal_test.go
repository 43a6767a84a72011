package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// hostile are texts that no event takes as they are.
func hostile() map[string]string {
	return map[string]string{
		"bytes": "a\xff\xfe", "long": strings.Repeat("x", 2*mib), "long bytes": strings.Repeat("\xff", 2*mib), "controls": strings.Repeat("\x01", 2*mib),
	}
}

func TestClipText(t *testing.T) {
	cases := hostile()
	cases["short"], cases["empty"] = "caf\u00e9", ""
	cases["cut inside"] = strings.Repeat("x", 4*kib-1) + "\U0001F600"
	cases["escaped"] = events.TextFromBytes([]byte("\xff\xfe"))
	for name, s := range cases {
		got := clipText(s)
		if !events.ValidText(got) || len(got) > 4*kib || clipText(got) != got {
			t.Errorf("%s: %d bytes, valid %t", name, len(got), events.ValidText(got))
		}
		if len(s) < 100 && events.ValidText(s) && got != s {
			t.Errorf("%s: %q became %q", name, s, got)
		}
	}
	if got := clipText(cases["cut inside"]); got != strings.Repeat("x", 4*kib-1) {
		t.Errorf("cut to %q", got[4*kib-4:])
	}
	if got := clipText("a\xff"); string(events.BytesFromText(got)) != "a\xff" {
		t.Errorf("bytes became %q", got)
	}
}

// TestHostileErrors ends the turn, whatever the text of an extension's error, and the next turn runs.
func TestHostileErrors(t *testing.T) {
	for name, text := range hostile() {
		n := 0
		fails := func() error {
			if n++; n == 1 {
				return errors.New(text)
			}
			return nil
		}
		begun := []string{"turn 1", "step 1", "prompt one"}
		for kind, c := range map[string]struct {
			x    Extensions
			want []string
		}{
			"stopping": {
				Extensions{TurnStopping: []TurnStopping{&guard{name: "x", stopping: func(Point) (string, error) { return "", fails() }}}},
				append(begun[:3:3], "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end error EXTENSION"),
			},
			"pre-step": {
				Extensions{PreStep: []PreStep{&guard{name: "x", pre: func(Point, []events.Input) (Entry, error) { return Entry{}, fails() }}}},
				append(begun[:3:3], "step end", "turn end error EXTENSION"),
			},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				n = 0
				r := newRig(t, chatty())
				r.cfg.Extensions = c.x
				k := r.talk()
				k.prompt("one")
				k.rest()
				k.want(c.want...)
				k.prompt("two")
				k.rest()
				list, _ := k.all()
				if got := trace(list); got[len(got)-1] != "turn end completed" {
					t.Errorf("the next turn: %q", got)
				}
			})
		}
	}
}

// naysayer is an adapter that refuses every call in its own words.
type naysayer events.Failure

func (f naysayer) Prepare(context.Context, events.Config) (*provider.Prepared, error) {
	return nil, &provider.Error{Failure: events.Failure(f)}
}

// TestHostileFailure ends the turn, whatever an adapter says of its failure.
func TestHostileFailure(t *testing.T) {
	for name, c := range map[string]struct {
		failure naysayer
		want    string
	}{
		"code":   {naysayer{Code: "no code", Message: "m"}, "INVALID_REQUEST"},
		"none":   {naysayer{Message: "m"}, "INVALID_REQUEST"},
		"status": {naysayer{Code: events.FailureQuota, Status: -1, RetryAfterMs: -1}, "QUOTA"},
		"id":     {naysayer{Code: events.FailureQuota, RequestID: strings.Repeat("\xff", 2*mib), Message: strings.Repeat("\x01", 2*mib)}, "QUOTA"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, chatty())
			r.cfg.MaxEventBytes, r.cfg.InlineMax = minEventBytes, minEventBytes/inlineShare
			r.cfg.Routes.Set(provider.KindDeepSeek, c.failure)
			k := r.talk()
			k.prompt("one")
			k.rest()
			k.want("turn 1", "step 1", "prompt one", "step end", "turn end error "+c.want)
		})
	}
}

// TestHostileResults answers calls, whatever a tool and its hooks say.
func TestHostileResults(t *testing.T) {
	for name, text := range hostile() {
		for kind, c := range map[string]struct {
			run  func() tools.Result
			hook error
			code string
		}{
			"message": {func() tools.Result {
				return tools.Result{Output: []byte(text), Error: events.ToolError{Code: events.ToolFailed, Message: text}}
			}, nil, "TOOL_FAILED"},
			"panic": {func() tools.Result { panic(text) }, nil, "TOOL_FAILED"},
			"hook":  {func() tools.Result { return output(text) }, errors.New(text), "EXTENSION"},
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				r := newRig(t, toolWork())
				r.cfg.MaxEventBytes, r.cfg.InlineMax = minEventBytes, minEventBytes/inlineShare
				r.use(&fake{name: "a", run: func(context.Context, string) tools.Result { return c.run() }})
				r.cfg.Extensions.Tools = []ToolHook{&guard{name: "x", after: func(_ Invocation, res tools.Result) (tools.Result, string, error) { return res, "", c.hook }}}
				k := r.talk()
				k.prompt("work")
				k.rest()
				list, _ := k.all()
				got := trace(list)
				if got[7] != "result a "+c.code || got[len(got)-1] != "turn end completed" {
					t.Errorf("session %q", got)
				}
			})
		}
	}
}

// TestNames refuses names that events cannot hold.
func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"x": true, "": false, "\xff": false, strings.Repeat("n", maxName): true, strings.Repeat("n", maxName+1): false} {
		r := newRig(t, chatty())
		r.cfg.Extensions.Contexts = []ContextSection{&guard{name: name}}
		if err := r.cfg.complete(); (err == nil) != ok {
			t.Errorf("a section %.20q: %v", name, err)
		}
		r.cfg.Extensions.Contexts = nil
		r.cfg.Name = name
		if err := r.cfg.complete(); (err == nil) != ok {
			t.Errorf("a worker %.20q: %v", name, err)
		}
	}
	r := newRig(t, chatty())
	r.cfg.Extensions.Contexts = []ContextSection{&guard{name: "x"}, &guard{name: "y"}, &guard{name: "x"}}
	if err := r.cfg.complete(); err == nil {
		t.Error("two sections have one name")
	}
}

// TestOthersCanceled takes an extension's failed request for one, although it was cancelled: the worker goes on.
func TestOthersCanceled(t *testing.T) {
	canceled := fmt.Errorf("ask the policy server: %w", context.Canceled)
	for name, c := range map[string]struct {
		x    Extensions
		want []string
	}{
		"pre-step": {Extensions{PreStep: []PreStep{&guard{name: "x", pre: func(Point, []events.Input) (Entry, error) { return Entry{}, canceled }}}}, nil},
		"config":   {Extensions{CallConfig: []CallConfig{&guard{name: "x", config: func(c events.Config) (events.Config, error) { return c, canceled }}}}, nil},
		"context":  {Extensions{Contexts: []ContextSection{&guard{name: "x", text: func(Point) (string, error) { return "", canceled }}}}, nil},
		"stopping": {
			Extensions{TurnStopping: []TurnStopping{&guard{name: "x", stopping: func(Point) (string, error) { return "", canceled }}}},
			[]string{"header initial high", "call loop 1", "answer stop Fine."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, chatty())
			r.cfg.Extensions = c.x
			k := r.talk()
			k.prompt("one")
			k.rest()
			k.want(append(append([]string{"turn 1", "step 1", "prompt one"}, c.want...), "step end", "turn end error EXTENSION")...)
		})
	}
}

// TestStoppedExtension records nothing of an extension that fails because the worker stops.
func TestStoppedExtension(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	ctx, cancel := context.WithCancel(t.Context())
	r.cfg.Extensions.PreStep = []PreStep{&waiting{guard: guard{name: "w"}, begun: cancel}}
	k.prompt("one")
	l := k.open(k.log, k.id, k.q)
	if err := l.rest(ctx); !errors.Is(err, context.Canceled) || l.refusal != nil {
		t.Errorf("the loop ended with %v, refusal %+v", err, l.refusal)
	}
	k.want("turn 1")
}

// filling is a store that has no room while full is set.
type filling struct {
	objects.Store
	full bool
}

func (f *filling) Put(ctx context.Context, ref objects.Ref, data []byte) error {
	if f.full {
		return fmt.Errorf("%w: free space", objects.ErrFull)
	}
	return f.Store.Put(ctx, ref, data)
}

// TestStoreFull drops inputs whose content cannot be kept, and says why; those behind them are used.
func TestStoreFull(t *testing.T) {
	long := strings.Repeat("long ", 8*kib)
	r := seeing(t, chatty())
	store := &filling{r.store, true}
	r.cfg.Objects = store
	k := r.talk()
	k.prompt(long)
	k.show("look", grey(t, 4, 3, 7))
	k.configure(events.Options{System: long})
	k.prompt("one")
	k.rest()
	store.full = false
	k.prompt("two")
	k.on(1, is[*events.StepEnd], func() { store.full = true; k.say(events.InputSteer, long) })
	k.on(1, is[*events.AssistantMessage], func() { store.full = true; k.say(events.InputSteer, long) })
	k.rest()
	k.want(
		"turn 1", "step 1", "dropped prompt 1", "step end", "turn end error INVALID_REQUEST",
		"turn 2", "step 1", "dropped prompt 2", "step end", "turn end error INVALID_REQUEST",
		"dropped configure 3",
		"turn 3", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 4", "step 1", "prompt two", "call loop 1", "answer stop Fine.", "step end",
		"step 2", "dropped steer 6", "step end", "turn end error INVALID_REQUEST",
	)
	list, _ := k.all()
	for i := range list {
		if b, ok := list[i].Body.(*events.InputDropped); ok && !strings.Contains(b.Cause, "object store is full") {
			t.Errorf("dropped for %q", b.Cause)
		}
	}
}

// TestStoreFullAtCreation makes the session all the same: what goes wrong stands in its log, and nothing is lost.
func TestStoreFullAtCreation(t *testing.T) {
	r := newRig(t, chatty())
	store := &filling{r.store, true}
	r.cfg.Objects = store
	k := r.talk()
	system := strings.Repeat("be brief ", 4*kib)
	k.tell(events.Input{Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text("one")}, Options: events.Options{System: system}})
	k.rest()
	store.full = false
	k.prompt("two")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "step end", "turn end error INVALID_REQUEST",
		"turn 2", "step 1", "prompt two", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	if sent := r.sim.Requests(); !strings.Contains(string(sent[0].Body), system) {
		t.Error("the system prompt is lost")
	}
}

// TestStoreFullPrune shortens no result that it could not keep, and makes history smaller in the other way.
func TestStoreFullPrune(t *testing.T) {
	r := newRig(t, summaries(notes))
	store := &filling{Store: r.store}
	r.cfg.Objects, r.cfg.InlineMax = store, 300
	r.route(provider.KindDeepSeek, provider.Model{Name: "deepseek-chat", ContextWindow: 4000, MaxTokens: 500})
	r.cfg.Compaction = compact.Policy{PruneChars: 1000, PruneHead: 500, PruneTail: 200}
	k := r.talk()
	k.prompt("read it")
	k.on(1, is[*events.ToolResult], func() { store.full = true })
	k.rest()
	list, _ := k.all()
	got := trace(list)
	if last := got[len(got)-1]; !strings.HasPrefix(last, "turn end") {
		t.Errorf("the session ends with %q", last)
	}
	for _, line := range got {
		if line == "pruned read" {
			t.Errorf("session %q", got)
		}
	}
}

// narrow is a log that takes less than it says.
type narrow struct {
	eventlog.Log
	most int
}

func (n *narrow) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if len(payload) > n.most {
		return fmt.Errorf("%w: at most %d", eventlog.ErrTooLarge, n.most)
	}
	return n.Log.Append(ctx, e, payload)
}

// flood answers "flood" with so many bytes.
func flood(bytes int) simulator.Script {
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "flood", Nth: 1}, Answer: simulator.Answer{Text: lossless.Text(strings.Repeat("x", bytes)), DeltaSizes: []int{8 * kib}}},
		{When: simulator.Condition{Contains: "flood", Nth: 2}, Answer: simulator.Answer{Text: lossless.Text(strings.Repeat("x", bytes)), DeltaSizes: []int{8 * kib}}},
		{Answer: simulator.Answer{Text: "Fine."}},
	}}
}

// TestOutgrown drops a loop whose fold is ahead of the log. Another one with a lower limit goes on.
func TestOutgrown(t *testing.T) {
	const most = 48 * kib
	r := newRig(t, flood(200*kib))
	k := r.talk()
	k.log.Log = &narrow{k.log.Log, most}
	k.prompt("flood")
	k.prompt("go on")
	err := k.run()
	var outgrown *outgrownError
	if !errors.As(err, &outgrown) || errors.Is(err, eventlog.ErrTooLarge) || outgrown.bytes <= most {
		t.Fatalf("the loop ended with %v", err)
	}
	if err := k.run(); !errors.Is(err, eventlog.ErrWriterStopped) {
		t.Errorf("the loop goes on: %v", err)
	}
	k.l = nil
	r.cfg.limit(most)
	k.rest()
	list, _ := k.all()
	var ends []string
	for i := range list {
		if b, ok := list[i].Body.(*events.TurnEnd); ok {
			ends = append(ends, string(b.Kind)+string(b.Failure.Code))
		}
	}
	if diff := cmp.Diff([]string{"errorMALFORMED_RESPONSE", "completed"}, ends); diff != "" {
		t.Error(diff)
	}
}

// TestLongCause cancels with a cause that is cut: the turn's end repeats what the cancel recorded.
func TestLongCause(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	long := strings.Repeat("b\u00e9", 10*kib)
	k.on(1, is[*events.LLMStream], func() { k.tell(events.Input{Kind: events.InputCancel, Cause: long}) })
	k.prompt("one")
	k.rest()
	k.prompt("two")
	k.rest()
	list, _ := k.all()
	var recorded, ended string
	for _, e := range list {
		switch b := e.Body.(type) {
		case *events.TurnCancelled:
			recorded = b.Cause
		case *events.TurnEnd:
			if b.Turn == 1 {
				ended = b.Cause
			}
		}
	}
	if recorded == "" || len(recorded) >= len(long) || !strings.HasPrefix(long, recorded) || ended != recorded {
		t.Errorf("recorded a cause of %d bytes, ended with one of %d", len(recorded), len(ended))
	}
}
