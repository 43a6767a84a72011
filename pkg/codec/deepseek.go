package codec

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// DeepSeekChat1 names the codec of DeepSeek's chat completions. Its bytes are those of the reference system; see
// docs/format/codec-deepseek-chat-1.md.
const DeepSeekChat1 = "deepseek-chat/1"

// emptyToolOutput stands for a tool's empty output: the API refuses an empty tool message.
const emptyToolOutput = "(no output)"

// effortOff is the reasoning effort that switches thinking off.
const effortOff = "off"

type deepSeek struct{ appender }

func (*deepSeek) Codec() string { return DeepSeekChat1 }

func (d *deepSeek) Build(req *fold.Request, src objects.Source) (Body, error) {
	h := &req.Header
	system, err := text(h.System, h.SystemObject, src)
	if err != nil {
		return Body{}, fmt.Errorf("system prompt: %w", err)
	}
	suffix, err := deepSeekSuffix(h, src)
	if err != nil {
		return Body{}, err
	}
	head := append([]byte(nil), `{"model":`...)
	head = events.AppendQuote(head, h.Config.Model)
	head = append(head, `,"messages":[`...)
	hasSystem := system != ""
	if hasSystem {
		head = append(head, `{"role":"system","content":`...)
		head = events.AppendQuote(head, system)
		head = append(head, '}')
	}
	add := func(dst []byte, m *events.Message, first bool, src objects.Source) ([]byte, error) {
		return deepSeekMessage(dst, m, first && !hasSystem, src)
	}
	return d.build(string(head), req.Messages, suffix, src, add)
}

// deepSeekSuffix returns what stands behind the messages.
func deepSeekSuffix(h *events.Header, src objects.Source) ([]byte, error) {
	c := &h.Config
	b := append([]byte(nil), `],"stream":true,"stream_options":{"include_usage":true}`...)
	switch c.ReasoningEffort {
	case "":
	case effortOff:
		b = append(b, `,"thinking":{"type":"disabled"}`...)
	default:
		b = append(b, `,"thinking":{"type":"enabled"},"reasoning_effort":`...)
		b = events.AppendQuote(b, c.ReasoningEffort)
	}
	tools, err := headerTools(h, src)
	if err != nil {
		return nil, err
	}
	for i, t := range tools {
		b = append(b, opening(i == 0, `,"tools":[`)...)
		b = append(b, `{"type":"function","function":{"name":`...)
		b = events.AppendQuote(b, t.Name)
		b = append(b, `,"description":`...)
		b = events.AppendQuote(b, t.Description)
		b = append(b, `,"parameters":`...)
		b = append(b, t.Parameters...)
		b = append(b, `}}`...)
	}
	if len(tools) > 0 {
		b = append(b, ']')
	}
	if c.Temperature != "" {
		b = append(b, `,"temperature":`...)
		b = append(b, c.Temperature...)
	}
	if c.MaxTokens != 0 {
		b = append(b, `,"max_tokens":`...)
		b = strconv.AppendInt(b, c.MaxTokens, 10)
	}
	for i, s := range c.Stop {
		b = append(b, opening(i == 0, `,"stop":[`)...)
		b = events.AppendQuote(b, s)
	}
	if len(c.Stop) > 0 {
		b = append(b, ']')
	}
	return append(b, '}'), nil
}

// opening returns what stands before an element of a list.
func opening(first bool, before string) string {
	if first {
		return before
	}
	return ","
}

func headerTools(h *events.Header, src objects.Source) ([]events.Tool, error) {
	if (h.ToolsObject == objects.Ref{}) {
		return h.Tools, nil
	}
	b, ok := src.Bytes(h.ToolsObject.Digest)
	if !ok {
		return nil, fmt.Errorf("tools: %w", &MissingObjectError{Ref: h.ToolsObject})
	}
	tools, err := events.ParseTools(b)
	if err != nil {
		return nil, fmt.Errorf("tools: %w: %w", ErrCorruptObject, err)
	}
	return tools, nil
}

func deepSeekMessage(dst []byte, m *events.Message, first bool, src objects.Source) ([]byte, error) {
	switch m.Role {
	case events.RoleAssistant:
		dst = append(dst, opening(first, "")...)
		return deepSeekAssistant(dst, m, src)
	case events.RoleUser:
		return deepSeekUser(dst, m, first, src)
	}
	return nil, fmt.Errorf("%w: a message of role %q", ErrUnsupported, m.Role)
}

// only refuses a block that is of none of the types.
func only(blocks []events.Block, where string, types ...events.BlockType) error {
	for i := range blocks {
		if !slices.Contains(types, blocks[i].Type) {
			return fmt.Errorf("%w: a %s block in %s", ErrUnsupported, blocks[i].Type, where)
		}
	}
	return nil
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

func deepSeekAssistant(dst []byte, m *events.Message, src objects.Source) ([]byte, error) {
	err := only(m.Content, "an assistant message", events.BlockText, events.BlockReasoning, events.BlockToolCall)
	if err != nil {
		return nil, err
	}
	content, err := joined(m.Content, events.BlockText, src)
	if err != nil {
		return nil, err
	}
	reasoning, err := joined(m.Content, events.BlockReasoning, src)
	if err != nil {
		return nil, err
	}
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

// deepSeekUser appends a message of the user role: its text first, then one tool message per result.
func deepSeekUser(dst []byte, m *events.Message, first bool, src objects.Source) ([]byte, error) {
	if err := only(m.Content, "a user message", events.BlockText, events.BlockToolResult); err != nil {
		return nil, err
	}
	isText := func(b events.Block) bool { return b.Type == events.BlockText }
	if slices.ContainsFunc(m.Content, isText) || len(m.Content) == 0 {
		t, err := joined(m.Content, events.BlockText, src)
		if err != nil {
			return nil, err
		}
		dst = append(dst, opening(first, "")...)
		dst = append(dst, `{"role":"user","content":`...)
		dst = events.AppendQuote(dst, t)
		dst = append(dst, '}')
		first = false
	}
	for i := range m.Content {
		r := &m.Content[i]
		if r.Type != events.BlockToolResult {
			continue
		}
		if err := only(r.Content, "a tool result", events.BlockText); err != nil {
			return nil, err
		}
		t, err := joined(r.Content, events.BlockText, src)
		if err != nil {
			return nil, err
		}
		if t == "" {
			t = emptyToolOutput
		}
		dst = append(dst, opening(first, "")...)
		dst = append(dst, `{"role":"tool","tool_call_id":`...)
		dst = events.AppendQuote(dst, r.ToolCallID)
		dst = append(dst, `,"content":`...)
		dst = events.AppendQuote(dst, t)
		dst = append(dst, '}')
		first = false
	}
	return dst, nil
}
