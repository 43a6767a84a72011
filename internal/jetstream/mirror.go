package jetstream

import (
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

const (
	// metaOrigin is the metadata of a mirror that says when the stream that it mirrors was made.
	metaOrigin = "refold-origin-created"
	// mirrorPoll is the wait between two looks at a mirror that catches up.
	mirrorPoll = 20 * time.Millisecond
	// mirrorPatience is how long a mirror is waited for.
	mirrorPatience = 2 * time.Second
)

// MirroredStreams returns the names of the streams, beside those of sessions, that an auditor's account has mirrors of.
func MirroredStreams() []string { return []string{ObjectsStream, WitnessStream} }

// Origin is how an account reaches another one, whose streams it mirrors: the subjects under which it imports that
// account's JetStream API, and those on which that account delivers.
type Origin struct {
	// API is the prefix that stands for $JS.API, such as fleet.api.
	API string
	// Deliver is the prefix of the subjects on which the messages come, such as fleet.deliver.
	Deliver string
}

func (o *Origin) validate() error {
	for _, p := range []struct{ name, prefix string }{{"API", o.API}, {"deliver", o.Deliver}} {
		tokens := strings.Split(p.prefix, ".")
		for _, token := range tokens {
			if token == "" || strings.ContainsAny(token, "*> \t\r\n") {
				return fmt.Errorf("%w: %s prefix %q: want a subject without wildcards, such as fleet.api", events.ErrInvalid, p.name, p.prefix)
			}
		}
		if tokens[0] == "$JS" {
			return fmt.Errorf("%w: %s prefix %q: want the subject that the import is mapped to; $JS is this account's own", events.ErrInvalid, p.name, p.prefix)
		}
	}
	return nil
}

// Mirrors are copies in this account of another account's streams, which that account cannot take back: the messages have
// the same sequences, times and headers, but for those that fenced the writing. It is safe for concurrent use.
type Mirrors struct {
	client *Client
	origin Origin
}

// Mirrors returns the mirrors of an origin. The error wraps [events.ErrInvalid] and says what is wrong with the prefixes.
func (c *Client) Mirrors(origin Origin) (*Mirrors, error) {
	if err := origin.validate(); err != nil {
		return nil, err
	}
	return &Mirrors{client: c, origin: origin}, nil
}

// StreamState is how a stream stands, here or at the origin.
type StreamState struct {
	Name    string
	Created time.Time // when it was made
	Last    uint64    // its last sequence

	// Mirror says that it mirrors a stream, and Origin when that one was made, as far as the mirror's maker recorded it.
	Mirror bool
	Origin time.Time
	// Problem is what the server has against the mirror, empty when nothing.
	Problem string
	// Unknown says that the stream exists and its servers do not answer: nothing but the name is known.
	Unknown bool
}

func stateOf(name string, i *streamInfo) StreamState {
	s := StreamState{Name: name, Created: i.Created, Last: i.State.LastSeq, Mirror: i.Config.Mirror != nil}
	if i.Mirror != nil && i.Mirror.Error != nil {
		s.Problem = i.Mirror.Error.Description
	}
	if made, err := time.Parse(time.RFC3339Nano, i.Config.Metadata.Origin); err == nil {
		s.Origin = made
	}
	return s
}

// Here yields the streams of sessions in this account, in the order of their names. An error ends it.
func (m *Mirrors) Here(ctx context.Context) iter.Seq2[StreamState, error] {
	return m.client.states(ctx, m.client.prefix, "list the streams here")
}

// There yields the streams of sessions at the origin, in the order of their names. An error ends it.
func (m *Mirrors) There(ctx context.Context) iter.Seq2[StreamState, error] {
	return m.client.states(ctx, m.api(), "list the origin's streams under "+m.origin.API)
}

func (c *Client) states(ctx context.Context, prefix, op string) iter.Seq2[StreamState, error] {
	return func(yield func(StreamState, error) bool) {
		for s, err := range c.sessionStreams(ctx, prefix) {
			if err != nil {
				yield(StreamState{}, fmt.Errorf("%s: %w", op, atOrigin(err)))
				return
			}
			state := StreamState{Name: s.name, Unknown: true}
			if !s.missing {
				state = stateOf(s.name, &s.info)
			}
			if !yield(state, nil) {
				return
			}
		}
	}
}

func (m *Mirrors) api() string { return m.origin.API + "." }

// atOrigin is mapped for a question that another account answers, or nobody: then there is no export or import.
func atOrigin(err error) error {
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%w: nobody answers there: check export, import and prefix", eventlog.ErrUnavailable)
	}
	return mapped(err)
}

// LookHere returns how a stream in this account stands. The error wraps [eventlog.ErrNotFound] when there is none.
func (m *Mirrors) LookHere(ctx context.Context, name string) (StreamState, error) {
	return m.look(ctx, m.client.prefix, name)
}

// LookThere returns how a stream at the origin stands. The error wraps [eventlog.ErrNotFound] when there is none.
func (m *Mirrors) LookThere(ctx context.Context, name string) (StreamState, error) {
	s, err := m.look(ctx, m.api(), name)
	if err != nil {
		return s, fmt.Errorf("origin %s: %w", m.origin.API, err)
	}
	return s, nil
}

func (m *Mirrors) look(ctx context.Context, prefix, name string) (StreamState, error) {
	info, err := m.client.info(ctx, prefix, name)
	if err != nil {
		return StreamState{}, fmt.Errorf("stream %s: %w", name, atOrigin(err))
	}
	return stateOf(name, &info), nil
}

// Make makes the mirror of a stream that stands at the origin as there says. One that is here is left as it is.
func (m *Mirrors) Make(ctx context.Context, there StreamState) error {
	if err := m.client.createStream(ctx, m.config(there)); err != nil {
		return fmt.Errorf("make a mirror of stream %s: %w", there.Name, err)
	}
	return nil
}

// config returns the configuration of a mirror. The mirror of a session's stream sends hints, as that one does: when the
// message is here, not when it is there.
func (m *Mirrors) config(there StreamState) natsjs.StreamConfig {
	cfg := natsjs.StreamConfig{
		Name:        there.Name,
		Description: "mirror of a stream of another account",
		Mirror: &natsjs.StreamSource{
			Name:     there.Name,
			External: &natsjs.ExternalStream{APIPrefix: m.origin.API, DeliverPrefix: m.origin.Deliver},
		},
		Retention:         natsjs.LimitsPolicy,
		Discard:           natsjs.DiscardNew,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Storage:           m.client.storage(),
		Compression:       natsjs.S2Compression,
		Replicas:          m.client.cfg.Replicas,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
		Metadata:          map[string]string{metaOrigin: there.Created.UTC().Format(time.RFC3339Nano)},
	}
	if there.Name == ObjectsStream {
		cfg.Compression = natsjs.NoCompression
	}
	if id, ok := SessionOf(there.Name); ok {
		subjects := sessionPrefix + string(id) + ".>"
		cfg.RePublish = &natsjs.RePublish{
			Source: subjects, Destination: hintPrefix + strconv.Itoa(Partition(id)) + "." + string(id) + ".>", HeadersOnly: true,
		}
	}
	return cfg
}

// SessionOf returns the session whose stream has the name; ok is false for any other stream.
func SessionOf(stream string) (id events.ID, ok bool) {
	name, ok := strings.CutPrefix(stream, sessionStreamPrefix)
	return events.ID(name), ok && events.ID(name).Valid()
}

// current returns nil when the stream holds everything that it must hold now: it is no mirror, or it has all that the
// stream which it mirrors had when it was asked. It waits up to two seconds for a mirror to catch up. Otherwise, also when
// the origin does not answer, the error wraps [eventlog.ErrUnavailable] and nothing else: what the mirror lacks is not
// known to be missing.
func (c *Client) current(ctx context.Context, stream string) error {
	here, err := c.info(ctx, c.prefix, stream)
	if err != nil {
		return notCurrent(stream, "cannot be looked at", err)
	}
	mirror := here.Config.Mirror
	if mirror == nil {
		return nil
	}
	prefix := c.originOf(&here)
	there, err := c.info(ctx, prefix, mirror.Name)
	switch made := stateOf(stream, &here).Origin; {
	case err != nil && errors.Is(mapped(err), eventlog.ErrNotFound):
		return notCurrent(stream, "is a mirror of a stream that is not there any more", nil)
	case err != nil:
		return notCurrent(stream, "is a mirror whose origin cannot be asked under "+prefix+"STREAM.INFO."+mirror.Name, err)
	case !made.IsZero() && !made.Equal(there.Created):
		return notCurrent(stream, "is a mirror of a stream that is not there any more: another one has its name", nil)
	case there.State.LastSeq < here.State.LastSeq:
		return notCurrent(stream, fmt.Sprintf("is a mirror with %d messages, its origin has %d: it is not what was mirrored",
			here.State.LastSeq, there.State.LastSeq), nil)
	}
	deadline := time.Now().Add(mirrorPatience)
	for here.State.LastSeq < there.State.LastSeq {
		if time.Now().After(deadline) {
			return notCurrent(stream, fmt.Sprintf("is a mirror that is %d messages behind", there.State.LastSeq-here.State.LastSeq), nil)
		}
		if err := wait(ctx, mirrorPoll); err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
		if here, err = c.info(ctx, c.prefix, stream); err != nil {
			return notCurrent(stream, "cannot be looked at", err)
		}
	}
	return nil
}

// originOf returns the prefix of the API of the account whose stream a mirror mirrors.
func (c *Client) originOf(mirror *streamInfo) string {
	if external := mirror.Config.Mirror.External; external != nil {
		return strings.TrimSuffix(external.API, ".") + "."
	}
	return c.prefix
}

// notCurrent hides what the cause wraps: that an origin may not be asked or is gone says nothing about the mirror.
func notCurrent(stream, why string, cause error) error {
	if cause == nil {
		return fmt.Errorf("%w: stream %s %s", eventlog.ErrUnavailable, stream, why)
	}
	return fmt.Errorf("%w: stream %s %s: %s", eventlog.ErrUnavailable, stream, why, atOrigin(cause).Error())
}

// Current returns nil when the stream holds all records that it must hold now. It is for a mirror, which may lack what
// stands in the stream that it mirrors: read again behind it before you conclude that a record does not exist. Otherwise the
// error wraps [eventlog.ErrUnavailable]: try again later.
func (r *Records) Current(ctx context.Context) error { return r.client.current(ctx, r.stream) }

// Current is as [Records.Current], for the events of a log.
func (l *sessionLog) Current(ctx context.Context) error { return l.client.current(ctx, l.stream) }
