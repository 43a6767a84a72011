package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

// asksSummary holds of a request for a summary.
func asksSummary() simulator.Condition {
	return simulator.Condition{Contains: lossless.Text(compact.Directive[:40])}
}

// summaries answers requests for summaries as said, and prompts with many words.
func summaries(answer simulator.Answer, models ...simulator.Model) simulator.Script {
	return simulator.Script{Models: models, Rules: []simulator.Rule{
		{When: asksSummary(), Answer: answer},
		{When: simulator.Condition{Contains: "read", ToolResults: new(0)}, Answer: simulator.Answer{Calls: []simulator.Call{{Name: "read", Arguments: `{"path":"big.txt"}`}}}},
		{Answer: simulator.Answer{Text: lossless.Text(strings.Repeat("word ", 400)), DeltaSizes: []int{500}}},
	}}
}

var notes = simulator.Answer{Text: "Notes."}

// small is a rig whose model has a window of some tokens; the provider has the window that the simulator's script says.
func small(t *testing.T, window int64, script simulator.Script) *rig {
	r := newRig(t, script)
	r.use(&mark{})
	r.route(provider.KindDeepSeek, provider.Model{Name: "deepseek-chat", ContextWindow: window, MaxTokens: 1000})
	return r
}

// short is the trace of a session without texts of answers, headers and what every turn has.
func short(k *talk) (out []string) {
	list, _ := k.all()
	for _, line := range trace(list) {
		switch {
		case strings.HasPrefix(line, "answer"):
			out = append(out, "answer")
		case strings.HasPrefix(line, "prompt"):
			out = append(out, "prompt")
		case strings.HasPrefix(line, "header"), strings.HasPrefix(line, "step"), strings.HasPrefix(line, "turn ") && !strings.HasPrefix(line, "turn end"):
		default:
			out = append(out, line)
		}
	}
	return out
}

func (k *talk) wantShort(want ...string) {
	k.t.Helper()
	if diff := cmp.Diff(want, short(k)); diff != "" {
		k.t.Errorf("session (-want +got):\n%s", diff)
	}
}

// outcome returns the error text of the last compaction's end and that of the last turn's.
func outcome(k *talk) (compaction, turn string) {
	list, _ := k.all()
	for i := range list {
		switch b := list[i].Body.(type) {
		case *events.CompactionEnd:
			compaction = b.Error
		case *events.TurnEnd:
			turn = b.Failure.Message
		}
	}
	return compaction, turn
}

func TestCompactCommand(t *testing.T) {
	k := small(t, 0, summaries(notes)).talk()
	k.tell(events.Input{Kind: events.InputCompact})
	k.prompt("one")
	k.prompt("two")
	k.tell(events.Input{Kind: events.InputCompact})
	k.prompt("three")
	k.rest()
	k.wantShort(
		"compaction command", "compaction end no-progress", "prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed",
		"compaction command", "call compaction 1", "compaction/summary", "summary in place", "compaction end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
	)
	sent := k.sim.Requests()
	if last := string(sent[len(sent)-1].Body); !strings.Contains(last, "Notes.") || strings.Contains(last, `"one"`) {
		t.Errorf("the last request is %s", last)
	}
	if aux := string(sent[2].Body); !strings.Contains(aux, `"max_tokens":1000`) || !strings.Contains(aux, `"one"`) {
		t.Errorf("the request for the summary is %s", aux)
	}
}

// TestCompactUnderPressure summarises before a step, in the open turn, and the context section enters again.
func TestCompactUnderPressure(t *testing.T) {
	r := small(t, 2200, summaries(notes))
	r.cfg.Extensions.Contexts = []ContextSection{&guard{name: "day", text: func(Point) (string, error) { return "Monday", nil }}}
	k := r.talk()
	for range 4 {
		k.prompt("go on " + strings.Repeat("and on ", 60))
	}
	k.rest()
	k.wantShort(
		"prompt", "context day: Monday", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
		"compaction pressure", "call compaction 1", "compaction/summary", "summary in place", "compaction end completed",
		"prompt", "context day: Monday", "call loop 1", "answer", "turn end completed",
	)
}

// TestOverflow summarises after the provider has refused a request, and goes on in the same step.
func TestOverflow(t *testing.T) {
	k := small(t, 0, summaries(notes, simulator.Model{Name: "deepseek-chat", ContextWindow: 1800})).talk()
	for range 4 {
		k.prompt("go on " + strings.Repeat("and on ", 60))
	}
	k.rest()
	k.wantShort(
		"prompt", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "failed CONTEXT_WINDOW_EXCEEDED",
		"compaction overflow", "call compaction 1", "compaction/summary", "summary in place", "compaction end completed",
		"call loop 2", "answer", "turn end completed",
	)
}

// TestPrune shortens a large result under its call id before it asks for a summary.
func TestPrune(t *testing.T) {
	script := summaries(notes)
	r := newRig(t, script)
	r.cfg.InlineMax = 16 << 10 // the result is an object
	r.route(provider.KindDeepSeek, provider.Model{Name: "deepseek-chat", ContextWindow: 24_000, MaxTokens: 1000})
	k := r.talk()
	k.prompt("read it")
	k.prompt("go on " + strings.Repeat("and on ", 1500))
	k.prompt("more")
	k.rest()
	k.wantShort(
		"prompt", "call loop 1", "answer", "tool read", "result read",
		"compaction/prune", "pruned read", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
		"prompt", "call loop 1", "answer", "turn end completed",
	)
	list, _ := k.all()
	var ids []string
	for i := range list {
		if b, ok := list[i].Body.(*events.ToolResult); ok {
			ids = append(ids, b.Message.ID+b.CallID())
			if text := b.Message.Content[0].Content[0].Text; list[i].Surface.Kind == events.SurfaceReplace && !strings.Contains(text, " bytes left out]") {
				t.Errorf("pruned to %q", text)
			}
		}
	}
	if len(ids) != 2 || ids[0] != ids[1] {
		t.Errorf("message and call ids %v", ids)
	}
}

// TestGuards ends what leads nowhere, with a word why.
func TestGuards(t *testing.T) {
	endless := simulator.Answer{Text: lossless.Text(strings.Repeat("and so on ", 1500)), DeltaSizes: []int{1000}}
	refused := simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 400}}
	long := "go on " + strings.Repeat("and on ", 60)
	t.Run("no progress", func(t *testing.T) {
		k := small(t, 2200, summaries(endless)).talk()
		for range 4 {
			k.prompt(long)
		}
		k.rest()
		got := short(k)
		want := []string{"compaction pressure", "call compaction 1", "compaction/summary", "compaction end no-progress", "prompt", "call loop 1", "answer", "turn end completed"}
		if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
			t.Error(diff)
		}
		if why, _ := outcome(k); !strings.Contains(why, "no progress") {
			t.Errorf("the compaction ended with %q", why)
		}
	})
	t.Run("failed", func(t *testing.T) {
		k := small(t, 2200, summaries(refused)).talk()
		for range 4 {
			k.prompt(long)
		}
		k.rest()
		got := short(k)
		want := []string{"compaction pressure", "call compaction 1", "failed INVALID_REQUEST", "compaction end failed", "prompt", "call loop 1", "answer", "turn end completed"}
		if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("no progress after an overflow", func(t *testing.T) {
		k := small(t, 0, summaries(endless, simulator.Model{Name: "deepseek-chat", ContextWindow: 1800})).talk()
		for range 4 {
			k.prompt(long)
		}
		k.rest()
		got := short(k)
		want := []string{
			"prompt", "call loop 1", "failed CONTEXT_WINDOW_EXCEEDED",
			"compaction overflow", "call compaction 1", "compaction/summary", "compaction end no-progress", "turn end error CONTEXT_WINDOW_EXCEEDED",
		}
		if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
			t.Error(diff)
		}
		if _, why := outcome(k); !strings.Contains(why, "no progress") {
			t.Errorf("the turn ended with %q", why)
		}
	})
	t.Run("floor", func(t *testing.T) {
		k := small(t, 1000, summaries(notes)).talk()
		k.prompt("first")
		k.prompt(strings.Repeat("and on ", 1000))
		k.prompt("last")
		k.rest()
		k.wantShort(
			"prompt", "call loop 1", "answer", "turn end completed",
			"prompt", "turn end error CONTEXT_WINDOW_EXCEEDED", "prompt", "turn end error CONTEXT_WINDOW_EXCEEDED",
		)
		if _, why := outcome(k); why == "" {
			t.Error("the turn's end does not say why")
		}
	})
}

// TestSummaryRetry tries again to get a summary; when another worker goes on it asks for the same region.
func TestSummaryRetry(t *testing.T) {
	script := summaries(notes)
	busy := simulator.Rule{When: asksSummary(), Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}}
	busy.When.Times = 1
	script.Rules = append([]simulator.Rule{busy}, script.Rules...)
	k := small(t, 0, script).talk()
	k.prompt("one")
	k.prompt("two")
	k.tell(events.Input{Kind: events.InputCompact})
	k.crash(1, is[*events.LLMRetryStarted])
	k.rest()
	k.wantShort(
		"prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed",
		"compaction command", "call compaction 1", "failed SERVER", "retry 1", "llm/retry-started", "claimed takeover",
		"call compaction 2", "compaction/summary", "summary in place", "compaction end completed",
	)
	list, _ := k.all()
	var regions []events.Region
	for i := range list {
		if b, ok := list[i].Body.(*events.LLMStream); ok && b.Auxiliary != nil {
			regions = append(regions, b.Auxiliary.Region)
		}
	}
	if regions[0] != regions[1] {
		t.Errorf("regions %v", regions)
	}
}

// TestSummaryEnds gives a summary up that was cut off, at once, and one that the provider fails to give, soon, whatever
// the mode.
func TestSummaryEnds(t *testing.T) {
	cut := simulator.Answer{Text: "Not", Finish: "length"}
	busy := simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}
	again := []string{"llm/retry-started", "call compaction 2", "failed SERVER", "retry 2", "llm/retry-started", "call compaction 3", "failed SERVER"}
	for _, tt := range []struct {
		answer simulator.Answer
		want   []string
	}{
		{cut, []string{"failed MALFORMED_RESPONSE"}},
		{busy, append([]string{"failed SERVER", "retry 1"}, append(again, "retry 3", "llm/retry-started", "call compaction 4", "failed SERVER")...)},
	} {
		r := small(t, 0, summaries(tt.answer))
		r.cfg.Retry.Mode = provider.RetryAlways
		k := r.talk()
		k.prompt("one")
		k.prompt("two")
		k.tell(events.Input{Kind: events.InputCompact})
		k.rest()
		want := []string{"prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed"}
		want = append(want, "compaction command", "call compaction 1")
		k.wantShort(append(append(want, tt.want...), "compaction end failed")...)
		list, _ := k.all()
		for i := range list {
			if b, ok := list[i].Body.(*events.LLMRetry); ok && b.MaxRetries != 3 {
				t.Errorf("retry %d of %d", b.Retry, b.MaxRetries)
			}
		}
	}
}

// TestSummaryRoom asks for a summary without reasoning and with as much room as an answer has, within what the session and
// the model permit.
func TestSummaryRoom(t *testing.T) {
	for _, tt := range []struct {
		model           provider.Model
		summaryMax, own int64
		want            string
	}{
		{provider.Model{ContextWindow: 80_000, MaxTokens: 32_768}, 0, 0, "10000"},
		{provider.Model{ContextWindow: 80_000, MaxTokens: 32_768}, 12_000, 0, "12000"},
		{provider.Model{ContextWindow: 80_000, MaxTokens: 32_768, MaxTokensOff: 8192}, 0, 0, "8192"},
		{provider.Model{ContextWindow: 80_000, MaxTokens: 6000, MaxTokensOff: 8192}, 0, 0, "6000"},
		{provider.Model{ContextWindow: 80_000, MaxTokens: 32_768}, 0, 5000, "5000"},
		{provider.Model{ContextWindow: 16_000}, 0, 0, "4096"},
	} {
		r := newRig(t, summaries(notes))
		tt.model.Name = "deepseek-chat"
		r.route(provider.KindDeepSeek, tt.model)
		r.cfg.SummaryMax = max(tt.summaryMax, r.cfg.SummaryMax)
		r.cfg.Defaults.MaxTokens = tt.own
		k := r.talk()
		k.prompt("one")
		k.prompt("two")
		k.tell(events.Input{Kind: events.InputCompact})
		k.rest()
		sent := k.sim.Requests()
		body := string(sent[len(sent)-1].Body)
		if !strings.Contains(body, `"max_tokens":`+tt.want+`}`) || !strings.Contains(body, `"thinking":{"type":"disabled"}`) {
			t.Errorf("%+v: want %s of %s", tt, tt.want, body)
		}
	}
}

// TestSummaryRoute stays with the adapter that the header was recorded for, although the route is taken away.
func TestSummaryRoute(t *testing.T) {
	r := small(t, 0, summaries(notes))
	k := r.talk()
	k.prompt("one")
	k.prompt("two")
	k.rest()
	k.die()
	k.tell(events.Input{Kind: events.InputCompact})
	k.on(1, is[*events.RequestHeader], func() { r.cfg.Routes.Set(provider.KindDeepSeek, nil) })
	k.rest()
	k.wantShort(
		"prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed", "claimed resumed",
		"compaction command", "call compaction 1", "compaction/summary", "summary in place", "compaction end completed",
	)
}

// TestCancelCompaction stops a compaction, also when the worker dies that has recorded the cancel.
func TestCancelCompaction(t *testing.T) {
	for _, crash := range []bool{false, true} {
		k := small(t, 0, summaries(simulator.Answer{Text: "Notes.", Failure: &simulator.Failure{Kind: simulator.FailHangBefore}})).talk()
		k.prompt("one")
		k.prompt("two")
		k.rest()
		k.tell(events.Input{Kind: events.InputCompact})
		k.on(1, is[*events.LLMStream], func() { k.cancel(true) })
		middle := []string{"call compaction 1", "cancelled turn 0 keep true", "failed CANCELLED"}
		if crash {
			k.crash(1, is[*events.LLMStream])
			k.cancel(true)
			k.crash(1, is[*events.TurnCancelled])
			middle = []string{"call compaction 1", "claimed takeover", "cancelled turn 0 keep true", "claimed takeover", "failed INTERRUPTED"}
		}
		k.rest()
		want := []string{"prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed", "compaction command"}
		k.wantShort(append(append(want, middle...), "compaction end interrupted")...)
	}
}

// TestCompactInBackoff cancels while a summary's retry waits.
func TestCompactInBackoff(t *testing.T) {
	r := small(t, 0, summaries(simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}))
	r.cfg.Retry.Base, r.cfg.Retry.Max = time.Hour, time.Hour
	k := r.talk()
	k.prompt("one")
	k.prompt("two")
	k.tell(events.Input{Kind: events.InputCompact})
	k.on(1, is[*events.LLMRetry], func() { k.cancel(false) })
	k.rest()
	k.wantShort(
		"prompt", "call loop 1", "answer", "turn end completed", "prompt", "call loop 1", "answer", "turn end completed",
		"compaction command", "call compaction 1", "failed SERVER", "retry 1", "cancelled turn 0 keep false", "compaction end interrupted",
	)
}

// TestWindowOfNextRoute chooses a model with a larger window for a session that no longer fits into the first one's. What
// counts is where the next request goes, not where the last one went.
func TestWindowOfNextRoute(t *testing.T) {
	r := newRig(t, simulator.Script{})
	r.route(provider.KindDeepSeek,
		provider.Model{Name: "deepseek-chat", ContextWindow: 2000, MaxTokens: 100}, provider.Model{Name: "large", ContextWindow: 128_000, MaxTokens: 100})
	k := r.talk()
	k.prompt(strings.Repeat("b ", 8000))
	k.rest()
	k.tell(events.Input{Kind: events.InputConfigure, Options: events.Options{Model: "large"}})
	k.prompt("now?")
	k.rest()
	var ends []events.TurnEndKind
	list, _ := k.all()
	for _, e := range list {
		switch b := e.Body.(type) {
		case *events.TurnEnd:
			ends = append(ends, b.Kind)
		case *events.CompactionStart:
			t.Errorf("event %d compacts what fits", e.Seq)
		}
	}
	if diff := cmp.Diff([]events.TurnEndKind{events.TurnError, events.TurnCompleted}, ends); diff != "" {
		t.Error(diff)
	}
}
