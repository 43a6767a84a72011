package tamper_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// logged returns a mutation of the log, which is checked with the signed verdicts in one of two cases. want is found in any
// case, unless maybe is set; with signed verdicts it is found that the log is not what was signed, if the change is not
// behind all that was.
func (b *base) logged(d *dice, what string, messages []eventlog.Message, last uint64, want found, maybe bool) (mutation, bool) {
	m := mutation{what: what, check: b.check(messages, last), want: want, maybe: maybe}
	first := b.differs(messages)
	if first == 0 {
		return m, false
	}
	if d.IntN(2) == 0 {
		return m, true
	}
	m.what += ", beside signed verdicts"
	m.check = b.with(m.check)
	signed := broken(audit.RuleSigned)
	if maybe && first <= b.lastSigned { // whatever else is found, this is
		m.maybe, m.also, m.want = false, want, signed
		return m, true
	}
	m.also = signed
	return m, true
}

// differs returns the sequence of the first event that is another one than in the session, 0 when there is none.
func (b *base) differs(messages []eventlog.Message) uint64 {
	for i := range max(len(messages), len(b.Messages)) {
		if i >= len(messages) || i >= len(b.Messages) {
			return uint64(i + 1)
		}
		x, y := &messages[i], &b.Messages[i]
		if x.Seq != y.Seq || x.ID != y.ID || x.Type != y.Type || !bytes.Equal(x.Payload, y.Payload) {
			return uint64(i + 1)
		}
	}
	return 0
}

// renumbered gives every message the sequence of its place.
func renumbered(messages []eventlog.Message) []eventlog.Message {
	messages = slices.Clone(messages)
	for i := range messages {
		messages[i].Seq = uint64(i + 1)
	}
	return messages
}

// relinked makes every payload say its place and link to the one before: all that somebody can do who has the whole log.
// What events say of each other's places stays as it is.
func relinked(messages []eventlog.Message) []eventlog.Message {
	messages = renumbered(messages)
	for i := range messages {
		e, err := events.Decode(messages[i].Payload)
		if err != nil {
			panic(err)
		}
		if e.Seq = messages[i].Seq; i == 0 {
			e.Prev = events.Hash{}
		}
		// An event that cites one behind itself cannot be encoded; nobody writes it.
		e.Sources = slices.DeleteFunc(slices.Clone(e.Sources), func(seq uint64) bool { return seq >= e.Seq })
		if messages[i].Payload, err = events.Encode(&e); err != nil {
			return nil
		}
	}
	return audittest.Relink(messages, 0)
}

func logKinds() []kind {
	return []kind{
		{"log: message deleted", 3, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			return b.logged(d, fmt.Sprintf("delete %d", i+1), slices.Delete(slices.Clone(b.Messages), i, i+1), b.last(), broken(audit.RuleSequence), false)
		}},
		{"log: message deleted, closed up", 3, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages) - 1)
			messages := renumbered(slices.Delete(slices.Clone(b.Messages), i, i+1))
			return b.logged(d, fmt.Sprintf("delete %d and close up", i+1), messages, b.last()-1, broken(audit.RuleMessage), false)
		}},
		{"log: event deleted, relinked", 3, deletedRelinked},
		{"log: message doubled", 3, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			return b.logged(d, fmt.Sprintf("double %d", i+1), slices.Insert(slices.Clone(b.Messages), i, b.Messages[i]), b.last(), broken(audit.RuleSequence), false)
		}},
		{"log: message doubled, renumbered", 3, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			messages := renumbered(slices.Insert(slices.Clone(b.Messages), i, b.Messages[i]))
			return b.logged(d, fmt.Sprintf("double %d and renumber", i+1), messages, b.last()+1, broken(audit.RuleMessage), false)
		}},
		{"log: event doubled, relinked", 3, doubledRelinked},
		{"log: neighbours swapped", 3, func(d *dice, b *base) (mutation, bool) {
			return b.logged(d, "swap", b.swapped(d), b.last(), broken(audit.RuleSequence), false)
		}},
		{"log: neighbours swapped, renumbered", 3, func(d *dice, b *base) (mutation, bool) {
			return b.logged(d, "swap and renumber", renumbered(b.swapped(d)), b.last(), broken(audit.RuleMessage), false)
		}},
		{"log: neighbours swapped, relinked", 3, func(d *dice, b *base) (mutation, bool) {
			messages := relinked(b.swapped(d))
			if messages == nil {
				return mutation{}, false
			}
			return b.logged(d, "swap and relink", messages, b.last(), order(), true)
		}},
		{"log: message moved", 3, func(d *dice, b *base) (mutation, bool) {
			return b.logged(d, "move", b.moved(d), b.last(), broken(audit.RuleSequence), false)
		}},
		{"log: message moved, renumbered", 3, func(d *dice, b *base) (mutation, bool) {
			return b.logged(d, "move and renumber", renumbered(b.moved(d)), b.last(), broken(audit.RuleMessage), false)
		}},
		{"log: event moved, relinked", 3, func(d *dice, b *base) (mutation, bool) {
			messages := relinked(b.moved(d))
			if messages == nil {
				return mutation{}, false
			}
			return b.logged(d, "move and relink", messages, b.last(), order(), true)
		}},
		{"log: cut off", 2, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			return b.logged(d, fmt.Sprintf("cut behind %d", i), b.Messages[:i], b.last(), broken(audit.RuleSequence), false)
		}},
		{"log: cut off, and states so", 2, func(d *dice, b *base) (mutation, bool) {
			i := d.index(len(b.Messages))
			return b.logged(d, fmt.Sprintf("cut behind %d", i), b.Messages[:i], uint64(i), nil, true)
		}},
		{"log: event replayed from another session", 3, replayed},
		{"log: another session's log", 1, func(d *dice, b *base) (mutation, bool) {
			other := d.bases[d.index(len(d.bases))]
			if other.ID == b.ID {
				return mutation{}, false
			}
			return b.logged(d, "the log of "+other.Name, other.Messages, other.last(), invalid(string(fold.RuleFirst)), false)
		}},
		{"log: message mislabelled", 3, mislabelled},
		{"log: event appended", 2, appended},
		{"log: written anew from some place on", 2, rewritten},
	}
}

// order are the rules of what stands where: an event that has another place than it had breaks one of them, or shows a request
// something else. It is a long list because a log holds everything in one order.
func order() found {
	return slices.Concat(
		invalid(ruleNames(fold.RuleFirst, fold.RuleSeed, fold.RuleClosed, fold.RuleClaim, fold.RuleInput, fold.RuleCancel, fold.RuleTurn, fold.RuleStep,
			fold.RuleMessage, fold.RuleHeader, fold.RuleConfig, fold.RuleContext, fold.RuleImages, fold.RuleStream, fold.RuleChunk, fold.RuleAnswer,
			fold.RuleFailure, fold.RuleCall, fold.RuleResult, fold.RuleReplace, fold.RuleCompaction)...),
		invalid(audit.RuleCodec), of(audit.Mismatch, ""),
	)
}

func ruleNames(rules ...fold.Rule) []string {
	out := make([]string, len(rules))
	for i, rule := range rules {
		out[i] = string(rule)
	}
	return out
}

func deletedRelinked(d *dice, b *base) (mutation, bool) {
	i := d.index(len(b.Messages) - 1)
	messages := relinked(slices.Delete(slices.Clone(b.Messages), i, i+1))
	if messages == nil {
		return mutation{}, false
	}
	return b.logged(d, fmt.Sprintf("delete %d and relink", i+1), messages, b.last()-1, order(), true)
}

// doubledRelinked puts an event into the log twice, with all that somebody can make fit: the same ID stays.
func doubledRelinked(d *dice, b *base) (mutation, bool) {
	i := d.index(len(b.Messages))
	messages := relinked(slices.Insert(slices.Clone(b.Messages), i, b.Messages[i]))
	if messages == nil {
		return mutation{}, false
	}
	return b.logged(d, fmt.Sprintf("double %d and relink", i+1), messages, b.last()+1, invalid(audit.RuleID), false)
}

func (b *base) swapped(d *dice) []eventlog.Message {
	i := d.index(len(b.Messages) - 1)
	messages := slices.Clone(b.Messages)
	messages[i], messages[i+1] = messages[i+1], messages[i]
	return messages
}

// moved takes a message from its place and puts it elsewhere.
func (b *base) moved(d *dice) []eventlog.Message {
	from := d.index(len(b.Messages))
	to := d.index(len(b.Messages) - 1)
	if to >= from {
		to++
	}
	m := b.Messages[from]
	return slices.Insert(slices.Delete(slices.Clone(b.Messages), from, from+1), to, m)
}

// replayed puts a message of another session in the place of the one with its sequence.
func replayed(d *dice, b *base) (mutation, bool) {
	other := d.bases[d.index(len(d.bases))]
	i := d.index(min(len(b.Messages), len(other.Messages)))
	if other.ID == b.ID {
		return mutation{}, false
	}
	messages := slices.Clone(b.Messages)
	messages[i] = other.Messages[i]
	want := broken(string(fold.RuleChain))
	if i == 0 {
		want = invalid(string(fold.RuleFirst))
	}
	return b.logged(d, fmt.Sprintf("event %d of %s", i+1, other.Name), messages, b.last(), want, false)
}

// mislabelled gives a message another ID or another type than its payload has.
func mislabelled(d *dice, b *base) (mutation, bool) {
	i, j := d.index(len(b.Messages)), d.index(len(b.Messages))
	messages := slices.Clone(b.Messages)
	if d.IntN(2) == 0 {
		messages[i].ID = b.Messages[j].ID
	} else {
		messages[i].Type = b.Messages[j].Type
	}
	return b.logged(d, fmt.Sprintf("the label of %d on %d", j+1, i+1), messages, b.last(), broken(audit.RuleMessage), false)
}

// appended puts an event behind the last one that fits there by all that links. If it keeps to the rules, the log has grown.
func appended(d *dice, b *base) (mutation, bool) {
	e := b.Events[d.index(len(b.Events))]
	head := events.HashPayload(b.Messages[len(b.Messages)-1].Payload)
	e.Seq, e.Prev, e.ID = b.last()+1, head, foldtest.ID(1_800_000_000_000, d.Uint64())
	payload, err := events.Encode(&e)
	if err != nil {
		return mutation{}, false
	}
	messages := append(slices.Clone(b.Messages), eventlog.Message{Seq: e.Seq, ID: e.ID, Type: e.Type(), Payload: payload})
	m, ok := b.logged(d, "append a copy of a "+string(e.Type()), messages, e.Seq, order(), true)
	return m, ok
}

// rewritten goes on from some place in another way, with everything that a worker does, bodies too: a log without a fault.
func rewritten(d *dice, b *base) (mutation, bool) {
	if b.log == nil {
		return mutation{}, false
	}
	n := 2 + d.index(len(b.Messages)-2)
	l := b.log.Prefix(n)
	if _, _, open := l.State.Seeding(); open || !l.State.AtBoundary() {
		return mutation{}, false
	}
	l.Body = audittest.Bodies()
	if _, claimed := l.State.Claim(); claimed == 0 {
		l.Claimed(events.ClaimCreated)
	}
	header := foldtest.Header()
	l.Configured(events.Options{System: header.System, Tools: []string{header.Tools[0].Name, header.Tools[1].Name}})
	for more := true; more; more = l.Len() < b.last() {
		l.TurnStart()
		l.StepStart()
		l.User("another question")
		l.PayContexts()
		l.Header(header)
		l.Reply(events.FinishStop, foldtest.TextBlock(0, "another answer"))
		l.StepEnd()
		l.TurnEnd(events.TurnCompleted)
	}
	// At another time, so that IDs differ.
	messages := audittest.Of("", l).Messages
	for i := n; i < len(messages); i++ {
		e, err := events.Decode(messages[i].Payload)
		if err != nil {
			panic(err)
		}
		e.Time++
		if messages[i].Payload, err = events.Encode(&e); err != nil {
			panic(err)
		}
	}
	messages = audittest.Relink(messages, max(n-1, 0))
	m, ok := b.logged(d, fmt.Sprintf("another history behind %d", n), messages, uint64(len(messages)), nil, true)
	return m, ok
}
