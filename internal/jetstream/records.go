package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Records is a stream of records about sessions, in order for each: verdicts or steps. Any number of writers may append
// to it; the session's last record is their common position. It is safe for concurrent use.
type Records struct {
	client *Client
	stream string
	prefix string
}

// Record is one stored record.
type Record struct {
	Session events.ID
	Seq     uint64 // its place in the stream, unique over all sessions; a session's records have gaps
	ID      string // the writer's
	Payload []byte // the receiver's own
	Stored  time.Time
}

// Append stores a record of the session, whose last record has the place after (0: it has none yet), and returns its
// place. The id names what the record is about, such as the session and the sequence of the verified request: writers
// that work on the same thing give the same one.
//
// When another record was stored after that place the error is a [*ConflictError]: somebody else was faster; read the
// last record and go on from there. Appending the very same record again is a success. After [eventlog.ErrUnavailable]
// it may be stored now or later: append it again.
func (r *Records) Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (seq uint64, err error) {
	if _, err := events.ParseID(string(session)); err != nil {
		return 0, fmt.Errorf("stream %s: append: %w", r.stream, err)
	}
	if id == "" || len(payload) == 0 {
		return 0, fmt.Errorf("stream %s, session %s: append: %w: a record needs an ID and a payload", r.stream, session, events.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, r.client.cfg.AppendTimeout)
	defer cancel()
	msg := &nats.Msg{
		Subject: r.prefix + string(session),
		Header: nats.Header{
			headerMsgID:      {id},
			headerStream:     {r.stream},
			headerLastSubSeq: {strconv.FormatUint(after, 10)},
		},
		Data: payload,
	}
	for attempt := 0; ; attempt++ {
		seq, done, err := r.try(ctx, session, msg, after)
		if err == nil {
			return seq, nil
		}
		if done || wait(ctx, backoff(attempt)) != nil {
			return 0, fmt.Errorf("stream %s, session %s: append record %s: %w", r.stream, session, id, mappedRecord(err))
		}
	}
}

func mappedRecord(err error) error {
	if errors.Is(err, ErrConflict) {
		return err
	}
	return mapped(err)
}

// try publishes once and settles the outcome if it can: done is false when another try is needed.
func (r *Records) try(ctx context.Context, session events.ID, msg *nats.Msg, after uint64) (seq uint64, done bool, err error) {
	ack, err := r.client.publish(ctx, msg)
	switch {
	case err == nil && !ack.Duplicate:
		return ack.Seq, true, nil
	case isDisconnected(err):
		return 0, false, err
	case errors.As(err, new(*refusedError)):
		return 0, true, err
	case apiCode(err) != 0 && !isConflict(err) && !isDuplicateInFlight(err) && apiError(err).Code < 500:
		return 0, true, err
	case apiCode(err) != 0 && errors.Is(mapped(err), eventlog.ErrFull):
		return 0, true, err
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrConnectionClosed):
		return 0, true, err
	}
	published := err
	last, err := r.last(ctx, session)
	switch {
	case err != nil:
		return 0, apiCode(err) == codeStreamNotFound || errors.As(err, new(*refusedError)), err
	case last.seq > after && last.id == msg.Header[headerMsgID][0] && bytes.Equal(last.payload, msg.Data):
		return last.seq, true, nil
	case last.seq != after:
		return 0, true, &ConflictError{Stream: r.stream, Session: session, Last: last.seq, ID: last.id}
	case published == nil: // the ID was used for something that is not the session's last record
		return 0, true, &ConflictError{Stream: r.stream, Session: session, Last: ack.Seq, ID: msg.Header[headerMsgID][0]}
	}
	return 0, false, published
}

func (r *Records) last(ctx context.Context, session events.ID) (rawMessage, error) {
	return r.client.atLeader(ctx, r.stream, getRequest{LastFor: r.prefix + string(session)})
}

// Last returns the session's last record. It asks the stream's leader, so that a record that was acknowledged before
// the call is seen. A session without records is an error that wraps [eventlog.ErrNotFound].
func (r *Records) Last(ctx context.Context, session events.ID) (Record, error) {
	m, err := r.last(ctx, session)
	if err != nil {
		return Record{}, fmt.Errorf("stream %s, session %s: last record: %w", r.stream, session, mapped(err))
	}
	if m.seq == 0 {
		return Record{}, fmt.Errorf("stream %s, session %s: last record: %w: it has none yet", r.stream, session, eventlog.ErrNotFound)
	}
	return r.record(m)
}

// Read returns the records of a session, or of all sessions when session is empty, at the places [from, last], in
// order, where last is the last record's place when the iteration starts. It stops at the first error.
func (r *Records) Read(ctx context.Context, session events.ID, from uint64) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		filter := r.prefix + string(session)
		if session == "" {
			filter = r.prefix + "*"
		}
		newest, err := r.client.atLeader(ctx, r.stream, getRequest{LastFor: filter})
		if err != nil {
			yield(Record{}, fmt.Errorf("stream %s: read: %w", r.stream, mapped(err)))
			return
		}
		for m, err := range r.client.readRange(ctx, r.stream, filter, max(from, 1), newest.seq) {
			if err != nil {
				yield(Record{}, fmt.Errorf("stream %s: read: %w", r.stream, err))
				return
			}
			record, err := r.record(m)
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}

func (r *Records) record(m rawMessage) (Record, error) {
	session, err := events.ParseID(strings.TrimPrefix(m.subject, r.prefix))
	if err != nil {
		return Record{}, fmt.Errorf("stream %s: record %d: %w: subject %q: %w", r.stream, m.seq, eventlog.ErrCorrupt, m.subject, err)
	}
	return Record{Session: session, Seq: m.seq, ID: m.id, Payload: m.payload, Stored: m.stored}, nil
}
