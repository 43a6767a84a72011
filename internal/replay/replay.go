// Package replay rebuilds the requests of a session from its log and the object store, with their bytes, for people
// who want to see them.
package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// Request is one model request as the log says it was.
type Request struct {
	N       int            // its place among the session's requests, those of auxiliary calls counted too, from 1
	Seq     uint64         // of its llm/stream
	Time    int64          // of its llm/stream, Unix milliseconds
	Purpose events.Purpose // what the call is for
	Stream  events.LLMStream
	Header  events.Header // of an auxiliary call with the configuration of its own
	Body    codec.Body    // rebuilt; its digest may differ from the recorded one
	Err     error         // why the body could not be rebuilt, nil when it could
}

// Requests yields the session's requests in order, those of the loop and the auxiliary ones. A log that cannot be read or folded ends the iteration with an
// error; a request whose body cannot be rebuilt does not, it carries its own.
func Requests(ctx context.Context, id events.ID, log eventlog.Log, store objects.Store) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		state := fold.New(id)
		builders := make(map[string]codec.Builder)
		n := 0
		var decoder events.Decoder
		for m, err := range log.Read(ctx, 1) {
			var e events.Event
			if err == nil {
				e, err = m.Take(&decoder)
			}
			if err != nil {
				yield(Request{}, fmt.Errorf("session %s: %w", id, err))
				return
			}
			stream, isRequest := e.Body.(*events.LLMStream)
			var r Request
			if isRequest {
				n++
				r = rebuild(ctx, state, builders, store, stream)
				r.N, r.Seq, r.Time, r.Purpose, r.Stream = n, e.Seq, e.Time, stream.Purpose, *stream
			}
			if err := state.Apply(&e); err != nil {
				yield(Request{}, err)
				return
			}
			if isRequest && !yield(r, nil) {
				return
			}
		}
	}
}

func rebuild(ctx context.Context, state *fold.State, builders map[string]codec.Builder, store objects.Store, stream *events.LLMStream) (r Request) {
	req, err := state.RequestOf(stream)
	if err != nil {
		r.Err = err
		return r
	}
	r.Header = req.Header
	b, ok := builders[stream.Codec]
	if !ok || stream.Auxiliary != nil { // the loop's builder keeps its prefix
		if b, r.Err = codec.New(stream.Codec, codec.Options{}); r.Err != nil {
			return r
		}
	}
	if stream.Auxiliary == nil {
		builders[stream.Codec] = b
	}
	r.Body, r.Err = Build(ctx, b, &req, store, state.ObjectsOf(stream))
	return r
}

// Build builds a body, fetching from the store what it needs: expected lists the objects that came into use since the
// builder's last body. Objects that no body shows, such as an image that is shown as a file, are not fetched. Errors are
// those of the builder or of [objects.Get].
func Build(ctx context.Context, b codec.Builder, req *fold.Request, store objects.Store, expected []objects.Ref) (codec.Body, error) {
	var have objects.Set
	need := codec.Needed(req, expected)
	for {
		for _, ref := range need {
			if _, ok := have.Bytes(ref.Digest); ok {
				continue
			}
			data, err := objects.Get(ctx, store, ref)
			if err != nil {
				return codec.Body{}, err
			}
			if err := have.Add(ref, data); err != nil {
				return codec.Body{}, err
			}
		}
		body, err := b.Build(req, &have)
		var missing *codec.MissingObjectError
		if !errors.As(err, &missing) {
			return body, err
		}
		if _, ok := have.Bytes(missing.Ref.Digest); ok { // it would be asked for again and again
			return codec.Body{}, err
		}
		need = []objects.Ref{missing.Ref}
	}
}
