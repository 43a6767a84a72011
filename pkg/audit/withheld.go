package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// RuleWithheld is named by what could not be checked because content is withheld. It is never a finding.
const RuleWithheld = "withheld"

// Sentinels of withholding.
var (
	// ErrWithholding means that content of that type cannot be withheld. Final: name other types.
	ErrWithholding = errors.New("content of this type cannot be withheld")
	// ErrWithheld means that what stands for a message without its content is malformed. Final for the bytes.
	ErrWithheld = errors.New("malformed message without content")
)

// Commitment is what is known of a stored payload whose content is withheld.
type Commitment struct {
	Payload events.BodyDigest // length and SHA-256 of the stored payload
	Opaque  bool              // nothing of the event is at hand but its envelope
}

// Withholding says which content is taken out of messages. The zero value takes out none.
type Withholding struct {
	types []events.Type // sorted
}

// spoken are the types that hold what a model said. The same text stands in several of them, so they go together.
func spoken() []events.Type {
	return []events.Type{
		events.TypeAssistantChunk, events.TypeAssistantMessage, events.TypeCompactionSummary, events.TypeSessionTitle, events.TypeToolCall,
	}
}

// NewWithholding returns the withholding of the content of some types: user/message, tool/result, request/header, or any
// of assistant/message, assistant/chunk, tool/call, compaction/summary and session/title, which stand for all five, since
// each of them repeats what others say. With any of them go the texts that say why something failed or was refused, and what
// is asked about a tool call: these may quote all others. The error wraps [ErrWithholding].
func NewWithholding(types []events.Type) (Withholding, error) {
	var w Withholding
	for _, t := range types {
		switch {
		case t == events.TypeUserMessage || t == events.TypeToolResult || t == events.TypeRequestHeader:
			w.types = append(w.types, t)
		case slices.Contains(spoken(), t):
			w.types = append(w.types, spoken()...)
		default:
			return Withholding{}, fmt.Errorf("%w: %q: want user/message, tool/result, request/header or assistant/message", ErrWithholding, clean(string(t), maxName))
		}
	}
	slices.Sort(w.types)
	w.types = slices.Compact(w.types)
	return w, nil
}

// Types returns the types whose content is withheld, sorted, in the caller's own slice.
func (w Withholding) Types() []events.Type { return slices.Clone(w.types) }

// None reports whether nothing is withheld.
func (w Withholding) None() bool { return len(w.types) == 0 }

func (w Withholding) has(t events.Type) bool { return slices.Contains(w.types, t) }

// Withhold returns what stands for the message without the content, and the commitment to its payload; ok is false when
// nothing of it is withheld. The message is not changed, nor what was decoded of it ahead. A message that holds no event is an
// error, as of [eventlog.Message.Event]: nobody knows what its content is.
func (w Withholding) Withhold(m *eventlog.Message) (out eventlog.Message, c Commitment, ok bool, err error) {
	if w.None() {
		return *m, c, false, nil
	}
	out = eventlog.Message{Seq: m.Seq, Type: m.Type, ID: m.ID, Payload: m.Payload, Stored: m.Stored} // not what was decoded ahead: others see that
	e, err := out.Event()
	if err != nil {
		return eventlog.Message{}, c, false, err
	}
	c.Payload = events.BodyDigest{Bytes: int64(len(m.Payload)), SHA256: events.HashPayload(m.Payload)}
	if w.opaque(e.Type()) {
		c.Opaque = true
		out.Payload = appendEnvelope(nil, &envelope{Seq: e.Seq, ID: e.ID, Type: e.Type(), Time: e.Time, Prev: e.Prev.String()})
		return out, c, true, nil
	}
	if !w.structural(&e) {
		return *m, Commitment{}, false, nil
	}
	if err := w.eachText(&e, false); err != nil {
		return eventlog.Message{}, c, false, err
	}
	out.Payload, err = events.Encode(&e)
	return out, c, true, err
}

// opaque reports whether an event of the type keeps its envelope alone.
func (w Withholding) opaque(t events.Type) bool { return slices.Contains(spoken(), t) && w.has(t) }

// structural reports whether the event keeps its structure and loses its content.
func (w Withholding) structural(e *events.Event) bool {
	user, tool, header := w.has(events.TypeUserMessage), w.has(events.TypeToolResult), w.has(events.TypeRequestHeader)
	switch b := e.Body.(type) {
	case *events.UserMessage:
		switch {
		case b.Message.Source.CompactionID != "": // what a model said about the messages before
			return w.has(events.TypeCompactionSummary)
		case b.Message.Source.Kind == events.SourcePlugin && len(e.Sources) > 0: // the context of a tool/result
			return user || tool
		}
		return user
	case *events.ToolResult:
		return tool || user && len(b.Contexts) > 0
	case *events.RequestImages:
		return user || tool
	case *events.RequestHeader:
		return header
	case *events.SessionCreated:
		return header && systemOf(&b.Options)
	case *events.SessionConfigured:
		return header && systemOf(&b.Options)
	}
	return !w.None() && slices.ContainsFunc(remarks(e), func(text *string) bool { return *text != "" })
}

// remarks returns the texts of the event in which a provider, a worker or an extension says why something failed or was
// refused, or asks about a tool call. They may quote any content.
func remarks(e *events.Event) []*string {
	switch b := e.Body.(type) {
	case *events.LLMFailed:
		return []*string{&b.Failure.Message}
	case *events.LLMRetry:
		return []*string{&b.Failure.Message}
	case *events.TurnEnd:
		switch b.Kind {
		case events.TurnError:
			return []*string{&b.Failure.Message}
		case events.TurnBlocked:
			return []*string{&b.Cause}
		case events.TurnCompleted, events.TurnAborted, events.TurnMaxTokens, events.TurnInterrupted: // an abort's cause is a client's
		}
	case *events.CompactionEnd:
		return []*string{&b.Error}
	case *events.ApprovalAsked:
		return []*string{&b.Question}
	case *events.InputDropped:
		return []*string{&b.Cause}
	}
	return nil
}

func systemOf(o *events.Options) bool { return o.System != "" || o.SystemObject != objects.Ref{} }

// eachText puts a commitment in the place of every text of the event that is content; with check it puts nothing anywhere, and
// fails where another text stands. Empty texts are no content.
func (w Withholding) eachText(e *events.Event, check bool) error {
	t := &texts{check: check}
	switch b := e.Body.(type) {
	case *events.UserMessage:
		t.blocks(b.Message.Content)
	case *events.ToolResult:
		if w.has(events.TypeToolResult) {
			for i := range b.Message.Content {
				t.blocks(b.Message.Content[i].Content)
			}
			t.text(&b.Error.Message)
			t.json(&b.Meta)
		}
		for i := range b.Contexts {
			t.text(&b.Contexts[i].Text)
		}
	case *events.RequestImages:
		for i := range b.Images {
			t.text(&b.Images[i].Label)
			t.text(&b.Images[i].FileID)
		}
	case *events.RequestHeader:
		t.text(&b.Header.System)
		for i := range b.Header.Tools {
			t.text(&b.Header.Tools[i].Description)
			t.json(&b.Header.Tools[i].Parameters)
		}
	case *events.SessionCreated:
		t.text(&b.Options.System)
	case *events.SessionConfigured:
		t.text(&b.Options.System)
	default:
		for _, text := range remarks(e) {
			t.text(text)
		}
	}
	return t.err
}

// texts replaces the texts of an event, or checks that they are replaced. The first error stays.
type texts struct {
	check bool
	err   error
}

func (t *texts) text(s *string) {
	switch {
	case *s == "" || t.err != nil:
	case t.check:
		t.err = checkMarker(*s)
	default:
		*s = events.WithheldText(*s)
	}
}

// json is text for a JSON value, in whose place a JSON string stands. A commitment needs no escapes.
func (t *texts) json(raw *events.RawJSON) {
	switch {
	case *raw == "" || t.err != nil:
	case t.check:
		s, ok := strings.CutPrefix(string(*raw), `"`)
		s, end := strings.CutSuffix(s, `"`)
		if !ok || !end {
			s = string(*raw)
		}
		t.err = checkMarker(s)
	default:
		*raw = events.RawJSON(`"` + events.WithheldText(string(*raw)) + `"`)
	}
}

func (t *texts) blocks(blocks []events.Block) {
	for i := range blocks {
		t.text(&blocks[i].Text)
		if blocks[i].Type == events.BlockImage {
			t.text(&blocks[i].Name)
		}
	}
}

// checkMarker returns the error of a text that stands where a commitment belongs.
func checkMarker(s string) error {
	if _, ok := events.ParseWithheldText(s); !ok {
		return fmt.Errorf("%w: %q stands where a commitment belongs, such as withheld:sha256:<digest>:<bytes>", ErrWithheld, clean(s, maxName))
	}
	return nil
}

// Event returns the event that the message m without its content stands for, with the hash of the stored payload. It must
// be one that the withholding takes the content of, and hold no content where that is to be withheld. The errors are those of
// [eventlog.Message.Event], or wrap [ErrWithheld].
func (w Withholding) Event(m *eventlog.Message, c *Commitment) (events.Event, error) {
	e, err := m.Event()
	if err != nil {
		return e, err
	}
	switch {
	case c.Opaque || !w.structural(&e):
		return e, fmt.Errorf("event %d: %w: no content is withheld from such a %s", m.Seq, ErrWithheld, e.Type())
	case c.Payload.Bytes <= 0 || c.Payload.Bytes > events.MaxEventBytes:
		return e, fmt.Errorf("event %d: %w: a payload of %d bytes", m.Seq, ErrWithheld, c.Payload.Bytes)
	}
	if err := w.eachText(&e, true); err != nil {
		return e, fmt.Errorf("event %d: %w", m.Seq, err)
	}
	e.StandFor(c.Payload.SHA256)
	return e, nil
}

// whole checks an event whose payload is at hand. Content of a type that is withheld is withheld everywhere: what of the log
// is an exporter's word must follow from the types alone, and texts must not be compared with commitments to them. The error
// wraps [ErrWithheld].
func (w Withholding) whole(e *events.Event) error {
	if w.opaque(e.Type()) || w.structural(e) {
		return fmt.Errorf("event %d: %w: the content of every such %s is said to be withheld, and it is there", e.Seq, ErrWithheld, e.Type())
	}
	return nil
}

// envelope is what stands for an event of which nothing else is at hand.
type envelope struct {
	V    int64       `json:"v"`
	Seq  uint64      `json:"seq"`
	ID   events.ID   `json:"id"`
	Type events.Type `json:"type"`
	Time int64       `json:"time"`
	Prev string      `json:"prev"`
}

// maxEnvelope bounds an encoded envelope.
const maxEnvelope = 1 << 10

func appendEnvelope(b []byte, e *envelope) []byte {
	return fmt.Appendf(b, `{"v":%d,"seq":%d,"id":"%s","type":"%s","time":%d,"prev":"%s"}`, events.Version, e.Seq, e.ID, e.Type, e.Time, e.Prev)
}

// envelope reads what stands for an event whose content is opaque, and checks that the message says the same. The error
// wraps [ErrWithheld].
func (w Withholding) envelope(m *eventlog.Message, c *Commitment) (prev events.Hash, err error) {
	fail := func(format string, args ...any) (events.Hash, error) {
		return prev, fmt.Errorf("event %d: %w: %s", m.Seq, ErrWithheld, fmt.Sprintf(format, args...))
	}
	var e envelope
	if len(m.Payload) > maxEnvelope {
		return fail("an envelope of %d bytes, at most %d", len(m.Payload), maxEnvelope)
	}
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		return fail("its envelope: %v", err)
	}
	prev, err = events.ParseHash(e.Prev)
	switch {
	case err != nil:
		return fail("its envelope: %v", err)
	case !e.ID.Valid() || !bytes.Equal(appendEnvelope(nil, &e), m.Payload):
		return fail("its envelope is not in canonical form")
	case e.Seq != m.Seq || e.ID != m.ID || e.Type != m.Type:
		return fail("its envelope is that of event %d, %s, of type %s", e.Seq, e.ID, clean(string(e.Type), maxName))
	case !w.opaque(e.Type):
		return fail("%s is not among what is withheld", clean(string(e.Type), maxName))
	case c.Payload.Bytes <= 0 || c.Payload.Bytes > events.MaxEventBytes:
		return fail("a payload of %d bytes", c.Payload.Bytes)
	}
	return prev, nil
}

// ObjectSet collects the objects that a log names, apart from those that only withheld content names. The zero value is
// empty. It takes some 100 bytes an object.
type ObjectSet struct {
	clear, hidden map[objects.Digest]struct{}
	shown         map[objects.Digest][]objects.Digest // what an image is shown as
	listed        map[objects.Digest]struct{}         // by requests
}

// Add takes the next event of the log; withheld says that its content is withheld.
func (s *ObjectSet) Add(e *events.Event, withheld bool) {
	if s.clear == nil {
		s.clear, s.hidden = make(map[objects.Digest]struct{}), make(map[objects.Digest]struct{})
		s.shown, s.listed = make(map[objects.Digest][]objects.Digest), make(map[objects.Digest]struct{})
	}
	into := s.clear
	if withheld {
		into = s.hidden
	}
	var refs []objects.Ref
	switch b := e.Body.(type) {
	case *events.RequestImages:
		for i := range b.Images {
			if b.Images[i].As == events.ImageInline {
				s.shown[b.Images[i].Image] = append(s.shown[b.Images[i].Image], b.Images[i].Object.Digest)
			}
		}
	case *events.LLMStream:
		for _, ref := range b.Objects {
			s.listed[ref.Digest] = struct{}{}
		}
		if b.Auxiliary != nil {
			m := events.Message{Content: b.Auxiliary.Directive}
			refs = m.Refs(refs)
		}
	default:
		refs = refsOf(e)
	}
	for _, ref := range refs {
		into[ref.Digest] = struct{}{}
	}
}

// refsOf returns the objects that messages, headers and options name.
func refsOf(e *events.Event) []objects.Ref {
	var refs []objects.Ref
	switch b := e.Body.(type) {
	case *events.UserMessage:
		refs = b.Message.Refs(refs)
	case *events.ToolResult:
		refs = b.Message.Refs(refs)
	case *events.AssistantMessage:
		refs = b.Message.Refs(refs)
	case *events.CompactionSummary:
		m := events.Message{Content: b.Summary}
		refs = m.Refs(refs)
	case *events.RequestHeader:
		refs = b.Header.Refs(refs)
	case *events.SessionCreated:
		refs = append(refs, b.Options.SystemObject)
	case *events.SessionConfigured:
		refs = append(refs, b.Options.SystemObject)
	}
	return slices.DeleteFunc(refs, func(r objects.Ref) bool { return r == objects.Ref{} })
}

// Digests returns the objects that are not withheld, in ascending order.
func (s *ObjectSet) Digests() []objects.Digest {
	hidden := func(d objects.Digest) bool {
		_, open := s.clear[d]
		_, hidden := s.hidden[d]
		return hidden && !open
	}
	of := make(map[objects.Digest]struct{}) // what hidden images are shown as
	open := make(map[objects.Digest]struct{}, len(s.clear)+len(s.listed))
	for image, shown := range s.shown {
		into := open
		if hidden(image) {
			into = of
		}
		for _, d := range shown {
			into[d] = struct{}{}
		}
	}
	for d := range s.clear {
		open[d] = struct{}{}
	}
	for d := range s.listed {
		if _, ok := of[d]; !ok && !hidden(d) {
			open[d] = struct{}{}
		}
	}
	out := make([]objects.Digest, 0, len(open))
	for d := range open {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b objects.Digest) int { return bytes.Compare(a[:], b[:]) })
	return out
}
