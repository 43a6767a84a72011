package fold

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

func (s *State) applyStream(e *events.Event, b *events.LLMStream) error {
	if err := s.inStep(e, RuleStream, b.Turn, b.Step); err != nil {
		return err
	}
	position := s.surface.position()
	switch {
	case b.Purpose != events.PurposeLoop:
		return s.refuse(e, RuleUnsupported, "purpose %q", b.Purpose)
	case s.call != nil:
		return s.refuse(e, RuleStream, "the model call of event %d has no end", s.call.streamSeq)
	case s.answered:
		return s.refuse(e, RuleStream, "the step has its answer")
	case b.Attempt != s.attempt+1:
		return s.refuse(e, RuleStream, "attempt %d where %d belongs", b.Attempt, s.attempt+1)
	case !s.headerInstance:
		return s.refuse(e, RuleHeader, "the loop instance of event %d has recorded no header", s.claimSeq)
	case b.Header != s.headerSeq:
		return s.refuse(e, RuleStream, "header %d, but %d is in force", b.Header, s.headerSeq)
	case b.Surface != position:
		return s.refuse(e, RuleStream, "surface %+v, but it stands at %+v", b.Surface, position)
	case !slices.Equal(b.Objects, s.refs.fresh):
		return s.refuse(e, RuleStream, "it lists %d objects; %d came into use", len(b.Objects), len(s.refs.fresh))
	}
	s.attempt = b.Attempt
	s.call = &modelCall{stream: b, streamSeq: e.Seq, chunks: make([]uint64, 0, 16)}
	s.refs.fresh = nil
	return nil
}

// inCall refuses an event that names another attempt than the open one.
func (s *State) inCall(e *events.Event, rule Rule, turn, step, attempt int64) error {
	if err := s.inStep(e, rule, turn, step); err != nil {
		return err
	}
	if s.call == nil || attempt != s.attempt {
		return s.refuse(e, rule, "it belongs to attempt %d; attempt %d is the last (open: %t)", attempt, s.attempt, s.call != nil)
	}
	return nil
}

func (s *State) applyChunk(e *events.Event, b *events.AssistantChunk) error {
	if err := s.inCall(e, RuleChunk, b.Turn, b.Step, b.Attempt); err != nil {
		return err
	}
	for i := range b.Chunks {
		if err := s.call.answer.Add(&b.Chunks[i]); err != nil {
			return s.refuse(e, RuleChunk, "chunk %d: %v", i, err)
		}
	}
	s.call.chunks = append(s.call.chunks, e.Seq)
	return nil
}

func (s *State) applyAnswer(e *events.Event, b *events.AssistantMessage) error {
	if err := s.inCall(e, RuleAnswer, b.Turn, b.Step, s.attempt); err != nil {
		return err
	}
	a := &s.call.answer
	source := events.Source{Kind: events.SourceModel, Provider: s.header.Config.Provider, Model: s.header.Config.Model}
	switch {
	case e.Surface.Kind != events.SurfaceAppend:
		return s.refuse(e, RuleReplace, "an assistant message is appended")
	case !a.Finished:
		return s.refuse(e, RuleAnswer, "the stream has no finish chunk")
	case !slices.Equal(e.Sources, s.call.chunks):
		return s.refuse(e, RuleAnswer, "it cites %d events, the attempt's chunks stand in %d", len(e.Sources), len(s.call.chunks))
	case b.Finish != a.Finish || b.Interrupted != (a.Finish.Kind == events.FinishAborted):
		return s.refuse(e, RuleAnswer, "its finish is not the stream's")
	case b.UsageReported != a.UsageReported || b.Usage != a.Usage:
		return s.refuse(e, RuleAnswer, "its usage is not the stream's last")
	case b.Message.Source != source:
		return s.refuse(e, RuleAnswer, "its source is not the header's provider and model")
	case !a.is(b.Message.Content):
		return s.refuse(e, RuleAnswer, "its content is not what the chunks add up to")
	}
	for i := range b.Message.Content {
		c := &b.Message.Content[i]
		if c.Type != events.BlockToolCall {
			continue
		}
		if slices.ContainsFunc(s.tools, func(t toolCall) bool { return t.id == c.ID }) {
			return s.refuse(e, RuleCall, "two calls have the id %q", c.ID)
		}
		s.tools = append(s.tools, toolCall{id: c.ID, name: c.Name, arguments: c.Arguments})
	}
	s.call, s.answered, s.finish, s.failure = nil, true, b.Finish, events.Failure{}
	s.push(e, &b.Message)
	return nil
}

// blockEqual compares field by field.
func blockEqual(a, b events.Block) bool {
	return a.Type == b.Type && a.Text == b.Text && a.Object == b.Object && a.ID == b.ID && a.Name == b.Name &&
		a.Arguments == b.Arguments && a.ToolCallID == b.ToolCallID && a.IsError == b.IsError &&
		slices.EqualFunc(a.Content, b.Content, blockEqual)
}

func (s *State) applyFailed(e *events.Event, b *events.LLMFailed) error {
	if err := s.inCall(e, RuleFailure, b.Turn, b.Step, b.Attempt); err != nil {
		return err
	}
	s.call, s.failure = nil, b.Failure
	return nil
}

func (s *State) applyRetry(e *events.Event, turn, step int64) error {
	if err := s.inStep(e, RuleFailure, turn, step); err != nil {
		return err
	}
	if s.call != nil || s.answered || s.attempt == 0 {
		return s.refuse(e, RuleFailure, "a retry follows a failed model call")
	}
	return nil
}

func (s *State) applyToolCall(e *events.Event, b *events.ToolCall) error {
	if err := s.inStep(e, RuleCall, b.Turn, b.Step); err != nil {
		return err
	}
	for i := range s.tools {
		t := &s.tools[i]
		if t.callSeq != 0 || t.resultSeq != 0 {
			continue
		}
		if t.id != b.CallID || t.name != b.Name || t.arguments != b.Arguments {
			return s.refuse(e, RuleCall, "call %q of %q, but the model's next call is %q of %q, or their arguments differ", b.CallID, b.Name, t.id, t.name)
		}
		t.callSeq = e.Seq
		return nil
	}
	return s.refuse(e, RuleCall, "the model made no further call")
}

func (s *State) applyToolResult(e *events.Event, b *events.ToolResult) error {
	if b.Message.Source.Kind != events.SourceTool || b.Message.Source.CallID != b.CallID() {
		return s.refuse(e, RuleResult, "its source is not the call %q that it answers", b.CallID())
	}
	if e.Surface.Kind == events.SurfaceReplace {
		return s.replaceResult(e, b)
	}
	if err := s.inStep(e, RuleResult, b.Turn, b.Step); err != nil {
		return err
	}
	i := slices.IndexFunc(s.tools, func(t toolCall) bool { return t.resultSeq == 0 })
	if i < 0 || s.tools[i].id != b.CallID() {
		return s.refuse(e, RuleResult, "call %q is not the next to be answered", b.CallID())
	}
	t := &s.tools[i]
	switch {
	case t.callSeq == 0 && b.Error.Code != events.ToolNotStarted:
		return s.refuse(e, RuleResult, "call %q was not recorded as started", t.id)
	case t.callSeq != 0 && !slices.Equal(e.Sources, []uint64{t.callSeq}):
		return s.refuse(e, RuleResult, "it must cite the tool/call of event %d", t.callSeq)
	case t.callSeq == 0 && len(e.Sources) > 0:
		return s.refuse(e, RuleResult, "it cites events, but its call was never recorded")
	}
	t.resultSeq = e.Seq
	s.push(e, &b.Message)
	return nil
}
