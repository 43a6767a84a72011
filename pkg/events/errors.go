package events

import (
	"errors"
	"fmt"
)

// Sentinels. All of them are final for the bytes or the event they were reported for: the same input fails the
// same way again, so a caller stops the fold and reports.
var (
	// ErrSyntax means that the bytes are not the canonical encoding of an event.
	ErrSyntax = errors.New("not canonical")
	// ErrInvalid means that the encoding is canonical but a value breaks a rule of its type.
	ErrInvalid = errors.New("invalid event")
	// ErrVersion means that the event was written by a newer format; a newer reader is needed.
	ErrVersion = errors.New("unsupported format version")
	// ErrUnknownType means that the type is unknown and the event is not marked ignorable; a newer reader is needed.
	ErrUnknownType = errors.New("unknown event type")
	// ErrLegacy means that the type or reason existed in an earlier design and is refused on append and on load.
	ErrLegacy = errors.New("legacy event refused")
	// ErrTooLarge means that the payload is longer than [MaxEventBytes].
	ErrTooLarge = errors.New("event too large")
)

// DecodeError says where a payload stopped being a canonical event. It unwraps to one of the sentinels.
type DecodeError struct {
	Offset int    // byte offset in the payload
	Field  string // the field looked for or read last
	Err    error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("decode event: byte %d, field %q: %v", e.Offset, e.Field, e.Err)
}

// Unwrap returns the cause, which wraps one of the sentinels.
func (e *DecodeError) Unwrap() error { return e.Err }
