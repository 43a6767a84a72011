package codec_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// What follows is a second codec, written to be obviously right: it maps a whole request to a tree and writes the tree,
// with strings as UTF-16 code units and a writer after ECMAScript's QuoteJSONString. It shares no code with the codec.

type (
	member struct {
		name  string
		value any
	}
	object  []member
	array   []any
	literal string   // written as it is
	text    []uint16 // code units
)

// dumbBody returns the body of the request.
func dumbBody(r *fold.Request, src objects.Source) []byte {
	root, _ := dumbTree(r, src)
	var out bytes.Buffer
	write(&out, root)
	return out.Bytes()
}

// dumbPrefix returns the body up to the end of its last message.
func dumbPrefix(r *fold.Request, src objects.Source) []byte {
	root, messages := dumbTree(r, src)
	var out bytes.Buffer
	write(&out, object{root[0], {"messages", messages}})
	return bytes.TrimSuffix(out.Bytes(), []byte("]}"))
}

func dumbTree(r *fold.Request, src objects.Source) (object, array) {
	h, c := &r.Header, &r.Header.Config
	messages := array{}
	if system := dumbText(h.System, h.SystemObject, src); len(system) > 0 {
		messages = append(messages, object{{"role", units("system")}, {"content", system}})
	}
	pictures := array{} // of the tool results since the last other message
	for i, m := range r.Messages.All() {
		if m.Role == events.RoleAssistant {
			messages = append(messages, dumbAssistant(&m, src))
			continue
		}
		more, pics := dumbUser(&m, r.Images, src)
		messages, pictures = append(messages, more...), append(pictures, pics...)
		if len(pictures) > 0 && (i+1 == r.Messages.Len() || !isResult(r.Messages.At(i+1))) {
			content := append(array{object{{"type", units("text")}, {"text", units("Attached image(s) from tool result:")}}}, pictures...)
			messages = append(messages, object{{"role", units("user")}, {"content", content}})
			pictures = array{}
		}
	}
	root := object{
		{"model", units(c.Model)},
		{"messages", messages},
		{"stream", literal("true")},
		{"stream_options", object{{"include_usage", literal("true")}}},
	}
	if c.ReasoningEffort == "off" {
		root = append(root, member{"thinking", object{{"type", units("disabled")}}})
	} else if c.ReasoningEffort != "" {
		root = append(root, member{"thinking", object{{"type", units("enabled")}}})
		root = append(root, member{"reasoning_effort", units(c.ReasoningEffort)})
	}
	if tools := dumbTools(h, src); len(tools) > 0 {
		root = append(root, member{"tools", tools})
	}
	if c.Temperature != "" {
		root = append(root, member{"temperature", literal(c.Temperature)})
	}
	if c.MaxTokens > 0 {
		root = append(root, member{"max_tokens", literal(strconv.FormatInt(c.MaxTokens, 10))})
	}
	if len(c.Stop) > 0 {
		stop := array{}
		for _, s := range c.Stop {
			stop = append(stop, units(s))
		}
		root = append(root, member{"stop", stop})
	}
	return root, messages
}

func dumbTools(h *events.Header, src objects.Source) array {
	list := h.Tools
	if h.ToolsObject != (objects.Ref{}) {
		data, _ := src.Bytes(h.ToolsObject.Digest)
		var err error
		if list, err = events.ParseTools(data); err != nil {
			panic(err)
		}
	}
	tools := array{}
	for _, t := range list {
		tools = append(tools, object{
			{"type", units("function")},
			{"function", object{
				{"name", units(t.Name)},
				{"description", units(t.Description)},
				{"parameters", literal(t.Parameters)},
			}},
		})
	}
	return tools
}

func dumbAssistant(m *events.Message, src objects.Source) object {
	content, reasoning, calls := text{}, text{}, array{}
	for _, b := range m.Content {
		switch b.Type {
		case events.BlockText:
			content = append(content, dumbText(b.Text, b.Object, src)...)
		case events.BlockReasoning:
			reasoning = append(reasoning, units(b.Text)...)
		case events.BlockToolCall:
			calls = append(calls, object{
				{"id", units(b.ID)},
				{"type", units("function")},
				{"function", object{{"name", units(b.Name)}, {"arguments", units(b.Arguments)}}},
			})
		case events.BlockToolResult, events.BlockImage:
			panic("no block of an answer")
		}
	}
	out := object{{"role", units("assistant")}, {"content", content}}
	if len(reasoning) > 0 {
		out = append(out, member{"reasoning_content", reasoning})
	}
	if len(calls) > 0 {
		out = append(out, member{"tool_calls", calls})
	}
	return out
}

// isResult reports whether the message is a tool result; a log holds no message that is more than that.
func isResult(m events.Message) bool {
	return len(m.Content) > 0 && m.Content[0].Type == events.BlockToolResult
}

// dumbUser returns the messages of a message of the user role, and the images that are to follow them later.
func dumbUser(m *events.Message, images fold.Images, src objects.Source) (messages, pictures array) {
	if !isResult(*m) {
		said, parts, pics := dumbBlocks(m.Content, images, src)
		if len(pics) > 0 {
			return array{object{{"role", units("user")}, {"content", parts}}}, nil
		}
		return array{object{{"role", units("user")}, {"content", said}}}, nil
	}
	for _, b := range m.Content {
		output, _, pics := dumbBlocks(b.Content, images, src)
		if len(output) == 0 {
			output = units("(no output)")
		}
		messages = append(messages, object{
			{"role", units("tool")}, {"tool_call_id", units(b.ToolCallID)}, {"content", output},
		})
		pictures = append(pictures, pics...)
	}
	return messages, pictures
}

// dumbBlocks returns the text and the labels of the blocks, all of them as parts, and the images alone as parts.
func dumbBlocks(blocks []events.Block, images fold.Images, src objects.Source) (said text, parts, pictures array) {
	said = text{}
	for _, b := range blocks {
		var t text
		var picture object
		if b.Type == events.BlockText {
			t = dumbText(b.Text, b.Object, src)
		} else {
			shown, ok := images.Shown(b.Object.Digest)
			if !ok {
				panic(&codec.UnshownImageError{Image: b.Object})
			}
			t = units(shown.Label)
			switch shown.As {
			case events.ImageFile:
				picture = object{{"type", units("file")}, {"file_id", units(shown.FileID)}}
			case events.ImageInline:
				data, ok := src.Bytes(shown.Object.Digest)
				if !ok {
					panic(&codec.MissingObjectError{Ref: shown.Object})
				}
				url := fmt.Sprintf("data:%s;base64,%s", shown.Object.MediaType, base64.StdEncoding.EncodeToString(data))
				picture = object{{"type", units("image_url")}, {"image_url", object{{"url", units(url)}}}}
			case events.ImageText:
			}
		}
		said = append(said, t...)
		if len(t) > 0 {
			parts = append(parts, object{{"type", units("text")}, {"text", t}})
		}
		if picture != nil {
			parts, pictures = append(parts, picture), append(pictures, picture)
		}
	}
	return said, parts, pictures
}

func dumbText(inline string, ref objects.Ref, src objects.Source) text {
	if ref == (objects.Ref{}) {
		return units(inline)
	}
	data, ok := src.Bytes(ref.Digest)
	if !ok {
		panic(&codec.MissingObjectError{Ref: ref})
	}
	return units(string(data))
}

// units returns the code units of a text in WTF-8.
func units(s string) text {
	out := text{}
	for i := 0; i < len(s); {
		b := rune(s[i])
		n, c := 1, b
		switch {
		case b >= 0xF0:
			n, c = 4, b&0x07
		case b >= 0xE0:
			n, c = 3, b&0x0F
		case b >= 0x80:
			n, c = 2, b&0x1F
		}
		for _, next := range []byte(s[i+1 : i+n]) {
			c = c<<6 | rune(next&0x3F)
		}
		i += n
		if c < 0x10000 {
			out = append(out, uint16(c))
		} else {
			c -= 0x10000
			out = append(out, uint16(0xD800+c>>10), uint16(0xDC00+c&0x3FF))
		}
	}
	return out
}

func write(out *bytes.Buffer, value any) {
	switch v := value.(type) {
	case object:
		out.WriteByte('{')
		for i, m := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			write(out, units(m.name))
			out.WriteByte(':')
			write(out, m.value)
		}
		out.WriteByte('}')
	case array:
		out.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				out.WriteByte(',')
			}
			write(out, e)
		}
		out.WriteByte(']')
	case literal:
		out.WriteString(string(v))
	case text:
		writeText(out, v)
	default:
		panic(fmt.Sprintf("%T in the tree", v))
	}
}

// writeText is QuoteJSONString of ECMA-262.
func writeText(out *bytes.Buffer, s text) {
	short := map[uint16]string{8: `\b`, 9: `\t`, 10: `\n`, 12: `\f`, 13: `\r`, '"': `\"`, '\\': `\\`}
	out.WriteByte('"')
	for i := 0; i < len(s); i++ {
		c := s[i]
		escape, isShort := short[c]
		switch {
		case isShort:
			out.WriteString(escape)
		case c >= 0xD800 && c < 0xDC00 && i+1 < len(s) && s[i+1] >= 0xDC00 && s[i+1] < 0xE000:
			out.WriteString(string(0x10000 + (rune(c)-0xD800)<<10 + rune(s[i+1]) - 0xDC00))
			i++
		case c < 0x20 || c >= 0xD800 && c < 0xE000:
			fmt.Fprintf(out, `\u%04x`, c)
		default:
			out.WriteString(string(rune(c)))
		}
	}
	out.WriteByte('"')
}
