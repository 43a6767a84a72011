package audit_test

import (
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// offering returns a log of two turns whose headers have the tools list and read in an object, whatever the session's
// options say; set, unless empty, are the options from the second turn on.
func offering(created, set []string) *foldtest.Log {
	l := &foldtest.Log{State: fold.New(foldtest.ID(1_700_000_000_000, 1)), Objects: new(objects.Set)}
	l.Body = audittest.Bodies()
	l.Created(events.Options{Provider: "deepseek", Model: "deepseek-chat", Tools: created})
	l.Claimed(events.ClaimCreated)
	h := foldtest.Header()
	tools, err := events.AppendTools(nil, h.Tools)
	if err != nil {
		panic(err)
	}
	h.Tools, h.ToolsObject = nil, l.Object(tools, events.ToolsMediaType)
	turn := func() {
		l.TurnStart()
		l.StepStart()
		l.User("hello")
		if reason, owed := l.State.HeaderOwed(&h); owed {
			l.Append(&events.RequestHeader{Header: h, Reason: reason})
		}
		l.Context(65536)
		l.Reply(events.FinishStop, foldtest.TextBlock(0, "Hi."))
		l.StepEnd()
		l.TurnEnd(events.TurnCompleted)
	}
	turn()
	if len(set) > 0 {
		l.Configured(events.Options{Tools: set})
	}
	turn()
	return l
}

// TestOfferedTools: where the tools stand is the worker's to choose, and which may be offered is not.
func TestOfferedTools(t *testing.T) {
	const other = audit.InvalidLog
	both := []string{"list", "read"}
	for name, c := range map[string]struct {
		created, set []string
		want         [2]audit.Result
	}{
		"no options":           {nil, nil, [2]audit.Result{audit.Match, audit.Match}},
		"both":                 {both, nil, [2]audit.Result{audit.Match, audit.Match}},
		"more than there are":  {append([]string{"write"}, both...), nil, [2]audit.Result{audit.Match, audit.Match}},
		"one":                  {[]string{"read"}, nil, [2]audit.Result{other, other}},
		"none of them":         {[]string{"write"}, nil, [2]audit.Result{other, other}},
		"set later":            {nil, []string{"list"}, [2]audit.Result{audit.Match, other}},
		"less later":           {both, []string{"list"}, [2]audit.Result{audit.Match, other}},
		"more later":           {[]string{"list"}, both, [2]audit.Result{other, audit.Match}},
		"the same ones, later": {both, both, [2]audit.Result{audit.Match, audit.Match}},
	} {
		session := audittest.Of(name, offering(c.created, c.set))
		for _, cold := range []bool{false, true} {
			check := session.LogCheck()
			check.Cold = cold
			report, err := audit.CheckLog(t.Context(), check)
			if err != nil {
				t.Fatal(err)
			}
			var got [2]audit.Result
			requests := 0
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				if v.Kind != audit.KindRequest {
					if v.Result != audit.Match {
						t.Errorf("%s, cold %t: %v", name, cold, v)
					}
					continue
				}
				got[requests] = v.Result
				requests++
				if v.Result == other && v.Rule != string(fold.RuleConfig) {
					t.Errorf("%s, cold %t: rule %q: %s", name, cold, v.Rule, v.Reason)
				}
			}
			if got != c.want {
				t.Errorf("%s, cold %t: %v, want %v", name, cold, got, c.want)
			}
		}
	}
}

// TestOfferedObject judges the object before what it offers.
func TestOfferedObject(t *testing.T) {
	l := offering([]string{"read"}, nil)
	session := audittest.Of("tools", l)
	h, _ := l.State.Header()
	d := h.ToolsObject.Digest
	for want, store := range map[audit.Result]*audittest.Store{
		audit.MissingObject: {Source: session.Source, Missing: map[objects.Digest]bool{d: true}},
		audit.CorruptObject: {Source: session.Source, Altered: map[objects.Digest][]byte{d: []byte("[]")}},
		audit.CouldNotCheck: {Source: session.Source, Fail: objects.ErrUnavailable},
	} {
		check := session.LogCheck()
		check.Objects = audit.FromStore(store)
		report, err := audit.CheckLog(t.Context(), check)
		if err != nil {
			t.Fatal(err)
		}
		if v := report.Verdicts[0]; v.Kind != audit.KindRequest || v.Result != want {
			t.Errorf("%v, want %s", v, want)
		}
	}
}
