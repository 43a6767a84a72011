package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

var errBroken = errors.New("broken")

// guard is an extension of every kind, as far as its functions are set.
type guard struct {
	name     string
	pre      func(at Point, claimed []events.Input) (Entry, error)
	config   func(seed events.Config) (events.Config, error)
	failure  func(attempt int64, f events.Failure) (Advice, error)
	before   func(call Invocation) (*tools.Result, error)
	after    func(call Invocation, r tools.Result) (tools.Result, string, error)
	stopping func(at Point) (string, error)
	text     func(at Point) (string, error)
}

func (g *guard) Name() string { return g.name }

func (g *guard) PreStep(_ context.Context, at Point, claimed []events.Input) (Entry, error) {
	return g.pre(at, claimed)
}

func (g *guard) CallConfig(_ context.Context, _ Point, seed events.Config) (events.Config, error) {
	return g.config(seed)
}

func (g *guard) RequestError(_ context.Context, _ Point, attempt int64, f events.Failure) (Advice, error) {
	return g.failure(attempt, f)
}

func (g *guard) BeforeTool(_ context.Context, _ Point, call Invocation) (*tools.Result, error) {
	if g.before == nil {
		return nil, nil
	}
	return g.before(call)
}

func (g *guard) AfterTool(_ context.Context, _ Point, call Invocation, r tools.Result) (tools.Result, string, error) {
	if g.after == nil {
		return r, "", nil
	}
	return g.after(call, r)
}

func (g *guard) TurnStopping(_ context.Context, at Point) (string, error) { return g.stopping(at) }

func (g *guard) Text(_ context.Context, at Point) (string, error) { return g.text(at) }

func adding(name string, texts ...string) PreStep {
	return &guard{name: name, pre: func(Point, []events.Input) (Entry, error) { return Entry{Texts: texts}, nil }}
}

func TestPreStepAdds(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Extensions.PreStep = []PreStep{adding("first", "x", "y"), adding("second"), adding("third", "z")}
	r.cfg.Extensions.Contexts = []ContextSection{&guard{name: "place", text: func(Point) (string, error) { return "here", nil }}}
	k := r.talk()
	k.prompt("one")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "plugin first: xy", "plugin third: z", "context place: here",
		"header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestPreStepRejects ends the turn; the inputs are dropped and no later extension is asked.
func TestPreStepRejects(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Extensions.PreStep = []PreStep{
		&guard{name: "no", pre: func(_ Point, claimed []events.Input) (Entry, error) {
			if claimed[len(claimed)-1].Content[0].Text == "bad" {
				claimed[0].Content[0].Text = "changed"
				return Entry{Reject: "not allowed"}, nil
			}
			claimed[0].Content[0].Text = "changed"
			return Entry{}, nil
		}},
		&guard{name: "later", pre: func(_ Point, claimed []events.Input) (Entry, error) {
			if claimed[0].Content[0].Text == "changed" {
				return Entry{Texts: []string{"asked"}}, errBroken
			}
			return Entry{}, nil
		}},
	}
	k := r.talk()
	k.say(events.InputInject, "note")
	k.prompt("bad")
	k.prompt("good")
	k.rest()
	k.want(
		"turn 1", "dropped inject 1", "dropped prompt 2", "turn end blocked not allowed",
		"turn 2", "step 1", "prompt good", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestPreStepRejectsAgain rejects a step that a dead worker had begun: the prompt behind those that were dropped does not enter
// it in their place, but has a turn of its own.
func TestPreStepRejectsAgain(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Extensions.PreStep = []PreStep{&guard{name: "no", pre: func(_ Point, claimed []events.Input) (Entry, error) {
		bad := slices.ContainsFunc(claimed, func(in events.Input) bool { return in.Content[0].Text == "bad" })
		return Entry{Reject: map[bool]string{true: "not allowed"}[bad]}, nil
	}}}
	k := r.talk()
	k.prompt("one")
	k.prompt("two")
	k.crash(1, is[*events.StepStart])
	k.say(events.InputSteer, "bad")
	k.rest()
	k.want(
		"turn 1", "step 1", "claimed takeover", "dropped steer 3", "dropped prompt 1", "step end", "turn end error EXTENSION",
		"turn 2", "step 1", "prompt two", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestExtensionErrors ends the turn with the extension's name, whichever extension fails, by an error or a panic, and
// lets the next turn run. The inputs are not lost.
func TestExtensionErrors(t *testing.T) {
	for _, crash := range []bool{false, true} {
		n := 0
		broken := func() error {
			if n++; n > 1 {
				return nil
			}
			if crash {
				panic(errBroken)
			}
			return errBroken
		}
		for name, c := range map[string]struct {
			x      Extensions
			middle []string
		}{
			"pre-step": {Extensions{PreStep: []PreStep{&guard{name: "x", pre: func(Point, []events.Input) (Entry, error) { return Entry{}, broken() }}}}, nil},
			"config":   {Extensions{CallConfig: []CallConfig{&guard{name: "x", config: func(c events.Config) (events.Config, error) { return c, broken() }}}}, nil},
			"context":  {Extensions{Contexts: []ContextSection{&guard{name: "x", text: func(Point) (string, error) { return "", broken() }}}}, nil},
			"failure": {
				Extensions{RequestError: []RequestError{&guard{name: "x", failure: func(int64, events.Failure) (Advice, error) { return "", broken() }}}},
				[]string{"header initial high", "call loop 1", "failed SERVER"},
			},
			"stopping": {
				Extensions{TurnStopping: []TurnStopping{&guard{name: "x", stopping: func(Point) (string, error) { return "", broken() }}}},
				[]string{"header initial high", "call loop 1", "answer stop Fine."},
			},
		} {
			t.Run(fmt.Sprintf("%s panics %t", name, crash), func(t *testing.T) {
				n = 0
				r := newRig(t, chatty())
				r.cfg.Extensions = c.x
				k := r.talk()
				first := map[bool]string{true: "busy", false: "one"}[name == "failure"]
				k.prompt(first)
				k.prompt("two")
				k.rest()
				want := append([]string{"turn 1", "step 1", "prompt " + first}, c.middle...)
				want = append(want, "step end", "turn end error EXTENSION", "turn 2", "step 1", "prompt two")
				if c.middle == nil {
					want = append(want, "header initial high")
				}
				k.want(append(want, "call loop 1", "answer stop Fine.", "step end", "turn end completed")...)
			})
		}
	}
}

// TestCallConfig hands the seed on from one to the next; what they propose stands in the header, and who changed what.
func TestCallConfig(t *testing.T) {
	r := newRig(t, chatty())
	var seeds []events.Config
	r.cfg.Extensions.CallConfig = []CallConfig{
		&guard{name: "effort", config: func(c events.Config) (events.Config, error) {
			seeds = append(seeds, c)
			c.ReasoningEffort, c.Stop = "low", append(c.Stop, "END")
			return c, nil
		}},
		&guard{name: "limit", config: func(c events.Config) (events.Config, error) {
			if c.ReasoningEffort != "low" || len(c.Stop) == 0 {
				t.Errorf("the second got %+v", c)
			}
			c.Stop = []string{"END"}
			return c, nil
		}},
	}
	k := r.talk()
	k.prompt("one")
	k.prompt("two")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial low", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt two", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	if len(seeds) != 2 || seeds[0].MaxTokens != 0 || seeds[1].MaxTokens != 0 || seeds[1].ReasoningEffort != "low" {
		t.Errorf("seeds %+v", seeds)
	}
	want := []events.ConfigChange{{Extension: "effort", Fields: []events.ConfigField{events.ConfigReasoningEffort, events.ConfigStop}}}
	if diff := cmp.Diff(want, k.headers()[0].ChangedBy); diff != "" {
		t.Error(diff)
	}
}

// TestCallConfigUndoes records once that an extension undoes what the session was configured to, though no field of the
// header differs, and nothing when it leaves alone what it finds.
func TestCallConfigUndoes(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Extensions.CallConfig = []CallConfig{
		&guard{name: "quiet", config: func(c events.Config) (events.Config, error) { return c, nil }},
		&guard{name: "pin", config: func(c events.Config) (events.Config, error) {
			c.Model = "deepseek-chat"
			return c, nil
		}},
	}
	k := r.talk()
	k.prompt("one")
	k.configure(events.Options{Model: "other"})
	k.prompt("two")
	k.prompt("three")
	k.configure(events.Options{Model: "deepseek-chat"})
	k.prompt("four")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"configured", "turn 2", "step 1", "prompt two", "header change high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 3", "step 1", "prompt three", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"configured", "turn 4", "step 1", "prompt four", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	h := k.headers()
	if !h[0].Header.Equal(&h[1].Header) {
		t.Errorf("the headers differ:\n%s", cmp.Diff(h[0].Header, h[1].Header))
	}
	want := [][]events.ConfigChange{nil, {{Extension: "pin", Fields: []events.ConfigField{events.ConfigModel}}}}
	if diff := cmp.Diff(want, [][]events.ConfigChange{h[0].ChangedBy, h[1].ChangedBy}); diff != "" {
		t.Error(diff)
	}
}

// TestRequestErrorAdvice overrides the policy in both directions; the first opinion counts.
func TestRequestErrorAdvice(t *testing.T) {
	script := simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "busy", Times: 1}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}},
		{When: simulator.Condition{Contains: "bad", Times: 2}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 400}}},
	}}
	r := newRig(t, script)
	advice := func(a Advice) RequestError {
		return &guard{name: string("x" + a), failure: func(_ int64, f events.Failure) (Advice, error) {
			if (f.Code == events.FailureServer) == (a == AdviceStop) {
				return a, nil
			}
			return AdviceNone, nil
		}}
	}
	r.cfg.Extensions.RequestError = []RequestError{advice(AdviceStop), advice(AdviceRetry), advice(AdviceStop)}
	k := r.talk()
	k.prompt("busy")
	k.prompt("bad")
	k.rest()
	list, _ := k.all()
	var got []string
	for _, line := range trace(list) {
		switch line {
		case "step 1", "step end", "header initial high":
		default:
			got = append(got, line)
		}
	}
	want := []string{
		"turn 1", "prompt busy", "call loop 1", "failed SERVER", "turn end error SERVER",
		"turn 2", "prompt bad", "call loop 1", "failed INVALID_REQUEST", "retry 1", "llm/retry-started",
		"call loop 2", "failed INVALID_REQUEST", "retry 2", "llm/retry-started", "call loop 3",
	}
	if diff := cmp.Diff(want, got[:len(got)-2]); diff != "" {
		t.Error(diff)
	}
}

// TestTurnStopping goes on for the texts of all that have one.
func TestTurnStopping(t *testing.T) {
	r := newRig(t, chatty())
	once := func(name, text string) TurnStopping {
		return &guard{name: name, stopping: func(at Point) (string, error) {
			if at.Step > 1 {
				return "", nil
			}
			return text, nil
		}}
	}
	r.cfg.Extensions.TurnStopping = []TurnStopping{once("a", "check"), once("b", ""), once("c", "again")}
	stopped := []string{
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end",
		"step 2", "plugin a: check", "plugin c: again", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	}
	k := r.talk()
	k.prompt("one")
	k.rest()
	k.want(stopped...)

	// A worker that dies behind the decision changes nothing but the claim and the header that it owes.
	for n, when := range map[int]func(events.Body) bool{1: is[*events.StepEnd], 2: is[*events.StepStart], 3: is[*events.UserMessage]} {
		k := r.talk()
		k.prompt("one")
		k.crash(map[int]int{1: 1, 2: 2, 3: 2}[n], when)
		k.rest()
		want := append([]string(nil), stopped[:7+[]int{0, 0, 1, 2}[n]]...)
		want = append(want, "claimed takeover")
		want = append(want, stopped[7+[]int{0, 0, 1, 2}[n]:10]...)
		want = append(want, "header resume high")
		k.want(append(want, stopped[10:]...)...)
	}
}

// TestRefusedWhileStopping settles what comes while an extension is asked whether the turn goes on, before it asks about the next
// step: an input that is refused is shown to none.
func TestRefusedWhileStopping(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	looked := make(chan struct{})
	k.q.looked = func(after uint64) {
		if after == 3 {
			k.q.looked = nil
			close(looked)
		}
	}
	r.cfg.Extensions.TurnStopping = []TurnStopping{&guard{name: "stop", stopping: func(at Point) (string, error) {
		if at.Step > 1 {
			return "", nil
		}
		refused := events.Block{Type: events.BlockText, Object: objects.Ref{Digest: objects.Sum([]byte("x")), Bytes: 1, MediaType: events.TextMediaType}}
		k.tell(events.Input{Kind: events.InputInject, Content: []events.Block{refused}})
		k.say(events.InputInject, "note")
		<-looked
		return "check", nil
	}}}
	r.cfg.Extensions.PreStep = []PreStep{&guard{name: "guard", pre: func(at Point, claimed []events.Input) (Entry, error) {
		if at.Step == 2 && (len(claimed) != 1 || claimed[0].Content[0].Text != "note") {
			t.Errorf("asked about %+v", claimed)
		}
		return Entry{}, nil
	}}}
	k.prompt("one")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "dropped inject 2",
		"step 2", "inject note", "plugin stop: check", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestTurnStoppingForgotten makes no call that has nothing to say, when another worker's extension lets the turn end.
func TestTurnStoppingForgotten(t *testing.T) {
	r := newRig(t, chatty())
	asked := 0
	r.cfg.Extensions.TurnStopping = []TurnStopping{&guard{name: "once", stopping: func(Point) (string, error) {
		asked++
		return map[bool]string{true: "check"}[asked == 1], nil
	}}}
	k := r.talk()
	k.prompt("one")
	k.crash(2, is[*events.StepStart])
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end",
		"step 2", "claimed takeover", "step end", "turn end interrupted",
	)
}

// TestPreStepAfterCrash adds nothing twice.
func TestPreStepAfterCrash(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Extensions.PreStep = []PreStep{adding("a", "x"), adding("b", "y")}
	k := r.talk()
	k.prompt("one")
	k.crash(2, is[*events.UserMessage])
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "plugin a: x", "claimed takeover", "plugin b: y",
		"header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestContextSections enter only when they say something else than what the model still sees.
func TestContextSections(t *testing.T) {
	r := newRig(t, chatty())
	day, files, n := "Monday", "", 0
	r.cfg.Extensions.Contexts = []ContextSection{
		&guard{name: "day", text: func(Point) (string, error) { return day, nil }},
		&guard{name: "files", text: func(Point) (string, error) { return files, nil }},
		&guard{name: "clock", text: func(Point) (string, error) { // it changes by being read, once a turn is enough
			n++
			return fmt.Sprintf("tick %d", n), nil
		}},
	}
	k := r.talk()
	for _, next := range []func(){func() {}, func() { files = "a.txt" }, func() { day = "Tuesday" }, func() { files = "" }, func() {}} {
		next()
		k.prompt("go")
		k.rest()
	}
	list, _ := k.all()
	var got []string
	for _, line := range trace(list) {
		if len(line) > 8 && line[:8] == "context " {
			got = append(got, line[8:])
		}
	}
	want := []string{
		"day: Monday", "clock: tick 1", "files: a.txt", "clock: tick 2", "day: Tuesday", "clock: tick 3",
		"files: [files: no longer applies]", "clock: tick 4", "clock: tick 5",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// toolWork answers "work" with one call of the tool a, and everything else with a word.
func toolWork(calls ...simulator.Call) simulator.Script {
	if calls == nil {
		calls = []simulator.Call{{Name: "a", Arguments: `{"n":1}`}}
	}
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "work", ToolResults: new(0), Times: 1}, Answer: simulator.Answer{Calls: calls}},
		{Answer: simulator.Answer{Text: "Fine."}},
	}}
}

// TestToolHooks calls those before a tool in order until one answers, and all of those behind it.
func TestToolHooks(t *testing.T) {
	ran := 0
	tool := &fake{name: "a", run: func(context.Context, string) tools.Result { ran++; return output("ran") }}
	deny := tools.Failed(events.ToolDenied, "not that one")
	mark := func(s string) func(Invocation, tools.Result) (tools.Result, string, error) {
		return func(_ Invocation, r tools.Result) (tools.Result, string, error) {
			r.Output = append(r.Output, s...)
			return r, "note " + s, nil
		}
	}
	for name, c := range map[string]struct {
		hooks []ToolHook
		want  string // of the result
		code  string
		ran   int
		notes []string
	}{
		"pass":        {[]ToolHook{&guard{name: "x", after: mark("1")}, &guard{name: "y", after: mark("2")}}, "ran12", "", 1, []string{"plugin x: note 1", "plugin y: note 2"}},
		"deny":        {[]ToolHook{&guard{name: "x", before: func(Invocation) (*tools.Result, error) { return &deny, nil }}, &guard{name: "y", after: mark("2"), before: func(Invocation) (*tools.Result, error) { t.Error("asked"); return nil, nil }}}, "Error: not that one2", "TOOL_DENIED", 0, []string{"plugin y: note 2"}},
		"error":       {[]ToolHook{&guard{name: "x", before: func(Invocation) (*tools.Result, error) { return nil, errBroken }}}, "Error: extension x: broken", "EXTENSION", 0, nil},
		"panic":       {[]ToolHook{&guard{name: "x", before: func(Invocation) (*tools.Result, error) { panic("oh") }}}, "Error: extension x: it crashed: oh", "EXTENSION", 0, nil},
		"after panic": {[]ToolHook{&guard{name: "x", after: mark("1")}, &guard{name: "y", after: func(Invocation, tools.Result) (tools.Result, string, error) { panic("oh") }}}, "Error: extension y: it crashed: oh", "EXTENSION", 1, []string{"plugin x: note 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			ran = 0
			r := newRig(t, toolWork())
			r.use(tool)
			r.cfg.Extensions.Tools = c.hooks
			k := r.talk()
			k.prompt("work")
			k.rest()
			result := "result a"
			if c.code != "" {
				result += " " + c.code
			}
			want := []string{"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a()", "tool a", result, "step end", "step 2"}
			k.want(append(append(want, c.notes...), "call loop 1", "answer stop Fine.", "step end", "turn end completed")...)
			list, _ := k.all()
			if got := results(t, list)["a"]; got != c.want || ran != c.ran {
				t.Errorf("result %q, ran %d times", got, ran)
			}
		})
	}
}

// TestAddedContextSurvives owes what a hook has added over a crash and over a cancel.
func TestAddedContextSurvives(t *testing.T) {
	r := newRig(t, toolWork())
	r.use(&fake{name: "a", run: func(context.Context, string) tools.Result { return output("ran") }})
	r.cfg.Extensions.Tools = []ToolHook{&guard{name: "x", after: func(_ Invocation, res tools.Result) (tools.Result, string, error) { return res, "owed", nil }}}
	k := r.talk()
	k.prompt("work")
	k.crash(1, is[*events.ToolResult])
	k.rest()
	begin := []string{"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a()", "tool a", "result a"}
	k.want(append(append([]string(nil), begin...), "claimed takeover", "step end", "step 2", "plugin x: owed", "header resume high",
		"call loop 1", "answer stop Fine.", "step end", "turn end completed")...)

	k = r.talk()
	k.prompt("work")
	k.on(1, is[*events.ToolResult], func() { k.cancel(false); k.prompt("next") })
	k.rest()
	k.want(append(append([]string(nil), begin...), "cancelled turn 1 keep false", "step end", "turn end aborted user",
		"turn 2", "step 1", "prompt next", "plugin x: owed", "call loop 1", "answer stop Fine.", "step end", "turn end completed")...)
}

// waiting is an extension that waits until it is told to stop.
type waiting struct {
	guard
	begun func()
}

func (w *waiting) PreStep(ctx context.Context, _ Point, _ []events.Input) (Entry, error) {
	w.begun()
	<-ctx.Done()
	return Entry{}, ctx.Err()
}

// TestCancelInExtension stops an extension that waits.
func TestCancelInExtension(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	r.cfg.Extensions.PreStep = []PreStep{&waiting{guard: guard{name: "w"}, begun: func() { k.cancel(false) }}}
	k.prompt("one")
	k.rest()
	k.want("turn 1", "cancelled turn 1 keep false", "dropped prompt 1", "turn end aborted user")
}
