package fold

import "github.com/refold-dev/refold/pkg/events"

// claimInput records that the event claims an input of the inbox; inbox 0 claims none.
func (s *State) claimInput(e *events.Event, inbox uint64) error {
	if inbox == 0 {
		return nil
	}
	if inbox <= s.input {
		return s.refuse(e, RuleInput, "input %d was claimed, or passed over, before: the log has claimed up to %d", inbox, s.input)
	}
	s.input = inbox
	return nil
}

func (s *State) applyConfigured(e *events.Event, b *events.SessionConfigured) error {
	if s.call != nil {
		return s.refuse(e, RuleInput, "a model call is open")
	}
	s.options, s.optionsSeq = s.options.Merge(b.Options), e.Seq
	return s.claimInput(e, b.InboxSeq)
}

func (s *State) applyClosed(e *events.Event, b *events.SessionClosed) error {
	if s.turnOpen {
		return s.refuse(e, RuleClosed, "turn %d is open", s.turn)
	}
	s.closed = true
	return s.claimInput(e, b.InboxSeq)
}

func (s *State) applyTurnStart(e *events.Event, b *events.TurnStart) error {
	if s.turnOpen || b.Turn != s.turn+1 {
		return s.refuse(e, RuleTurn, "turn %d starts, turn %d is the last (open: %t)", b.Turn, s.turn, s.turnOpen)
	}
	s.turn, s.turnOpen, s.step, s.entered = b.Turn, true, 0, 0
	s.resetStep()
	return nil
}

func (s *State) applyTurnEnd(e *events.Event, b *events.TurnEnd) error {
	if !s.turnOpen || s.stepOpen || b.Turn != s.turn {
		return s.refuse(e, RuleTurn, "turn %d ends, turn %d is the last (open: %t, step open: %t)", b.Turn, s.turn, s.turnOpen, s.stepOpen)
	}
	s.turnOpen = false
	return nil
}

func (s *State) applyStepStart(e *events.Event, b *events.StepStart) error {
	if !s.turnOpen || s.stepOpen || b.Turn != s.turn || b.Step != s.step+1 {
		return s.refuse(e, RuleStep, "step %d.%d starts, step %d.%d is the last (turn open: %t, step open: %t)",
			b.Turn, b.Step, s.turn, s.step, s.turnOpen, s.stepOpen)
	}
	s.step, s.stepOpen = b.Step, true
	s.resetStep()
	return nil
}

// resetStep forgets what the step before left behind.
func (s *State) resetStep() {
	s.attempt, s.answered, s.tools = 0, false, nil
	s.finish, s.failure = events.Finish{}, events.Failure{}
}

// inStep refuses an event that names another step than the open one.
func (s *State) inStep(e *events.Event, rule Rule, turn, step int64) error {
	if !s.stepOpen || turn != s.turn || step != s.step {
		return s.refuse(e, rule, "it belongs to step %d.%d; step %d.%d is the last (open: %t)", turn, step, s.turn, s.step, s.stepOpen)
	}
	return nil
}

func (s *State) applyStepEnd(e *events.Event, b *events.StepEnd) error {
	if err := s.inStep(e, RuleStep, b.Turn, b.Step); err != nil {
		return err
	}
	if s.call != nil {
		return s.refuse(e, RuleStep, "the model call of event %d has no end", s.call.streamSeq)
	}
	for _, t := range s.tools {
		if t.resultSeq == 0 {
			return s.refuse(e, RuleResult, "tool call %q has no result", t.id)
		}
	}
	s.stepOpen = false
	return nil
}

func (s *State) applyUserMessage(e *events.Event, b *events.UserMessage) error {
	if e.Surface.Kind == events.SurfaceReplace {
		if b.InboxSeq != 0 {
			return s.refuse(e, RuleInput, "a replacement claims no input")
		}
		return s.replace(e, &b.Message)
	}
	if !s.stepOpen || s.attempt > 0 {
		return s.refuse(e, RuleMessage, "user messages enter in an open step before its first model call")
	}
	if err := s.claimInput(e, b.InboxSeq); err != nil {
		return err
	}
	s.entered++
	s.push(e, &b.Message)
	return nil
}

func (s *State) applyHeader(e *events.Event, b *events.RequestHeader) error {
	if !s.stepOpen || s.call != nil || s.answered {
		return s.refuse(e, RuleHeader, "a header is recorded in an open step before its model call")
	}
	reason, owed := s.HeaderOwed(&b.Header)
	if !owed {
		return s.refuse(e, RuleHeader, "it equals the header of event %d, which this loop instance has recorded or confirmed", s.headerSeq)
	}
	if reason != b.Reason {
		return s.refuse(e, RuleHeader, "reason %q where %q belongs", b.Reason, reason)
	}
	s.header, s.headerSeq, s.headerInstance = &b.Header, e.Seq, true
	s.refs.add(b.Header.Refs(nil))
	return nil
}

func (s *State) applyContext(e *events.Event, b *events.RequestContext) error {
	switch {
	case !s.stepOpen || s.call != nil || s.header == nil:
		return s.refuse(e, RuleContext, "a request context is recorded in an open step, behind a header")
	case b.Provider != s.header.Config.Provider || b.Model != s.header.Config.Model:
		return s.refuse(e, RuleContext, "it is for %s/%s, the header for %s/%s", b.Provider, b.Model, s.header.Config.Provider, s.header.Config.Model)
	case s.contextSeq > 0 && *b == s.context:
		return s.refuse(e, RuleContext, "it equals the one of event %d", s.contextSeq)
	}
	s.context, s.contextSeq = *b, e.Seq
	return nil
}

func (s *State) applyCompactionStart(e *events.Event, b *events.CompactionStart) error {
	if s.compaction != "" || s.call != nil {
		return s.refuse(e, RuleCompaction, "compaction %q or a model call is open", s.compaction)
	}
	s.compaction = b.CompactionID
	return nil
}

func (s *State) applyCompactionPart(e *events.Event, id string, last bool) error {
	if s.compaction == "" || s.compaction != id {
		return s.refuse(e, RuleCompaction, "compaction %q, but %q is open", id, s.compaction)
	}
	if last {
		s.compaction = ""
	}
	return nil
}
