package fold

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// ObjectsOf returns the objects that b must list when it stands next in the log: those that came into use since the last
// llm/stream, in log order, then those that only its directive names; each once.
func (s *State) ObjectsOf(b *events.LLMStream) []objects.Ref {
	out := s.NewObjects()
	for _, ref := range directiveRefs(b) {
		if _, seen := s.refs.seen[ref]; !seen && !slices.Contains(out, ref) {
			out = append(out, ref)
		}
	}
	return out
}

// directiveRefs returns the objects that the directive of an auxiliary call names, in order.
func directiveRefs(b *events.LLMStream) []objects.Ref {
	if b.Auxiliary == nil {
		return nil
	}
	m := events.Message{Content: b.Auxiliary.Directive}
	return m.Refs(nil)
}

func (s *State) applyStream(e *events.Event, b *events.LLMStream) error {
	if s.call != nil {
		return s.refuse(e, RuleStream, "the model call of event %d has no end", s.call.streamSeq)
	}
	if err := s.uncancelled(e); err != nil {
		return err
	}
	if s.retry != nil {
		return s.refuse(e, RuleFailure, "the retry of event %d has not started", s.retrySeq)
	}
	attempt := &s.attempt
	var err error
	switch b.Purpose {
	case events.PurposeLoop:
		err = s.permitLoop(e, b)
	case events.PurposeCompaction:
		attempt, err = s.permitSummary(e, b)
	case events.PurposeTitle:
		attempt, err = &s.titleAttempt, s.permitTitle(e, b)
	}
	if err != nil {
		return err
	}
	if b.Attempt != *attempt+1 {
		return s.refuse(e, RuleStream, "attempt %d where %d belongs", b.Attempt, *attempt+1)
	}
	if err := s.sameRequest(e, b); err != nil {
		return err
	}
	*attempt = b.Attempt
	s.refs.add(directiveRefs(b))
	if b.Purpose == events.PurposeLoop {
		s.requested, s.requestedSeq = b.Surface, e.Seq
	}
	s.call = &modelCall{stream: b, streamSeq: e.Seq, chunks: make([]uint64, 0, 16)}
	s.refs.fresh = nil
	return nil
}

// permitLoop checks that the open step may make a call.
func (s *State) permitLoop(e *events.Event, b *events.LLMStream) error {
	if err := s.inStep(e, RuleStream, b.Turn, b.Step); err != nil {
		return err
	}
	if err := s.notCompacting(e); err != nil {
		return err
	}
	switch {
	case s.answered:
		return s.refuse(e, RuleStream, "the step has its answer")
	case len(s.owed) > 0:
		return s.refuse(e, RuleStream, "context of %q from event %d has not entered", s.owed[0].item.Plugin, s.owed[0].seq)
	}
	return nil
}

// permitSummary checks that the open compaction may make a call, and returns where its attempts are counted.
func (s *State) permitSummary(e *events.Event, b *events.LLMStream) (*int64, error) {
	switch {
	case s.compaction == nil:
		return nil, s.refuse(e, RuleCompaction, "no compaction is open")
	case s.compaction.summary != nil:
		return nil, s.refuse(e, RuleCompaction, "it has the summary of event %d", s.compaction.summarySeq)
	case b.Auxiliary.Region == events.Region{}:
		return nil, s.refuse(e, RuleCompaction, "it names no region")
	}
	return &s.compaction.attempt, s.permitAuxiliary(e, b)
}

// permitTitle checks that a call for a title may be made.
func (s *State) permitTitle(e *events.Event, b *events.LLMStream) error {
	if err := s.notCompacting(e); err != nil {
		return err
	}
	return s.permitAuxiliary(e, b)
}

// permitAuxiliary checks what holds for every auxiliary call.
func (s *State) permitAuxiliary(e *events.Event, b *events.LLMStream) error {
	if b.Turn != s.openTurn() || b.Step != s.openStep() || s.stepOpen && s.answered {
		return s.refuse(e, RuleStream, "it names step %d.%d; step %d.%d is the last (turn open: %t, step open: %t)",
			b.Turn, b.Step, s.turn, s.step, s.turnOpen, s.stepOpen)
	}
	if r := b.Auxiliary.Region; r != (events.Region{}) {
		lo, hi, ok := s.surface.run(r)
		if !ok {
			return s.refuse(e, RuleStream, "%d..%d is no run of surface nodes", r.Start, r.End)
		}
		if err := s.balanced(e, RuleStream, lo, hi); err != nil {
			return err
		}
	}
	return nil
}

// sameRequest checks that the call names the header, the surface and the objects that are in force.
func (s *State) sameRequest(e *events.Event, b *events.LLMStream) error {
	position := s.surface.position()
	switch {
	case !s.headerInstance:
		return s.refuse(e, RuleHeader, "the loop instance of event %d has recorded no header", s.claimSeq)
	case b.Header != s.headerSeq:
		return s.refuse(e, RuleStream, "header %d, but %d is in force", b.Header, s.headerSeq)
	case s.outdated():
		return s.refuse(e, RuleConfig, "the options were set by event %d, and the header of event %d does not follow them", s.optionsSeq, s.headerSeq)
	case b.Surface != position:
		return s.refuse(e, RuleStream, "surface %+v, but it stands at %+v", b.Surface, position)
	}
	if want := s.ObjectsOf(b); !slices.Equal(b.Objects, want) {
		return s.refuse(e, RuleStream, "it lists %d objects; %d came into use", len(b.Objects), len(want))
	}
	return nil
}

// inCall refuses an event that names another attempt than the open one.
func (s *State) inCall(e *events.Event, rule Rule, turn, step, attempt int64) error {
	if s.call == nil {
		return s.refuse(e, rule, "no model call is open")
	}
	if b := s.call.stream; turn != b.Turn || step != b.Step || attempt != b.Attempt {
		return s.refuse(e, rule, "it belongs to attempt %d.%d.%d; %d.%d.%d is open", turn, step, attempt, b.Turn, b.Step, b.Attempt)
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
	if s.call.stream.Purpose != events.PurposeLoop {
		return s.refuse(e, RuleAnswer, "the open call is for a %s", s.call.stream.Purpose)
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
	if b.UsageReported {
		s.usage, s.usageSeq = b.Usage, e.Seq
	}
	s.push(e, &b.Message)
	return nil
}

// blockEqual compares field by field.
func blockEqual(a, b events.Block) bool {
	return a.Type == b.Type && a.Text == b.Text && a.Object == b.Object && a.ID == b.ID && a.Name == b.Name &&
		a.Arguments == b.Arguments && a.ToolCallID == b.ToolCallID && a.IsError == b.IsError &&
		a.Width == b.Width && a.Height == b.Height &&
		slices.EqualFunc(a.Content, b.Content, blockEqual)
}

func (s *State) applyFailed(e *events.Event, b *events.LLMFailed) error {
	if err := s.inCall(e, RuleFailure, b.Turn, b.Step, b.Attempt); err != nil {
		return err
	}
	purpose := s.call.stream.Purpose
	s.call = nil
	switch purpose {
	case events.PurposeLoop:
		s.failure = b.Failure
	case events.PurposeCompaction:
		s.compaction.failure = b.Failure
	case events.PurposeTitle:
	}
	return nil
}

// failed returns the failure of the last call that may be tried again, zero when there is none.
func (s *State) failed() events.Failure {
	if s.compaction != nil {
		return s.compaction.failure
	}
	return s.failure
}

func (s *State) applyRetry(e *events.Event, b *events.LLMRetry) error {
	if err := s.uncancelled(e); err != nil {
		return err
	}
	if b.Turn != s.openTurn() || b.Step != s.openStep() || s.compaction == nil && !s.stepOpen {
		return s.refuse(e, RuleFailure, "it belongs to step %d.%d; step %d.%d is the last (open: %t)", b.Turn, b.Step, s.turn, s.step, s.stepOpen)
	}
	if s.call != nil || s.retry != nil || s.failed().Code == "" {
		return s.refuse(e, RuleFailure, "a retry follows a failed model call, and one is scheduled at a time")
	}
	s.retry, s.retrySeq, s.retryTime = b, e.Seq, e.Time
	return nil
}

func (s *State) applyRetryStarted(e *events.Event, b *events.LLMRetryStarted) error {
	if err := s.uncancelled(e); err != nil {
		return err
	}
	r := s.retry
	if r == nil || b.Turn != r.Turn || b.Step != r.Step || b.RetryID != r.RetryID || b.Retry != r.Retry {
		return s.refuse(e, RuleFailure, "no such retry is scheduled")
	}
	s.retry = nil
	return nil
}

// PendingRetry returns the retry that is scheduled and has not started, and when it was scheduled in Unix milliseconds.
func (s *State) PendingRetry() (r events.LLMRetry, at int64, ok bool) {
	if s.retry == nil {
		return r, 0, false
	}
	return *s.retry, s.retryTime, true
}

func (s *State) applyToolCall(e *events.Event, b *events.ToolCall) error {
	if err := s.inStep(e, RuleCall, b.Turn, b.Step); err != nil {
		return err
	}
	if err := s.uncancelled(e); err != nil {
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
	for _, c := range b.Contexts {
		s.owed = append(s.owed, owedContext{seq: e.Seq, item: c})
	}
	s.push(e, &b.Message)
	return nil
}
