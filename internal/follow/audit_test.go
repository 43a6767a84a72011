package follow_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// TestAuditOpensSessionsAtRest restarts a follower over sessions that were handled to their end.
func TestAuditOpensSessionsAtRest(t *testing.T) {
	for _, audit := range []bool{false, true} {
		t.Run(fmt.Sprint(audit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				const sessions = 30
				for n := range sessions {
					w.durable[sessionID(n)] = w.grow(sessionID(n), 3)
				}
				cfg := w.config()
				cfg.Audit, cfg.Workers, cfg.MaxSessions = audit, 3, 5
				f, stop := w.run(cfg)
				defer stop()
				pass(10 * time.Minute)
				for n := range sessions {
					if got := w.opens(sessionID(n)) == 1; got != audit {
						t.Errorf("session %d opened %d times", n, w.opens(sessionID(n)))
					}
					w.wantHandled(sessionID(n), 3)
				}
				st := f.Status()
				if st.Due != 0 || st.Behind != 0 || st.Failed != 0 || st.Retrying != 0 || audit && st.Open != 5 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// TestAuditsWaitForGrowth has sessions grow while others at rest are opened, which takes a second for each.
func TestAuditsWaitForGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const sessions = 100
		growing := sessionID(sessions)
		for n := range sessions {
			w.durable[sessionID(n)] = w.grow(sessionID(n), 1)
		}
		w.grow(growing, 1)
		w.fail = func(id events.ID, _ uint64) error {
			if id != growing {
				<-time.After(time.Second)
			}
			return nil
		}
		cfg := w.config()
		cfg.Audit, cfg.Workers = true, 2
		f, stop := w.run(cfg)
		defer stop()
		for n := range 20 {
			pass(time.Millisecond)
			w.wantHandled(growing, uint64(n+1))
			f.Notify(growing, w.grow(growing, 1))
		}
		if st := f.Status(); st.Due < 50 {
			t.Fatalf("all was opened before: %+v", st)
		}
		pass(2 * time.Minute)
		if st := f.Status(); st.Due != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestAuditIsTriedAgain has the first look at a session at rest fail in its middle.
func TestAuditIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		id := sessionID(1)
		w.durable[id] = w.grow(id, 3)
		calls := map[uint64]int{}
		w.fail = func(_ events.ID, seq uint64) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if calls[seq]++; seq == 2 && calls[seq] < 4 {
				return fmt.Errorf("%w: %w", follow.ErrReopen, errBroken)
			}
			return nil
		}
		cfg := w.config()
		cfg.Audit = true
		f, stop := w.run(cfg)
		defer stop()
		pass(time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if calls[2] != 4 || calls[3] != 1 {
			t.Errorf("event 2 was applied %d times, event 3 %d times", calls[2], calls[3])
		}
		if st := f.Status(); st.Due != 0 || st.Retrying != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestRecheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const sessions, hours = 20, 50
		for n := range sessions {
			w.grow(sessionID(n), 2)
		}
		cfg := w.config()
		cfg.Recheck = time.Hour
		f, stop := w.run(cfg)
		defer stop()
		pass(hours * time.Hour)
		total := 0
		for n := range sessions {
			total += w.opens(sessionID(n)) - 1
			w.wantHandled(sessionID(n), 2)
		}
		if want := sessions * hours; total < want*4/5 || total > want*6/5 { // six standard deviations
			t.Errorf("opened %d times, want about %d", total, want)
		}
		if st := f.Status(); st.Lag != 0 || st.Failed != 0 || st.Retrying != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestAtRest asks about sessions in the place of their positions, and has the first answers fail.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const sessions = 60
		rest := map[events.ID]bool{}
		for n := range sessions {
			rest[sessionID(n)] = n%3 != 2
			w.durable[sessionID(n)] = w.grow(sessionID(n), 3)
			if n%3 == 1 {
				w.durable[sessionID(n)]-- // its last event calls for nothing
			}
		}
		asked := map[events.ID]int{}
		cfg := w.config()
		cfg.Recheck = time.Hour
		cfg.Position = func(context.Context, events.ID) (uint64, error) { return 0, errBroken }
		cfg.AtRest = func(_ context.Context, id events.ID, _ eventlog.Log, _ uint64) (uint64, bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if asked[id]++; asked[id] == 1 {
				return 0, false, errBroken
			}
			return w.durable[id], rest[id], nil
		}
		failed := map[events.ID]bool{}
		w.fail = func(id events.ID, seq uint64) error { // the first fold
			w.mu.Lock()
			defer w.mu.Unlock()
			if seq == 2 && !failed[id] {
				failed[id] = true
				return fmt.Errorf("%w: %w", follow.ErrReopen, errBroken)
			}
			return nil
		}
		f, stop := w.run(cfg)
		defer stop()
		pass(30 * time.Second)
		opened := 0
		for n := range sessions {
			id := sessionID(n)
			if rest[id] != (w.opens(id) == 0) {
				t.Errorf("session %d, at rest: %t, was opened %d times", n, rest[id], w.opens(id))
			}
			if !rest[id] {
				opened++
				w.wantHandled(id, 3)
			}
			if asked[id] != 2 {
				t.Errorf("session %d was asked about %d times", n, asked[id])
			}
		}
		if st := f.Status(); st.Due != sessions-opened || st.Behind != 0 || st.Retrying != 0 || st.Failed != 0 {
			t.Errorf("status %+v, %d opened", st, opened)
		}
		pass(30 * time.Minute)
		if st := f.Status(); st.Due < (sessions-opened)/5 || st.Due > (sessions-opened)*4/5 {
			t.Errorf("after half of the time %d of %d are to be opened", st.Due, sessions-opened)
		}
		pass(32 * time.Minute) // and a sweep
		for n := range sessions {
			if w.opens(sessionID(n)) == 0 {
				t.Errorf("session %d was not opened", n)
			}
		}
		if st := f.Status(); st.Due != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// farHandler is a handler whose position lies behind the end of its log.
type farHandler struct{}

func (farHandler) Apply(context.Context, eventlog.Message) error { return nil }
func (farHandler) CaughtUp(context.Context) error                { return nil }
func (farHandler) Broken(context.Context, uint64, error) error   { return nil }

// TestGivenUpOnce shows that a session that was given up is not reported again before its log changes, and that it is
// not behind.
func TestGivenUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		short, holed := sessionID(1), sessionID(2)
		w.grow(short, 3)
		w.grow(holed, 5)
		w.missing[holed] = 2
		var out strings.Builder // read when all is quiet
		cfg := w.config()
		cfg.Audit, cfg.Recheck = true, time.Minute
		cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))
		cfg.Position = func(ctx context.Context, id events.ID) (uint64, error) {
			if id == short {
				return 10, nil
			}
			return w.position(ctx, id)
		}
		cfg.Open = func(ctx context.Context, id events.ID, last uint64) (follow.Handler, uint64, error) {
			if id == short {
				return farHandler{}, 11, nil
			}
			return w.open(ctx, id, last)
		}
		f, stop := w.run(cfg)
		defer stop()
		pass(time.Second)
		want := func(id events.ID, n int) {
			t.Helper()
			if got := strings.Count(out.String(), string(id)+" "); got != n {
				t.Errorf("session %s was reported %d times, want %d:\n%s", id, got, n, &out)
			}
			if st := f.Status(); st.Failed != 2 || st.Lag != 0 || st.Behind != 0 || st.Due != 0 {
				t.Errorf("status %+v", st)
			}
		}
		pass(time.Minute) // the sweep has found the hole meanwhile
		before := strings.Count(out.String(), string(holed)+" ")
		pass(2 * time.Hour)
		want(short, 1)
		want(holed, before)
		w.grow(short, 1)
		pass(2 * time.Hour)
		want(short, 2)
		want(holed, before)
	})
}
