package fold

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrInvalidLog is wrapped by every error of [State.Apply]. It is final: the same log fails the same way again.
// The caller stops, appends nothing, and reports.
var ErrInvalidLog = errors.New("invalid log")

// ErrNoRequest is wrapped by the error of [State.Request] when the log does not call for one.
var ErrNoRequest = errors.New("no request can be built")

// Rule names a rule of the log. docs/format/fold.md lists them.
type Rule string

// The rules, in the order in which Apply checks them.
const (
	RuleSealed      Rule = "sealed"      // an event carries the hash of its stored payload
	RuleSequence    Rule = "sequence"    // sequences are contiguous from 1
	RuleChain       Rule = "chain"       // prev is the hash of the payload before
	RuleFirst       Rule = "first"       // session/created stands first and only there
	RuleSeed        Rule = "seed"        // what a fork copied is its parent's, ends at a boundary, and session/end-seed stands behind it
	RuleClosed      Rule = "closed"      // nothing follows session/closed
	RuleClaim       Rule = "claim"       // a loop instance has claimed the session before anything else happens
	RuleInput       Rule = "input"       // inputs are claimed in the order of their lane, each once
	RuleCancel      Rule = "cancel"      // a cancelled turn only ends what it began
	RuleTurn        Rule = "turn"        // turns count from 1, one at a time, and enclose their steps
	RuleStep        Rule = "step"        // steps count from 1 in their turn, one at a time
	RuleMessage     Rule = "message"     // user messages enter before the step's first model call
	RuleHeader      Rule = "header"      // a header has the reason that fits, and a change changes something
	RuleConfig      Rule = "config"      // a header has what the options and the header before it give, or says who changed it
	RuleContext     Rule = "context"     // a request context fits the header and differs from the one before
	RuleImages      Rule = "images"      // how an image is shown is recorded where it changes
	RuleStream      Rule = "stream"      // llm/stream names the header, the surface, the attempt and the objects in force
	RuleChunk       Rule = "chunk"       // chunks belong to the open model call and form an answer
	RuleAnswer      Rule = "answer"      // what ends a model call is what its chunks say, and cites them
	RuleFailure     Rule = "failure"     // failures and retries belong to the model call before them
	RuleCall        Rule = "call"        // a tool call is one that the model made, recorded once, in order
	RuleResult      Rule = "result"      // each call gets one result, in model order, behind its tool/call
	RuleReplace     Rule = "replace"     // a replacement names surface nodes and cites all that it shadows
	RuleCompaction  Rule = "compaction"  // compactions are opened, summarised, put in place and closed under one id
	RuleUnsupported Rule = "unsupported" // this version does not know how to fold it
)

// Error says which event broke which rule. It unwraps to [ErrInvalidLog].
type Error struct {
	Session events.ID // empty until the session is known
	Seq     uint64
	Type    events.Type
	Rule    Rule
	Reason  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("session %s: event %d (%s) breaks rule %q: %s", e.Session, e.Seq, e.Type, e.Rule, e.Reason)
}

// Unwrap returns [ErrInvalidLog].
func (e *Error) Unwrap() error { return ErrInvalidLog }
