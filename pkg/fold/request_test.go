package fold_test

import (
	"errors"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestHeaderOwed walks through the reasons of a header: initial, none, change, none, resume.
func TestHeaderOwed(t *testing.T) {
	plain, changed := foldtest.Header(), foldtest.Header()
	changed.Tools = changed.Tools[:1]
	swapped := foldtest.Header()
	swapped.Tools[0], swapped.Tools[1] = swapped.Tools[1], swapped.Tools[0]
	filled := foldtest.Header()
	filled.Config.ReasoningEffort, filled.AdapterDefaults.ReasoningEffort = "high", true
	explicit := filled
	explicit.AdapterDefaults.ReasoningEffort = false

	l := inStep()
	expect := func(what string, h events.Header, reason events.HeaderReason) {
		t.Helper()
		got, owed := l.State.HeaderOwed(&h)
		if got != reason || owed != (reason != "") {
			t.Errorf("%s: reason %q, owed %t; want %q", what, got, owed, reason)
		}
	}
	expect("the log's first", plain, events.HeaderInitial)
	l.Header(plain)
	expect("the same again", plain, "")
	expect("without a tool", changed, events.HeaderChange)
	expect("tools in another order", swapped, events.HeaderChange)
	expect("a field filled in by the adapter", filled, events.HeaderChange)
	l.Header(filled)
	expect("the same field explicit", explicit, events.HeaderChange)
	l.Header(changed)
	expect("back to the first", plain, events.HeaderChange)
	l.Claimed(events.ClaimTakeover)
	expect("a new instance, the same", changed, events.HeaderResume)
	expect("a new instance, another", plain, events.HeaderResume)
	l.Header(changed)
	expect("the new instance's second", changed, "")
	l.StepEnd()
	l.TurnEnd(events.TurnInterrupted)

	child := l.Fork(int(l.Len()))
	child.Claimed(events.ClaimCreated)
	l = child
	expect("a fork's first", changed, events.HeaderResume)
}

// TestConfigSeed is the table of what the next request's configuration starts from.
func TestConfigSeed(t *testing.T) {
	type config = events.Config
	route := events.Options{Provider: "p", Model: "m"}
	header := func(c config, d events.AdapterDefaults) events.Header {
		return events.Header{Config: c, AdapterDefaults: d}
	}
	const (
		firstInstance = iota // the instance has recorded the header
		nextInstance         // another one has claimed the session since
	)
	tests := []struct {
		name       string
		worker     events.Options
		created    events.Options
		header     events.Header // zero: none yet
		instance   int
		configured events.Options // behind the header; zero: none
		want       config
	}{
		{name: "options alone", created: events.Options{Provider: "p", Model: "m", MaxTokens: 5}, want: config{Provider: "p", Model: "m", MaxTokens: 5}},
		{
			name: "the worker's defaults stand behind the session's", worker: events.Options{Provider: "w", Model: "x", Temperature: "0.5"},
			created: events.Options{Model: "m"}, want: config{Provider: "w", Model: "m", Temperature: "0.5"},
		},
		{
			name: "a later request starts from the header", created: route,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 7}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 7},
		},
		{
			name: "a later request drops what the adapter filled in", created: route,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 7}, events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true}),
			want:   config{Provider: "p", Model: "m"},
		},
		{
			name: "and only that", created: route,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 7}, events.AdapterDefaults{MaxTokens: true}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "low"},
		},
		{
			name: "an instance's first starts from the options", created: route, instance: nextInstance,
			header: header(config{Provider: "p", Model: "m", MaxTokens: 7, Temperature: "1"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m"},
		},
		{
			name: "and restores the effort", created: route, instance: nextInstance,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "low"},
		},
		{
			name: "not of another model", created: route, instance: nextInstance,
			header: header(config{Provider: "p", Model: "n", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m"},
		},
		{
			name: "not of another provider", created: route, instance: nextInstance,
			header: header(config{Provider: "q", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m"},
		},
		{
			name: "not one that the adapter filled in", created: route, instance: nextInstance,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{ReasoningEffort: true}),
			want:   config{Provider: "p", Model: "m"},
		},
		{
			name: "not over an explicit one", created: events.Options{Provider: "p", Model: "m", ReasoningEffort: "max"}, instance: nextInstance,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "max"},
		},
		{
			name: "configured since: another model leaves the effort behind", created: route, configured: events.Options{Model: "n"},
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "n"},
		},
		{
			name: "configured since: the same model keeps the effort", created: route, configured: events.Options{MaxTokens: 9},
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 9},
		},
		{
			name: "configured since: but not what the adapter filled in", created: route, configured: events.Options{Stop: []string{"END"}},
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low", MaxTokens: 7}, events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true}),
			want:   config{Provider: "p", Model: "m", Stop: []string{"END"}},
		},
		{
			name: "configured since, seen by the next instance", created: route, configured: events.Options{ReasoningEffort: "max"}, instance: nextInstance,
			header: header(config{Provider: "p", Model: "m", ReasoningEffort: "low"}, events.AdapterDefaults{}),
			want:   config{Provider: "p", Model: "m", ReasoningEffort: "max"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := foldtest.New()
			l.Created(tt.created)
			l.Claimed(events.ClaimCreated)
			l.TurnStart()
			l.StepStart()
			if tt.header.Config.Provider != "" {
				l.Header(tt.header)
			}
			if d := diff(events.Options{}, tt.configured); d != "" {
				l.Configured(tt.configured)
			}
			if tt.instance == nextInstance {
				l.Claimed(events.ClaimTakeover)
			}
			if d := diff(tt.want, l.State.ConfigSeed(tt.worker)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestConfiguredThenRecorded shows that options count as configured only until a header was recorded behind them.
func TestConfiguredThenRecorded(t *testing.T) {
	l := inStep()
	l.Header(events.Header{Config: events.Config{Provider: "p", Model: "m"}})
	l.Configured(events.Options{Model: "n"})
	l.Header(events.Header{Config: events.Config{Provider: "p", Model: "other", MaxTokens: 3}})
	want := events.Config{Provider: "p", Model: "other", MaxTokens: 3}
	if d := diff(want, l.State.ConfigSeed(events.Options{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestNewObjects follows the objects through two calls, a failed attempt and a header.
func TestNewObjects(t *testing.T) {
	l := inStep()
	first, second := l.TextObject("first"), l.TextObject("second")
	l.UserBlocks(first, second, first)
	h := foldtest.Header()
	h.System, h.SystemObject = "", l.Object([]byte("system"), events.TextMediaType)
	l.Header(h)
	expect := func(what string, want ...events.Block) {
		t.Helper()
		got := l.State.NewObjects()
		if len(got) != len(want) {
			t.Fatalf("%s: %d objects, want %d", what, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i].Object {
				t.Errorf("%s: object %d is %s, want %s", what, i, got[i], want[i].Object)
			}
		}
	}
	expect("in log order, each once", first, second, events.Block{Object: h.SystemObject})
	l.Stream()
	expect("none since the request")
	l.Failed(events.FailureServer)
	expect("none for the next attempt")
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", "{}"))
	l.ToolCall()
	third := l.TextObject("third")
	node := l.ToolResult(second, third)
	expect("a result's new one", third)
	fourth := l.TextObject("fourth")
	l.Prune(node, fourth)
	expect("a replacement's too", third, fourth)
}

// TestObjectsOf follows the objects of directives: the call that first names one lists it behind what came into use.
func TestObjectsOf(t *testing.T) {
	l := inStep()
	first, second, third := l.TextObject("first"), l.TextObject("second"), l.TextObject("third")
	l.UserBlocks(first)
	l.Header(foldtest.Header())
	b := l.AuxBody(events.PurposeTitle, events.Region{}, third, first, second, third)
	want := []objects.Ref{first.Object, third.Object, second.Object}
	if d := diff(want, b.Objects); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	l.Append(b)
	if n := len(l.State.NewObjects()); n != 0 {
		t.Errorf("%d objects came into use since the call, want none", n)
	}
	l.Failed(events.FailureServer)
	if b := l.AuxBody(events.PurposeTitle, events.Region{}, second); len(b.Objects) != 0 || b.Attempt != 2 {
		t.Errorf("the second attempt %d lists %d objects, want none", b.Attempt, len(b.Objects))
	}
	l.Title("a title")
	if b := l.AuxBody(events.PurposeTitle, events.Region{}); b.Attempt != 1 {
		t.Errorf("attempt %d behind a title, want 1", b.Attempt)
	}
}

// TestRequestOf shows what an auxiliary call asks: its own configuration, the region, the directive.
func TestRequestOf(t *testing.T) {
	l := begun()
	h := foldtest.Header()
	h.Config.ReasoningEffort, h.AdapterDefaults.ReasoningEffort = "high", true
	l.TurnStart()
	l.StepStart()
	l.User("one")
	l.Header(h)
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "two"))
	l.StepEnd()
	l.StepStart()
	l.User("three")
	nodes := l.State.Nodes()
	b := l.AuxBody(events.PurposeTitle, events.Region{Start: nodes[1], End: nodes[2]}, events.Text("Name this."))
	r, err := l.State.RequestOf(b)
	if err != nil {
		t.Fatal(err)
	}
	want := foldtest.Header()
	want.Config = foldtest.AuxConfig()
	if !r.Header.Equal(&want) || r.HeaderSeq == 0 || r.Surface != l.State.Position() {
		t.Errorf("header %+v of event %d, surface %+v", r.Header, r.HeaderSeq, r.Surface)
	}
	var texts []string
	for _, m := range r.Messages.All() {
		texts = append(texts, string(m.Role)+" "+m.Content[0].Text)
	}
	if d := diff([]string{"assistant two", "user three", "user Name this."}, texts); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	b.Auxiliary.Region.Start = 1
	if _, err := l.State.RequestOf(b); !errors.Is(err, fold.ErrNoRequest) {
		t.Errorf("error %v for a region that does not stand there, want ErrNoRequest", err)
	}
	if _, err := begun().State.RequestOf(b); !errors.Is(err, fold.ErrNoRequest) {
		t.Errorf("error %v without a header, want ErrNoRequest", err)
	}
}
