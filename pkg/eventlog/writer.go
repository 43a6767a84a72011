package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// Writer builds the events of one session and appends them, one at a time. It is safe for concurrent use: an append
// waits for the one before it.
//
// After an append whose outcome is not known, or that lost the session, the writer refuses everything.
type Writer struct {
	log   Log
	id    events.ID
	clock func() time.Time
	newID func() events.ID
	check func(e *events.Event, payload []byte) error

	turn chan struct{} // holds a token while an append runs

	mu      sync.Mutex
	last    uint64
	hash    events.Hash
	stopped error
}

// NewWriter returns a writer for the session's log, whose last event has the sequence last and the hash hash; 0 and the
// zero hash for an empty log. They must be those of the last event that the caller has folded: this is the fence. The
// clock gives the events' times, newID a fresh ID for each.
func NewWriter(log Log, session events.ID, last uint64, hash events.Hash, clock func() time.Time, newID func() events.ID) *Writer {
	return &Writer{
		log: log, id: session, last: last, hash: hash, clock: clock, newID: newID,
		turn: make(chan struct{}, 1),
	}
}

// SetCheck makes every Append call check with the encoded event before anything is sent; an error refuses the event and
// leaves the writer usable. A caller that folds its events checks here that the fold takes the event: what is stored
// cannot be taken back. SetCheck is called before the first Append.
func (w *Writer) SetCheck(check func(e *events.Event, payload []byte) error) { w.check = check }

// AppendOption sets what an event has beside its body.
type AppendOption func(*events.Event)

// WithSurface sets the event's effect on the surface.
func WithSurface(op events.SurfaceOp) AppendOption {
	return func(e *events.Event) { e.Surface = op }
}

// WithSources names the earlier events that the event derives from. The writer takes over the slice.
func WithSources(seqs ...uint64) AppendOption {
	return func(e *events.Event) { e.Sources = seqs }
}

// WithIdentity gives the event the id and the time, in Unix milliseconds, of another log's event that it copies.
func WithIdentity(id events.ID, time int64) AppendOption {
	return func(e *events.Event) { e.ID, e.Time = id, time }
}

// WithIgnorable marks the event as one that a reader who does not know its type may skip.
func WithIgnorable() AppendOption {
	return func(e *events.Event) { e.Ignorable = true }
}

// Session returns the session's ID.
func (w *Writer) Session() events.ID { return w.id }

// Last returns the sequence and the hash of the last event known to be stored.
func (w *Writer) Last() (uint64, events.Hash) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.hash
}

// Err returns nil while the writer works, and afterwards an error that wraps [ErrWriterStopped] and the cause.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped == nil {
		return nil
	}
	return fmt.Errorf("session %s: %w: %w", w.id, ErrWriterStopped, w.stopped)
}

// Stop makes the writer refuse everything from now on; an append that is running is not interrupted. The first cause
// stays.
func (w *Writer) Stop(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped == nil {
		w.stopped = cause
	}
}

// Append builds the session's next event from body and options and returns it when it is stored: the event that the
// caller folds next.
//
// An event that cannot be encoded (errors of [events.Encode]) or that the log certainly did not store ([ErrFull],
// [ErrTooLarge], [ErrPermission], [ErrNotFound]) leaves the writer usable, and so does a ctx that ends before anything
// was sent. After any other error the writer is stopped: the first one is the cause, later ones wrap [ErrWriterStopped].
func (w *Writer) Append(ctx context.Context, body events.Body, opts ...AppendOption) (events.Event, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return events.Event{}, fmt.Errorf("session %s: append %s: %w", w.id, body.Type(), ctx.Err())
	}
	if err := w.Err(); err != nil {
		return events.Event{}, err
	}
	if err := ctx.Err(); err != nil {
		return events.Event{}, fmt.Errorf("session %s: append %s: %w", w.id, body.Type(), err)
	}
	last, hash := w.Last()
	e := events.Event{Seq: last + 1, ID: w.newID(), Time: w.clock().UnixMilli(), Prev: hash, Body: body}
	for _, opt := range opts {
		opt(&e)
	}
	payload, err := events.Encode(&e)
	if err != nil {
		return events.Event{}, fmt.Errorf("session %s: %w", w.id, err)
	}
	if w.check != nil {
		if err := w.check(&e, payload); err != nil {
			return events.Event{}, fmt.Errorf("session %s: append %s: %w", w.id, body.Type(), err)
		}
	}
	if err := w.log.Append(ctx, &e, payload); err != nil {
		if !notStored(err) {
			w.Stop(err)
		}
		return events.Event{}, err
	}
	sum, _ := e.Hash()
	w.mu.Lock()
	w.last, w.hash = e.Seq, sum
	w.mu.Unlock()
	return e, nil
}

// notStored reports whether err says that the event is not stored, never will be, and that its place is still free.
func notStored(err error) bool {
	for _, unsettled := range []error{ErrUnavailable, ErrLostOwnership, ErrGap, ErrCorrupt} {
		if errors.Is(err, unsettled) {
			return false
		}
	}
	for _, definite := range []error{ErrFull, ErrTooLarge, ErrPermission, ErrNotFound} {
		if errors.Is(err, definite) {
			return true
		}
	}
	return false
}
