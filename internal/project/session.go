package project

import (
	"errors"
	"fmt"
	"time"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// Options change how a session is judged.
type Options struct {
	// TTL is how long a provider is taken to keep a prefix that nobody uses. 0: [DefaultTTL].
	TTL time.Duration
}

// Session folds one session's log and says of each finished step, and of each auxiliary call, what it cost. It holds no bytes of bodies, only the
// fold and a running digest: a step costs in proportion to what is new. Only a broken prefix is measured on rebuilt
// bodies, which are dropped at once. Bodies of auxiliary calls are not rebuilt. It is not safe for concurrent use.
//
// Events that a fork copied are folded and compared with, but give no records: their cost is the parent's. An auxiliary
// call is a record of its own.
type Session struct {
	state *fold.State
	ttl   int64 // milliseconds
	seed  uint64

	builder codec.Builder
	built   built // of the llm/stream that is being applied

	last *request // the session's request before
	step step
	call call

	// since the request before:
	compacted, pruned bool
	claimed           bool // a loop instance has claimed the session
	forked            bool // the seed has ended

	// since the last request that the provider served:
	served  *served
	pending Cause // the strongest break
	soft    Cause // what else may have cost cache: CauseFork or CauseConfig
	reach   int64 // how many bytes of the served body all requests since have kept
}

// request is a request as the next one is compared with it.
type request struct {
	codec   string
	req     fold.Request
	body    events.BodyDigest
	stable  int64
	unbuilt Unbuilt
}

// served is the last request that the provider has read: it sent chunks or reported usage.
type served struct {
	end    int64 // when the call ended, Unix milliseconds
	tokens int64 // its input; 0: not reported
	bytes  int64
}

// step is the step that is open.
type step struct {
	start    int64
	attempts []Attempt
	omitted  int64
	provider string
	model    string
	codec    string
	answer   *events.AssistantMessage
	cause    Cause
	expected int64
	gap      int64
}

// call is the model call that is open.
type call struct {
	open       bool
	inherited  bool
	start      int64
	firstChunk *int64
	usage      *Usage // the last that the chunks reported
	finish     events.FinishKind
	auxiliary  *auxiliary // nil: it is a call of the loop
}

// NewSession returns the state before the first event of session id.
func NewSession(id events.ID, o Options) *Session {
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	return &Session{state: fold.New(id), ttl: o.TTL.Milliseconds()}
}

// ID returns the session's id.
func (s *Session) ID() events.ID { return s.state.ID() }

// Seq returns the sequence of the last event applied, 0 before the first.
func (s *Session) Seq() uint64 { return s.state.Seq() }

// Apply folds the next event, of which it takes ownership, and returns a record when it is a step/end of the session's
// own, or ends an auxiliary call of its own. src holds the objects that requests need; those of [Session.Needed] are enough
// unless the prefix broke.
//
// An error that wraps [codec.ErrMissingObject] leaves the session as it was: apply the event again with the objects of
// [Session.Objects] or, when there is no such object, use [Session.ApplyUnbuilt]. Any other error wraps
// [fold.ErrInvalidLog] and is final: the session must be dropped.
func (s *Session) Apply(e *events.Event, src objects.Source) (*Record, error) {
	return s.apply(e, src, Built)
}

// ApplyUnbuilt is Apply for an llm/stream whose body cannot be rebuilt: the record says why.
func (s *Session) ApplyUnbuilt(e *events.Event, why Unbuilt) (*Record, error) {
	return s.apply(e, nil, why)
}

// Objects returns the objects that the next request and the one before it need.
func (s *Session) Objects() []objects.Ref {
	var refs []objects.Ref
	if s.last != nil {
		refs = codec.Refs(&s.last.req)
	}
	if req, err := s.state.Request(); err == nil {
		refs = append(refs, codec.Refs(&req)...)
	}
	return refs
}

// Needed returns the objects that the body of the llm/stream b, which stands next in the log, needs in addition to those
// of the bodies before.
func (s *Session) Needed(b *events.LLMStream) []objects.Ref {
	req, err := s.state.Request()
	if err != nil || b.Auxiliary != nil {
		return nil // the fold refuses the event, or no body is built
	}
	return codec.Needed(&req, b.Objects)
}

func (s *Session) apply(e *events.Event, src objects.Source, why Unbuilt) (*Record, error) {
	stream, isStream := e.Body.(*events.LLMStream)
	var m measured
	var err error
	switch {
	case isStream && stream.Auxiliary != nil:
		if req, err := s.state.RequestOf(stream); err == nil { // else the fold refuses the event
			m.request.req = req
		}
	case isStream:
		if m, err = s.measure(e.Seq, stream, src, why); err != nil {
			return nil, fmt.Errorf("session %s: event %d: rebuild the request: %w", s.ID(), e.Seq, err)
		}
	}
	if err := s.state.Apply(e); err != nil {
		return nil, err
	}
	return s.follow(e, &m), nil
}

// follow takes note of an event that was folded.
func (s *Session) follow(e *events.Event, m *measured) *Record {
	inherited := e.Seq <= s.seed+1
	switch b := e.Body.(type) {
	case *events.SessionCreated:
		if b.SeedLength > 0 {
			s.seed, s.forked = b.SeedLength, true
		}
	case *events.LoopClaimed:
		s.claimed = true
	case *events.UserMessage:
		s.compacted = s.compacted || e.Surface.Kind == events.SurfaceReplace
	case *events.ToolResult:
		s.pruned = s.pruned || e.Surface.Kind == events.SurfaceReplace
	case *events.StepStart:
		s.step = step{start: e.Time}
	case *events.LLMStream:
		if b.Auxiliary != nil {
			s.beginAuxiliary(e, b, inherited, int64(m.request.req.Messages.Len()))
			return nil
		}
		s.stream(e, b, m, inherited)
	case *events.AssistantChunk:
		s.chunks(e, b)
	case *events.AssistantMessage:
		s.answered(e, b)
	case *events.LLMFailed:
		if s.call.auxiliary != nil {
			return s.failAuxiliary(e, b)
		}
		s.failed(e, b)
	case *events.CompactionSummary:
		return s.endAuxiliary(e, events.PurposeCompaction)
	case *events.SessionTitle:
		return s.endAuxiliary(e, events.PurposeTitle)
	case *events.StepEnd:
		if !inherited {
			return s.record(e, b)
		}
	}
	return nil
}

// stream begins a model call.
func (s *Session) stream(e *events.Event, b *events.LLMStream, m *measured, inherited bool) {
	s.compare(m, inherited)
	s.call = call{open: true, inherited: inherited, start: e.Time}
	if !inherited {
		c := &m.request.req.Header.Config
		s.step.provider, s.step.model, s.step.codec = c.Provider, c.Model, b.Codec
		s.step.attempts = append(s.step.attempts, Attempt{
			Stream: e.Seq, Bytes: b.Body.Bytes, Messages: int64(m.request.req.Messages.Len()),
			Prefix: m.prefix, Reusable: m.reusable, Limit: m.limit, Unbuilt: m.unbuilt,
		})
		if len(s.step.attempts) > MaxAttempts {
			s.step.attempts = append(s.step.attempts[:1], s.step.attempts[2:]...)
			s.step.omitted++
		}
		s.step.gap = 0
		if s.served != nil {
			s.step.gap = max(0, e.Time-s.served.end)
		}
		s.step.expected = s.expectedTokens()
	}
	s.last = &m.request
	s.compacted, s.pruned, s.claimed = false, false, false
	s.forked = s.forked && inherited
}

func (s *Session) chunks(e *events.Event, b *events.AssistantChunk) {
	if s.call.firstChunk == nil {
		ms := max(0, e.Time-s.call.start)
		s.call.firstChunk = &ms
	}
	for i := range b.Chunks {
		switch c := &b.Chunks[i]; c.Type {
		case events.ChunkUsage:
			s.call.usage = UsageOf(c.Usage, true)
		case events.ChunkFinish:
			s.call.finish = c.Finish.Kind
		default: // the rest is not counted
		}
	}
}

func (s *Session) answered(e *events.Event, b *events.AssistantMessage) {
	usage := UsageOf(b.Usage, b.UsageReported)
	if !s.call.inherited {
		s.end(e, "", nil)
		s.step.answer = b
		s.judge(usage)
	}
	s.serve(e, usage, true)
}

func (s *Session) failed(e *events.Event, b *events.LLMFailed) {
	usage := UsageOf(b.Usage, b.UsageReported)
	if usage == nil {
		usage = s.call.usage
	}
	chunked := s.call.firstChunk != nil
	if !s.call.inherited {
		s.end(e, b.Failure.Code, usage)
		s.judge(usage)
	}
	s.serve(e, usage, chunked)
}

// end completes the attempt of the open call.
func (s *Session) end(e *events.Event, failure events.FailureCode, usage *Usage) {
	a := &s.step.attempts[len(s.step.attempts)-1]
	a.FirstChunkMs = s.call.firstChunk
	a.DurationMs = max(0, e.Time-s.call.start)
	a.Failure, a.Usage = failure, usage
}

// serve ends the open call; what the provider has read is what later requests can find in its cache.
func (s *Session) serve(e *events.Event, usage *Usage, chunked bool) {
	s.call = call{}
	if usage == nil && !chunked {
		return
	}
	now := &served{end: e.Time, bytes: s.last.body.Bytes}
	switch {
	case usage != nil:
		now.tokens = usage.TotalInput()
	case s.served != nil && s.pending == "":
		now.tokens = s.served.tokens // its prefix holds what was there before
	}
	s.served, s.pending, s.soft, s.reach = now, "", "", now.bytes
}

// expectedTokens returns how many input tokens of the request just begun the cache should hold.
func (s *Session) expectedTokens() int64 {
	if s.served == nil {
		return 0
	}
	tokens := s.served.tokens
	if s.pending != "" {
		if s.served.bytes == 0 {
			return 0
		}
		tokens = int64(float64(tokens) * float64(s.reach) / float64(s.served.bytes))
	}
	return tokens / cacheUnit * cacheUnit
}

// judge sets the step's cause to that of the attempt that ends, whose call reported usage. A break that an earlier
// attempt of the step has paid for says more than that the last one reported nothing.
func (s *Session) judge(usage *Usage) {
	cause := s.cause(usage)
	if cause != CauseUnreported || s.step.cause == "" {
		s.step.cause = cause
	}
}

func (s *Session) cause(usage *Usage) Cause {
	switch {
	case s.pending != "":
		return s.pending
	case usage == nil || !usage.CacheReported:
		return CauseUnreported
	case usage.CacheRead+cacheUnit >= s.step.expected:
		return CauseNone
	case s.soft != "":
		return s.soft
	case s.step.gap > s.ttl:
		return CauseExpired
	}
	return CauseProviderMiss
}

// record returns the record of the step that ends.
func (s *Session) record(e *events.Event, b *events.StepEnd) *Record {
	st := &s.step
	r := &Record{
		V: Version, Session: s.ID(), Turn: b.Turn, Step: b.Step, Seq: e.Seq,
		Time: max(0, e.Time), DurationMs: max(0, e.Time-st.start),
		Provider: Text(st.provider), Model: Text(st.model), Codec: Text(st.codec),
		Attempts: st.attempts, Omitted: st.omitted,
		ExpectedTokens: st.expected, GapMs: st.gap, Cause: st.cause,
	}
	if r.Cause == "" { // no call of the session's own
		r.Cause = CauseNone
	}
	if st.answer != nil {
		r.Usage = UsageOf(st.answer.Usage, st.answer.UsageReported)
		r.Finish = st.answer.Finish.Kind
		for i := range st.answer.Message.Content {
			if st.answer.Message.Content[i].Type == events.BlockToolCall {
				r.ToolCalls++
			}
		}
	} else if a := r.Last(); a != nil {
		r.Failure = a.Failure
	}
	s.step = step{}
	return r
}

// unbuiltBy says why a body could not be built; ok is false when it may be built later.
func unbuiltBy(err error) (why Unbuilt, ok bool) {
	switch {
	case errors.Is(err, codec.ErrUnknownCodec):
		return UnbuiltCodec, true
	case errors.Is(err, codec.ErrCorruptObject):
		return UnbuiltCorrupt, true
	case errors.Is(err, codec.ErrUnsupported), errors.Is(err, codec.ErrUnshownImage):
		return UnbuiltUnsupported, true
	}
	return "", false
}
