package worker

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/events"
)

// headers returns the headers of the log.
func (k *talk) headers() (out []events.RequestHeader) {
	list, _ := k.all()
	for i := range list {
		if b, ok := list[i].Body.(*events.RequestHeader); ok {
			out = append(out, *b)
		}
	}
	return out
}

func (k *talk) configure(o events.Options) {
	k.tell(events.Input{Kind: events.InputConfigure, Options: o})
}

// TestHeaderDefaults takes what one adapter had filled in off the next proposal, so that the next model's own defaults
// count.
func TestHeaderDefaults(t *testing.T) {
	r := newRig(t, chatty())
	r.route(provider.KindDeepSeek, provider.Model{Name: "deepseek-chat", MaxTokens: 100}, provider.Model{Name: "other", MaxTokens: 200})
	k := r.talk()
	k.prompt("one")
	k.configure(events.Options{Model: "other"})
	k.prompt("two")
	k.configure(events.Options{Model: "deepseek-chat", MaxTokens: 7})
	k.prompt("three")
	k.configure(events.Options{Model: "other"})
	k.prompt("four")
	k.rest()
	var got []int64
	for _, h := range k.headers() {
		got = append(got, h.Header.Config.MaxTokens)
		if h.Header.AdapterDefaults.MaxTokens != (h.Header.Config.MaxTokens >= 100) || !h.Header.AdapterDefaults.ReasoningEffort {
			t.Errorf("header %+v", h.Header)
		}
	}
	if diff := cmp.Diff([]int64{100, 200, 7, 7}, got); diff != "" {
		t.Error(diff)
	}
}

// TestEffortRestored restores an effort for the same provider and model only, and not one that the adapter had filled in.
func TestEffortRestored(t *testing.T) {
	r := newRig(t, chatty())
	want := "low"
	r.cfg.Extensions.CallConfig = []CallConfig{&guard{name: "x", config: func(c events.Config) (events.Config, error) {
		if c.ReasoningEffort == "" {
			c.ReasoningEffort = want
		}
		return c, nil
	}}}
	k := r.talk()
	k.prompt("one")
	k.rest()
	next := func(model string) {
		k.die()
		r.cfg.Defaults.Model, want = model, "max"
		k.prompt("again")
		k.rest()
	}
	next("deepseek-chat") // restored
	next("other")         // another model: proposed anew
	r.cfg.Extensions.CallConfig = nil
	next("third") // filled in by the adapter
	next("third") // and not restored: filled in again
	got := make([]string, 0, 5)
	for _, h := range k.headers() {
		c := h.Header.Config
		line := string(h.Reason) + " " + c.Model + " " + c.ReasoningEffort
		if h.Header.AdapterDefaults.ReasoningEffort {
			line += " default"
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{
		"initial deepseek-chat low", "resume deepseek-chat low", "resume other max", "resume third high default", "resume third high default",
	}, got); diff != "" {
		t.Error(diff)
	}
}

// TestNoRoute records what was wanted and ends the turn; the session goes on when it is configured otherwise.
func TestNoRoute(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.configure(events.Options{Provider: "nowhere"})
	k.q.inputs[0].Open = true
	k.prompt("one")
	k.configure(events.Options{Provider: provider.KindDeepSeek})
	k.prompt("two")
	k.rest()
	k.want(
		"configured", "turn 1", "step 1", "prompt one", "header initial", "step end", "turn end error NO_ADAPTER",
		"configured", "turn 2", "step 1", "prompt two", "header change high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	if h := k.headers()[0]; h.Header.Config.Provider != "nowhere" || h.Header.AdapterDefaults != (events.AdapterDefaults{}) {
		t.Errorf("header %+v", h)
	}
}

// TestNoModel names both ways to choose one, and records no header: there is none.
func TestNoModel(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.Defaults.Model = ""
	k := r.talk()
	k.prompt("one")
	k.rest()
	k.want("turn 1", "step 1", "prompt one", "step end", "turn end error NO_ADAPTER")
	if _, why := outcome(k); !strings.Contains(why, "session configure") || !strings.Contains(why, "defaults") {
		t.Errorf("the turn ended with %q", why)
	}
}

// willful changes what is proposed to it.
type willful struct {
	provider.Adapter
	change func(*events.Config)
}

func (w willful) Prepare(ctx context.Context, proposed events.Config) (*provider.Prepared, error) {
	w.change(&proposed)
	return w.Adapter.Prepare(ctx, proposed)
}

// TestOnlyFilledIn makes no call with what an adapter has changed, and records no header: the log would not say who did.
func TestOnlyFilledIn(t *testing.T) {
	for name, change := range map[string]func(*events.Config){
		"another model":            func(c *events.Config) { c.Model = "other" },
		"an effort not marked":     func(c *events.Config) { c.ReasoningEffort = "low" },
		"what was set, dropped":    func(c *events.Config) { c.Temperature = "" },
		"tokens dropped, refilled": func(c *events.Config) { c.MaxTokens = 0 },
	} {
		r := newRig(t, chatty())
		r.cfg.Defaults.Temperature, r.cfg.Defaults.MaxTokens = "0.5", 77
		adapter, _, _ := r.cfg.Routes.Lookup(provider.KindDeepSeek)
		r.cfg.Routes.Set(provider.KindDeepSeek, willful{adapter, change})
		k := r.talk()
		k.prompt("one")
		k.rest()
		k.want("turn 1", "step 1", "prompt one", "step end", "turn end error INVALID_PREPARED_CALL")
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestSessionOptions gives each option of a session to its header, those of the prompt too, inline or in an object.
func TestSessionOptions(t *testing.T) {
	r := newRig(t, chatty())
	r.cfg.InlineMax = 256
	r.use(&fake{name: "note"}, &fake{name: "draw"})
	k := r.talk()
	k.prompt("one")
	for _, o := range []events.Options{
		{ReasoningEffort: "low", MaxTokens: 9, Temperature: "1", Stop: []string{"END"}},
		{System: "Be brief.", Tools: []string{"note"}},
		{System: strings.Repeat("Be long. ", 40)},
		{Tools: []string{"nothing"}},
	} {
		k.configure(o)
		k.prompt("again")
	}
	k.rest()
	headers := k.headers()
	if len(headers) != 5 {
		t.Fatalf("%d headers", len(headers))
	}
	for i := range headers {
		if len(headers[i].ChangedBy) > 0 {
			t.Errorf("header %d was changed by %v", i, headers[i].ChangedBy)
		}
	}
	last := headers[4].Header
	want := events.Config{Provider: provider.KindDeepSeek, Model: "deepseek-chat", ReasoningEffort: "low", MaxTokens: 9, Temperature: "1", Stop: []string{"END"}}
	if !last.Config.Equal(want) || last.System != "" || last.SystemObject.Bytes != 360 || len(last.Tools) > 0 {
		t.Errorf("header %+v", last)
	}
	if h := headers[2].Header; h.System != "Be brief." || len(h.Tools) != 1 || h.Tools[0].Name != "note" {
		t.Errorf("header %+v", h)
	}
}

// counting counts what is prepared, and by which generation it is sent.
type counting struct {
	provider.Adapter
	prepared int
	before   func()
}

func (c *counting) Prepare(ctx context.Context, proposed events.Config) (*provider.Prepared, error) {
	c.prepared++
	p, err := c.Adapter.Prepare(ctx, proposed)
	if c.before != nil {
		c.before()
	}
	return p, err
}

// TestPreparedOnce prepares each attempt once, and sends it with what prepared it although the route has changed since.
func TestPreparedOnce(t *testing.T) {
	r := newRig(t, chatty())
	adapter, _, _ := r.cfg.Routes.Lookup(provider.KindDeepSeek)
	c := &counting{Adapter: adapter}
	r.cfg.Routes.Set(provider.KindDeepSeek, c)
	r.cfg.NoPressure = true // nobody asks for the window beforehand
	k := r.talk()
	k.prompt("busy")
	k.rest()
	if c.prepared != 2 {
		t.Errorf("two attempts were prepared %d times", c.prepared)
	}
	c.before = func() { r.cfg.Routes.Set(provider.KindDeepSeek, nil) }
	k.prompt("now")
	k.prompt("gone")
	k.rest()
	list, _ := k.all()
	got := trace(list)
	want := []string{
		"turn 2", "step 1", "prompt now", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 3", "step 1", "prompt gone", "header change", "step end", "turn end error NO_ADAPTER",
	}
	if diff := cmp.Diff(want, got[len(got)-len(want):]); diff != "" {
		t.Error(diff)
	}
}
