package events

import (
	"cmp"
	"math"
	"slices"
)

// Label is one name and value attached to a session.
type Label struct{ Name, Value string }

func labelFields(w *wire, l *Label) {
	w.open()
	w.str("name", &l.Name)
	w.str("value", &l.Value)
	w.close()
}

// Parent names the point of another session from which a fork started.
type Parent struct {
	ID    ID     // the session
	Seq   uint64 // its last event that the fork copied
	Chain Hash   // that event's hash
	First Hash   // the hash of the parent's first event, which a fork does not copy
}

// Claim names the input of the inbox that an event claims. The zero Claim claims none.
type Claim struct {
	InboxSeq uint64 // its place in the inbox
	InputID  ID     // the client's id for it
}

func (c *Claim) fields(w *wire) {
	w.optUint("inboxSeq", &c.InboxSeq)
	if w.optional("inputId", c.InputID != "") {
		w.id("inputId", &c.InputID)
	}
	if w.err == nil && (c.InboxSeq == 0) != (c.InputID == "") {
		w.fail(ErrInvalid, "inboxSeq and inputId stand together")
	}
}

// SessionCreated is the first event of every log.
type SessionCreated struct {
	Session         ID      // the session's id, so that a log cannot pass for another session's; a fold demands it
	Labels          []Label // sorted by name, names unique
	Preset          string
	Cwd             string
	Options         Options
	Parent          Parent // zero: not a fork
	SeedLength      uint64 // fork: how many events after this one were copied, less than 2^63
	DelegationDepth int64
}

// Type returns [TypeSessionCreated].
func (*SessionCreated) Type() Type { return TypeSessionCreated }

func (b *SessionCreated) fields(w *wire) {
	format := uint64(Version)
	w.uint("format", &format)
	if w.err == nil && format != Version {
		w.fail(ErrVersion, "log format %d, this reader knows %d", format, Version)
	}
	if w.optional("session", b.Session != "") {
		w.id("session", &b.Session)
	}
	optList(w, "labels", &b.Labels, labelFields)
	w.optStr("preset", &b.Preset)
	w.optStr("cwd", &b.Cwd)
	b.Options.fields(w)
	if w.optional("parent", b.Parent != Parent{}) {
		w.begin("parent")
		w.id("id", &b.Parent.ID)
		w.uint("seq", &b.Parent.Seq)
		w.hash("chain", &b.Parent.Chain)
		w.hash("first", &b.Parent.First)
		w.close()
		w.absentZero(b.Parent == Parent{})
	}
	w.optUint("seedLength", &b.SeedLength)
	if w.err == nil && b.SeedLength > math.MaxInt64 { // keeps the sequences behind the copies inside 64 bits
		w.fail(ErrInvalid, "number beyond 63 bits")
	}
	w.optInt("delegationDepth", &b.DelegationDepth)
	if w.err == nil && !labelsSorted(b.Labels) {
		w.fail(ErrInvalid, "labels must be sorted by name and unique")
	}
}

func labelsSorted(labels []Label) bool {
	for i := 1; i < len(labels); i++ {
		if cmp.Compare(labels[i-1].Name, labels[i].Name) >= 0 {
			return false
		}
	}
	return true
}

// SortLabels sorts labels by name, as [SessionCreated] wants them. Of equal names the last wins.
func SortLabels(labels []Label) []Label {
	sorted := slices.Clone(labels)
	slices.SortStableFunc(sorted, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
	out := sorted[:0]
	for i, l := range sorted {
		if i+1 < len(sorted) && sorted[i+1].Name == l.Name {
			continue
		}
		out = append(out, l)
	}
	return out
}

// SessionConfigured records a change of the session's options, claimed from the inbox.
type SessionConfigured struct {
	Options Options
	Claim   Claim
}

// Type returns [TypeSessionConfigured].
func (*SessionConfigured) Type() Type { return TypeSessionConfigured }

func (b *SessionConfigured) fields(w *wire) {
	b.Options.fields(w)
	b.Claim.fields(w)
}

// SessionEndSeed ends the events that a fork copied.
type SessionEndSeed struct{}

// Type returns [TypeSessionEndSeed].
func (*SessionEndSeed) Type() Type { return TypeSessionEndSeed }

func (*SessionEndSeed) fields(*wire) {}

// SessionTitle names the session for people. While a title call is open, the event ends that call, and its sources are
// the call's chunk events.
type SessionTitle struct{ Title string }

// Type returns [TypeSessionTitle].
func (*SessionTitle) Type() Type { return TypeSessionTitle }

func (b *SessionTitle) fields(w *wire) { w.str("title", &b.Title) }

// SessionClosed is the last event of a session that takes no more inputs.
type SessionClosed struct {
	Reason string
	Claim  Claim
}

// Type returns [TypeSessionClosed].
func (*SessionClosed) Type() Type { return TypeSessionClosed }

func (b *SessionClosed) fields(w *wire) {
	w.str("reason", &b.Reason)
	b.Claim.fields(w)
}

// InputDropped claims an input that will have no other effect: it was rejected, a cancel came after it, it cannot be
// used, or the session was closed.
type InputDropped struct {
	Claim Claim // never zero
	Kind  InputKind
	Cause string // why
}

// Type returns [TypeInputDropped].
func (*InputDropped) Type() Type { return TypeInputDropped }

func (b *InputDropped) fields(w *wire) {
	w.uint("inboxSeq", &b.Claim.InboxSeq)
	if w.err == nil && b.Claim.InboxSeq == 0 {
		w.fail(ErrInvalid, "inboxSeq counts from 1")
	}
	w.id("inputId", &b.Claim.InputID)
	enum(w, "kind", &b.Kind)
	w.str("cause", &b.Cause)
}

// ClaimReason says why a worker took a session.
type ClaimReason string

// The reasons of a claim.
const (
	ClaimCreated  ClaimReason = "created"  // it created the session
	ClaimResumed  ClaimReason = "resumed"  // nobody owned it any more; the log was at rest
	ClaimTakeover ClaimReason = "takeover" // the owner died or was cut off in the middle of a turn
)

func (r ClaimReason) valid() bool {
	return r == ClaimCreated || r == ClaimResumed || r == ClaimTakeover
}

// LoopClaimed starts a loop instance: from here on this worker appends.
type LoopClaimed struct {
	Worker   string // the worker's name, stable over restarts
	Instance ID     // this run of it
	Reason   ClaimReason
}

// Type returns [TypeLoopClaimed].
func (*LoopClaimed) Type() Type { return TypeLoopClaimed }

func (b *LoopClaimed) fields(w *wire) {
	w.str("worker", &b.Worker)
	w.id("instance", &b.Instance)
	enum(w, "reason", &b.Reason)
}

// ApprovalAsked asks a person whether a tool call may run.
type ApprovalAsked struct {
	ApprovalID string
	CallID     string
	Question   string
}

// Type returns [TypeApprovalAsked].
func (*ApprovalAsked) Type() Type { return TypeApprovalAsked }

func (b *ApprovalAsked) fields(w *wire) {
	w.str("approvalId", &b.ApprovalID)
	w.str("callId", &b.CallID)
	w.optStr("question", &b.Question)
}

// ApprovalDecided answers [ApprovalAsked].
type ApprovalDecided struct {
	ApprovalID string
	Approved   bool
	By         string
}

// Type returns [TypeApprovalDecided].
func (*ApprovalDecided) Type() Type { return TypeApprovalDecided }

func (b *ApprovalDecided) fields(w *wire) {
	w.str("approvalId", &b.ApprovalID)
	w.bool("approved", &b.Approved)
	w.optStr("by", &b.By)
}
