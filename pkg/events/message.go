package events

import (
	"slices"

	"github.com/refold-dev/refold/pkg/objects"
)

// Role says whose message it is. Tool results are messages of the user role, as in the reference system.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

func (r Role) valid() bool { return r == RoleUser || r == RoleAssistant }

// BlockType is the kind of a content block.
type BlockType string

// The kinds of blocks.
const (
	BlockText       BlockType = "text"
	BlockReasoning  BlockType = "reasoning"
	BlockToolCall   BlockType = "tool-call"
	BlockToolResult BlockType = "tool-result"
	BlockImage      BlockType = "image"
)

func (t BlockType) valid() bool {
	switch t {
	case BlockText, BlockReasoning, BlockToolCall, BlockToolResult, BlockImage:
		return true
	}
	return false
}

// TextMediaType is the media type of an object that holds the text of a block or a system prompt: its bytes are
// WTF-8.
const TextMediaType = "text/wtf-8"

// Block is one block of a message's content. Which fields are used depends on Type; the others are zero.
type Block struct {
	Type BlockType

	Text   string      // text, reasoning: the text, unless Object holds it
	Object objects.Ref // text: the text's bytes when it was too large for the event; image: the image as it came

	Width, Height int64 // image: its size in pixels

	ID        string // tool-call: the call's id
	Name      string // tool-call: the tool's name; image: what it is called, may be empty
	Arguments string // tool-call: the argument string exactly as the model wrote it

	ToolCallID string  // tool-result: the id of the call that it answers
	Content    []Block // tool-result: blocks of type text and image
	IsError    bool    // tool-result
}

// ImageMediaTypes returns the media types that an image may have, in the caller's own slice.
func ImageMediaTypes() []string {
	return []string{"image/gif", "image/jpeg", "image/png", "image/webp"}
}

func isImage(mediaType string) bool { return slices.Contains(ImageMediaTypes(), mediaType) }

// Text returns a text block.
func Text(s string) Block { return Block{Type: BlockText, Text: s} }

// clone returns a copy that shares no memory that a caller could change.
func (b Block) clone() Block {
	b.Content = slices.Clone(b.Content)
	return b
}

func blockFields(w *wire, b *Block) { anyBlock(w, b) }

// textBlockFields handles a block where only text may stand.
func textBlockFields(w *wire, b *Block) { anyBlock(w, b, BlockText) }

// shownBlockFields handles a block of what a person or a tool shows the model.
func shownBlockFields(w *wire, b *Block) { anyBlock(w, b, BlockText, BlockImage) }

// anyBlock handles a block of one of the types allowed, or of any type when none is named.
func anyBlock(w *wire, b *Block, allowed ...BlockType) {
	w.open()
	enum(w, "type", &b.Type)
	if w.err == nil && len(allowed) > 0 && !slices.Contains(allowed, b.Type) { // so blocks nest two deep at most
		w.fail(ErrInvalid, "a %s block does not belong here", b.Type)
		return
	}
	switch b.Type {
	case BlockImage:
		b.imageFields(w)
	case BlockText:
		if w.optional("object", b.Object != objects.Ref{}) {
			w.optRef("object", &b.Object)
		} else {
			w.str("text", &b.Text)
		}
	case BlockReasoning:
		w.str("text", &b.Text)
	case BlockToolCall:
		w.str("id", &b.ID)
		w.str("name", &b.Name)
		w.str("arguments", &b.Arguments)
		if w.err == nil && b.ID == "" {
			w.fail(ErrInvalid, "a tool call needs an id")
		}
	case BlockToolResult:
		w.str("toolCallId", &b.ToolCallID)
		list(w, "content", &b.Content, shownBlockFields)
		w.bool("isError", &b.IsError)
	}
	w.close()
	if !w.reading && b.stray() {
		w.fail(ErrInvalid, "a field is set that a %s block does not have", b.Type)
	}
}

func (b *Block) imageFields(w *wire) {
	w.key("object")
	w.refValue(&b.Object)
	w.int("width", &b.Width)
	w.int("height", &b.Height)
	w.optStr("name", &b.Name)
	switch {
	case w.err != nil:
	case !isImage(b.Object.MediaType):
		w.fail(ErrInvalid, "media type %q is none of an image", clip(b.Object.MediaType))
	case b.Width == 0 || b.Height == 0:
		w.fail(ErrInvalid, "an image has at least one pixel")
	}
}

// stray reports whether a field is set that blocks of this type do not have: it would be lost.
func (b *Block) stray() bool {
	object := b.Object != objects.Ref{}
	call := b.ID != "" || b.Name != "" || b.Arguments != ""
	result := b.ToolCallID != "" || len(b.Content) > 0 || b.IsError
	if b.Type != BlockImage && (b.Width != 0 || b.Height != 0) {
		return true
	}
	switch b.Type {
	case BlockImage:
		return b.Text != "" || b.ID != "" || b.Arguments != "" || result
	case BlockText:
		return object && b.Text != "" || call || result
	case BlockReasoning:
		return object || call || result
	case BlockToolCall:
		return object || b.Text != "" || result
	case BlockToolResult:
		return object || b.Text != "" || call
	}
	return false
}

// SourceKind says where a message came from.
type SourceKind string

// The kinds of sources.
const (
	SourceUser    SourceKind = "user"
	SourceModel   SourceKind = "model"
	SourceTool    SourceKind = "tool"
	SourcePlugin  SourceKind = "plugin"
	SourceContext SourceKind = "context"
)

func (k SourceKind) valid() bool {
	switch k {
	case SourceUser, SourceModel, SourceTool, SourcePlugin, SourceContext:
		return true
	}
	return false
}

// Source is a message's origin.
type Source struct {
	Kind         SourceKind
	Provider     string // model
	Model        string // model
	CallID       string // tool
	Plugin       string // plugin, context: who added it
	CompactionID string // plugin: the compaction whose summary it is
}

func (s *Source) fields(w *wire) {
	w.begin("source")
	enum(w, "kind", &s.Kind)
	w.optStr("provider", &s.Provider)
	w.optStr("model", &s.Model)
	w.optStr("callId", &s.CallID)
	w.optStr("plugin", &s.Plugin)
	w.optStr("compactionId", &s.CompactionID)
	w.close()
}

// Message is one message of the conversation. A Message that a fold hands out is the receiver's own copy.
type Message struct {
	ID      string // unique in the session; kept when a tool result is pruned
	Role    Role
	Content []Block // in order
	Source  Source
}

// Clone returns a deep copy. Strings are shared: they cannot be changed.
func (m Message) Clone() Message {
	m.Content = slices.Clone(m.Content)
	for i := range m.Content {
		m.Content[i] = m.Content[i].clone()
	}
	return m
}

// Refs appends the objects that the message's content names, images included, in order, and returns the extended slice.
func (m *Message) Refs(dst []objects.Ref) []objects.Ref {
	for i := range m.Content {
		b := &m.Content[i]
		if (b.Object != objects.Ref{}) {
			dst = append(dst, b.Object)
		}
		for j := range b.Content {
			if (b.Content[j].Object != objects.Ref{}) {
				dst = append(dst, b.Content[j].Object)
			}
		}
	}
	return dst
}

func (m *Message) fields(w *wire, role Role) {
	w.begin("message")
	w.str("id", &m.ID)
	enum(w, "role", &m.Role)
	list(w, "content", &m.Content, blockFields)
	m.Source.fields(w)
	w.close()
	if w.err != nil {
		return
	}
	if m.ID == "" {
		w.fail(ErrInvalid, "a message needs an id")
	}
	if m.Role != role {
		w.fail(ErrInvalid, "role %q where %q belongs", m.Role, role)
	}
}

// only refuses blocks of other types than those named.
func (m *Message) only(w *wire, allowed ...BlockType) {
	for i := range m.Content {
		if w.err == nil && !slices.Contains(allowed, m.Content[i].Type) {
			w.fail(ErrInvalid, "a %s block does not belong in this message", m.Content[i].Type)
		}
	}
}
