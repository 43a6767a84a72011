package audit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// start judges the request of a message that was just folded; v is the verdict without a result. The event itself changes
// nothing that its body depends on.
func (c *Checker) start(ctx context.Context, v Verdict, b *events.LLMStream) (*Verdict, error) {
	describeStream(&v, b)
	request, err := c.state.RequestOf(b)
	if err != nil { // the fold has seen the header and the region, or it would have refused the event
		return c.fail(v, InvalidLog, string(fold.RuleHeader), err.Error()), nil
	}
	if reason := c.showsWithheld(b, &request); reason != "" {
		v.Result, v.Rule, v.Reason = CouldNotCheck, RuleWithheld, reason
		return &v, nil
	}
	c.waiting = &waiting{verdict: v, stream: b, request: request}
	return c.request(ctx)
}

// finding is what was found about an object or a codec.
type finding struct {
	result Result
	rule   string
	err    error
}

// request judges the request that waits.
func (c *Checker) request(ctx context.Context) (*Verdict, error) {
	w := c.waiting
	v := w.verdict
	body, found, err := c.rebuild(ctx, w)
	switch {
	case err != nil:
		return nil, fmt.Errorf("session %s: request of event %d: %w: %w", v.Session, v.Seq, ErrCouldNotCheck, err)
	case found != nil:
		v.Result, v.Rule, v.Reason = found.result, found.rule, clean(found.err.Error(), maxReason)
	default:
		v.Rebuilt = body.Digest()
		v.Result = Match
		if v.Rebuilt != v.Recorded {
			v.Result = Mismatch
			v.Reason = fmt.Sprintf("the rebuilt body has %d bytes, the log recorded %d", v.Rebuilt.Bytes, v.Recorded.Bytes)
			if v.Rebuilt.Bytes == v.Recorded.Bytes {
				v.Reason = fmt.Sprintf("the rebuilt body has the recorded %d bytes and another digest", v.Recorded.Bytes)
			}
			c.locate(ctx, w, &v)
		}
	}
	c.waiting = nil
	c.calls.judged(&v)
	return &v, nil
}

// rebuild builds the body of the request that waits. The error means that nothing was found out.
func (c *Checker) rebuild(ctx context.Context, w *waiting) (codec.Body, *finding, error) {
	builder, unknown := c.builder(w.stream)
	if unknown != nil {
		return codec.Body{}, unknown, nil
	}
	if c.cfg.Cold {
		c.held, c.heldBytes = new(objects.Set), 0
	}
	for _, refs := range [][]objects.Ref{w.stream.Objects, w.request.Header.Refs(nil)} {
		if found, err := c.fetch(ctx, refs); found != nil || err != nil {
			return codec.Body{}, found, err
		}
	}
	if found, err := c.offer(ctx, &w.request.Header); found != nil || err != nil {
		return codec.Body{}, found, err
	}
	body, found, err := c.build(ctx, builder, &w.request)
	if found == nil && err == nil {
		c.hold(w.request.Header.Refs(nil))
	}
	return body, found, err
}

// offered are the tools of an object that were compared with the session's options.
type offered struct {
	object objects.Ref
	named  []string
	found  *finding
}

// offer compares the tools that a header has in an object with those that the session's options name, as the fold does with
// tools in the header itself. The object was fetched before. One that does not hold tools is left to the codec.
func (c *Checker) offer(ctx context.Context, h *events.Header) (*finding, error) {
	named := c.state.Options().Tools
	if (h.ToolsObject == objects.Ref{}) || len(named) == 0 {
		return nil, nil
	}
	if c.offered.object == h.ToolsObject && slices.Equal(c.offered.named, named) {
		return c.offered.found, nil
	}
	data, ok := c.held.Bytes(h.ToolsObject.Digest)
	if !ok {
		var err error
		if data, err = c.cfg.Objects(ctx, h.ToolsObject); err == nil {
			err = c.keep(h.ToolsObject, data)
		}
		if err != nil {
			return c.fetchOne(ctx, h.ToolsObject)
		}
	}
	c.offered = offered{object: h.ToolsObject, named: named}
	tools, err := events.ParseTools(data)
	if err != nil {
		return nil, nil //nolint:nilerr // the codec says so
	}
	if i := slices.IndexFunc(tools, func(t events.Tool) bool { return !slices.Contains(named, t.Name) }); i >= 0 {
		c.offered.found = &finding{InvalidLog, string(fold.RuleConfig), fmt.Errorf("%s offers the tool %q, which the session's options do not name", h.ToolsObject, tools[i].Name)}
	}
	return c.offered.found, nil
}

// builder returns the builder for a request: the loop's go on behind each other, an auxiliary one stands alone.
func (c *Checker) builder(stream *events.LLMStream) (codec.Builder, *finding) {
	lasting := stream.Auxiliary == nil && !c.cfg.Cold
	if b, ok := c.builders[stream.Codec]; ok && lasting {
		return b, nil
	}
	b, err := codec.New(stream.Codec, codec.Options{DigestOnly: true})
	if err != nil {
		return nil, &finding{UnknownCodec, "", err}
	}
	if lasting {
		c.builders[stream.Codec] = b
	}
	return b, nil
}

// source gives a builder objects, however it comes by them.
type source func(d objects.Digest) ([]byte, bool)

func (s source) Bytes(d objects.Digest) ([]byte, bool) { return s(d) }

// build builds the body. Beside the objects that came into use a builder needs those of earlier messages that it has
// not seen: it starts anew, or goes on behind a request that could not be built or an auxiliary one, which lists what came
// into use before it. They are fetched when the builder comes to them, so that a long conversation with many images does
// not lie in memory as a whole.
func (c *Checker) build(ctx context.Context, builder codec.Builder, request *fold.Request) (codec.Body, *finding, error) {
	var refs []objects.Ref
	var failed error
	body, err := builder.Build(request, source(func(d objects.Digest) ([]byte, bool) {
		if data, ok := c.held.Bytes(d); ok || failed != nil {
			return data, ok
		}
		if refs == nil {
			refs = codec.Refs(request)
		}
		i := slices.IndexFunc(refs, func(r objects.Ref) bool { return r.Digest == d })
		if i < 0 {
			return nil, false
		}
		var data []byte
		if data, failed = c.cfg.Objects(ctx, refs[i]); failed == nil {
			failed = c.keep(refs[i], data)
		}
		return data, failed == nil
	}))
	if failed != nil { // of several objects that cannot be had the order of the list decides, not the builder's
		if found, err := c.fetch(ctx, refs); found != nil || err != nil {
			return codec.Body{}, found, err
		}
		return codec.Body{}, nil, failed // it can be had now
	}
	switch {
	case err == nil:
		return body, nil, nil
	case errors.Is(err, codec.ErrMissingObject):
		return codec.Body{}, &finding{MissingObject, "", err}, nil
	case errors.Is(err, codec.ErrCorruptObject):
		return codec.Body{}, &finding{CorruptObject, "", err}, nil
	case errors.Is(err, codec.ErrUnsupported), errors.Is(err, codec.ErrUnshownImage):
		return codec.Body{}, &finding{InvalidLog, RuleCodec, err}, nil
	}
	return codec.Body{}, nil, err
}

// fetch asks for the objects, and keeps those that there is room for. Every one is asked for, so that a store that does
// not answer is never taken for one that lacks an object.
func (c *Checker) fetch(ctx context.Context, refs []objects.Ref) (*finding, error) {
	var first *finding
	for _, ref := range refs {
		found, err := c.fetchOne(ctx, ref)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = found
		}
	}
	return first, nil
}

func (c *Checker) fetchOne(ctx context.Context, ref objects.Ref) (*finding, error) {
	if data, ok := c.held.Bytes(ref.Digest); ok {
		if int64(len(data)) != ref.Bytes {
			return &finding{CorruptObject, "", objects.Verify(ref, data)}, nil
		}
		return nil, nil
	}
	data, err := c.cfg.Objects(ctx, ref)
	if err == nil {
		err = c.keep(ref, data)
	}
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, objects.ErrNotFound) && c.withheld.objectWithheld(ref.Digest):
		return &finding{CouldNotCheck, RuleWithheld, fmt.Errorf("%s: only withheld content names it", ref)}, nil
	case errors.Is(err, objects.ErrNotFound):
		return &finding{MissingObject, "", fmt.Errorf("%s: %w", ref, err)}, nil
	case errors.Is(err, objects.ErrCorrupt), errors.Is(err, objects.ErrInvalidRef), errors.Is(err, objects.ErrTooLarge):
		return &finding{CorruptObject, "", err}, nil
	}
	return nil, err
}

// heldBytes bounds the objects that are kept while a request is checked. The others are fetched again when a builder asks.
const heldBytes = 8 << 20

// keep verifies an object and adds it to the held ones when there is room.
func (c *Checker) keep(ref objects.Ref, data []byte) error {
	if c.heldBytes+int64(len(data)) > heldBytes {
		return objects.Verify(ref, data)
	}
	if err := c.held.Add(ref, data); err != nil {
		return err
	}
	c.heldBytes += int64(len(data))
	return nil
}

// hold keeps the objects and forgets all others.
func (c *Checker) hold(refs []objects.Ref) {
	if c.held.Len() == 0 {
		return
	}
	before := c.held
	c.held, c.heldBytes = new(objects.Set), 0
	for _, ref := range refs {
		if data, ok := before.Bytes(ref.Digest); ok {
			if err := c.keep(ref, data); err != nil {
				continue // it is fetched again, and judged then
			}
		}
	}
}

// locate finds where the rebuilt body starts to differ from the one that was sent, when somebody kept that one.
func (c *Checker) locate(ctx context.Context, w *waiting, v *Verdict) {
	if c.cfg.Actual == nil {
		return
	}
	actual, ok := c.cfg.Actual(ctx, v.Seq)
	if !ok || int64(len(actual)) != v.Recorded.Bytes || sha256.Sum256(actual) != v.Recorded.SHA256 {
		return // it is not the body that the log recorded
	}
	builder, err := codec.New(w.stream.Codec, codec.Options{})
	if err != nil {
		return
	}
	body, found, err := c.build(ctx, builder, &w.request)
	if found != nil || err != nil {
		return
	}
	rebuilt := body.Bytes()
	offset := 0
	for offset < min(len(actual), len(rebuilt)) && actual[offset] == rebuilt[offset] {
		offset++
	}
	v.Located, v.Offset = true, int64(offset)
	v.Pointer = clean(codec.Pointer(rebuilt, v.Offset), maxPointer)
}
