package readahead_test

import (
	"bytes"
	"errors"
	"iter"
	"testing"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/readahead"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("the line is cut")

// stored returns the log's messages, and err behind them unless it is nil.
func stored(l *foldtest.Log, err error) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for i := range l.Events {
			e := &l.Events[i]
			if !yield(eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: bytes.Clone(l.Payloads[i])}, nil) {
				return
			}
		}
		if err != nil {
			yield(eventlog.Message{}, err)
		}
	}
}

func TestEvents(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 128, 1000, 5000} {
		for _, broken := range []error{nil, errBroken} {
			l := foldtest.SessionLog(n, nil)
			s := fold.New(foldtest.SessionID)
			var last error
			for e, err := range readahead.Events(stored(l, broken)) {
				if last = err; err != nil {
					continue
				}
				if err := s.Apply(&e); err != nil { // knows order and hashes
					t.Fatal(err)
				}
			}
			if s.Seq() != uint64(n) || s.Head() != l.State.Head() || !errors.Is(last, broken) {
				t.Errorf("%d events: ended at %d with %v", n, s.Seq(), last)
			}
		}
	}
	for e, err := range readahead.Events(func(func(eventlog.Message, error) bool) {}) {
		t.Errorf("event %d out of nothing: %v", e.Seq, err)
	}
}

func TestStopEarly(t *testing.T) {
	l := foldtest.SessionLog(2000, nil)
	for _, n := range []uint64{1, 64, 65, 500, 2000} {
		for e, err := range readahead.Events(stored(l, errBroken)) {
			if err != nil || e.Seq > n {
				t.Fatalf("event %d after the receiver stopped at %d: %v", e.Seq, n, err)
			}
			if e.Seq == n {
				break
			}
		}
	}
}

// TestBadMessages puts each fault at several places: the events before it come, and nothing behind it.
func TestBadMessages(t *testing.T) {
	l := foldtest.SessionLog(300, nil)
	for name, c := range map[string]struct {
		spoil func(m *eventlog.Message)
		want  error
	}{
		"sequence": {func(m *eventlog.Message) { m.Seq++ }, eventlog.ErrCorrupt},
		"id":       {func(m *eventlog.Message) { m.ID = foldtest.SessionID }, eventlog.ErrCorrupt},
		"type":     {func(m *eventlog.Message) { m.Type = "session/closed" }, eventlog.ErrCorrupt},
		"payload":  {func(m *eventlog.Message) { m.Payload = m.Payload[1:] }, events.ErrSyntax},
		"nothing":  {func(m *eventlog.Message) { m.Payload = nil }, events.ErrSyntax},
	} {
		for _, at := range []uint64{1, 2, 64, 65, 299, 300} {
			spoilt := func(yield func(eventlog.Message, error) bool) {
				for m, err := range stored(l, errBroken) {
					if m.Seq == at {
						c.spoil(&m)
					}
					if !yield(m, err) {
						return
					}
				}
			}
			var seen uint64
			var last error
			for _, err := range readahead.Events(spoilt) {
				if err == nil {
					seen++
				}
				last = err
			}
			if seen != at-1 || !errors.Is(last, c.want) {
				t.Errorf("%s at event %d: %d events, %v", name, at, seen, last)
			}
		}
	}
}
