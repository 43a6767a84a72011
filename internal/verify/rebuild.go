package verify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// start judges the request of a message that was just folded; v is the verdict without a result. The event itself changes nothing that its body depends on.
func (c *Checker) start(ctx context.Context, v Verdict, b *events.LLMStream) (*Verdict, error) {
	describeStream(&v, b)
	request, err := c.state.Request()
	if err != nil { // the fold has seen a header, or it would have refused the event
		return c.fail(v, InvalidLog, string(fold.RuleHeader), err.Error()), nil
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
	return &v, nil
}

// rebuild builds the body of the request that waits. The error means that nothing was found out.
func (c *Checker) rebuild(ctx context.Context, w *waiting) (codec.Body, *finding, error) {
	builder, unknown := c.builder(w.stream.Codec)
	if unknown != nil {
		return codec.Body{}, unknown, nil
	}
	if c.cfg.Cold {
		c.held = new(objects.Set)
	}
	if found, err := c.fetch(ctx, w.stream.Objects); found != nil || err != nil {
		return codec.Body{}, found, err
	}
	body, found, err := c.build(ctx, builder, &w.request)
	if found == nil && err == nil {
		c.hold(w.request.Header.Refs(nil))
	}
	return body, found, err
}

func (c *Checker) builder(name string) (codec.Builder, *finding) {
	if b, ok := c.builders[name]; ok && !c.cfg.Cold {
		return b, nil
	}
	b, err := codec.New(name, codec.Options{DigestOnly: true})
	if err != nil {
		return nil, &finding{UnknownCodec, "", err}
	}
	c.builders[name] = b
	return b, nil
}

// build builds the body. Beside the objects that came into use a builder needs those of earlier messages that it has
// not seen: it starts anew, or goes on behind a request that could not be built.
func (c *Checker) build(ctx context.Context, builder codec.Builder, request *fold.Request) (codec.Body, *finding, error) {
	body, err := builder.Build(request, c.held)
	if errors.Is(err, codec.ErrMissingObject) {
		if found, err := c.fetch(ctx, allRefs(request)); found != nil || err != nil {
			return codec.Body{}, found, err
		}
		body, err = builder.Build(request, c.held)
	}
	switch {
	case err == nil:
		return body, nil, nil
	case errors.Is(err, codec.ErrMissingObject):
		return codec.Body{}, &finding{MissingObject, "", err}, nil
	case errors.Is(err, codec.ErrCorruptObject):
		return codec.Body{}, &finding{CorruptObject, "", err}, nil
	case errors.Is(err, codec.ErrUnsupported):
		return codec.Body{}, &finding{InvalidLog, RuleCodec, err}, nil
	}
	return codec.Body{}, nil, err
}

// fetch brings the objects into the held set. Every one is asked for, so that a store that does not answer is never
// taken for one that lacks an object.
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
		err = c.held.Add(ref, data)
	}
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, objects.ErrNotFound):
		return &finding{MissingObject, "", fmt.Errorf("%s: %w", ref, err)}, nil
	case errors.Is(err, objects.ErrCorrupt), errors.Is(err, objects.ErrInvalidRef), errors.Is(err, objects.ErrTooLarge):
		return &finding{CorruptObject, "", err}, nil
	}
	return nil, err
}

// hold keeps the objects and forgets all others.
func (c *Checker) hold(refs []objects.Ref) {
	if c.held.Len() == 0 {
		return
	}
	kept := new(objects.Set)
	for _, ref := range refs {
		if data, ok := c.held.Bytes(ref.Digest); ok {
			if err := kept.Add(ref, data); err != nil {
				continue // it is fetched again, and judged then
			}
		}
	}
	c.held = kept
}

// allRefs returns the objects that a request needs, each once, in order.
func allRefs(r *fold.Request) []objects.Ref {
	refs := r.Header.Refs(nil)
	for _, m := range r.Messages.All() {
		refs = m.Refs(refs)
	}
	seen := make(map[objects.Ref]bool, len(refs))
	once := refs[:0]
	for _, ref := range refs {
		if !seen[ref] {
			seen[ref] = true
			once = append(once, ref)
		}
	}
	return once
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
