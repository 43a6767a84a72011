package ahead_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"runtime"
	"sync/atomic"
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

// sized is a log of n messages with payloads of a size, which are no events. It counts what it has given.
type sized struct {
	eventlog.Log
	n, size int
	given   atomic.Int64
}

func (s *sized) Read(_ context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for seq := from; seq <= uint64(s.n); seq++ {
			s.given.Add(int64(s.size))
			if !yield(eventlog.Message{Seq: seq, Payload: make([]byte, s.size)}, nil) {
				return
			}
		}
	}
}

// TestBytes: however large the messages are, of those that nobody has taken only so many bytes are held.
func TestBytes(t *testing.T) {
	const bound = 6 << 20 // with what is read while there is no room
	for _, tt := range []struct{ n, size int }{{5000, 100}, {3000, 2 << 10}, {1000, 100 << 10}, {300, 1 << 20}, {257, 5 << 20}} {
		log := &sized{n: tt.n, size: tt.size}
		var most int64
		next := uint64(1)
		for m, err := range ahead.Read(t.Context(), log, 1, uint64(tt.n)) {
			if err != nil || m.Seq != next {
				t.Fatalf("message %d: %d, %v", next, m.Seq, err)
			}
			runtime.Gosched()
			most = max(most, log.given.Load()-int64(next-1)*int64(tt.size))
			next++
		}
		if most > bound+3*int64(tt.size) {
			t.Errorf("%d messages of %d bytes: %d bytes were held", tt.n, tt.size, most)
		}
		if next != uint64(tt.n)+1 {
			t.Errorf("%d messages of %d bytes: the read ended before message %d", tt.n, tt.size, next)
		}
	}
	for _, err := range ahead.Read(t.Context(), &sized{n: 1000, size: 1 << 20}, 1, 1000) { // nobody takes them
		if err != nil {
			t.Fatal(err)
		}
		break
	}
}
