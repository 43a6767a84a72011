package events_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// benchEvents returns the events that fill a log: a run of deltas, a user's message and a tool's result.
func benchEvents() []struct {
	name  string
	event events.Event
} {
	envelope := func(e events.Event) events.Event {
		e.Seq, e.ID, e.Time, e.Prev = 4711, sampleID, sampleTime, events.HashPayload([]byte("previous"))
		return e
	}
	words := strings.Fields("The directory holds three files: main.go, go.mod and a README, none of which was changed since the last release.")
	var texts []string
	for _, w := range words[:18] {
		texts = append(texts, " "+w)
	}
	texts = append(texts, "\n\n", "```go\n")
	var file strings.Builder
	for file.Len() < 3800 {
		fmt.Fprintf(&file, "%4d\tif err := run(ctx, \"name\"); err != nil {\n", file.Len())
	}
	return []struct {
		name  string
		event events.Event
	}{
		{"chunks", envelope(events.Event{Body: &events.AssistantChunk{
			Turn: 3, Step: 2, Attempt: 1, Chunks: []events.Chunk{{Type: events.ChunkTextDelta, Index: 1, Texts: texts}},
		}})},
		{"user", envelope(events.Event{Surface: events.AppendOp(), Body: &events.UserMessage{
			Message: events.Message{
				ID: "01JZZZZZZZZZZZZZZZZZZZZZZA", Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser},
				Content: []events.Block{events.Text(strings.Join(words, " "))},
			},
			InboxSeq: 42,
		}})},
		{"result4K", envelope(events.Event{Surface: events.AppendOp(), Sources: []uint64{4700}, Body: &events.ToolResult{
			Turn: 3, Step: 2,
			Message: events.Message{
				ID: "01JZZZZZZZZZZZZZZZZZZZZZZB", Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: "call_1"},
				Content: []events.Block{{
					Type: events.BlockToolResult, ToolCallID: "call_1", Content: []events.Block{events.Text(file.String())},
				}},
			},
		}})},
		{"step", envelope(events.Event{Body: &events.StepStart{Turn: 3, Step: 2}})},
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, c := range benchEvents() {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(encode(b, c.event))))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := events.Encode(&c.event); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range benchEvents() {
		b.Run(c.name, func(b *testing.B) {
			p := encode(b, c.event)
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := events.Decode(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSHA256 is the floor of both: the hash of the payload alone.
func BenchmarkSHA256(b *testing.B) {
	for _, c := range benchEvents() {
		b.Run(c.name, func(b *testing.B) {
			p := encode(b, c.event)
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				sha256.Sum256(p)
			}
		})
	}
}
