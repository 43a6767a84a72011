package eventstest

import (
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// maybe draws from g, or the zero value.
func maybe[T any](t *rapid.T, g *rapid.Generator[T], label string) T {
	var zero T
	if !rapid.Bool().Draw(t, label+" set") {
		return zero
	}
	return g.Draw(t, label)
}

func some[T any](t *rapid.T, g *rapid.Generator[T], low, high int, label string) []T {
	s := rapid.SliceOfN(g, low, high).Draw(t, label)
	if len(s) == 0 {
		return nil
	}
	return s
}

// Config generates a call configuration.
func Config() *rapid.Generator[events.Config] {
	return rapid.Custom(func(t *rapid.T) events.Config {
		return events.Config{
			Provider:        NonEmptyText().Draw(t, "provider"),
			Model:           NonEmptyText().Draw(t, "model"),
			ReasoningEffort: maybe(t, Text(), "effort"),
			MaxTokens:       maybe(t, Ordinal(), "maxTokens"),
			Temperature:     Number().Draw(t, "temperature"),
			Stop:            some(t, Text(), 0, 3, "stop"),
		}
	})
}

// ConfigChange generates a change of a configuration by an extension.
func ConfigChange() *rapid.Generator[events.ConfigChange] {
	return rapid.Custom(func(t *rapid.T) events.ConfigChange {
		c := events.ConfigChange{Extension: NonEmptyText().Draw(t, "extension")}
		for _, f := range events.ConfigFields() {
			if rapid.Bool().Draw(t, string(f)) {
				c.Fields = append(c.Fields, f)
			}
		}
		if len(c.Fields) == 0 {
			c.Fields = []events.ConfigField{events.ConfigModel}
		}
		return c
	})
}

// Tool generates a tool's schema.
func Tool() *rapid.Generator[events.Tool] {
	return rapid.Custom(func(t *rapid.T) events.Tool {
		return events.Tool{
			Name:        NonEmptyText().Draw(t, "name"),
			Description: Text().Draw(t, "description"),
			Parameters:  RawJSON().Draw(t, "parameters"),
		}
	})
}

// Header generates a header.
func Header() *rapid.Generator[events.Header] {
	return rapid.Custom(func(t *rapid.T) events.Header {
		h := events.Header{Config: Config().Draw(t, "config")}
		h.AdapterDefaults.ReasoningEffort = h.Config.ReasoningEffort != "" && rapid.Bool().Draw(t, "effort default")
		h.AdapterDefaults.MaxTokens = h.Config.MaxTokens != 0 && rapid.Bool().Draw(t, "maxTokens default")
		h.System, h.SystemObject = textOrRef(t, "system")
		h.Tools = some(t, Tool(), 0, 3, "tools")
		if len(h.Tools) == 0 {
			h.ToolsObject = maybe(t, Ref(), "toolsObject")
		}
		return h
	})
}

func textOrRef(t *rapid.T, label string) (string, objects.Ref) {
	if rapid.IntRange(0, 3).Draw(t, label+" object") == 0 {
		return "", Ref().Draw(t, label)
	}
	return maybe(t, Text(), label), objects.Ref{}
}

// Options generates a session's options, the empty ones included.
func Options() *rapid.Generator[events.Options] {
	return rapid.Custom(func(t *rapid.T) events.Options {
		if rapid.IntRange(0, 3).Draw(t, "empty") == 0 {
			return events.Options{}
		}
		o := events.Options{
			Provider:        maybe(t, Text(), "provider"),
			Model:           maybe(t, Text(), "model"),
			ReasoningEffort: maybe(t, Text(), "effort"),
			MaxTokens:       maybe(t, Ordinal(), "maxTokens"),
			Temperature:     Number().Draw(t, "temperature"),
			Stop:            some(t, Text(), 0, 3, "stop"),
			Tools:           some(t, Text(), 0, 3, "tools"),
			MaxSteps:        maybe(t, Ordinal(), "maxSteps"),
		}
		o.System, o.SystemObject = textOrRef(t, "system")
		return o
	})
}

// Labels generates labels, sorted by name and unique.
func Labels() *rapid.Generator[[]events.Label] {
	label := rapid.Custom(func(t *rapid.T) events.Label {
		return events.Label{Name: Text().Draw(t, "name"), Value: Text().Draw(t, "value")}
	})
	return rapid.Map(rapid.SliceOfN(label, 0, 4), events.SortLabels)
}

// TextBlock generates a text block, inline or as an object.
func TextBlock() *rapid.Generator[events.Block] {
	return rapid.Custom(func(t *rapid.T) events.Block {
		b := events.Block{Type: events.BlockText}
		b.Text, b.Object = textOrRef(t, "text")
		return b
	})
}

// ImageBlock generates an image block.
func ImageBlock() *rapid.Generator[events.Block] {
	return rapid.Custom(func(t *rapid.T) events.Block {
		return events.Block{
			Type: events.BlockImage, Object: ImageRef().Draw(t, "object"),
			Width: Ordinal().Draw(t, "width"), Height: Ordinal().Draw(t, "height"), Name: maybe(t, Text(), "name"),
		}
	})
}

// ImageRef generates a reference to an image.
func ImageRef() *rapid.Generator[objects.Ref] {
	return rapid.Custom(func(t *rapid.T) objects.Ref {
		r := Ref().Draw(t, "ref")
		r.MediaType = rapid.SampledFrom(events.ImageMediaTypes()).Draw(t, "image type")
		return r
	})
}

// ImageShown generates how an image is shown.
func ImageShown() *rapid.Generator[events.ImageShown] {
	forms := []events.ImageForm{events.ImageInline, events.ImageFile, events.ImageText}
	return rapid.Custom(func(t *rapid.T) events.ImageShown {
		i := events.ImageShown{
			Image: objects.Digest(Hash().Draw(t, "image")), As: rapid.SampledFrom(forms).Draw(t, "as"),
			Label: maybe(t, Text(), "label"),
		}
		switch i.As {
		case events.ImageInline:
			i.Object = ImageRef().Draw(t, "object")
		case events.ImageFile:
			i.FileID = NonEmptyText().Draw(t, "fileId")
			i.Provider, i.ExpiresAt = maybe(t, Text(), "provider"), maybe(t, Count(), "expiresAt")
		case events.ImageText:
			i.Label = NonEmptyText().Draw(t, "placeholder")
		}
		if rapid.Bool().Draw(t, "size") {
			i.Width, i.Height = Ordinal().Draw(t, "width"), Ordinal().Draw(t, "height")
		}
		return i
	})
}

// Claim generates the claim of an input.
func Claim() *rapid.Generator[events.Claim] {
	return rapid.Custom(func(t *rapid.T) events.Claim {
		return events.Claim{InboxSeq: Seq().Draw(t, "inboxSeq"), InputID: ID().Draw(t, "inputId")}
	})
}

func addedContext() *rapid.Generator[events.AddedContext] {
	return rapid.Custom(func(t *rapid.T) events.AddedContext {
		return events.AddedContext{Plugin: NonEmptyText().Draw(t, "plugin"), Text: Text().Draw(t, "text")}
	})
}

// Block generates a block of one of the given types.
func Block(types ...events.BlockType) *rapid.Generator[events.Block] {
	return rapid.Custom(func(t *rapid.T) events.Block {
		b := events.Block{Type: rapid.SampledFrom(types).Draw(t, "type")}
		switch b.Type {
		case events.BlockText:
			return TextBlock().Draw(t, "block")
		case events.BlockImage:
			return ImageBlock().Draw(t, "block")
		case events.BlockReasoning:
			b.Text = Text().Draw(t, "text")
		case events.BlockToolCall:
			b.ID = NonEmptyText().Draw(t, "id")
			b.Name = Text().Draw(t, "name")
			b.Arguments = Text().Draw(t, "arguments")
		case events.BlockToolResult:
			b.ToolCallID = NonEmptyText().Draw(t, "toolCallId")
			b.Content = some(t, Block(events.BlockText, events.BlockImage), 0, 3, "content")
			b.IsError = rapid.Bool().Draw(t, "isError")
		}
		return b
	})
}

func source() *rapid.Generator[events.Source] {
	kinds := []events.SourceKind{
		events.SourceUser, events.SourceModel, events.SourceTool, events.SourcePlugin, events.SourceContext,
	}
	return rapid.Custom(func(t *rapid.T) events.Source {
		return events.Source{
			Kind:         rapid.SampledFrom(kinds).Draw(t, "kind"),
			Provider:     maybe(t, Text(), "provider"),
			Model:        maybe(t, Text(), "model"),
			CallID:       maybe(t, Text(), "callId"),
			Plugin:       maybe(t, Text(), "plugin"),
			CompactionID: maybe(t, Text(), "compactionId"),
		}
	})
}

// UserContent generates a message that a user/message event may hold.
func UserContent() *rapid.Generator[events.Message] {
	return message(events.RoleUser, 0, 3, events.BlockText, events.BlockImage)
}

// Answer generates a message that an assistant/message event may hold.
func Answer() *rapid.Generator[events.Message] {
	return message(events.RoleAssistant, 0, 4, events.BlockText, events.BlockReasoning, events.BlockToolCall)
}

// Result generates a message that a tool/result event may hold.
func Result() *rapid.Generator[events.Message] {
	return message(events.RoleUser, 1, 1, events.BlockToolResult)
}

func message(role events.Role, low, high int, types ...events.BlockType) *rapid.Generator[events.Message] {
	return rapid.Custom(func(t *rapid.T) events.Message {
		return events.Message{
			ID:      NonEmptyText().Draw(t, "id"),
			Role:    role,
			Content: some(t, Block(types...), low, high, "content"),
			Source:  source().Draw(t, "source"),
		}
	})
}

// Usage generates a usage.
func Usage() *rapid.Generator[events.Usage] {
	tokens := rapid.OneOf(rapid.Int64Range(0, 9), rapid.Int64Range(0, 1<<53))
	return rapid.Custom(func(t *rapid.T) events.Usage {
		u := events.Usage{
			InputTokens:   tokens.Draw(t, "input"),
			CacheReported: rapid.Bool().Draw(t, "cache"),
			OutputTokens:  tokens.Draw(t, "output"),
			Clamped:       rapid.Bool().Draw(t, "clamped"),
		}
		u.ReasoningTokens = rapid.Int64Range(0, u.OutputTokens).Draw(t, "reasoning")
		if u.CacheReported {
			u.CacheReadTokens = tokens.Draw(t, "read")
			u.CacheWriteTokens = tokens.Draw(t, "write")
			u.CacheWrite1hTokens = tokens.Draw(t, "write1h")
		}
		return u
	})
}

// Finish generates the end of an answer.
func Finish() *rapid.Generator[events.Finish] {
	kinds := []events.FinishKind{
		events.FinishStop, events.FinishToolCalls, events.FinishMaxTokens, events.FinishContentFilter, events.FinishAborted,
	}
	return rapid.Custom(func(t *rapid.T) events.Finish {
		return events.Finish{Kind: rapid.SampledFrom(kinds).Draw(t, "kind"), Raw: maybe(t, Text(), "raw")}
	})
}

// Failure generates a failed model call.
func Failure() *rapid.Generator[events.Failure] {
	codes := []events.FailureCode{events.FailureRateLimit, events.FailureContextWindow, events.FailureInterrupted, "VENDOR_CODE"}
	return rapid.Custom(func(t *rapid.T) events.Failure {
		return events.Failure{
			Message:      Text().Draw(t, "message"),
			Code:         rapid.SampledFrom(codes).Draw(t, "code"),
			Status:       rapid.SampledFrom([]int64{0, 200, 429, 503}).Draw(t, "status"),
			RetryAfterMs: maybe(t, Ordinal(), "retryAfterMs"),
			RequestID:    maybe(t, Text(), "requestId"),
		}
	})
}

// Chunk generates a stream chunk.
func Chunk() *rapid.Generator[events.Chunk] {
	types := []events.ChunkType{
		events.ChunkBlockStart, events.ChunkTextDelta, events.ChunkReasoningDelta, events.ChunkToolCallDelta,
		events.ChunkBlockEnd, events.ChunkUsage, events.ChunkFinish,
	}
	blocks := []events.BlockType{events.BlockText, events.BlockReasoning, events.BlockToolCall, events.BlockToolResult}
	return rapid.Custom(func(t *rapid.T) events.Chunk {
		c := events.Chunk{Type: rapid.SampledFrom(types).Draw(t, "type")}
		switch c.Type {
		case events.ChunkUsage:
			c.Usage, c.RawUsage = Usage().Draw(t, "usage"), maybe(t, RawJSON(), "raw")
			return c
		case events.ChunkFinish:
			c.Finish = Finish().Draw(t, "finish")
			return c
		case events.ChunkBlockStart:
			c.BlockType = rapid.SampledFrom(blocks).Draw(t, "blockType")
		case events.ChunkToolCallDelta:
			c.ID, c.Name = Text().Draw(t, "id"), Text().Draw(t, "name")
			c.Texts = some(t, Text(), 0, 5, "texts")
		case events.ChunkTextDelta, events.ChunkReasoningDelta:
			c.Texts = some(t, Text(), 0, 5, "texts")
		case events.ChunkBlockEnd:
		}
		c.Index = Count().Draw(t, "index")
		return c
	})
}
