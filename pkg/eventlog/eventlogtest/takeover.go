package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Fault makes one append of a writer go wrong.
type Fault struct {
	Name string
	// Wrap returns the session's log with the fault at the append of the event seq.
	Wrap func(t testing.TB, log eventlog.Log, session events.ID, seq uint64) eventlog.Log
}

// takeoverAppends is how many events the first writer wants to append.
const takeoverAppends = 5

// unanswered is how long an append may wait for an answer that a fault has dropped. A real append that takes longer is
// one with an unknown outcome, which the invariants allow for.
const unanswered = 250 * time.Millisecond

// order says when the first writer's append runs: relative to the second writer's reading of the log and to its first
// append.
type order string

const (
	beforeReading order = "before-the-log-is-read"
	beforeAppend  order = "between-reading-and-append"
	afterAppend   order = "after-the-append"
	racing        order = "at-the-same-time"
)

// RunTakeovers has a second writer take a session over from a first one, after each number of appends of the first, in
// every order of the append that is under way and the takeover, and with each fault hitting that append. Whatever
// happens, the log has no hole and no event twice, what was acknowledged is in it, what was refused is not, and at most
// one of the two goes on. [Run] runs it without faults.
func RunTakeovers(t *testing.T, open Open, faults ...Fault) {
	t.Helper()
	none := Fault{Name: "no-fault", Wrap: func(_ testing.TB, log eventlog.Log, _ events.ID, _ uint64) eventlog.Log { return log }}
	for _, fault := range append([]Fault{none}, faults...) {
		for _, order := range []order{beforeReading, beforeAppend, afterAppend, racing} {
			for k := range uint64(takeoverAppends) {
				t.Run(fmt.Sprintf("Takeover/%s/%s/%d", fault.Name, order, k), func(t *testing.T) {
					t.Parallel()
					takeOver(t, open, fault, order, k)
				})
			}
		}
	}
}

// contender is one of the two writers, with what it was told about its events.
type contender struct {
	name   string
	writer *eventlog.Writer

	mu      sync.Mutex
	ids     func() events.ID
	current events.ID
	stored  map[events.ID]uint64 // acknowledged
	refused map[events.ID]error  // certainly not stored
}

func contend(t *testing.T, name string, id events.ID, log eventlog.Log, last uint64, hash events.Hash) *contender {
	t.Helper()
	c := &contender{name: name, ids: IDs(), stored: make(map[events.ID]uint64), refused: make(map[events.ID]error)}
	c.writer = eventlog.NewWriter(log, id, last, hash, clock, func() events.ID {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.current = c.ids()
		return c.current
	})
	return c
}

// append appends the next event and notes the outcome. It must not be called concurrently for one contender.
func (c *contender) append(t *testing.T) {
	stopped := c.writer.Err()
	last, _ := c.writer.Last()
	ctx, cancel := context.WithTimeout(t.Context(), unanswered)
	defer cancel()
	e, err := c.writer.Append(ctx, body(last+1))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case stopped != nil && !errors.Is(err, eventlog.ErrWriterStopped):
		t.Errorf("%s writer was stopped by %v and then appended: %v", c.name, stopped, err)
	case stopped != nil:
	case err == nil:
		c.stored[e.ID] = e.Seq
	case errors.Is(err, eventlog.ErrUnavailable): // unknown
	case errors.Is(err, eventlog.ErrLostOwnership):
		c.refused[c.current] = err
	default:
		t.Errorf("%s writer: append event %d: %v, want success, ErrLostOwnership or ErrUnavailable", c.name, last+1, err)
	}
	if err != nil && c.writer.Err() == nil {
		t.Errorf("%s writer goes on after %v", c.name, err)
	}
}

func takeOver(t *testing.T, open Open, fault Fault, order order, k uint64) {
	store := open(t)
	id := freshSession()
	log, err := store.Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t).Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	first := contend(t, "first", id, fault.Wrap(t, log, id, k+1), 0, events.Hash{})
	for range k {
		first.append(t)
	}
	read := func() *contender {
		list := Verify(t, other)
		var hash events.Hash
		if n := len(list); n > 0 {
			hash, _ = list[n-1].Hash()
		}
		return contend(t, "second", id, other, uint64(len(list)), hash)
	}
	var second *contender
	switch order {
	case beforeReading:
		first.append(t)
		second = read()
		second.append(t)
	case beforeAppend:
		second = read()
		first.append(t)
		second.append(t)
	case afterAppend:
		second = read()
		second.append(t)
		first.append(t)
	case racing:
		second = read()
		var wg sync.WaitGroup
		wg.Go(func() { first.append(t) })
		wg.Go(func() { second.append(t) })
		wg.Wait()
	}
	for range takeoverAppends { // who has lost learns of it now at the latest
		second.append(t)
		first.append(t)
	}
	if first.writer.Err() == nil && second.writer.Err() == nil {
		t.Error("both writers go on")
	}
	checkOutcome(t, other, first, second)

	// Whatever happened, the session goes on.
	third := newWriter(t, id, other)
	last, _ := third.Last()
	for n := range uint64(2) {
		if _, err := third.Append(t.Context(), body(last+1+n)); err != nil {
			t.Errorf("a third writer: %v", err)
		}
	}
	checkOutcome(t, other, first, second)
}

// checkOutcome compares the log with what the writers were told.
func checkOutcome(t *testing.T, log eventlog.Log, writers ...*contender) {
	t.Helper()
	at := make(map[events.ID]uint64)
	for _, e := range Verify(t, log) {
		at[e.ID] = e.Seq
	}
	for _, w := range writers {
		for id, seq := range w.stored {
			if at[id] != seq {
				t.Errorf("%s writer: event %s was acknowledged at %d and stands at %d", w.name, id, seq, at[id])
			}
		}
		for id, err := range w.refused {
			if at[id] != 0 {
				t.Errorf("%s writer: event %s was refused (%v) and stands at %d", w.name, id, err, at[id])
			}
		}
	}
}
