package events_test

import (
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

const (
	sampleID   = events.ID("01JZZZZZZZZZZZZZZZZZZZZZZZ")
	sampleTime = 1735689600000
	loneHigh   = "\xed\xa0\xbd" // U+D83D
	loneLow    = "\xed\xb8\x80" // U+DE00
)

// samples returns one event of every type, each field of each type set in at least one of them.
func samples(tb testing.TB) []events.Event {
	tb.Helper()
	out := sampleBodies()
	for i := range out {
		e := &out[i]
		e.Seq, e.ID, e.Time, e.Prev = uint64(i+1), sampleID, sampleTime+int64(i), events.HashPayload([]byte("the payload before"))
		if _, err := events.Encode(e); err != nil {
			tb.Fatal(err)
		}
	}
	return out
}

func sampleOf(tb testing.TB, typ events.Type) events.Event {
	tb.Helper()
	for _, e := range samples(tb) {
		if e.Type() == typ {
			return e
		}
	}
	tb.Fatalf("no sample of type %s", typ)
	return events.Event{}
}

func sampleRef(s string) objects.Ref {
	return objects.Ref{Digest: objects.Sum([]byte(s)), Bytes: int64(len(s)), MediaType: events.TextMediaType}
}

var sampleUsage = events.Usage{
	InputTokens: 120, CacheReported: true, CacheReadTokens: 1024, CacheWriteTokens: 64, CacheWrite1hTokens: 32,
	OutputTokens: 55, ReasoningTokens: 21, Clamped: true,
}

var sampleFailure = events.Failure{
	Message: "slow down", Code: events.FailureRateLimit, Status: 429, RetryAfterMs: 1500, RequestID: "req-1",
}

func sampleHeader() events.Header {
	return events.Header{
		Config: events.Config{
			Provider: "deepseek", Model: "deepseek-chat", ReasoningEffort: "max", MaxTokens: 32768, Temperature: "0.7",
			Stop: []string{"END", "\u2028"},
		},
		AdapterDefaults: events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true},
		System:          "You are <helpful> & \"exact\".\n",
		Tools: []events.Tool{
			{Name: "list", Description: "Lists a directory", Parameters: `{"type": "object", "properties": {"path": {"type": "string"}}}`},
			{Name: "read", Description: "", Parameters: `{}`},
		},
	}
}

func sampleOptions() events.Options {
	return events.Options{
		Provider: "deepseek", Model: "deepseek-chat", ReasoningEffort: "low", MaxTokens: 4096, Temperature: "1e-7",
		Stop: []string{""}, SystemObject: sampleRef("system"), Tools: []string{"list", "read"},
	}
}

func sampleBodies() []events.Event {
	return append(append(sampleSession(), sampleTurn()...), sampleRest()...)
}

func sampleSession() []events.Event {
	return []events.Event{
		{Body: &events.SessionCreated{
			Session: sampleID,
			Labels:  []events.Label{{Name: "team", Value: "core"}, {Name: "tier", Value: ""}}, Preset: "coding", Cwd: "/src",
			Options: sampleOptions(), Parent: events.Parent{ID: sampleID, Seq: 7, Chain: events.HashPayload([]byte("parent"))},
			SeedLength: 6, DelegationDepth: 1,
		}},
		{Body: &events.SessionEndSeed{}},
		{Body: &events.LoopClaimed{Worker: "worker-1", Instance: sampleID, Reason: events.ClaimTakeover}},
		{Body: &events.SessionConfigured{Options: events.Options{Model: "deepseek-reasoner", System: "Be brief."}, InboxSeq: 41}},
		{Body: &events.SessionTitle{Title: "Listing 目录 \U0001f600"}, Ignorable: true},
	}
}

func sampleTurn() []events.Event {
	source := events.Source{Kind: events.SourceModel, Provider: "deepseek", Model: "deepseek-chat"}
	return []events.Event{
		{Body: &events.TurnStart{Turn: 1}},
		{Body: &events.StepStart{Turn: 1, Step: 1}},
		{Surface: events.AppendOp(), Body: &events.UserMessage{
			Message: events.Message{
				ID: "m1", Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser},
				Content: []events.Block{events.Text("list it\x00\x1f\x7f\t" + loneHigh), {Type: events.BlockText, Object: sampleRef("long")}},
			},
			InboxSeq: 1<<53 + 1,
		}},
		{Body: &events.RequestHeader{Header: sampleHeader(), Reason: events.HeaderInitial}},
		{Body: &events.RequestContext{Provider: "deepseek", Model: "deepseek-chat", ContextWindow: 131072}},
		{Body: &events.LLMStream{
			Turn: 1, Step: 1, Attempt: 1, Purpose: events.PurposeLoop, Header: 9,
			Surface: events.SurfacePosition{Nodes: 1, Last: 8}, Codec: "deepseek-chat/1",
			Body: events.BodyDigest{Bytes: 812, SHA256: events.HashPayload([]byte("body"))}, Objects: []objects.Ref{sampleRef("long")},
		}},
		{Body: &events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: sampleFailure, UsageReported: true}},
		{Body: &events.LLMRetry{Turn: 1, Step: 1, RetryID: "r1", Retry: 1, MaxRetries: 5, DelayMs: 1500, Failure: sampleFailure}},
		{Body: &events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "r1", Retry: 1}},
		{Body: &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 2, Chunks: []events.Chunk{
			{Type: events.ChunkBlockStart, BlockType: events.BlockReasoning},
			{Type: events.ChunkReasoningDelta, Texts: []string{"the directory ", loneHigh, loneLow, ""}},
			{Type: events.ChunkBlockEnd},
			{Type: events.ChunkTextDelta, Index: 1, Texts: []string{"Looking."}},
			{Type: events.ChunkToolCallDelta, Index: 2, ID: "c1", Name: "list", Texts: []string{`{"pa`, `th":"."}`}},
			{Type: events.ChunkUsage, Usage: sampleUsage, RawUsage: `{"prompt_tokens": 1240, "x": 1E+2}`},
			{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishToolCalls, Raw: "tool_use"}},
		}}},
		{Surface: events.AppendOp(), Sources: []uint64{15}, Body: &events.AssistantMessage{
			Turn: 1, Step: 1, UsageReported: true, Usage: sampleUsage, Interrupted: true,
			Finish: events.Finish{Kind: events.FinishToolCalls},
			Message: events.Message{ID: "m2", Role: events.RoleAssistant, Source: source, Content: []events.Block{
				{Type: events.BlockReasoning, Text: "the directory \U0001f600"},
				events.Text("Looking."),
				{Type: events.BlockToolCall, ID: "c1", Name: "list", Arguments: `{"path":"."}`},
			}},
		}},
		{Body: &events.ToolCall{Turn: 1, Step: 1, CallID: "c1", Name: "list", Arguments: `{"path":"."}`}},
		{Surface: events.AppendOp(), Body: &events.ToolResult{
			Turn: 1, Step: 1, Meta: `{ "exit": 1, "n": 123456789012345678901 }`,
			Error: events.ToolError{Code: events.ToolFailed, Message: "exit 1"},
			Message: events.Message{
				ID: "m3", Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: "c1"},
				Content: []events.Block{{
					Type: events.BlockToolResult, ToolCallID: "c1", IsError: true,
					Content: []events.Block{events.Text(events.TextFromBytes([]byte("caf\xe9\n")))},
				}},
			},
		}},
		{Body: &events.StepEnd{Turn: 1, Step: 1}},
		{Body: &events.TurnEnd{Turn: 1, Kind: events.TurnError, Failure: sampleFailure}},
	}
}

func sampleRest() []events.Event {
	return []events.Event{
		{Body: &events.CompactionStart{CompactionID: "k1", Turn: 1}},
		{Body: &events.CompactionSummary{
			CompactionID: "k1", Region: events.Region{Start: 8, End: 16}, Shadowed: []uint64{8, 16}, ShadowedTokens: 900,
			Summary: []events.Block{events.Text("They listed a directory.")}, Provider: "deepseek", Model: "deepseek-chat",
			MaxTokens: 2048, Usage: events.Usage{InputTokens: 900, OutputTokens: 12}, UsageReported: true,
		}},
		{Body: &events.CompactionEnd{CompactionID: "k1", Turn: 1, Outcome: events.CompactionNoProgress, Error: "not shorter"}},
		{Body: &events.CompactionPrune{Region: events.Region{Start: 18, End: 18}, Shadowed: []uint64{18}, ShadowedTokens: 400}},
		{Body: &events.ApprovalAsked{ApprovalID: "a1", CallID: "c1", Question: "Run it?"}},
		{Body: &events.ApprovalDecided{ApprovalID: "a1", Approved: true, By: "ops"}},
		{Body: &events.SessionClosed{Reason: "done", InboxSeq: 43}},
	}
}

func sampleInputs() map[string]events.Input {
	return map[string]events.Input{
		"prompt": {
			ID: sampleID, Time: sampleTime, Kind: events.InputPrompt, Content: []events.Block{events.Text("hello\u2028" + loneLow)},
			Options: sampleOptions(), Labels: []events.Label{{Name: "team", Value: "core"}}, Cwd: "/src",
		},
		"configure": {ID: sampleID, Time: sampleTime, Kind: events.InputConfigure, Options: events.Options{Model: "deepseek-chat"}},
		"close":     {ID: sampleID, Time: sampleTime, Kind: events.InputClose, Reason: "done"},
	}
}

func encode(tb testing.TB, e events.Event) []byte {
	tb.Helper()
	b, err := events.Encode(&e)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func encodeInput(tb testing.TB, in events.Input) []byte {
	tb.Helper()
	b, err := events.EncodeInput(&in)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// fileName turns a type into the name of its golden file.
func fileName(t events.Type) string { return strings.ReplaceAll(string(t), "/", "-") + ".golden" }
