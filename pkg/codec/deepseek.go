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

// toolImages stands before the images of tool results, which a tool message has no place for.
const toolImages = "Attached image(s) from tool result:"

type deepSeek struct {
	appender

	// of the prefix:
	generation int64 // how its images are shown
	sealed     bool  // it ends in images of a run of tool results, which another result would come before
}

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
	n := d.messages.Len()
	anew := d.restarts(string(head), req.Messages) || d.generation != req.Images.Generation() ||
		d.sealed && n < req.Messages.Len() && joinsRun(req.Messages, n)
	w := &deepSeekWriter{src: src, images: req.Images, first: !hasSystem && (anew || n == 0)}
	body, err := d.build(string(head), req.Messages, suffix, anew, w)
	if err == nil {
		d.generation = req.Images.Generation()
		d.sealed = w.sealed || d.sealed && body.reused == d.length // nothing new: the end is the one before
	}
	return body, err
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

// only refuses a block that is of none of the types.
func only(blocks []events.Block, where string, types ...events.BlockType) error {
	for i := range blocks {
		if !slices.Contains(types, blocks[i].Type) {
			return fmt.Errorf("%w: a %s block in %s", ErrUnsupported, blocks[i].Type, where)
		}
	}
	return nil
}
