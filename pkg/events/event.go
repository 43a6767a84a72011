package events

import (
	"slices"
	"strings"
)

// Version is the format version that this package writes and the only one that it reads.
const Version = 1

// MaxEventBytes bounds one payload: the largest max_payload that a NATS server can be given.
const MaxEventBytes = 64 << 20

// Body is the typed data of an event: one of the pointer types of this package, or [*Unknown].
type Body interface {
	Type() Type
	fields(*wire)
}

// Unknown is the data of an event of a type that this version does not know and may skip.
type Unknown struct {
	Name Type
	Data RawJSON
}

// Type returns the name that the event carries.
func (b *Unknown) Type() Type { return b.Name }

func (b *Unknown) fields(*wire) {} // its data is raw: see Event.fields

// SurfaceOpKind says what an event does to the surface.
type SurfaceOpKind uint8

// The surface operations.
const (
	SurfaceNone SurfaceOpKind = iota
	SurfaceAppend
	SurfaceReplace
)

// SurfaceOp is an event's effect on the surface, the ordered list of the events that the next request shows.
type SurfaceOp struct {
	Kind   SurfaceOpKind
	Region Region // SurfaceReplace: what it takes the place of
}

// AppendOp is the operation that puts an event at the end of the surface.
func AppendOp() SurfaceOp { return SurfaceOp{Kind: SurfaceAppend} }

// ReplaceOp is the operation that puts an event in the place of the nodes start..end.
func ReplaceOp(start, end uint64) SurfaceOp {
	return SurfaceOp{Kind: SurfaceReplace, Region: Region{Start: start, End: end}}
}

// Event is one event of a session's log.
type Event struct {
	Seq       uint64 // from 1, without gaps: the stream sequence
	ID        ID     // unique; also the message's Nats-Msg-Id
	Time      int64  // Unix milliseconds
	Prev      Hash   // the hash of the payload before, zero for the first
	Body      Body
	Surface   SurfaceOp
	Sources   []uint64 // earlier events that this one derives from, each once
	Ignorable bool     // a reader that does not know the type may skip the event

	hash     Hash
	sealed   bool
	withheld bool
}

// Type returns the type of the event's body.
func (e *Event) Type() Type { return e.Body.Type() }

// Hash returns the chain hash of the event's canonical payload, and whether the event has one: it came from
// [Decode] or went through [Encode] and was not given back changed.
func (e *Event) Hash() (Hash, bool) { return e.hash, e.sealed }

// StandFor makes e, which was decoded from a payload without the content, stand for the stored payload that hashes to
// stored: a chain goes on over that hash. That e has the structure of the stored event is the word of whoever took the
// content out.
func (e *Event) StandFor(stored Hash) { e.hash, e.sealed, e.withheld = stored, true, true }

// Withheld reports whether e stands for a stored payload that is not at hand: see [Event.StandFor].
func (e *Event) Withheld() bool { return e.withheld }

func (e *Event) fields(w *wire) {
	w.open()
	version := uint64(Version)
	w.uint("v", &version)
	if w.err == nil && version != Version {
		w.fail(ErrVersion, "format %d, this reader knows %d: use a newer one", version, Version)
	}
	w.uint("seq", &e.Seq)
	w.id("id", &e.ID)
	e.typeField(w)
	w.int("time", &e.Time)
	w.hash("prev", &e.Prev)
	e.dataField(w)
	e.surfaceField(w)
	optList(w, "sourceEventSeqs", &e.Sources, seqElem)
	w.optTrue("ignorable", &e.Ignorable)
	w.close()
	e.check(w)
}

func (e *Event) typeField(w *wire) {
	var t Type
	if !w.reading {
		t = e.Body.Type()
	}
	w.str("type", (*string)(&t))
	if w.err != nil {
		return
	}
	if t == typeHeaderDelta {
		w.fail(ErrLegacy, "type %q", t)
		return
	}
	if w.reading {
		e.Body = newBody(t)
	}
	if _, unknown := e.Body.(*Unknown); unknown && !t.valid() {
		w.fail(ErrInvalid, "malformed type %q", clip(string(t)))
	}
}

func (e *Event) dataField(w *wire) {
	if w.err != nil {
		return
	}
	// A message stays on the surface for long. One with escapes is read from a copy, in which they are replaced: otherwise both
	// the payload and the texts that were made from it would stay.
	if w.reading && w.buf == nil && e.Body.Type().Surface() && strings.IndexByte(w.in[w.pos:], '\\') >= 0 {
		w.own()
	}
	if u, ok := e.Body.(*Unknown); ok {
		w.raw("data", &u.Data)
		return
	}
	w.begin("data")
	e.Body.fields(w)
	w.close()
}

func (e *Event) surfaceField(w *wire) {
	if !w.optional("surfaceOp", e.Surface.Kind != SurfaceNone) {
		return
	}
	w.key("surfaceOp")
	if w.reading {
		e.Surface.Kind = SurfaceReplace
		if w.hasPrefix(`"append"`) {
			e.Surface.Kind = SurfaceAppend
		}
	}
	if e.Surface.Kind == SurfaceAppend {
		w.lit(`"append"`)
		return
	}
	w.lit(`{"op":"replace"`)
	w.uint("start", &e.Surface.Region.Start)
	w.uint("end", &e.Surface.Region.End)
	w.close()
}

// check holds the rules of the envelope.
func (e *Event) check(w *wire) {
	if w.err != nil {
		return
	}
	t := e.Body.Type()
	_, unknown := e.Body.(*Unknown)
	switch {
	case e.Seq == 0:
		w.field = "seq"
		w.fail(ErrInvalid, "sequences count from 1")
	case unknown && !e.Ignorable:
		w.field = "type"
		w.fail(ErrUnknownType, "type %q: use a newer reader", t)
	case unknown && newBodyKnown(t):
		w.field = "type"
		w.fail(ErrInvalid, "type %q is known", t)
	case !unknown && e.Ignorable != ignorable(t):
		w.field = "ignorable"
		w.fail(ErrInvalid, "ignorable=%t does not fit type %q", e.Ignorable, t)
	case t.Surface() != (e.Surface.Kind != SurfaceNone):
		w.field = "surfaceOp"
		w.fail(ErrInvalid, "type %q and surfaceOp do not go together", t)
	case e.Surface.Kind > SurfaceReplace, e.Surface.Kind != SurfaceReplace && e.Surface.Region != Region{}:
		w.field = "surfaceOp"
		w.fail(ErrInvalid, "surface operation %d with region %d..%d", e.Surface.Kind, e.Surface.Region.Start, e.Surface.Region.End)
	}
	e.checkSources(w)
}

func (e *Event) checkSources(w *wire) {
	ascending := true
	for i, s := range e.Sources {
		if s == 0 || s >= e.Seq {
			w.field = "sourceEventSeqs"
			w.fail(ErrInvalid, "source %d of event %d does not come before it", s, e.Seq)
			return
		}
		ascending = ascending && (i == 0 || s > e.Sources[i-1])
	}
	if ascending {
		return
	}
	sorted := slices.Clone(e.Sources)
	slices.Sort(sorted)
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			w.field = "sourceEventSeqs"
			w.fail(ErrInvalid, "source %d stands twice", sorted[i])
			return
		}
	}
}

// ignorable reports whether events of a known type are purely informational.
func ignorable(t Type) bool { return t == TypeSessionTitle }

func newBodyKnown(t Type) bool {
	_, unknown := newBody(t).(*Unknown)
	return !unknown
}

// newBody returns an empty body of type t.
func newBody(t Type) Body {
	switch t {
	case TypeSessionCreated:
		return new(SessionCreated)
	case TypeSessionConfigured:
		return new(SessionConfigured)
	case TypeSessionEndSeed:
		return new(SessionEndSeed)
	case TypeSessionTitle:
		return new(SessionTitle)
	case TypeSessionClosed:
		return new(SessionClosed)
	case TypeInputDropped:
		return new(InputDropped)
	case TypeLoopClaimed:
		return new(LoopClaimed)
	case TypeTurnStart:
		return new(TurnStart)
	case TypeTurnEnd:
		return new(TurnEnd)
	case TypeTurnCancelled:
		return new(TurnCancelled)
	case TypeStepStart:
		return new(StepStart)
	case TypeStepEnd:
		return new(StepEnd)
	case TypeUserMessage:
		return new(UserMessage)
	case TypeRequestHeader:
		return new(RequestHeader)
	case TypeRequestContext:
		return new(RequestContext)
	case TypeRequestImages:
		return new(RequestImages)
	case TypeLLMStream:
		return new(LLMStream)
	case TypeLLMFailed:
		return new(LLMFailed)
	case TypeLLMRetry:
		return new(LLMRetry)
	case TypeLLMRetryStarted:
		return new(LLMRetryStarted)
	case TypeAssistantChunk:
		return new(AssistantChunk)
	case TypeAssistantMessage:
		return new(AssistantMessage)
	case TypeToolCall:
		return new(ToolCall)
	case TypeToolResult:
		return new(ToolResult)
	case TypeCompactionStart:
		return new(CompactionStart)
	case TypeCompactionSummary:
		return new(CompactionSummary)
	case TypeCompactionEnd:
		return new(CompactionEnd)
	case TypeCompactionPrune:
		return new(CompactionPrune)
	case TypeApprovalAsked:
		return new(ApprovalAsked)
	case TypeApprovalDecided:
		return new(ApprovalDecided)
	case typeHeaderDelta: // refused before it comes here
	}
	return &Unknown{Name: t}
}
