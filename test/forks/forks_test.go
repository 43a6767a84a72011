// Package forks_test forks sessions with the real programs and looks at what verifiers and projectors say of them, also
// when a log is changed behind their backs.
package forks_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// family is a session of two turns, a fork of it behind its first turn with another system prompt, and a fork of that
// fork; each has gone on by a turn.
type family struct {
	*system
	parent, fork, again events.ID
	at                  uint64 // where the fork starts
}

func newFamily(t *testing.T) *family {
	t.Helper()
	f := &family{system: newSystem(t), parent: newID(), fork: newID(), again: newID()}
	f.work()
	f.prompt(f.parent, true, "one")
	f.at = f.turns(f.parent, 1)
	f.prompt(f.parent, false, "two")
	f.turns(f.parent, 2)
	f.send(f.fork, events.Input{
		Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: f.parent, Seq: f.at},
		Options: events.Options{System: "Be loud."}, Labels: []events.Label{{Name: "try", Value: "b"}},
	})
	f.prompt(f.fork, false, "another two")
	f.turns(f.fork, 2)
	f.send(f.again, events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: f.fork}})
	f.prompt(f.again, false, "three")
	f.turns(f.again, 3)
	f.prompt(f.parent, false, "three")
	f.turns(f.parent, 3)
	return f
}

// TestFamily wants every log of a family to be verified whole, to hold what was said before the fork and behind it, and its
// own steps to be charged to it, each once.
func TestFamily(t *testing.T) {
	f := newFamily(t)
	stop := f.verifier()
	for id, want := range map[events.ID]struct {
		said    []string
		lineage audit.Lineage
		parent  events.ID
	}{
		f.parent: {[]string{"one", "two", "three"}, audit.LineageNone, ""},
		f.fork:   {[]string{"one", "another two"}, audit.LineageConfirmed, f.parent},
		f.again:  {[]string{"one", "another two", "three"}, audit.LineageConfirmed, f.fork},
	} {
		if diff := cmp.Diff(want.said, f.said(id)); diff != "" {
			t.Errorf("session %s: %s", id, diff)
		}
		f.untilVerified(id)
		r := f.check(id)
		if !r.AllMatch() || r.Requests != len(want.said) || r.Confirmed == 0 || r.Lineage != want.lineage || r.Parent.ID != want.parent {
			t.Errorf("session %s: %d requests, %d confirmed, lineage %q of %s: %v", id, r.Requests, r.Confirmed, r.Lineage, r.Parent.ID, r.Verdicts)
		}
	}
	stop()
	if r := f.check(f.fork); r.Parent.Seq != f.at {
		t.Errorf("the fork starts behind event %d, not %d", r.Parent.Seq, f.at)
	}
	defer f.projector()()
	for id, want := range map[events.ID][]project.Cause{
		f.parent: {project.CauseFirstRequest, project.CauseNone, project.CauseNone},
		f.fork:   {project.CauseFork}, // it has another system prompt
		f.again:  {project.CauseNone}, // the provider has its parent's prefix still
	} {
		if diff := cmp.Diff(want, f.causes(id, len(want))); diff != "" {
			t.Errorf("session %s: %s", id, diff)
		}
	}
}

// TestChangedParent changes a copied event in the parent's log. The parent's signed verdicts show that, and its fork says
// that the parent is not any more what was forked; the fork's own requests are as good as ever.
func TestChangedParent(t *testing.T) {
	f := newFamily(t)
	stop := f.verifier()
	for _, id := range []events.ID{f.parent, f.fork, f.again} {
		f.untilVerified(id)
	}
	stop()
	f.replace(f.parent, later(f.events(f.parent), 3))
	f.wantFaults(f.parent, audit.RuleSigned)
	f.wantFaults(f.fork, audit.RuleLineage)
	f.wantFaults(f.again)
	stop = f.verifier() // it looks at what is at rest
	f.untilFault(f.parent, audit.RuleSigned)
	f.untilFault(f.fork, audit.RuleLineage)
	stop()
	if got := f.faults(f.again); len(got) > 0 {
		t.Errorf("the fork of the fork: %v", got)
	}
}

// TestChangedFork changes a copied event in a fork's log. With the hash that it names as it was, the log is at fault by
// itself; with one that fits, only the parent's log shows it.
func TestChangedFork(t *testing.T) {
	f := newFamily(t)
	changed := later(f.events(f.fork), 3)
	f.replace(f.fork, changed)
	r := f.check(f.fork)
	if i := slices.IndexFunc(r.Verdicts, func(v audit.Verdict) bool { return v.Rule == "seed" }); i < 0 || r.Matches == r.Requests {
		t.Errorf("a changed copy: %v", r.Verdicts)
	}
	if r.Lineage != audit.LineageConfirmed {
		t.Errorf("a changed copy: lineage %q", r.Lineage)
	}
	never := later(f.events(f.parent), 3)[:f.at]
	hash, _ := never[f.at-1].Hash()
	created, _ := changed[0].Body.(*events.SessionCreated)
	created.Parent.Chain = hash
	f.replace(f.fork, linked(changed))
	f.wantFaults(f.fork, audit.RuleLineage)
	stop := f.verifier()
	f.untilFault(f.fork, audit.RuleLineage)
	f.untilVerified(f.fork)
	stop()
	if diff := cmp.Diff([]string{audit.RuleLineage}, f.faults(f.fork)); diff != "" {
		t.Error(diff)
	}
}

// TestParentGone deletes the parent's stream: the fork stands for itself, and goes on.
func TestParentGone(t *testing.T) {
	f := newFamily(t)
	f.deleteStream(f.parent)
	stop := f.verifier()
	f.prompt(f.fork, false, "three")
	f.turns(f.fork, 3)
	f.untilVerified(f.fork)
	stop()
	if r := f.check(f.fork); !r.AllMatch() || r.Requests != 3 || r.Lineage != audit.LineageUnknown || r.Parent.ID != f.parent {
		t.Errorf("%d requests, lineage %q: %v", r.Requests, r.Lineage, r.Verdicts)
	}
	if got := f.faults(f.fork); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
