// Package provider makes calls to models. An [Adapter] speaks one vendor's wire format: it binds a configuration to
// itself once ([Adapter.Prepare]), sends the exact body that it is given and turns the answer's bytes into the chunks
// of the log, losing nothing. It neither builds bodies (pkg/codec does) nor retries (its user does).
//
// Package provider/simulator is a server that speaks the same formats, for tests and development.
package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/refold-dev/refold/pkg/events"
)

// Adapter makes the calls of one provider. Implementations are safe for concurrent use.
type Adapter interface {
	// Prepare fills in what proposed leaves open and binds the result to the adapter as it is now. It does no I/O.
	// The error is an [*Error]: NO_ADAPTER when the config names another provider, INVALID_REQUEST when the vendor
	// would refuse the config. Neither goes away by trying again. Each call returns a Prepared of its own.
	Prepare(ctx context.Context, proposed events.Config) (*Prepared, error)
}

// Call is one attempt: the exact body and where it stands in the log.
type Call struct {
	Config  events.Config // MUST equal the prepared one
	Session events.ID
	Seq     uint64 // the stream sequence of the llm/stream event that permits the call
	Turn    int64
	Step    int64
	Attempt int64

	// Body returns a new reader of the body. It may be called more than once: a connection that turns out to be
	// closed before a byte was written is replaced.
	Body   func() io.Reader
	Bytes  int64       // the body's length
	SHA256 events.Hash // the body's digest; a body that differs never reaches the provider as a whole
}

// Spec is what a prepared call is bound to: the configuration, and what the adapter can do as it is now.
type Spec struct {
	Config   events.Config          // complete
	Defaults events.AdapterDefaults // which fields of Config the adapter filled in
	Codec    string                 // name and version of the codec that builds the body
	Retry    RetryPolicy            // zero fields are undecided

	ContextWindow  int64    // tokens, 0 when unknown
	MaxTokens      int64    // what the adapter fills in for this model and effort; 0: nothing
	LeastEffort    string   // the reasoning effort with the least reasoning that the model takes; "": none is known
	AcceptsImages  bool     // a request may show images
	MaxImagePixels int64    // width times height of one image; 0: no limit is known
	Uploader       Uploader // keeps images where this call's endpoint finds them by id; nil: they go in the body
}

// Stream sends a call and yields its answer: chunks, each delta chunk with one element in Texts, and last either a
// finish chunk or an [*Error]. It yields nothing after that and leaves nothing running when it returns, which it does
// soon after ctx is cancelled or the receiver stops. Chunks are the receiver's own.
type Stream func(ctx context.Context, call Call) iter.Seq2[events.Chunk, error]

// Prepared is a call bound to its adapter. Safe for concurrent use.
type Prepared struct {
	spec       Spec
	stream     Stream
	generation uint64 // set before anybody else has it
	used       atomic.Bool
}

// NewPrepared returns a call that stream sends. Adapters use it in Prepare.
func NewPrepared(spec Spec, stream Stream) *Prepared {
	spec.Config = cloneConfig(spec.Config)
	return &Prepared{spec: spec, stream: stream}
}

func cloneConfig(c events.Config) events.Config {
	c.Stop = slices.Clone(c.Stop)
	return c
}

// Config returns the complete configuration.
func (p *Prepared) Config() events.Config { return cloneConfig(p.spec.Config) }

// Defaults says which fields of the configuration the adapter filled in.
func (p *Prepared) Defaults() events.AdapterDefaults { return p.spec.Defaults }

// ContextWindow returns the capacity of the route in tokens, 0 when it is unknown.
func (p *Prepared) ContextWindow() int64 { return p.spec.ContextWindow }

// Generation returns the generation of the adapter in the [Routes] that it was looked up in, 0 when it was not.
func (p *Prepared) Generation() uint64 { return p.generation }

// RetryPolicy returns the adapter's policy. What it leaves undecided is for the caller to decide, see
// [RetryPolicy.Or].
func (p *Prepared) RetryPolicy() RetryPolicy { return p.spec.Retry }

// MaxTokens returns what the adapter fills in as maxTokens for this model and effort, 0 when it leaves that open. It
// says nothing about the prepared config, which may have another.
func (p *Prepared) MaxTokens() int64 { return p.spec.MaxTokens }

// LeastEffort returns the reasoning effort with the least reasoning that the model takes, "" when none is known.
func (p *Prepared) LeastEffort() string { return p.spec.LeastEffort }

// AcceptsImages reports whether the request may show images. Otherwise they are to be described in text.
func (p *Prepared) AcceptsImages() bool { return p.spec.AcceptsImages }

// MaxImagePixels returns how many pixels, width times height, an image of the request may have, 0 when no limit is
// known.
func (p *Prepared) MaxImagePixels() int64 { return p.spec.MaxImagePixels }

// Files reports whether images may be uploaded and named by their file's id.
func (p *Prepared) Files() bool { return p.spec.Uploader != nil }

// Uploader returns what uploads files to the endpoint that the prepared call goes to, nil when images go into the
// body. A file that another generation of the route has uploaded may be unknown there.
func (p *Prepared) Uploader() Uploader { return p.spec.Uploader }

// Codec returns the name and version of the codec that builds the body, such as deepseek-chat/1.
func (p *Prepared) Codec() string { return p.spec.Codec }

// Dispatch sends the call when the result is ranged over; see [Stream] for what it yields. A Prepared is dispatched at
// most once and its result is ranged over at most once. Otherwise, and when call.Config differs from the prepared
// one, it yields one [*Error] with code INVALID_PREPARED_CALL and nothing is sent: prepare anew. A refused
// configuration does not use the call up.
func (p *Prepared) Dispatch(ctx context.Context, call Call) iter.Seq2[events.Chunk, error] {
	switch {
	case !call.Config.Equal(p.spec.Config):
		return refuse("the call's config differs from the prepared one: prepare it anew")
	case call.Body == nil || call.Bytes <= 0:
		return refuse("the call has no body")
	case p.used.Swap(true):
		return refuse("the call was dispatched before: prepare it anew")
	}
	call.Config = cloneConfig(call.Config)
	var ranged atomic.Bool
	return func(yield func(events.Chunk, error) bool) {
		if ranged.Swap(true) {
			yield(events.Chunk{}, preparedError("the call's answer was read before: prepare it anew"))
			return
		}
		p.stream(ctx, call)(yield)
	}
}

func preparedError(why string) *Error {
	return &Error{Failure: events.Failure{Message: why, Code: events.FailurePrepared}}
}

func refuse(why string) iter.Seq2[events.Chunk, error] {
	return func(yield func(events.Chunk, error) bool) {
		yield(events.Chunk{}, preparedError(why))
	}
}

// Error is a failed call. Failure goes into the log as it is; it holds no credential. Whether another attempt makes
// sense says Failure.Code.Retryable.
type Error struct {
	Failure events.Failure
	Err     error // the cause; nil when the provider itself reported the failure
}

func (e *Error) Error() string {
	s := fmt.Sprintf("model call failed: %s: %s", e.Failure.Code, e.Failure.Message)
	if e.Failure.Status != 0 {
		s += fmt.Sprintf(" (HTTP %d)", e.Failure.Status)
	}
	if e.Failure.RequestID != "" {
		s += fmt.Sprintf(" (request %s)", e.Failure.RequestID)
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// FailureOf returns the failure of a call's error. An error that is no [*Error] is a fault of the adapter and is
// reported as TRANSPORT.
func FailureOf(err error) events.Failure {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Failure
	}
	return events.Failure{Message: events.TextFromBytes([]byte(err.Error())), Code: events.FailureTransport}
}
