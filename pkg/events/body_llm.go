package events

import "github.com/refold-dev/refold/pkg/objects"

// HeaderReason says why a header was recorded.
type HeaderReason string

// The reasons of a header.
const (
	HeaderInitial HeaderReason = "initial" // the log's first
	HeaderResume  HeaderReason = "resume"  // a loop instance's first, in a log that has one
	HeaderChange  HeaderReason = "change"  // it differs from the one before

	headerFallback HeaderReason = "fallback" // refused, see ErrLegacy
)

func (r HeaderReason) valid() bool {
	return r == HeaderInitial || r == HeaderResume || r == HeaderChange
}

// RequestHeader records a full snapshot of a request's header.
type RequestHeader struct {
	Header Header
	Reason HeaderReason
}

// Type returns [TypeRequestHeader].
func (*RequestHeader) Type() Type { return TypeRequestHeader }

func (b *RequestHeader) fields(w *wire) {
	b.Header.fields(w)
	if b.Reason == headerFallback || w.hasPrefix(`,"reason":"fallback"`) {
		w.field = "reason"
		w.fail(ErrLegacy, "header reason %q", headerFallback)
	}
	enum(w, "reason", &b.Reason)
}

// hasPrefix reports whether s comes next. Reading only; false when writing.
func (w *wire) hasPrefix(s string) bool {
	return w.reading && w.err == nil && len(w.in)-w.pos >= len(s) && w.in[w.pos:w.pos+len(s)] == s
}

// RequestContext records the route's capacity when it changes. It takes no part in the request.
type RequestContext struct {
	Provider      string
	Model         string
	ContextWindow int64 // tokens; 0: unknown
}

// Type returns [TypeRequestContext].
func (*RequestContext) Type() Type { return TypeRequestContext }

func (b *RequestContext) fields(w *wire) {
	w.str("provider", &b.Provider)
	w.str("model", &b.Model)
	w.optInt("contextWindow", &b.ContextWindow)
}

// Purpose says what a model call is for.
type Purpose string

// The purposes of a model call.
const (
	PurposeLoop       Purpose = "loop" // the conversation itself
	PurposeCompaction Purpose = "compaction"
	PurposeTitle      Purpose = "title"
)

func (p Purpose) valid() bool {
	return p == PurposeLoop || p == PurposeCompaction || p == PurposeTitle
}

// SurfacePosition says from which surface a request was built.
type SurfacePosition struct {
	Nodes      int64  // how many nodes stand on the surface
	Last       uint64 // the sequence of the last one, 0 when there is none
	Generation int64  // how many times the surface was rewritten
}

// BodyDigest is the length and SHA-256 of a request's HTTP body.
type BodyDigest struct {
	Bytes  int64
	SHA256 Hash
}

// LLMStream permits a model call: it is acknowledged before the first byte leaves. Everything that the exact body
// depends on is in the log before it or in the objects.
type LLMStream struct {
	Turn, Step int64
	Attempt    int64 // from 1 in each step
	Purpose    Purpose
	Header     uint64 // the sequence of the header in force
	Surface    SurfacePosition
	Codec      string // name and version, such as deepseek-chat/1
	Body       BodyDigest
	Objects    []objects.Ref // those that came into use since the previous llm/stream, in log order, each once
}

// Type returns [TypeLLMStream].
func (*LLMStream) Type() Type { return TypeLLMStream }

func (b *LLMStream) fields(w *wire) {
	attemptFields(w, &b.Turn, &b.Step, &b.Attempt)
	enum(w, "purpose", &b.Purpose)
	w.uint("header", &b.Header)
	w.begin("surface")
	w.int("nodes", &b.Surface.Nodes)
	w.uint("last", &b.Surface.Last)
	w.int("generation", &b.Surface.Generation)
	w.close()
	w.str("codec", &b.Codec)
	w.begin("body")
	w.int("bytes", &b.Body.Bytes)
	w.hash("sha256", &b.Body.SHA256)
	w.close()
	optList(w, "objects", &b.Objects, refElem)
	if w.err == nil && b.Codec == "" {
		w.fail(ErrInvalid, "a request names its codec")
	}
}

func attemptFields(w *wire, turn, step, attempt *int64) {
	w.ordinal("turn", turn)
	w.ordinal("step", step)
	w.ordinal("attempt", attempt)
}

// LLMFailed ends a model call that gave no answer.
type LLMFailed struct {
	Turn, Step, Attempt int64
	Failure             Failure
	Usage               Usage // what it cost all the same, when the provider said so
	UsageReported       bool
}

// Type returns [TypeLLMFailed].
func (*LLMFailed) Type() Type { return TypeLLMFailed }

func (b *LLMFailed) fields(w *wire) {
	attemptFields(w, &b.Turn, &b.Step, &b.Attempt)
	b.Failure.fields(w, "failure")
	w.optUsage(&b.UsageReported, &b.Usage)
}

// optUsage handles a usage that is absent when the provider reported none.
func (w *wire) optUsage(reported *bool, u *Usage) {
	if !w.optional("usage", *reported) {
		if !w.reading && *u != (Usage{}) {
			w.fail(ErrInvalid, "a usage that is not marked as reported")
		}
		return
	}
	*reported = true
	u.fields(w)
}

// LLMRetry schedules another attempt.
type LLMRetry struct {
	Turn, Step int64
	RetryID    string
	Retry      int64 // from 1 in each step
	MaxRetries int64 // 0: without limit
	DelayMs    int64
	Failure    Failure
}

// Type returns [TypeLLMRetry].
func (*LLMRetry) Type() Type { return TypeLLMRetry }

func (b *LLMRetry) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
	w.str("retryId", &b.RetryID)
	w.ordinal("retry", &b.Retry)
	w.optInt("maxRetries", &b.MaxRetries)
	w.int("delayMs", &b.DelayMs)
	b.Failure.fields(w, "failure")
}

// LLMRetryStarted says that the delay of an [LLMRetry] is over.
type LLMRetryStarted struct {
	Turn, Step int64
	RetryID    string
	Retry      int64
}

// Type returns [TypeLLMRetryStarted].
func (*LLMRetryStarted) Type() Type { return TypeLLMRetryStarted }

func (b *LLMRetryStarted) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
	w.str("retryId", &b.RetryID)
	w.ordinal("retry", &b.Retry)
}

// AssistantChunk holds a run of the chunks of one attempt, in the order in which they came.
type AssistantChunk struct {
	Turn, Step, Attempt int64
	Chunks              []Chunk
}

// Type returns [TypeAssistantChunk].
func (*AssistantChunk) Type() Type { return TypeAssistantChunk }

func (b *AssistantChunk) fields(w *wire) {
	attemptFields(w, &b.Turn, &b.Step, &b.Attempt)
	list(w, "chunks", &b.Chunks, chunkFields)
	if w.err == nil && len(b.Chunks) == 0 {
		w.fail(ErrInvalid, "a run of chunks is not empty")
	}
}

// AssistantMessage puts a model's answer on the surface. Its sources are the chunk events of the attempt that
// gave it. With empty content it hosts the usage and derives no message.
type AssistantMessage struct {
	Turn, Step    int64
	Message       Message
	Usage         Usage
	UsageReported bool
	Finish        Finish
	Interrupted   bool // the stream was cut off; Message holds what was kept of it
}

// Type returns [TypeAssistantMessage].
func (*AssistantMessage) Type() Type { return TypeAssistantMessage }

func (b *AssistantMessage) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
	b.Message.fields(w, RoleAssistant)
	b.Message.only(w, BlockText, BlockReasoning, BlockToolCall)
	w.optUsage(&b.UsageReported, &b.Usage)
	b.Finish.fields(w, "finish")
	w.optTrue("interrupted", &b.Interrupted)
}
