package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Parents returns the hash of the payload that stands at a sequence of another session's log. The error wraps
// [ErrNoEvent] when that log holds no event there, [eventlog.ErrNotFound] or [eventlog.ErrPermission] when there is no
// log to look at, and anything else when there was no answer.
type Parents func(ctx context.Context, session events.ID, seq uint64) (events.Hash, error)

// ErrNoEvent is wrapped by the error of a [Parents] when the log is there and holds no event at that sequence.
var ErrNoEvent = errors.New("no event at that sequence")

// FromLogs looks at the logs of a store. A log that has a method Current(context.Context) error, as a copy that may be behind
// has, is only said to hold no event when that returned nil before.
func FromLogs(store eventlog.Store) Parents {
	return func(ctx context.Context, session events.ID, seq uint64) (events.Hash, error) {
		log, err := store.Open(ctx, session)
		if err != nil {
			return events.Hash{}, err
		}
		hash, err := hashAt(ctx, log, session, seq)
		if l, ok := log.(interface {
			Current(ctx context.Context) error
		}); ok && errors.Is(err, ErrNoEvent) {
			if behind := l.Current(ctx); behind != nil {
				return events.Hash{}, behind
			}
			return hashAt(ctx, log, session, seq)
		}
		return hash, err
	}
}

// hashAt returns the hash of the payload at a sequence of the session's log, as [Parents] does.
func hashAt(ctx context.Context, log eventlog.Log, session events.ID, seq uint64) (events.Hash, error) {
	for m, err := range log.Read(ctx, seq) {
		switch {
		case errors.Is(err, eventlog.ErrGap), errors.Is(err, eventlog.ErrCorrupt):
			return events.Hash{}, fmt.Errorf("%w: %w", ErrNoEvent, err)
		case err != nil:
			return events.Hash{}, err
		}
		return events.HashPayload(m.Payload), nil
	}
	return events.Hash{}, fmt.Errorf("session %s: %w: the log ends before event %d", session, ErrNoEvent, seq)
}

// Lineage says how a fork stands to the log that it was copied from.
type Lineage string

// The states of a lineage. That the copied events add up to the hash that the fork names is a rule of the log, which is
// checked in any case.
const (
	LineageNone      Lineage = ""          // the session is no fork, or nobody looked
	LineageConfirmed Lineage = "confirmed" // the parent's log holds the event that the fork names
	LineageUnknown   Lineage = "unknown"   // there is no parent's log to look at
	LineageBroken    Lineage = "broken"    // the parent's log holds something else
)

// Lineage returns how the session stands to its parent; it is none before the first event.
func (c *Checker) Lineage() Lineage { return c.lineage }

// fork is what a fork's first event says of its parent, with the verdict that a difference calls for.
type fork struct {
	verdict Verdict
	parent  events.Parent
}

// LookAtParent compares the event that a fork names with what the parent's log holds now, and sets the lineage. The verdict
// on a difference stands at the fork's first event. It does not break the fork's log, which stands for itself: either the
// fork names something that never was, or the parent's log is not any more what it was. There is none when nothing differs,
// when there is no log of a parent to look at, and when the session is no fork or nothing of it was applied.
//
// [Checker.Apply] does this at the first event behind CheckerConfig.Quiet; the parent's log may come, go or change later.
// The error wraps [ErrCouldNotCheck].
func (c *Checker) LookAtParent(ctx context.Context) (*Verdict, error) {
	if c.fork == nil {
		return nil, nil
	}
	v, p := c.fork.verdict, c.fork.parent
	hash, err := c.cfg.Parents(ctx, p.ID, p.Seq)
	c.asking = false
	switch {
	case errors.Is(err, eventlog.ErrNotFound), errors.Is(err, eventlog.ErrPermission):
		c.lineage = LineageUnknown
		return nil, nil
	case err == nil && hash == p.Chain:
		c.lineage = LineageConfirmed
		return nil, nil
	case err == nil:
		v.Reason = fmt.Sprintf("event %d of the parent %s hashes to %s, the fork names %s", p.Seq, p.ID, hash, p.Chain)
	case errors.Is(err, ErrNoEvent):
		v.Reason = fmt.Sprintf("the parent %s: %v", p.ID, err)
	default:
		c.asking = c.seq == 1
		return nil, fmt.Errorf("session %s: parent %s: %w: %w", v.Session, p.ID, ErrCouldNotCheck, err)
	}
	c.lineage = LineageBroken
	v.Result, v.Rule, v.Reason = InvalidLog, RuleLineage, clean(v.Reason, maxReason)
	return &v, nil
}
