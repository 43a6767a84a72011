package follow_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("on purpose")

// world is a store with sessions, and what their handlers have made of them.
type world struct {
	*eventlog.Memory
	t *testing.T

	mu      sync.Mutex
	writers map[events.ID]*eventlog.Writer
	gone    map[events.ID]bool
	short   map[events.ID]uint64 // a log that has lost everything behind
	missing map[events.ID]uint64 // a log that has lost this event
	ids     uint64

	durable map[events.ID]uint64 // the handlers' positions
	broken  map[events.ID]uint64
	opened  map[events.ID]int
	busy    map[events.ID]bool
	fail    func(id events.ID, seq uint64) error
	working atomic.Int64
	most    atomic.Int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		Memory: eventlog.NewMemory(time.Now), t: t,
		writers: map[events.ID]*eventlog.Writer{}, gone: map[events.ID]bool{}, short: map[events.ID]uint64{},
		missing: map[events.ID]uint64{}, durable: map[events.ID]uint64{}, broken: map[events.ID]uint64{},
		opened: map[events.ID]int{}, busy: map[events.ID]bool{},
	}
}

func sessionID(n int) events.ID { return events.ID(fmt.Sprintf("01JZZZZZZZ%016d", n)) }

// grow appends n events to the session.
func (w *world) grow(id events.ID, n int) uint64 {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	writer := w.writers[id]
	if writer == nil {
		log, err := w.Create(w.t.Context(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		next := func() events.ID { w.ids++; return events.ID(fmt.Sprintf("01K%023d", w.ids)) }
		writer = eventlog.NewWriter(log, id, 0, events.Hash{}, time.Now, next)
		w.writers[id] = writer
	}
	for range n {
		if _, err := writer.Append(context.Background(), &events.SessionTitle{Title: "t"}, eventlog.WithIgnorable()); err != nil {
			w.t.Fatal(err)
		}
	}
	last, _ := writer.Last()
	return last
}

func (w *world) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone[id] {
		return nil, eventlog.ErrNotFound
	}
	log, err := w.Memory.Open(ctx, id)
	return &cutLog{Log: log, w: w, id: id}, err
}

func (w *world) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		for info, err := range w.Memory.Sessions(ctx) {
			w.mu.Lock()
			gone := w.gone[info.ID]
			if last, ok := w.short[info.ID]; ok {
				info.Last, info.Messages = min(info.Last, last), min(info.Messages, last)
			}
			if w.missing[info.ID] > 0 {
				info.Messages--
			}
			w.mu.Unlock()
			if !gone && !yield(info, err) {
				return
			}
		}
	}
}

// cutLog is a log that may have lost something.
type cutLog struct {
	eventlog.Log
	w  *world
	id events.ID
}

func (l *cutLog) Last(ctx context.Context) (uint64, error) {
	last, err := l.Log.Last(ctx)
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.w.gone[l.id] {
		return 0, eventlog.ErrNotFound
	}
	if n, ok := l.w.short[l.id]; ok {
		last = min(last, n)
	}
	return last, err
}

func (l *cutLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		last, err := l.Last(ctx)
		l.w.mu.Lock()
		missing := l.w.missing[l.id]
		l.w.mu.Unlock()
		if err != nil {
			yield(eventlog.Message{}, err)
			return
		}
		if from > last+1 {
			yield(eventlog.Message{}, &eventlog.GapError{Session: l.id, Want: last + 1})
			return
		}
		for m, err := range l.Log.Read(ctx, from) {
			if err == nil && m.Seq == missing {
				yield(eventlog.Message{}, &eventlog.GapError{Session: l.id, Want: m.Seq, Got: m.Seq + 1})
				return
			}
			if err == nil && m.Seq > last || !yield(m, err) {
				return
			}
		}
	}
}

// handler counts a session's events.
type handler struct {
	w    *world
	id   events.ID
	next uint64
}

func (w *world) open(_ context.Context, id events.ID, last uint64) (follow.Handler, uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opened[id]++
	if last < w.durable[id] {
		w.broken[id] = last
	}
	return &handler{w: w, id: id, next: 1}, 1, nil
}

func (w *world) position(_ context.Context, id events.ID) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.durable[id], nil
}

// enter checks that nobody else works on the session.
func (h *handler) enter() func() {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.w.busy[h.id] {
		h.w.t.Errorf("session %s: two at a time", h.id)
	}
	h.w.busy[h.id] = true
	n := h.w.working.Add(1)
	h.w.most.Store(max(h.w.most.Load(), n)) // under the lock
	return func() {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		h.w.working.Add(-1)
		h.w.busy[h.id] = false
	}
}

func (h *handler) Apply(ctx context.Context, m eventlog.Message) error {
	defer h.enter()()
	if m.Seq != h.next {
		h.w.t.Errorf("session %s: event %d where %d belongs", h.id, m.Seq, h.next)
	}
	h.w.mu.Lock()
	fail := h.w.fail
	h.w.mu.Unlock()
	if fail != nil {
		if err := fail(h.id, m.Seq); err != nil {
			return err
		}
	}
	select { // others get their turn
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Microsecond):
	}
	h.next = m.Seq + 1
	return nil
}

func (h *handler) CaughtUp(context.Context) error {
	defer h.enter()()
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.next-1 > h.w.durable[h.id] {
		h.w.durable[h.id] = h.next - 1
	}
	return nil
}

func (h *handler) Broken(_ context.Context, seq uint64, cause error) error {
	defer h.enter()()
	if !errors.Is(cause, eventlog.ErrGap) {
		h.w.t.Errorf("session %s: broken by %v", h.id, cause)
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.broken[h.id] = seq
	return nil
}

func (w *world) config() follow.Config {
	return follow.Config{Store: w, Open: w.open, Position: w.position, Sweep: time.Minute}
}

// run starts a follower and returns it with a function that stops it.
func (w *world) run(cfg follow.Config) (*follow.Follower, func()) {
	w.t.Helper()
	f, err := follow.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	return f, func() {
		w.t.Helper()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (w *world) wantHandled(id events.ID, want uint64) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.durable[id]; got != want {
		w.t.Errorf("session %s: handled up to %d, want %d", id, got, want)
	}
}

func (w *world) opens(id events.ID) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened[id]
}

func TestSweepFindsWhatHintsLeaveOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := sessionID(1), sessionID(2)
		w.grow(a, 3)
		cfg := w.config()
		hints := make(chan events.ID)
		cfg.Hints = func(ctx context.Context, notify func(events.ID, uint64)) error {
			for {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case id := <-hints:
					notify(id, 1<<40) // far beyond the truth
				}
			}
		}
		f, stop := w.run(cfg)
		defer stop()
		pass(time.Second)
		w.wantHandled(a, 3)
		w.grow(a, 2)
		w.grow(b, 4)
		pass(time.Second)
		w.wantHandled(a, 3)
		hints <- b
		pass(time.Second)
		w.wantHandled(a, 3)
		w.wantHandled(b, 4)
		pass(time.Minute)
		w.wantHandled(a, 5)
		if st := f.Status(); st.Sessions != 2 || st.Lag != 0 || st.Behind != 0 || st.Open != 2 || st.Swept.IsZero() || st.SweepErr != nil {
			t.Errorf("status %+v", st)
		}
		if n := w.opens(a); n != 1 {
			t.Errorf("opened %d times", n)
		}
	})
}

// TestRestarts stops followers at random while sessions grow. Few handlers are kept, so that most are dropped often.
func TestRestarts(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				w := newWorld(t)
				// Fewer failures than a session has events: one that is closed to make room begins anew, and would never end.
				const seldom = 211
				var calls atomic.Int64
				w.fail = func(events.ID, uint64) error {
					if calls.Add(1)%seldom == 0 {
						return errBroken
					}
					return nil
				}
				const sessions = 40
				cfg := w.config()
				cfg.Workers, cfg.MaxSessions, cfg.Sweep = 3, 5, 200*time.Millisecond
				last := map[events.ID]uint64{}
				for range 20 {
					f, stop := w.run(cfg)
					for range 30 {
						id := sessionID(random.IntN(sessions))
						last[id] = w.grow(id, 1+random.IntN(5))
						if random.IntN(3) > 0 {
							f.Notify(id, last[id])
						}
						pass(time.Duration(random.IntN(3000)) * time.Microsecond)
						if st := f.Status(); st.Open > cfg.MaxSessions {
							t.Fatalf("%d handlers, at most %d may be kept", st.Open, cfg.MaxSessions)
						}
					}
					stop()
				}
				_, stop := w.run(cfg)
				pass(5 * time.Minute)
				stop()
				for n := range sessions {
					if last[sessionID(n)] >= seldom {
						t.Fatalf("a session of %d events", last[sessionID(n)])
					}
					w.wantHandled(sessionID(n), last[sessionID(n)])
				}
				if most := w.most.Load(); most < 2 || most > int64(cfg.Workers) {
					t.Errorf("%d sessions were worked on at once", most)
				}
			})
		})
	}
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		passing, reopened, final, good := sessionID(1), sessionID(2), sessionID(3), sessionID(4)
		for _, id := range []events.ID{passing, reopened, final, good} {
			w.grow(id, 3)
		}
		calls := map[events.ID]int{}
		broken := true
		w.fail = func(id events.ID, seq uint64) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if id == good || seq != 2 || !broken {
				return nil
			}
			calls[id]++
			switch id {
			case reopened:
				return fmt.Errorf("%w: %w", follow.ErrReopen, errBroken)
			case final:
				return fmt.Errorf("%w: %w", follow.ErrFinal, errBroken)
			}
			return errBroken
		}
		f, stop := w.run(w.config())
		defer stop()
		pass(10 * time.Minute)
		w.wantHandled(good, 3)
		w.wantHandled(passing, 0)
		w.mu.Lock()
		// 0.1, 0.2 ... 25.6 s, then every 30 s.
		if n := calls[passing]; n < 20 || n > 40 {
			t.Errorf("tried %d times in ten minutes", n)
		}
		if calls[final] != 1 {
			t.Errorf("a final error was tried %d times", calls[final])
		}
		w.mu.Unlock()
		if w.opens(passing) != 1 || w.opens(reopened) < 20 {
			t.Errorf("opened %d and %d times", w.opens(passing), w.opens(reopened))
		}
		if st := f.Status(); st.Retrying != 2 || st.Failed != 1 || st.Behind != 3 {
			t.Errorf("status %+v", st)
		}
		w.grow(final, 1)
		pass(2 * time.Minute)
		w.mu.Lock()
		if calls[final] != 2 {
			t.Errorf("a session that grew was tried %d times", calls[final])
		}
		broken = false
		w.mu.Unlock()
		w.grow(final, 1)
		pass(2 * time.Minute)
		w.wantHandled(passing, 3)
		w.wantHandled(reopened, 3)
		w.wantHandled(final, 5)
	})
}

func TestLogsThatLoseSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		deleted, cut, holed := sessionID(1), sessionID(2), sessionID(3)
		for _, id := range []events.ID{deleted, cut, holed} {
			w.grow(id, 5)
		}
		f, stop := w.run(w.config())
		defer stop()
		pass(time.Second)
		w.mu.Lock()
		w.gone[deleted] = true
		w.short[cut] = 3
		w.missing[holed] = 2
		w.mu.Unlock()
		pass(5 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.broken[cut] != 3 || w.opened[cut] != 2 {
			t.Errorf("the short log: broken at %d, opened %d times", w.broken[cut], w.opened[cut])
		}
		if w.broken[holed] != 2 || w.opened[holed] != 2 {
			t.Errorf("the log with a hole: broken at %d, opened %d times", w.broken[holed], w.opened[holed])
		}
		if st := f.Status(); st.Sessions != 2 || st.Failed != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestConfig(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*follow.Config){
		"no store":          func(c *follow.Config) { c.Store = nil },
		"no open":           func(c *follow.Config) { c.Open = nil },
		"no position":       func(c *follow.Config) { c.Position = nil },
		"negative sweep":    func(c *follow.Config) { c.Sweep = -1 },
		"too few sessions":  func(c *follow.Config) { c.Workers, c.MaxSessions = 4, 3 },
		"negative recheck":  func(c *follow.Config) { c.Recheck = -1 },
		"retry upside down": func(c *follow.Config) { c.RetryMin, c.RetryMax = 2, 1 },
	} {
		cfg := w.config()
		change(&cfg)
		if _, err := follow.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestNotFoundIsNotGone: what a handler does not find says nothing about the session. It is tried again, and is not forgotten.
func TestNotFoundIsNotGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := sessionID(1)
		w.grow(id, 3)
		away := true
		w.fail = func(_ events.ID, seq uint64) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if seq == 2 && away {
				return fmt.Errorf("a record: %w", eventlog.ErrNotFound)
			}
			return nil
		}
		f, stop := w.run(w.config())
		defer stop()
		pass(10 * time.Minute)
		if st := f.Status(); st.Sessions != 1 || st.Retrying != 1 || st.Behind != 1 || st.Lost != 0 || w.opens(id) != 1 {
			t.Errorf("status %+v, opened %d times", st, w.opens(id))
		}
		w.mu.Lock()
		away = false
		w.mu.Unlock()
		pass(time.Minute)
		w.wantHandled(id, 3)
	})
}

// TestLost deletes sessions: those that were not handled to their ends are told of, each once.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		handled, waiting, unseen := sessionID(1), sessionID(2), sessionID(3)
		w.grow(handled, 3)
		w.grow(waiting, 3)
		w.fail = func(id events.ID, _ uint64) error {
			if id == waiting {
				return errBroken
			}
			return nil
		}
		var out strings.Builder // read when all is quiet
		cfg := w.config()
		cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))
		f, stop := w.run(cfg)
		defer stop()
		pass(time.Minute)
		last := w.grow(unseen, 1)
		w.mu.Lock()
		w.gone[handled], w.gone[waiting], w.gone[unseen] = true, true, true
		w.mu.Unlock()
		f.Notify(unseen, last)
		pass(10 * time.Minute)
		if st := f.Status(); st.Sessions != 0 || st.Retrying != 0 || st.Lost != 2 {
			t.Errorf("status %+v", st)
		}
		for id, want := range map[events.ID]int{handled: 0, waiting: 1, unseen: 1} {
			if got := strings.Count(out.String(), string(id)); got != want {
				t.Errorf("session %s was told of %d times, want %d:\n%s", id, got, want, &out)
			}
		}
	})
}
