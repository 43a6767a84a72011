package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// reads is a store that counts the events that are read of each session, and changes some of them.
type reads struct {
	eventlog.Store

	mu      sync.Mutex
	events  map[events.ID]int
	flipped map[events.ID]uint64 // the event of which one bit is another
	edit    func(m *eventlog.Message, last uint64)
	last    uint64
}

func (r *reads) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := r.Store.Open(ctx, id)
	return &readLog{Log: log, reads: r, id: id}, err
}

func (r *reads) of(id events.ID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[id]
}

func (r *reads) all() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, more := range r.events {
		n += more
	}
	return n
}

type readLog struct {
	eventlog.Log
	reads *reads
	id    events.ID
}

func (l *readLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for m, err := range l.Log.Read(ctx, from) {
			if err == nil {
				l.reads.mu.Lock()
				l.reads.events[l.id]++
				if l.reads.flipped[l.id] == m.Seq {
					m.Payload = bytes.Clone(m.Payload)
					m.Payload[len(m.Payload)/2] ^= 1
				}
				l.reads.mu.Unlock()
				if l.reads.edit != nil {
					l.reads.edit(&m, l.reads.last)
				}
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// restSigned is how many verdicts a session of restSession has.
const restSigned = 4

// toStream is how many events a turn has up to its request, at most.
const toStream = 6

// restSession returns a session of two turns and, if it has a title, with one event behind its newest verdict.
func restSession(n uint64, titled bool) *session {
	id := foldtest.ID(1_700_000_000_000, n)
	l := &foldtest.Log{State: fold.New(id), Objects: new(objects.Set)}
	l.Body = audittest.Bodies()
	l.Begin()
	l.Turn("hello", "world")
	l.Turn("again", "sure")
	if titled {
		l.Title("a greeting")
	}
	return &session{id: id, log: l}
}

// restSessions is how many sessions TestRestart has. The environment may ask for more.
func restSessions(t *testing.T) int {
	t.Helper()
	n := 300
	if text := os.Getenv("REFOLD_SESSIONS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 100 || n%20 != 0 {
			t.Fatalf("REFOLD_SESSIONS=%q: want a multiple of 20 from 100 on", text)
		}
	}
	return n
}

// TestRestart restarts a verifier over sessions at rest, some of which have grown or were changed meanwhile.
func TestRestart(t *testing.T) {
	b := newBench(t)
	n := restSessions(t)
	w := &restWorld{bench: b, reads: &reads{Store: b.client.Logs(), flipped: map[events.ID]uint64{}}}
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range uint64(n) {
		s := restSession(i, i%10 == 0)
		group.Go(func() error { return b.store(s) })
		w.sessions = append(w.sessions, s)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	made := time.Since(began)
	v, current := w.start(func(cfg *verify.Config) { cfg.Workers = 16 })
	t.Logf("%d sessions of %d events: made in %v, checked in %v", n, len(w.sessions[1].log.Events), made, current)
	if st := v.Status(); st.Sessions != n || st.Failed != 0 {
		t.Fatalf("status %+v", st)
	}
	w.kill()
	for _, s := range w.sessions {
		w.signed = append(w.signed, len(b.verdicts(s.id)))
		if w.signed[len(w.signed)-1] != restSigned {
			t.Fatalf("session %s has %d verdicts", s.id, w.signed[len(w.signed)-1])
		}
	}

	for i := range n { // of every twenty one has grown, the head of one is another, and the middle of one
		s := w.sessions[i]
		switch i % 20 {
		case 3:
			s.log.Turn("more", "of it")
			b.write(s, len(s.log.Events))
		case 4:
			w.reads.flipped[s.id] = s.log.Len()
		case 5:
			w.reads.flipped[s.id] = s.log.Len() / 2
		}
	}
	const never = 100_000 * time.Hour
	_, current = w.start(func(cfg *verify.Config) { cfg.Recheck = never })
	t.Logf("restarted: current in %v, %d events read", current, w.reads.all())
	w.kill()
	w.want(false)

	_, current = w.start(func(cfg *verify.Config) { cfg.Recheck = time.Duration(n) * 3 * time.Millisecond })
	w.untilIn("a look at every session", func() bool {
		for i, s := range w.sessions {
			if i%20 != 4 && w.reads.of(s.id) < int(s.log.Len()) { // the others are known to be broken
				return false
			}
		}
		return w.found() == 2*(n/20)
	})
	t.Logf("restarted with a recheck: current in %v, all compared after %d events read", current, w.reads.all())
	w.kill()
	w.want(true)
}

// found returns how many sessions are known to have been changed.
func (w *restWorld) found() (n int) {
	for i, s := range w.sessions {
		if k := i % 20; k != 4 && k != 5 {
			continue
		}
		if last, err := w.client.Verdicts().Last(w.t.Context(), s.id); err == nil && bytes.Contains(last.Payload, []byte(`"rule":"signed"`)) {
			n++
		}
	}
	return n
}

// store appends all of a session's events.
func (b *bench) store(s *session) error {
	log, err := b.client.Logs().Create(b.t.Context(), s.id)
	if err != nil {
		return err
	}
	for ; s.next < len(s.log.Events); s.next++ {
		if err := log.Append(b.t.Context(), &s.log.Events[s.next], s.log.Payloads[s.next]); err != nil {
			return err
		}
	}
	return nil
}

// restWorld is what TestRestart works with.
type restWorld struct {
	*bench
	sessions []*session
	signed   []int // how many verdicts each had
	reads    *reads
	kill     func()
}

// start runs a verifier and waits until it is current.
func (w *restWorld) start(change func(*verify.Config)) (*verify.Verifier, time.Duration) {
	w.t.Helper()
	w.reads.events = map[events.ID]int{}
	cfg := w.config()
	cfg.Store, cfg.Hints = w.reads, nil
	change(&cfg)
	began := time.Now()
	v, kill := w.bench.start(cfg)
	w.kill = kill
	w.untilIn("a verifier that is current", func() bool { return isCurrent(v.Status()) })
	return v, time.Since(began)
}

// untilIn waits for a condition that takes time when there are many sessions.
func (w *restWorld) untilIn(what string, holds func() bool) {
	w.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute + time.Duration(len(w.sessions))*20*time.Millisecond)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

func isCurrent(st follow.Status) bool {
	return !st.Swept.IsZero() && st.Behind == 0 && st.Retrying == 0
}

// want checks what was read, when the sessions at rest were not compared as a whole, and what was found.
func (w *restWorld) want(compared bool) {
	w.t.Helper()
	for i, s := range w.sessions {
		verdicts := w.verdicts(s.id)
		got, read, all := verdicts[w.signed[i]:], w.reads.of(s.id), int(s.log.Len())
		changed := i%20 == 4 || i%20 == 5 && compared
		switch {
		case i%20 == 3:
			if len(got) != 2 || got[0].Kind != audit.KindRequest || got[1].Kind != audit.KindHead || got[0].Result != audit.Match {
				w.t.Errorf("session %d, which has grown: %v", i, got)
			}
		case changed:
			last := w.signed[i] - 1
			if len(got) != 1 || got[0].Kind != audit.KindLog || got[0].Rule != audit.RuleSigned || got[0].Seq != verdicts[last].Seq {
				w.t.Errorf("session %d, which was changed: %v", i, got)
			}
		case len(got) != 0:
			w.t.Errorf("session %d at rest: %v", i, got)
		}
		if compared {
			continue
		}
		rest := 1
		if i%10 == 0 {
			rest = 2 // the title stands behind the newest verdict
		}
		switch i % 20 {
		case 3, 4: // the look at its end and the fold
			if read < all || read > all+toStream {
				w.t.Errorf("session %d of %d events was to be folded: %d were read", i, all, read)
			}
		default:
			if read != rest {
				w.t.Errorf("session %d at rest: %d events were read", i, read)
			}
		}
	}
}

// TestLookAtTheEnd shows a restarted verifier logs that go on behind their newest verdict: which are left alone, and which
// are folded.
func TestLookAtTheEnd(t *testing.T) {
	const never = 100_000 * time.Hour
	for name, tt := range map[string]struct {
		more    func(l *foldtest.Log)
		edit    func(m *eventlog.Message, last uint64)
		recheck time.Duration
		folded  bool
	}{
		"a title":              {more: func(l *foldtest.Log) { l.Title("a greeting") }, recheck: never},
		"a title, no rechecks": {more: func(l *foldtest.Log) { l.Title("a greeting") }, folded: true},
		"nothing, no rechecks": {more: func(*foldtest.Log) {}},
		"titles": {more: func(l *foldtest.Log) {
			for range 64 {
				l.Title("a greeting")
			}
		}, recheck: never},
		"too many titles": {more: func(l *foldtest.Log) {
			for range 65 {
				l.Title("a greeting")
			}
		}, recheck: never, folded: true},
		"a turn without a request": {more: func(l *foldtest.Log) { l.TurnStart() }, recheck: never},
		"a turn that has ended": {more: func(l *foldtest.Log) {
			l.TurnStart()
			l.TurnEnd(events.TurnCompleted)
		}, recheck: never, folded: true},
		"closed": {more: func(l *foldtest.Log) { l.Closed("done") }, recheck: never, folded: true},
		"an event with another ID": {more: func(l *foldtest.Log) { l.Title("a greeting") }, edit: func(m *eventlog.Message, last uint64) {
			if m.Seq == last {
				m.ID = foldtest.ID(1, 1)
			}
		}, recheck: never, folded: true},
		"an event with another link": {more: func(l *foldtest.Log) { l.Title("a greeting") }, edit: func(m *eventlog.Message, last uint64) {
			if m.Seq != last {
				return
			}
			e, err := m.Event()
			if err != nil {
				t.Error(err)
			}
			e.Prev[0] ^= 1
			if m.Payload, err = events.Encode(&e); err != nil {
				t.Error(err)
			}
		}, recheck: never, folded: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := restSession(1, false)
			b.write(s, len(s.log.Events))
			v, kill := b.start(b.config())
			b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
			kill()
			tt.more(s.log)
			b.write(s, len(s.log.Events))
			store := &reads{Store: b.client.Logs(), events: map[events.ID]int{}, edit: tt.edit, last: s.log.Len()}
			cfg := b.config()
			cfg.Store, cfg.Hints, cfg.Recheck = store, nil, tt.recheck
			v, kill = b.start(cfg)
			b.until("a verifier that is current", func() bool { return isCurrent(v.Status()) })
			kill()
			if folded := store.of(s.id) >= int(s.log.Len()); folded != tt.folded {
				t.Errorf("%d of %d events were read", store.of(s.id), s.log.Len())
			}
		})
	}
}

// TestFailedCallAtRest starts a verifier again over a session whose last call has failed, with events behind it that call for no
// verdict. Without a receipt there is nothing to say about the call, and the log is left alone; with one there is, and with a
// server that does not tell it may be.
func TestFailedCallAtRest(t *testing.T) {
	for name, tt := range map[string]struct {
		passed, away, folded bool
	}{
		"no receipt": {}, "a receipt": {passed: true, folded: true}, "not known": {away: true, folded: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			w := b.witness()
			s := newSession(1)
			b.putObjects(s)
			call := audittest.Of("", s.log).Calls()[0]
			b.write(s, int(call.Seq)+1) // it has failed
			v, kill := b.start(w.config())
			b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
			kill()
			if tt.passed {
				w.saw(s.id, call.Seq, call.Body.(*events.LLMStream).Body, nil)
			}
			var away atomic.Bool
			away.Store(tt.away)
			store := &reads{Store: b.client.Logs(), events: map[events.ID]int{}}
			cfg := w.config()
			cfg.Store, cfg.Hints, cfg.Recheck = store, nil, 100_000*time.Hour
			cfg.Witness.Receipts = &awayRecords{cfg.Witness.Receipts, &away}
			v, kill = b.start(cfg)
			defer kill()
			b.until("a look at the session", func() bool { return !v.Status().Swept.IsZero() && store.of(s.id) >= 2 })
			if tt.folded {
				b.until("a fold", func() bool { return store.of(s.id) >= s.next })
			} else {
				b.until("a verifier that is current", func() bool { return isCurrent(v.Status()) })
				if n := store.of(s.id); n != 2 {
					t.Errorf("%d of %d events were read", n, s.next)
				}
			}
			if tt.passed {
				b.until("a wire verdict", func() bool { return b.wires(s.id) == fmt.Sprintf("%d match", call.Seq) })
			}
		})
	}
}
