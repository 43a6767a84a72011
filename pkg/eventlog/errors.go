package eventlog

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// Sentinels. Of an append that failed with one of the first group the log says for certain that the event is not
// stored and never will be; with one of the second group it may be stored now or later.
var (
	// ErrNotFound means that there is no such session. Check the ID, or create the session.
	ErrNotFound = errors.New("session not found")
	// ErrLostOwnership means that another event stands where this one should. Cancel what the session has running,
	// write nothing more, drop the fold. Details are in a [*LostError].
	ErrLostOwnership = errors.New("session ownership lost")
	// ErrFull means that there is no room. The same event may be appended again when there is.
	ErrFull = errors.New("log storage is full")
	// ErrPermission means that the credentials do not allow the operation. An operator must grant it.
	ErrPermission = errors.New("permission denied")
	// ErrTooLarge means that the payload is larger than the log takes. The same event never fits: move content to an
	// object.
	ErrTooLarge = errors.New("message too large for the log")

	// ErrUnavailable means no answer, or none that settles whether the event is stored. Read the log again before
	// writing: retrying a read is harmless, and appending the same event with the same payload is as well.
	ErrUnavailable = errors.New("log unavailable")
	// ErrGap means that a sequence is missing, or an append would leave one out. Stop: the log is damaged or was not
	// read to its end. Details are in a [*GapError].
	ErrGap = errors.New("gap in the log")
	// ErrCorrupt means that the log holds something else than what was written there. Stop and report.
	ErrCorrupt = errors.New("log corrupt")
	// ErrWriterStopped means that the [Writer] refuses everything since an earlier failure, which the error wraps. Read
	// the log again and make a new writer, unless the cause is [ErrLostOwnership].
	ErrWriterStopped = errors.New("writer stopped")
)

// LostError says which event stands where the appended one should. errors.Is(err, [ErrLostOwnership]) holds.
type LostError struct {
	Session events.ID
	Seq     uint64      // the contested place
	Other   events.ID   // the event that stands there
	Type    events.Type // its type
}

func (e *LostError) Error() string {
	return fmt.Sprintf("session %s: %v: event %d is %s %s of another writer: drop the session",
		e.Session, ErrLostOwnership, e.Seq, e.Type, e.Other)
}

// Unwrap returns [ErrLostOwnership].
func (e *LostError) Unwrap() error { return ErrLostOwnership }

// GapError says where a log's sequence is broken. errors.Is(err, [ErrGap]) holds.
type GapError struct {
	Session events.ID
	Want    uint64 // the sequence that should come next
	Got     uint64 // the one that came, 0 when none did
}

func (e *GapError) Error() string {
	if e.Got == 0 {
		return fmt.Sprintf("session %s: %v: event %d is missing", e.Session, ErrGap, e.Want)
	}
	return fmt.Sprintf("session %s: %v: event %d came where event %d should", e.Session, ErrGap, e.Got, e.Want)
}

// Unwrap returns [ErrGap].
func (e *GapError) Unwrap() error { return ErrGap }
