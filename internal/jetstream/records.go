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
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Records is a stream of records about sessions, in order for each, or one kind of several in it: verdicts, receipts or
// steps. Any number of writers may append to it; the session's last record is their common position. It is safe for
// concurrent use.
type Records struct {
	client *Client
	stream string
	prefix string // of subjects, with the final dot
	suffix string // of subjects, with its dot; empty when the stream has one kind of records
}

func (r *Records) subject(session events.ID) string { return r.prefix + string(session) + r.suffix }

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
		Subject: r.subject(session),
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

// Add stores a record of the session behind whatever it has, once for the id within the deduplication window, and
// returns its place. After [eventlog.ErrUnavailable] it may be stored now or later.
func (r *Records) Add(ctx context.Context, session events.ID, id string, payload []byte) (seq uint64, err error) {
	if _, err := events.ParseID(string(session)); err != nil {
		return 0, fmt.Errorf("stream %s: add: %w", r.stream, err)
	}
	if id == "" || len(payload) == 0 {
		return 0, fmt.Errorf("stream %s, session %s: add: %w: a record needs an ID and a payload", r.stream, session, events.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, r.client.cfg.AppendTimeout)
	defer cancel()
	msg := &nats.Msg{
		Subject: r.subject(session), Header: nats.Header{headerMsgID: {id}, headerStream: {r.stream}}, Data: payload,
	}
	for attempt := 0; ; attempt++ {
		ack, err := r.client.publish(ctx, msg)
		if err == nil {
			return ack.Seq, nil
		}
		refused := errors.As(err, new(*refusedError)) || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed) ||
			apiCode(err) != 0 && !isDuplicateInFlight(err) && (apiError(err).Code < 500 || errors.Is(mapped(err), eventlog.ErrFull))
		if refused || wait(ctx, backoff(attempt)) != nil {
			return 0, fmt.Errorf("stream %s, session %s: add record %s: %w", r.stream, session, id, mapped(err))
		}
	}
}

// Counts returns how many records every session has.
func (r *Records) Counts(ctx context.Context) (map[events.ID]uint64, error) {
	counts := make(map[events.ID]uint64)
	ask := struct {
		Subjects string `json:"subjects_filter"`
		Offset   int    `json:"offset"`
	}{Subjects: r.subject("*")}
	for {
		var answer struct {
			Error *natsjs.APIError `json:"error"`
			Total int              `json:"total"`
			State struct {
				Subjects map[string]uint64 `json:"subjects"`
			} `json:"state"`
		}
		if err := r.client.api(ctx, "STREAM.INFO."+r.stream, ask, &answer, &answer.Error); err != nil {
			return nil, fmt.Errorf("stream %s: count: %w", r.stream, mapped(err))
		}
		for subject, n := range answer.State.Subjects {
			session := events.ID(strings.TrimSuffix(strings.TrimPrefix(subject, r.prefix), r.suffix))
			if session.Valid() {
				counts[session] = n
			}
		}
		ask.Offset += len(answer.State.Subjects)
		if len(answer.State.Subjects) == 0 || ask.Offset >= answer.Total {
			return counts, nil
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
	return r.client.atLeader(ctx, r.stream, getRequest{LastFor: r.subject(session)})
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
		filter := r.subject(session)
		if session == "" {
			filter = r.subject("*")
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
	session, err := events.ParseID(strings.TrimSuffix(strings.TrimPrefix(m.subject, r.prefix), r.suffix))
	if err != nil {
		return Record{}, fmt.Errorf("stream %s: record %d: %w: subject %q: %w", r.stream, m.seq, eventlog.ErrCorrupt, m.subject, err)
	}
	return Record{Session: session, Seq: m.seq, ID: m.id, Payload: m.payload, Stored: m.stored}, nil
}

// Entry is one message of a stream of records, whatever it holds.
type Entry struct {
	Seq     uint64 // its place, from 1
	Subject string
	Payload []byte // the receiver's own
}

// Entries yields all messages of the stream at the places [from, last], of all kinds and sessions, in order, where last is
// the last one's place when the iteration starts. A place without a message is an error that wraps [eventlog.ErrGap]; it
// stops at the first error.
func (r *Records) Entries(ctx context.Context, from uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		next := max(from, 1)
		state, err := r.client.state(ctx, r.stream)
		if err != nil {
			yield(Entry{}, fmt.Errorf("stream %s: read: %w", r.stream, mapped(err)))
			return
		}
		gap := func(got uint64) {
			yield(Entry{}, fmt.Errorf("stream %s: %w: place %d is empty, the next message stands at %d", r.stream, eventlog.ErrGap, next, got))
		}
		for m, err := range r.client.readRange(ctx, r.stream, "", next, state.LastSeq) {
			switch {
			case err != nil:
				yield(Entry{}, fmt.Errorf("stream %s: read: %w", r.stream, err))
				return
			case m.seq != next:
				gap(m.seq)
				return
			case !yield(Entry{Seq: m.seq, Subject: m.subject, Payload: m.payload}, nil):
				return
			}
			next++
		}
		if next <= state.LastSeq {
			gap(0)
		}
	}
}
