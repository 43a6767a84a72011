package main

import (
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	claim := events.Claim{InboxSeq: 7, InputID: "01M8PG4VB622RY2RMXB3YG5CRA"}
	picture := objects.Ref{Digest: objects.Sum([]byte("x")), Bytes: 1, MediaType: "image/png"}
	const digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881" // SHA-256 of x
	user := func(source events.Source, blocks ...events.Block) events.Message {
		return events.Message{Content: blocks, Source: source}
	}
	for _, tt := range []struct {
		body events.Body
		want string
	}{
		{&events.SessionCreated{Parent: events.Parent{ID: "01M8PG4VB622RY2RMXB3YG5CRB", Seq: 12}, Labels: []events.Label{{Name: "a", Value: "b"}}}, "fork of 01M8PG4VB622RY2RMXB3YG5CRB at 12 a=b"},
		{&events.SessionConfigured{Claim: claim}, "by input 7"},
		{&events.SessionConfigured{Claim: claim, Options: events.Options{Model: "m", MaxSteps: 3, System: "s", Tools: []string{"a", "b"}}}, "by input 7 model=m max-steps=3 tools=a,b system"},
		{&events.InputDropped{Claim: claim, Kind: events.InputPrompt, Cause: "late"}, "prompt, input 7: late"},
		{&events.TurnCancelled{Claim: claim, Cause: "why"}, "by input 7: why"},
		{&events.TurnCancelled{Claim: claim, Turn: 2, KeepQueue: true, Cause: "why"}, "turn 2 by input 7, the others stay: why"},
		{&events.UserMessage{Message: user(events.Source{Kind: events.SourceUser}, events.Text("hi\x1b"))}, `"hi\x1b"`},
		{&events.UserMessage{Message: user(events.Source{Kind: events.SourceUser}, events.Text("hi")), Delivery: events.DeliverySteer}, `steer "hi"`},
		{&events.UserMessage{Message: user(events.Source{Kind: events.SourceContext, Plugin: "cwd"}, events.Text("hi"))}, `context cwd "hi"`},
		{&events.UserMessage{Message: user(events.Source{}, events.Block{Type: events.BlockImage, Object: picture, Width: 3, Height: 2})}, "image/png of 3x2 pixels, object " + digest},
		{&events.RequestHeader{
			Reason: events.HeaderInitial, Header: events.Header{Config: events.Config{Provider: "p", Model: "m"}, Tools: make([]events.Tool, 2)},
		}, "initial p/m effort= tools=2"},
		{&events.RequestHeader{
			Reason: events.HeaderChange, Header: events.Header{Config: events.Config{Provider: "p", Model: "m", ReasoningEffort: "high"}, ToolsObject: picture},
			ChangedBy: []events.ConfigChange{
				{Extension: "router\x1b", Fields: []events.ConfigField{events.ConfigProvider, events.ConfigModel}},
				{Extension: "x", Fields: []events.ConfigField{events.ConfigReasoningEffort}},
			},
		}, "change p/m effort=high provider,model changed by router\uFFFD reasoningEffort changed by x tools=object 2d711642b726"},
		{&events.RequestImages{Images: []events.ImageShown{
			{Image: picture.Digest, As: events.ImageText, Label: "gone"},
			{Image: picture.Digest, As: events.ImageFile, FileID: "file-1", Width: 3, Height: 2},
		}}, "2d711642b726 as text, 2d711642b726 as file of 3x2 pixels file-1"},
		{&events.LLMStream{Turn: 1, Step: 2, Attempt: 3, Purpose: events.PurposeLoop, Body: events.BodyDigest{Bytes: 9}}, "step 1.2 attempt 3, 9 bytes, 0000000000000000000000000000000000000000000000000000000000000000"},
		{&events.LLMStream{Turn: 1, Attempt: 1, Purpose: events.PurposeCompaction}, "compaction turn 1 attempt 1, 0 bytes, 0000000000000000000000000000000000000000000000000000000000000000"},
		{&events.LLMStream{Attempt: 1, Purpose: events.PurposeTitle}, "title attempt 1, 0 bytes, 0000000000000000000000000000000000000000000000000000000000000000"},
		{&events.AssistantChunk{Attempt: 1, Chunks: make([]events.Chunk, 2)}, "attempt 1, 2 chunks"},
		{&events.LLMRetry{Turn: 1, Step: 2, Retry: 1, MaxRetries: 3, DelayMs: 1500, Failure: events.Failure{Code: events.FailureServer}}, "step 1.2 retry 1 of 3 in 1.5s after SERVER"},
		{&events.LLMRetry{Retry: 4, Failure: events.Failure{Code: events.FailureServer}}, "retry 4 in 0s after SERVER"},
		{&events.LLMRetryStarted{Turn: 1, Step: 2, Retry: 4}, "step 1.2 retry 4"},
		{&events.CompactionStart{Reason: events.CompactionPressure, Turn: 3}, "pressure turn 3"},
		{&events.CompactionStart{Reason: events.CompactionCommand, Claim: claim}, "command by input 7"},
		{&events.CompactionSummary{Shadowed: []uint64{3, 4}, ShadowedTokens: 20, Summary: []events.Block{events.Text("short")}}, `2 messages, about 20 tokens, become "short"`},
		{&events.CompactionEnd{Outcome: events.CompactionCompleted}, "completed"},
		{&events.CompactionEnd{Outcome: events.CompactionNoProgress, Error: "why"}, "no-progress: why"},
		{&events.CompactionPrune{Region: events.Region{Start: 9, End: 9}, ShadowedTokens: 5}, "event 9, about 5 tokens fewer"},
		{&events.ApprovalDecided{Approved: true, By: "me"}, "approved=true me"},
		{&events.SessionEndSeed{}, ""},
	} {
		if got := summary(&events.Event{Body: tt.body}); got != tt.want {
			t.Errorf("%T: %q, want %q", tt.body, got, tt.want)
		}
	}
}
