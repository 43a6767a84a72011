package fold_test

import (
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

func placeCases() []ruleCase {
	claimed := &events.LoopClaimed{Worker: "w", Instance: foldtest.ID(1, 1), Reason: events.ClaimCreated}
	move := func(seq uint64) foldtest.Option { return func(e *events.Event) { e.Seq = seq } }
	forked := func() *foldtest.Log {
		l := begun()
		l.Turn("a", "b")
		return l
	}
	// seeded has created with a seed of n events, one of which is copied.
	seeded := func(n uint64) *foldtest.Log {
		l := foldtest.New()
		l.Append(&events.SessionCreated{SeedLength: n})
		l.Claimed(events.ClaimCreated)
		return l
	}
	return []ruleCase{
		{fold.RuleSealed, "made by hand", func() error {
			return fold.New(foldtest.SessionID).Apply(&events.Event{Seq: 1, Body: new(events.SessionCreated)})
		}},
		{fold.RuleSealed, "nothing at all", func() error { return fold.New(foldtest.SessionID).Apply(new(events.Event)) }},
		{fold.RuleSequence, "a gap", func() error { return begun().Try(&events.TurnStart{Turn: 1}, move(4)) }},
		{fold.RuleSequence, "the same again", func() error { return begun().Try(&events.TurnStart{Turn: 1}, move(2)) }},
		{fold.RuleChain, "another predecessor", func() error {
			return begun().Try(&events.TurnStart{Turn: 1}, func(e *events.Event) { e.Prev[0] ^= 1 })
		}},
		{fold.RuleChain, "a first event with a predecessor", func() error {
			return foldtest.New().Try(new(events.SessionCreated), func(e *events.Event) { e.Prev[0] = 1 })
		}},
		{fold.RuleFirst, "something else first", func() error { return foldtest.New().Try(claimed) }},
		{fold.RuleFirst, "another session's log", func() error {
			return foldtest.New().Try(&events.SessionCreated{Session: foldtest.ID(1, 7)})
		}},
		{fold.RuleFirst, "created again", func() error { return begun().Try(new(events.SessionCreated)) }},
		{fold.RuleSeed, "not a fork", func() error { return begun().Try(new(events.SessionEndSeed)) }},
		{fold.RuleSeed, "missing", func() error { return seeded(1).Try(&events.TurnStart{Turn: 1}) }},
		{fold.RuleSeed, "in a fork", func() error {
			l := forked()
			return l.Fork(int(l.Len())).Try(new(events.SessionEndSeed))
		}},
		{fold.RuleSeed, "a copy that ends in a turn", func() error { return copies(forked(), 5, nil) }},
		{fold.RuleSeed, "a copy that closed the session", func() error {
			l := forked()
			return copies(l, int(l.Closed("done")), nil)
		}},
		{fold.RuleSeed, "another chain", func() error {
			l := forked()
			return copies(l, int(l.Len()), func(p *events.Parent) { p.Chain[0] ^= 1 })
		}},
		{fold.RuleSeed, "another first event", func() error {
			l := forked()
			return copies(l, int(l.Len()), func(p *events.Parent) { p.First[0] ^= 1 })
		}},
		{fold.RuleSeed, "another length", func() error {
			l := forked()
			return copies(l, int(l.Len()), func(p *events.Parent) { p.Seq-- })
		}},
		{fold.RuleSeed, "nothing copied, and another chain", func() error {
			return copies(forked(), 1, func(p *events.Parent) { p.Chain[0] ^= 1 })
		}},
		{fold.RuleClaim, "nobody", func() error {
			l := foldtest.New()
			l.Created(events.Options{})
			return l.Try(&events.TurnStart{Turn: 1})
		}},
		{fold.RuleClaim, "in a fork", func() error {
			l := forked()
			return l.Fork(int(l.Len())).Try(&events.TurnStart{Turn: 2})
		}},
		{fold.RuleClosed, "a turn after it", func() error {
			l := begun()
			l.Closed("done")
			return l.Try(&events.TurnStart{Turn: 1})
		}},
		{fold.RuleClosed, "a claim after it", func() error {
			l := begun()
			l.Closed("done")
			return l.Try(claimed)
		}},
		{fold.RuleClosed, "in a title's call", func() error {
			l := titling(begun())
			return l.Try(&events.SessionClosed{Reason: "done"})
		}},
		{fold.RuleClosed, "in an open turn", func() error { return inStep().Try(&events.SessionClosed{Reason: "done"}) }},
	}
}

// copies folds a fork of the first n events of l, with the parent changed if change is not nil, and returns what the fold
// says to the last of them.
func copies(l *foldtest.Log, n int, change func(*events.Parent)) error {
	return copiesOf(l, l.Events[:n], change)
}

// copiesOf is copies for a log that is said to be the first events of l.
func copiesOf(l *foldtest.Log, log []events.Event, change func(*events.Parent)) error {
	n := len(log)
	parent := l.Prefix(n)
	first, _ := l.Events[0].Hash()
	created := events.SessionCreated{SeedLength: uint64(n - 1)}
	created.Parent = events.Parent{ID: l.State.ID(), Seq: uint64(n), Chain: parent.State.Head(), First: first}
	if change != nil {
		change(&created.Parent)
	}
	f := foldtest.New()
	if n == 1 {
		return f.Try(&created)
	}
	f.Append(&created)
	for i, e := range log[1:] {
		as := func(c *events.Event) {
			c.ID, c.Time, c.Surface, c.Sources, c.Ignorable = e.ID, e.Time, e.Surface, e.Sources, e.Ignorable
		}
		if i == n-2 {
			return f.Try(e.Body, as)
		}
		f.Append(e.Body, as)
	}
	return nil
}

func turnCases() []ruleCase {
	return []ruleCase{
		{fold.RuleTurn, "the first is not 1", func() error { return begun().Try(&events.TurnStart{Turn: 2}) }},
		{fold.RuleTurn, "one in another", func() error { return inStep().Try(&events.TurnStart{Turn: 2}) }},
		{fold.RuleTurn, "end of none", func() error { return begun().Try(&events.TurnEnd{Turn: 1, Kind: events.TurnCompleted}) }},
		{fold.RuleTurn, "end of another", func() error {
			l := begun()
			l.TurnStart()
			return l.Try(&events.TurnEnd{Turn: 2, Kind: events.TurnCompleted})
		}},
		{fold.RuleTurn, "end in an open step", func() error {
			return inStep().Try(&events.TurnEnd{Turn: 1, Kind: events.TurnCompleted})
		}},
		{fold.RuleTurn, "in a title's call", func() error { return titling(begun()).Try(&events.TurnStart{Turn: 1}) }},
		{fold.RuleTurn, "end in a title's call", func() error {
			l := begun()
			l.TurnStart()
			return titling(l).Try(&events.TurnEnd{Turn: 1, Kind: events.TurnCompleted})
		}},
		{fold.RuleStep, "in a title's call", func() error {
			l := begun()
			l.TurnStart()
			return titling(l).Try(&events.StepStart{Turn: 1, Step: 1})
		}},
		{fold.RuleStep, "outside of a turn", func() error { return begun().Try(&events.StepStart{Turn: 1, Step: 1}) }},
		{fold.RuleStep, "one in another", func() error { return inStep().Try(&events.StepStart{Turn: 1, Step: 2}) }},
		{fold.RuleStep, "a number left out", func() error {
			l := begun()
			l.TurnStart()
			return l.Try(&events.StepStart{Turn: 1, Step: 2})
		}},
		{fold.RuleStep, "of another turn", func() error {
			l := begun()
			l.TurnStart()
			return l.Try(&events.StepStart{Turn: 2, Step: 1})
		}},
		{fold.RuleStep, "end of another", func() error { return inStep().Try(&events.StepEnd{Turn: 1, Step: 2}) }},
		{fold.RuleStep, "end in mid-call", func() error { return streaming().Try(&events.StepEnd{Turn: 1, Step: 1}) }},
		{fold.RuleMessage, "outside of a step", func() error { return begun().Try(userBody("x")) }},
		{fold.RuleMessage, "in mid-call", func() error { return streaming().Try(userBody("x")) }},
		{fold.RuleMessage, "behind a failed call", func() error { return failed().Try(userBody("x")) }},
		{fold.RuleMessage, "behind the answer", func() error { return called().Try(userBody("x")) }},
	}
}

func requestCases() []ruleCase {
	return []ruleCase{
		{fold.RuleHeader, "in mid-call", func() error { return header(streaming(), events.HeaderChange) }},
		{fold.RuleHeader, "behind the answer", func() error { return header(called(), events.HeaderChange) }},
		{fold.RuleHeader, "the first is no resume", func() error { return header(inStep(), events.HeaderResume) }},
		{fold.RuleHeader, "the first is no change", func() error { return header(inStep(), events.HeaderChange) }},
		{fold.RuleHeader, "a second initial", func() error {
			l := asked()
			l.Claimed(events.ClaimTakeover)
			return header(l, events.HeaderInitial)
		}},
		{fold.RuleHeader, "a change by a new instance", func() error {
			l := asked()
			l.Claimed(events.ClaimTakeover)
			return header(l, events.HeaderChange)
		}},
		{fold.RuleHeader, "a change that changes nothing", func() error { return header(asked(), events.HeaderChange) }},
		{fold.RuleHeader, "a second resume", func() error {
			l := asked()
			l.Claimed(events.ClaimTakeover)
			l.Header(foldtest.Header())
			return header(l, events.HeaderResume)
		}},
		{fold.RuleHeader, "a request without one", func() error {
			return inStep().Try(&events.LLMStream{Turn: 1, Step: 1, Attempt: 1, Purpose: events.PurposeLoop, Codec: "none/1"})
		}},
		{fold.RuleHeader, "a new instance's request without one", func() error {
			l := asked()
			l.Claimed(events.ClaimTakeover)
			return l.Try(l.StreamBody())
		}},
		{fold.RuleContext, "before any header", func() error {
			return inStep().Try(&events.RequestContext{Provider: "deepseek", Model: "deepseek-chat"})
		}},
		{fold.RuleContext, "of another model", func() error {
			return asked().Try(&events.RequestContext{Provider: "deepseek", Model: "another"})
		}},
		{fold.RuleContext, "the same again", func() error {
			l := asked()
			l.Context(1000)
			return l.Try(&events.RequestContext{Provider: "deepseek", Model: "deepseek-chat", ContextWindow: 1000})
		}},
		{fold.RuleContext, "in mid-call", func() error {
			return streaming().Try(&events.RequestContext{Provider: "deepseek", Model: "deepseek-chat"})
		}},
		{fold.RuleStream, "outside of a step", func() error {
			l := asked()
			b := l.StreamBody()
			l.StepEnd()
			return l.Try(b)
		}},
		{fold.RuleStream, "in mid-call", func() error { return stream(streaming(), func(*events.LLMStream) {}) }},
		{fold.RuleStream, "behind the answer", func() error { return stream(called(), func(*events.LLMStream) {}) }},
		{fold.RuleStream, "another step", func() error { return stream(asked(), func(b *events.LLMStream) { b.Step = 2 }) }},
		{fold.RuleStream, "an attempt left out", func() error { return stream(asked(), func(b *events.LLMStream) { b.Attempt = 2 }) }},
		{fold.RuleStream, "an attempt again", func() error { return stream(failed(), func(b *events.LLMStream) { b.Attempt = 1 }) }},
		{fold.RuleStream, "another header", func() error { return stream(asked(), func(b *events.LLMStream) { b.Header-- }) }},
		{fold.RuleStream, "fewer nodes", func() error { return stream(asked(), func(b *events.LLMStream) { b.Surface.Nodes-- }) }},
		{fold.RuleStream, "another last node", func() error { return stream(asked(), func(b *events.LLMStream) { b.Surface.Last-- }) }},
		{fold.RuleStream, "another generation", func() error { return stream(asked(), func(b *events.LLMStream) { b.Surface.Generation++ }) }},
		{fold.RuleStream, "an object that nobody named", func() error {
			l := asked()
			ref := l.Object([]byte("x"), "text/plain")
			return stream(l, func(b *events.LLMStream) { b.Objects = append(b.Objects, ref) })
		}},
		{fold.RuleStream, "an object left out", func() error {
			l := inStep()
			l.UserBlocks(l.TextObject("x"))
			l.Header(foldtest.Header())
			return stream(l, func(b *events.LLMStream) { b.Objects = nil })
		}},
	}
}

func callCases() []ruleCase {
	text := foldtest.TextBlock(0, "hi")
	none := func(*events.AssistantMessage) {}
	return []ruleCase{
		{fold.RuleChunk, "without a call", func() error { return asked().Try(chunkBody(text...)) }},
		{fold.RuleChunk, "of another attempt", func() error {
			l := failed()
			l.Stream()
			return l.Try(chunkBody(text...))
		}},
		{fold.RuleChunk, "behind the finish", func() error { return finished().Try(chunkBody(foldtest.UsageChunk(events.Usage{}))) }},
		{fold.RuleChunk, "a delta without a block", func() error { return streaming().Try(chunkBody(text[1:]...)) }},
		{fold.RuleAnswer, "without a call", func() error {
			l := finished()
			b, citing := l.AnswerBody()
			l.Answer()
			return l.Try(b, citing)
		}},
		{fold.RuleAnswer, "no finish", func() error {
			l := streaming()
			l.Chunks(text...)
			return answer(l, func(b *events.AssistantMessage) { b.Finish.Kind = events.FinishStop })
		}},
		{fold.RuleAnswer, "another step", func() error { return answer(finished(), func(b *events.AssistantMessage) { b.Step = 2 }) }},
		{fold.RuleAnswer, "other text", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.Message.Content[0].Text = "ho" })
		}},
		{fold.RuleAnswer, "a block left out", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.Message.Content = nil })
		}},
		{fold.RuleAnswer, "chunks not cited", func() error { return answer(finished(), none, foldtest.Citing()) }},
		{fold.RuleAnswer, "something else cited too", func() error {
			l := finished()
			_, _, _, chunks, _ := l.State.OpenCall()
			return answer(l, none, foldtest.Citing(append([]uint64{1}, chunks...)...))
		}},
		{fold.RuleAnswer, "chunks of the failed attempt cited", func() error {
			l := streaming()
			first := l.Chunks(text[0])
			l.Failed(events.FailureServer)
			l.Stream()
			second := l.Chunks(append(text, foldtest.FinishChunk(events.FinishStop))...)
			return answer(l, none, foldtest.Citing(first, second))
		}},
		{fold.RuleAnswer, "another finish", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.Finish.Kind = events.FinishMaxTokens })
		}},
		{fold.RuleAnswer, "interrupted though it was not", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.Interrupted = true })
		}},
		{fold.RuleAnswer, "usage that nobody reported", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.UsageReported = true })
		}},
		{fold.RuleAnswer, "the usage before the last", func() error {
			l := streaming()
			first := events.Usage{OutputTokens: 1}
			l.Chunks(foldtest.UsageChunk(first), foldtest.UsageChunk(events.Usage{OutputTokens: 2}), foldtest.FinishChunk(events.FinishStop))
			return answer(l, func(b *events.AssistantMessage) { b.Usage = first })
		}},
		{fold.RuleAnswer, "another model", func() error {
			return answer(finished(), func(b *events.AssistantMessage) { b.Message.Source.Model = "another" })
		}},
		{fold.RuleFailure, "without a call", func() error {
			return asked().Try(&events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: events.Failure{Code: events.FailureServer}})
		}},
		{fold.RuleFailure, "of another attempt", func() error {
			return streaming().Try(&events.LLMFailed{Turn: 1, Step: 1, Attempt: 2, Failure: events.Failure{Code: events.FailureServer}})
		}},
		{fold.RuleFailure, "a retry of nothing", func() error { return asked().Try(retry()) }},
		{fold.RuleFailure, "a retry in mid-call", func() error { return streaming().Try(retry()) }},
		{fold.RuleFailure, "a retry behind the answer", func() error {
			return called().Try(&events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "r", Retry: 1})
		}},
		{fold.RuleFailure, "a retry outside of a step", func() error { return begun().Try(retry()) }},
		{fold.RuleFailure, "a retry of another step", func() error {
			b := retry()
			b.Step = 2
			return failed().Try(b)
		}},
		{fold.RuleFailure, "a second retry", func() error {
			l := failed()
			l.RetryScheduled()
			return l.Try(retry())
		}},
		{fold.RuleFailure, "a retry that nobody scheduled", func() error {
			return failed().Try(&events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "r", Retry: 1})
		}},
		{fold.RuleFailure, "another retry than the one scheduled", func() error {
			l := failed()
			l.Append(retry())
			return l.Try(&events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "s", Retry: 1})
		}},
		{fold.RuleFailure, "another number than the one scheduled", func() error {
			l := failed()
			l.Append(retry())
			return l.Try(&events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "r", Retry: 2})
		}},
		{fold.RuleFailure, "a call before the retry starts", func() error {
			l := failed()
			l.RetryScheduled()
			return stream(l, func(*events.LLMStream) {})
		}},
	}
}

func retry() *events.LLMRetry {
	return &events.LLMRetry{Turn: 1, Step: 1, RetryID: "r", Retry: 1, Failure: events.Failure{Code: events.FailureServer}}
}

func toolCases() []ruleCase {
	first := func(change func(*events.ToolCall)) *events.ToolCall {
		b := &events.ToolCall{Turn: 1, Step: 1, CallID: "call-1", Name: "read", Arguments: `{"path":"a"}`}
		change(b)
		return b
	}
	return []ruleCase{
		{fold.RuleCall, "before the answer", func() error { return finished().Try(first(func(*events.ToolCall) {})) }},
		{fold.RuleCall, "out of order", func() error {
			return called().Try(&events.ToolCall{Turn: 1, Step: 1, CallID: "call-2", Name: "list", Arguments: "{}"})
		}},
		{fold.RuleCall, "another step", func() error { return called().Try(first(func(b *events.ToolCall) { b.Step = 2 })) }},
		{fold.RuleCall, "another tool", func() error { return called().Try(first(func(b *events.ToolCall) { b.Name = "write" })) }},
		{fold.RuleCall, "other arguments", func() error {
			return called().Try(first(func(b *events.ToolCall) { b.Arguments = `{"path": "a"}` }))
		}},
		{fold.RuleCall, "twice", func() error {
			l := called()
			l.ToolCall()
			l.ToolCall()
			return l.Try(first(func(*events.ToolCall) {}))
		}},
		{fold.RuleCall, "two with one id", func() error {
			l := asked()
			l.Stream()
			l.Chunks(append(append(foldtest.CallBlock(0, "c", "read", "1"), foldtest.CallBlock(1, "c", "read", "2")...),
				foldtest.FinishChunk(events.FinishToolCalls))...)
			return answer(l, func(*events.AssistantMessage) {})
		}},
		{fold.RuleResult, "of nothing", func() error { return asked().Try(resultBody("call-1", "")) }},
		{fold.RuleResult, "another step", func() error {
			l := called()
			b := resultBody("call-1", "")
			b.Step = 2
			return l.Try(b, foldtest.Citing(l.ToolCall()))
		}},
		{fold.RuleResult, "out of order", func() error {
			l := called()
			l.ToolCall()
			return l.Try(resultBody("call-2", ""), foldtest.Citing(l.ToolCall()))
		}},
		{fold.RuleResult, "of a call that was not recorded", func() error { return called().Try(resultBody("call-1", "")) }},
		{fold.RuleResult, "without citing its call", func() error {
			l := called()
			l.ToolCall()
			return l.Try(resultBody("call-1", ""))
		}},
		{fold.RuleResult, "not started, but citing", func() error {
			return called().Try(resultBody("call-1", events.ToolNotStarted), foldtest.Citing(1))
		}},
		{fold.RuleResult, "twice", func() error {
			l, _ := answered()
			return l.Try(resultBody("call-1", ""))
		}},
		{fold.RuleResult, "a source that is no tool", func() error {
			l := called()
			b := resultBody("call-1", "")
			b.Message.Source = events.Source{Kind: events.SourceUser}
			return l.Try(b, foldtest.Citing(l.ToolCall()))
		}},
		{fold.RuleResult, "missing at the step's end", func() error {
			l := called()
			l.ToolCall()
			return l.Try(&events.StepEnd{Turn: 1, Step: 1})
		}},
	}
}

// replace tries a user message in the place of the nodes from..to of answered, citing those nodes.
func replace(from, to int, cite ...int) error {
	l, nodes := answered()
	var cited []uint64
	for _, i := range cite {
		cited = append(cited, nodes[i])
	}
	return l.Try(userBody("summary"), foldtest.Replacing(nodes[from], nodes[to]), foldtest.Citing(cited...))
}

func prune(change func(*events.ToolResult)) error {
	l, nodes := answered()
	b := l.PrunedBody(nodes[2], events.Text("short"))
	change(b)
	return l.Try(b, foldtest.Replacing(nodes[2], nodes[2]), foldtest.Citing(nodes[2]))
}

func surfaceCases() []ruleCase {
	return []ruleCase{
		{fold.RuleReplace, "nodes that do not stand there", func() error {
			return asked().Try(userBody("summary"), foldtest.Replacing(1, 1), foldtest.Citing(1))
		}},
		{fold.RuleReplace, "the end before the start", func() error { return replace(3, 0, 0, 1, 2, 3) }},
		{fold.RuleReplace, "a node not cited", func() error { return replace(0, 3, 0, 1, 3) }},
		{fold.RuleReplace, "calls without their results", func() error { return replace(0, 2, 0, 1, 2) }},
		{fold.RuleReplace, "results without their calls", func() error { return replace(2, 3, 2, 3) }},
		{fold.RuleReplace, "a call that waits for its result", func() error {
			l := called()
			nodes := l.State.Nodes()
			return l.Try(userBody("summary"), foldtest.Replacing(nodes[1], nodes[1]), foldtest.Citing(nodes[1]))
		}},
		{fold.RuleReplace, "in mid-call", func() error {
			l := streaming()
			node := l.State.Nodes()[0]
			return l.Try(userBody("summary"), foldtest.Replacing(node, node), foldtest.Citing(node))
		}},
		{fold.RuleReplace, "by an answer", func() error {
			l := finished()
			node := l.State.Nodes()[0]
			return answer(l, func(*events.AssistantMessage) {}, foldtest.Replacing(node, node))
		}},
		{fold.RuleReplace, "two results by one", func() error {
			l, nodes := answered()
			b := l.PrunedBody(nodes[2], events.Text("short"))
			return l.Try(b, foldtest.Replacing(nodes[2], nodes[3]), foldtest.Citing(nodes[2:]...))
		}},
		{fold.RuleReplace, "a question by a result", func() error {
			l, nodes := answered()
			b := l.PrunedBody(nodes[2], events.Text("short"))
			return l.Try(b, foldtest.Replacing(nodes[0], nodes[0]), foldtest.Citing(nodes[0]))
		}},
		{fold.RuleReplace, "another message id", func() error { return prune(func(b *events.ToolResult) { b.Message.ID = "x" }) }},
		{fold.RuleReplace, "another call", func() error {
			return prune(func(b *events.ToolResult) {
				b.Message.Content[0].ToolCallID, b.Message.Source.CallID = "call-2", "call-2"
			})
		}},
		{fold.RuleReplace, "an error now", func() error {
			return prune(func(b *events.ToolResult) { b.Message.Content[0].IsError = true })
		}},
		{fold.RuleReplace, "another error", func() error {
			return prune(func(b *events.ToolResult) { b.Error.Code = events.ToolFailed })
		}},
		{fold.RuleReplace, "another step", func() error { return prune(func(b *events.ToolResult) { b.Step = 2 }) }},
		{fold.RuleReplace, "a shortened result that adds context", func() error {
			return prune(func(b *events.ToolResult) { b.Contexts = []events.AddedContext{{Plugin: "p", Text: "t"}} })
		}},
	}
}
