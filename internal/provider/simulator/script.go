package simulator

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

// ErrScript means that a script cannot be used as it is. It is to be corrected.
var ErrScript = errors.New("invalid simulator script")

// Script says what the simulator answers. The first rule whose condition holds counts; when none does, the built-in
// answers do.
type Script struct {
	Rules   []Rule       `json:"rules"`
	Uploads []UploadRule `json:"uploads,omitzero"` // the first that holds counts; when none does, the file is kept
	Models  []Model      `json:"models,omitzero"`  // those that differ from what the simulator's config says
}

// Model is what a model can take.
type Model struct {
	Name          string `json:"name"`
	ContextWindow int64  `json:"contextWindow,omitzero"` // tokens of a prompt; 0: as the simulator's config says
	NoImages      bool   `json:"noImages,omitzero"`      // images are refused
}

// UploadRule makes an upload fail.
type UploadRule struct {
	When    UploadCondition `json:"when,omitzero"`
	Failure Failure         `json:"failure"`
}

// UploadCondition holds when all of its fields do. Nth and Times count all uploads that the simulator gets, together.
type UploadCondition struct {
	Name  lossless.Text `json:"name,omitzero"`  // stands in the file's name
	Nth   int           `json:"nth,omitzero"`   // as in [Condition]
	Times int           `json:"times,omitzero"` // as in [Condition]
}

// Rule is an answer and when to give it.
type Rule struct {
	When   Condition `json:"when,omitzero"`
	Answer Answer    `json:"answer"`
}

// Condition holds when all of its fields do. The zero value always holds.
type Condition struct {
	Contains    lossless.Text `json:"contains,omitzero"`    // stands in the last user message; those that stand together count as one
	Anywhere    lossless.Text `json:"anywhere,omitzero"`    // stands in any message that is no system message
	System      lossless.Text `json:"system,omitzero"`      // stands in a system message
	Model       string        `json:"model,omitzero"`       // the model asked for
	ToolResults *int          `json:"toolResults,omitzero"` // that many tool results since the last user message
	Images      *int          `json:"images,omitzero"`      // that many images in the request
	// Nth, from 1, holds the nth time only that the other fields do, counted in each session (by its
	// X-Refold-Session header); 0 holds every time.
	Nth int `json:"nth,omitzero"`
	// Times holds the first so many times that the other fields do, counted as for Nth; 0 holds every time. Not both.
	Times int `json:"times,omitzero"`
}

// counted reports whether a condition with Nth and Times holds when its other fields do for the n-th time.
func counted(nth, times, n int) bool { return (nth == 0 || n == nth) && (times == 0 || n <= times) }

func checkCounted(nth, times int) error {
	switch {
	case nth < 0 || times < 0:
		return errors.New("when.nth or when.times is negative")
	case nth > 0 && times > 0:
		return errors.New("when has both nth and times")
	}
	return nil
}

// Answer is what a model says, in this order: reasoning, text, calls.
type Answer struct {
	Reasoning lossless.Text `json:"reasoning,omitzero"`
	Text      lossless.Text `json:"text,omitzero"`
	Calls     []Call        `json:"calls,omitzero"`
	// Finish is the finish_reason; empty: tool_calls when there are calls, else stop.
	Finish string `json:"finish,omitzero"`

	// DeltaSizes are the lengths of successive deltas in code points, used in turn from the start again; empty: 8.
	DeltaSizes []int `json:"deltaSizes,omitzero"`
	// UTF16 has DeltaSizes count UTF-16 code units, as a server does whose strings consist of them: the halves of a
	// surrogate pair may come in two deltas.
	UTF16 bool `json:"utf16,omitzero"`
	// DelaysMs are the pauses before successive deltas in milliseconds, used in turn from the start again.
	DelaysMs []int `json:"delaysMs,omitzero"`

	// Usage replaces the usage object, byte for byte; null is a valid one.
	Usage jsontext.Value `json:"usage,omitzero"`
	// UsageAt says where the usage stands; empty: UsageLast.
	UsageAt UsagePlace `json:"usageAt,omitzero"`

	Failure *Failure `json:"failure,omitzero"` // what goes wrong, nil: nothing
}

// Call is a tool call.
type Call struct {
	Name      string        `json:"name,omitzero"`
	Arguments lossless.Text `json:"arguments"`     // the raw string, valid JSON or not
	ID        string        `json:"id,omitzero"`   // empty: made from the request's bytes
	NoID      bool          `json:"noId,omitzero"` // send none
}

// UsagePlace says where an answer's usage object stands.
type UsagePlace string

// The places of usage.
const (
	UsageLast     UsagePlace = "last"     // in the chunk with the finish_reason
	UsageSeparate UsagePlace = "separate" // in a chunk of its own, without choices, after it
	UsageNone     UsagePlace = "none"     // nowhere
)

// FailureKind is a way to go wrong.
type FailureKind string

// The kinds of failures. After says after how many deltas those of the second group happen.
const (
	FailHTTP        FailureKind = "http"         // an error response: Status, Body, RetryAfter
	FailResetBefore FailureKind = "reset-before" // the connection is reset instead of a response
	FailHangBefore  FailureKind = "hang-before"  // nothing comes for HangMs, not even headers, then the answer does

	FailReset     FailureKind = "reset"       // the connection is reset
	FailTruncate  FailureKind = "truncate"    // the response ends, properly, without finish_reason and [DONE]
	FailError     FailureKind = "error-event" // an error event: Body
	FailMalformed FailureKind = "malformed"   // data that is no JSON
	FailHang      FailureKind = "hang"        // nothing comes for HangMs, then the answer goes on

	FailNoDone FailureKind = "no-done" // everything but [DONE]
)

func failureKinds() []FailureKind {
	return []FailureKind{
		FailHTTP, FailResetBefore, FailHangBefore, FailReset, FailTruncate, FailError, FailMalformed, FailHang, FailNoDone,
	}
}

// Failure is something that goes wrong.
type Failure struct {
	Kind       FailureKind   `json:"kind"`
	After      int           `json:"after,omitzero"`
	Status     int           `json:"status,omitzero"`
	Body       lossless.Text `json:"body,omitzero"`       // empty: a fitting error object
	RetryAfter string        `json:"retryAfter,omitzero"` // the header's value
	HangMs     int           `json:"hangMs,omitzero"`     // 0: until the client goes away
}

// maxScript bounds what is read of a script.
const maxScript = 16 << 20

// LoadScript reads a script from a JSON file. Errors of its content wrap [ErrScript].
func LoadScript(path string) (Script, error) {
	b, err := files.Read(path, maxScript)
	if err != nil {
		return Script{}, fmt.Errorf("load simulator script: %w", err)
	}
	s, err := ParseScript(b)
	if err != nil {
		return Script{}, fmt.Errorf("load simulator script %s: %w", path, err)
	}
	return s, nil
}

// ParseScript reads a script. Fields that do not exist are refused. The error wraps [ErrScript].
func ParseScript(b []byte) (Script, error) {
	var s Script
	err := json.Unmarshal(b, &s, json.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return Script{}, fmt.Errorf("%w: %w", ErrScript, err)
	}
	return s, s.validate()
}

// Marshal returns the script as [ParseScript] reads it. White space in Usage is not kept.
func (s Script) Marshal() ([]byte, error) {
	return json.Marshal(s, jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))
}

func (s Script) validate() error {
	for i := range s.Rules {
		if err := s.Rules[i].validate(); err != nil {
			return fmt.Errorf("%w: rule %d: %w", ErrScript, i, err)
		}
	}
	for i := range s.Uploads {
		if err := s.Uploads[i].validate(); err != nil {
			return fmt.Errorf("%w: upload rule %d: %w", ErrScript, i, err)
		}
	}
	for i, m := range s.Models {
		named := func(o Model) bool { return o.Name == m.Name }
		if m.Name == "" || m.ContextWindow < 0 || slices.ContainsFunc(s.Models[:i], named) {
			return fmt.Errorf("%w: model %d: it has no name or that of another, or its context window is negative", ErrScript, i)
		}
	}
	return nil
}

// model returns the entry for a model, one without limits when there is none.
func (s Script) model(name string) Model {
	for _, m := range s.Models {
		if m.Name == name {
			return m
		}
	}
	return Model{Name: name}
}

func (u *UploadRule) validate() error {
	if !events.ValidText(string(u.When.Name)) {
		return errors.New("a text is not well-formed")
	}
	if err := checkCounted(u.When.Nth, u.When.Times); err != nil {
		return err
	}
	switch u.Failure.Kind {
	case FailHTTP, FailResetBefore, FailHangBefore, FailTruncate, FailMalformed:
		return u.Failure.validate()
	default:
		return fmt.Errorf("failure kind %q: an upload does not fail like that", u.Failure.Kind)
	}
}

func (r *Rule) validate() error {
	a := &r.Answer
	negative := func(n int) bool { return n < 0 }
	for _, t := range [...]lossless.Text{r.When.Contains, r.When.Anywhere, r.When.System, a.Reasoning, a.Text} {
		if !events.ValidText(string(t)) {
			return errors.New("a text is not well-formed")
		}
	}
	for _, c := range a.Calls {
		if !events.ValidText(string(c.Arguments)) {
			return errors.New("a call's arguments are not well-formed text")
		}
	}
	if err := checkCounted(r.When.Nth, r.When.Times); err != nil {
		return err
	}
	switch {
	case slices.ContainsFunc(a.DeltaSizes, func(n int) bool { return n <= 0 }):
		return errors.New("a delta size is not positive")
	case slices.ContainsFunc(a.DelaysMs, negative):
		return errors.New("a delay is negative")
	case !slices.Contains([]UsagePlace{"", UsageLast, UsageSeparate, UsageNone}, a.UsageAt):
		return fmt.Errorf("usageAt is %q", a.UsageAt)
	case a.Usage != nil && !a.Usage.IsValid(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)):
		return errors.New("usage is no JSON value")
	case a.Failure == nil:
		return nil
	}
	return a.Failure.validate()
}

func (f *Failure) validate() error {
	switch {
	case !slices.Contains(failureKinds(), f.Kind):
		return fmt.Errorf("failure kind %q", f.Kind)
	case f.Kind == FailHTTP && (f.Status < 300 || f.Status > 599):
		return fmt.Errorf("failure status %d: want 300 to 599 (%d, say)", f.Status, http.StatusServiceUnavailable)
	case f.After < 0 || f.HangMs < 0:
		return errors.New("after or hangMs is negative")
	}
	return nil
}
