package fold_test

import (
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/dumb"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// The halves of U+1F600 as two deltas may carry them.
const highHalf, lowHalf = "\xed\xa0\xbd", "\xed\xb8\x80"

func reasoning(s string) events.Block { return events.Block{Type: events.BlockReasoning, Text: s} }

func toolCall(args string) events.Block {
	return events.Block{Type: events.BlockToolCall, ID: "c", Name: "read", Arguments: args}
}

func TestAnswer(t *testing.T) {
	run := slices.Concat[[]events.Chunk]
	call := func(index int64, id string, deltas ...string) []events.Chunk {
		return foldtest.CallBlock(index, id, "read", deltas...)
	}
	finish := func(kind events.FinishKind) []events.Chunk { return []events.Chunk{foldtest.FinishChunk(kind)} }
	text, reason := foldtest.TextBlock, foldtest.ReasoningBlock
	a, b := text(0, "one ", "two"), reason(1, "why ", "not")
	tests := []struct {
		name   string
		chunks []events.Chunk
		want   []events.Block
	}{
		{"nothing", nil, nil},
		{"nothing but a finish", finish(events.FinishStop), nil},
		{"text", run(a, finish(events.FinishStop)), []events.Block{events.Text("one two")}},
		{"not finished", a[:2], []events.Block{events.Text("one two")}},
		{
			"all kinds", run(reason(0, "r"), text(1, "t"), call(2, "c", `{"a":`, `1}`), finish(events.FinishToolCalls)),
			[]events.Block{reasoning("r"), events.Text("t"), toolCall(`{"a":1}`)},
		},
		{
			"interleaved",
			[]events.Chunk{a[0], b[0], b[1], a[1], a[1], b[2], a[2]},
			[]events.Block{events.Text("one twoone two"), reasoning("why not")},
		},
		{"an empty block stays", run(text(0), text(1, " "), finish(events.FinishStop)), []events.Block{events.Text(""), events.Text(" ")}},
		{"max-tokens drops calls", run(text(0, "t"), call(1, "c", `{"a`), finish(events.FinishMaxTokens)), []events.Block{events.Text("t")}},
		{"max-tokens drops nothing else", run(text(0, " "), reason(1), finish(events.FinishMaxTokens)), []events.Block{events.Text(" "), reasoning("")}},
		{"max-tokens with nothing but a call", run(call(0, "c", `{}`), finish(events.FinishMaxTokens)), nil},
		{"content-filter drops nothing", run(call(0, "c", `{}`), finish(events.FinishContentFilter)), []events.Block{toolCall("{}")}},
		{"aborted drops calls", run(text(0, "half a"), call(1, "c", `{}`), finish(events.FinishAborted)), []events.Block{events.Text("half a")}},
		{
			"aborted drops white space", run(text(0, " \n", "\t"), reason(1, "\u2003\u2028\ufeff\u00a0"), text(2), text(3, " x "), finish(events.FinishAborted)),
			[]events.Block{events.Text(" x ")},
		},
		{
			"aborted keeps what ECMAScript counts as no white space", run(text(0, "\u0085"), text(1, "\u200b"), text(2, highHalf), finish(events.FinishAborted)),
			[]events.Block{events.Text("\u0085"), events.Text("\u200b"), events.Text(highHalf)},
		},
		{"a call without an id is dropped", run(call(0, "", `{}`), []events.Chunk{{Type: events.ChunkBlockStart, Index: 1, BlockType: events.BlockToolCall}},
			finish(events.FinishToolCalls)), nil},
		{"an id that comes late", []events.Chunk{
			{Type: events.ChunkBlockStart, BlockType: events.BlockToolCall},
			{Type: events.ChunkToolCallDelta, Texts: []string{"{"}},
			{Type: events.ChunkToolCallDelta, ID: "c", Name: "read", Texts: []string{"}"}},
			{Type: events.ChunkToolCallDelta, ID: "c", Texts: []string{" "}},
		}, []events.Block{toolCall("{} ")}},
		{"a pair split in text", run(text(0, "a"+highHalf, lowHalf+"b")), []events.Block{events.Text("a\U0001F600b")}},
		{"a pair split in reasoning", run(reason(0, highHalf, "", lowHalf)), []events.Block{reasoning("\U0001F600")}},
		{"a pair split in arguments", run(call(0, "c", `"`+highHalf, lowHalf+`"`)), []events.Block{toolCall("\"\U0001F600\"")}},
		{"a pair split over chunks and other blocks", []events.Chunk{
			a[0],
			{Type: events.ChunkTextDelta, Texts: []string{highHalf}},
			b[0], b[1],
			{Type: events.ChunkTextDelta, Texts: []string{lowHalf}},
		}, []events.Block{events.Text("\U0001F600"), reasoning("why not")}},
		{"halves in the wrong order", run(text(0, lowHalf, highHalf)), []events.Block{events.Text(lowHalf + highHalf)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var answer fold.Answer
			for i := range tt.chunks {
				if err := answer.Add(&tt.chunks[i]); err != nil {
					t.Fatalf("chunk %d: %v", i, err)
				}
			}
			if d := diff(tt.want, answer.Content()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if d := diff(tt.want, dumb.Answer(tt.chunks)); d != "" {
				t.Errorf("dumb (-want +got):\n%s", d)
			}
			starts := slices.ContainsFunc(tt.chunks, func(c events.Chunk) bool { return c.Type == events.ChunkBlockStart })
			if answer.Empty() == starts {
				t.Errorf("Empty() = %t", answer.Empty())
			}
		})
	}
}

func TestAnswerUsage(t *testing.T) {
	var answer fold.Answer
	for _, n := range []int64{3, 9, 7} {
		c := foldtest.UsageChunk(events.Usage{OutputTokens: n})
		if err := answer.Add(&c); err != nil {
			t.Fatal(err)
		}
	}
	if !answer.UsageReported || answer.Usage.OutputTokens != 7 {
		t.Errorf("usage %+v (reported: %t), want the last one", answer.Usage, answer.UsageReported)
	}
}

func TestAnswerRefuses(t *testing.T) {
	text := foldtest.TextBlock(0, "t")
	call := foldtest.CallBlock(0, "c", "read", "{}")
	other := call[1]
	other.ID = "d"
	start := func(index int64, kind events.BlockType) events.Chunk {
		return events.Chunk{Type: events.ChunkBlockStart, Index: index, BlockType: kind}
	}
	reason := events.Chunk{Type: events.ChunkReasoningDelta, Texts: []string{"r"}}
	tests := []struct {
		name   string
		chunks []events.Chunk // the last one is bad
	}{
		{"a delta before its block", text[1:2]},
		{"a delta of another kind", []events.Chunk{text[0], reason}},
		{"a delta of a later block", []events.Chunk{text[0], foldtest.TextBlock(1, "t")[1]}},
		{"a negative index", []events.Chunk{text[0], {Type: events.ChunkTextDelta, Index: -1}}},
		{"a delta behind its block", append(slices.Clone(text), text[1])},
		{"an end before its block", text[2:]},
		{"an end twice", append(slices.Clone(text), text[2])},
		{"a block left out", []events.Chunk{start(1, events.BlockText)}},
		{"a block twice", []events.Chunk{text[0], text[0]}},
		{"a tool's result", []events.Chunk{start(0, events.BlockToolResult)}},
		{"an image", []events.Chunk{start(0, events.BlockImage)}},
		{"another call's id", append(slices.Clone(call[:2]), other)},
		{"an id lost", append(slices.Clone(call[:2]), events.Chunk{Type: events.ChunkToolCallDelta})},
		{"a block behind the finish", []events.Chunk{foldtest.FinishChunk(events.FinishStop), text[0]}},
		{"a usage behind the finish", []events.Chunk{foldtest.FinishChunk(events.FinishStop), foldtest.UsageChunk(events.Usage{})}},
		{"a second finish", []events.Chunk{foldtest.FinishChunk(events.FinishStop), foldtest.FinishChunk(events.FinishStop)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var answer fold.Answer
			last := len(tt.chunks) - 1
			for i := range tt.chunks[:last] {
				if err := answer.Add(&tt.chunks[i]); err != nil {
					t.Fatalf("chunk %d: %v", i, err)
				}
			}
			if err := answer.Add(&tt.chunks[last]); err == nil {
				t.Error("the last chunk was taken")
			}
		})
	}
}
