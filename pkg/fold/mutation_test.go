package fold_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// TestMutations deletes, swaps and doubles every single event of a log: only a log that misses its tail is valid.
func TestMutations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, foldtest.Options{MaxTurns: 1, Images: true, Forks: true})
		for i := range log {
			deleted := slices.Delete(slices.Clone(log), i, i+1)
			if err := foldAll(deleted); (err == nil) != (i == len(log)-1) {
				t.Errorf("event %d of %d deleted: %v", i+1, len(log), err)
			}
			doubled := slices.Insert(slices.Clone(log), i, log[i])
			refused(t, "doubled", i, doubled)
			if i > 0 {
				swapped := slices.Clone(log)
				swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
				refused(t, "swapped with the one before", i, swapped)
			}
		}
	})
}

func foldAll(log []events.Event) error {
	s := fold.New(foldtest.SessionID)
	if b, ok := log[0].Body.(*events.SessionCreated); ok {
		s = fold.New(b.Session)
	}
	for i := range log {
		if err := s.Apply(&log[i]); err != nil {
			return err
		}
	}
	return nil
}

func refused(t *rapid.T, what string, i int, log []events.Event) {
	t.Helper()
	if err := foldAll(log); !errors.Is(err, fold.ErrInvalidLog) {
		t.Errorf("event %d %s: error %v, want ErrInvalidLog", i+1, what, err)
	}
}

// TestRelinked deletes single events of a log and mends sequence and chain behind them, as somebody who rewrites
// history would. What is left breaks a rule all the same when the event was part of what later ones build on.
func TestRelinked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, foldtest.Options{MaxTurns: 1, Images: true})
		for i := range log {
			err := relinked(log, i)
			if err == nil && needed(log, i) {
				t.Errorf("event %d (%s) of %d can be cut out unnoticed", i+1, log[i].Type(), len(log))
			}
			if err != nil && !errors.Is(err, fold.ErrInvalidLog) && !errors.Is(err, events.ErrInvalid) {
				t.Errorf("event %d (%s) cut out: %v", i+1, log[i].Type(), err)
			}
		}
	})
}

// needed reports whether the rest of a log of finished turns cannot do without its event at i.
func needed(log []events.Event, i int) bool {
	switch log[i].Body.(type) {
	case *events.SessionCreated, *events.TurnStart, *events.StepStart, *events.LLMStream, *events.AssistantMessage,
		*events.ToolCall, *events.CompactionStart:
		return true
	case *events.LLMFailed: // a call may be open at the end of a log
		return slices.ContainsFunc(log[i+1:], func(e events.Event) bool {
			switch e.Body.(type) {
			case *events.TurnStart, *events.StepEnd, *events.LLMStream, *events.LLMRetry, *events.CompactionEnd, *events.SessionClosed:
				return true
			}
			return false
		})
	case *events.ToolResult:
		return log[i].Surface.Kind == events.SurfaceAppend
	case *events.AssistantChunk:
		return slices.ContainsFunc(log, func(e events.Event) bool { return slices.Contains(e.Sources, log[i].Seq) })
	}
	return false
}

// relinked folds log without its event at i. Sequences that later events name move with the events that they name.
func relinked(log []events.Event, i int) error {
	move := func(seq uint64) uint64 {
		if seq > uint64(i+1) {
			return seq - 1
		}
		return seq
	}
	s := fold.New(foldtest.SessionID)
	for k := range log {
		if k == i {
			continue
		}
		e := log[k]
		e.Seq, e.Prev = move(e.Seq), s.Head()
		e.Sources = slices.Clone(e.Sources)
		for j := range e.Sources {
			e.Sources[j] = move(e.Sources[j])
		}
		e.Surface.Region.Start, e.Surface.Region.End = move(e.Surface.Region.Start), move(e.Surface.Region.End)
		e.Body = movedBody(e.Body, move)
		if _, err := events.Encode(&e); err != nil {
			return err
		}
		if err := s.Apply(&e); err != nil {
			return err
		}
	}
	return nil
}

// movedBody returns the body with the sequences that it names moved.
func movedBody(body events.Body, move func(uint64) uint64) events.Body {
	switch b := body.(type) {
	case *events.LLMStream:
		moved := *b
		moved.Header, moved.Surface.Last = move(b.Header), move(b.Surface.Last)
		if moved.Auxiliary = b.Auxiliary.Clone(); moved.Auxiliary != nil && moved.Auxiliary.Region != (events.Region{}) {
			r := &moved.Auxiliary.Region
			r.Start, r.End = move(r.Start), move(r.End)
		}
		return &moved
	case *events.CompactionSummary:
		moved := *b
		moved.Region = events.Region{Start: move(b.Region.Start), End: move(b.Region.End)}
		moved.Shadowed = slices.Clone(b.Shadowed)
		for i := range moved.Shadowed {
			moved.Shadowed[i] = move(moved.Shadowed[i])
		}
		return &moved
	}
	return body
}
