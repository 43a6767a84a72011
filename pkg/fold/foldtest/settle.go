package foldtest

import "github.com/refold-dev/refold/pkg/events"

// Settle appends what closes everything that is open, as a worker does that takes over or that stops for a cancel: the
// model call fails, tools get the result that stands for none, and the compaction, the step and the turn end.
func (l *Log) Settle() {
	_, cancelled := l.State.Cancelled()
	failure, tool, end := events.FailureInterrupted, events.ToolOutcomeUnknown, events.TurnInterrupted
	if cancelled {
		failure, tool, end = events.FailureCancelled, events.ToolCancelled, events.TurnAborted
	}
	if _, _, _, _, open := l.State.OpenCall(); open {
		l.Failed(failure)
	}
	if c, open := l.State.Compaction(); open {
		outcome := events.CompactionInterrupted
		if c.Replaced {
			outcome = events.CompactionCompleted
		}
		l.CompactionEnd(outcome)
	}
	for _, p := range l.State.PendingTools() {
		if p.CallSeq == 0 {
			l.ToolError(events.ToolNotStarted)
		} else {
			l.ToolError(tool)
		}
	}
	if _, open := l.State.Step(); open {
		l.StepEnd()
	}
	if _, open := l.State.Turn(); open {
		l.TurnEnd(end)
	}
}
