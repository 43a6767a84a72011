package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Logs is the [eventlog.Store] that keeps every session in a stream of its own.
type Logs struct{ client *Client }

var _ eventlog.Store = (*Logs)(nil)

// gapSightings is how often a log must look too short for an append before that is believed: a new leader may still be
// applying what its predecessor acknowledged.
const gapSightings = 3

// Create implements [eventlog.Store].
func (l *Logs) Create(ctx context.Context, id events.ID) (eventlog.Log, error) {
	if _, err := events.ParseID(string(id)); err != nil {
		return nil, fmt.Errorf("create session: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create session %s: %w", id, err)
	}
	if err := l.client.createStream(ctx, l.client.SessionConfig(id)); err != nil {
		return nil, fmt.Errorf("create session %s: %w", id, err)
	}
	return newSessionLog(l.client, id), nil
}

// Open implements [eventlog.Store].
func (l *Logs) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	if _, err := events.ParseID(string(id)); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open session %s: %w", id, err)
	}
	log := newSessionLog(l.client, id)
	if _, err := log.Last(ctx); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return log, nil
}

// At returns one event of a session as the stream's leader has it. The error wraps [eventlog.ErrNotFound] when there is no such
// session, or no such event in several looks.
func (l *Logs) At(ctx context.Context, id events.ID, seq uint64) (eventlog.Message, error) {
	var raw rawMessage
	for look := range gapSightings {
		if look > 0 && wait(ctx, backoff(look-1)) != nil {
			break
		}
		var err error
		if raw, err = l.client.atLeader(ctx, SessionStream(id), getRequest{Seq: seq}); err != nil {
			return eventlog.Message{}, fmt.Errorf("session %s: event %d: %w", id, seq, mapped(err))
		}
		if raw.seq > 0 {
			return message(id, raw)
		}
	}
	if err := ctx.Err(); err != nil {
		return eventlog.Message{}, fmt.Errorf("session %s: event %d: %w", id, seq, err)
	}
	return eventlog.Message{}, fmt.Errorf("session %s: event %d: %w", id, seq, eventlog.ErrNotFound)
}

// sessionLog is the [eventlog.Log] of one session.
type sessionLog struct {
	client *Client
	id     events.ID
	stream string
}

func newSessionLog(c *Client, id events.ID) *sessionLog {
	return &sessionLog{client: c, id: id, stream: SessionStream(id)}
}

// Last implements [eventlog.Log]. It asks the stream's leader.
func (l *sessionLog) Last(ctx context.Context) (uint64, error) {
	state, err := l.client.state(ctx, l.stream)
	if err != nil {
		return 0, fmt.Errorf("session %s: %w", l.id, mapped(err))
	}
	return state.LastSeq, nil
}

// LastOf returns the session's last event of type t; ok is false when there is none. It asks the stream's leader.
func (l *sessionLog) LastOf(ctx context.Context, t events.Type) (m eventlog.Message, ok bool, err error) {
	raw, err := l.client.atLeader(ctx, l.stream, getRequest{LastFor: SessionSubject(l.id, t)})
	if err != nil {
		return eventlog.Message{}, false, fmt.Errorf("session %s: last %s: %w", l.id, t, mapped(err))
	}
	if raw.seq == 0 {
		return eventlog.Message{}, false, nil
	}
	m, err = message(l.id, raw)
	return m, err == nil, err
}

// Append implements [eventlog.Log].
//
// The publish carries the event's ID and, as its fence, the sequence before it. Whatever comes back but a plain
// acknowledgement is settled by reading what stands at the event's place: the event itself, then it is stored;
// another one, then the session is lost; nothing, then the same publish is sent again. The fence makes that safe even
// when the earlier one still arrives.
func (l *sessionLog) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if e.Seq == 0 || !e.ID.Valid() {
		return fmt.Errorf("session %s: append: %w: sequence %d, ID %q", l.id, events.ErrInvalid, e.Seq, e.ID)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("session %s: append event %d: %w", l.id, e.Seq, err)
	}
	a := appending{sessionLog: l, event: e, payload: payload, msg: &nats.Msg{
		Subject: SessionSubject(l.id, e.Type()),
		Header: nats.Header{
			headerMsgID:   {string(e.ID)},
			headerLastSeq: {strconv.FormatUint(e.Seq-1, 10)},
		},
		Data: payload,
	}}
	deadline := time.Now().Add(l.client.cfg.AppendTimeout)
	done, err := a.try(ctx) // bounded by the time of a request or two
	if done {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for attempt := 0; wait(ctx, backoff(attempt)) == nil; attempt++ {
		if done, err = a.try(ctx); done {
			return err
		}
	}
	return a.unsettled(err)
}

// appending is an append that is being settled.
type appending struct {
	*sessionLog
	event   *events.Event
	payload []byte
	msg     *nats.Msg
	sent    bool // a publish may have been stored, or may yet be
	short   int  // how often in a row the log looked too short
}

// try publishes once and settles the outcome if it can: done is false when another try is needed, with the reason.
func (a *appending) try(ctx context.Context) (done bool, err error) {
	ack, err := a.client.publish(ctx, a.msg)
	switch {
	case err == nil && !ack.Duplicate && ack.Seq == a.event.Seq && ack.Stream == a.stream:
		return true, nil
	case err == nil && (ack.Seq != a.event.Seq || ack.Stream != a.stream):
		return true, fmt.Errorf("session %s: append event %d: %w: the server stored it as message %d of stream %s",
			a.id, a.event.Seq, eventlog.ErrCorrupt, ack.Seq, ack.Stream)
	case isDisconnected(err):
		return false, mapped(err) // nothing was sent
	case err != nil && a.refusal(err):
		err = mapped(err)
		if a.sent { // an earlier publish may still arrive
			return true, a.unsettled(err)
		}
		return true, fmt.Errorf("session %s: append event %d: %w", a.id, a.event.Seq, err)
	case err != nil && !isConflict(err) && !errors.Is(err, nats.ErrNoResponders):
		a.sent = true
	}
	return a.settle(ctx, err)
}

// refusal reports whether err says for certain that the server did not store the message and will not.
func (a *appending) refusal(err error) bool {
	switch err := mapped(err); {
	case errors.Is(err, eventlog.ErrTooLarge), errors.Is(err, eventlog.ErrFull), errors.Is(err, eventlog.ErrPermission):
		return true
	}
	return false
}

// settle reads what stands at the event's place. published is what the publish ended with, nil when the server called
// it a duplicate.
func (a *appending) settle(ctx context.Context, published error) (done bool, err error) {
	stored, err := a.client.atLeader(ctx, a.stream, getRequest{Seq: a.event.Seq})
	switch {
	case apiCode(err) == codeStreamNotFound:
		return true, fmt.Errorf("session %s: append event %d: %w", a.id, a.event.Seq, mapped(err))
	case errors.As(err, new(*refusedError)), errors.Is(err, nats.ErrConnectionClosed):
		return true, a.unsettled(err)
	case err != nil:
		return false, mapped(err)
	case stored.seq > 0:
		m, err := message(a.id, stored)
		if err != nil {
			return true, err
		}
		return true, eventlog.CheckStored(a.id, a.event, a.payload, &m)
	}
	if published == nil {
		return false, fmt.Errorf("%w: the server knows event %d and does not show it", eventlog.ErrUnavailable, a.event.Seq)
	}
	if code := apiCode(published); code != 0 && !isConflict(published) && !a.passing(published) {
		return true, a.unsettled(published)
	}
	if apiCode(published) != codeWrongLastSequence {
		a.short = 0
		return false, mapped(published)
	}
	return a.gap(ctx)
}

// passing reports whether another try may fare better: the server was not able to, rather than not willing to.
func (a *appending) passing(err error) bool {
	api := apiError(err)
	return api != nil && api.Code >= 500
}

// gap looks whether the log ends before the event's predecessor, or has lost what stood at the event's place.
func (a *appending) gap(ctx context.Context) (done bool, err error) {
	last, err := a.Last(ctx)
	if err != nil {
		return errors.Is(err, eventlog.ErrNotFound), err
	}
	gap := &eventlog.GapError{Session: a.id, Want: last + 1, Got: a.event.Seq}
	switch {
	case last == a.event.Seq-1: // it has grown meanwhile: the next try tells
		a.short = 0
		return false, fmt.Errorf("%w: the log is changing", eventlog.ErrUnavailable)
	case last >= a.event.Seq: // something stood there, or stands there by now
		gap = &eventlog.GapError{Session: a.id, Want: a.event.Seq}
	}
	a.short++
	return a.short >= gapSightings, fmt.Errorf("append event %d: %w", a.event.Seq, gap)
}

// unsettled is the error of an append whose outcome is not known.
func (a *appending) unsettled(why error) error {
	return fmt.Errorf("session %s: append event %d: outcome unknown: %w", a.id, a.event.Seq, unavailable(why))
}

// unavailable makes err wrap [eventlog.ErrUnavailable] beside whatever it wraps.
func unavailable(err error) error {
	err = mapped(err)
	if errors.Is(err, eventlog.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, err)
}

// message converts a stored message of the session.
func message(session events.ID, m rawMessage) (eventlog.Message, error) {
	t, err := typeOf(session, m.subject)
	if err != nil {
		return eventlog.Message{}, fmt.Errorf("session %s: message %d: %w: %w", session, m.seq, eventlog.ErrCorrupt, err)
	}
	return eventlog.Message{Seq: m.seq, Type: t, ID: events.ID(m.id), Payload: m.payload, Stored: m.stored}, nil
}

// Read implements [eventlog.Log]. Any replica may serve it; what one does not have yet is asked of the leader.
func (l *sessionLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		next := max(from, 1)
		last, err := l.Last(ctx)
		if err != nil {
			yield(eventlog.Message{}, err)
			return
		}
		if next > last+1 {
			yield(eventlog.Message{}, fmt.Errorf("read from event %d: %w", next, &eventlog.GapError{Session: l.id, Want: last + 1}))
			return
		}
		for raw, err := range l.client.readRange(ctx, l.stream, "", next, last) {
			if err != nil {
				yield(eventlog.Message{}, fmt.Errorf("session %s: read event %d: %w", l.id, next, err))
				return
			}
			if raw.seq != next {
				yield(eventlog.Message{}, fmt.Errorf("read: %w", &eventlog.GapError{Session: l.id, Want: next, Got: raw.seq}))
				return
			}
			m, err := message(l.id, raw)
			if err != nil {
				yield(eventlog.Message{}, err)
				return
			}
			next++
			if !yield(m, nil) {
				return
			}
		}
		if next != last+1 {
			yield(eventlog.Message{}, fmt.Errorf("read: %w", &eventlog.GapError{Session: l.id, Want: next}))
		}
	}
}
