package worker

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// abandoned returns how many things run that nobody waits for.
func abandoned(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "refold_worker_abandoned" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

// TestDetached waits for the grace and not longer, counts what it leaves to itself, and survives its panic.
func TestDetached(t *testing.T) {
	for name, c := range map[string]struct {
		takes  time.Duration // to stop, after it was told to
		panics bool
		want   error
	}{
		"at once":          {0, false, nil},
		"soon":             {999 * time.Millisecond, false, nil},
		"late":             {1001 * time.Millisecond, false, errDeaf},
		"late, in a panic": {time.Hour, true, errDeaf},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				m, err := NewMetrics(reg)
				if err != nil {
					t.Fatal(err)
				}
				cfg := &Config{ToolGrace: time.Second, metrics: m}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Minute, cancel)
				begun := time.Now()
				v, err := detached(ctx, cfg, func(ctx context.Context) (string, error) {
					<-ctx.Done()
					pass(c.takes)
					if c.panics {
						panic("too late")
					}
					return "done", nil
				})
				if !errors.Is(err, c.want) || (v == "done") != (c.want == nil) {
					t.Errorf("got %q, %v", v, err)
				}
				if took, want := time.Since(begun), time.Minute+min(c.takes, time.Second); took != want {
					t.Errorf("it took %v, want %v", took, want)
				}
				synctest.Wait()
				if n := abandoned(t, reg); (n == 1) != (c.want != nil) {
					t.Errorf("%v are abandoned", n)
				}
				pass(c.takes)
				synctest.Wait()
				if n := abandoned(t, reg); n != 0 {
					t.Errorf("%v are abandoned at the end", n)
				}
			})
		})
	}
}

// deaf is a tool that waits for the test's end, whatever it is told.
func deaf(t *testing.T, name string, safety tools.Safety, begun func()) *fake {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	return &fake{name: name, safety: safety, run: func(context.Context, string) tools.Result {
		begun()
		<-release
		return output("too late")
	}}
}

// TestDeafTool answers for a tool that does not stop when its time is over, and gives its place to another.
func TestDeafTool(t *testing.T) {
	r := newRig(t, calls("a", "b"))
	r.cfg.ToolGrace, r.cfg.ToolPool = time.Millisecond, 1
	r.use(
		deaf(t, "a", tools.Safety{Parallel: true, Timeout: time.Millisecond}, func() {}),
		&fake{name: "b", safety: tools.Safety{Parallel: true}, run: func(context.Context, string) tools.Result { return output("B") }},
	)
	k := r.talk()
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a() b()",
		"tool a", "tool b", "result a TOOL_TIMEOUT", "result b", "step end",
		"step 2", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	list, _ := k.all()
	if got := results(t, list)["a"]; !strings.Contains(got, "may still be running") {
		t.Errorf("the model reads %q", got)
	}
}

// TestDeafToolCancelled ends the turn although the tool goes on.
func TestDeafToolCancelled(t *testing.T) {
	r := newRig(t, calls("a"))
	r.cfg.ToolGrace = time.Millisecond
	k := r.talk()
	r.use(deaf(t, "a", tools.Safety{}, func() { k.cancel(false) }))
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a()",
		"tool a", "cancelled turn 1 keep false", "result a TOOL_CANCELLED", "step end", "turn end aborted user",
	)
	list, _ := k.all()
	if got := results(t, list)["a"]; !strings.Contains(got, "may still be running") {
		t.Errorf("the model would read %q", got)
	}
}

// TestDeafAtShutdown lets the worker stop, whatever does not: a tool or an extension.
func TestDeafAtShutdown(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for _, kind := range []string{"tool", "before", "after", "pre-step", "stopping", "context", "config"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, calls("a"))
			r.cfg.ToolGrace = time.Millisecond
			ctx, stop := context.WithCancel(t.Context())
			wait := func() { stop(); <-release }
			tool := &fake{name: "a", run: func(context.Context, string) tools.Result { return output("A") }}
			g := &guard{name: "x"}
			x := &r.cfg.Extensions
			switch kind {
			case "tool":
				tool.run = func(context.Context, string) tools.Result { wait(); return output("") }
			case "before":
				g.before = func(Invocation) (*tools.Result, error) { wait(); return nil, nil }
				x.Tools = []ToolHook{g}
			case "after":
				g.after = func(_ Invocation, res tools.Result) (tools.Result, string, error) { wait(); return res, "", nil }
				x.Tools = []ToolHook{g}
			case "pre-step":
				g.pre = func(Point, []events.Input) (Entry, error) { wait(); return Entry{}, nil }
				x.PreStep = []PreStep{g}
			case "stopping":
				g.stopping = func(Point) (string, error) { wait(); return "", nil }
				x.TurnStopping = []TurnStopping{g}
			case "context":
				g.text = func(Point) (string, error) { wait(); return "", nil }
				x.Contexts = []ContextSection{g}
			case "config":
				g.config = func(c events.Config) (events.Config, error) { wait(); return c, nil }
				x.CallConfig = []CallConfig{g}
			}
			r.use(tool)
			k := r.talk()
			k.prompt("work")
			if err := k.open(k.log, k.id, k.q).rest(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("the loop ended with %v", err)
			}
		})
	}
}
