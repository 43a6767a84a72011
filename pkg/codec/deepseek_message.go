package codec

import (
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// deepSeekWriter writes the messages of one request that follow each other.
type deepSeekWriter struct {
	src    objects.Source
	images fold.Images

	first  bool   // no message stands before
	waits  []byte // the images of the tool results since the last other message, as parts
	sealed bool   // what was written last are such images
}

var _ messageWriter = (*deepSeekWriter)(nil)

func (w *deepSeekWriter) add(dst []byte, m *events.Message) ([]byte, error) {
	switch m.Role {
	case events.RoleAssistant:
		return w.assistant(dst, m)
	case events.RoleUser:
		return w.user(dst, m)
	}
	return nil, fmt.Errorf("%w: a message of role %q", ErrUnsupported, m.Role)
}

// end appends the message with the images that wait, if any.
func (w *deepSeekWriter) end(dst []byte) []byte {
	if len(w.waits) == 0 {
		return dst
	}
	dst = w.open(dst)
	dst = append(dst, `{"role":"user","content":[{"type":"text","text":"`+toolImages+`"}`...)
	dst = append(dst, w.waits...)
	w.waits, w.sealed = nil, true
	return append(dst, `]}`...)
}

// open begins the next message.
func (w *deepSeekWriter) open(dst []byte) []byte {
	dst = append(dst, opening(w.first, "")...)
	w.first, w.sealed = false, false
	return dst
}

// joinsRun reports whether message n goes before the images of the tool results before it.
func joinsRun(messages fold.Messages, n int) bool {
	m := messages.At(n)
	return m.Role == events.RoleUser && !speaks(&m)
}

// speaks reports whether a message of the user role says something beside tool results.
func speaks(m *events.Message) bool {
	own := func(b events.Block) bool { return b.Type != events.BlockToolResult }
	return len(m.Content) == 0 || slices.ContainsFunc(m.Content, own)
}

// joined returns the texts of the blocks of one type, joined without separator.
func joined(blocks []events.Block, kind events.BlockType, src objects.Source) (string, error) {
	var parts []string
	for i := range blocks {
		if b := &blocks[i]; b.Type == kind {
			t, err := text(b.Text, b.Object, src)
			if err != nil {
				return "", err
			}
			parts = append(parts, t)
		}
	}
	return events.JoinText(parts...), nil
}

func (w *deepSeekWriter) assistant(dst []byte, m *events.Message) ([]byte, error) {
	err := only(m.Content, "an assistant message", events.BlockText, events.BlockReasoning, events.BlockToolCall)
	if err != nil {
		return nil, err
	}
	content, err := joined(m.Content, events.BlockText, w.src)
	if err != nil {
		return nil, err
	}
	reasoning, err := joined(m.Content, events.BlockReasoning, w.src)
	if err != nil {
		return nil, err
	}
	dst = w.open(w.end(dst))
	dst = append(dst, `{"role":"assistant","content":`...)
	dst = events.AppendQuote(dst, content)
	if reasoning != "" {
		dst = append(dst, `,"reasoning_content":`...)
		dst = events.AppendQuote(dst, reasoning)
	}
	calls := 0
	for i := range m.Content {
		c := &m.Content[i]
		if c.Type != events.BlockToolCall {
			continue
		}
		dst = append(dst, opening(calls == 0, `,"tool_calls":[`)...)
		dst = append(dst, `{"id":`...)
		dst = events.AppendQuote(dst, c.ID)
		dst = append(dst, `,"type":"function","function":{"name":`...)
		dst = events.AppendQuote(dst, c.Name)
		dst = append(dst, `,"arguments":`...)
		dst = events.AppendQuote(dst, c.Arguments)
		dst = append(dst, `}}`...)
		calls++
	}
	if calls > 0 {
		dst = append(dst, ']')
	}
	return append(dst, '}'), nil
}

// user appends a message of the user role: what it says first, then one tool message per result. The images of the
// results wait: all those of results that follow each other go into one message behind them.
func (w *deepSeekWriter) user(dst []byte, m *events.Message) ([]byte, error) {
	err := only(m.Content, "a user message", events.BlockText, events.BlockImage, events.BlockToolResult)
	if err != nil {
		return nil, err
	}
	if speaks(m) {
		dst = w.open(w.end(dst))
		dst = append(dst, `{"role":"user","content":`...)
		if dst, err = w.content(dst, m.Content); err != nil {
			return nil, err
		}
		dst = append(dst, '}')
	}
	for i := range m.Content {
		if r := &m.Content[i]; r.Type == events.BlockToolResult {
			if dst, err = w.result(dst, r); err != nil {
				return nil, err
			}
		}
	}
	return dst, nil
}

func (w *deepSeekWriter) result(dst []byte, r *events.Block) ([]byte, error) {
	if err := only(r.Content, "a tool result", events.BlockText, events.BlockImage); err != nil {
		return nil, err
	}
	texts, images, err := w.show(r.Content)
	if err != nil {
		return nil, err
	}
	t := events.JoinText(texts...)
	if t == "" {
		t = emptyToolOutput
	}
	dst = w.open(dst)
	dst = append(dst, `{"role":"tool","tool_call_id":`...)
	dst = events.AppendQuote(dst, r.ToolCallID)
	dst = append(dst, `,"content":`...)
	dst = events.AppendQuote(dst, t)
	dst = append(dst, '}')
	for _, shown := range images {
		if shown == nil {
			continue
		}
		if w.waits, err = w.image(append(w.waits, ','), shown); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// show returns for each block its text, which is the label of an image, and how it is shown when it is an image: nil
// for a text, for a tool result, and for an image of which only the label is shown.
func (w *deepSeekWriter) show(blocks []events.Block) (texts []string, images []*events.ImageShown, err error) {
	texts, images = make([]string, len(blocks)), make([]*events.ImageShown, len(blocks))
	for i := range blocks {
		b := &blocks[i]
		switch b.Type {
		case events.BlockText:
			if texts[i], err = text(b.Text, b.Object, w.src); err != nil {
				return nil, nil, err
			}
		case events.BlockImage:
			shown, ok := w.images.Shown(b.Object.Digest)
			if !ok {
				return nil, nil, &UnshownImageError{Image: b.Object}
			}
			texts[i] = shown.Label
			if shown.As != events.ImageText {
				images[i] = &shown
			}
		case events.BlockReasoning, events.BlockToolCall, events.BlockToolResult:
		}
	}
	return texts, images, nil
}

// content appends what a user message says: a string, or a list of parts when an image is among it.
func (w *deepSeekWriter) content(dst []byte, blocks []events.Block) ([]byte, error) {
	texts, images, err := w.show(blocks)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(images, func(i *events.ImageShown) bool { return i != nil }) {
		return events.AppendQuote(dst, events.JoinText(texts...)), nil
	}
	first := true
	for i, t := range texts {
		if t != "" {
			dst = append(dst, opening(first, "[")...)
			dst = append(dst, `{"type":"text","text":`...)
			dst = events.AppendQuote(dst, t)
			dst = append(dst, '}')
			first = false
		}
		if images[i] == nil {
			continue
		}
		dst = append(dst, opening(first, "[")...)
		if dst, err = w.image(dst, images[i]); err != nil {
			return nil, err
		}
		first = false
	}
	return append(dst, ']'), nil
}

// image appends the part of an image that is shown as a file or with its bytes.
func (w *deepSeekWriter) image(dst []byte, shown *events.ImageShown) ([]byte, error) {
	if shown.As == events.ImageFile {
		dst = append(dst, `{"type":"file","file_id":`...)
		dst = events.AppendQuote(dst, shown.FileID)
		return append(dst, '}'), nil
	}
	ref := shown.Object
	b, ok := w.src.Bytes(ref.Digest)
	if !ok {
		return nil, &MissingObjectError{Ref: ref}
	}
	if int64(len(b)) != ref.Bytes {
		return nil, fmt.Errorf("%w: %s has %d bytes, not %d", ErrCorruptObject, ref.Digest, len(b), ref.Bytes)
	}
	dst = append(dst, `{"type":"image_url","image_url":{"url":"data:`+ref.MediaType+`;base64,`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}}`...), nil
}
