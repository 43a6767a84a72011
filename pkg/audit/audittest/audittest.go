// Package audittest makes sessions for tests of what audits them: logs with the bodies that their requests really have,
// their objects in a store that can be damaged, what verifiers sign about them, and what witnesses saw of them.
//
// Like foldtest it panics when a test asks for what cannot be.
package audittest

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// Bodies returns a function that gives the bodies of one log's requests, in order.
func Bodies() foldtest.BodyFunc {
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		panic(err)
	}
	return func(request *fold.Request, source objects.Source) (string, events.BodyDigest) {
		body, err := builder.Build(request, source)
		if err != nil {
			panic(err)
		}
		return builder.Codec(), body.Digest()
	}
}

// Session is a whole log as a store gives it, with its objects.
type Session struct {
	Name     string
	ID       events.ID
	Messages []eventlog.Message
	Events   []events.Event
	Refs     []objects.Ref // those that its requests list, in log order
	Source   objects.Source
}

// Of returns the session of a log.
func Of(name string, l *foldtest.Log) *Session {
	return OfEvents(name, l.State.ID(), l.Events, l.Payloads, l.Objects)
}

// OfEvents returns the session of events and their payloads.
func OfEvents(name string, id events.ID, list []events.Event, payloads [][]byte, source objects.Source) *Session {
	s := &Session{Name: name, ID: id, Events: list, Source: source}
	for i := range list {
		e := &list[i]
		s.Messages = append(s.Messages, eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: payloads[i]})
		if b, ok := e.Body.(*events.LLMStream); ok {
			s.Refs = append(s.Refs, b.Objects...)
		}
	}
	return s
}

// Store returns the session's objects as a store, whole.
func (s *Session) Store() *Store { return &Store{Source: s.Source} }

// LogCheck returns the check of the session as it is.
func (s *Session) LogCheck() audit.LogCheck {
	return audit.LogCheck{
		Session: s.ID, Messages: Sequence(s.Messages), Last: uint64(len(s.Messages)), Objects: audit.FromStore(s.Store()),
	}
}

// Sign returns what a verifier with the key signs about the session, which must be as it should.
func (s *Session) Sign(ctx context.Context, key *audit.Key) []audit.Verdict {
	report, err := audit.CheckLog(ctx, s.LogCheck())
	if err != nil {
		panic(err)
	}
	if !report.AllMatch() {
		panic(fmt.Errorf("%s: the untouched log: %v", s.Name, report.Verdicts))
	}
	for i := range report.Verdicts {
		if err := key.Sign(&report.Verdicts[i]); err != nil {
			panic(err)
		}
	}
	return report.Verdicts
}

// KindOf returns what kind of verdict an event of the type calls for, empty for none.
func KindOf(t events.Type) audit.Kind {
	if t == events.TypeLLMStream {
		return audit.KindRequest
	}
	if t == events.TypeTurnEnd || t == events.TypeSessionClosed {
		return audit.KindHead
	}
	return ""
}

// Sequence gives the messages as a log does that can be read to its end.
func Sequence(messages []eventlog.Message) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for _, m := range messages {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Relink returns the messages with every payload behind the one at index from made to fit: each links to the one before, as
// somebody writes who has the whole log to himself. The payloads must be events.
func Relink(messages []eventlog.Message, from int) []eventlog.Message {
	messages = slices.Clone(messages)
	var prev events.Hash
	for i := from; i < len(messages); i++ {
		e, err := events.Decode(messages[i].Payload)
		if err != nil {
			panic(err)
		}
		if i > from {
			e.Prev = prev
			if messages[i].Payload, err = events.Encode(&e); err != nil {
				panic(err)
			}
		}
		prev, _ = e.Hash()
	}
	return messages
}

// Store is an object store over a session's objects in which single ones can be damaged. It takes nothing.
type Store struct {
	Source  objects.Source
	Missing map[objects.Digest]bool
	Altered map[objects.Digest][]byte
	Fail    error // what every Get fails with, nil for none
}

// Put refuses every object.
func (s *Store) Put(context.Context, objects.Ref, []byte) error { return objects.ErrUnavailable }

// Get returns a copy of what stands under the digest.
func (s *Store) Get(_ context.Context, d objects.Digest) ([]byte, error) {
	if s.Fail != nil {
		return nil, s.Fail
	}
	if b, ok := s.Altered[d]; ok {
		return slices.Clone(b), nil
	}
	b, ok := s.Source.Bytes(d)
	if !ok || s.Missing[d] {
		return nil, objects.ErrNotFound
	}
	return slices.Clone(b), nil
}

// Has looks at the undamaged objects.
func (s *Store) Has(_ context.Context, d objects.Digest) (bool, error) {
	_, ok := s.Source.Bytes(d)
	return ok, nil
}
