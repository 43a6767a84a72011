package fold_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// TestForks forks a log behind every event: that works at boundaries, and only there. What a fork shows is what the
// parent showed, and a copy that was changed is noticed.
func TestForks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, foldtest.Options{MaxTurns: 1, Images: true, Forks: true})
		for n := 1; n <= len(l.Events); n++ {
			parent := l.Prefix(n)
			err := copies(l, n, nil)
			if boundary := parent.State.AtBoundary(); (err == nil) != boundary {
				t.Fatalf("fork behind event %d (a boundary: %t): %v", n, boundary, err)
			}
			if err != nil {
				refusedBy(t, err, fold.RuleSeed)
				continue
			}
			f := l.OpenFork(n, events.Options{MaxTokens: 1})
			if d := diff(listOf(parent.State.Messages()), listOf(f.State.Messages())); d != "" {
				t.Fatalf("fork behind event %d (-parent +fork):\n%s", n, d)
			}
			if n > 1 {
				changed := rapid.IntRange(2, n).Draw(t, "changed")
				refusedBy(t, copyChanged(l, n, changed), fold.RuleSeed)
			}
			f.Turn("another", "way")
		}
	})
}

func refusedBy(t *rapid.T, err error, rule fold.Rule) {
	t.Helper()
	var broken *fold.Error
	if !errors.As(err, &broken) || broken.Rule != rule {
		t.Fatalf("error %v, want rule %q broken", err, rule)
	}
}

// copyChanged folds a fork of the first n events of l in which the time of one copy is another, and returns the error.
func copyChanged(l *foldtest.Log, n, changed int) error {
	log := slices.Clone(l.Events[:n])
	log[changed-1].Time++
	return copiesOf(l, log, nil)
}

// TestSeeding follows what a fork has still to copy.
func TestSeeding(t *testing.T) {
	l := begun()
	n := l.Turn("a", "b")
	f := l.Fork(int(n))
	for seq := uint64(1); seq <= f.Len(); seq++ {
		from, to, open := f.Prefix(int(seq)).State.Seeding()
		if want := seq <= n; open != want || open && (from != seq+1 || to != n) {
			t.Errorf("after event %d: [%d,%d], open %t; want [%d,%d], %t", seq, from, to, open, seq+1, n, want)
		}
	}
	if _, _, open := l.State.Seeding(); open {
		t.Error("a session that is no fork is seeding")
	}
	long := foldtest.New()
	long.Append(&events.SessionCreated{SeedLength: math.MaxInt64})
	long.Claimed(events.ClaimCreated)
	long.Append(new(events.SessionEndSeed)) // a copy, of a fork's fork
	if from, to, open := long.State.Seeding(); from != 4 || to != 1<<63 || !open {
		t.Errorf("the longest seed: [%d,%d], open %t; want [4,2^63], true", from, to, open)
	}
	again := f.Fork(int(f.Len()))
	if _, _, open := again.State.Seeding(); open {
		t.Error("a copy that ends in session/end-seed still wants one")
	}
}
