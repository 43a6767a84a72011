package fold

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// compaction is an open compaction.
type compaction struct {
	start      *events.CompactionStart
	startSeq   uint64
	attempt    int64
	failure    events.Failure // of the last attempt
	summary    *events.CompactionSummary
	summarySeq uint64
	replaced   bool
}

// Compaction is an open compaction: how far it has come.
type Compaction struct {
	Start      events.CompactionStart
	StartSeq   uint64
	Attempt    int64          // the last attempt to get a summary, 0 before the first
	Failure    events.Failure // of the last attempt, zero when it did not fail
	Summary    events.CompactionSummary
	SummarySeq uint64 // 0: no summary yet
	Replaced   bool   // the summary stands in the region's place
}

// Compaction returns a copy of the open compaction.
func (s *State) Compaction() (c Compaction, ok bool) {
	o := s.compaction
	if o == nil {
		return c, false
	}
	c = Compaction{Start: *o.start, StartSeq: o.startSeq, Attempt: o.attempt, Failure: o.failure, SummarySeq: o.summarySeq, Replaced: o.replaced}
	if o.summary != nil {
		c.Summary = *o.summary
		c.Summary.Shadowed = slices.Clone(o.summary.Shadowed)
		c.Summary.Summary = slices.Clone(o.summary.Summary)
	}
	return c, true
}

// notCompacting refuses what may not happen while a compaction is open.
func (s *State) notCompacting(e *events.Event) error {
	if s.compaction != nil {
		return s.refuse(e, RuleCompaction, "compaction %q is open", s.compaction.start.CompactionID)
	}
	return nil
}

func (s *State) applyCompactionStart(e *events.Event, b *events.CompactionStart) error {
	if err := s.notCompacting(e); err != nil {
		return err
	}
	if err := s.uncancelled(e); err != nil {
		return err
	}
	switch {
	case s.call != nil || s.stepOpen && s.answered:
		return s.refuse(e, RuleCompaction, "a model call is open, or the step has its answer")
	case s.retry != nil:
		return s.refuse(e, RuleCompaction, "the retry of event %d has not started", s.retrySeq)
	case b.Turn != s.openTurn():
		return s.refuse(e, RuleCompaction, "it names turn %d; turn %d is the last (open: %t)", b.Turn, s.turn, s.turnOpen)
	case b.Claim.InboxSeq != 0 && (s.turnOpen || b.Reason != events.CompactionCommand):
		return s.refuse(e, RuleCompaction, "only a command outside of turns claims an input")
	}
	if err := s.claimInput(e, laneTurn, b.Claim); err != nil {
		return err
	}
	s.compaction = &compaction{start: b, startSeq: e.Seq}
	return nil
}

// inCompaction refuses an event that names another compaction than the open one.
func (s *State) inCompaction(e *events.Event, id string) error {
	if s.compaction == nil || s.compaction.start.CompactionID != id {
		return s.refuse(e, RuleCompaction, "compaction %q is not open", id)
	}
	return nil
}

func (s *State) applyCompactionSummary(e *events.Event, b *events.CompactionSummary) error {
	if err := s.inCompaction(e, b.CompactionID); err != nil {
		return err
	}
	c := s.compaction
	if c.summary != nil {
		return s.refuse(e, RuleCompaction, "it has the summary of event %d", c.summarySeq)
	}
	lo, hi, ok := s.surface.run(b.Region)
	if !ok || !slices.Equal(b.Shadowed, s.surface.seqs(lo, hi)) {
		return s.refuse(e, RuleCompaction, "%d..%d is no run of surface nodes, or shadowed does not list them", b.Region.Start, b.Region.End)
	}
	if c.attempt > 0 {
		if err := s.endSummary(e, b); err != nil {
			return err
		}
	}
	c.summary, c.summarySeq, c.failure = b, e.Seq, events.Failure{}
	return nil
}

// endSummary checks a summary against the call that gave it, and ends the call.
func (s *State) endSummary(e *events.Event, b *events.CompactionSummary) error {
	if s.call == nil {
		return s.refuse(e, RuleAnswer, "no model call is open")
	}
	a, aux := &s.call.answer, s.call.stream.Auxiliary
	switch {
	case s.call.stream.Purpose != events.PurposeCompaction:
		return s.refuse(e, RuleAnswer, "the open call is no compaction's")
	case !a.Finished || a.Finish.Kind != events.FinishStop:
		return s.refuse(e, RuleAnswer, "the stream has not finished with stop")
	case !slices.Equal(e.Sources, s.call.chunks):
		return s.refuse(e, RuleAnswer, "it cites %d events, the attempt's chunks stand in %d", len(e.Sources), len(s.call.chunks))
	case b.Region != aux.Region || b.Provider != aux.Config.Provider || b.Model != aux.Config.Model || b.MaxTokens != aux.Config.MaxTokens:
		return s.refuse(e, RuleAnswer, "its region, provider, model or maxTokens are not the call's")
	case b.UsageReported != a.UsageReported || b.Usage != a.Usage:
		return s.refuse(e, RuleAnswer, "its usage is not the stream's last")
	case !slices.EqualFunc(b.Summary, a.Texts(), blockEqual):
		return s.refuse(e, RuleAnswer, "its summary is not what the chunks add up to")
	}
	s.call = nil
	return nil
}

// placeSummary checks that a replacement in an open compaction is the compaction's own.
func (s *State) placeSummary(e *events.Event, m *events.Message) error {
	id := m.Source.CompactionID
	if id == "" && s.compaction == nil {
		return nil
	}
	if err := s.inCompaction(e, id); err != nil {
		return err
	}
	c := s.compaction
	switch {
	case c.summary == nil || c.replaced:
		return s.refuse(e, RuleCompaction, "compaction %q has no summary to put in place", id)
	case e.Surface.Region != c.summary.Region:
		return s.refuse(e, RuleCompaction, "the summary is of %d..%d", c.summary.Region.Start, c.summary.Region.End)
	case !slices.Contains(e.Sources, c.startSeq) || !slices.Contains(e.Sources, c.summarySeq):
		return s.refuse(e, RuleCompaction, "it must cite the events %d and %d of its compaction", c.startSeq, c.summarySeq)
	}
	c.replaced = true
	return nil
}

func (s *State) applyCompactionEnd(e *events.Event, b *events.CompactionEnd) error {
	if err := s.inCompaction(e, b.CompactionID); err != nil {
		return err
	}
	switch {
	case s.call != nil:
		return s.refuse(e, RuleCompaction, "the model call of event %d has no end", s.call.streamSeq)
	case b.Turn != s.compaction.start.Turn:
		return s.refuse(e, RuleCompaction, "it began in turn %d, not %d", s.compaction.start.Turn, b.Turn)
	case (b.Outcome == events.CompactionCompleted) != s.compaction.replaced:
		return s.refuse(e, RuleCompaction, "outcome %s, summary in place: %t", b.Outcome, s.compaction.replaced)
	}
	s.compaction, s.retry = nil, nil
	return nil
}

func (s *State) applyTitle(e *events.Event, b *events.SessionTitle) error {
	if s.call != nil && s.call.stream.Purpose == events.PurposeTitle {
		if !s.call.answer.Finished || !slices.Equal(e.Sources, s.call.chunks) {
			return s.refuse(e, RuleAnswer, "it does not cite the title call's chunks, or the call has not finished")
		}
		s.call = nil
	}
	s.title, s.titleAttempt = b.Title, 0
	return nil
}
