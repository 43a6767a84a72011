package tamper_test

import (
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// TestUnnoticed holds what docs/format/verdicts.md says is not noticed: that nothing is found is right, since nobody has said
// anything else. Each is noticed as soon as somebody has.
func TestUnnoticed(t *testing.T) {
	k := newKeys(t)
	l := audittest.Sample(foldtest.SessionID)
	l.TurnStart()
	l.StepStart()
	l.User("the last event, which nothing links back to")
	s := audittest.Of("", l)
	b := newBase(t, s, l, k)
	if b.lastSigned >= b.last() {
		t.Fatalf("everything up to %d is signed", b.lastSigned)
	}
	edited := slices.Clone(b.Messages)
	e, err := events.Decode(edited[len(edited)-1].Payload)
	if err != nil {
		t.Fatal(err)
	}
	e.Body.(*events.UserMessage).Message.Content[0].Text = "another one"
	if edited[len(edited)-1].Payload, err = events.Encode(&e); err != nil {
		t.Fatal(err)
	}
	other := audittest.Sample(foldtest.SessionID).Prefix(2)
	other.Body = audittest.Bodies()
	other.Turn("another history", "from the first turn on")
	cut := b.Messages[:len(b.Messages)-2]
	deep := b.Messages[:b.lastSigned-1]

	for name, tt := range map[string]struct {
		check   audit.LogCheck
		noticed found // nothing: it is not noticed
	}{
		"the last event is another":                     {b.check(edited, b.last()), nil},
		"and what stands before it is signed":           {b.with(b.check(edited, b.last())), nil},
		"and a verdict on it is signed":                 {also(b.with(b.check(edited, b.last())), b.headAt(b.last())), broken(audit.RuleSigned)},
		"the end is cut off, with the stated length":    {b.check(cut, uint64(len(cut))), nil},
		"and what stands before it is signed too":       {b.with(b.check(cut, uint64(len(cut)))), nil},
		"the stated length stays":                       {b.check(cut, b.last()), broken(audit.RuleSequence)},
		"cut off in front of what is signed":            {b.with(b.check(deep, uint64(len(deep)))), broken(audit.RuleSigned)},
		"another history with all that belongs to it":   {b.history(other), nil},
		"another history, and the first one was signed": {b.with(b.history(other)), broken(audit.RuleSigned)},
		"another history, and a witness saw the first one": {
			seen(b.history(other), b.receipts, k.witness.Public()), of(audit.Mismatch, audit.RuleUnwitnessed, audit.RuleUnlogged, audit.RuleWire),
		},
	} {
		report, err := audit.CheckLog(t.Context(), tt.check)
		if err != nil {
			t.Fatal(err)
		}
		findings := findingsOf(report)
		if len(tt.noticed) == 0 && len(findings) > 0 {
			t.Errorf("%s: found %v", name, findings)
		}
		if len(tt.noticed) > 0 && (len(findings) == 0 || slices.ContainsFunc(findings, func(f finding) bool { return !tt.noticed.has(f) })) {
			t.Errorf("%s: found %v, want of %v", name, findings, tt.noticed)
		}
	}
}

// also adds a signed verdict.
func also(c audit.LogCheck, v audit.Verdict) audit.LogCheck {
	c.Prior = append(slices.Clone(c.Prior), v)
	return c
}

// headAt returns a signed head at an event of the session.
func (b *base) headAt(seq uint64) audit.Verdict {
	m := &b.Messages[seq-1]
	v := audit.Verdict{Kind: audit.KindHead, Session: b.ID, Seq: seq, Event: m.ID, Chain: events.HashPayload(m.Payload), Result: audit.Match}
	signVerdict(b.key, &v)
	return v
}

// history checks another log in the place of the session's.
func (b *base) history(l *foldtest.Log) audit.LogCheck {
	var messages []eventlog.Message
	for i := range l.Events {
		e := &l.Events[i]
		messages = append(messages, eventlog.Message{Seq: e.Seq, ID: e.ID, Type: e.Type(), Payload: l.Payloads[i]})
	}
	return b.check(messages, uint64(len(messages)))
}

// seen adds what a witness saw.
func seen(c audit.LogCheck, receipts []audit.PlacedReceipt, witness string) audit.LogCheck {
	c.Receipts, c.Witnesses = receipts, []string{witness}
	return c
}
