package events

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/refold-dev/refold/pkg/objects"
)

// InputKind says what an input asks for.
type InputKind string

// The kinds of inputs.
const (
	InputPrompt    InputKind = "prompt"    // a message that opens the next turn
	InputSteer     InputKind = "steer"     // a message for the next step; it opens a turn when there is none
	InputInject    InputKind = "inject"    // a message for the next step, whenever that comes
	InputCancel    InputKind = "cancel"    // an end of the turn
	InputCompact   InputKind = "compact"   // a summary of the older conversation in its place
	InputConfigure InputKind = "configure" // a change of the session's options
	InputClose     InputKind = "close"     // no more inputs
	InputFork      InputKind = "fork"      // a new session that begins with what another holds
)

func (k InputKind) valid() bool {
	switch k {
	case InputPrompt, InputSteer, InputInject, InputCancel, InputCompact, InputConfigure, InputClose, InputFork:
		return true
	}
	return false
}

// message reports whether inputs of the kind are messages for the model.
func (k InputKind) message() bool { return k == InputPrompt || k == InputSteer || k == InputInject }

// ForkPoint names where a fork starts.
type ForkPoint struct {
	ID  ID     // the parent session
	Seq uint64 // the last event that is copied; 0: the last one with which no turn is open
}

// Input is what a client publishes on inbox.<session>. Its ID is also the message's Nats-Msg-Id, so sending it
// again is harmless.
type Input struct {
	ID      ID
	Time    int64 // Unix milliseconds, the client's clock
	Kind    InputKind
	Open    bool    // make the session when there is none; without it, an input for an unknown session is refused
	Content []Block // prompt, steer, inject: text and image blocks
	// Attachments are the bytes of the images of Content, one for each, in order. That digest and length are those of
	// the block is checked here; its media type and size in pixels are checked by the session's worker, which puts the
	// bytes into the object store. [DecodeInput] gives them memory of their own.
	Attachments [][]byte
	Options     Options   // configure: the change; prompt, fork: the options of a session that it opens
	Labels      []Label   // prompt, fork: the labels of a session that it opens; sorted, unique
	Cwd         string    // prompt, fork: the directory of a session that it opens
	Parent      ForkPoint // fork
	Cause       string    // cancel: why, as the end of the turn repeats it
	KeepQueue   bool      // cancel: the inputs before it that nobody used yet stay; otherwise they are dropped
	Reason      string    // close
}

// EncodeInput returns the canonical payload of in. Errors wrap [ErrInvalid] or [ErrTooLarge].
func EncodeInput(in *Input) ([]byte, error) {
	w := &wire{out: make([]byte, 0, 256)}
	in.fields(w)
	if w.err != nil {
		return nil, fmt.Errorf("encode input %s: %w", in.ID, w.err)
	}
	if len(w.out) > MaxEventBytes {
		return nil, fmt.Errorf("encode input %s: %w: %d bytes, at most %d", in.ID, ErrTooLarge, len(w.out), MaxEventBytes)
	}
	return w.out, nil
}

// DecodeInput is the inverse of [EncodeInput] and accepts no other bytes. Errors wrap [ErrSyntax], [ErrInvalid],
// [ErrVersion] or [ErrTooLarge].
func DecodeInput(payload []byte) (Input, error) {
	if len(payload) > MaxEventBytes {
		return Input{}, fmt.Errorf("decode input: %w: %d bytes, at most %d", ErrTooLarge, len(payload), MaxEventBytes)
	}
	w := newReader(payload)
	var in Input
	in.fields(w)
	w.end()
	if w.err != nil {
		return Input{}, w.err
	}
	return in, nil
}

func (in *Input) fields(w *wire) {
	w.open()
	version := uint64(Version)
	w.uint("v", &version)
	if w.err == nil && version != Version {
		w.fail(ErrVersion, "input format %d, this reader knows %d", version, Version)
	}
	w.id("id", &in.ID)
	w.int("time", &in.Time)
	enum(w, "kind", &in.Kind)
	w.optTrue("open", &in.Open)
	if in.Kind.message() {
		in.messageFields(w)
	}
	switch in.Kind {
	case InputFork:
		w.begin("parent")
		w.id("id", &in.Parent.ID)
		w.optUint("seq", &in.Parent.Seq)
		w.close()
		in.openFields(w)
		if w.err == nil && !in.Open {
			w.fail(ErrInvalid, "a fork opens a session")
		}
	case InputPrompt:
		in.openFields(w)
	case InputCancel:
		w.str("cause", &in.Cause)
		w.optTrue("keepQueue", &in.KeepQueue)
	case InputConfigure:
		in.Options.fields(w)
	case InputClose:
		w.str("reason", &in.Reason)
	case InputSteer, InputInject, InputCompact:
	}
	w.close()
	if !w.reading && in.stray() {
		w.fail(ErrInvalid, "a field is set that a %s input does not have", in.Kind)
	}
}

// openFields handles what an input says of the session that it opens.
func (in *Input) openFields(w *wire) {
	in.Options.fields(w)
	optList(w, "labels", &in.Labels, labelFields)
	w.optStr("cwd", &in.Cwd)
	if w.err == nil && !labelsSorted(in.Labels) {
		w.fail(ErrInvalid, "labels must be sorted by name and unique")
	}
}

func (in *Input) messageFields(w *wire) {
	list(w, "content", &in.Content, shownBlockFields)
	var images []objects.Ref
	for i := range in.Content {
		if in.Content[i].Type == BlockImage {
			images = append(images, in.Content[i].Object)
		}
	}
	n := 0
	optList(w, "attachments", &in.Attachments, func(w *wire, b *[]byte) {
		attachment(w, b, images[min(n, len(images)):])
		n++
	})
	switch {
	case w.err != nil:
	case len(in.Content) == 0:
		w.fail(ErrInvalid, "a %s needs content", in.Kind)
	case n < len(images):
		w.fail(ErrInvalid, "%d attachments for %d images", n, len(images))
	}
}

// attachment handles the bytes of the first of images. They stand as a base64 string, in the standard alphabet with
// padding, and are decoded only when their length is the one that the image claims.
func attachment(w *wire, b *[]byte, images []objects.Ref) {
	var s string
	if w.reading {
		s = w.readString()
	}
	if w.err != nil {
		return
	}
	if len(images) == 0 {
		w.fail(ErrInvalid, "more attachments than images")
		return
	}
	image := images[0]
	if w.reading {
		if len(s) != base64.StdEncoding.EncodedLen(int(image.Bytes)) {
			w.fail(ErrInvalid, "an attachment of %d characters for an image of %d bytes", len(s), image.Bytes)
			return
		}
		data, err := base64.StdEncoding.Strict().DecodeString(s)
		if err != nil || strings.ContainsAny(s, "\r\n") { // the decoder skips line ends
			w.fail(ErrSyntax, "want base64 with padding")
			return
		}
		*b = data
	} else if n := base64.StdEncoding.EncodedLen(len(*b)); n > MaxEventBytes-len(w.out) {
		w.fail(ErrTooLarge, "an attachment of %d characters, at most %d in all", n, MaxEventBytes)
		return
	}
	if int64(len(*b)) != image.Bytes || objects.Sum(*b) != image.Digest {
		w.fail(ErrInvalid, "an attachment is not the image of its place")
		return
	}
	if !w.reading {
		w.out = append(w.out, '"')
		w.out = base64.StdEncoding.AppendEncode(w.out, *b)
		w.out = append(w.out, '"')
	}
}

// stray reports whether a field is set that inputs of this kind do not have: it would be lost.
func (in *Input) stray() bool {
	options := !in.Options.zero()
	opening := len(in.Labels) > 0 || in.Cwd != ""
	switch {
	case !in.Kind.message() && (len(in.Content) > 0 || len(in.Attachments) > 0),
		in.Kind != InputFork && in.Parent != ForkPoint{},
		in.Kind != InputCancel && (in.Cause != "" || in.KeepQueue),
		in.Kind != InputClose && in.Reason != "":
		return true
	case in.Kind == InputPrompt || in.Kind == InputFork:
		return false
	case in.Kind == InputConfigure:
		return opening
	}
	return options || opening
}
