package worker

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

func failing(f simulator.Failure, times int) simulator.Script {
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Times: times}, Answer: simulator.Answer{Failure: &f}}, {Answer: simulator.Answer{Text: "Fine."}},
	}}
}

// delays returns the delays of the retries that were scheduled, in milliseconds.
func (k *talk) delays() (ms []int64) {
	list, _ := k.all()
	for i := range list {
		if b, ok := list[i].Body.(*events.LLMRetry); ok {
			ms = append(ms, b.DelayMs)
		}
	}
	return ms
}

func TestRetryNormal(t *testing.T) {
	r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 500}, 9))
	r.cfg.Retry.MaxAttempts = 3
	k := r.talk()
	k.prompt("go")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt go", "header initial high",
		"call loop 1", "failed SERVER", "retry 1", "llm/retry-started", "call loop 2", "failed SERVER", "retry 2", "llm/retry-started",
		"call loop 3", "failed SERVER", "step end", "turn end error SERVER",
	)
	if diff := cmp.Diff([]int64{1, 2}, k.delays()); diff != "" {
		t.Error(diff)
	}
}

func TestRetryAlways(t *testing.T) {
	r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 402}, 6))
	r.cfg.Retry.Mode = provider.RetryAlways
	k := r.talk()
	k.prompt("go")
	k.rest()
	if diff := cmp.Diff([]int64{1, 2, 4, 5, 5, 5}, k.delays()); diff != "" {
		t.Error(diff)
	}
	_, s := k.all()
	if n := s.Messages().Len(); n != 2 {
		t.Errorf("%d messages", n)
	}
}

// TestRetryAlwaysEnds makes a request that fails alike each time no more often than the default policy does.
func TestRetryAlwaysEnds(t *testing.T) {
	r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 400}, 9))
	r.cfg.Retry.Mode = provider.RetryAlways
	k := r.talk()
	k.prompt("go")
	k.rest()
	if diff := cmp.Diff([]int64{1, 2, 4}, k.delays()); diff != "" {
		t.Error(diff)
	}
	list, _ := k.all()
	if got := trace(list); got[len(got)-1] != "turn end error INVALID_REQUEST" {
		t.Errorf("the session ends with %q", got[len(got)-1])
	}
	for i := range list {
		if b, ok := list[i].Body.(*events.LLMRetry); ok && b.MaxRetries != 3 {
			t.Errorf("retry %d of %d", b.Retry, b.MaxRetries)
		}
	}
}

// TestRetryAfter waits as long as the provider asks for, also beyond the longest delay of our own.
func TestRetryAfter(t *testing.T) {
	for asked, want := range map[string]int64{"0.03": 30, "0": 1} {
		r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 429, RetryAfter: asked}, 1))
		r.cfg.Retry.Max = 20 * time.Millisecond
		k := r.talk()
		k.prompt("go")
		k.rest()
		if diff := cmp.Diff([]int64{want}, k.delays()); diff != "" {
			t.Errorf("Retry-After %s: %s", asked, diff)
		}
	}
}

func TestRetryJitter(t *testing.T) {
	for jitter, want := range map[float64][]int64{0: {8, 16}, 0.5: {6, 12}, 0.999: {4, 8}} {
		r := newRig(t, failing(simulator.Failure{Kind: simulator.FailReset}, 2))
		r.cfg.Retry.Base, r.cfg.Retry.Max = 8*time.Millisecond, time.Second
		r.cfg.Jitter = func() float64 { return jitter }
		k := r.talk()
		k.prompt("go")
		k.rest()
		if diff := cmp.Diff(want, k.delays()); diff != "" {
			t.Errorf("jitter %v: %s", jitter, diff)
		}
	}
}

// sayer is an adapter without a network, which fails the first call.
type sayer struct{ calls int }

func (a *sayer) Prepare(_ context.Context, c events.Config) (*provider.Prepared, error) {
	return provider.NewPrepared(provider.Spec{Config: c, Codec: "deepseek-chat/1"}, func(context.Context, provider.Call) iter.Seq2[events.Chunk, error] {
		a.calls++
		first := a.calls == 1
		return func(yield func(events.Chunk, error) bool) {
			if first {
				yield(events.Chunk{}, &provider.Error{Failure: events.Failure{Code: events.FailureServer, Message: "busy"}})
				return
			}
			for _, c := range []events.Chunk{
				{Type: events.ChunkBlockStart, BlockType: events.BlockText},
				{Type: events.ChunkTextDelta, Texts: []string{"Fine."}},
				{Type: events.ChunkBlockEnd},
				{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishStop}},
			} {
				if !yield(c, nil) {
					return
				}
			}
		}
	}), nil
}

// TestRetryTakeover waits for the rest of a delay that another worker had begun, and no more than the whole of it when
// that one's clock was ahead.
func TestRetryTakeover(t *testing.T) {
	for _, c := range []struct{ later, want time.Duration }{
		{0, time.Hour},
		{20 * time.Minute, 40 * time.Minute},
		{2 * time.Hour, 0},
		{-30 * time.Minute, time.Hour},
	} {
		r := newRig(t, simulator.Script{})
		r.cfg.Retry.Base, r.cfg.Retry.Max = time.Hour, time.Hour
		r.cfg.Routes.Set(provider.KindDeepSeek, &sayer{})
		synctest.Test(t, func(t *testing.T) {
			r.t = t
			k := r.talk()
			k.prompt("go")
			k.crash(1, is[*events.LLMRetry])
			r.cfg.Now = func() time.Time { return time.Now().Add(c.later) }
			begun := time.Now()
			var waited time.Duration
			k.on(1, is[*events.LLMRetryStarted], func() { waited = time.Since(begun) })
			if err := k.open(k.log, k.id, k.q).rest(t.Context()); err != nil {
				t.Fatal(err)
			}
			if waited != c.want {
				t.Errorf("%v later: waited %v, want %v", c.later, waited, c.want)
			}
			k.want(
				"turn 1", "step 1", "prompt go", "header initial", "call loop 1", "failed SERVER", "retry 1", "claimed takeover",
				"llm/retry-started", "header resume", "call loop 2", "answer stop Fine.", "step end", "turn end completed",
			)
		})
	}
}

// TestRetryPolicyOfAnother goes on by the policy of the route, which this worker has not called yet.
func TestRetryPolicyOfAnother(t *testing.T) {
	r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 500}, 1))
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: r.url, Transport: r.http, Retry: provider.RetryPolicy{MaxAttempts: 9, Base: 3 * time.Millisecond, Max: 4 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Routes.Set(provider.KindDeepSeek, adapter)
	k := r.talk()
	k.prompt("go")
	k.crash(1, is[*events.LLMFailed])
	k.rest()
	list, _ := k.all()
	for i := range list {
		if b, ok := list[i].Body.(*events.LLMRetry); ok && (b.MaxRetries != 8 || b.DelayMs != 3) {
			t.Errorf("retry %+v", b)
		}
	}
	if diff := cmp.Diff([]int64{3}, k.delays()); diff != "" {
		t.Error(diff)
	}
}
