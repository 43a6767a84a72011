package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// subscription receives undurable messages. What comes while the receiver is far behind, or the connection is lost, is
// lost.
type subscription struct {
	subs  []*nats.Subscription
	inbox chan *nats.Msg
	done  chan struct{} // closed by Close
	conn  <-chan struct{}
}

const subscriptionBuffer = 1 << 13

// subscribe returns when the server knows of the subscription.
func (c *Client) subscribe(ctx context.Context, subjects ...string) (*subscription, error) {
	s := &subscription{inbox: make(chan *nats.Msg, subscriptionBuffer), done: make(chan struct{}), conn: c.closed}
	for _, subject := range subjects {
		sub, err := c.conn.ChanSubscribe(subject, s.inbox)
		if err != nil {
			s.unsubscribe()
			return nil, fmt.Errorf("subscribe to %s: %w", subject, mapped(err))
		}
		s.subs = append(s.subs, sub)
	}
	watched, stop := c.watchAll(ctx, subjects)
	defer stop()
	if err := c.conn.FlushWithContext(watched); err != nil {
		s.unsubscribe()
		return nil, fmt.Errorf("subscribe to %s: %w", strings.Join(subjects, ", "), mapped(cause(watched, err)))
	}
	return s, nil
}

// watchAll is watch for several subjects.
func (c *Client) watchAll(ctx context.Context, subjects []string) (context.Context, func()) {
	stops := make([]func(), 0, len(subjects))
	for _, subject := range subjects {
		var stop func()
		ctx, stop = c.watch(ctx, subject) //nolint:fatcontext // as deep as there are partitions
		stops = append(stops, stop)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (s *subscription) next(ctx context.Context) (*nats.Msg, error) {
	select {
	case msg := <-s.inbox:
		return msg, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.done:
		return nil, ErrClosed
	case <-s.conn:
		return nil, fmt.Errorf("%w: the client was closed", ErrClosed)
	}
}

func (s *subscription) unsubscribe() {
	for _, sub := range s.subs {
		sub.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	}
}

func (s *subscription) close() {
	s.unsubscribe()
	close(s.done)
}

// Hints are notices that a session has grown. They are sent at most once and may be lost: whoever uses them looks at
// all sessions from time to time as well.
type Hints struct{ client *Client }

// Hint says that the session's log holds the event Seq, of type Type.
type Hint struct {
	Session events.ID
	Seq     uint64
	Type    events.Type
}

// HintSubscription receives hints. Close it when done.
type HintSubscription struct{ sub *subscription }

// Subscribe starts to receive the hints of the sessions of some partitions (see [Partition]), of all when none is named.
// It returns when the server knows of it.
func (h *Hints) Subscribe(ctx context.Context, partitions ...int) (*HintSubscription, error) {
	subjects := []string{hintPrefix + "*.*.>"}
	if len(partitions) > 0 {
		subjects = subjects[:0]
		for _, p := range partitions {
			if p < 0 || p >= Partitions {
				return nil, fmt.Errorf("subscribe to hints: %w: partition %d, there are %d", events.ErrInvalid, p, Partitions)
			}
			subjects = append(subjects, hintPrefix+strconv.Itoa(p)+".*.>")
		}
	}
	sub, err := h.client.subscribe(ctx, subjects...)
	if err != nil {
		return nil, err
	}
	return &HintSubscription{sub: sub}, nil
}

// Next waits for the next hint. The error is ctx's or wraps [ErrClosed]. What is no hint is passed over.
func (s *HintSubscription) Next(ctx context.Context) (Hint, error) {
	for {
		msg, err := s.sub.next(ctx)
		if err != nil {
			return Hint{}, fmt.Errorf("receive hint: %w", err)
		}
		if h, ok := parseHint(msg); ok {
			return h, nil
		}
	}
}

// Close ends the subscription; a Next that waits returns [ErrClosed]. It is called once.
func (s *HintSubscription) Close() { s.sub.close() }

func parseHint(msg *nats.Msg) (Hint, bool) {
	parts := strings.SplitN(msg.Subject, ".", 4)
	if len(parts) != 4 || !events.ID(parts[2]).Valid() {
		return Hint{}, false
	}
	seq, err := strconv.ParseUint(headerOf(msg, "Nats-Sequence"), 10, 64)
	if err != nil || seq == 0 {
		return Hint{}, false
	}
	return Hint{Session: events.ID(parts[2]), Seq: seq, Type: events.Type(strings.ReplaceAll(parts[3], ".", "/"))}, true
}

// Live carries what models say while they say it. It is undurable: what matters is in the log.
type Live struct{ client *Client }

// Publish sends a payload to whoever listens to the session. It does not wait, and nothing says whether anybody got it.
func (l *Live) Publish(session events.ID, payload []byte) error {
	if _, err := events.ParseID(string(session)); err != nil {
		return fmt.Errorf("publish live: %w", err)
	}
	if err := l.client.conn.Publish(livePrefix+string(session), payload); err != nil {
		return fmt.Errorf("session %s: publish live: %w", session, mapped(err))
	}
	return nil
}

// LiveSubscription receives what is published about a session. Close it when done.
type LiveSubscription struct{ sub *subscription }

// Subscribe starts to listen to the session. It returns when the server knows of it.
func (l *Live) Subscribe(ctx context.Context, session events.ID) (*LiveSubscription, error) {
	if _, err := events.ParseID(string(session)); err != nil {
		return nil, fmt.Errorf("subscribe live: %w", err)
	}
	sub, err := l.client.subscribe(ctx, livePrefix+string(session))
	if err != nil {
		return nil, err
	}
	return &LiveSubscription{sub: sub}, nil
}

// Next waits for the next payload, which is the receiver's own. The error is ctx's or wraps [ErrClosed].
func (s *LiveSubscription) Next(ctx context.Context) ([]byte, error) {
	msg, err := s.sub.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("receive live: %w", err)
	}
	return msg.Data, nil
}

// Close ends the subscription; a Next that waits returns [ErrClosed]. It is called once.
func (s *LiveSubscription) Close() { s.sub.close() }

// Presence is how workers are asked whether they live, and told what waits for them.
type Presence struct{ client *Client }

// presenceParallel is how many questions one instance answers at a time.
const presenceParallel = 32

// Serve answers the questions put to the instance until ctx ends, which is no error, and then waits for the handlers
// that run. ready, unless nil, is called when the server knows of it. The handler is called concurrently, at most 32
// times at once; its context ends with ctx. An error wraps [eventlog.ErrPermission] or [eventlog.ErrUnavailable].
func (p *Presence) Serve(ctx context.Context, instance events.ID, ready func(), handler func(ctx context.Context, question []byte) []byte) error {
	if _, err := events.ParseID(string(instance)); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	sub, err := p.client.subscribe(ctx, workerPrefix+string(instance))
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer sub.close()
	if ready != nil {
		ready()
	}
	slots := make(chan struct{}, presenceParallel)
	defer func() {
		for range presenceParallel {
			slots <- struct{}{}
		}
	}()
	for {
		msg, err := sub.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("serve instance %s: %w: %w", instance, eventlog.ErrUnavailable, err)
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		go func() {
			defer func() { <-slots }()
			if err := msg.Respond(handler(ctx, msg.Data)); err != nil {
				p.client.cfg.Logger.WarnContext(ctx, "an answer was not sent", slog.String("instance", string(instance)), slog.Any("error", err))
			}
		}()
	}
}

// Ask puts a question to the instance and returns its answer. When nobody serves the instance the error wraps
// [ErrNoResponders] and comes at once; when it does not answer in time the error wraps [eventlog.ErrUnavailable].
func (p *Presence) Ask(ctx context.Context, instance events.ID, question []byte) ([]byte, error) {
	if _, err := events.ParseID(string(instance)); err != nil {
		return nil, fmt.Errorf("ask: %w", err)
	}
	resp, err := p.client.request(ctx, &nats.Msg{Subject: workerPrefix + string(instance), Data: question})
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf("ask instance %s: %w", instance, ErrNoResponders)
	}
	if err != nil {
		return nil, fmt.Errorf("ask instance %s: %w", instance, mapped(err))
	}
	return resp.Data, nil
}
