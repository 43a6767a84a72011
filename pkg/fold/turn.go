package fold

import "github.com/refold-dev/refold/pkg/events"

func (s *State) applyConfigured(e *events.Event, b *events.SessionConfigured) error {
	if s.call != nil {
		return s.refuse(e, RuleInput, "a model call is open")
	}
	if err := s.claimInput(e, laneTurn, b.Claim); err != nil {
		return err
	}
	if hasSystem(&b.Options) {
		s.systemWithheld = e.Withheld()
	}
	s.options, s.optionsSeq = s.options.Merge(b.Options), e.Seq
	return nil
}

func (s *State) applyDropped(e *events.Event, b *events.InputDropped) error {
	return s.claimInput(e, laneNone, b.Claim)
}

func (s *State) applyClosed(e *events.Event, b *events.SessionClosed) error {
	if s.turnOpen {
		return s.refuse(e, RuleClosed, "turn %d is open", s.turn)
	}
	if err := s.notCompacting(e); err != nil {
		return err
	}
	if s.call != nil {
		return s.refuse(e, RuleClosed, "the model call of event %d has no end", s.call.streamSeq)
	}
	if err := s.claimInput(e, laneTurn, b.Claim); err != nil {
		return err
	}
	s.closed = true
	return nil
}

func (s *State) applyTurnStart(e *events.Event, b *events.TurnStart) error {
	if s.turnOpen || b.Turn != s.turn+1 {
		return s.refuse(e, RuleTurn, "turn %d starts, turn %d is the last (open: %t)", b.Turn, s.turn, s.turnOpen)
	}
	if err := s.idle(e, RuleTurn); err != nil {
		return err
	}
	s.turn, s.turnOpen, s.step, s.entered, s.prompted, s.cancelled = b.Turn, true, 0, 0, false, nil
	s.resetStep()
	return nil
}

func (s *State) applyTurnEnd(e *events.Event, b *events.TurnEnd) error {
	if !s.turnOpen || s.stepOpen || b.Turn != s.turn {
		return s.refuse(e, RuleTurn, "turn %d ends, turn %d is the last (open: %t, step open: %t)", b.Turn, s.turn, s.turnOpen, s.stepOpen)
	}
	if err := s.idle(e, RuleTurn); err != nil {
		return err
	}
	if c := s.cancelled; c != nil && (b.Kind != events.TurnAborted || b.Cause != c.Cause) {
		return s.refuse(e, RuleCancel, "it ends as %s with cause %q; it was cancelled with cause %q", b.Kind, b.Cause, c.Cause)
	}
	s.turnOpen, s.cancelled = false, nil
	return nil
}

// idle refuses an event while a compaction or a model call is open.
func (s *State) idle(e *events.Event, rule Rule) error {
	if err := s.notCompacting(e); err != nil {
		return err
	}
	if s.call != nil {
		return s.refuse(e, rule, "the model call of event %d has no end", s.call.streamSeq)
	}
	return nil
}

func (s *State) applyStepStart(e *events.Event, b *events.StepStart) error {
	if !s.turnOpen || s.stepOpen || b.Turn != s.turn || b.Step != s.step+1 {
		return s.refuse(e, RuleStep, "step %d.%d starts, step %d.%d is the last (turn open: %t, step open: %t)",
			b.Turn, b.Step, s.turn, s.step, s.turnOpen, s.stepOpen)
	}
	if err := s.idle(e, RuleStep); err != nil {
		return err
	}
	if err := s.uncancelled(e); err != nil {
		return err
	}
	s.step, s.stepOpen = b.Step, true
	s.resetStep()
	return nil
}

// resetStep forgets what the step before left behind.
func (s *State) resetStep() {
	s.attempt, s.answered, s.tools, s.retry = 0, false, nil, nil
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
	if err := s.idle(e, RuleStep); err != nil {
		return err
	}
	for _, t := range s.tools {
		if t.resultSeq == 0 {
			return s.refuse(e, RuleResult, "tool call %q has no result", t.id)
		}
	}
	s.stepOpen, s.retry = false, nil
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
	if err := s.idle(e, RuleMessage); err != nil {
		return err
	}
	if err := s.uncancelled(e); err != nil {
		return err
	}
	if err := s.claimMessage(e, b); err != nil {
		return err
	}
	if err := s.payContext(e, b); err != nil {
		return err
	}
	s.entered++
	s.push(e, &b.Message)
	s.retain(e, b)
	return nil
}

// preparing refuses an event that prepares a request where no request can follow: while a call is open, in a step that
// has its answer, in a cancelled turn. Outside of steps it may be for an auxiliary call.
func (s *State) preparing(e *events.Event, rule Rule) error {
	if s.call != nil || s.answered && s.stepOpen {
		return s.refuse(e, rule, "it is recorded before a model call, and not behind the step's answer")
	}
	return s.uncancelled(e)
}

func (s *State) applyHeader(e *events.Event, b *events.RequestHeader) error {
	if err := s.preparing(e, RuleHeader); err != nil {
		return err
	}
	reason, owed := s.HeaderOwed(&b.Header)
	if !owed {
		return s.refuse(e, RuleHeader, "it equals the header of event %d, which this loop instance has recorded or confirmed", s.headerSeq)
	}
	if reason != b.Reason {
		return s.refuse(e, RuleHeader, "reason %q where %q belongs", b.Reason, reason)
	}
	if err := s.checkConfig(e, b); err != nil {
		return err
	}
	s.header, s.headerSeq, s.headerInstance, s.headerWithheld = &b.Header, e.Seq, true, e.Withheld()
	s.refs.add(b.Header.Refs(nil))
	return nil
}

func (s *State) applyContext(e *events.Event, b *events.RequestContext) error {
	if err := s.preparing(e, RuleContext); err != nil {
		return err
	}
	switch {
	case s.header == nil:
		return s.refuse(e, RuleContext, "a request context is recorded behind a header")
	case b.Provider != s.header.Config.Provider || b.Model != s.header.Config.Model:
		return s.refuse(e, RuleContext, "it is for %s/%s, the header for %s/%s", b.Provider, b.Model, s.header.Config.Provider, s.header.Config.Model)
	case s.contextSeq > 0 && *b == s.context:
		return s.refuse(e, RuleContext, "it equals the one of event %d", s.contextSeq)
	}
	s.context, s.contextSeq = *b, e.Seq
	return nil
}
