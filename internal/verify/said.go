package verify

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// verdicts yields the verdicts on a session's requests, heads and log that are to be believed, in the order of their
// places. It ends with the first error.
func (v *Verifier) verdicts(ctx context.Context, session events.ID) iter.Seq2[audit.Verdict, error] {
	return func(yield func(audit.Verdict, error) bool) {
		for record, err := range v.cfg.Verdicts.Read(ctx, session, 1) {
			if err != nil {
				yield(audit.Verdict{}, fmt.Errorf("read the verdicts: %w", err))
				return
			}
			if verdict, err := v.believed(&record); err == nil && !yield(verdict, nil) {
				return
			}
		}
	}
}

// reported reports whether a verdict with the rule was published about the session.
func (v *Verifier) reported(ctx context.Context, session events.ID, rule string) (bool, error) {
	for verdict, err := range v.verdicts(ctx, session) {
		if err != nil {
			return false, err
		}
		if verdict.Rule == rule {
			return true, nil
		}
	}
	return false, nil
}

// said reports whether a verdict on the session says what was found.
func (v *Verifier) said(ctx context.Context, found *audit.Verdict) (bool, error) {
	for verdict, err := range v.verdicts(ctx, found.Session) {
		if err != nil {
			return false, err
		}
		if says(&verdict, found) {
			return true, nil
		}
	}
	return false, nil
}

// says reports whether a verdict says what was found, at its event or at another one.
func says(old, found *audit.Verdict) bool {
	switch {
	case old.Result != found.Result || old.Rule != found.Rule:
		return false
	case once(found.Rule):
		return true
	case found.Rule == audit.RuleCold:
		return old.Reason == found.Reason
	case old.Kind == found.Kind && old.Seq == found.Seq && old.Chain == found.Chain:
		return true
	}
	return old.Kind == audit.KindLog && strings.HasPrefix(old.Reason, about(found))
}

// once reports whether a verdict with the rule is published once about a session, wherever it stands.
func once(rule string) bool {
	return rule == audit.RuleLineage || rule == audit.RuleShadow
}

// about words the event that a finding is about.
func about(found *audit.Verdict) string {
	if found.Chain == (events.Hash{}) {
		return fmt.Sprintf("event %d: ", found.Seq)
	}
	return fmt.Sprintf("event %d, whose payload hashes to %s: ", found.Seq, found.Chain)
}

// moved returns the verdict on the log that says what was found at the event of the newest verdict, because that one stands
// at or behind the event of the finding. The verdicts on a session stay in the order of their events.
func moved(found, newest *audit.Verdict) *audit.Verdict {
	v := audit.Verdict{
		Kind: audit.KindLog, Session: found.Session, Seq: newest.Seq, Result: found.Result, Rule: found.Rule, Reason: found.Reason,
	}
	if found.Result != audit.BrokenChain { // of which nobody compares hashes
		v.Event, v.Chain = newest.Event, newest.Chain
	}
	if !once(found.Rule) && found.Rule != audit.RuleCold && found.Rule != audit.RuleSigned {
		v.Reason = audit.Reason(about(found) + found.Reason)
	}
	return &v
}

// marksOf returns the hashes that were signed up to the newest verdict, by the sequences of their events. Where all is well
// that of the newest is enough: it stands for all before. Behind an event that breaks the log the chain does not.
func (v *Verifier) marksOf(ctx context.Context, session events.ID, newest *audit.Verdict) (map[uint64]events.Hash, error) {
	marks := make(map[uint64]events.Hash)
	mark := func(verdict *audit.Verdict) {
		if verdict.Result != audit.BrokenChain && verdict.Seq <= newest.Seq && verdict.Chain != (events.Hash{}) {
			marks[verdict.Seq] = verdict.Chain
		}
	}
	if newest.Result != audit.Match && newest.Seq > 0 {
		for verdict, err := range v.verdicts(ctx, session) {
			if err != nil {
				return nil, err
			}
			mark(&verdict)
		}
	}
	mark(newest)
	return marks, nil
}
