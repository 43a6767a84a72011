package jetstream

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Names of streams, subjects and consumers. docs/format/streams.md describes them and changes with this file.
const (
	// InboxStream holds the inputs that no worker has finished with.
	InboxStream = "INBOX"
	// VerdictsStream holds one record per verified request.
	VerdictsStream = "VERDICTS"
	// WitnessStream holds the receipts of what passed between workers and providers.
	WitnessStream = "WITNESS"
	// StepsStream holds one record per finished step.
	StepsStream = "STEPS"
	// InboxConsumer is the durable consumer that the workers share.
	InboxConsumer = "workers"

	sessionStreamPrefix = "SESSION_"
	sessionPrefix       = "session."
	inboxPrefix         = "inbox."
	verdictPrefix       = "verdict."
	wireSuffix          = ".wire"
	straySuffix         = ".stray"
	witnessPrefix       = "witness."
	requestSuffix       = ".request"
	answerSuffix        = ".answer"
	stepPrefix          = "step."
	hintPrefix          = "hint."
	livePrefix          = "live."
	workerPrefix        = "worker."

	// Partitions is the number of partitions that sessions fall into; see [Partition].
	Partitions = 16

	// dedupeWindow is how long the server remembers message IDs. It spares a tail read; nothing depends on it.
	dedupeWindow = 2 * time.Minute
)

// Partition returns the partition of a session, in [0, [Partitions]): the one that the server's mapping function
// partition would give for the ID.
func Partition(session events.ID) int {
	h := fnv.New32a()
	h.Write([]byte(session))
	return int(h.Sum32() % Partitions)
}

// SessionStream returns the name of the session's stream.
func SessionStream(session events.ID) string { return sessionStreamPrefix + string(session) }

// SessionSubject returns the subject of the session's events of type t.
func SessionSubject(session events.ID, t events.Type) string {
	return sessionPrefix + string(session) + "." + t.Subject()
}

// typeOf is the inverse of [SessionSubject] for one session.
func typeOf(session events.ID, subject string) (events.Type, error) {
	rest, ok := strings.CutPrefix(subject, sessionPrefix+string(session)+".")
	if !ok {
		return "", fmt.Errorf("subject %q is not of session %s", subject, session)
	}
	return events.Type(strings.ReplaceAll(rest, ".", "/")), nil
}

// SessionConfig returns the configuration of a session's stream.
//
// The republish mapping names the session and its partition literally: a stream has one session, so nothing is left
// to compute, and the hint's subject is the session's with another prefix.
func (c *Client) SessionConfig(session events.ID) natsjs.StreamConfig {
	subjects := sessionPrefix + string(session) + ".>"
	return natsjs.StreamConfig{
		Name:              SessionStream(session),
		Description:       "events of one session",
		Subjects:          []string{subjects},
		Retention:         natsjs.LimitsPolicy,
		Discard:           natsjs.DiscardNew,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Storage:           c.storage(),
		Compression:       natsjs.S2Compression,
		Replicas:          c.cfg.Replicas,
		Duplicates:        dedupeWindow,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
		RePublish: &natsjs.RePublish{
			Source:      subjects,
			Destination: hintPrefix + strconv.Itoa(Partition(session)) + "." + string(session) + ".>",
			HeadersOnly: true,
		},
	}
}

// InboxConfig returns the configuration of the INBOX stream: an input stays until a worker acknowledges it.
func (c *Client) InboxConfig() natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              InboxStream,
		Description:       "inputs of all sessions, until a worker has finished with them",
		Subjects:          []string{inboxPrefix + "*"},
		Retention:         natsjs.WorkQueuePolicy,
		Discard:           natsjs.DiscardNew,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Storage:           c.storage(),
		Compression:       natsjs.S2Compression,
		Replicas:          c.cfg.Replicas,
		Duplicates:        dedupeWindow,
		AllowDirect:       true,
	}
}

// recordsConfig returns the configuration of a stream of records.
func (c *Client) recordsConfig(name, description string, subjects ...string) natsjs.StreamConfig {
	return natsjs.StreamConfig{
		Name:              name,
		Description:       description,
		Subjects:          subjects,
		Retention:         natsjs.LimitsPolicy,
		Discard:           natsjs.DiscardNew,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		MaxConsumers:      -1,
		Storage:           c.storage(),
		Compression:       natsjs.S2Compression,
		Replicas:          c.cfg.Replicas,
		Duplicates:        dedupeWindow,
		DenyDelete:        true,
		DenyPurge:         true,
		AllowDirect:       true,
	}
}

func (c *Client) inboxConsumerConfig() natsjs.ConsumerConfig {
	return natsjs.ConsumerConfig{
		Durable:       InboxConsumer,
		Description:   "the workers",
		DeliverPolicy: natsjs.DeliverAllPolicy,
		AckPolicy:     natsjs.AckExplicitPolicy,
		AckWait:       c.cfg.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: c.cfg.MaxAckPending,
		Replicas:      c.cfg.Replicas,
		MemoryStorage: c.cfg.MemoryStorage,
	}
}

func (c *Client) storage() natsjs.StorageType {
	if c.cfg.MemoryStorage {
		return natsjs.MemoryStorage
	}
	return natsjs.FileStorage
}

// EnsureStreams sees to it that the shared streams with these names are there, all of them when none is named, INBOX with its
// consumer. It looks before it makes one, so that credentials that may not make streams work where an operator has made
// them. Any number of callers may do so at a time. What exists with another configuration is left alone and logged as a
// warning, field by field; see [Client.Differences].
//
// The error wraps [eventlog.ErrPermission] and names stream and right when a stream is missing and may not be made: an
// operator makes it, or grants the right.
func (c *Client) EnsureStreams(ctx context.Context, names ...string) error {
	wanted, err := c.sharedStreams(names)
	if err != nil {
		return err
	}
	for _, want := range wanted {
		have, err := c.lookAt(ctx, want.Name)
		if errors.Is(err, eventlog.ErrNotFound) {
			if err = c.createStream(ctx, want); err != nil {
				return fmt.Errorf("make stream %s, which is missing: %w", want.Name, err)
			}
			have, err = c.lookAt(ctx, want.Name)
		}
		if err != nil {
			return fmt.Errorf("look at stream %s: %w", want.Name, err)
		}
		for _, d := range compare(want, have) {
			c.cfg.Logger.WarnContext(ctx, "a stream differs from what this program would make",
				slog.String("stream", d.Stream), slog.String("field", d.Field), slog.String("have", d.Have), slog.String("want", d.Want))
		}
		if want.Name == InboxStream {
			if err := c.ensureInboxConsumer(ctx); err != nil {
				return fmt.Errorf("make consumer %s of stream %s, which is missing: %w", InboxConsumer, InboxStream, err)
			}
		}
	}
	return nil
}

// lookAt returns the configuration of a stream. The error is mapped; it wraps [eventlog.ErrNotFound] when there is none.
func (c *Client) lookAt(ctx context.Context, name string) (cfg natsjs.StreamConfig, err error) {
	err = c.retried(ctx, c.prefix+"STREAM.INFO."+name, func(ctx context.Context) error {
		stream, err := c.js.Stream(ctx, name)
		if err == nil {
			cfg = stream.CachedInfo().Config
		}
		return err
	})
	return cfg, err
}

// SharedStreams returns the names of the streams that are not a session's, in the order in which they are made.
func SharedStreams() []string {
	return []string{InboxStream, ObjectsStream, VerdictsStream, WitnessStream, StepsStream}
}

// sharedStreams returns the configurations of the shared streams with these names, of all when none is named.
func (c *Client) sharedStreams(names []string) ([]natsjs.StreamConfig, error) {
	objects := ObjectsConfig(c.cfg.Replicas)
	objects.Storage = c.storage()
	all := []natsjs.StreamConfig{
		c.InboxConfig(),
		objects,
		c.recordsConfig(VerdictsStream, "what verifiers have found, signed", verdictPrefix+"*", verdictPrefix+"*.*"),
		c.recordsConfig(WitnessStream, "receipts of what passed between workers and providers", witnessPrefix+"*.*"),
		c.recordsConfig(StepsStream, "one record per finished step", stepPrefix+"*"),
	}
	for _, name := range names {
		if !slices.Contains(SharedStreams(), name) {
			return nil, fmt.Errorf("%w: no shared stream has the name %q: there are %s", events.ErrInvalid, name, strings.Join(SharedStreams(), ", "))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	return slices.DeleteFunc(all, func(cfg natsjs.StreamConfig) bool { return !slices.Contains(names, cfg.Name) }), nil
}

// createStream makes the stream unless it exists, in whatever configuration.
func (c *Client) createStream(ctx context.Context, cfg natsjs.StreamConfig) error {
	return c.retried(ctx, c.prefix+"STREAM.CREATE."+cfg.Name, func(ctx context.Context) error {
		_, err := c.js.CreateStream(ctx, cfg)
		if apiCode(err) == codeStreamExists {
			return nil
		}
		return err
	})
}

// ensureInboxConsumer makes the workers' consumer unless it is there.
func (c *Client) ensureInboxConsumer(ctx context.Context) error {
	const name = InboxStream + "." + InboxConsumer
	err := c.retried(ctx, c.prefix+"CONSUMER.INFO."+name, func(ctx context.Context) error {
		_, err := c.js.Consumer(ctx, InboxStream, InboxConsumer)
		return err
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	subject := c.prefix + "CONSUMER.CREATE." + InboxStream + "." + InboxConsumer
	return c.retried(ctx, subject, func(ctx context.Context) error {
		_, err := c.js.CreateConsumer(ctx, InboxStream, c.inboxConsumerConfig())
		if errors.Is(err, natsjs.ErrConsumerExists) {
			return nil
		}
		return err
	})
}

// retried does something that may be done any number of times, until it is answered or the client's append timeout is
// over: a cluster is slow to make streams, and says nothing while it elects leaders.
func (c *Client) retried(ctx context.Context, subject string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.AppendTimeout)
	defer cancel()
	for attempt := 0; ; attempt++ {
		watched, stop := c.watch(ctx, subject)
		err := cause(watched, do(watched))
		stop()
		if err == nil {
			return nil
		}
		again := errors.Is(err, errNoAnswer) || errors.Is(err, errDisconnected) || isDisconnected(err) || isTransient(err)
		if !again || wait(ctx, backoff(attempt)) != nil {
			return mapped(err)
		}
	}
}

// isTransient reports whether the server says that it cannot answer right now.
func isTransient(err error) bool {
	const (
		codeClusterNotAvailable natsjs.ErrorCode = 10008
		codeClusterNotLeader    natsjs.ErrorCode = 10009
	)
	code := apiCode(err)
	return code == codeClusterNotAvailable || code == codeClusterNotLeader
}

// backoff returns the wait after the given attempt, counted from 0: 2 ms, doubled each time up to 256 ms.
func backoff(attempt int) time.Duration {
	return 2 * time.Millisecond << min(attempt, 7)
}

// Difference is a setting of an existing stream that is not what this client would have chosen.
type Difference struct{ Stream, Field, Have, Want string }

// Differences compares the shared streams with these names, all of them when none is named, with what this client would
// make. Settings that only bound how much is kept without evicting, such as MaxBytes with DiscardNew, are the operator's
// and not compared, and a mirror is another account's.
func (c *Client) Differences(ctx context.Context, names ...string) ([]Difference, error) {
	wanted, err := c.sharedStreams(names)
	if err != nil {
		return nil, err
	}
	var all []Difference
	for _, want := range wanted {
		have, err := c.lookAt(ctx, want.Name)
		if err != nil {
			return nil, fmt.Errorf("look at stream %s: %w", want.Name, err)
		}
		all = append(all, compare(want, have)...)
	}
	return all, nil
}

func compare(want, have natsjs.StreamConfig) []Difference {
	if have.Mirror != nil {
		return nil
	}
	var out []Difference
	for _, f := range []struct {
		name       string
		have, want any
	}{
		{"subjects", have.Subjects, want.Subjects},
		{"retention", have.Retention, want.Retention},
		{"discard", have.Discard, want.Discard},
		{"storage", have.Storage, want.Storage},
		{"num_replicas", have.Replicas, want.Replicas},
		{"max_age", have.MaxAge, want.MaxAge},
		{"max_msgs_per_subject", have.MaxMsgsPerSubject, want.MaxMsgsPerSubject},
		{"deny_delete", have.DenyDelete, want.DenyDelete},
		{"deny_purge", have.DenyPurge, want.DenyPurge},
		{"allow_direct", have.AllowDirect, want.AllowDirect},
	} {
		if h, w := fmt.Sprint(f.have), fmt.Sprint(f.want); h != w {
			out = append(out, Difference{Stream: want.Name, Field: f.name, Have: h, Want: w})
		}
	}
	return out
}
