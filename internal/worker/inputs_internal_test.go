package worker

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// chatty answers every prompt with text; "slow" gets half of its answer and then nothing, "work" calls tools.
func chatty() simulator.Script {
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "slow", Times: 1}, Answer: simulator.Answer{
			Text: "Half of it, and more", DeltaSizes: []int{11, 4}, Failure: &simulator.Failure{Kind: simulator.FailHang, After: 1},
		}},
		{When: simulator.Condition{Contains: "mute", Times: 1}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHangBefore}}},
		{When: simulator.Condition{Contains: "busy", Times: 1}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}},
		{When: simulator.Condition{Contains: "work", ToolResults: new(0), Times: 1}, Answer: simulator.Answer{
			Calls: []simulator.Call{{Name: "a", Arguments: "{}"}, {Name: "b", Arguments: "{}"}, {Name: "c", Arguments: "{}"}},
		}},
		{Answer: simulator.Answer{Text: "Fine."}},
	}}
}

func TestClaimOrder(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("one")
	k.say(events.InputInject, "two")
	k.prompt("three")
	k.say(events.InputSteer, "four")
	k.rest()
	k.want(
		"turn 1", "step 1", "inject two", "steer four", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt three", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestSteer steers at rest, in a step with tools, and in the last step, which keeps the turn open.
func TestSteer(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	r.use(
		&fake{name: "a", run: func(context.Context, string) tools.Result { k.say(events.InputSteer, "mid"); return output("A") }},
		&fake{name: "b", run: func(context.Context, string) tools.Result { k.say(events.InputInject, "also"); return output("B") }},
		&fake{name: "c", run: func(context.Context, string) tools.Result { k.prompt("later"); return output("C") }},
	)
	k.prompt("work")
	k.on(2, is[*events.AssistantMessage], func() { k.say(events.InputSteer, "last") })
	k.rest()
	k.log.on = nil
	k.say(events.InputSteer, "wake up")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a() b() c()",
		"tool a", "result a", "tool b", "result b", "tool c", "result c", "step end",
		"step 2", "steer mid", "inject also", "call loop 1", "answer stop Fine.", "step end",
		"step 3", "steer last", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt later", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 3", "step 1", "steer wake up", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestInject waits for a turn that something else opens, and does not keep one open.
func TestInject(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("one")
	k.on(1, is[*events.AssistantMessage], func() { k.say(events.InputInject, "note") })
	k.rest()
	k.log.on = nil
	k.say(events.InputInject, "another")
	k.rest()
	if len(k.l.pending) != 2 {
		t.Errorf("%d inputs wait", len(k.l.pending))
	}
	k.prompt("two")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "inject note", "inject another", "prompt two", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestSentTwice uses an input once although it stands in the inbox twice.
func TestSentTwice(t *testing.T) {
	k := newRig(t, chatty()).talk()
	in := k.prompt("once")
	k.seq++
	k.q.add(&input{Input: in.Input, seq: k.seq})
	k.rest()
	k.seq++
	k.q.add(&input{Input: in.Input, seq: k.seq})
	k.rest()
	k.want("turn 1", "step 1", "prompt once", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed")
	if len(k.l.pending) != 0 {
		t.Errorf("%d inputs wait", len(k.l.pending))
	}
}

// TestLateInput does not join the step that was decided before it came.
func TestLateInput(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	r.cfg.Extensions.PreStep = []PreStep{&guard{name: "guard", pre: func(at Point, claimed []events.Input) (Entry, error) {
		if at.Turn == 1 && at.Step == 1 {
			k.say(events.InputSteer, "late")
		}
		return Entry{Reject: map[bool]string{true: "no"}[len(claimed) == 0]}, nil
	}}}
	k.prompt("one")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end",
		"step 2", "steer late", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

func TestCancelInStream(t *testing.T) {
	for _, keep := range []bool{false, true} {
		r := newRig(t, chatty())
		r.cfg.ChunkInterval = time.Millisecond
		k := r.talk()
		k.prompt("slow")
		k.on(1, is[*events.AssistantChunk], func() { k.prompt("queued"); k.say(events.InputInject, "noted"); k.cancel(keep); k.prompt("behind") })
		k.rest()
		want := []string{
			"turn 1", "step 1", "prompt slow", "header initial high", "call loop 1", "cancelled turn 1 keep false",
			"answer aborted Half of it,", "step end", "turn end aborted user",
		}
		if keep {
			want[5] = "cancelled turn 1 keep true"
			want = append(want, "turn 2", "step 1", "inject noted", "prompt queued", "call loop 1", "answer stop Fine.", "step end", "turn end completed")
			want = append(want, "turn 3", "step 1", "prompt behind", "call loop 1", "answer stop Fine.", "step end", "turn end completed")
		} else { // what is dropped is recorded when the loop next looks
			want = append(want[:7:7], "dropped prompt 2", "dropped inject 3", "step end", "turn end aborted user")
			want = append(want, "turn 2", "step 1", "prompt behind", "call loop 1", "answer stop Fine.", "step end", "turn end completed")
		}
		k.want(want...)
	}
}

// TestCancelKeepsChunks keeps what had come and was not in the log yet.
func TestCancelKeepsChunks(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.ChunkInterval = time.Hour
	k := r.talk()
	said := ""
	r.cfg.Live = func(_ events.ID, live []byte) {
		if said += string(live); strings.Contains(said, "Half of it,") {
			r.cfg.Live = func(events.ID, []byte) {}
			k.cancel(false)
		}
	}
	k.prompt("slow")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt slow", "header initial high", "call loop 1", "cancelled turn 1 keep false",
		"answer aborted Half of it,", "step end", "turn end aborted user",
	)
}

// TestCancelBeforeAnswer leaves no message of a call that had said nothing.
func TestCancelBeforeAnswer(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("mute")
	k.on(1, is[*events.LLMStream], func() { k.cancel(false); k.cancel(true) })
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt mute", "header initial high", "call loop 1", "cancelled turn 1 keep false", "failed CANCELLED",
		"cancelled turn 1 keep true", "step end", "turn end aborted user",
	)
}

func TestCancelInBackoff(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Retry.Base, r.cfg.Retry.Max = time.Hour, time.Hour
	k := r.talk()
	k.prompt("busy")
	k.on(1, is[*events.LLMRetry], func() { k.cancel(true); k.prompt("next") })
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt busy", "header initial high", "call loop 1", "failed SERVER", "retry 1", "cancelled turn 1 keep true",
		"step end", "turn end aborted user",
		"turn 2", "step 1", "prompt next", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestCancelBetween cancels when nothing runs: at rest, before the first step, between messages, between steps.
func TestCancelBetween(t *testing.T) {
	end := []string{"step end", "turn end aborted user"}
	for name, c := range map[string]struct {
		n    int
		when func(events.Body) bool
		want []string
	}{
		"before the step": {1, is[*events.TurnStart], []string{"turn 1", "cancelled turn 1 keep false", "dropped prompt 1", "dropped inject 2", "turn end aborted user"}},
		"in the batch":    {1, is[*events.UserMessage], append([]string{"turn 1", "step 1", "inject note", "cancelled turn 1 keep false", "dropped prompt 1"}, end...)},
		"after the step":  {1, is[*events.StepEnd], []string{"turn 1", "step 1", "inject note", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "cancelled turn 1 keep false", "turn end aborted user"}},
		"after the turn":  {1, is[*events.TurnEnd], []string{"turn 1", "step 1", "inject note", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed", "cancelled turn 0 keep false"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newRig(t, chatty()).talk()
			k.prompt("one")
			k.say(events.InputInject, "note")
			k.on(c.n, c.when, func() { k.cancel(false) })
			k.rest()
			k.want(c.want...)
		})
	}
}

// TestCancelAtRest drops what waits, or lets it run.
func TestCancelAtRest(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("one")
	k.cancel(true)
	k.rest()
	k.say(events.InputInject, "note")
	k.prompt("two")
	k.tell(events.Input{Kind: events.InputConfigure, Options: events.Options{ReasoningEffort: "low"}})
	k.tell(events.Input{Kind: events.InputCompact})
	k.cancel(false)
	k.prompt("three")
	k.rest()
	k.want(
		"cancelled turn 0 keep true",
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"cancelled turn 0 keep false", "dropped inject 3", "dropped prompt 4", "dropped compact 6", "configured",
		"turn 2", "step 1", "prompt three", "header change low", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestCancelInTools cancels while the first of three exclusive tools runs, and while parallel ones run: what has ended
// keeps its result, what runs is stopped, what has not started does not start.
func TestCancelInTools(t *testing.T) {
	run := func(t *testing.T, parallel bool, pool int, own bool) map[string]string {
		r := newRig(t, chatty())
		r.cfg.ToolPool = pool
		k := r.talk()
		safety := tools.Safety{Parallel: parallel}
		quick := make(chan struct{})
		r.use(
			&fake{name: "a", safety: safety, run: func(context.Context, string) tools.Result { defer close(quick); return output("A") }},
			&fake{name: "b", safety: safety, run: func(ctx context.Context, _ string) tools.Result {
				<-quick
				k.cancel(true)
				<-ctx.Done()
				if own {
					return output("half of B")
				}
				return tools.Failed(events.ToolFailed, "stopped")
			}},
			&fake{name: "c", safety: safety, run: func(context.Context, string) tools.Result { t.Error("c ran"); return output("C") }},
		)
		k.prompt("work")
		k.prompt("then")
		k.rest()
		started := []string{"tool a", "result a", "tool b", "cancelled turn 1 keep true", "result b TOOL_CANCELLED", "result c TOOL_NOT_STARTED"}
		if parallel {
			started = []string{"tool a", "tool b", "tool c", "cancelled turn 1 keep true", "result a", "result b TOOL_CANCELLED", "result c TOOL_NOT_STARTED"}
		}
		if own {
			started[len(started)-2] = "result b"
		}
		want := append([]string{"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a() b() c()"}, started...)
		k.want(append(want,
			"step end", "turn end aborted user",
			"turn 2", "step 1", "prompt then", "call loop 1", "answer stop Fine.", "step end", "turn end completed")...)
		list, _ := k.all()
		return results(t, list)
	}
	for name, parallel := range map[string]bool{"exclusive": false, "parallel": true} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, parallel, 1, false); got["a"] != "A" {
				t.Errorf("a's result is %q", got["a"])
			}
			if got := run(t, parallel, 1, true); got["b"] != "half of B" {
				t.Errorf("b's own result is %q", got["b"])
			}
		})
	}
}

// TestCancelAndTakeover lets another worker find the cancel of a call whose worker died: what was said is kept.
func TestCancelAndTakeover(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.ChunkInterval = time.Millisecond
	k := r.talk()
	k.prompt("slow")
	k.crash(1, is[*events.AssistantChunk])
	k.cancel(false)
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt slow", "header initial high", "call loop 1", "claimed takeover", "cancelled turn 1 keep false",
		"answer aborted Half of it,", "step end", "turn end aborted user",
	)
}

// TestConfigureAndClose are handled between turns, in their place among the prompts; what is behind a close, and waits
// before it, is dropped.
func TestConfigureAndClose(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("one")
	k.tell(events.Input{Kind: events.InputConfigure, Options: events.Options{ReasoningEffort: "low", MaxTokens: 99, System: "Other."}})
	k.prompt("two")
	k.on(2, is[*events.AssistantMessage], func() {
		k.say(events.InputInject, "note")
		k.tell(events.Input{Kind: events.InputClose, Reason: "done"})
		k.prompt("three")
		k.tell(events.Input{Kind: events.InputCompact})
	})
	k.rest()
	k.prompt("four")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"configured",
		"turn 2", "step 1", "prompt two", "header change low", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"dropped inject 4", "dropped prompt 6", "dropped compact 7", "session/closed",
	)
	_, s := k.all()
	header, _ := s.Header()
	if c := header.Config; c.MaxTokens != 99 || header.System != "Other." || header.AdapterDefaults.MaxTokens {
		t.Errorf("header %+v", header)
	}
}

// TestMaxSteps bounds the steps of a turn, by the session's own limit before the worker's.
func TestMaxSteps(t *testing.T) {
	r := newRig(t, simulator.Script{Rules: []simulator.Rule{{Answer: simulator.Answer{Calls: []simulator.Call{{Name: "mark", Arguments: "{}"}}}}}})
	k := r.talk()
	k.tell(events.Input{
		Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text("go")}, Options: events.Options{MaxSteps: 2},
	})
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt go", "header initial high", "call loop 1", "answer tool-calls mark()", "tool mark", "result mark", "step end",
		"step 2", "call loop 1", "answer tool-calls mark()", "tool mark", "result mark", "step end", "turn end blocked the turn has used its 2 steps",
	)
}

// TestBlankAnswerCancelled keeps no answer of nothing but white space.
func TestBlankAnswerCancelled(t *testing.T) {
	r := newRig(t, simulator.Script{Rules: []simulator.Rule{{Answer: simulator.Answer{
		Text: " \n\u2003 and more", DeltaSizes: []int{3}, Failure: &simulator.Failure{Kind: simulator.FailHang, After: 1},
	}}}})
	r.cfg.ChunkInterval = time.Millisecond
	k := r.talk()
	k.prompt("go")
	k.on(1, is[*events.AssistantChunk], func() { k.cancel(false) })
	k.rest()
	k.want("turn 1", "step 1", "prompt go", "header initial high", "call loop 1", "cancelled turn 1 keep false", "failed CANCELLED", "step end", "turn end aborted user")
}

// TestFinishes ends turns as their last answers ended.
func TestFinishes(t *testing.T) {
	answer := func(word string, a simulator.Answer) simulator.Rule {
		return simulator.Rule{When: simulator.Condition{Contains: lossless.Text(word), Times: 1}, Answer: a}
	}
	call := []simulator.Call{{Name: "mark", Arguments: "{"}}
	k := newRig(t, simulator.Script{Rules: []simulator.Rule{
		answer("long", simulator.Answer{Text: "Too", Calls: call, Finish: "length"}),
		answer("full", simulator.Answer{Calls: call, Finish: "length"}),
		answer("bad", simulator.Answer{Text: "x", Finish: "content_filter"}),
		answer("empty", simulator.Answer{}),
		answer("credit", simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 402}}),
		answer("key", simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 401}}),
		{Answer: simulator.Answer{Text: "Fine."}},
	}}).talk()
	for _, text := range []string{"long", "full", "bad", "empty", "credit", "key", "last"} {
		k.prompt(text)
	}
	k.rest()
	list, _ := k.all()
	var got []string
	for _, line := range trace(list) {
		if strings.HasPrefix(line, "answer") || strings.HasPrefix(line, "failed") || strings.HasPrefix(line, "turn end") {
			got = append(got, line)
		}
	}
	want := []string{
		"answer max-tokens Too", "turn end max-tokens", "answer max-tokens", "turn end max-tokens",
		"failed CONTENT_FILTER", "turn end error CONTENT_FILTER", "failed EMPTY_RESPONSE", "answer stop Fine.", "turn end completed",
		"failed QUOTA", "turn end error QUOTA", "failed INVALID_CREDENTIAL", "turn end error INVALID_CREDENTIAL", "answer stop Fine.", "turn end completed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSteerInBackoff waits for the next step, and does not end the waiting.
func TestSteerInBackoff(t *testing.T) {
	k := newRig(t, chatty()).talk()
	k.prompt("busy")
	k.on(1, is[*events.LLMRetry], func() { k.say(events.InputSteer, "hurry") })
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt busy", "header initial high", "call loop 1", "failed SERVER", "retry 1", "llm/retry-started", "call loop 2",
		"answer stop Fine.", "step end", "step 2", "steer hurry", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}
