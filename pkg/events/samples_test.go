package events_test

import (
	"encoding/base64"
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

	// samplePixel is a PNG of one pixel, in base64.
	samplePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

// samples returns one event of every type. Each field of each type is set in one of them or of the variants.
func samples(tb testing.TB) []events.Event {
	tb.Helper()
	out := sampleBodies()
	for i := range out {
		seal(tb, &out[i], i+1)
	}
	return out
}

// variants returns events of types that have a sample, with what does not stand together with what the sample has.
func variants(tb testing.TB) map[string]events.Event {
	tb.Helper()
	replace := sampleOf(tb, events.TypeToolResult)
	replace.Surface = events.ReplaceOp(18, 18)
	auxiliary := events.Event{Body: &events.LLMStream{
		Attempt: 2, Purpose: events.PurposeCompaction, Header: 9,
		Auxiliary: &events.Auxiliary{
			Config: events.Config{Provider: "deepseek", Model: "deepseek-chat", MaxTokens: 2048, Temperature: "0"},
			Region: events.Region{Start: 8, End: 16}, Directive: []events.Block{events.Text("Summarise it.")},
		},
		Surface: events.SurfacePosition{Nodes: 3, Last: 18, Generation: 1}, Codec: "deepseek-chat/1",
		Body: events.BodyDigest{Bytes: 640, SHA256: events.HashPayload([]byte("body"))},
	}}
	failed := events.Event{Body: &events.LLMFailed{Attempt: 1, Failure: events.Failure{Code: events.FailureCancelled}}}
	changed := events.Event{Body: &events.RequestHeader{Header: sampleHeader(), Reason: events.HeaderChange, ChangedBy: []events.ConfigChange{
		{Extension: "router", Fields: []events.ConfigField{events.ConfigProvider, events.ConfigModel, events.ConfigStop}},
		{Extension: "a \"budget\"", Fields: []events.ConfigField{events.ConfigReasoningEffort, events.ConfigMaxTokens, events.ConfigTemperature}},
	}}}
	out := map[string]events.Event{
		"tool-result-replace": replace, "llm-stream-auxiliary": auxiliary, "llm-failed-auxiliary": failed, "request-header-changed": changed,
	}
	for name, e := range out {
		seal(tb, &e, 40)
		out[name] = e
	}
	return out
}

func seal(tb testing.TB, e *events.Event, seq int) {
	tb.Helper()
	e.Seq, e.ID, e.Time, e.Prev = uint64(seq), sampleID, sampleTime+int64(seq)-1, events.HashPayload([]byte("the payload before"))
	if _, err := events.Encode(e); err != nil {
		tb.Fatal(err)
	}
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

func sampleImage() []byte {
	b, err := base64.StdEncoding.DecodeString(samplePixel)
	if err != nil {
		panic(err)
	}
	return b
}

func sampleImageBlock(name string) events.Block {
	data := sampleImage()
	return events.Block{
		Type: events.BlockImage, Width: 1, Height: 1, Name: name,
		Object: objects.Ref{Digest: objects.Sum(data), Bytes: int64(len(data)), MediaType: "image/png"},
	}
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
		Stop: []string{""}, SystemObject: sampleRef("system"), Tools: []string{"list", "read"}, MaxSteps: 50,
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
			Options: sampleOptions(),
			Parent: events.Parent{
				ID: sampleID, Seq: 7, Chain: events.HashPayload([]byte("parent")), First: events.HashPayload([]byte("first")),
			},
			SeedLength: 6, DelegationDepth: 1,
		}},
		{Body: &events.SessionEndSeed{}},
		{Body: &events.LoopClaimed{Worker: "worker-1", Instance: sampleID, Reason: events.ClaimTakeover}},
		{Body: &events.SessionConfigured{
			Options: events.Options{Model: "deepseek-reasoner", System: "Be brief."}, Claim: events.Claim{InboxSeq: 41, InputID: sampleID},
		}},
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
				ID: string(sampleID), Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser},
				Content: []events.Block{
					events.Text("list it\x00\x1f\x7f\t" + loneHigh),
					{Type: events.BlockText, Object: sampleRef("long")},
					sampleImageBlock("screen \"1\".png"),
				},
			},
			InboxSeq: 1<<53 + 1, Delivery: events.DeliverySteer,
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
			Error:    events.ToolError{Code: events.ToolTimeout, Message: "no answer in 30 s"},
			Contexts: []events.AddedContext{{Plugin: "lint", Text: "2 warnings\n"}, {Plugin: "clock"}},
			Message: events.Message{
				ID: "m3", Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: "c1"},
				Content: []events.Block{{
					Type: events.BlockToolResult, ToolCallID: "c1", IsError: true,
					Content: []events.Block{events.Text(events.TextFromBytes([]byte("caf\xe9\n"))), sampleImageBlock("")},
				}},
			},
		}},
		{Body: &events.StepEnd{Turn: 1, Step: 1}},
		{Body: &events.TurnEnd{Turn: 1, Kind: events.TurnError, Failure: sampleFailure}},
	}
}

func sampleRest() []events.Event {
	return []events.Event{
		{Body: &events.CompactionStart{
			CompactionID: "k1", Turn: 1, Reason: events.CompactionCommand, Claim: events.Claim{InboxSeq: 42, InputID: sampleID},
		}},
		{Body: &events.CompactionSummary{
			CompactionID: "k1", Region: events.Region{Start: 8, End: 16}, Shadowed: []uint64{8, 16}, ShadowedTokens: 900,
			Summary: []events.Block{events.Text("They listed a directory.")}, Provider: "deepseek", Model: "deepseek-chat",
			MaxTokens: 2048, Usage: events.Usage{InputTokens: 900, OutputTokens: 12}, UsageReported: true,
		}},
		{Body: &events.CompactionEnd{CompactionID: "k1", Turn: 1, Outcome: events.CompactionNoProgress, Error: "not shorter"}},
		{Body: &events.CompactionPrune{Region: events.Region{Start: 18, End: 18}, Shadowed: []uint64{18}, ShadowedTokens: 400}},
		{Body: &events.ApprovalAsked{ApprovalID: "a1", CallID: "c1", Question: "Run it?"}},
		{Body: &events.ApprovalDecided{ApprovalID: "a1", Approved: true, By: "ops"}},
		{Body: &events.RequestImages{Images: []events.ImageShown{
			{
				Image: sampleImageBlock("").Object.Digest, As: events.ImageInline, Label: "Image 1 (1x1):",
				Object: sampleImageBlock("").Object, Width: 1, Height: 1,
			},
			{Image: objects.Sum([]byte("second")), As: events.ImageFile, FileID: "file-abc", Provider: "p", ExpiresAt: sampleTime + 1},
			{Image: objects.Sum([]byte("third")), As: events.ImageText, Label: "[image omitted]"},
		}}},
		{Body: &events.TurnCancelled{
			Turn: 1, Cause: "user", KeepQueue: true, Claim: events.Claim{InboxSeq: 43, InputID: sampleID},
		}},
		{Body: &events.InputDropped{
			Claim: events.Claim{InboxSeq: 44, InputID: sampleID}, Kind: events.InputInject, Cause: "cancelled",
		}},
		{Body: &events.SessionClosed{Reason: "done", Claim: events.Claim{InboxSeq: 45, InputID: sampleID}}},
	}
}

func sampleInputs() map[string]events.Input {
	return map[string]events.Input{
		"prompt": {
			ID: sampleID, Time: sampleTime, Kind: events.InputPrompt, Content: []events.Block{events.Text("hello\u2028" + loneLow)},
			Options: sampleOptions(), Labels: []events.Label{{Name: "team", Value: "core"}}, Cwd: "/src",
		},
		"steer": {
			ID: sampleID, Time: sampleTime, Kind: events.InputSteer, Open: true,
			Content:     []events.Block{sampleImageBlock("a.png"), events.Text("like this?"), sampleImageBlock("")},
			Attachments: [][]byte{sampleImage(), sampleImage()},
		},
		"inject":  {ID: sampleID, Time: sampleTime, Kind: events.InputInject, Content: []events.Block{events.Text("by the way")}},
		"cancel":  {ID: sampleID, Time: sampleTime, Kind: events.InputCancel, Cause: "user", KeepQueue: true},
		"compact": {ID: sampleID, Time: sampleTime, Kind: events.InputCompact},
		"fork": {
			ID: sampleID, Time: sampleTime, Kind: events.InputFork, Open: true,
			Parent:  events.ForkPoint{ID: "01JYYYYYYYYYYYYYYYYYYYYYYY", Seq: 7},
			Options: events.Options{MaxSteps: 3}, Labels: []events.Label{{Name: "team", Value: "core"}}, Cwd: "/src",
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
