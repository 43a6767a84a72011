package dsh

import (
	"fmt"
	"math"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/pkg/events"
)

// The shapes of the reference system's data, as far as they are read here.

// turnStep numbers a step as the reference system does.
type turnStep struct {
	Turn int64 `json:"turn"`
	Step int64 `json:"step"`
}

type failure struct {
	Message      loose   `json:"message"`
	Code         loose   `json:"code"`
	Status       float64 `json:"status"`
	RetryAfterMs float64 `json:"providerRetryAfterMs"`
	RequestID    loose   `json:"requestId"`
}

func (f failure) event() events.Failure {
	return events.Failure{
		Message: string(f.Message), Code: events.FailureCode(code(text(f.Code), string(events.FailureServer))),
		Status: count(f.Status, new(bool)), RetryAfterMs: count(f.RetryAfterMs, new(bool)), RequestID: string(f.RequestID),
	}
}

// code returns a failure's code in the form that ours have, def when there is none.
func code(s text, def string) string {
	const most = 64
	out := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z':
			return r
		}
		return '_'
	}, string(s))
	if out == "" {
		return def
	}
	return out[:min(len(out), most)]
}

type turnEnd struct {
	Reason struct {
		Kind  loose   `json:"kind"`
		Cause loose   `json:"cause"`
		Error failure `json:"error"`
	} `json:"reason"`
}

type block struct {
	Type       text   `json:"type"`
	Text       text   `json:"text"`
	ID         text   `json:"id"`
	Name       text   `json:"name"`
	Arguments  text   `json:"arguments"`
	ToolCallID text   `json:"toolCallId"`
	Content    blocks `json:"content"`
	IsError    bool   `json:"isError"`
	Attachment struct {
		ID        text    `json:"attachmentId"`
		MediaType text    `json:"mediaType"`
		Width     float64 `json:"width"`
		Height    float64 `json:"height"`
		Bytes     float64 `json:"bytes"`
		Name      loose   `json:"name"`
	} `json:"attachment"`
}

// blocks is a message's content. A string stands for one block of text.
type blocks []block

func (b *blocks) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '"' {
		var s text
		if err := s.UnmarshalJSONFrom(d); err != nil {
			return err
		}
		*b = blocks{{Type: text(events.BlockText), Text: s}}
		return nil
	}
	return json.UnmarshalDecode(d, (*[]block)(b))
}

type message struct {
	ID      text   `json:"id"`
	Role    text   `json:"role"`
	Content blocks `json:"content"`
	Source  struct {
		Kind         loose `json:"kind"`
		Plugin       loose `json:"plugin"`
		CompactionID loose `json:"compactionId"`
	} `json:"source"`
}

// event returns the message with a role that it must have when it has one. Only user messages keep their source: that
// of the others follows from the log.
func (m message) event(role events.Role, content []events.Block) (events.Message, error) {
	if m.Role != "" && events.Role(m.Role) != role {
		return events.Message{}, fmt.Errorf("a message of role %q where %q belongs", clip(string(m.Role)), role)
	}
	s := events.Source{Kind: events.SourceKind(m.Source.Kind), Plugin: string(m.Source.Plugin), CompactionID: string(m.Source.CompactionID)}
	switch s.Kind {
	case events.SourceUser, events.SourcePlugin, events.SourceContext:
	default: // a kind of the reference system's plugins
		s = events.Source{Kind: events.SourcePlugin, Plugin: string(m.Source.Kind)}
	}
	return events.Message{ID: string(m.ID), Role: role, Content: content, Source: s}, nil
}

type usage struct {
	Input      float64  `json:"inputTokens"`
	Output     float64  `json:"outputTokens"`
	CacheRead  *float64 `json:"cacheReadTokens"`
	CacheWrite *float64 `json:"cacheWriteTokens"`
	Reasoning  float64  `json:"reasoningTokens"`
}

// event clamps what the reference system logged as it came.
func (u *usage) event() (events.Usage, bool) {
	if u == nil {
		return events.Usage{}, false
	}
	var out events.Usage
	out.InputTokens = count(u.Input, &out.Clamped)
	out.OutputTokens = count(u.Output, &out.Clamped)
	out.ReasoningTokens = min(count(u.Reasoning, &out.Clamped), out.OutputTokens)
	if u.CacheRead != nil {
		out.CacheReported = true
		out.CacheReadTokens = count(*u.CacheRead, &out.Clamped)
	}
	if u.CacheWrite != nil {
		out.CacheReported = true
		out.CacheWriteTokens = count(*u.CacheWrite, &out.Clamped)
	}
	return out, true
}

// count returns f as a count, clamped into [0, 2^53]; it sets clamped when it had to change f.
func count(f float64, clamped *bool) int64 {
	const most = 1 << 53
	n := int64(math.Min(math.Max(math.Floor(f), 0), most))
	if math.IsNaN(f) {
		n = 0
	}
	if float64(n) != f {
		*clamped = true
	}
	return n
}

type header struct {
	Header struct {
		Config struct {
			Provider        text     `json:"provider"`
			Model           text     `json:"model"`
			ReasoningEffort text     `json:"reasoningEffort"`
			MaxTokens       int64    `json:"maxTokens"`
			Temperature     *float64 `json:"temperature"`
			Stop            []text   `json:"stop"`
		} `json:"config"`
		AdapterDefaults struct {
			ReasoningEffort bool `json:"reasoningEffort"`
			MaxTokens       bool `json:"maxTokens"`
		} `json:"adapterDefaults"`
		System text `json:"system"`
		Tools  []struct {
			Name        text           `json:"name"`
			Description text           `json:"description"`
			Parameters  jsontext.Value `json:"parameters"`
		} `json:"tools"`
	} `json:"header"`
	Reason text `json:"reason"`
}

func (h *header) event() (events.Header, error) {
	c := &h.Header.Config
	out := events.Header{
		Config: events.Config{
			Provider: string(c.Provider), Model: string(c.Model), ReasoningEffort: string(c.ReasoningEffort), MaxTokens: c.MaxTokens,
		},
		AdapterDefaults: events.AdapterDefaults(h.Header.AdapterDefaults),
		System:          string(h.Header.System),
	}
	if c.Temperature != nil {
		n, err := events.NewNumber(*c.Temperature)
		if err != nil {
			return out, err
		}
		out.Config.Temperature = n
	}
	for _, s := range c.Stop {
		out.Config.Stop = append(out.Config.Stop, string(s))
	}
	for _, t := range h.Header.Tools {
		out.Tools = append(out.Tools, events.Tool{
			Name: string(t.Name), Description: string(t.Description), Parameters: events.RawJSON(t.Parameters),
		})
	}
	return out, nil
}

type chunk struct {
	Type      text   `json:"type"`
	Index     int64  `json:"index"`
	BlockType text   `json:"blockType"`
	Text      text   `json:"text"`
	ID        text   `json:"id"`
	Name      text   `json:"name"`
	Arguments text   `json:"argumentsDelta"`
	Usage     *usage `json:"usage"`
	Reason    struct {
		Kind    loose   `json:"kind"`
		Failure failure `json:"failure"`
	} `json:"reason"`
}

// packed is a run of deltas of one block.
type packed struct {
	turnStep
	Index int64  `json:"index"`
	Texts []text `json:"texts"`
	ID    text   `json:"id"`
	Name  text   `json:"name"`
	Args  []text `json:"args"`
}

func (p *packed) chunk(rowType text) events.Chunk {
	c := events.Chunk{Index: p.Index, ID: string(p.ID), Name: string(p.Name)}
	texts := p.Texts
	switch rowType {
	case rowTextChunks:
		c.Type = events.ChunkTextDelta
	case rowReasoningChunks:
		c.Type = events.ChunkReasoningDelta
	case rowToolCallChunks:
		c.Type = events.ChunkToolCallDelta
		texts = p.Args
	}
	for _, t := range texts {
		c.Texts = append(c.Texts, string(t))
	}
	return c
}
