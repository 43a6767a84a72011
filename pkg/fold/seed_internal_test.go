package fold

import (
	"math"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// TestSeedsOfAnyLength has lengths that events refuses: the rule does not count beyond 64 bits all the same.
func TestSeedsOfAnyLength(t *testing.T) {
	for _, n := range []uint64{math.MaxInt64, math.MaxUint64 - 2, math.MaxUint64 - 1, math.MaxUint64} {
		s := State{seq: 1, created: &events.SessionCreated{SeedLength: n}}
		e := events.Event{Seq: 2, Body: new(events.SessionEndSeed)}
		if s.seedBroken(&e) {
			t.Errorf("a seed of %d events: a copied session/end-seed is refused", n)
		}
		s.seq, s.endSeed, s.turn, s.turnOpen = 2, 2, 1, true
		if err := s.checkSeed(&e); err != nil {
			t.Errorf("a seed of %d events: %v", n, err)
		}
		if _, _, open := s.Seeding(); !open {
			t.Errorf("a seed of %d events has come to its end", n)
		}
	}
}
