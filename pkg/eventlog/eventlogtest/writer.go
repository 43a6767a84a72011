package eventlogtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// newWriter returns a writer that goes on after what the log holds now.
func newWriter(t testing.TB, id events.ID, log eventlog.Log) *eventlog.Writer {
	t.Helper()
	list := Verify(t, log)
	var hash events.Hash
	if n := len(list); n > 0 {
		hash, _ = list[n-1].Hash()
	}
	return eventlog.NewWriter(log, id, uint64(len(list)), hash, clock, IDs())
}

func testWriter(t *testing.T, s *suite) {
	id, log := s.create(t)
	w := newWriter(t, id, log)
	for n := uint64(1); n <= 10; n++ {
		e, err := w.Append(t.Context(), body(n))
		if err != nil {
			t.Fatal(err)
		}
		if last, hash := w.Last(); e.Seq != n || last != n || e.Time != clock().UnixMilli() {
			t.Fatalf("event %d: %+v, writer at %d", n, e, last)
		} else if sum, ok := e.Hash(); !ok || sum != hash {
			t.Fatalf("event %d: the writer's hash is not the event's", n)
		}
	}
	message := &events.UserMessage{Message: events.Message{
		ID: "m1", Role: events.RoleUser, Content: []events.Block{{Type: events.BlockText, Text: "hello"}}, Source: events.Source{Kind: events.SourceUser},
	}}
	if _, err := w.Append(t.Context(), message, eventlog.WithSurface(events.AppendOp()), eventlog.WithSources(3, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(t.Context(), &events.SessionTitle{Title: "a title"}, eventlog.WithIgnorable()); err != nil {
		t.Fatal(err)
	}
	got := Verify(t, log)
	if len(got) != 12 || got[10].Surface != events.AppendOp() || len(got[10].Sources) != 2 || !got[11].Ignorable {
		t.Fatalf("the log holds %d events, the last ones %+v", len(got), got[10:])
	}
}

// refusing is a log whose next appends end in the given errors without being performed.
type refusing struct {
	eventlog.Log
	errs []error
}

func (l *refusing) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return err
	}
	return l.Log.Append(ctx, e, payload)
}

func (l *refusing) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return l.Log.Read(ctx, from)
}

func testWriterRefusals(t *testing.T, s *suite) {
	id, inner := s.create(t)
	log := &refusing{Log: inner}
	w := newWriter(t, id, log)
	for n, err := range []error{eventlog.ErrFull, eventlog.ErrTooLarge, eventlog.ErrPermission, eventlog.ErrNotFound} {
		log.errs = []error{fmt.Errorf("wrapped: %w", err)}
		if _, got := w.Append(t.Context(), body(uint64(n+1))); !errors.Is(got, err) {
			t.Fatalf("append: %v, want %v", got, err)
		}
		if _, got := w.Append(t.Context(), body(uint64(n+1))); got != nil {
			t.Fatalf("append after %v: %v, want success", err, got)
		}
	}
	if _, err := w.Append(t.Context(), &events.TurnStart{Turn: -1}); !errors.Is(err, events.ErrInvalid) {
		t.Fatalf("an invalid event: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Append(ended, body(5)); !errors.Is(err, context.Canceled) {
		t.Fatalf("a context that has ended: %v", err)
	}
	if _, err := w.Append(t.Context(), body(5)); err != nil {
		t.Fatalf("append after refusals: %v", err)
	}
	for _, err := range []error{
		fmt.Errorf("%w: %w", eventlog.ErrUnavailable, eventlog.ErrFull), eventlog.ErrCorrupt, eventlog.ErrGap, errors.New("another error"),
	} {
		w := newWriter(t, id, log)
		log.errs = []error{err}
		if _, got := w.Append(t.Context(), body(6)); !errors.Is(got, err) || errors.Is(got, eventlog.ErrWriterStopped) {
			t.Fatalf("append: %v, want %v", got, err)
		}
		_, got := w.Append(t.Context(), body(6))
		if !errors.Is(got, eventlog.ErrWriterStopped) || !errors.Is(got, err) || !errors.Is(w.Err(), eventlog.ErrWriterStopped) {
			t.Fatalf("append after %v: %v, want ErrWriterStopped with the cause", err, got)
		}
	}
	if got := Verify(t, inner); len(got) != 5 {
		t.Fatalf("%d events, want 5", len(got))
	}
}

func testWriterConcurrently(t *testing.T, s *suite) {
	id, log := s.create(t)
	w := newWriter(t, id, log)
	if _, err := w.Append(t.Context(), body(1)); err != nil {
		t.Fatal(err)
	}
	const writers, each = 4, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := w.Append(t.Context(), &events.TurnStart{Turn: 1}); err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := Verify(t, log); len(got) != 1+writers*each {
		t.Fatalf("%d events, want %d", len(got), 1+writers*each)
	}
}
