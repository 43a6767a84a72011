package follow

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Follower drives the handlers of all sessions. Make it with [New] and run it once.
type Follower struct {
	cfg Config

	mu       sync.Mutex
	work     *sync.Cond // queue or stopped has changed
	stopped  bool
	sessions map[events.ID]*session
	queue    []*session // to be visited, in order
	audits   []*session // to be opened though they are at rest, in order; behind the queue
	auditing int        // workers that do so
	open     *list.List // of the sessions that have a handler, the one used last in front
	sweep    uint64     // the number of the current sweep
	began    time.Time  // when Run was called
	share    float64    // of the sessions at rest that the current sweep opens anew
	swept    time.Time
	sweepErr error
	lost     int // sessions that were gone before they were handled to their end
}

// session is what is known of one session. The fields behind the first group belong to the worker that visits it.
type session struct {
	id       events.ID
	target   uint64 // the highest sequence that a hint or a sweep has named since the last visit began
	done     uint64 // handled up to here
	known    bool   // done is known
	suspect  bool   // the log may be shorter than done, or have gaps
	seen     uint64 // the last sweep that has seen it
	queued   bool
	visiting bool
	failed   bool      // left alone until its log changes
	broken   bool      // the handler knows that the log cannot be read on
	due      bool      // to be opened though it is at rest
	until    time.Time // when it becomes due at the latest, zero once it was opened
	waits    bool      // in Follower.audits
	anew     bool      // the handler was opened since the session became due
	failures int       // in a row
	retry    *time.Timer
	place    *list.Element // in Follower.open
	gaps     uint64        // how many messages were missing when a sweep last looked

	asked   uint64 // target when the visit began
	audit   bool   // the visit opens the session even when it is at rest
	counted bool   // in Follower.auditing
	last    uint64 // the end of the log that failed
	log     eventlog.Log
	handler Handler
	next    uint64 // the first sequence that the handler has not seen
}

// New returns a follower. The error says what in cfg is wrong.
func New(cfg Config) (*Follower, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	f := &Follower{cfg: cfg, sessions: make(map[events.ID]*session), open: list.New()}
	f.work = sync.NewCond(&f.mu)
	return f, nil
}

// Run follows until ctx ends. It returns nil then, after every handler's call has returned.
func (f *Follower) Run(ctx context.Context) error {
	f.mu.Lock()
	f.began = time.Now()
	f.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	for range f.cfg.Workers {
		group.Go(func() error { f.visitAll(ctx); return nil })
	}
	group.Go(func() error { f.sweepAll(ctx); return nil })
	if f.cfg.Hints != nil {
		group.Go(func() error { f.hear(ctx); return nil })
	}
	group.Go(func() error {
		<-ctx.Done()
		f.stop()
		return nil
	})
	return group.Wait()
}

// stop ends the workers and the timers.
func (f *Follower) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	for _, s := range f.sessions {
		s.stopRetry()
	}
	f.work.Broadcast()
}

// Status returns how the follower stands.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := Status{Sessions: len(f.sessions), Open: f.open.Len(), Swept: f.swept, SweepErr: f.sweepErr, Lost: f.lost}
	for _, s := range f.sessions {
		if s.target > s.done && !s.broken {
			st.Behind++
			st.Lag += s.target - s.done
		}
		if (s.due || !s.until.IsZero()) && !s.failed {
			st.Due++
		}
		if s.retry != nil {
			st.Retrying++
		}
		if s.failed {
			st.Failed++
		}
	}
	return st
}

// hear listens to hints.
func (f *Follower) hear(ctx context.Context) {
	for failures := 0; ; failures++ {
		err := f.cfg.Hints(ctx, f.Notify)
		if ctx.Err() != nil {
			return
		}
		f.cfg.Log.WarnContext(ctx, "hints ended, sessions are found by sweeps meanwhile", slog.Any("error", err))
		if !Wait(ctx, f.backoff(failures)) {
			return
		}
	}
}

// Notify tells the follower that the session's log has reached last. It may be wrong: the log is asked.
func (f *Follower) Notify(id events.ID, last uint64) {
	if !id.Valid() || f.cfg.Partition != nil && !f.cfg.Partition(id) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grown(f.session(id), last)
}

// session returns the entry of a session. The lock is held.
func (f *Follower) session(id events.ID) *session {
	s, ok := f.sessions[id]
	if !ok {
		s = &session{id: id, seen: f.sweep, due: f.cfg.Audit}
		if f.cfg.Recheck > 0 {
			s.until = f.began.Add(rand.N(f.cfg.Recheck))
		}
		f.sessions[id] = s
	}
	return s
}

// grown records that the session has reached last. The lock is held.
func (f *Follower) grown(s *session, last uint64) {
	if last <= s.target || s.known && last <= s.done {
		return
	}
	s.target = last
	s.failed, s.broken = false, false
	if s.retry == nil { // a session that failed waits for its turn
		f.enqueue(s)
	}
}

// enqueue puts the session at the end of the queue. One that is being visited goes there when the visit ends. The
// lock is held.
func (f *Follower) enqueue(s *session) {
	if s.queued || s.visiting || f.stopped {
		return
	}
	s.queued = true
	f.queue = append(f.queue, s)
	f.work.Signal()
}

// enqueueAudit has a session that is due opened when nothing else is to do. The lock is held.
func (f *Follower) enqueueAudit(s *session) {
	if !s.due || s.waits || s.failed || s.queued || s.visiting || s.retry != nil || f.stopped {
		return // in the last cases it is looked at again when the visit ends
	}
	s.waits = true
	f.audits = append(f.audits, s)
	f.work.Signal()
}

// sweepAll looks at all sessions again and again.
func (f *Follower) sweepAll(ctx context.Context) {
	began := time.Now()
	for {
		last := began
		began = time.Now()
		if f.cfg.Recheck > 0 {
			f.share = float64(began.Sub(last)) / float64(f.cfg.Recheck)
		}
		err := f.sweepOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		f.sweepErr = err
		if err == nil {
			f.swept = time.Now()
		}
		f.mu.Unlock()
		if err != nil {
			f.cfg.Log.WarnContext(ctx, "sweep not complete", slog.Any("error", err))
		}
		if !Wait(ctx, f.cfg.Sweep) {
			return
		}
	}
}

// sweepOnce compares all sessions with what was handled. Sessions that are gone are dropped.
func (f *Follower) sweepOnce(ctx context.Context) error {
	f.mu.Lock()
	f.sweep++
	f.mu.Unlock()
	var problems error
	for info, err := range f.cfg.Store.Sessions(ctx) {
		if err != nil && info.ID == "" {
			return fmt.Errorf("sweep: %w", err)
		}
		if f.cfg.Partition != nil && !f.cfg.Partition(info.ID) {
			continue
		}
		f.mu.Lock()
		s := f.session(info.ID)
		s.seen = f.sweep
		if err == nil {
			f.compare(s, info)
		} else if problems == nil {
			problems = fmt.Errorf("sweep: session %s: %w", info.ID, err)
		}
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		if s.seen != f.sweep && !s.visiting {
			f.lose(ctx, s)
		}
	}
	return problems
}

// compare decides whether a session that a sweep found needs a visit. The lock is held.
func (f *Follower) compare(s *session, info eventlog.Info) {
	gaps := info.Last - min(info.Messages, info.Last)
	if s.failed && info.Last == s.last && gaps == s.gaps {
		return
	}
	if info.Last < s.done || gaps != s.gaps {
		s.suspect, s.failed, s.broken = true, false, false
		s.gaps = gaps
		if s.retry == nil {
			f.enqueue(s)
		}
		return
	}
	if !s.known && info.Last == 0 && s.target == 0 {
		f.unhandled(s)
		return
	}
	f.grown(s, info.Last)
	if s.known && !s.due && !s.failed && s.target <= s.done && f.drawn(s) {
		s.due, s.anew = true, false
		f.enqueueAudit(s)
	}
}

// drawn reports whether the sweep opens a session at rest anew. The lock is held.
func (f *Follower) drawn(s *session) bool {
	if !s.until.IsZero() {
		return time.Now().After(s.until)
	}
	return rand.Float64() < f.share
}

// unhandled visits a session of which nothing is known, though its log is empty: it may not have been. The lock is held.
func (f *Follower) unhandled(s *session) {
	if s.retry == nil && !s.failed {
		f.enqueue(s)
	}
}

// lose drops a session whose log is not there any more. Nobody can handle what was not handled of it, which is told. The lock is
// held; nobody visits it.
func (f *Follower) lose(ctx context.Context, s *session) {
	if s.retry != nil || s.target > s.done && !s.broken {
		f.lost++
		f.cfg.Log.ErrorContext(ctx, "a session is gone that was not handled to its end", slog.String("session", string(s.id)),
			slog.Uint64("handled", s.done), slog.Uint64("last", s.target), slog.Int("failures", s.failures))
	}
	f.forget(s)
}

// forget drops everything about a session. The lock is held; nobody visits it.
func (f *Follower) forget(s *session) {
	s.stopRetry()
	f.close(s)
	s.queued, s.due = false, false // a worker that finds it in a queue passes over it
	delete(f.sessions, s.id)
}

// close drops the session's handler. The lock is held.
func (f *Follower) close(s *session) {
	if c, ok := s.handler.(interface{ Close() }); ok {
		c.Close()
	}
	s.handler, s.log, s.anew = nil, nil, false
	if s.place != nil {
		f.open.Remove(s.place)
		s.place = nil
	}
}

func (s *session) stopRetry() {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
}

// backoff returns the wait after so many failures in a row before this one.
func (f *Follower) backoff(failures int) time.Duration {
	d := f.cfg.RetryMin
	for range failures {
		if d *= 2; d >= f.cfg.RetryMax {
			return f.cfg.RetryMax
		}
	}
	return d
}

// Wait waits for d and reports false when ctx ended before.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// goneError is what a session's own log says when it does not exist any more. What a handler does not find is something else.
type goneError struct{ err error }

func (e *goneError) Error() string { return e.err.Error() }
func (e *goneError) Unwrap() error { return e.err }

// ofLog returns an error of a session's log, as a [*goneError] when it says that there is none.
func ofLog(err error) error {
	if errors.Is(err, eventlog.ErrNotFound) {
		return &goneError{err}
	}
	return err
}
