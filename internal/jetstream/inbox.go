package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Inbox holds the inputs of all sessions until workers have finished with them. It is safe for concurrent use.
type Inbox struct{ client *Client }

// Queued is an input in the inbox.
type Queued struct {
	Session events.ID
	Seq     uint64 // its place in the inbox, unique over all sessions; a session's inputs are handled in this order
	Input   events.Input
	Stored  time.Time // when the inbox stored it
}

// Publish stores an input for the session and returns its place. Publishing the same input again, with the same ID, is
// harmless within two minutes: duplicate is true then, and nothing new is stored. An ambiguous answer is settled that
// way before Publish returns; [eventlog.ErrUnavailable] says that it could not be: publish the same input again.
func (b *Inbox) Publish(ctx context.Context, session events.ID, in *events.Input) (seq uint64, duplicate bool, err error) {
	if _, err := events.ParseID(string(session)); err != nil {
		return 0, false, fmt.Errorf("publish input: %w", err)
	}
	payload, err := events.EncodeInput(in)
	if err != nil {
		return 0, false, fmt.Errorf("session %s: %w", session, err)
	}
	ctx, cancel := context.WithTimeout(ctx, b.client.cfg.AppendTimeout)
	defer cancel()
	msg := &nats.Msg{
		Subject: inboxPrefix + string(session),
		Header:  nats.Header{headerMsgID: {string(in.ID)}, headerStream: {InboxStream}},
		Data:    payload,
	}
	for attempt := 0; ; attempt++ {
		ack, err := b.client.publish(ctx, msg)
		if err == nil {
			return ack.Seq, ack.Duplicate, nil
		}
		again := errors.Is(err, errNoAnswer) || errors.Is(err, errDisconnected) || isDisconnected(err) || isTransient(err) ||
			isDuplicateInFlight(err)
		if !again || wait(ctx, backoff(attempt)) != nil {
			return 0, false, fmt.Errorf("session %s: publish input %s: %w", session, in.ID, mapped(err))
		}
	}
}

// isDuplicateInFlight reports whether the server refused a message because the one with the same ID is being stored.
func isDuplicateInFlight(err error) bool {
	const codeDuplicateConflict natsjs.ErrorCode = 10158
	return apiCode(err) == codeDuplicateConflict
}

// Next returns the session's first input after the place after, in order, whether it was delivered to anybody or not;
// ok is false when there is none. It asks the stream's leader, so what was published before the call is seen; what was
// acknowledged a moment before may be as well, so after should be the highest place that the session has claimed.
// Malformed inputs are passed over and logged. A question without an answer is asked again within Config.AppendTimeout.
func (b *Inbox) Next(ctx context.Context, session events.ID, after uint64) (q Queued, ok bool, err error) {
	if _, err := events.ParseID(string(session)); err != nil {
		return Queued{}, false, fmt.Errorf("next input: %w", err)
	}
	for {
		var m rawMessage
		err := b.client.retried(ctx, b.client.prefix+"STREAM.MSG.GET."+InboxStream, func(ctx context.Context) (err error) {
			m, err = b.client.atLeader(ctx, InboxStream, getRequest{Seq: after + 1, NextFor: inboxPrefix + string(session)})
			return err
		})
		if err != nil {
			return Queued{}, false, fmt.Errorf("session %s: next input after %d: %w", session, after, err)
		}
		if m.seq == 0 {
			return Queued{}, false, nil
		}
		q, err := b.decode(m)
		if err == nil {
			return q, true, nil
		}
		b.malformed(ctx, m, err)
		after = m.seq
	}
}

// Get returns the input at a place. A place that is empty, because the input was acknowledged or never existed, is an
// error that wraps [eventlog.ErrNotFound]; a malformed input one of [events.DecodeInput].
func (b *Inbox) Get(ctx context.Context, seq uint64) (Queued, error) {
	m, err := b.client.atLeader(ctx, InboxStream, getRequest{Seq: seq})
	if err != nil {
		return Queued{}, fmt.Errorf("input %d: %w", seq, mapped(err))
	}
	if m.seq == 0 {
		return Queued{}, fmt.Errorf("input %d: %w: the inbox has none there: it was acknowledged or never existed", seq, eventlog.ErrNotFound)
	}
	return b.decode(m)
}

func (b *Inbox) decode(m rawMessage) (Queued, error) {
	session, err := events.ParseID(strings.TrimPrefix(m.subject, inboxPrefix))
	if err != nil {
		return Queued{}, fmt.Errorf("input %d: subject %q: %w", m.seq, m.subject, err)
	}
	in, err := events.DecodeInput(m.payload)
	if err != nil {
		return Queued{}, fmt.Errorf("input %d of session %s: %w", m.seq, session, err)
	}
	if m.id != "" && m.id != string(in.ID) {
		return Queued{}, fmt.Errorf("input %d of session %s: %w: its payload has ID %s, its message %s",
			m.seq, session, events.ErrInvalid, in.ID, m.id)
	}
	return Queued{Session: session, Seq: m.seq, Input: in, Stored: m.stored}, nil
}

// malformed reports an input that nobody can handle. Its digest lets the sender recognise it; its content may be
// private and is not logged.
func (b *Inbox) malformed(ctx context.Context, m rawMessage, err error) {
	b.client.cfg.Logger.ErrorContext(ctx, "malformed input",
		slog.String("subject", m.subject), slog.Uint64("seq", m.seq), slog.Int("bytes", len(m.payload)),
		slog.String("sha256", events.HashPayload(m.payload).String()), slog.Any("error", err))
}

// Deliveries receives the inputs that the shared consumer hands to this worker. Stop it when done.
type Deliveries struct {
	inbox    *Inbox
	messages natsjs.MessagesContext
}

// Subscribe starts to receive inputs. At most buffer inputs are fetched ahead of [Deliveries.Receive]; each counts as
// delivered to this worker from then on, so a small number shares work better.
func (b *Inbox) Subscribe(ctx context.Context, buffer int) (*Deliveries, error) {
	var consumer natsjs.Consumer
	subject := b.client.prefix + "CONSUMER.INFO." + InboxStream + "." + InboxConsumer
	err := b.client.retried(ctx, subject, func(ctx context.Context) (err error) {
		consumer, err = b.client.js.Consumer(ctx, InboxStream, InboxConsumer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("receive inputs: consumer %s of stream %s: %w", InboxConsumer, InboxStream, err)
	}
	messages, err := consumer.Messages(natsjs.PullMaxMessages(max(1, buffer)), natsjs.PullExpiry(pullExpiry),
		natsjs.PullHeartbeat(pullExpiry/3), natsjs.WithMessagesErrOnMissingHeartbeat(false))
	if err != nil {
		return nil, fmt.Errorf("receive inputs: %w", mapped(err))
	}
	return &Deliveries{inbox: b, messages: messages}, nil
}

// pullExpiry is how long one request for inputs stands at the server.
const pullExpiry = 15 * time.Second

// Receive waits for the next input. Malformed ones are logged with session, place and digest and terminated: they would
// come back for ever, and an order cannot wait for them. The error wraps [ErrClosed] after Stop, ctx's error when ctx
// ends, and [eventlog.ErrNotFound] when the consumer was deleted: make the streams again.
func (d *Deliveries) Receive(ctx context.Context) (*Delivery, error) {
	for {
		msg, err := d.messages.Next(natsjs.NextContext(ctx))
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, fmt.Errorf("receive input: %w", ctx.Err())
		case errors.Is(err, natsjs.ErrMsgIteratorClosed):
			return nil, fmt.Errorf("receive input: %w", ErrClosed)
		case errors.Is(err, natsjs.ErrConsumerDeleted), errors.Is(err, natsjs.ErrConsumerNotFound):
			return nil, fmt.Errorf("receive input: %w: consumer %s of stream %s is gone: make the streams again",
				eventlog.ErrNotFound, InboxConsumer, InboxStream)
		default:
			return nil, fmt.Errorf("receive input: %w", mapped(err))
		}
		delivery, err := d.delivery(ctx, msg)
		if err != nil {
			return nil, err
		}
		if delivery != nil {
			return delivery, nil
		}
	}
}

// delivery decodes a delivered input; nil when it was malformed.
func (d *Deliveries) delivery(ctx context.Context, msg natsjs.Msg) (*Delivery, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("receive input: %w: %w", eventlog.ErrUnavailable, err)
	}
	raw := rawMessage{
		seq: meta.Sequence.Stream, subject: msg.Subject(), id: msg.Headers().Get(headerMsgID),
		payload: msg.Data(), stored: meta.Timestamp,
	}
	q, err := d.inbox.decode(raw)
	if err != nil {
		d.inbox.malformed(ctx, raw, err)
		if err := msg.TermWithReason("malformed input"); err != nil {
			return nil, fmt.Errorf("terminate input %d: %w", raw.seq, mapped(err))
		}
		return nil, nil //nolint:nilnil // nothing to deliver is no failure
	}
	return &Delivery{Queued: q, Redelivered: meta.NumDelivered > 1, Deliveries: meta.NumDelivered, client: d.inbox.client, msg: msg}, nil
}

// Stop ends the subscription. Inputs that were fetched and not received yet go back to the inbox at once. A Receive
// that waits returns [ErrClosed].
func (d *Deliveries) Stop() {
	d.messages.Drain()
	for {
		msg, err := d.messages.Next(natsjs.NextMaxWait(time.Second))
		if err != nil {
			break
		}
		if err := msg.Nak(); err != nil {
			d.inbox.client.cfg.Logger.Warn("an input was not given back and comes again after its acknowledgement time",
				slog.String("subject", msg.Subject()), slog.Any("error", err))
		}
	}
	d.messages.Stop()
}

// Delivery is an input that this worker was handed. It comes again, to any worker, when Config.AckWait passes without a
// sign of life.
type Delivery struct {
	Queued
	Redelivered bool
	Deliveries  uint64 // how often it was delivered, this time included

	client *Client
	msg    natsjs.Msg
}

// Ack says that the input is done with and waits until the server knows: it is not delivered again, and soon removed
// from the inbox. After an error it may come again.
func (d *Delivery) Ack(ctx context.Context) error {
	ctx, stop := d.client.watch(ctx, d.msg.Reply())
	defer stop()
	if err := d.msg.DoubleAck(ctx); err != nil && !errors.Is(err, natsjs.ErrMsgAlreadyAckd) {
		return fmt.Errorf("session %s: acknowledge input %d: %w", d.Session, d.Seq, mapped(cause(ctx, err)))
	}
	return nil
}

// InProgress says that the input is being worked on: the time until redelivery starts again.
func (d *Delivery) InProgress() error { return d.answer("keep", d.msg.InProgress()) }

// NakWithDelay gives the input back, to be delivered again after delay.
func (d *Delivery) NakWithDelay(delay time.Duration) error {
	return d.answer("give back", d.msg.NakWithDelay(delay))
}

// Term removes the input without its having been handled; the reason goes to the server's advisories.
func (d *Delivery) Term(reason string) error {
	return d.answer("terminate", d.msg.TermWithReason(reason))
}

func (d *Delivery) answer(op string, err error) error {
	if err != nil && !errors.Is(err, natsjs.ErrMsgAlreadyAckd) {
		return fmt.Errorf("session %s: %s input %d: %w", d.Session, op, d.Seq, mapped(err))
	}
	return nil
}
