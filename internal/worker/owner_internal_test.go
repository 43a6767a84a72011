package worker

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// countedStore is a store whose logs find an event by its type, and count how often they are read.
type countedStore struct {
	eventlog.Store
	reads *atomic.Int32
}

func (s countedStore) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := s.Store.Open(ctx, id)
	return countedLog{log, s.reads}, err
}

type countedLog struct {
	eventlog.Log
	reads *atomic.Int32
}

func (l countedLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	l.reads.Add(1)
	return l.Log.Read(ctx, from)
}

func (l countedLog) LastOf(ctx context.Context, t events.Type) (last eventlog.Message, ok bool, err error) {
	for m, err := range l.Log.Read(ctx, 1) {
		if err != nil {
			return last, false, err
		}
		if m.Type == t {
			last, ok = m, true
		}
	}
	return last, ok, nil
}

// TestOwnerIsAskedFirst asks the owner about all inputs at once, and reads the log only when it is gone.
func TestOwnerIsAskedFirst(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	owner := r.cfg.Instance
	r.cfg.Instance = newID()
	var reads atomic.Int32
	w := &Worker{cfg: r.cfg, client: serve(t), logs: countedStore{k.logs, &reads}, since: make(map[events.ID]time.Time)}
	s := newSession(w, k.id)
	for _, seq := range []uint64{5, 9} {
		s.held = append(s.held, &jetstream.Delivery{Queued: jetstream.Queued{Seq: seq}})
	}
	var questions []question
	ctx, stop := context.WithCancel(t.Context())
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() {
		served <- w.client.Presence().Serve(ctx, owner, func() { close(ready) }, func(_ context.Context, raw []byte) []byte {
			q, err := parseQuestion(raw)
			if err != nil {
				t.Error(err)
			}
			questions = append(questions, q)
			return []byte("{}")
		})
	}()
	<-ready
	if _, err := s.open(t.Context()); !errors.Is(err, errElsewhere) {
		t.Errorf("error %v, want errElsewhere", err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if n := reads.Load(); n != 0 {
		t.Errorf("the log was read %d times", n)
	}
	if diff := cmp.Diff([]question{{Session: k.id, Seqs: []uint64{5, 9}}}, questions); diff != "" {
		t.Error(diff)
	}
	l, err := s.open(t.Context())
	if err != nil || l == nil || reads.Load() != 1 {
		t.Errorf("with the owner gone: error %v, %d reads", err, reads.Load())
	}
}

// TestAsked answers which inputs are finished with, and wakes the session for the others.
func TestAsked(t *testing.T) {
	w := &Worker{cfg: newRigless(t), sessions: make(map[events.ID]*session)}
	s := newSession(w, newID())
	s.done, s.rest = 7, map[uint64]struct{}{6: {}}
	w.sessions[s.id] = s
	for _, tt := range []struct {
		ask   []uint64
		done  []uint64
		wakes bool
	}{{[]uint64{5, 6, 7, 8}, []uint64{5, 7}, true}, {[]uint64{5, 7}, []uint64{5, 7}, false}, {nil, nil, true}} {
		raw, err := json.Marshal(question{Session: s.id, Seqs: tt.ask})
		if err != nil {
			t.Fatal(err)
		}
		var got answer
		if err := json.Unmarshal(w.asked(t.Context(), raw), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(answer{Done: tt.done}, got); diff != "" {
			t.Error(diff)
		}
		if s.pending() != tt.wakes {
			t.Errorf("asked about %v: woken %t", tt.ask, s.pending())
		}
		for s.pending() {
			<-s.wake
		}
	}
	var got answer
	if err := json.Unmarshal(w.asked(t.Context(), []byte("?")), &got); err != nil || !got.Bad {
		t.Errorf("answer %+v, %v", got, err)
	}
}

// TestLongestQuestion is understood.
func TestLongestQuestion(t *testing.T) {
	q := question{Session: newID()}
	for range mostAsked {
		q.Seqs = append(q.Seqs, ^uint64(0))
	}
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseQuestion(raw)
	if diff := cmp.Diff(q, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}
