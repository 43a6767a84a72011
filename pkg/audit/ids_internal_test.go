package audit

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// TestEventIDs compares the set with a plain one, for IDs that ascend, that go back here and there, and that come in any
// order.
func TestEventIDs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var s eventIDs
		plain := make(map[events.ID]bool)
		ms := int64(1_700_000_000_000)
		wild := rapid.Bool().Draw(rt, "in any order")
		for range rapid.IntRange(0, 300).Draw(rt, "events") {
			switch {
			case wild:
				ms = rapid.Int64Range(0, 1<<48-1).Draw(rt, "ms")
			case rapid.IntRange(0, 20).Draw(rt, "back") == 0:
				ms -= rapid.Int64Range(0, 5000).Draw(rt, "by")
			default:
				ms += rapid.Int64Range(0, 50).Draw(rt, "on")
			}
			id := foldtest.ID(ms, rapid.Uint64Range(0, 3).Draw(rt, "random"))
			if got := s.add(id); got == plain[id] {
				rt.Fatalf("%s: new %t, want %t", id, got, !plain[id])
			}
			plain[id] = true
		}
		held := len(s.rest)
		for _, run := range s.runs {
			held += len(run)
		}
		if held != len(plain) || len(s.runs) > maxRuns {
			rt.Fatalf("holds %d of %d IDs in %d runs", held, len(plain), len(s.runs))
		}
	})
}

// TestBinaryID reads IDs as numbers.
func TestBinaryID(t *testing.T) {
	for id, want := range map[events.ID]binaryID{
		"00000000000000000000000000": {0, 0},
		"0000000000000000000000000Z": {0, 31},
		"0000000000000G000000000000": {1, 0},
		"7ZZZZZZZZZZZZZZZZZZZZZZZZZ": {1<<64 - 1, 1<<64 - 1},
	} {
		if got := binaryOf(id); got != want {
			t.Errorf("%s: %x, want %x", id, got, want)
		}
	}
}

// TestEventIDsMemory has a long log in the order of a writer's clock, and a fork of it: nothing goes into the map.
func TestEventIDsMemory(t *testing.T) {
	var s eventIDs
	s.add(foldtest.ID(1<<40, 0)) // a fork's first event
	const n = 10_000
	for i := range uint64(n) {
		if !s.add(foldtest.ID(int64(i), i)) {
			t.Fatalf("event %d: not new", i)
		}
	}
	if len(s.runs) != 2 || len(s.rest) != 0 || cap(s.runs[1]) > n*3/2 {
		t.Errorf("%d runs, %d elsewhere, %d IDs of room", len(s.runs), len(s.rest), cap(s.runs[1]))
	}
}
