package project

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/refold-dev/refold/pkg/events"
)

// Version is the record format that this package writes and the only one that it reads.
const Version = 1

// MaxRecordBytes bounds an encoded record: the server's default max_payload.
const MaxRecordBytes = 1 << 20

// MaxAttempts is how many attempts a record lists. Of a step with more the first stays, and the last ones.
const MaxAttempts = 1000

// Sentinels. Both are final for the bytes or the record they were reported for.
var (
	// ErrSyntax means that the bytes are not the canonical encoding of a record.
	ErrSyntax = errors.New("no canonical step record")
	// ErrInvalid means that a value breaks a rule of the format, or the format is newer than this reader: use a newer
	// one.
	ErrInvalid = errors.New("invalid step record")
)

// Text is a string that may hold lone surrogates, as package events keeps them.
type Text string

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) { return events.AppendQuote(nil, string(t)), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	s, err := events.Unquote(b)
	if err != nil {
		return err
	}
	*t = Text(s)
	return nil
}

// Usage is what a provider reported for one call, as disjoint counts of tokens: the input is the sum of the first
// four. Reasoning is part of Output.
type Usage struct {
	InputUncached int64 `json:"inputUncached"`
	CacheRead     int64 `json:"cacheRead,omitempty"`
	CacheWrite5m  int64 `json:"cacheWrite5m,omitempty"`
	CacheWrite1h  int64 `json:"cacheWrite1h,omitempty"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning,omitempty"`
	CacheReported bool  `json:"cacheReported,omitempty"` // without it the three cache counts are unknown and zero
	Clamped       bool  `json:"clamped,omitempty"`       // the provider's figures contradicted each other
}

// UsageOf converts a usage of the log; nil when none was reported.
func UsageOf(u events.Usage, reported bool) *Usage {
	if !reported {
		return nil
	}
	return &Usage{
		InputUncached: u.InputTokens, CacheRead: u.CacheReadTokens, CacheWrite5m: u.CacheWriteTokens,
		CacheWrite1h: u.CacheWrite1hTokens, Output: u.OutputTokens, Reasoning: u.ReasoningTokens,
		CacheReported: u.CacheReported, Clamped: u.Clamped,
	}
}

// TotalInput returns all input tokens.
func (u *Usage) TotalInput() int64 {
	return u.InputUncached + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h
}

// Extent is the length of a prefix of a request: in bytes of its body, and in whole messages of the conversation. The
// system prompt is part of the bytes and no message.
type Extent struct {
	Bytes    int64 `json:"bytes"`
	Messages int64 `json:"messages"`
}

// Limit says why less of a prefix can be reused than the bodies have in common.
type Limit string

// The limits.
const (
	LimitNone Limit = ""
	// LimitModel: another model, or another provider, has a cache of its own.
	LimitModel Limit = "model"
	// LimitTemplateOrder: the tools changed. In the body they stand behind the messages, but the provider's template
	// puts them in front, so that no message can be reused.
	LimitTemplateOrder Limit = "template-order"
)

// Unbuilt says why a request's body could not be rebuilt; its byte figures are then zero.
type Unbuilt string

// The reasons.
const (
	Built              Unbuilt = ""
	UnbuiltCodec       Unbuilt = "unknown-codec"
	UnbuiltMissing     Unbuilt = "missing-object"
	UnbuiltCorrupt     Unbuilt = "corrupt-object"
	UnbuiltUnsupported Unbuilt = "unsupported"
	UnbuiltMismatch    Unbuilt = "mismatch"    // the rebuilt body is not what the log says was sent
	UnbuiltPredecessor Unbuilt = "predecessor" // this body is fine; the one before it could not be rebuilt
)

// Attempt is one model call of a step.
type Attempt struct {
	Stream       uint64             `json:"stream"`   // the sequence of its llm/stream
	Bytes        int64              `json:"bytes"`    // the length of the body
	Messages     int64              `json:"messages"` // in the conversation that it shows
	Prefix       Extent             `json:"prefix"`   // what the body has in common with the session's request before it
	Reusable     Extent             `json:"reusable"` // how much of that a prefix cache can reuse
	Limit        Limit              `json:"limit,omitempty"`
	Unbuilt      Unbuilt            `json:"unbuilt,omitempty"`
	FirstChunkMs *int64             `json:"firstChunkMs,omitempty"` // from llm/stream; absent: no chunk came
	DurationMs   int64              `json:"durationMs"`             // from llm/stream to its answer or failure
	Failure      events.FailureCode `json:"failure,omitempty"`
	Usage        *Usage             `json:"usage,omitempty"` // failed: what it cost all the same
}

// Record is what a finished step cost and what the cache gave, or what one auxiliary call cost. Times are differences of event times, in milliseconds,
// never negative. Sequences are those of the session's log.
type Record struct {
	V       int       `json:"v"`
	Session events.ID `json:"session"`
	Turn    int64     `json:"turn"`
	Step    int64     `json:"step"`
	// Purpose is what the call of an auxiliary record was for; empty in the record of a step.
	Purpose    events.Purpose `json:"purpose,omitempty"`
	Seq        uint64         `json:"seq"`  // of the step/end, or of what ended the auxiliary call
	Time       int64          `json:"time"` // of that event, Unix milliseconds
	DurationMs int64          `json:"durationMs"`
	Provider   Text           `json:"provider,omitempty"`
	Model      Text           `json:"model,omitempty"`
	Codec      Text           `json:"codec,omitempty"`
	// Attempts are the step's model calls, in order, or the one auxiliary call.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Omitted is how many attempts are not listed, see [MaxAttempts]; what they cost is in the log.
	Omitted int64 `json:"omitted,omitempty"`
	// Usage is what the answer cost; absent when there is no answer or the provider reported nothing.
	Usage *Usage `json:"usage,omitempty"`
	// ExpectedTokens is how many input tokens the cache should have held for the last attempt. With an unbroken prefix
	// it is measured: the input of the request that the provider served before, in full units; with a broken one it is
	// an estimate by bytes.
	ExpectedTokens int64 `json:"expectedTokens"`
	// GapMs is the time from the end of the call that the provider served before to the last attempt.
	GapMs     int64              `json:"gapMs,omitempty"`
	Cause     Cause              `json:"cause,omitempty"` // empty in an auxiliary record
	Finish    events.FinishKind  `json:"finish,omitempty"`
	Failure   events.FailureCode `json:"failure,omitempty"` // of the last attempt, when the step has no answer
	ToolCalls int64              `json:"toolCalls,omitempty"`
	// Projector is the instance that published the record.
	Projector events.ID `json:"projector,omitempty"`
}

// ID returns the name of what the record is about, the same whoever publishes it: session and sequence.
func (r *Record) ID() string { return string(r.Session) + ":" + strconv.FormatUint(r.Seq, 10) }

// HitRatio returns the share of the answer's input that came from the cache, in [0,1]; ok is false when the provider
// reported no cache figures or no input.
func (r *Record) HitRatio() (ratio float64, ok bool) {
	if r.Usage == nil || !r.Usage.CacheReported || r.Usage.TotalInput() == 0 {
		return 0, false
	}
	return float64(r.Usage.CacheRead) / float64(r.Usage.TotalInput()), true
}

// Last returns the last attempt, which is the one that gave the answer if any did; nil when the step made no call.
func (r *Record) Last() *Attempt {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// Encode returns the canonical bytes of r: fixed field order, what is empty absent, no white space. Errors wrap
// [ErrInvalid].
func Encode(r *Record) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("encode step record %s: %w", r.ID(), err)
	}
	b, err := marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode step record %s: %w: %w", r.ID(), ErrInvalid, err)
	}
	if len(b) > MaxRecordBytes {
		return nil, fmt.Errorf("encode step record %s: %w: %d bytes, at most %d", r.ID(), ErrInvalid, len(b), MaxRecordBytes)
	}
	return b, nil
}

func marshal(r *Record) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Decode is the inverse of [Encode] and accepts no other bytes. Errors wrap [ErrSyntax] or [ErrInvalid].
func Decode(b []byte) (Record, error) {
	if len(b) > MaxRecordBytes {
		return Record{}, fmt.Errorf("decode step record: %w: %d bytes, at most %d", ErrInvalid, len(b), MaxRecordBytes)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("decode step record: %w: %w", ErrSyntax, err)
	}
	if err := r.validate(); err != nil {
		return Record{}, fmt.Errorf("decode step record: %w", err)
	}
	again, err := marshal(&r)
	if err != nil || !bytes.Equal(again, b) {
		return Record{}, fmt.Errorf("decode step record: %w: fields are unknown, doubled, empty or out of order", ErrSyntax)
	}
	return r, nil
}

func (r *Record) validate() error {
	switch {
	case r.V != Version:
		return fmt.Errorf("%w: format %d, this reader knows %d: use a newer one", ErrInvalid, r.V, Version)
	case !r.Session.Valid(), r.Projector != "" && !r.Projector.Valid():
		return fmt.Errorf("%w: session or projector is no ULID", ErrInvalid)
	case r.Seq == 0 || r.Purpose == "" && (r.Turn < 1 || r.Step < 1):
		return fmt.Errorf("%w: turn, step and sequence count from 1", ErrInvalid)
	case r.Time < 0 || r.DurationMs < 0 || r.GapMs < 0 || r.Omitted < 0 || r.ExpectedTokens < 0 || r.ToolCalls < 0:
		return fmt.Errorf("%w: a negative count", ErrInvalid)
	case r.Purpose == "" && !r.Cause.valid():
		return fmt.Errorf("%w: unknown cause %q", ErrInvalid, clip(string(r.Cause)))
	case !validCode(string(r.Failure)):
		return fmt.Errorf("%w: failure code %q", ErrInvalid, clip(string(r.Failure)))
	case !validFinish(r.Finish) || r.Finish != "" && r.Failure != "":
		return fmt.Errorf("%w: finish %q with failure %q", ErrInvalid, clip(string(r.Finish)), r.Failure)
	case !events.ValidText(string(r.Provider)) || !events.ValidText(string(r.Model)) || !events.ValidText(string(r.Codec)):
		return fmt.Errorf("%w: a text is not well-formed", ErrInvalid)
	}
	if err := r.Usage.validate(); err != nil {
		return err
	}
	if r.Purpose != "" {
		if err := r.validateAuxiliary(); err != nil {
			return err
		}
	}
	if len(r.Attempts) > MaxAttempts || r.Omitted > 0 && len(r.Attempts) < MaxAttempts {
		return fmt.Errorf("%w: %d attempts listed, %d omitted", ErrInvalid, len(r.Attempts), r.Omitted)
	}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		if err := a.validate(); err != nil {
			return fmt.Errorf("attempt at event %d: %w", a.Stream, err)
		}
		if a.Stream >= r.Seq || i > 0 && a.Stream <= r.Attempts[i-1].Stream {
			return fmt.Errorf("%w: attempts are out of order", ErrInvalid)
		}
	}
	return nil
}

func (a *Attempt) validate() error {
	switch {
	case a.Bytes < 0 || a.Messages < 0 || a.DurationMs < 0 || a.FirstChunkMs != nil && *a.FirstChunkMs < 0:
		return fmt.Errorf("%w: a negative count", ErrInvalid)
	case a.Reusable.Bytes < 0 || a.Reusable.Bytes > a.Prefix.Bytes || a.Prefix.Bytes > a.Bytes:
		return fmt.Errorf("%w: of %d bytes %d in common, %d reusable", ErrInvalid, a.Bytes, a.Prefix.Bytes, a.Reusable.Bytes)
	case a.Reusable.Messages < 0 || a.Reusable.Messages > a.Prefix.Messages || a.Prefix.Messages > a.Messages:
		return fmt.Errorf("%w: of %d messages %d in common, %d reusable", ErrInvalid, a.Messages, a.Prefix.Messages, a.Reusable.Messages)
	case !validCode(string(a.Failure)):
		return fmt.Errorf("%w: failure code %q", ErrInvalid, clip(string(a.Failure)))
	}
	switch a.Limit {
	case LimitNone, LimitModel, LimitTemplateOrder:
	default:
		return fmt.Errorf("%w: unknown limit %q", ErrInvalid, clip(string(a.Limit)))
	}
	switch a.Unbuilt {
	case Built, UnbuiltCodec, UnbuiltMissing, UnbuiltCorrupt, UnbuiltUnsupported, UnbuiltMismatch, UnbuiltPredecessor:
	default:
		return fmt.Errorf("%w: unknown reason %q", ErrInvalid, clip(string(a.Unbuilt)))
	}
	return a.Usage.validate()
}

func (u *Usage) validate() error {
	if u == nil {
		return nil
	}
	const most = 1 << 53 // keeps every sum of the four far inside 64 bits
	for _, n := range [...]int64{u.InputUncached, u.CacheRead, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning} {
		if n < 0 || n > most {
			return fmt.Errorf("%w: %d tokens", ErrInvalid, n)
		}
	}
	if u.Reasoning > u.Output {
		return fmt.Errorf("%w: %d reasoning tokens in %d output tokens", ErrInvalid, u.Reasoning, u.Output)
	}
	if !u.CacheReported && u.CacheRead|u.CacheWrite5m|u.CacheWrite1h != 0 {
		return fmt.Errorf("%w: cache tokens that were not reported", ErrInvalid)
	}
	return nil
}

// validCode reports whether s is empty or a failure code: at most 64 of A-Z and _.
func validCode(s string) bool {
	for i := range len(s) {
		if (s[i] < 'A' || s[i] > 'Z') && s[i] != '_' {
			return false
		}
	}
	return len(s) <= 64
}

func validFinish(k events.FinishKind) bool {
	switch k {
	case "", events.FinishStop, events.FinishToolCalls, events.FinishMaxTokens, events.FinishContentFilter, events.FinishAborted:
		return true
	}
	return false
}

// clip shortens a value quoted in an error.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
