package eventlog

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// Message is one stored event as the log gives it back: the payload and what the log itself says about it.
type Message struct {
	Seq     uint64      // where it stands in the log, from 1
	Type    events.Type // what it was filed under; the payload's own type must agree
	ID      events.ID   // under which it was deduplicated; the payload's own ID must agree
	Payload []byte      // the receiver's own
	Stored  time.Time   // when the log stored it
}

// Event decodes the payload and checks that the log and the payload say the same about sequence, ID and type, so that
// a moved, copied or mislabelled message is detected. The event's strings may live in the payload, which nobody may change
// from then on. Errors are those of [events.Decode], or wrap [ErrCorrupt].
func (m *Message) Event() (events.Event, error) {
	var d events.Decoder
	return m.Decode(&d)
}

// Decode is [Message.Event] with the scratch memory of d.
func (m *Message) Decode(d *events.Decoder) (events.Event, error) {
	e, err := d.DecodeShared(m.Payload)
	return m.checked(e, err)
}

// Take is [Message.Event] for a receiver that needs the payload no more: the event's strings live in it, which saves a
// copy. Payload is nil afterwards.
func (m *Message) Take(d *events.Decoder) (events.Event, error) {
	e, err := d.DecodeOwned(m.Payload)
	m.Payload = nil
	return m.checked(e, err)
}

func (m *Message) checked(e events.Event, err error) (events.Event, error) {
	if err != nil {
		return events.Event{}, fmt.Errorf("event %d: %w", m.Seq, err)
	}
	switch {
	case e.Seq != m.Seq:
		err = fmt.Errorf("its payload says that it is event %d", e.Seq)
	case e.ID != m.ID:
		err = fmt.Errorf("its payload has ID %s, its message %s", e.ID, m.ID)
	case e.Type() != m.Type:
		err = fmt.Errorf("its payload has type %s, its message %s", e.Type(), m.Type)
	default:
		return e, nil
	}
	return events.Event{}, fmt.Errorf("event %d: %w: %w", m.Seq, ErrCorrupt, err)
}

// Log is the log of one session. It is safe for concurrent use.
type Log interface {
	// Append stores the event e, whose canonical payload is payload, at the sequence e.Seq. It returns nil only when
	// the event is durably stored there, and then it always was stored exactly once, however often Append was called
	// with it: a resend of an event that stands where it should is a success. The payload is not kept.
	//
	// A place taken by another event is a [*LostError]; a place beyond the end's next is a [*GapError]. After
	// [ErrUnavailable], and when ctx ends, the event may be stored now or later. All other sentinels of this package
	// but [ErrCorrupt] mean that it is not stored. An implementation settles ambiguous answers itself as long as ctx
	// lets it, and MUST NOT let a writer have two appends stored out of order; a caller MUST NOT append the next event
	// before this one is acknowledged.
	Append(ctx context.Context, e *events.Event, payload []byte) error

	// Read returns the messages [from, last], in order, where last is the log's last sequence when the iteration
	// starts; from = last+1 gives none, and beyond that it is a [*GapError]. from counts from 1; 0 is read as 1. The
	// iteration stops at the first error. A missing message is a [*GapError], a vanished session [ErrNotFound].
	Read(ctx context.Context, from uint64) iter.Seq2[Message, error]

	// Last returns the sequence of the last message, 0 when there is none. It never returns less than what an Append
	// that was acknowledged before the call stored.
	Last(ctx context.Context) (uint64, error)
}

// Store holds the logs of all sessions. It is safe for concurrent use.
type Store interface {
	// Create returns the log of session id and makes it when there is none. Any number of callers may create the same
	// session: all get the same log. An invalid ID is an error that wraps [events.ErrInvalid].
	Create(ctx context.Context, id events.ID) (Log, error)

	// Open returns the log of session id, or an error that wraps [ErrNotFound].
	Open(ctx context.Context, id events.ID) (Log, error)

	// Sessions returns all sessions, in the order of their IDs. A session that exists during the whole iteration is
	// returned once; one that is created or deleted meanwhile may be missing. An error together with a session's ID
	// means that this session could not be looked at, and the iteration goes on; one with the zero Info ends it.
	Sessions(ctx context.Context) iter.Seq2[Info, error]
}

// Info describes a session's log.
type Info struct {
	ID       events.ID
	Last     uint64    // the last sequence
	Messages uint64    // how many there are: equal to Last unless some are missing
	Bytes    uint64    // what they take in storage, about
	LastTime time.Time // when the last was stored, zero when there is none
}

// UpTo yields the messages up to the sequence last, and an error that comes before it. It does not read on behind that.
func UpTo(messages iter.Seq2[Message, error], last uint64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for m, err := range messages {
			if err == nil && m.Seq > last || !yield(m, err) || err == nil && m.Seq == last {
				return
			}
		}
	}
}
