package ahead_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/ahead"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stored returns a log of n events.
func stored(t *testing.T, n int) (eventlog.Log, *foldtest.Log) {
	t.Helper()
	l := foldtest.SessionLog(n, nil)
	log, err := eventlog.NewMemory(time.Now).Create(t.Context(), foldtest.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Events {
		if err := log.Append(t.Context(), &l.Events[i], l.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	return log, l
}

// edited changes what a log gives, and may fail.
type edited struct {
	eventlog.Log
	edit func(m *eventlog.Message) error
}

func (e *edited) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for m, err := range e.Log.Read(ctx, from) {
			if err == nil {
				err = e.edit(&m)
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// TestSame compares a read with that of the log, from everywhere and with events that are none.
func TestSame(t *testing.T) {
	const n = 1000
	log, l := stored(t, n)
	odd := &edited{Log: log, edit: func(m *eventlog.Message) error {
		switch m.Seq {
		case 500:
			m.Payload = []byte("\xff")
		case 600:
			m.ID = foldtest.ID(1, 1)
		}
		return nil
	}}
	for _, from := range []uint64{1, 2, 64, 65, 500, 744, 745, 1000, 1001} {
		next := max(from, 1)
		for m, err := range ahead.Read(t.Context(), odd, from, n) {
			if err != nil || m.Seq != next {
				t.Fatalf("event %d: %d, %v", next, m.Seq, err)
			}
			next++
			e, err := m.Event()
			switch {
			case m.Seq == 500 && !errors.Is(err, events.ErrSyntax), m.Seq == 600 && !errors.Is(err, eventlog.ErrCorrupt):
				t.Errorf("event %d: %v", m.Seq, err)
			case m.Seq == 500, m.Seq == 600:
				continue
			case err != nil || !bytes.Equal(m.Payload, l.Payloads[m.Seq-1]) || e.ID != l.Events[m.Seq-1].ID:
				t.Errorf("event %d is another: %v", m.Seq, err)
			}
		}
		if next != n+1 {
			t.Errorf("from %d: the read ended before event %d", from, next)
		}
	}
}

// TestEnds ends reads in their middle: by the reader, by the log, and by the context.
func TestEnds(t *testing.T) {
	const n = 2000
	log, _ := stored(t, n)
	for m, err := range ahead.Read(t.Context(), log, 1, n) {
		if err != nil {
			t.Fatal(err)
		}
		if m.Seq == 100 {
			break
		}
	}
	failing := &edited{Log: log, edit: func(m *eventlog.Message) error {
		if m.Seq == 777 {
			return eventlog.ErrUnavailable
		}
		return nil
	}}
	var last uint64
	var failed error
	for m, err := range ahead.Read(t.Context(), failing, 1, n) {
		if failed != nil {
			t.Fatal("it goes on behind an error")
		}
		last, failed = max(last, m.Seq), err
	}
	if last != 776 || !errors.Is(failed, eventlog.ErrUnavailable) {
		t.Errorf("the read ended at event %d: %v", last, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed = nil
	for m, err := range ahead.Read(ctx, log, 1, n) {
		if failed = err; m.Seq == 100 {
			cancel()
		}
	}
	if !errors.Is(failed, context.Canceled) {
		t.Errorf("the context ended: %v", failed)
	}
}
