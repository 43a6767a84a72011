package foldtest_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestSession looks at the shape of the long log that benchmarks use.
func TestSession(t *testing.T) {
	const n = 5000
	l := foldtest.SessionLog(n, nil)
	if len(l.Events) != n || l.State.Seq() != n {
		t.Fatalf("%d events, the fold stands at %d, want %d", len(l.Events), l.State.Seq(), n)
	}
	chunks, size := 0, 0
	for i, payload := range l.Payloads {
		if l.Events[i].Type() == events.TypeAssistantChunk {
			chunks++
		}
		size += len(payload)
	}
	if share := float64(chunks) / n; share < 0.55 || share > 0.65 {
		t.Errorf("%.0f%% of the events are chunks, want about 60%%", 100*share)
	}
	if mean := size / n; mean < 300 || mean > 600 {
		t.Errorf("an event has %d bytes, want 300 to 600", mean)
	}
	again := foldtest.Session(n)
	last, _ := again[n-1].Hash()
	if last != l.State.Head() {
		t.Error("the same n gave another log")
	}
}

// TestGenerateReaches shows that the generator makes every type of event that a fold knows something about.
func TestGenerateReaches(t *testing.T) {
	want := []events.Type{
		events.TypeSessionCreated, events.TypeSessionConfigured, events.TypeSessionTitle, events.TypeSessionClosed,
		events.TypeLoopClaimed, events.TypeTurnStart, events.TypeTurnEnd, events.TypeStepStart, events.TypeStepEnd,
		events.TypeUserMessage, events.TypeRequestHeader, events.TypeRequestContext, events.TypeLLMStream, events.TypeLLMFailed,
		events.TypeLLMRetry, events.TypeLLMRetryStarted, events.TypeAssistantChunk, events.TypeAssistantMessage,
		events.TypeToolCall, events.TypeToolResult, events.TypeCompactionStart, events.TypeCompactionSummary,
		events.TypeCompactionEnd, events.TypeCompactionPrune, events.TypeApprovalAsked, events.TypeApprovalDecided,
		events.TypeSessionEndSeed, events.TypeInputDropped, events.TypeTurnCancelled, events.TypeRequestImages,
	}
	seen := make(map[events.Type]bool)
	gen := rapid.Custom(func(t *rapid.T) []events.Event {
		return foldtest.Generate(t, foldtest.Options{Images: true, Forks: true})
	})
	for seed := range 300 {
		for _, e := range gen.Example(seed) {
			seen[e.Type()] = true
		}
	}
	for _, typ := range want {
		if !seen[typ] {
			t.Errorf("no log has %s", typ)
		}
	}
}

// TestBody shows that the function given makes the bodies, from the request and the objects named so far.
func TestBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := func(r *fold.Request, source objects.Source) (string, events.BodyDigest) {
			for _, m := range r.Messages.All() {
				for _, ref := range m.Refs(nil) {
					if _, ok := source.Bytes(ref.Digest); !ok {
						t.Errorf("object %s is not there", ref)
					}
				}
			}
			return "test/1", events.BodyDigest{Bytes: int64(r.Messages.Len())}
		}
		streams := 0
		for _, e := range foldtest.Generate(t, foldtest.Options{Body: body}) {
			if b, ok := e.Body.(*events.LLMStream); ok {
				streams++
				if b.Codec != "test/1" || b.Body.Bytes == 0 {
					t.Errorf("event %d: codec %q, %d bytes", e.Seq, b.Codec, b.Body.Bytes)
				}
			}
		}
		if streams == 0 {
			t.Error("the log has no request")
		}
	})
}

// TestTryLeavesNoTrace shows that a refused event does not harm the log.
func TestTryLeavesNoTrace(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	nodes := l.State.Nodes()
	if err := l.Try(&events.TurnStart{Turn: 7}); err == nil {
		t.Error("turn 7 came first")
	}
	l.Turn("go", "on")
	if l.State.Seq() != l.Len() || slices.Equal(nodes, l.State.Nodes()) {
		t.Errorf("the log stands at %d, the fold at %d", l.Len(), l.State.Seq())
	}
}
