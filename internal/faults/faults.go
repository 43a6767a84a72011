// Package faults makes logs fail in the ways that real ones do: before storing, after storing, late, twice, or without
// an answer. What happens to each operation is the decision of a function, so that a test can fail every one in turn.
package faults

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// ErrInjected is in every error that this package makes up.
var ErrInjected = errors.New("injected fault")

// Op is an operation of a log.
type Op uint8

// The operations.
const (
	Append Op = iota // its sequence is the event's
	Read             // its sequence is the first one asked for
	Last             // its sequence is 0
)

func (o Op) String() string {
	switch o {
	case Append:
		return "append"
	case Read:
		return "read"
	case Last:
		return "last"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Fault is what happens to one operation. The parts are independent and apply in the order of the fields; the zero
// Fault leaves the operation alone.
type Fault struct {
	// Wait, unless nil, is called first; its error ends the operation, which is then not performed.
	Wait func(ctx context.Context) error
	// Before, unless nil, is returned instead of performing the operation.
	Before error
	// Twice performs an append a second time with the same event. The second outcome counts.
	Twice bool
	// Silent performs the operation and then answers only when the context ends, with an unknown outcome.
	Silent bool
	// After, unless nil, is returned instead of success.
	After error
}

// FailBefore is a failure before anything was stored, of which the log says so for certain: err is one of the sentinels
// that mean it, such as [eventlog.ErrFull].
func FailBefore(err error) Fault {
	return Fault{Before: fmt.Errorf("%w: %w", ErrInjected, err)}
}

// Lost is a failure before anything was stored, of which the caller cannot tell.
func Lost() Fault {
	return Fault{Before: fmt.Errorf("%w: %w: lost before it arrived", ErrInjected, eventlog.ErrUnavailable)}
}

// FailAfterPersist is a failure after the event was stored, of which the caller cannot tell.
func FailAfterPersist() Fault {
	return Fault{After: fmt.Errorf("%w: %w: the answer was lost", ErrInjected, eventlog.ErrUnavailable)}
}

// Duplicate stores an event twice, as a resend does whose first copy arrived.
func Duplicate() Fault { return Fault{Twice: true} }

// DropAck stores the event and never answers.
func DropAck() Fault { return Fault{Silent: true} }

// Delay waits for gate to be closed before the operation goes on.
func Delay(gate <-chan struct{}) Fault {
	return Fault{Wait: func(ctx context.Context) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// Decide says what happens to an operation on a session's log. It is called once for each, possibly concurrently.
type Decide func(session events.ID, op Op, seq uint64) Fault

// Store is a store whose logs fail as decided. Creating, opening and listing are left alone.
type Store struct {
	eventlog.Store
	decide Decide
}

// NewStore returns store with faults.
func NewStore(store eventlog.Store, decide Decide) *Store {
	return &Store{Store: store, decide: decide}
}

// Create implements [eventlog.Store].
func (s *Store) Create(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := s.Store.Create(ctx, id)
	if err != nil {
		return nil, err
	}
	return NewLog(log, id, s.decide), nil
}

// Open implements [eventlog.Store].
func (s *Store) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := s.Store.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return NewLog(log, id, s.decide), nil
}

// Log is a log that fails as decided.
type Log struct {
	log     eventlog.Log
	session events.ID
	decide  Decide
}

var _ eventlog.Log = (*Log)(nil)

// NewLog returns the session's log with faults.
func NewLog(log eventlog.Log, session events.ID, decide Decide) *Log {
	return &Log{log: log, session: session, decide: decide}
}

// Append implements [eventlog.Log].
func (l *Log) Append(ctx context.Context, e *events.Event, payload []byte) error {
	return l.decide(l.session, Append, e.Seq).apply(ctx, func() error {
		return l.log.Append(ctx, e, payload)
	})
}

// Last implements [eventlog.Log].
func (l *Log) Last(ctx context.Context) (last uint64, err error) {
	err = l.decide(l.session, Last, 0).apply(ctx, func() (err error) {
		last, err = l.log.Last(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return last, nil
}

// Read implements [eventlog.Log]. A failure before comes instead of the first message, one after behind the last.
func (l *Log) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		f := l.decide(l.session, Read, from)
		f.Twice = false
		more := true
		err := f.apply(ctx, func() error {
			for m, err := range l.log.Read(ctx, from) {
				if more = yield(m, err); !more || err != nil {
					more = false
					break
				}
			}
			return nil
		})
		if more && err != nil {
			yield(eventlog.Message{}, err)
		}
	}
}

func (f Fault) apply(ctx context.Context, perform func() error) error {
	if f.Wait != nil {
		if err := f.Wait(ctx); err != nil {
			return fmt.Errorf("%w: %w: delayed: %w", ErrInjected, eventlog.ErrUnavailable, err)
		}
	}
	if f.Before != nil {
		return f.Before
	}
	err := perform()
	if f.Twice {
		err = perform()
	}
	if f.Silent {
		<-ctx.Done()
		return fmt.Errorf("%w: %w: no answer: %w", ErrInjected, eventlog.ErrUnavailable, ctx.Err())
	}
	if err == nil {
		return f.After
	}
	return err
}
