package project

import (
	"slices"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// measured is a request and what it has in common with the one before.
type measured struct {
	request  request
	prefix   Extent
	reusable Extent
	limit    Limit
	unbuilt  Unbuilt

	model, system, tools, config bool // what of the header differs
	broken                       bool // messages that the request before showed are not what this one begins with
}

// built is the body of the llm/stream that stands at seq: kept, because the event may be applied again after the
// builder has gone on.
type built struct {
	seq  uint64
	body codec.Body
}

// measure rebuilds the request that the llm/stream at seq records and compares it with the one before. It changes
// nothing but the builder and its last body.
func (s *Session) measure(seq uint64, b *events.LLMStream, src objects.Source, why Unbuilt) (measured, error) {
	req, err := s.state.Request()
	if err != nil {
		// the fold refuses the event: there is no header
		return measured{}, nil //nolint:nilerr // reported by the fold, with the rule
	}
	m := measured{request: request{codec: b.Codec, req: req, body: b.Body, unbuilt: why}}
	if why == Built {
		body, err := s.build(seq, b.Codec, &req, src)
		why, known := unbuiltBy(err)
		switch {
		case known:
			m.request.unbuilt = why
		case err != nil:
			return measured{}, err
		case body.Digest() != b.Body:
			m.request.unbuilt = UnbuiltMismatch
		default:
			m.request.stable = body.Stable()
		}
	}
	m.unbuilt = m.request.unbuilt
	if s.last == nil {
		return m, nil
	}
	if s.last.req.HeaderSeq != req.HeaderSeq {
		m.headers(&s.last.req.Header, &req.Header)
	}
	m.config = m.config || s.last.codec != b.Codec
	err = m.extents(s.last, s.built.body.Reused(), src)
	if _, known := unbuiltBy(err); known {
		m.unbuilt = UnbuiltPredecessor // this one was built
	} else if err != nil {
		return measured{}, err
	}
	return m, nil
}

// build returns the body of the session's next request, built on the one before.
func (s *Session) build(seq uint64, name string, req *fold.Request, src objects.Source) (*codec.Body, error) {
	if s.built.seq == seq {
		return &s.built.body, nil
	}
	if s.builder == nil || s.builder.Codec() != name {
		builder, err := codec.New(name, codec.Options{DigestOnly: true})
		if err != nil {
			return nil, err
		}
		s.builder = builder
	}
	body, err := s.builder.Build(req, src)
	if err != nil {
		return nil, err
	}
	s.built = built{seq: seq, body: body}
	return &s.built.body, nil
}

// headers says what of the header differs.
func (m *measured) headers(a, b *events.Header) {
	m.model = a.Config.Provider != b.Config.Provider || a.Config.Model != b.Config.Model
	m.system = systemDigest(a) != systemDigest(b)
	m.tools = !slices.Equal(a.Tools, b.Tools) || a.ToolsObject != b.ToolsObject
	if m.tools && (a.ToolsObject == objects.Ref{}) != (b.ToolsObject == objects.Ref{}) {
		m.tools = toolsDigest(a) != toolsDigest(b)
	}
	m.config = !m.model && !a.Config.Equal(b.Config)
}

// systemDigest identifies a system prompt, wherever it is kept.
func systemDigest(h *events.Header) objects.Digest {
	if (h.SystemObject != objects.Ref{}) {
		return h.SystemObject.Digest
	}
	return objects.Sum([]byte(h.System))
}

// toolsDigest identifies tools, wherever they are kept.
func toolsDigest(h *events.Header) objects.Digest {
	if (h.ToolsObject != objects.Ref{}) {
		return h.ToolsObject.Digest
	}
	b, err := events.AppendTools(nil, h.Tools)
	if err != nil { // tools of a header were encoded before
		return objects.Digest{}
	}
	return objects.Sum(b)
}

// extents measures the prefix that m's request has in common with the one before, last. reused is what the builder took
// over.
func (m *measured) extents(last *request, reused int64, src objects.Source) error {
	now := &m.request
	extends := now.req.Messages.Extends(last.req.Messages)
	sameHead := !m.model && !m.system
	if sameHead {
		m.prefix.Messages = commonMessages(&last.req, &now.req)
	}
	head := int64(0)
	switch {
	case now.unbuilt != Built:
	case last.unbuilt != Built:
		m.unbuilt = UnbuiltPredecessor
	case now.codec == last.codec && now.body == last.body:
		m.prefix.Bytes = now.body.Bytes
	case now.codec == last.codec && reused > 0 && extends && now.req.Messages.Len() > last.req.Messages.Len():
		// What follows the stable prefix differs in its first byte: the end of the messages there, another message here.
		m.prefix.Bytes = last.stable
	default:
		var err error
		if m.prefix.Bytes, err = rebuild(last, now, src); err != nil {
			return err
		}
	}
	m.broken = sameHead && m.prefix.Messages < int64(last.req.Messages.Len())
	m.reusable = m.prefix
	switch {
	case m.model:
		m.reusable, m.limit = Extent{}, LimitModel
	case m.tools:
		var err error
		if m.unbuilt == Built {
			if head, err = headBytes(now, src); err != nil {
				return err
			}
		}
		m.reusable, m.limit = Extent{Bytes: min(m.prefix.Bytes, head)}, LimitTemplateOrder
	}
	return nil
}

// commonMessages returns how many messages the two conversations begin with in common, images being shown in the same
// way.
func commonMessages(r, s *fold.Request) int64 {
	a, b := r.Messages, s.Messages
	sameImages := r.Images.Generation() == s.Images.Generation()
	if sameImages && b.Extends(a) {
		return int64(a.Len())
	}
	var sameBlock func(a, b events.Block) bool
	sameBlock = func(a, b events.Block) bool {
		if a.Type == events.BlockImage && !sameImages {
			x, _ := r.Images.Shown(a.Object.Digest)
			y, _ := s.Images.Shown(b.Object.Digest)
			if x != y {
				return false
			}
		}
		return a.Type == b.Type && a.Text == b.Text && a.Object == b.Object && a.ID == b.ID && a.Name == b.Name &&
			a.Arguments == b.Arguments && a.ToolCallID == b.ToolCallID && slices.EqualFunc(a.Content, b.Content, sameBlock)
	}
	n := min(a.Len(), b.Len())
	for i := range n {
		x, y := a.At(i), b.At(i)
		if x.Role != y.Role || !slices.EqualFunc(x.Content, y.Content, sameBlock) {
			return int64(i)
		}
	}
	return int64(n)
}

// rebuild builds both bodies anew and returns how many bytes they begin with in common.
func rebuild(a, b *request, src objects.Source) (int64, error) {
	x, err := rebuilt(a, src)
	if err != nil {
		return 0, err
	}
	y, err := rebuilt(b, src)
	if err != nil {
		return 0, err
	}
	return codec.CommonPrefix(&x, &y), nil
}

func rebuilt(r *request, src objects.Source) (codec.Body, error) {
	builder, err := codec.New(r.codec, codec.Options{})
	if err != nil {
		return codec.Body{}, err
	}
	return builder.Build(&r.req, src)
}

// headBytes returns how many bytes of a body stand before its first message.
func headBytes(r *request, src objects.Source) (int64, error) {
	builder, err := codec.New(r.codec, codec.Options{DigestOnly: true})
	if err != nil {
		return 0, err
	}
	body, err := builder.Build(&fold.Request{Header: r.req.Header, HeaderSeq: r.req.HeaderSeq}, src)
	if err != nil {
		return 0, err
	}
	return body.Stable(), nil
}

// compare notes what the request just measured breaks.
func (s *Session) compare(m *measured, inherited bool) {
	s.reach = min(s.reach, m.reusable.Bytes)
	first := s.forked && !inherited
	var cause Cause
	header := m.model || m.system || m.tools
	switch {
	case s.last == nil:
		cause = CauseFirstRequest
	case first && (header || m.broken):
		cause = CauseFork
	case s.claimed && header:
		cause = CauseResumeDrift
	case m.model:
		cause = CauseModel
	case m.system:
		cause = CauseSystem
	case m.tools:
		cause = CauseTools
	case m.broken && s.compacted:
		cause = CauseCompaction
	case m.broken && s.pruned:
		cause = CausePrune
	case m.broken:
		cause = CauseImages
	}
	if cause != "" {
		s.pending = stronger(s.pending, cause)
	}
	switch {
	case first:
		s.soft = CauseFork
	case m.config && s.soft == "":
		s.soft = CauseConfig
	}
}
