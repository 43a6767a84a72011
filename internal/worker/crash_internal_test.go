package worker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// surface returns what the model sees at the end, without what the tools gave: of a call that a crash kept from starting
// the model is told so.
func surface(k *talk) (out []string) {
	_, s := k.all()
	for _, m := range s.Messages().All() {
		if m.Source.Kind == events.SourceTool || m.Source.Plugin == "hook" {
			continue
		}
		text := string(m.Source.Kind) + " " + m.Source.Plugin + ":"
		for _, b := range m.Content {
			text += string(b.Type) + " " + b.Text + b.Name + b.Arguments + b.Object.Digest.String()
		}
		out = append(out, text)
	}
	return out
}

// everywhere kills the loop at every append of a session, before the event is stored and behind that, and lets another
// one go on: the model sees the same in the end.
func everywhere(t *testing.T, begin func(t *testing.T) *talk) {
	t.Helper()
	whole := begin(t)
	whole.rest()
	want := surface(whole)
	list, _ := whole.all()
	t.Logf("%d events, 2 boundaries each", len(list))
	for at := uint64(1); at <= uint64(len(list)); at++ {
		for _, stored := range []bool{false, true} {
			k := begin(t)
			memory := k.log.Log
			k.log.Log = &cut{Log: memory, at: at, stored: stored}
			if err := k.run(); !errors.Is(err, errKilled) {
				t.Fatalf("event %d: %v", at, err)
			}
			k.log.Log = memory
			k.die()
			k.rest()
			if diff := cmp.Diff(want, surface(k)); diff != "" {
				t.Errorf("event %d (%s), stored %t (-want +got):\n%s", at, list[at-1].Type(), stored, diff)
			}
			if _, s := k.all(); !s.AtBoundary() || len(k.l.pending) > 0 {
				t.Errorf("event %d, stored %t: at rest, and something is open or waits", at, stored)
			}
			if t.Failed() {
				return
			}
		}
	}
}

func TestCrashInCompaction(t *testing.T) {
	script := summaries(notes, simulator.Model{Name: "deepseek-chat", ContextWindow: 1900})
	busy := simulator.Rule{When: asksSummary(), Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}}
	busy.When.Times = 1
	script.Rules = append([]simulator.Rule{busy}, script.Rules...)
	for name, window := range map[string]int64{"pressure": 2200, "overflow": 0} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T) *talk {
				r := small(t, window, script)
				r.cfg.Compaction.MaxPerTurn = 1 // another worker that goes on with one does not count it twice
				r.cfg.Extensions.Contexts = []ContextSection{&guard{name: "day", text: func(Point) (string, error) { return "Monday", nil }}}
				k := r.talk()
				for range 4 {
					k.prompt("go on " + strings.Repeat("and on ", 60))
				}
				k.tell(events.Input{Kind: events.InputConfigure, Options: events.Options{ReasoningEffort: "low"}})
				k.prompt("more")
				k.tell(events.Input{Kind: events.InputCompact})
				k.prompt("last")
				return k
			})
		})
	}
}

func TestCrashAmongExtensions(t *testing.T) {
	script := chatty()
	for i := range script.Rules {
		if script.Rules[i].When.ToolResults != nil {
			script.Rules[i].When.Times = 0
		}
	}
	everywhere(t, func(t *testing.T) *talk {
		r := newRig(t, script)
		safe := tools.Safety{Parallel: true, ReadOnly: true}
		var list []tools.Tool
		for _, name := range []string{"a", "b", "c"} {
			list = append(list, &fake{name: name, safety: safe, run: func(context.Context, string) tools.Result { return output(name) }})
		}
		r.use(list...)
		r.cfg.Extensions = Extensions{
			PreStep:  []PreStep{adding("pre", "before")},
			Contexts: []ContextSection{&guard{name: "day", text: func(Point) (string, error) { return "Monday", nil }}},
			Tools: []ToolHook{&guard{name: "hook", after: func(_ Invocation, r tools.Result) (tools.Result, string, error) {
				return r, "owed", nil
			}}},
			TurnStopping: []TurnStopping{&guard{name: "stop", stopping: func(at Point) (string, error) {
				return map[bool]string{true: "once more"}[at.Turn == 1 && at.Step == 2], nil
			}}},
		}
		k := r.talk()
		k.say(events.InputInject, "note")
		k.prompt("work")
		k.prompt("busy")
		return k
	})
}

func TestCrashInFork(t *testing.T) {
	everywhere(t, func(t *testing.T) *talk {
		r := newRig(t, chatty())
		k := r.talk()
		k.prompt("one")
		k.rest()
		f := k.fork(0, events.Options{ReasoningEffort: "low"})
		f.prompt("two")
		f.cancel(true)
		return f
	})
}
