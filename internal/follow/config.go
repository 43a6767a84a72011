package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

var (
	// ErrFinal marks a handler's error that trying again does not cure. The handler is dropped, the error is logged, and
	// the session is left alone until its log changes or the process restarts.
	ErrFinal = errors.New("final")
	// ErrReopen marks a handler's error after which its state is of no use: the handler is dropped and made again, after
	// the same wait as for any other error.
	ErrReopen = errors.New("state of no use")
)

// Handler consumes the log of one session. Its methods are called by one goroutine at a time.
//
// An error that wraps neither [ErrFinal] nor [ErrReopen] is tried again after a wait: the same call comes again, on this
// handler or on one that Config.Open made anew. A method that fails must therefore leave the handler as it was.
//
// A handler that also has a method Close() is told when it is dropped. Close is called under the follower's lock: it must
// neither block nor call the follower. Handlers that are kept when Run ends are not closed.
type Handler interface {
	// Apply takes the next message of the log. The handler may keep it.
	Apply(ctx context.Context, m eventlog.Message) error
	// CaughtUp is called when everything that the log had was applied. A read that brought nothing ends with it too.
	CaughtUp(ctx context.Context) error
	// Broken is told that the log cannot be read at seq: cause wraps [eventlog.ErrGap] (also when the log ends before
	// what was read earlier) or [eventlog.ErrCorrupt]. It is called again when the log changes and is still broken.
	Broken(ctx context.Context, seq uint64, cause error) error
}

// Config says what is followed and how. Store, Open and Position are required.
type Config struct {
	Store eventlog.Store

	// Open returns a handler for the session, whose log ends at last, and the first sequence that it wants to see: 1
	// for a handler that folds. It is also called when the log has become shorter than Position says; the handler then
	// decides what that means. Errors are treated like a handler's.
	Open func(ctx context.Context, session events.ID, last uint64) (h Handler, from uint64, err error)

	// Position returns the sequence up to which the session was handled before this process, 0 when it was not. A
	// session whose log ends there is at rest and not opened, but see Audit. Errors are treated like a handler's.
	Position func(ctx context.Context, session events.ID) (uint64, error)

	// AtRest is asked in the place of Position, and whether the session, whose log ends at last, can be left alone until
	// it grows: rest says so of everything up to last, even when the position is before it. When it is not at rest it is
	// opened, even when the position is last. It is asked once about a session and must not fold its log. Nil: a session
	// is at rest when its log ends at its position. Errors are treated like a handler's.
	AtRest func(ctx context.Context, session events.ID, log eventlog.Log, last uint64) (position uint64, rest bool, err error)

	// Hints calls notify for every session that has grown, with its last sequence, until ctx ends. Hints may be lost,
	// late, doubled or wrong. When it returns before, it is called again after a wait. Nil: there are only sweeps.
	Hints func(ctx context.Context, notify func(session events.ID, last uint64)) error

	// Partition reports whether this follower looks after the session. Nil: after all.
	Partition func(session events.ID) bool

	// Audit has every session opened once after the start, also one at rest, so that a handler that folds sees what has
	// become of the log since. Sessions that have grown come first.
	Audit bool
	// Recheck is the time after which, on the average, a session at rest is opened anew: its handler is dropped and made
	// again from the log. Every sweep draws some. One that was not opened since the start is opened within this time,
	// each at a moment of its own, so that a start is no burden. Sessions that were given up are left alone. 0: none is.
	Recheck time.Duration

	// Sweep is the time between the end of a sweep and the start of the next. 0: 30 s.
	Sweep time.Duration
	// Workers is how many sessions are worked on at once. 0: 4.
	Workers int
	// MaxSessions is how many handlers are kept, at least Workers. 0: 1,024.
	MaxSessions int
	// RetryMin and RetryMax bound the wait after an error, which doubles from one to the other. 0: 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// Log receives what nobody can be told. Nil: nobody.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		def   time.Duration
	}{
		{&c.Sweep, 30 * time.Second},
		{&c.RetryMin, 100 * time.Millisecond},
		{&c.RetryMax, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = max(1024, c.Workers)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	switch {
	case c.Store == nil || c.Open == nil || c.Position == nil:
		return errors.New("follow: Store, Open and Position are required")
	case c.Sweep < 0 || c.RetryMin < 0 || c.RetryMax < c.RetryMin:
		return fmt.Errorf("follow: sweep %v, retry %v to %v: want positive times in order", c.Sweep, c.RetryMin, c.RetryMax)
	case c.Recheck < 0:
		return fmt.Errorf("follow: recheck %v: want a positive time, or 0 for never", c.Recheck)
	case c.Workers < 1 || c.MaxSessions < c.Workers:
		return fmt.Errorf("follow: %d workers, %d sessions: want at least one worker, and a session for each", c.Workers, c.MaxSessions)
	}
	return nil
}

// Status is how a follower stands.
type Status struct {
	Sessions int    // sessions known
	Open     int    // handlers kept
	Behind   int    // sessions with events that were not handled yet; a handler that was told of a broken log is not behind
	Lag      uint64 // those events
	Due      int    // sessions that are to be opened for Config.Audit or Config.Recheck, now or since the start
	Retrying int    // sessions that wait after an error
	Failed   int    // sessions left alone after a final error
	Lost     int    // sessions whose logs were gone before they were handled to their ends, since the start
	// Swept is when the last complete sweep ended, zero before the first.
	Swept time.Time
	// SweepErr is why the newest sweep was not complete, nil when it was.
	SweepErr error
}
