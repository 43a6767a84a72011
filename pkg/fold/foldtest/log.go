// Package foldtest makes valid session logs for tests: by hand with [Log], at random with [Generate], and long ones of a
// realistic shape with [Session].
//
// Everything is deterministic: times and ids follow from the sequence. A log that a fold refuses is a mistake in the
// test, so the methods panic with the fold's error.
package foldtest

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// SessionID is the session of every log that [New] starts.
const SessionID events.ID = "01JDXAMP1E0000000000000000"

const (
	startTime = 1_733_000_000_000 // Unix milliseconds of event 0
	eventGap  = 17                // milliseconds from event to event
)

// BodyFunc says what the body of a request is: the codec's name, and length and digest of the bytes. The objects are
// those that the log has named.
type BodyFunc func(request *fold.Request, source objects.Source) (codec string, digest events.BodyDigest)

// NoBody is a [BodyFunc] for tests that do not look at bodies: the codec "none/1", whose body is empty.
func NoBody(*fold.Request, objects.Source) (string, events.BodyDigest) {
	return "none/1", events.BodyDigest{SHA256: events.HashPayload(nil)}
}

// Log is a valid log in the making, and its fold. Its fields may be read, and Body set before the first [Log.Stream].
type Log struct {
	Events   []events.Event
	Payloads [][]byte // the stored bytes of Events
	State    *fold.State
	Objects  *objects.Set // the bytes of every object made by [Log.Object]
	Body     BodyFunc     // nil stands for [NoBody]

	inbox uint64 // the highest place of the inbox that an event of the log names
}

// New returns an empty log of the session [SessionID].
func New() *Log { return newLog(SessionID) }

func newLog(id events.ID) *Log {
	return &Log{State: fold.New(id), Objects: new(objects.Set)}
}

// ID returns a valid ULID that follows from ms, Unix milliseconds, and n.
func ID(ms int64, n uint64) events.ID {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var id [26]byte
	for i := range 10 {
		id[i] = digits[ms>>(5*(9-i))&31]
	}
	for i := range 16 {
		shift := 5 * (15 - i)
		id[10+i] = '0'
		if shift < 64 {
			id[10+i] = digits[n>>shift&31]
		}
	}
	return events.ID(id[:])
}

// Option sets what an event has beside its body.
type Option func(*events.Event)

// Citing names the earlier events that the event derives from.
func Citing(seqs ...uint64) Option { return func(e *events.Event) { e.Sources = seqs } }

// Replacing puts the event in the place of the surface nodes start to end.
func Replacing(start, end uint64) Option {
	return func(e *events.Event) { e.Surface = events.ReplaceOp(start, end) }
}

// Len returns the number of events, which is the sequence of the last one.
func (l *Log) Len() uint64 { return uint64(len(l.Events)) }

// Build returns the event that [Log.Append] would append, encoded, without appending it.
func (l *Log) Build(body events.Body, opts ...Option) (events.Event, []byte, error) {
	seq := l.Len() + 1
	ms := startTime + int64(seq)*eventGap
	if created, ok := body.(*events.SessionCreated); ok && created.Session == "" {
		created.Session = l.State.ID()
	}
	e := events.Event{Seq: seq, ID: ID(ms, seq), Time: ms, Prev: l.State.Head(), Body: body}
	_, unknown := body.(*events.Unknown)
	e.Ignorable = unknown || body.Type() == events.TypeSessionTitle
	if body.Type().Surface() {
		e.Surface = events.AppendOp()
	}
	for _, opt := range opts {
		opt(&e)
	}
	payload, err := events.Encode(&e)
	return e, payload, err
}

// Append appends an event and returns its sequence. Messages go to the end of the surface unless an option says
// otherwise.
func (l *Log) Append(body events.Body, opts ...Option) uint64 {
	e, payload, err := l.Build(body, opts...)
	if err == nil {
		err = l.State.Apply(&e)
	}
	if err != nil {
		panic(fmt.Errorf("foldtest: the test builds a log that is not valid: %w", err))
	}
	l.Events = append(l.Events, e)
	l.Payloads = append(l.Payloads, payload)
	l.note(&e)
	return e.Seq
}

// Try returns what a fold says to the event that [Log.Append] would append. It leaves the log as it is.
func (l *Log) Try(body events.Body, opts ...Option) error {
	e, _, err := l.Build(body, opts...)
	if err != nil {
		return err
	}
	return l.Prefix(len(l.Events)).State.Apply(&e)
}

// note keeps what the next event needs to know of e.
func (l *Log) note(e *events.Event) {
	if e.Type() == events.TypeSessionEndSeed {
		l.inbox = 0
	}
	l.inbox = max(l.inbox, ClaimOf(e.Body).InboxSeq)
}

// ClaimOf returns the input that an event claims, zero when it claims none.
func ClaimOf(body events.Body) events.Claim {
	switch b := body.(type) {
	case *events.UserMessage:
		if b.InboxSeq != 0 {
			return events.Claim{InboxSeq: b.InboxSeq, InputID: events.ID(b.Message.ID)}
		}
	case *events.SessionConfigured:
		return b.Claim
	case *events.SessionClosed:
		return b.Claim
	case *events.InputDropped:
		return b.Claim
	case *events.TurnCancelled:
		return b.Claim
	case *events.CompactionStart:
		return b.Claim
	}
	return events.Claim{}
}

// NextClaim returns the claim of the input behind the last one that the log names.
func (l *Log) NextClaim() events.Claim { return ClaimAt(l.inbox + 1) }

// ClaimAt returns the claim of the input at a place of the inbox, with the id that every log of this package gives it.
func ClaimAt(seq uint64) events.Claim {
	return events.Claim{InboxSeq: seq, InputID: ID(startTime, 1<<48|seq)}
}

// Prefix returns a log of the first n events, to go on with in another way. It shares the objects and the events'
// bodies with l.
func (l *Log) Prefix(n int) *Log {
	p := newLog(l.State.ID())
	p.Objects, p.Body = l.Objects, l.Body
	p.Events = slices.Clone(l.Events[:n])
	p.Payloads = slices.Clone(l.Payloads[:n])
	for i := range p.Events {
		if err := p.State.Apply(&p.Events[i]); err != nil {
			panic(fmt.Errorf("foldtest: a prefix of a valid log: %w", err))
		}
		p.note(&p.Events[i])
	}
	return p
}

// Fork returns the log of a session that forked from l behind its first n events, up to and with session/end-seed.
func (l *Log) Fork(n int) *Log {
	parent := l.Prefix(n)
	f := newLog(ID(startTime, l.Len()))
	f.Objects, f.Body = l.Objects, l.Body
	created := *parent.Events[0].Body.(*events.SessionCreated)
	created.Session = f.State.ID()
	first, _ := parent.Events[0].Hash()
	created.Parent = events.Parent{ID: l.State.ID(), Seq: uint64(n), Chain: parent.State.Head(), First: first}
	created.SeedLength = uint64(n - 1)
	f.Append(&created)
	for _, e := range parent.Events[1:] {
		f.Append(e.Body, func(copied *events.Event) {
			copied.ID, copied.Time, copied.Surface, copied.Sources, copied.Ignorable = e.ID, e.Time, e.Surface, e.Sources, e.Ignorable
		})
	}
	if n > 1 && parent.Events[n-1].Type() != events.TypeSessionEndSeed {
		f.Append(new(events.SessionEndSeed))
	}
	return f
}

// Object makes an object and returns its reference.
func (l *Log) Object(data []byte, mediaType string) objects.Ref {
	ref := objects.Ref{Digest: objects.Sum(data), Bytes: int64(len(data)), MediaType: mediaType}
	if err := l.Objects.Add(ref, data); err != nil {
		panic(fmt.Errorf("foldtest: %w", err))
	}
	return ref
}

// TextObject makes an object of the text and returns a block that refers to it.
func (l *Log) TextObject(text string) events.Block {
	return events.Block{Type: events.BlockText, Object: l.Object([]byte(text), events.TextMediaType)}
}
