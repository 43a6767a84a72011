package faults_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/faults"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTransparent shows that a store without a decision to fail is the store itself.
func TestTransparent(t *testing.T) {
	t.Parallel()
	store := faults.NewStore(eventlog.NewMemory(time.Now), func(events.ID, faults.Op, uint64) faults.Fault { return faults.Fault{} })
	eventlogtest.Run(t, func(testing.TB) eventlog.Store { return store })
}

func TestTakeoverWithFaults(t *testing.T) {
	t.Parallel()
	store := eventlog.NewMemory(time.Now)
	eventlogtest.RunTakeovers(t, func(testing.TB) eventlog.Store { return store },
		at("lost", faults.Lost()), at("fail-after-persist", faults.FailAfterPersist()),
		at("duplicate", faults.Duplicate()), at("drop-ack", faults.DropAck()))
}

// at returns the fault for the suite.
func at(name string, fault faults.Fault) eventlogtest.Fault {
	return eventlogtest.Fault{Name: name, Wrap: func(_ testing.TB, log eventlog.Log, session events.ID, seq uint64) eventlog.Log {
		return faults.NewLog(log, session, func(_ events.ID, op faults.Op, at uint64) faults.Fault {
			if op == faults.Append && at == seq {
				return fault
			}
			return faults.Fault{}
		})
	}}
}

// TestFaults shows what each fault does to an append: what the caller is told, and what the log holds.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		fault  faults.Fault
		want   error
		stored uint64
	}{
		{"none", faults.Fault{}, nil, 1},
		{"fail before", faults.FailBefore(eventlog.ErrFull), eventlog.ErrFull, 0},
		{"lost", faults.Lost(), eventlog.ErrUnavailable, 0},
		{"fail after persist", faults.FailAfterPersist(), eventlog.ErrUnavailable, 1},
		{"duplicate", faults.Duplicate(), nil, 1},
		{"drop ack", faults.DropAck(), context.DeadlineExceeded, 1},
		{"delayed for ever", faults.Delay(nil), context.DeadlineExceeded, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner, err := eventlog.NewMemory(time.Now).Create(t.Context(), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
				if err != nil {
					t.Fatal(err)
				}
				log := at(tt.name, tt.fault).Wrap(t, inner, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 1)
				e := events.Event{Seq: 1, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAW", Body: &events.SessionCreated{}}
				payload, err := events.Encode(&e)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err = log.Append(ctx, &e, payload)
				if tt.want == nil && err != nil || tt.want != nil && (!errors.Is(err, tt.want) || !errors.Is(err, faults.ErrInjected)) {
					t.Errorf("append: %v, want %v", err, tt.want)
				}
				if last, err := inner.Last(t.Context()); err != nil || last != tt.stored {
					t.Errorf("the log holds %d events, %v, want %d", last, err, tt.stored)
				}
			})
		})
	}
}

func TestDelayIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		inner, err := eventlog.NewMemory(time.Now).Create(t.Context(), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
		if err != nil {
			t.Fatal(err)
		}
		log := at("delay", faults.Delay(gate)).Wrap(t, inner, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 1)
		e := events.Event{Seq: 1, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAW", Body: &events.SessionCreated{}}
		payload, err := events.Encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- log.Append(t.Context(), &e, payload) }()
		synctest.Wait()
		if last, _ := inner.Last(t.Context()); last != 0 {
			t.Fatal("a delayed append was performed before its time")
		}
		close(gate)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// TestReadFaults shows faults before and after a read, and of Last.
func TestReadFaults(t *testing.T) {
	t.Parallel()
	inner, err := eventlog.NewMemory(time.Now).Create(t.Context(), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
	if err != nil {
		t.Fatal(err)
	}
	e := events.Event{Seq: 1, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAW", Body: &events.SessionCreated{}}
	payload, err := events.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.Append(t.Context(), &e, payload); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		fault faults.Fault
		n     int
	}{{faults.Lost(), 0}, {faults.FailAfterPersist(), 1}} {
		log := faults.NewLog(inner, "01ARZ3NDEKTSV4RRFFQ69G5FAV", func(events.ID, faults.Op, uint64) faults.Fault { return tt.fault })
		n := 0
		var last error
		for _, last = range log.Read(t.Context(), 1) {
			if last == nil {
				n++
			}
		}
		if n != tt.n || !errors.Is(last, faults.ErrInjected) {
			t.Errorf("read %d messages and then %v, want %d and an injected fault", n, last, tt.n)
		}
		if _, err := log.Last(t.Context()); !errors.Is(err, faults.ErrInjected) {
			t.Errorf("Last: %v", err)
		}
	}
}
