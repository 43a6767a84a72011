package events

import (
	"slices"

	"github.com/refold-dev/refold/pkg/objects"
)

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
	Header    Header
	Reason    HeaderReason
	ChangedBy []ConfigChange // in the order in which the extensions were asked; no two of one extension; nil: none changed anything
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
	changesFields(w, &b.ChangedBy)
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
	Turn, Step int64      // 0 where none is open, which only an auxiliary call permits
	Attempt    int64      // from 1 in each step; of auxiliary calls, in each compaction and for each title
	Purpose    Purpose    // every one but loop makes it an auxiliary call
	Auxiliary  *Auxiliary // of an auxiliary call; nil for loop
	Header     uint64     // the sequence of the header in force
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
	b.auxiliaryField(w)
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

// Auxiliary is what the request of an auxiliary call has instead of the conversation: the header in force with Config in
// the place of its own, the messages of the region's nodes, and one user message with the directive.
type Auxiliary struct {
	Config    Config
	Region    Region  // of the surface at that point; zero: no messages but the directive
	Directive []Block // text
}

// Clone returns a deep copy of a, or nil when a is nil.
func (a *Auxiliary) Clone() *Auxiliary {
	if a == nil {
		return nil
	}
	return &Auxiliary{Config: a.Config.clone(), Region: a.Region, Directive: slices.Clone(a.Directive)}
}

func (b *LLMStream) auxiliaryField(w *wire) {
	if w.optional("auxiliary", b.Auxiliary != nil) {
		if w.reading {
			b.Auxiliary = new(Auxiliary)
		}
		a := b.Auxiliary
		w.begin("auxiliary")
		a.Config.fields(w)
		if w.optional("region", a.Region != Region{}) {
			a.Region.fields(w)
			w.absentZero(a.Region == Region{})
		}
		list(w, "directive", &a.Directive, textBlockFields)
		w.close()
	}
	if w.err == nil && (b.Purpose == PurposeLoop) != (b.Auxiliary == nil) {
		w.fail(ErrInvalid, "auxiliary stands with every purpose but loop")
	}
	if w.err == nil && b.Purpose == PurposeLoop && b.Step == 0 {
		w.fail(ErrInvalid, "a call of the loop belongs to a step")
	}
}

func attemptFields(w *wire, turn, step, attempt *int64) {
	placeFields(w, turn, step)
	w.ordinal("attempt", attempt)
}

// placeFields handles the turn and the step of a call, 0 where none is open.
func placeFields(w *wire, turn, step *int64) {
	w.int("turn", turn)
	w.int("step", step)
	if w.err == nil && *turn == 0 && *step != 0 {
		w.fail(ErrInvalid, "a step belongs to a turn")
	}
}

// ImageShown says how the image blocks of one object are shown from now on.
type ImageShown struct {
	Image         objects.Digest // of the object that the blocks name
	As            ImageForm
	Label         string      // text: the placeholder, not empty; otherwise the text before the image, empty for none
	Object        objects.Ref // inline: the bytes that are sent, of an image's media type
	FileID        string      // file: the provider's id for it, not empty
	Provider      string      // file: who holds it
	ExpiresAt     int64       // file: when the provider forgets it, Unix milliseconds; 0: not known
	Width, Height int64       // of what is sent, in pixels; both 0: not known
}

// ImageForm is the form in which a request shows an image.
type ImageForm string

// The forms.
const (
	ImageInline ImageForm = "inline" // the bytes of Object
	ImageFile   ImageForm = "file"   // a file that the provider holds
	ImageText   ImageForm = "text"   // a placeholder: the model takes no images
)

func (f ImageForm) valid() bool { return f == ImageInline || f == ImageFile || f == ImageText }

func imageShownFields(w *wire, i *ImageShown) {
	w.open()
	w.key("image")
	w.hexValue(i.Image[:])
	enum(w, "as", &i.As)
	w.optStr("label", &i.Label)
	w.optRef("object", &i.Object)
	w.optStr("fileId", &i.FileID)
	w.optStr("provider", &i.Provider)
	w.optInt("expiresAt", &i.ExpiresAt)
	w.optInt("width", &i.Width)
	w.optInt("height", &i.Height)
	w.close()
	switch {
	case w.err != nil:
	case (i.As == ImageInline) != (i.Object != objects.Ref{}):
		w.fail(ErrInvalid, "object stands with an inline image, and only there")
	case (i.As == ImageFile) != (i.FileID != ""):
		w.fail(ErrInvalid, "fileId stands with a file, and only there")
	case i.As == ImageInline && !isImage(i.Object.MediaType):
		w.fail(ErrInvalid, "media type %q is none of an image", clip(i.Object.MediaType))
	case i.As == ImageText && i.Label == "":
		w.fail(ErrInvalid, "a placeholder has a label")
	case (i.Width == 0) != (i.Height == 0):
		w.fail(ErrInvalid, "width and height stand together")
	}
}

// RequestImages records how images are shown from the next request on; of several events that name an image the last
// counts. An image that none names cannot be shown.
type RequestImages struct {
	Images []ImageShown // not empty; each image once
}

// Type returns [TypeRequestImages].
func (*RequestImages) Type() Type { return TypeRequestImages }

func (b *RequestImages) fields(w *wire) {
	list(w, "images", &b.Images, imageShownFields)
	if w.err != nil {
		return
	}
	if len(b.Images) == 0 {
		w.fail(ErrInvalid, "it names no image")
		return
	}
	seen := make(map[objects.Digest]struct{}, len(b.Images))
	for i := range b.Images {
		seen[b.Images[i].Image] = struct{}{}
	}
	if len(seen) < len(b.Images) {
		w.fail(ErrInvalid, "it names an image twice")
	}
}

// LLMFailed ends a model call that gave no answer.
type LLMFailed struct {
	Turn, Step, Attempt int64 // those of its llm/stream
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
	Turn, Step int64 // those of the failed call
	RetryID    string
	Retry      int64 // from 1 in each step
	MaxRetries int64 // 0: without limit
	DelayMs    int64
	Failure    Failure
}

// Type returns [TypeLLMRetry].
func (*LLMRetry) Type() Type { return TypeLLMRetry }

func (b *LLMRetry) fields(w *wire) {
	placeFields(w, &b.Turn, &b.Step)
	w.str("retryId", &b.RetryID)
	w.ordinal("retry", &b.Retry)
	w.optInt("maxRetries", &b.MaxRetries)
	w.int("delayMs", &b.DelayMs)
	b.Failure.fields(w, "failure")
}

// LLMRetryStarted says that the delay of an [LLMRetry] is over.
type LLMRetryStarted struct {
	Turn, Step int64 // those of its LLMRetry
	RetryID    string
	Retry      int64
}

// Type returns [TypeLLMRetryStarted].
func (*LLMRetryStarted) Type() Type { return TypeLLMRetryStarted }

func (b *LLMRetryStarted) fields(w *wire) {
	placeFields(w, &b.Turn, &b.Step)
	w.str("retryId", &b.RetryID)
	w.ordinal("retry", &b.Retry)
}

// AssistantChunk holds a run of the chunks of one attempt, in the order in which they came.
type AssistantChunk struct {
	Turn, Step, Attempt int64 // those of its llm/stream
	Chunks              []Chunk
}

// Type returns [TypeAssistantChunk].
func (*AssistantChunk) Type() Type { return TypeAssistantChunk }

func (b *AssistantChunk) fields(w *wire) {
	attemptFields(w, &b.Turn, &b.Step, &b.Attempt)
	w.key("chunks")
	array(w, &b.Chunks, &w.scratch.chunks, chunkFields)
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
