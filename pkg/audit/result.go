package audit

import "github.com/refold-dev/refold/pkg/events"

// Result is what a check found.
type Result string

// The results. Only [Match] says that a request is what the log says; [CouldNotCheck] is no finding at all.
const (
	Match         Result = "match"           // the rebuilt body has the recorded length and digest
	Mismatch      Result = "mismatch"        // it has not
	MissingObject Result = "missing-object"  // the object store does not hold an object that the request needs
	CorruptObject Result = "corrupt-object"  // the object store holds something else under its digest
	BrokenChain   Result = "broken-chain"    // events are missing, moved or changed
	UnknownCodec  Result = "unknown-codec"   // this program does not know the codec; a newer one may
	InvalidLog    Result = "invalid-log"     // an event breaks a rule of the log
	CouldNotCheck Result = "could-not-check" // log or objects gave no answer; try again
)

// Results returns all results, in the order of their documentation.
func Results() []Result {
	return []Result{Match, Mismatch, MissingObject, CorruptObject, BrokenChain, UnknownCodec, InvalidLog, CouldNotCheck}
}

func (r Result) valid() bool {
	switch r {
	case Match, Mismatch, MissingObject, CorruptObject, BrokenChain, UnknownCodec, InvalidLog, CouldNotCheck:
		return true
	}
	return false
}

// Kind says what a verdict is about.
type Kind string

// The kinds of verdicts.
const (
	KindRequest Kind = "request" // one llm/stream event
	KindHead    Kind = "head"    // a signed checkpoint: the log up to this event, which ends a turn or the session
	KindLog     Kind = "log"     // the log itself: it broke at an event that is no llm/stream, or differs from what was signed
	KindWire    Kind = "wire"    // what passed a witness for an llm/stream event
	KindStray   Kind = "stray"   // a call that passed a witness and that no llm/stream permits
)

func (k Kind) valid() bool {
	switch k {
	case KindRequest, KindHead, KindLog, KindWire, KindStray:
		return true
	}
	return false
}

// has reports whether a verdict of the kind may have the result.
func (k Kind) has(r Result) bool {
	switch k {
	case KindHead:
		return r == Match
	case KindLog:
		return r != Match
	case KindWire:
		return r == Match || r == Mismatch
	case KindStray:
		return r == Mismatch
	case KindRequest:
	}
	return true
}

// NoSession stands for the session in what is about none: a call without the header that names one. No session has this
// ID.
const NoSession events.ID = "00000000000000000000000000"

// The rules that verdicts name beside those of the fold.
const (
	RuleMessage   = "message"   // a message and its payload say the same
	RulePayload   = "payload"   // a payload is the canonical form of a valid event
	RuleVersion   = "version"   // this program knows the format and the type
	RuleSequence  = "sequence"  // sequences are contiguous from 1 to the log's last
	RuleID        = "id"        // no two events of a log have the same ID
	RuleSigned    = "signed"    // the log still is what was signed
	RuleSignature = "signature" // a verdict has the signature of its verifier
	RuleCodec     = "codec"     // the codec can represent the request
	RuleLineage   = "lineage"   // the parent's log holds the event that a fork names
	RuleEarlier   = "earlier"   // no event before breaks the log
	RuleCold      = "cold"      // a check from the first event on finds what was found before
	RuleShadow    = "shadow"    // the second fold shows what the first one shows
	RuleGone      = "gone"      // a session with signed verdicts has its log

	RuleWire        = "wire"        // what passed the witness is what the log recorded
	RuleUnwitnessed = "unwitnessed" // a call that was answered has passed a witness
	RuleUnlogged    = "unlogged"    // a call that passed a witness is one that a log permits
	RuleRepeated    = "repeated"    // a permitted call passes once
)
