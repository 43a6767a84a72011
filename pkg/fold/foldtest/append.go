package foldtest

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// The methods below append the next event of their kind, filled in from the fold, and return its sequence.

// Header returns a header for the provider "deepseek" and the model "deepseek-chat", with a system prompt and the tools
// "list" and "read".
func Header() events.Header {
	return events.Header{
		Config: events.Config{Provider: "deepseek", Model: "deepseek-chat"},
		System: "You are a careful assistant.",
		Tools: []events.Tool{
			{Name: "list", Description: "List a directory.", Parameters: `{"type":"object","properties":{"path":{"type":"string"}}}`},
			{Name: "read", Description: "Read a file.", Parameters: `{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`},
		},
	}
}

// Begin appends session/created and loop/claimed.
func (l *Log) Begin() uint64 {
	l.Created(events.Options{Provider: "deepseek", Model: "deepseek-chat"})
	return l.Claimed(events.ClaimCreated)
}

// Created appends session/created.
func (l *Log) Created(o events.Options) uint64 {
	return l.Append(&events.SessionCreated{Labels: []events.Label{{Name: "origin", Value: "foldtest"}}, Options: o})
}

// Claimed appends loop/claimed by a new instance.
func (l *Log) Claimed(reason events.ClaimReason) uint64 {
	seq := l.Len() + 1
	return l.Append(&events.LoopClaimed{Worker: "worker-1", Instance: ID(startTime, seq<<32), Reason: reason})
}

// Configured appends session/configured, which claims the next input.
func (l *Log) Configured(o events.Options) uint64 {
	return l.Append(&events.SessionConfigured{Options: o, Claim: l.NextClaim()})
}

// Title appends session/title.
func (l *Log) Title(title string) uint64 { return l.Append(&events.SessionTitle{Title: title}) }

// Closed appends session/closed.
func (l *Log) Closed(reason string) uint64 { return l.Append(&events.SessionClosed{Reason: reason}) }

// TurnStart appends the next turn/start.
func (l *Log) TurnStart() uint64 {
	turn, _ := l.State.Turn()
	return l.Append(&events.TurnStart{Turn: turn + 1})
}

// TurnEnd appends turn/end. An aborted turn ends with the cause of its cancel, or "user".
func (l *Log) TurnEnd(kind events.TurnEndKind) uint64 {
	turn, _ := l.State.Turn()
	b := &events.TurnEnd{Turn: turn, Kind: kind}
	switch kind {
	case events.TurnAborted, events.TurnBlocked:
		b.Cause = "user"
		if c, ok := l.State.Cancelled(); ok {
			b.Cause = c.Cause
		}
	case events.TurnError:
		b.Failure = failure(events.FailureServer)
	case events.TurnCompleted, events.TurnMaxTokens, events.TurnInterrupted:
	}
	return l.Append(b)
}

// StepStart appends the next step/start of the open turn.
func (l *Log) StepStart() uint64 {
	turn, _ := l.State.Turn()
	step, _ := l.State.Step()
	return l.Append(&events.StepStart{Turn: turn, Step: step + 1})
}

// StepEnd appends step/end.
func (l *Log) StepEnd() uint64 {
	turn, step := l.at()
	return l.Append(&events.StepEnd{Turn: turn, Step: step})
}

func (l *Log) at() (turn, step int64) {
	turn, _ = l.State.Turn()
	step, _ = l.State.Step()
	return turn, step
}

// User appends a user/message of text blocks that claims the next input: as the turn's prompt where that may enter,
// otherwise as a steer.
func (l *Log) User(texts ...string) uint64 { return l.UserBlocks(textBlocks(texts)...) }

// UserBlocks is User for any blocks that a user message may hold.
func (l *Log) UserBlocks(blocks ...events.Block) uint64 {
	delivery := events.DeliverySteer
	if _, step := l.at(); step == 1 && !l.State.Prompted() {
		delivery = events.DeliveryPrompt
	}
	return l.Append(l.InputBody(delivery, blocks...))
}

// InputBody returns the user/message that claims the next input, which came in the way given.
func (l *Log) InputBody(delivery events.Delivery, blocks ...events.Block) *events.UserMessage {
	c := l.NextClaim()
	m := l.userMessage(events.Source{Kind: events.SourceUser}, blocks)
	m.ID = string(c.InputID)
	return &events.UserMessage{Message: m, InboxSeq: c.InboxSeq, Delivery: delivery}
}

// Steer appends a user/message of text blocks that claims the next input, a steer.
func (l *Log) Steer(texts ...string) uint64 {
	return l.Append(l.InputBody(events.DeliverySteer, textBlocks(texts)...))
}

// InjectInput appends a user/message of text blocks that claims the next input, an inject.
func (l *Log) InjectInput(texts ...string) uint64 {
	return l.Append(l.InputBody(events.DeliveryInject, textBlocks(texts)...))
}

// Section appends a user/message of the context with the name.
func (l *Log) Section(name, text string) uint64 {
	source := events.Source{Kind: events.SourceContext, Plugin: name}
	return l.Append(&events.UserMessage{Message: l.userMessage(source, textBlocks([]string{text}))})
}

// PayContexts appends every context that tools' results owe.
func (l *Log) PayContexts() {
	for _, o := range l.State.Owed() {
		body, citing := l.OwedBody(o)
		l.Append(body, citing)
	}
}

// OwedBody returns the user/message that a tool's result owes, and the event that it cites.
func (l *Log) OwedBody(o fold.OwedContext) (*events.UserMessage, Option) {
	source := events.Source{Kind: events.SourcePlugin, Plugin: o.Plugin}
	return &events.UserMessage{Message: l.userMessage(source, textBlocks([]string{o.Text}))}, Citing(o.Result)
}

// Cancel appends turn/cancelled, which claims the next input.
func (l *Log) Cancel(cause string, keepQueue bool) uint64 {
	return l.Append(&events.TurnCancelled{Turn: l.openTurn(), Cause: cause, KeepQueue: keepQueue, Claim: l.NextClaim()})
}

// Dropped appends input/dropped for the next input.
func (l *Log) Dropped(kind events.InputKind, cause string) uint64 {
	return l.Append(&events.InputDropped{Claim: l.NextClaim(), Kind: kind, Cause: cause})
}

// Inject appends a user/message that a plugin adds, which claims no input.
func (l *Log) Inject(texts ...string) uint64 {
	source := events.Source{Kind: events.SourcePlugin, Plugin: "clock"}
	return l.Append(&events.UserMessage{Message: l.userMessage(source, textBlocks(texts))})
}

func (l *Log) userMessage(source events.Source, blocks []events.Block) events.Message {
	return events.Message{ID: l.messageID(), Role: events.RoleUser, Content: blocks, Source: source}
}

func (l *Log) messageID() string { return fmt.Sprintf("message-%d", l.Len()+1) }

func textBlocks(texts []string) []events.Block {
	blocks := make([]events.Block, len(texts))
	for i, text := range texts {
		blocks[i] = events.Text(text)
	}
	return blocks
}

// Header appends request/header with the reason that fits, when one is owed for h; otherwise it returns 0. The system
// prompt and the tools are those of h unless the session's options set others. Where the configuration departs from what
// the log gives, the extension "test" has changed it.
func (l *Log) Header(h events.Header) uint64 {
	l.prompt(&h)
	reason, owed := l.State.HeaderOwed(&h)
	if !owed {
		return 0
	}
	b := &events.RequestHeader{Header: h, Reason: reason}
	if fields := l.State.Departures(b); len(fields) > 0 {
		b.ChangedBy = []events.ConfigChange{{Extension: "test", Fields: fields}}
	}
	return l.Append(b)
}

// prompt gives the header the system prompt and the tools that the session's options set. What is in an object stays there.
func (l *Log) prompt(h *events.Header) {
	o := l.State.Options()
	if system := o.SystemObject; o.System != "" || system != (objects.Ref{}) {
		if h.SystemObject != (objects.Ref{}) && o.System != "" {
			system = l.Object([]byte(o.System), events.TextMediaType)
		}
		if h.System, h.SystemObject = o.System, system; system != (objects.Ref{}) {
			h.System = ""
		}
	}
	if len(o.Tools) == 0 {
		return
	}
	named := func(tools []events.Tool) []events.Tool {
		return slices.DeleteFunc(slices.Clone(tools), func(tool events.Tool) bool { return !slices.Contains(o.Tools, tool.Name) })
	}
	h.Tools = named(h.Tools)
	data, ok := l.Objects.Bytes(h.ToolsObject.Digest)
	tools, err := events.ParseTools(data)
	if !ok || err != nil {
		return
	}
	if data, err = events.AppendTools(nil, named(tools)); err != nil {
		panic(fmt.Errorf("foldtest: %w", err))
	}
	h.ToolsObject = l.Object(data, events.ToolsMediaType)
}

// Context appends request/context for the header in force, when it differs from the last one; otherwise it returns 0.
func (l *Log) Context(window int64) uint64 {
	h, _ := l.State.Header()
	b := &events.RequestContext{Provider: h.Config.Provider, Model: h.Config.Model, ContextWindow: window}
	if last, seq := l.State.Context(); seq > 0 && last == *b {
		return 0
	}
	return l.Append(b)
}

// StreamBody returns the llm/stream that the log calls for.
func (l *Log) StreamBody() *events.LLMStream {
	turn, step := l.at()
	b := &events.LLMStream{Turn: turn, Step: step, Attempt: l.State.Attempt() + 1, Purpose: events.PurposeLoop}
	l.fill(b)
	return b
}

// fill sets what follows from the request that b is for.
func (l *Log) fill(b *events.LLMStream) {
	request, err := l.State.RequestOf(b)
	if err != nil {
		panic(fmt.Errorf("foldtest: %w", err))
	}
	body := l.Body
	if body == nil {
		body = NoBody
	}
	b.Header, b.Surface, b.Objects = request.HeaderSeq, request.Surface, l.State.ObjectsOf(b)
	b.Codec, b.Body = body(&request, l.Objects)
}

// Stream appends llm/stream.
func (l *Log) Stream() uint64 { return l.Append(l.StreamBody()) }

// Chunks appends one assistant/chunk with the chunks given, of the open call.
func (l *Log) Chunks(chunks ...events.Chunk) uint64 {
	b := l.open()
	return l.Append(&events.AssistantChunk{Turn: b.Turn, Step: b.Step, Attempt: b.Attempt, Chunks: chunks})
}

// open returns the llm/stream of the open call, the last one when none is.
func (l *Log) open() *events.LLMStream {
	for _, e := range slices.Backward(l.Events) {
		if b, ok := e.Body.(*events.LLMStream); ok {
			return b
		}
	}
	panic("foldtest: no model call was made")
}

// AnswerBody returns the assistant/message that the open call's chunks add up to, and the events that it cites.
func (l *Log) AnswerBody() (*events.AssistantMessage, Option) {
	_, _, answer, chunks, ok := l.State.OpenCall()
	if !ok {
		panic("foldtest: no model call is open")
	}
	h, _ := l.State.Header()
	turn, step := l.at()
	return &events.AssistantMessage{
		Turn: turn, Step: step,
		Message: events.Message{
			ID: l.messageID(), Role: events.RoleAssistant, Content: answer.Content(),
			Source: events.Source{Kind: events.SourceModel, Provider: h.Config.Provider, Model: h.Config.Model},
		},
		Usage: answer.Usage, UsageReported: answer.UsageReported, Finish: answer.Finish,
		Interrupted: answer.Finish.Kind == events.FinishAborted,
	}, Citing(chunks...)
}

// Answer appends the assistant/message that the open call's chunks add up to.
func (l *Log) Answer() uint64 {
	body, citing := l.AnswerBody()
	return l.Append(body, citing)
}

// Failed appends llm/failed for the open call.
func (l *Log) Failed(code events.FailureCode) uint64 {
	b := l.open()
	return l.Append(&events.LLMFailed{Turn: b.Turn, Step: b.Step, Attempt: b.Attempt, Failure: failure(code)})
}

// Retry appends llm/retry and llm/retry-started.
func (l *Log) Retry() uint64 {
	l.RetryScheduled()
	return l.RetryStarted()
}

// RetryScheduled appends llm/retry for the last call.
func (l *Log) RetryScheduled() uint64 {
	b := l.open()
	return l.Append(&events.LLMRetry{
		Turn: b.Turn, Step: b.Step, RetryID: fmt.Sprintf("retry-%d", l.Len()+1), Retry: b.Attempt, MaxRetries: 10,
		DelayMs: 250 << min(b.Attempt, 6), Failure: failure(events.FailureServer),
	})
}

// RetryStarted appends llm/retry-started for the retry that is scheduled.
func (l *Log) RetryStarted() uint64 {
	r, _, ok := l.State.PendingRetry()
	if !ok {
		panic("foldtest: no retry is scheduled")
	}
	return l.Append(&events.LLMRetryStarted{Turn: r.Turn, Step: r.Step, RetryID: r.RetryID, Retry: r.Retry})
}

func failure(code events.FailureCode) events.Failure {
	return events.Failure{Message: "the call did not succeed", Code: code}
}

// ToolCall appends tool/call for the model's next call.
func (l *Log) ToolCall() uint64 {
	pending := l.State.PendingTools()
	i := slices.IndexFunc(pending, func(p fold.PendingTool) bool { return p.CallSeq == 0 })
	if i < 0 {
		panic("foldtest: the model made no further call")
	}
	turn, step := l.at()
	return l.Append(&events.ToolCall{
		Turn: turn, Step: step, CallID: pending[i].ID, Name: pending[i].Name, Arguments: pending[i].Arguments,
	})
}

// ToolResult appends tool/result for the next call that has none: with the blocks given or, when the call was never
// recorded, as TOOL_NOT_STARTED.
func (l *Log) ToolResult(blocks ...events.Block) uint64 {
	p := l.nextPending()
	if p.CallSeq == 0 {
		return l.ToolError(events.ToolNotStarted)
	}
	return l.Append(l.resultBody(p, events.ToolError{}, blocks), Citing(p.CallSeq))
}

// ToolResultWith is ToolResult for a call that was recorded, with context that extensions add.
func (l *Log) ToolResultWith(contexts []events.AddedContext, blocks ...events.Block) uint64 {
	p := l.nextPending()
	body := l.resultBody(p, events.ToolError{}, blocks)
	body.Contexts = contexts
	return l.Append(body, Citing(p.CallSeq))
}

// ToolError appends a tool/result that is an error for the next call that has none.
func (l *Log) ToolError(code events.ToolErrorCode) uint64 {
	p := l.nextPending()
	body := l.resultBody(p, events.ToolError{Code: code}, textBlocks([]string{"error: " + string(code)}))
	if p.CallSeq == 0 {
		return l.Append(body)
	}
	return l.Append(body, Citing(p.CallSeq))
}

func (l *Log) nextPending() fold.PendingTool {
	pending := l.State.PendingTools()
	if len(pending) == 0 {
		panic("foldtest: every tool call has its result")
	}
	return pending[0]
}

func (l *Log) resultBody(p fold.PendingTool, fault events.ToolError, blocks []events.Block) *events.ToolResult {
	turn, step := l.at()
	return &events.ToolResult{
		Turn: turn, Step: step,
		Message: events.Message{
			ID: l.messageID(), Role: events.RoleUser,
			Content: []events.Block{{
				Type: events.BlockToolResult, ToolCallID: p.ID, Content: blocks, IsError: fault != events.ToolError{},
			}},
			Source: events.Source{Kind: events.SourceTool, CallID: p.ID},
		},
		Error: fault,
	}
}

// Replace appends a user/message in the place of the surface nodes start to end, outside of any compaction.
func (l *Log) Replace(start, end uint64, texts ...string) uint64 {
	source := events.Source{Kind: events.SourcePlugin, Plugin: "editor"}
	body := &events.UserMessage{Message: l.userMessage(source, textBlocks(texts))}
	return l.Append(body, Replacing(start, end), Citing(l.nodes(start, end)...))
}

// nodes returns the surface nodes start to end; nothing when they are no run.
func (l *Log) nodes(start, end uint64) []uint64 {
	nodes := l.State.Nodes()
	lo, hi := slices.Index(nodes, start), slices.Index(nodes, end)
	if lo < 0 || hi < lo {
		return nil
	}
	return nodes[lo : hi+1]
}

// Prune appends compaction/prune and a tool/result in the place of the one that stands at the node.
func (l *Log) Prune(node uint64, blocks ...events.Block) uint64 {
	l.Append(&events.CompactionPrune{
		Region: events.Region{Start: node, End: node}, Shadowed: []uint64{node}, ShadowedTokens: 100,
	})
	return l.Append(l.PrunedBody(node, blocks...), Replacing(node, node), Citing(node))
}

// PrunedBody returns the tool/result of the event at the node with other content.
func (l *Log) PrunedBody(node uint64, blocks ...events.Block) *events.ToolResult {
	b := *l.Events[node-1].Body.(*events.ToolResult)
	b.Message = b.Message.Clone()
	b.Message.Content[0].Content = blocks
	b.Meta, b.Contexts = "", nil
	return &b
}
