package fold_test

import (
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// titling returns l with a call for a title open.
func titling(l *foldtest.Log) *foldtest.Log {
	l.Header(foldtest.Header())
	l.AuxStream(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	return l
}

// compacting has a step with a header and a compaction open, and the region of its two nodes.
func compacting() (*foldtest.Log, events.Region) {
	l := inStep()
	l.User("one")
	l.Inject("two")
	l.Header(foldtest.Header())
	l.CompactionStart(events.CompactionPressure)
	nodes := l.State.Nodes()
	return l, events.Region{Start: nodes[0], End: nodes[1]}
}

// summing is compacting with the call for the summary open, its chunks in.
func summing(finish events.FinishKind) *foldtest.Log {
	l, r := compacting()
	l.AuxStream(events.PurposeCompaction, r, events.Text("Summarise this."))
	chunks := append(foldtest.ReasoningBlock(0, "hm"), foldtest.TextBlock(1, "so ", "far")...)
	l.Chunks(append(chunks, foldtest.UsageChunk(events.Usage{OutputTokens: 3}), foldtest.FinishChunk(finish))...)
	return l
}

// id returns the id of the open compaction.
func id(l *foldtest.Log) string {
	c, _ := l.State.Compaction()
	return c.Start.CompactionID
}

func auxiliary(l *foldtest.Log, purpose events.Purpose, r events.Region, change func(*events.LLMStream)) error {
	b := l.AuxBody(purpose, r, events.Text("Say something."))
	change(b)
	return l.Try(b)
}

func auxiliaryCases() []ruleCase {
	none := func(*events.LLMStream) {}
	region := func(start, end uint64) func(*events.LLMStream) {
		return func(b *events.LLMStream) { b.Auxiliary.Region = events.Region{Start: start, End: end} }
	}
	title := func(l *foldtest.Log, change func(*events.LLMStream)) error {
		return auxiliary(l, events.PurposeTitle, events.Region{}, change)
	}
	summary := func(change func(*events.LLMStream)) error {
		l, r := compacting()
		return auxiliary(l, events.PurposeCompaction, r, change)
	}
	return []ruleCase{
		{fold.RuleStream, "a title in mid-call", func() error { return title(streaming(), none) }},
		{fold.RuleStream, "a title behind the answer", func() error { return title(called(), none) }},
		{fold.RuleStream, "a title of another step", func() error { return title(asked(), func(b *events.LLMStream) { b.Step = 2 }) }},
		{fold.RuleStream, "a title of no turn in an open one", func() error {
			return title(asked(), func(b *events.LLMStream) { b.Turn, b.Step = 0, 0 })
		}},
		{fold.RuleStream, "a title of nodes that do not stand there", func() error { return title(asked(), region(1, 1)) }},
		{fold.RuleStream, "a title of a call without its result", func() error {
			l, nodes := answered()
			l.StepEnd()
			return title(l, region(nodes[0], nodes[2]))
		}},
		{fold.RuleStream, "an attempt for a title left out", func() error {
			return title(asked(), func(b *events.LLMStream) { b.Attempt = 2 })
		}},
		{fold.RuleStream, "an attempt for a title again", func() error {
			l := titling(begun())
			l.Failed(events.FailureServer)
			return title(l, func(b *events.LLMStream) { b.Attempt = 1 })
		}},
		{fold.RuleStream, "a directive's object left out", func() error {
			return title(asked(), func(b *events.LLMStream) {
				b.Auxiliary.Directive = []events.Block{asked().TextObject("a long directive")}
			})
		}},
		{fold.RuleStream, "another surface", func() error { return summary(func(b *events.LLMStream) { b.Surface.Nodes++ }) }},
		{fold.RuleHeader, "a title by an instance without a header", func() error {
			l := asked()
			l.Claimed(events.ClaimTakeover)
			return title(l, none)
		}},
		{fold.RuleFailure, "a title while a retry waits", func() error {
			l := failed()
			l.RetryScheduled()
			return title(l, none)
		}},
		{fold.RuleFailure, "a summary while its retry waits", func() error {
			l := summing(events.FinishStop)
			l.Failed(events.FailureServer)
			l.RetryScheduled()
			c := l.State.Nodes()
			return auxiliary(l, events.PurposeCompaction, events.Region{Start: c[0], End: c[1]}, none)
		}},
		{fold.RuleFailure, "a retry of a title", func() error {
			l := titling(begun())
			l.Failed(events.FailureServer)
			b := retry()
			b.Turn, b.Step = 0, 0
			return l.Try(b)
		}},
		{fold.RuleFailure, "of a title, with the loop's attempt", func() error {
			return titling(asked()).Try(&events.LLMFailed{Turn: 1, Step: 1, Attempt: 2, Failure: events.Failure{Code: events.FailureServer}})
		}},
		{fold.RuleAnswer, "an answer to a title's call", func() error {
			l := failed()
			l.AuxStream(events.PurposeTitle, events.Region{}, events.Text("Name this."))
			l.Chunks(append(foldtest.TextBlock(0, "hi"), foldtest.FinishChunk(events.FinishStop))...)
			return answer(l, func(*events.AssistantMessage) {})
		}},
		{fold.RuleAnswer, "a title before its call finished", func() error { return titling(begun()).Try(&events.SessionTitle{Title: "t"}) }},
		{fold.RuleAnswer, "a title that does not cite its chunks", func() error {
			l := titling(begun())
			l.Chunks(foldtest.FinishChunk(events.FinishStop))
			return l.Try(&events.SessionTitle{Title: "t"})
		}},
		{fold.RuleCompaction, "a title in a compaction", func() error {
			l, _ := compacting()
			return title(l, none)
		}},
		{fold.RuleCompaction, "a summary's call outside of one", func() error {
			return auxiliary(asked(), events.PurposeCompaction, events.Region{}, none)
		}},
		{fold.RuleCompaction, "a summary's call without a region", func() error {
			return summary(func(b *events.LLMStream) { b.Auxiliary.Region = events.Region{} })
		}},
		{fold.RuleCompaction, "a summary's call behind the summary", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			return auxiliary(l, events.PurposeCompaction, r, none)
		}},
	}
}

func compactionCases() []ruleCase {
	inside := func(body events.Body, opts ...foldtest.Option) func() error {
		return func() error {
			l, _ := compacting()
			return l.Try(body, opts...)
		}
	}
	outside := func(body events.Body) func() error {
		return func() error {
			l := begun()
			l.CompactionStart(events.CompactionCommand)
			return l.Try(body)
		}
	}
	end := func(turn int64, outcome events.CompactionOutcome) error {
		l, _ := compacting()
		return l.Try(&events.CompactionEnd{CompactionID: id(l), Turn: turn, Outcome: outcome})
	}
	return []ruleCase{
		{fold.RuleCompaction, "one in another", inside(&events.CompactionStart{CompactionID: "b", Turn: 1})},
		{fold.RuleCompaction, "in mid-call", func() error { return streaming().Try(&events.CompactionStart{CompactionID: "a", Turn: 1}) }},
		{fold.RuleCompaction, "behind the answer", func() error { return called().Try(&events.CompactionStart{CompactionID: "a", Turn: 1}) }},
		{fold.RuleCompaction, "while a retry waits", func() error {
			l := failed()
			l.RetryScheduled()
			return l.Try(&events.CompactionStart{CompactionID: "a", Turn: 1})
		}},
		{fold.RuleCompaction, "of another turn", func() error { return inStep().Try(&events.CompactionStart{CompactionID: "a"}) }},
		{fold.RuleCompaction, "a command in a turn", func() error {
			return inStep().Try(&events.CompactionStart{CompactionID: "a", Turn: 1, Reason: events.CompactionCommand, Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleCompaction, "pressure that claims", func() error {
			return begun().Try(&events.CompactionStart{CompactionID: "a", Reason: events.CompactionPressure, Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleCompaction, "a turn in one", outside(&events.TurnStart{Turn: 1})},
		{fold.RuleCompaction, "a session closed in one", outside(&events.SessionClosed{Reason: "done"})},
		{fold.RuleCompaction, "a turn's end in one", func() error {
			l := begun()
			l.TurnStart()
			l.CompactionStart(events.CompactionPressure)
			return l.Try(&events.TurnEnd{Turn: 1, Kind: events.TurnCompleted})
		}},
		{fold.RuleCompaction, "a step in one", func() error {
			l := begun()
			l.TurnStart()
			l.CompactionStart(events.CompactionPressure)
			return l.Try(&events.StepStart{Turn: 1, Step: 1})
		}},
		{fold.RuleCompaction, "a step's end in one", inside(&events.StepEnd{Turn: 1, Step: 1})},
		{fold.RuleCompaction, "a message in one", inside(claiming(9, events.DeliverySteer))},
		{fold.RuleCompaction, "a loop's call in one", func() error {
			l, _ := compacting()
			return stream(l, func(*events.LLMStream) {})
		}},
		{fold.RuleCompaction, "a result shortened in one", func() error {
			l, nodes := answered()
			l.StepEnd()
			l.CompactionStart(events.CompactionPressure)
			return l.Try(l.PrunedBody(nodes[2]), foldtest.Replacing(nodes[2], nodes[2]), foldtest.Citing(nodes[2]))
		}},
		{fold.RuleCompaction, "the end of another", inside(&events.CompactionEnd{CompactionID: "b", Turn: 1, Outcome: events.CompactionFailed})},
		{fold.RuleCompaction, "the end of none", func() error {
			return begun().Try(&events.CompactionEnd{CompactionID: "b", Outcome: events.CompactionFailed})
		}},
		{fold.RuleCompaction, "the end in mid-call", func() error {
			l := summing(events.FinishStop)
			return l.Try(&events.CompactionEnd{CompactionID: id(l), Turn: 1, Outcome: events.CompactionFailed})
		}},
		{fold.RuleCompaction, "the end in another turn", func() error { return end(0, events.CompactionFailed) }},
		{fold.RuleCompaction, "completed without a summary in place", func() error { return end(1, events.CompactionCompleted) }},
		{fold.RuleCompaction, "failed with its summary in place", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			l.PutSummary()
			return l.Try(&events.CompactionEnd{CompactionID: id(l), Turn: 1, Outcome: events.CompactionFailed})
		}},
	}
}

func summaryCases() []ruleCase {
	free := func(change func(*events.CompactionSummary)) error {
		l, r := compacting()
		b := &events.CompactionSummary{CompactionID: id(l), Region: r, Shadowed: l.State.Nodes()}
		change(b)
		return l.Try(b)
	}
	called := func(l *foldtest.Log, change func(*events.CompactionSummary), opts ...foldtest.Option) error {
		body, citing := l.SummaryBody()
		change(body)
		return l.Try(body, append([]foldtest.Option{citing}, opts...)...)
	}
	changed := func(change func(*events.CompactionSummary)) error { return called(summing(events.FinishStop), change) }
	put := func(change func(*events.UserMessage), opts ...foldtest.Option) error {
		l, r := compacting()
		l.Summary(r.Start, r.End, "so far")
		body, citing, replacing := l.PutBody()
		change(body)
		return l.Try(body, append([]foldtest.Option{citing, replacing}, opts...)...)
	}
	return []ruleCase{
		{fold.RuleCompaction, "the summary of none", func() error {
			return begun().Try(&events.CompactionSummary{CompactionID: "a", Region: events.Region{Start: 1, End: 1}})
		}},
		{fold.RuleCompaction, "the summary of another", func() error {
			return free(func(b *events.CompactionSummary) { b.CompactionID = "another" })
		}},
		{fold.RuleCompaction, "a second summary", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			return l.Try(&events.CompactionSummary{CompactionID: id(l), Region: r, Shadowed: l.State.Nodes()})
		}},
		{fold.RuleCompaction, "a summary of nodes that do not stand there", func() error {
			return free(func(b *events.CompactionSummary) { b.Region.Start = 1 })
		}},
		{fold.RuleCompaction, "a summary that lists too little", func() error {
			return free(func(b *events.CompactionSummary) { b.Shadowed = b.Shadowed[:1] })
		}},
		{fold.RuleAnswer, "a summary behind a failed call", func() error {
			l := summing(events.FinishStop)
			body, citing := l.SummaryBody()
			l.Failed(events.FailureServer)
			return l.Try(body, citing)
		}},
		{fold.RuleAnswer, "a summary that was cut off", func() error {
			return called(summing(events.FinishMaxTokens), func(*events.CompactionSummary) {})
		}},
		{fold.RuleAnswer, "a summary before the finish", func() error {
			l, r := compacting()
			l.AuxStream(events.PurposeCompaction, r)
			return called(l, func(*events.CompactionSummary) {})
		}},
		{fold.RuleAnswer, "a summary that does not cite its chunks", func() error {
			return called(summing(events.FinishStop), func(*events.CompactionSummary) {}, foldtest.Citing(1))
		}},
		{fold.RuleAnswer, "a summary of another region", func() error {
			return changed(func(b *events.CompactionSummary) { b.Region.End, b.Shadowed = b.Region.Start, b.Shadowed[:1] })
		}},
		{fold.RuleAnswer, "a summary by another provider", func() error {
			return changed(func(b *events.CompactionSummary) { b.Provider = "another" })
		}},
		{fold.RuleAnswer, "a summary by another model", func() error {
			return changed(func(b *events.CompactionSummary) { b.Model = "another" })
		}},
		{fold.RuleAnswer, "a summary with another limit", func() error { return changed(func(b *events.CompactionSummary) { b.MaxTokens++ }) }},
		{fold.RuleAnswer, "a summary with another usage", func() error {
			return changed(func(b *events.CompactionSummary) { b.Usage.OutputTokens++ })
		}},
		{fold.RuleAnswer, "a summary without its usage", func() error {
			return changed(func(b *events.CompactionSummary) { b.UsageReported, b.Usage = false, events.Usage{} })
		}},
		{fold.RuleAnswer, "a summary with other text", func() error {
			return changed(func(b *events.CompactionSummary) { b.Summary[0].Text = "so near" })
		}},
		{fold.RuleCompaction, "put in place outside of one", func() error {
			l := asked()
			node := l.State.Nodes()[0]
			b := userBody("summary")
			b.Message.Source = events.Source{Kind: events.SourcePlugin, Plugin: "compact", CompactionID: "c"}
			return l.Try(b, foldtest.Replacing(node, node), foldtest.Citing(node))
		}},
		{fold.RuleCompaction, "put in place for another", func() error {
			return put(func(b *events.UserMessage) { b.Message.Source.CompactionID = "another" })
		}},
		{fold.RuleCompaction, "put in place for none", func() error {
			return put(func(b *events.UserMessage) { b.Message.Source.CompactionID = "" })
		}},
		{fold.RuleCompaction, "put in place of less", func() error {
			return put(func(*events.UserMessage) {}, func(e *events.Event) { e.Surface.Region.End = e.Surface.Region.Start })
		}},
		{fold.RuleCompaction, "put in place without citing the summary", func() error {
			return put(func(*events.UserMessage) {}, func(e *events.Event) { e.Sources = append(e.Sources[:1:1], e.Sources[2:]...) })
		}},
		{fold.RuleCompaction, "put in place without citing the start", func() error {
			return put(func(*events.UserMessage) {}, func(e *events.Event) { e.Sources = e.Sources[1:] })
		}},
		{fold.RuleCompaction, "put in place twice", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			node := l.PutSummary()
			c, _ := l.State.Compaction()
			b := userBody("again")
			b.Message.Source = events.Source{Kind: events.SourcePlugin, Plugin: "compact", CompactionID: c.Start.CompactionID}
			return l.Try(b, foldtest.Replacing(node, node), foldtest.Citing(node, c.StartSeq, c.SummarySeq))
		}},
		{fold.RuleCompaction, "put in place without a summary", func() error {
			l, r := compacting()
			b := userBody("summary")
			b.Message.Source = events.Source{Kind: events.SourcePlugin, Plugin: "compact", CompactionID: id(l)}
			return l.Try(b, foldtest.Replacing(r.Start, r.End), foldtest.Citing(r.Start, r.End))
		}},
	}
}

func unsupportedCases() []ruleCase {
	return []ruleCase{
		{fold.RuleUnsupported, "a type that the fold has not heard of", func() error {
			return begun().Try(struct{ events.Body }{&events.TurnStart{Turn: 1}})
		}},
	}
}
