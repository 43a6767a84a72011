package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// Extensions are called in the order in which they stand in their lists. An extension never sees a request and cannot
// change history: what it wants the model to read goes into the log first, under its name. Implementations are safe for
// concurrent use: one serves all sessions of a worker. They MUST return soon after ctx ends: one that does not is left to
// itself after the worker's grace, and what it returns later is dropped.
//
// An error of an extension, or a panic, ends the turn, or answers the tool call, with the code EXTENSION. A cancel ends
// the ctx of one that is being asked. After a crash an extension may be asked again about the same step; what it then adds
// word for word as before does not enter twice.
type Extensions struct {
	PreStep      []PreStep
	CallConfig   []CallConfig
	RequestError []RequestError
	Tools        []ToolHook
	TurnStopping []TurnStopping
	Contexts     []ContextSection
}

// maxName is how long a name may be that stands in events, in bytes.
const maxName = 256

func validName(name string) bool { return name != "" && len(name) <= maxName && events.ValidText(name) }

// validate checks the names: they stand in events.
func (x *Extensions) validate() error {
	return errors.Join(
		validNames("pre-step", x.PreStep), validNames("call config", x.CallConfig), validNames("request error", x.RequestError),
		validNames("tool hook", x.Tools), validNames("turn stopping", x.TurnStopping), validNames("context section", x.Contexts),
	)
}

func validNames[X Named](kind string, list []X) error {
	seen := make(map[string]struct{}, len(list))
	for i, x := range list {
		name := x.Name()
		if !validName(name) {
			return fmt.Errorf("worker: %s %d has the name %q: want text of 1 to %d bytes", kind, i, clipText(name), maxName)
		}
		if _, twice := seen[name]; twice {
			return fmt.Errorf("worker: two of the kind %s have the name %q", kind, name)
		}
		seen[name] = struct{}{}
	}
	return nil
}

// Named is what every extension has: the name under which its messages stand in the log, text of 1 to 256 bytes, unique
// in each list. It does not change.
type Named interface{ Name() string }

// Point says where a session stands. What it refers to is the receiver's own.
type Point struct {
	Session events.ID
	Cwd     string
	Turn    int64
	Step    int64 // the step that is asked about
}

// PreStep is asked before a step starts.
type PreStep interface {
	Named
	// PreStep decides about the step that the claimed inputs would start, and, when it lets it start, adds text. The
	// inputs are not in the log yet; they may be none.
	PreStep(ctx context.Context, at Point, claimed []events.Input) (Entry, error)
}

// Entry is the answer of [PreStep].
type Entry struct {
	Reject string   // not empty: no step starts, the turn ends as blocked with this cause, the inputs are dropped
	Texts  []string // enter as one message behind the inputs
}

// CallConfig proposes the configuration of a call of the loop.
type CallConfig interface {
	Named
	// CallConfig returns the configuration in the place of seed, which it returns as it is to change nothing. Messages
	// are none of its business. The first extension gets the seed that the log gives, each other one what the one
	// before returned. The header in the log names each extension and the fields that it changed.
	CallConfig(ctx context.Context, at Point, seed events.Config) (events.Config, error)
}

// Advice is the answer of [RequestError].
type Advice string

// The answers.
const (
	AdviceNone  Advice = ""      // no opinion: the next extension, and at last the retry policy, decides
	AdviceRetry Advice = "retry" // another attempt, after the policy's delay
	AdviceStop  Advice = "stop"  // no further attempt
)

// RequestError is asked when a call of the loop has failed.
type RequestError interface {
	Named
	// RequestError is not asked about calls that were cancelled, nor about those that compaction deals with.
	RequestError(ctx context.Context, at Point, attempt int64, failure events.Failure) (Advice, error)
}

// Invocation is a tool call as the model made it.
type Invocation struct {
	CallID    string
	Tool      string
	Arguments string
}

// ToolHook stands around the execution of tools.
type ToolHook interface {
	Named
	// BeforeTool returns nil to let the tool run, or the result that stands in the place of its running. The call is in
	// the log already.
	BeforeTool(ctx context.Context, at Point, call Invocation) (*tools.Result, error)
	// AfterTool returns the result to be logged, and text that the model reads in the next step, empty for none. It is
	// called for calls that BeforeTool answered as well, of all extensions.
	AfterTool(ctx context.Context, at Point, call Invocation, result tools.Result) (tools.Result, string, error)
}

// TurnStopping is asked when a turn would complete.
type TurnStopping interface {
	Named
	// TurnStopping returns the text with which the turn goes on for another step, empty to let it end.
	TurnStopping(ctx context.Context, at Point) (string, error)
}

// ContextSection is something about the surroundings that the model should know: the date, the working directory, the
// files there. Its text enters as a message only when it differs from the one that the model still sees.
type ContextSection interface {
	Named
	// Text returns the section's text, empty when there is nothing to say; a text that the model still sees is then taken
	// back. It is asked once in a step. The text should not change without need: each change stays in history until it is
	// compacted.
	Text(ctx context.Context, at Point) (string, error)
}
