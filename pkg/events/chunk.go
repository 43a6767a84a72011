package events

import "slices"

// ChunkType is the kind of a stream chunk.
type ChunkType string

// The kinds of chunks. A stream is: for each content block a block-start, its deltas and a block-end, blocks
// possibly interleaved; at most any number of usage chunks, of which the last counts; one finish chunk.
const (
	ChunkBlockStart     ChunkType = "block-start"
	ChunkTextDelta      ChunkType = "text-delta"
	ChunkReasoningDelta ChunkType = "reasoning-delta"
	ChunkToolCallDelta  ChunkType = "tool-call-delta"
	ChunkBlockEnd       ChunkType = "block-end"
	ChunkUsage          ChunkType = "usage"
	ChunkFinish         ChunkType = "finish"
)

func (t ChunkType) valid() bool {
	switch t {
	case ChunkBlockStart, ChunkTextDelta, ChunkReasoningDelta, ChunkToolCallDelta, ChunkBlockEnd, ChunkUsage, ChunkFinish:
		return true
	}
	return false
}

// Chunk is one chunk of a model's answer, or several deltas of one block that came one directly after another.
// Which fields are used depends on Type.
type Chunk struct {
	Type  ChunkType
	Index int64 // block-start, deltas, block-end: the block's position in the message, from 0

	BlockType BlockType // block-start
	ID        string    // tool-call-delta: the call's id
	Name      string    // tool-call-delta: the tool's name
	Texts     []string  // deltas, as they came: of text, of reasoning, of a tool call's argument string

	Usage    Usage   // usage: the normalised counts
	RawUsage RawJSON // usage: the provider's own usage object, byte for byte
	Finish   Finish  // finish
}

func (c *Chunk) delta() bool {
	return c.Type == ChunkTextDelta || c.Type == ChunkReasoningDelta || c.Type == ChunkToolCallDelta
}

// AppendChunk appends c to a run of chunks: a delta that continues the run's last delta of the same block joins
// that one's Texts. The run owns its chunks' Texts; c's are copied.
func AppendChunk(run []Chunk, c Chunk) []Chunk {
	if n := len(run); n > 0 && c.delta() {
		last := &run[n-1]
		if last.Type == c.Type && last.Index == c.Index && last.ID == c.ID && last.Name == c.Name {
			last.Texts = append(last.Texts, c.Texts...)
			return run
		}
	}
	c.Texts = slices.Clone(c.Texts)
	return append(run, c)
}

func chunkFields(w *wire, c *Chunk) {
	w.open()
	enum(w, "type", &c.Type)
	switch c.Type {
	case ChunkBlockStart:
		w.int("index", &c.Index)
		enum(w, "blockType", &c.BlockType)
		if w.err == nil && c.BlockType == BlockImage {
			w.fail(ErrInvalid, "models answer with no images")
		}
	case ChunkTextDelta, ChunkReasoningDelta:
		w.int("index", &c.Index)
		w.stringList("texts", &c.Texts)
	case ChunkToolCallDelta:
		w.int("index", &c.Index)
		w.str("id", &c.ID)
		w.str("name", &c.Name)
		w.stringList("texts", &c.Texts)
	case ChunkBlockEnd:
		w.int("index", &c.Index)
	case ChunkUsage:
		c.Usage.fields(w)
		w.optRaw("raw", &c.RawUsage)
	case ChunkFinish:
		c.Finish.fields(w, "reason")
	}
	w.close()
	if !w.reading && c.stray() {
		w.fail(ErrInvalid, "a field is set that a %s chunk does not have", c.Type)
	}
}

// stray reports whether a field is set that chunks of this type do not have: it would be lost.
func (c *Chunk) stray() bool {
	var index, block, call, texts, usage, finish bool // what the type has
	switch c.Type {
	case ChunkBlockStart:
		index, block = true, true
	case ChunkTextDelta, ChunkReasoningDelta:
		index, texts = true, true
	case ChunkToolCallDelta:
		index, call, texts = true, true, true
	case ChunkBlockEnd:
		index = true
	case ChunkUsage:
		usage = true
	case ChunkFinish:
		finish = true
	}
	return !index && c.Index != 0 || !block && c.BlockType != "" || !call && (c.ID != "" || c.Name != "") ||
		!texts && len(c.Texts) > 0 || !usage && (c.Usage != Usage{} || c.RawUsage != "") || !finish && c.Finish != Finish{}
}

// Usage is what a provider reported for one call, as disjoint counts of tokens: the input is InputTokens +
// CacheReadTokens + CacheWriteTokens + CacheWrite1hTokens. Reasoning tokens are part of OutputTokens.
type Usage struct {
	InputTokens        int64 // neither read from nor written to the cache
	CacheReported      bool  // the provider gave cache figures; without it the three below are unknown and zero
	CacheReadTokens    int64
	CacheWriteTokens   int64 // five-minute cache
	CacheWrite1hTokens int64 // one-hour cache
	OutputTokens       int64
	ReasoningTokens    int64
	Clamped            bool // the provider's figures were negative, fractional or contradictory and were clamped
}

// TotalInput returns all input tokens.
func (u Usage) TotalInput() int64 {
	return u.InputTokens + u.CacheReadTokens + u.CacheWriteTokens + u.CacheWrite1hTokens
}

func (u *Usage) fields(w *wire) {
	w.begin("usage")
	w.int("inputTokens", &u.InputTokens)
	if w.optional("cacheReadTokens", u.CacheReported) {
		u.CacheReported = true
		w.int("cacheReadTokens", &u.CacheReadTokens)
		w.optInt("cacheWriteTokens", &u.CacheWriteTokens)
		w.optInt("cacheWrite1hTokens", &u.CacheWrite1hTokens)
	} else if !w.reading && u.CacheReadTokens|u.CacheWriteTokens|u.CacheWrite1hTokens != 0 {
		w.fail(ErrInvalid, "cache tokens without CacheReported")
	}
	w.int("outputTokens", &u.OutputTokens)
	w.optInt("reasoningTokens", &u.ReasoningTokens)
	w.optTrue("clamped", &u.Clamped)
	w.close()
	if w.err != nil {
		return
	}
	if u.ReasoningTokens > u.OutputTokens {
		w.fail(ErrInvalid, "%d reasoning tokens in %d output tokens", u.ReasoningTokens, u.OutputTokens)
	}
	const most = 1 << 53 // keeps every sum of the four far inside 64 bits
	if u.InputTokens > most || u.CacheReadTokens > most || u.CacheWriteTokens > most || u.CacheWrite1hTokens > most || u.OutputTokens > most {
		w.fail(ErrInvalid, "a token count beyond 2^53")
	}
}

// FinishKind says why a model's answer ended.
type FinishKind string

// The kinds of finishes.
const (
	FinishStop          FinishKind = "stop"
	FinishToolCalls     FinishKind = "tool-calls"
	FinishMaxTokens     FinishKind = "max-tokens"
	FinishContentFilter FinishKind = "content-filter"
	FinishAborted       FinishKind = "aborted" // the caller cancelled the stream
)

func (k FinishKind) valid() bool {
	switch k {
	case FinishStop, FinishToolCalls, FinishMaxTokens, FinishContentFilter, FinishAborted:
		return true
	}
	return false
}

// Finish is the end of an answer. A stream that fails has no finish chunk; llm/failed follows it.
type Finish struct {
	Kind FinishKind
	Raw  string // the provider's own word, when it is not the usual one for Kind
}

func (f *Finish) fields(w *wire, name string) {
	w.begin(name)
	enum(w, "kind", &f.Kind)
	w.optStr("raw", &f.Raw)
	w.close()
}

// FailureCode is the stable class of a failed model call.
type FailureCode string

// The failure codes. Retryable under the normal policy: RATE_LIMIT, SERVER, TIMEOUT, TRANSPORT,
// EMPTY_RESPONSE, INTERRUPTED.
const (
	FailureRateLimit     FailureCode = "RATE_LIMIT"
	FailureServer        FailureCode = "SERVER"
	FailureTimeout       FailureCode = "TIMEOUT"
	FailureTransport     FailureCode = "TRANSPORT"
	FailureStreamClosed  FailureCode = "STREAM_CLOSED"
	FailureEmpty         FailureCode = "EMPTY_RESPONSE"
	FailureContextWindow FailureCode = "CONTEXT_WINDOW_EXCEEDED"
	FailureQuota         FailureCode = "QUOTA"
	FailureCredential    FailureCode = "INVALID_CREDENTIAL"
	FailureInvalid       FailureCode = "INVALID_REQUEST"
	FailureMalformed     FailureCode = "MALFORMED_RESPONSE"
	FailureContentFilter FailureCode = "CONTENT_FILTER"
	FailureNoAdapter     FailureCode = "NO_ADAPTER"
	FailurePrepared      FailureCode = "INVALID_PREPARED_CALL"
	FailureCancelled     FailureCode = "CANCELLED"
	FailureInterrupted   FailureCode = "INTERRUPTED" // the process that sent it died
	FailureExtension     FailureCode = "EXTENSION"   // an extension failed, or would not have the call made
)

func (c FailureCode) valid() bool {
	if len(c) == 0 || len(c) > 64 {
		return false
	}
	for i := range len(c) {
		if (c[i] < 'A' || c[i] > 'Z') && c[i] != '_' {
			return false
		}
	}
	return true
}

// Retryable reports whether the normal policy tries such a call again.
func (c FailureCode) Retryable() bool {
	return slices.Contains([]FailureCode{
		FailureRateLimit, FailureServer, FailureTimeout, FailureTransport, FailureEmpty, FailureInterrupted,
	}, c)
}

// Failure describes a failed model call. It never holds a credential.
type Failure struct {
	Message      string
	Code         FailureCode
	Status       int64 // HTTP status, 0 when there was none
	RetryAfterMs int64 // what the provider asked for, 0 when it did not
	RequestID    string
}

func (f *Failure) fields(w *wire, name string) {
	w.begin(name)
	w.str("message", &f.Message)
	enum(w, "code", &f.Code)
	w.optInt("status", &f.Status)
	w.optInt("retryAfterMs", &f.RetryAfterMs)
	w.optStr("requestId", &f.RequestID)
	w.close()
}
