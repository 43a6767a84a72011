package events

import "fmt"

// InputKind says what an input asks for.
type InputKind string

// The kinds of inputs.
const (
	InputPrompt    InputKind = "prompt"    // a message that opens the next turn
	InputConfigure InputKind = "configure" // a change of the session's options
	InputClose     InputKind = "close"     // no more inputs
)

func (k InputKind) valid() bool {
	return k == InputPrompt || k == InputConfigure || k == InputClose
}

// Input is what a client publishes on inbox.<session>. Its ID is also the message's Nats-Msg-Id, so sending it
// again is harmless.
type Input struct {
	ID      ID
	Time    int64 // Unix milliseconds, the client's clock
	Kind    InputKind
	Open    bool    // make the session when there is none; without it, an input for an unknown session is refused
	Content []Block // prompt: text blocks
	Options Options // configure: the change; prompt: the options of a session that it opens
	Labels  []Label // prompt: the labels of a session that it opens; sorted, unique
	Cwd     string  // prompt: the directory of a session that it opens
	Reason  string  // close
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
	switch in.Kind {
	case InputPrompt:
		list(w, "content", &in.Content, textBlockFields)
		in.Options.fields(w)
		optList(w, "labels", &in.Labels, labelFields)
		w.optStr("cwd", &in.Cwd)
		if w.err == nil && (len(in.Content) == 0 || !labelsSorted(in.Labels)) {
			w.fail(ErrInvalid, "a prompt needs content, and labels sorted by name")
		}
	case InputConfigure:
		in.Options.fields(w)
	case InputClose:
		w.str("reason", &in.Reason)
	}
	w.close()
	if !w.reading && in.stray() {
		w.fail(ErrInvalid, "a field is set that a %s input does not have", in.Kind)
	}
}

// stray reports whether a field is set that inputs of this kind do not have: it would be lost.
func (in *Input) stray() bool {
	prompt := len(in.Content) > 0 || len(in.Labels) > 0 || in.Cwd != ""
	switch in.Kind {
	case InputPrompt:
		return in.Reason != ""
	case InputConfigure:
		return prompt || in.Reason != ""
	case InputClose:
		return prompt || !in.Options.zero()
	}
	return false
}
