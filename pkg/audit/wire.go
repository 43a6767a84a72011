package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

// PlacedReceipt is a receipt with its place in the stream WITNESS.
type PlacedReceipt struct {
	Place   uint64
	Receipt Receipt
}

// Call is a model call that a log permits: one llm/stream event that is the session's own, not copied from a parent.
type Call struct {
	verdict  Verdict // a wire verdict without a result
	Answered bool    // the log shows that something of an answer came
}

// Seq returns the sequence of the call's llm/stream event.
func (c *Call) Seq() uint64 { return c.verdict.Seq }

// CallOf returns the call that a verdict on a request is about. What came of it is not known.
func CallOf(v *Verdict) *Call {
	return &Call{verdict: Verdict{
		Kind: KindWire, Session: v.Session, Seq: v.Seq, Event: v.Event, Chain: v.Chain, Turn: v.Turn, Step: v.Step, Attempt: v.Attempt,
		Recorded: v.Recorded, Rebuilt: v.Rebuilt,
	}}
}

// SetRebuilt says what a check of the request that is done elsewhere has rebuilt.
func (c *Call) SetRebuilt(d events.BodyDigest) { c.verdict.Rebuilt = d }

// Receipt returns the first of the receipts, which are in the order of their places, that is of a request for the call;
// nil when there is none. A request without a body is none, unless the log recorded an empty one.
func (c *Call) Receipt(receipts []PlacedReceipt) *PlacedReceipt {
	i := slices.IndexFunc(receipts, func(p PlacedReceipt) bool {
		r := &p.Receipt
		return r.Kind == ReceiptRequest && r.Session == c.verdict.Session && r.Seq == c.verdict.Seq &&
			(r.Body.Bytes > 0 || c.verdict.Recorded.Bytes == 0)
	})
	if i < 0 {
		return nil
	}
	return &receipts[i]
}

// Wire returns the unsigned verdict on a call that has ended; receipt is what [Call.Receipt] returned of those that are
// believed. Required says that every call passes a witness. It is nil when there is nothing to say: no witness saw the call,
// and it was not answered, so that it may never have left, or needs no witness.
func (c *Call) Wire(receipt *PlacedReceipt, required bool) *Verdict {
	v := c.verdict
	switch {
	case receipt != nil:
		v.Wire, v.Receipt, v.Result = receipt.Receipt.Body, receipt.Place, Match
		switch {
		case v.Wire != v.Recorded:
			v.Result, v.Rule = Mismatch, RuleWire
			v.Reason = "the body that passed the witness is not the one that the log recorded: " + differs(v.Wire, v.Recorded)
		case v.Rebuilt != events.BodyDigest{} && v.Wire != v.Rebuilt:
			v.Result, v.Rule = Mismatch, RuleWire
			v.Reason = "the body that passed the witness is not the one that the log gives: " + differs(v.Wire, v.Rebuilt)
		}
	case c.Answered && required:
		v.Result, v.Rule = Mismatch, RuleUnwitnessed
		v.Reason = "the log holds an answer, and no witness saw the call"
	default:
		return nil
	}
	return &v
}

// differs words how the digest of what passed differs from another one, which is zero when the event that has it is unreadable.
func differs(got, want events.BodyDigest) string {
	if want == (events.BodyDigest{}) {
		return fmt.Sprintf("%d bytes, and what the event recorded cannot be read", got.Bytes)
	}
	if got.Bytes == want.Bytes {
		return fmt.Sprintf("both have %d bytes, and the digests differ", got.Bytes)
	}
	return fmt.Sprintf("%d bytes, and %d", got.Bytes, want.Bytes)
}

// Stray returns the unsigned verdict on the receipt of a request that no log permits, nil when one does, and for answers.
// known says that the session has a log; call is the one that the receipt names, nil when the log holds none there that is
// the session's own; earlier is the place of the first receipt of the same call, 0 when this is the first.
//
// Requests without a body need no permission, and uploads none but a session: see docs/format/verdicts.md.
func Stray(p *PlacedReceipt, known bool, call *Call, earlier uint64) *Verdict {
	r := &p.Receipt
	if r.Kind != ReceiptRequest || r.Body.Bytes == 0 || known && r.Seq == 0 && upload(r) {
		return nil
	}
	v := Verdict{
		Kind: KindStray, Session: cmp.Or(r.Session, NoSession), Seq: max(r.Seq, 1), Result: Mismatch, Rule: RuleUnlogged,
		Wire: r.Body, Receipt: p.Place,
	}
	switch {
	case r.Session == "":
		v.Reason = "a call that names no session"
	case !known:
		v.Reason = "a call that names a session without a log"
	case r.Seq == 0:
		v.Reason = "a call that names a session and no event of it"
	case call == nil:
		v.Reason = fmt.Sprintf("a call that names event %d, which permits none", r.Seq)
	case earlier != 0:
		v.Event, v.Chain, v.Recorded, v.Rule = call.verdict.Event, call.verdict.Chain, call.verdict.Recorded, RuleRepeated
		v.Reason = fmt.Sprintf("event %d permits one call, whose receipt stands at place %d", r.Seq, earlier)
	default:
		return nil
	}
	v.Reason = clean(fmt.Sprintf("%s: %s %s", v.Reason, r.Method, r.Target), maxReason)
	return &v
}

// Late returns the unsigned verdict on the first receipt of a call that has no wire verdict, as when the log broke before the
// call ended, or when the receipt came after the log had said that the call failed. It is nil when the recorded body passed.
func Late(p *PlacedReceipt, call *Call) *Verdict {
	r := &p.Receipt
	if r.Body == call.verdict.Recorded || r.Body.Bytes == 0 {
		return nil
	}
	v := call.verdict
	return &Verdict{
		Kind: KindStray, Session: v.Session, Seq: v.Seq, Event: v.Event, Chain: v.Chain, Recorded: v.Recorded, Wire: r.Body, Receipt: p.Place,
		Result: Mismatch, Rule: RuleWire, Reason: "the body that passed the witness is not the one that the log recorded: " + differs(r.Body, v.Recorded),
	}
}

// upload reports whether a receipt is of an upload of a file, which carries a session and no event of it. A target has no
// query, and one that was cut is no upload.
func upload(r *Receipt) bool {
	const post = "POST"
	return r.Method == post && strings.HasSuffix(r.Target, "/files")
}

// calls follows the model calls of one log. A log has one call open at most.
type calls struct {
	copied  uint64 // events up to here were copied from a fork's parent
	open    *Call
	purpose events.Purpose
	settled *Call // by the event seen last
}

// see takes the next event: v describes it, and body is nil when only its type is known.
func (c *calls) see(v *Verdict, t events.Type, body events.Body) {
	c.settled = nil
	switch b := body.(type) {
	case *events.SessionCreated:
		if b.SeedLength > 0 {
			c.copied = b.SeedLength + 1
		}
		return
	case *events.LLMStream:
		if c.open = nil; v.Seq > c.copied {
			c.open, c.purpose = CallOf(v), b.Purpose
			describeStream(&c.open.verdict, b)
			c.open.verdict.Codec = ""
		}
		return
	}
	if c.open == nil {
		return
	}
	switch t {
	case events.TypeAssistantChunk, events.TypeAssistantMessage, events.TypeCompactionSummary:
		c.open.Answered = true
	case events.TypeSessionTitle:
		if c.purpose != events.PurposeTitle {
			return
		}
		c.open.Answered = true
	case events.TypeLLMFailed:
	default:
		return
	}
	c.settled, c.open = c.open, nil
}

// judged takes over what was rebuilt for the open call.
func (c *calls) judged(v *Verdict) {
	if c.open != nil && c.open.Seq() == v.Seq {
		c.open.verdict.Rebuilt = v.Rebuilt
	}
}

// Settled returns the call whose end the message that was applied last has shown: it was answered with the first that came
// of the answer. It is nil when that message has shown none, and in a broken log. Calls that a fork has copied are its
// parent's and never returned.
func (c *Checker) Settled() *Call { return c.calls.settled }

// Copied returns the sequence of the last event that was copied from a fork's parent, 0 when none was.
func (c *Checker) Copied() uint64 { return c.calls.copied }
