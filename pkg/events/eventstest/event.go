package eventstest

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Types returns every type that this version knows, in the order of its documentation.
func Types() []events.Type {
	return []events.Type{
		events.TypeSessionCreated, events.TypeSessionConfigured, events.TypeSessionEndSeed, events.TypeSessionTitle,
		events.TypeSessionClosed, events.TypeInputDropped, events.TypeLoopClaimed, events.TypeTurnStart, events.TypeTurnEnd,
		events.TypeTurnCancelled, events.TypeStepStart, events.TypeStepEnd, events.TypeUserMessage, events.TypeRequestHeader,
		events.TypeRequestContext, events.TypeRequestImages, events.TypeLLMStream, events.TypeLLMFailed, events.TypeLLMRetry, events.TypeLLMRetryStarted,
		events.TypeAssistantChunk, events.TypeAssistantMessage, events.TypeToolCall, events.TypeToolResult,
		events.TypeCompactionStart, events.TypeCompactionSummary, events.TypeCompactionEnd, events.TypeCompactionPrune,
		events.TypeApprovalAsked, events.TypeApprovalDecided,
	}
}

// TypeUnknown is the type of the unknown, ignorable events that [Event] generates.
const TypeUnknown events.Type = "vendor/note"

// Event generates a valid event of any type, unknown ignorable ones included. It is valid on its own: nothing makes
// it fit a log.
func Event() *rapid.Generator[events.Event] {
	types := append(Types(), TypeUnknown)
	return rapid.Custom(func(t *rapid.T) events.Event {
		return EventOf(rapid.SampledFrom(types).Draw(t, "type")).Draw(t, "event")
	})
}

// EventOf generates a valid event of one type.
func EventOf(typ events.Type) *rapid.Generator[events.Event] {
	return rapid.Custom(func(t *rapid.T) events.Event {
		e := events.Event{
			Seq:       Seq().Draw(t, "seq"),
			ID:        ID().Draw(t, "id"),
			Time:      Count().Draw(t, "time"),
			Prev:      Hash().Draw(t, "prev"),
			Body:      Body(typ).Draw(t, "body"),
			Ignorable: typ == events.TypeSessionTitle || typ == TypeUnknown,
		}
		if typ.Surface() {
			e.Surface = events.AppendOp()
			if rapid.IntRange(0, 3).Draw(t, "replace") == 0 {
				e.Surface = events.ReplaceOp(Seq().Draw(t, "start"), Seq().Draw(t, "end"))
			}
		}
		if e.Seq > 1 {
			sources := rapid.SliceOfNDistinct(rapid.Uint64Range(1, e.Seq-1), 0, int(min(e.Seq-1, 6)), rapid.ID[uint64])
			if s := sources.Draw(t, "sources"); len(s) > 0 {
				e.Sources = s
			}
		}
		return e
	})
}

// Body generates the data of an event of type typ, which is one of [Types] or [TypeUnknown].
func Body(typ events.Type) *rapid.Generator[events.Body] {
	if typ == events.TypeSessionEndSeed {
		return rapid.Just[events.Body](&events.SessionEndSeed{})
	}
	for _, bodies := range []map[events.Type]func(*rapid.T) events.Body{sessionBodies(), turnBodies(), llmBodies(), compactionBodies()} {
		if draw := bodies[typ]; draw != nil {
			return rapid.Custom(draw)
		}
	}
	panic(fmt.Sprintf("eventstest: no generator for type %q", typ))
}

func sessionBodies() map[events.Type]func(*rapid.T) events.Body {
	return map[events.Type]func(*rapid.T) events.Body{
		TypeUnknown: func(t *rapid.T) events.Body {
			return &events.Unknown{Name: TypeUnknown, Data: RawJSON().Draw(t, "data")}
		},
		events.TypeSessionCreated: func(t *rapid.T) events.Body {
			b := &events.SessionCreated{
				Session:         ID().Draw(t, "session"),
				Labels:          Labels().Draw(t, "labels"),
				Preset:          maybe(t, Text(), "preset"),
				Cwd:             maybe(t, Text(), "cwd"),
				Options:         Options().Draw(t, "options"),
				DelegationDepth: maybe(t, Count(), "depth"),
			}
			if rapid.Bool().Draw(t, "fork") {
				b.Parent = events.Parent{
					ID: ID().Draw(t, "parent"), Seq: Seq().Draw(t, "parent seq"),
					Chain: Hash().Draw(t, "chain"), First: Hash().Draw(t, "first"),
				}
				b.SeedLength = uint64(maybe(t, Ordinal(), "seedLength"))
			}
			return b
		},
		events.TypeSessionConfigured: func(t *rapid.T) events.Body {
			return &events.SessionConfigured{Options: Options().Draw(t, "options"), Claim: maybe(t, Claim(), "claim")}
		},
		events.TypeSessionTitle: func(t *rapid.T) events.Body {
			return &events.SessionTitle{Title: Text().Draw(t, "title")}
		},
		events.TypeSessionClosed: func(t *rapid.T) events.Body {
			return &events.SessionClosed{Reason: Text().Draw(t, "reason"), Claim: maybe(t, Claim(), "claim")}
		},
		events.TypeInputDropped: func(t *rapid.T) events.Body {
			return &events.InputDropped{
				Claim: Claim().Draw(t, "claim"), Kind: rapid.SampledFrom(InputKinds()).Draw(t, "kind"), Cause: Text().Draw(t, "cause"),
			}
		},
		events.TypeLoopClaimed: func(t *rapid.T) events.Body {
			reasons := []events.ClaimReason{events.ClaimCreated, events.ClaimResumed, events.ClaimTakeover}
			return &events.LoopClaimed{
				Worker:   Text().Draw(t, "worker"),
				Instance: ID().Draw(t, "instance"),
				Reason:   rapid.SampledFrom(reasons).Draw(t, "reason"),
			}
		},
		events.TypeApprovalAsked: func(t *rapid.T) events.Body {
			return &events.ApprovalAsked{
				ApprovalID: Text().Draw(t, "approval"), CallID: Text().Draw(t, "call"), Question: maybe(t, Text(), "question"),
			}
		},
		events.TypeApprovalDecided: func(t *rapid.T) events.Body {
			return &events.ApprovalDecided{
				ApprovalID: Text().Draw(t, "approval"), Approved: rapid.Bool().Draw(t, "approved"), By: maybe(t, Text(), "by"),
			}
		},
	}
}

func turnBodies() map[events.Type]func(*rapid.T) events.Body {
	return map[events.Type]func(*rapid.T) events.Body{
		events.TypeTurnStart: func(t *rapid.T) events.Body {
			return &events.TurnStart{Turn: turn(t)}
		},
		events.TypeTurnEnd: turnEnd,
		events.TypeTurnCancelled: func(t *rapid.T) events.Body {
			return &events.TurnCancelled{
				Turn: maybe(t, Ordinal(), "turn"), Cause: Text().Draw(t, "cause"),
				KeepQueue: rapid.Bool().Draw(t, "keepQueue"), Claim: maybe(t, Claim(), "claim"),
			}
		},
		events.TypeStepStart: func(t *rapid.T) events.Body {
			return &events.StepStart{Turn: turn(t), Step: step(t)}
		},
		events.TypeStepEnd: func(t *rapid.T) events.Body {
			return &events.StepEnd{Turn: turn(t), Step: step(t)}
		},
		events.TypeUserMessage: func(t *rapid.T) events.Body {
			b := &events.UserMessage{Message: UserContent().Draw(t, "message"), InboxSeq: maybe(t, Seq(), "inboxSeq")}
			if b.InboxSeq != 0 {
				b.Message.ID = string(ID().Draw(t, "input"))
				deliveries := []events.Delivery{events.DeliveryPrompt, events.DeliverySteer, events.DeliveryInject}
				b.Delivery = rapid.SampledFrom(deliveries).Draw(t, "delivery")
			}
			return b
		},
		events.TypeToolCall: func(t *rapid.T) events.Body {
			return &events.ToolCall{
				Turn: turn(t), Step: step(t), CallID: NonEmptyText().Draw(t, "callId"),
				Name: Text().Draw(t, "name"), Arguments: Text().Draw(t, "arguments"),
			}
		},
		events.TypeToolResult: func(t *rapid.T) events.Body {
			b := &events.ToolResult{Turn: turn(t), Step: step(t), Message: Result().Draw(t, "message"), Meta: maybe(t, RawJSON(), "meta")}
			b.Contexts = some(t, addedContext(), 0, 3, "contexts")
			if rapid.Bool().Draw(t, "failed") {
				codes := []events.ToolErrorCode{
					events.ToolNotStarted, events.ToolOutcomeUnknown, events.ToolTimeout, events.ToolCancelled, events.ToolDenied,
					"DISK_FULL",
				}
				b.Error = events.ToolError{Code: rapid.SampledFrom(codes).Draw(t, "code"), Message: maybe(t, Text(), "error")}
			}
			return b
		},
	}
}

func turnEnd(t *rapid.T) events.Body {
	b := &events.TurnEnd{Turn: Ordinal().Draw(t, "turn")}
	b.Kind = rapid.SampledFrom([]events.TurnEndKind{
		events.TurnCompleted, events.TurnAborted, events.TurnBlocked, events.TurnError, events.TurnMaxTokens, events.TurnInterrupted,
	}).Draw(t, "kind")
	switch b.Kind {
	case events.TurnAborted, events.TurnBlocked:
		b.Cause = Text().Draw(t, "cause")
	case events.TurnError:
		b.Failure = Failure().Draw(t, "failure")
	case events.TurnCompleted, events.TurnMaxTokens, events.TurnInterrupted:
	}
	return b
}

func llmBodies() map[events.Type]func(*rapid.T) events.Body {
	return map[events.Type]func(*rapid.T) events.Body{
		events.TypeRequestHeader: func(t *rapid.T) events.Body {
			reasons := []events.HeaderReason{events.HeaderInitial, events.HeaderResume, events.HeaderChange}
			name := func(c events.ConfigChange) string { return c.Extension }
			b := &events.RequestHeader{Header: Header().Draw(t, "header"), Reason: rapid.SampledFrom(reasons).Draw(t, "reason")}
			if rapid.Bool().Draw(t, "changed") {
				b.ChangedBy = rapid.SliceOfNDistinct(ConfigChange(), 1, 3, name).Draw(t, "changedBy")
			}
			return b
		},
		events.TypeRequestContext: func(t *rapid.T) events.Body {
			return &events.RequestContext{
				Provider: Text().Draw(t, "provider"), Model: Text().Draw(t, "model"), ContextWindow: maybe(t, Ordinal(), "window"),
			}
		},
		events.TypeRequestImages: func(t *rapid.T) events.Body {
			image := func(i events.ImageShown) objects.Digest { return i.Image }
			return &events.RequestImages{Images: rapid.SliceOfNDistinct(ImageShown(), 1, 3, image).Draw(t, "images")}
		},
		events.TypeLLMStream: stream,
		events.TypeLLMFailed: func(t *rapid.T) events.Body {
			b := &events.LLMFailed{Attempt: Ordinal().Draw(t, "attempt"), Failure: Failure().Draw(t, "failure")}
			b.Turn, b.Step = place(t)
			b.UsageReported, b.Usage = optUsage(t)
			return b
		},
		events.TypeLLMRetry: func(t *rapid.T) events.Body {
			b := &events.LLMRetry{
				RetryID: Text().Draw(t, "retryId"), Retry: Ordinal().Draw(t, "retry"), MaxRetries: maybe(t, Ordinal(), "maxRetries"),
				DelayMs: Count().Draw(t, "delay"), Failure: Failure().Draw(t, "failure"),
			}
			b.Turn, b.Step = place(t)
			return b
		},
		events.TypeLLMRetryStarted: func(t *rapid.T) events.Body {
			b := &events.LLMRetryStarted{RetryID: Text().Draw(t, "retryId"), Retry: Ordinal().Draw(t, "retry")}
			b.Turn, b.Step = place(t)
			return b
		},
		events.TypeAssistantChunk: func(t *rapid.T) events.Body {
			b := &events.AssistantChunk{Attempt: Ordinal().Draw(t, "attempt"), Chunks: some(t, Chunk(), 1, 5, "chunks")}
			b.Turn, b.Step = place(t)
			return b
		},
		events.TypeAssistantMessage: func(t *rapid.T) events.Body {
			b := &events.AssistantMessage{
				Turn: turn(t), Step: step(t), Message: Answer().Draw(t, "message"),
				Finish: Finish().Draw(t, "finish"), Interrupted: rapid.Bool().Draw(t, "interrupted"),
			}
			b.UsageReported, b.Usage = optUsage(t)
			return b
		},
	}
}

func stream(t *rapid.T) events.Body {
	purposes := []events.Purpose{events.PurposeLoop, events.PurposeCompaction, events.PurposeTitle}
	b := &events.LLMStream{
		Attempt: Ordinal().Draw(t, "attempt"),
		Purpose: rapid.SampledFrom(purposes).Draw(t, "purpose"),
		Header:  Seq().Draw(t, "header"),
		Surface: events.SurfacePosition{
			Nodes: Count().Draw(t, "nodes"), Last: maybe(t, Seq(), "last"), Generation: Count().Draw(t, "generation"),
		},
		Codec:   NonEmptyText().Draw(t, "codec"),
		Body:    events.BodyDigest{Bytes: Count().Draw(t, "bytes"), SHA256: Hash().Draw(t, "sha256")},
		Objects: some(t, Ref(), 0, 3, "objects"),
	}
	if b.Purpose == events.PurposeLoop {
		b.Turn, b.Step = turn(t), step(t)
		return b
	}
	b.Turn, b.Step = place(t)
	b.Auxiliary = &events.Auxiliary{
		Config: Config().Draw(t, "config"), Region: maybe(t, rapid.Custom(region), "region"),
		Directive: some(t, TextBlock(), 0, 2, "directive"),
	}
	return b
}

func optUsage(t *rapid.T) (bool, events.Usage) {
	if !rapid.Bool().Draw(t, "usage reported") {
		return false, events.Usage{}
	}
	return true, Usage().Draw(t, "usage")
}

func compactionBodies() map[events.Type]func(*rapid.T) events.Body {
	return map[events.Type]func(*rapid.T) events.Body{
		events.TypeCompactionStart: func(t *rapid.T) events.Body {
			reasons := []events.CompactionReason{"", events.CompactionPressure, events.CompactionCommand, events.CompactionOverflow}
			return &events.CompactionStart{
				CompactionID: compactionID(t), Turn: maybe(t, Ordinal(), "turn"),
				Reason: rapid.SampledFrom(reasons).Draw(t, "reason"), Claim: maybe(t, Claim(), "claim"),
			}
		},
		events.TypeCompactionSummary: func(t *rapid.T) events.Body {
			b := &events.CompactionSummary{
				CompactionID: compactionID(t), Region: region(t), Shadowed: some(t, Seq(), 0, 5, "shadowed"),
				ShadowedTokens: Count().Draw(t, "tokens"), Summary: some(t, TextBlock(), 0, 2, "summary"),
				Provider: Text().Draw(t, "provider"), Model: Text().Draw(t, "model"), MaxTokens: maybe(t, Ordinal(), "maxTokens"),
			}
			b.UsageReported, b.Usage = optUsage(t)
			return b
		},
		events.TypeCompactionEnd: func(t *rapid.T) events.Body {
			outcomes := []events.CompactionOutcome{
				events.CompactionCompleted, events.CompactionFailed, events.CompactionNoProgress, events.CompactionInterrupted,
			}
			return &events.CompactionEnd{
				CompactionID: compactionID(t), Turn: maybe(t, Ordinal(), "turn"),
				Outcome: rapid.SampledFrom(outcomes).Draw(t, "outcome"), Error: maybe(t, Text(), "error"),
			}
		},
		events.TypeCompactionPrune: func(t *rapid.T) events.Body {
			return &events.CompactionPrune{
				Region: region(t), Shadowed: some(t, Seq(), 0, 5, "shadowed"), ShadowedTokens: Count().Draw(t, "tokens"),
			}
		},
	}
}

func turn(t *rapid.T) int64 { return Ordinal().Draw(t, "turn") }

func step(t *rapid.T) int64 { return Ordinal().Draw(t, "step") }

// place draws where a call stands: in a step, in a turn between steps (step 0), or outside of any turn (both 0).
func place(t *rapid.T) (turn, step int64) {
	turn = maybe(t, Ordinal(), "turn")
	if turn > 0 {
		step = maybe(t, Ordinal(), "step")
	}
	return turn, step
}

func compactionID(t *rapid.T) string { return NonEmptyText().Draw(t, "compactionId") }

func region(t *rapid.T) events.Region {
	return events.Region{Start: Seq().Draw(t, "start"), End: Seq().Draw(t, "end")}
}
