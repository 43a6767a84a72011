package simulator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

// answering gives one text to everything.
func answering(text string) simulator.Script {
	return simulator.Script{Rules: []simulator.Rule{{Answer: simulator.Answer{Text: lossless.Text(text)}}}}
}

// checkUsage checks what holds for every answer and returns how much was read from the cache.
func checkUsage(t *testing.T, r result) int64 {
	t.Helper()
	u := r.usage
	if r.failure.Code != "" || !u.CacheReported || u.Clamped || u.CacheReadTokens%64 != 0 || u.OutputTokens == 0 {
		t.Errorf("usage %+v, failure %+v", u, r.failure)
	}
	return u.CacheReadTokens
}

func TestCacheOfConversation(t *testing.T) {
	long := strings.Repeat("0123456789", 100) // about 250 tokens
	r := newRig(t, simulator.Config{Script: answering(long)})
	first := r.ask(chat(user(long)))
	if hit := checkUsage(t, first); hit != 0 {
		t.Errorf("the first request read %d tokens from the cache", hit)
	}
	again := r.ask(chat(user(long)))
	if hit := checkUsage(t, again); hit != first.usage.TotalInput()/64*64 {
		t.Errorf("the same request read %d of %d tokens", hit, first.usage.TotalInput())
	}

	// The next turn reads the first one's input and output: all but what follows the last full unit.
	next := r.ask(chat(user(long), assistant(first.text), user("and then?")))
	before := first.usage.TotalInput() + first.usage.OutputTokens
	if hit := checkUsage(t, next); hit < before-64 || hit > next.usage.TotalInput() {
		t.Errorf("the next turn read %d tokens, of which %d were there before", hit, before)
	}

	// A change within the first message leaves what is before it.
	changed := r.ask(chat(user(long[:600]+"x"+long[600:]), assistant(first.text), user("and then?")))
	if hit := checkUsage(t, changed); hit != 128 {
		t.Errorf("after a change at byte 600 of the prompt %d tokens were read, want 128", hit)
	}
	if got := r.ask(chat(user("x" + long))); checkUsage(t, got) != 0 {
		t.Errorf("a change in the first unit left %d tokens", got.usage.CacheReadTokens)
	}
	if got := r.ask(chat(user("short"))); checkUsage(t, got) != 0 {
		t.Errorf("less than a unit was read from the cache: %+v", got.usage)
	}
}

// TestCacheOfHeader: tools and system prompt come before the messages, in the order of the request.
func TestCacheOfHeader(t *testing.T) {
	long := strings.Repeat("0123456789", 100)
	system := func(s string) string { return `{"role":"system","content":"` + s + `"}` }
	r := newRig(t, simulator.Config{Script: answering("a")})
	hit := func(body string) int64 { return checkUsage(r.t, r.ask(body)) }
	hit(chatWith(tools, system(long), user("a")))
	if n := hit(chatWith(tools, system(long), user("b"))); n < 192 {
		t.Errorf("the same header gave %d tokens", n)
	}
	if n := hit(chat(system(long), user("a"))); n != 256 {
		t.Errorf("without the tools the system prompt gave %d tokens, want 256", n)
	}
	if n := hit(chatWith(tools, system("x"+long), user("a"))); n != 0 {
		t.Errorf("another system prompt gave %d tokens", n)
	}
}

func TestCacheIsolation(t *testing.T) {
	long := strings.Repeat("0123456789", 100)
	r := newRig(t, simulator.Config{Script: answering("a")})
	body := chat(user(long))
	one, two := r.client("sk-one"), r.client("sk-two")
	checkUsage(t, r.askAs(t.Context(), one, "", body))
	if hit := checkUsage(t, r.askAs(t.Context(), two, "", body)); hit != 0 {
		t.Errorf("another key read %d tokens", hit)
	}
	if hit := checkUsage(t, r.askAs(t.Context(), one, "", strings.Replace(body, `"m"`, `"n"`, 1))); hit != 0 {
		t.Errorf("another model read %d tokens", hit)
	}
	if hit := checkUsage(t, r.askAs(t.Context(), one, "", body)); hit == 0 {
		t.Error("the same key and model read nothing")
	}
}

func TestCacheExpiry(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	long := strings.Repeat("0123456789", 100)
	r := newRig(t, simulator.Config{
		Script: answering("a"), CacheTTL: time.Hour, Now: func() time.Time { return now },
	})
	body := chat(user(long))
	r.ask(body)
	for _, step := range []struct {
		wait time.Duration
		hit  bool
	}{{59 * time.Minute, true}, {59 * time.Minute, true}, {time.Hour, false}, {0, true}} {
		now = now.Add(step.wait)
		if hit := checkUsage(t, r.ask(body)); (hit > 0) != step.hit {
			t.Errorf("after %v: %d tokens read", step.wait, hit)
		}
	}
}

func TestCacheCapacity(t *testing.T) {
	text := func(c string) string { return chat(user(strings.Repeat(c, 1000))) } // four units
	r := newRig(t, simulator.Config{Script: answering("a"), CacheUnits: 8})
	hit := func(c string) int64 { return checkUsage(r.t, r.ask(text(c))) }
	hit("a")
	hit("b")
	if hit("a") == 0 || hit("b") == 0 {
		t.Error("two prompts that fit are not kept")
	}
	hit("a")
	hit("c") // takes the place of b
	if hit("a") == 0 {
		t.Error("what was used last is gone")
	}
	if n := hit("b"); n != 0 {
		t.Errorf("more is kept than fits: %d tokens", n)
	}
}

func TestUsageAddsUp(t *testing.T) {
	r := newRig(t, simulator.Config{})
	got := r.ask(chat(user("hello")))
	if u := got.usage; u.ReasoningTokens == 0 || u.OutputTokens <= u.ReasoningTokens || u.InputTokens == 0 {
		t.Errorf("%+v", u)
	}
	if got.finish != events.FinishStop {
		t.Errorf("%+v", got)
	}
}
