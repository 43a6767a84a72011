package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/pkg/eventlog"
)

// visitAll visits one session of the queue after another until the follower stops.
func (f *Follower) visitAll(ctx context.Context) {
	for {
		s := f.take()
		if s == nil {
			return
		}
		err := f.visit(ctx, s)
		if errors.Is(err, ErrFinal) {
			s.last = f.lastOf(ctx, s)
		}
		f.leave(ctx, s, err)
	}
}

// take returns the next session to visit, nil when the follower has stopped.
func (f *Follower) take() *session {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var s *session
		switch {
		case f.stopped:
			return nil
		case len(f.queue) > 0:
			s, f.queue = pop(f.queue)
			if !s.queued { // forgotten meanwhile
				continue
			}
			s.audit = s.due && s.failures > 0 // it is tried again
		case len(f.audits) > 0 && f.auditing < max(f.cfg.Workers-1, 1): // one is there for sessions that grow
			s, f.audits = pop(f.audits)
			s.waits = false
			if !s.due || s.failed || s.visiting || s.retry != nil { // forgotten, or looked at again when the visit ends
				continue
			}
			s.audit, s.counted = true, true
			f.auditing++
		default:
			f.work.Wait()
			continue
		}
		s.queued, s.visiting, s.asked = false, true, s.target
		if s.place != nil {
			f.open.MoveToFront(s.place)
		}
		return s
	}
}

// pop takes the first session off a queue.
func pop(queue []*session) (first *session, rest []*session) {
	first, queue[0] = queue[0], nil
	return first, queue[1:]
}

// visit brings the session's handler up to date.
func (f *Follower) visit(ctx context.Context, s *session) error {
	f.mu.Lock()
	suspect, whole := s.suspect, s.gaps == 0
	s.suspect = false
	f.mu.Unlock()
	idle, err := f.prepare(ctx, s, suspect, whole)
	if err != nil || idle {
		if err != nil && suspect {
			f.mu.Lock()
			s.suspect = true
			f.mu.Unlock()
		}
		return err
	}
	for m, err := range s.log.Read(ctx, s.next) {
		if err != nil {
			if errors.Is(err, eventlog.ErrGap) || errors.Is(err, eventlog.ErrCorrupt) {
				return f.broken(ctx, s, err)
			}
			return ofLog(err)
		}
		if err := s.handler.Apply(ctx, m); err != nil {
			return fmt.Errorf("event %d: %w", m.Seq, err)
		}
		s.next = m.Seq + 1
		f.handled(s, m.Seq)
	}
	if err := s.handler.CaughtUp(ctx); err != nil {
		return fmt.Errorf("caught up at event %d: %w", s.next-1, err)
	}
	f.mu.Lock()
	s.done = s.next - 1
	f.mu.Unlock()
	return nil
}

func (f *Follower) handled(s *session, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done = max(s.done, seq)
}

// broken tells the handler of a log that cannot be read on.
func (f *Follower) broken(ctx context.Context, s *session, cause error) error {
	if err := s.handler.Broken(ctx, s.next, cause); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done, s.broken = s.next-1, true
	return fmt.Errorf("%w: %w", ErrFinal, cause)
}

// lastOf returns the log's last sequence, or what is known of it when the log does not answer.
func (f *Follower) lastOf(ctx context.Context, s *session) uint64 {
	if s.log != nil {
		if last, err := s.log.Last(ctx); err == nil {
			return last
		}
	}
	return s.asked
}

// prepare makes sure that the session has a handler. idle says that there is nothing to do. A suspect session may be
// shorter than what was handled; whole says that no messages are missing in it.
func (f *Follower) prepare(ctx context.Context, s *session, suspect, whole bool) (idle bool, err error) {
	f.mu.Lock()
	if s.audit && !s.anew {
		f.close(s)
	}
	if suspect {
		s.log = nil // what stands behind the name may be another
	}
	f.mu.Unlock()
	if s.log == nil {
		if s.log, err = f.cfg.Store.Open(ctx, s.id); err != nil {
			return false, ofLog(err)
		}
	}
	if s.handler != nil && !suspect {
		return false, nil
	}
	last, err := s.log.Last(ctx)
	if err != nil {
		return false, ofLog(err)
	}
	if !s.known {
		if err := f.know(ctx, s, last); err != nil {
			return false, err
		}
	}
	if last == s.done && whole && !s.audit {
		return true, nil
	}
	if s.handler != nil {
		if last > s.done && whole {
			return false, nil // the sweep was late
		}
		log := s.log
		f.mu.Lock()
		f.close(s)
		f.mu.Unlock()
		s.log = log
	}
	return false, f.openHandler(ctx, s, last)
}

// know finds out how far the session, whose log ends at last, was handled before.
func (f *Follower) know(ctx context.Context, s *session, last uint64) error {
	if f.cfg.AtRest == nil {
		position, err := f.cfg.Position(ctx, s.id)
		if err != nil {
			return fmt.Errorf("position: %w", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		s.done, s.known = position, true
		return nil
	}
	position, rest, err := f.cfg.AtRest(ctx, s.id, s.log, last)
	if err != nil {
		return fmt.Errorf("at rest at event %d: %w", last, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done, s.known = position, true
	switch {
	case rest:
		s.done = last
	case position == last:
		s.due, s.audit = true, true // when that fails the next try opens it
	}
	return nil
}

func (f *Follower) openHandler(ctx context.Context, s *session, last uint64) error {
	h, from, err := f.cfg.Open(ctx, s.id, last)
	if err != nil {
		return fmt.Errorf("open at event %d: %w", last, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.handler, s.next, s.anew, s.until = h, max(from, 1), true, time.Time{}
	s.place = f.open.PushFront(s)
	for e := f.open.Back(); e != nil && f.open.Len() > f.cfg.MaxSessions; {
		old := e.Value.(*session)
		e = e.Prev()
		if !old.visiting {
			f.close(old)
		}
	}
	return nil
}

// leave ends a visit and decides when the next one is due.
func (f *Follower) leave(ctx context.Context, s *session, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.visiting = false
	if s.counted {
		s.counted = false
		f.auditing--
		f.work.Signal()
	}
	switch {
	case ctx.Err() != nil || f.stopped:
	case err == nil:
		s.failures = 0
		f.settle(s)
	case errors.As(err, new(*goneError)):
		f.lose(ctx, s)
	case errors.Is(err, ErrFinal):
		f.cfg.Log.ErrorContext(ctx, "session given up until it changes", slog.String("session", string(s.id)), slog.Any("error", err))
		f.close(s)
		s.failures, s.failed = 0, true
		f.resume(s)
	default:
		if errors.Is(err, ErrReopen) {
			f.close(s)
		}
		delay := f.backoff(s.failures)
		s.failures++
		f.cfg.Log.WarnContext(ctx, "session is tried again", slog.String("session", string(s.id)),
			slog.Int("failures", s.failures), slog.Duration("delay", delay), slog.Any("error", err))
		s.retry = time.AfterFunc(delay, func() { f.retryNow(s) })
	}
}

// settle ends a visit that went well. The lock is held.
func (f *Follower) settle(s *session) {
	s.broken = false
	if s.anew {
		s.due = false
	}
	if s.suspect || s.target > s.done && s.target > s.asked {
		f.enqueue(s)
		return
	}
	s.target = s.done // a hint that promised more was wrong
	if s.audit && s.place != nil {
		f.open.MoveToBack(s.place) // it is at rest
	}
	f.enqueueAudit(s)
}

// resume ends a visit after which the session is left alone, unless it has changed meanwhile. The lock is held.
func (f *Follower) resume(s *session) {
	if s.suspect || s.target > s.asked {
		s.failed = false
		f.enqueue(s)
		return
	}
	s.target = s.last
}

// retryNow ends the wait of a session that failed.
func (f *Follower) retryNow(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.retry != nil {
		s.retry = nil
		f.enqueue(s)
	}
}
