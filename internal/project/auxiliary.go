package project

import (
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// auxiliary is the auxiliary call that is open.
type auxiliary struct {
	stream   *events.LLMStream
	seq      uint64
	messages int64
}

// beginAuxiliary begins an auxiliary call. It is no part of the conversation: the next request of the loop is compared
// with the loop's request before, and what the call leaves in the provider's cache is not reckoned with.
func (s *Session) beginAuxiliary(e *events.Event, b *events.LLMStream, inherited bool, messages int64) {
	s.call = call{open: true, inherited: inherited, start: e.Time, auxiliary: &auxiliary{stream: b, seq: e.Seq, messages: messages}}
}

// endAuxiliary ends an open auxiliary call for the purpose and returns its record; nil when there is no such call, or it
// is the parent's.
func (s *Session) endAuxiliary(e *events.Event, purpose events.Purpose) *Record {
	a := s.call.auxiliary
	if a == nil || a.stream.Purpose != purpose {
		return nil
	}
	c := s.call
	s.call = call{}
	if c.inherited {
		return nil
	}
	ms := max(0, e.Time-c.start)
	config := &a.stream.Auxiliary.Config
	return &Record{
		V: Version, Session: s.ID(), Turn: a.stream.Turn, Step: a.stream.Step, Purpose: purpose, Seq: e.Seq,
		Time: max(0, e.Time), DurationMs: ms,
		Provider: Text(config.Provider), Model: Text(config.Model), Codec: Text(a.stream.Codec),
		Attempts: []Attempt{{
			Stream: a.seq, Bytes: a.stream.Body.Bytes, Messages: a.messages, FirstChunkMs: c.firstChunk, DurationMs: ms,
		}},
		Usage: c.usage, Finish: c.finish,
	}
}

// failAuxiliary is endAuxiliary for a call that gave no answer.
func (s *Session) failAuxiliary(e *events.Event, b *events.LLMFailed) *Record {
	r := s.endAuxiliary(e, s.call.auxiliary.stream.Purpose)
	if r == nil {
		return nil
	}
	a := r.Last()
	a.Failure, a.Usage = b.Failure.Code, r.Usage
	if b.UsageReported {
		a.Usage = UsageOf(b.Usage, true)
	}
	r.Failure, r.Usage, r.Finish = b.Failure.Code, nil, ""
	return r
}

// validateAuxiliary holds what a record of an auxiliary call has not.
func (r *Record) validateAuxiliary() error {
	switch {
	case r.Purpose != events.PurposeCompaction && r.Purpose != events.PurposeTitle:
		return fmt.Errorf("%w: unknown purpose %q", ErrInvalid, clip(string(r.Purpose)))
	case r.Turn < 0 || r.Step < 0 || r.Turn == 0 && r.Step > 0:
		return fmt.Errorf("%w: turn %d, step %d", ErrInvalid, r.Turn, r.Step)
	case len(r.Attempts) != 1 || r.Omitted != 0:
		return fmt.Errorf("%w: an auxiliary call is one attempt", ErrInvalid)
	case r.Cause != "" || r.ExpectedTokens != 0 || r.GapMs != 0 || r.ToolCalls != 0:
		return fmt.Errorf("%w: an auxiliary call has no cause, nothing expected, no gap and no tools", ErrInvalid)
	case r.Attempts[0].Prefix != Extent{} || r.Attempts[0].Limit != LimitNone || r.Attempts[0].Unbuilt != Built:
		return fmt.Errorf("%w: an auxiliary call is compared with no other", ErrInvalid)
	}
	return nil
}
