package fold_test

import (
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// claiming returns a user message that claims the input at the place.
func claiming(seq uint64, delivery events.Delivery) *events.UserMessage {
	b := userBody("x")
	b.InboxSeq, b.Delivery, b.Message.ID = seq, delivery, string(foldtest.ClaimAt(seq).InputID)
	return b
}

func inputCases() []ruleCase {
	return []ruleCase{
		{fold.RuleInput, "the same input twice", func() error { return asked().Try(claiming(1, events.DeliverySteer)) }},
		{fold.RuleInput, "the same id twice", func() error {
			b := claiming(2, events.DeliverySteer)
			b.Message.ID = string(foldtest.ClaimAt(1).InputID)
			return asked().Try(b)
		}},
		{fold.RuleInput, "a message without its input's id", func() error {
			b := claiming(1, events.DeliverySteer)
			b.Message.ID = "message-5"
			return inStep().Try(b)
		}},
		{fold.RuleInput, "a steer passed over", func() error {
			l := asked()
			l.Append(claiming(9, events.DeliveryInject))
			return l.Try(claiming(8, events.DeliverySteer))
		}},
		{fold.RuleInput, "a prompt passed over", func() error {
			l := begun()
			l.Append(&events.SessionConfigured{Claim: foldtest.ClaimAt(9)})
			l.TurnStart()
			l.StepStart()
			return l.Try(claiming(8, events.DeliveryPrompt))
		}},
		{fold.RuleInput, "configured by an old input", func() error {
			return asked().Try(&events.SessionConfigured{Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleInput, "closed by an old input", func() error {
			l := begun()
			l.Configured(events.Options{Model: "m"})
			return l.Try(&events.SessionClosed{Reason: "done", Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleInput, "compacted by an old input", func() error {
			l := begun()
			l.Configured(events.Options{Model: "m"})
			return l.Try(&events.CompactionStart{CompactionID: "c", Reason: events.CompactionCommand, Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleInput, "a cancel twice", func() error {
			l := begun()
			l.Cancel("user", false)
			return l.Try(&events.TurnCancelled{Cause: "user", Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleInput, "dropped though it entered", func() error {
			return asked().Try(&events.InputDropped{Claim: foldtest.ClaimAt(1), Kind: events.InputPrompt})
		}},
		{fold.RuleInput, "entered though it was dropped", func() error {
			l := inStep()
			l.Dropped(events.InputPrompt, "rejected")
			return l.Try(claiming(1, events.DeliveryPrompt))
		}},
		{fold.RuleInput, "configured in mid-call", func() error {
			return streaming().Try(&events.SessionConfigured{Claim: foldtest.ClaimAt(2)})
		}},
		{fold.RuleInput, "a replacement that claims", func() error {
			l, nodes := answered()
			return l.Try(claiming(2, events.DeliverySteer), foldtest.Replacing(nodes[0], nodes[0]), foldtest.Citing(nodes[0]))
		}},
		{fold.RuleInput, "older than the cancel that dropped it", func() error {
			l := begun()
			l.Append(&events.TurnCancelled{Cause: "user", Claim: foldtest.ClaimAt(9)})
			l.TurnStart()
			l.StepStart()
			return l.Try(claiming(8, events.DeliverySteer))
		}},
		{fold.RuleMessage, "a second prompt", func() error { return asked().Try(claiming(2, events.DeliveryPrompt)) }},
		{fold.RuleMessage, "a prompt in a later step", func() error {
			l := inStep()
			l.StepEnd()
			l.StepStart()
			return l.Try(claiming(1, events.DeliveryPrompt))
		}},
	}
}

// stopped returns l with its turn cancelled.
func stopped(l *foldtest.Log) *foldtest.Log {
	l.Cancel("user", false)
	return l
}

func cancelCases() []ruleCase {
	between := func() *foldtest.Log {
		l := begun()
		l.TurnStart()
		return l
	}
	return []ruleCase{
		{fold.RuleCancel, "of a turn that is not open", func() error {
			return begun().Try(&events.TurnCancelled{Turn: 1, Claim: foldtest.ClaimAt(1)})
		}},
		{fold.RuleCancel, "of no turn in an open one", func() error { return inStep().Try(&events.TurnCancelled{Claim: foldtest.ClaimAt(1)}) }},
		{fold.RuleCancel, "a step behind it", func() error { return stopped(between()).Try(&events.StepStart{Turn: 1, Step: 1}) }},
		{fold.RuleCancel, "a message behind it", func() error { return stopped(inStep()).Try(claiming(7, events.DeliverySteer)) }},
		{fold.RuleCancel, "a header behind it", func() error { return header(stopped(inStep()), events.HeaderInitial) }},
		{fold.RuleCancel, "a context behind it", func() error {
			return stopped(asked()).Try(&events.RequestContext{Provider: "deepseek", Model: "deepseek-chat"})
		}},
		{fold.RuleCancel, "images behind it", func() error {
			return stopped(asked()).Try(&events.RequestImages{Images: []events.ImageShown{foldtest.Placeholder(objects.Digest{1}, "x")}})
		}},
		{fold.RuleCancel, "a call behind it", func() error { return stream(stopped(asked()), func(*events.LLMStream) {}) }},
		{fold.RuleCancel, "a title's call behind it", func() error {
			l := stopped(asked())
			return l.Try(l.AuxBody(events.PurposeTitle, events.Region{}))
		}},
		{fold.RuleCancel, "a retry behind it", func() error { return stopped(failed()).Try(retry()) }},
		{fold.RuleCancel, "a retry that starts behind it", func() error {
			l := failed()
			l.Append(retry())
			return stopped(l).Try(&events.LLMRetryStarted{Turn: 1, Step: 1, RetryID: "r", Retry: 1})
		}},
		{fold.RuleCancel, "a tool behind it", func() error {
			return stopped(called()).Try(&events.ToolCall{Turn: 1, Step: 1, CallID: "call-1", Name: "read", Arguments: `{"path":"a"}`})
		}},
		{fold.RuleCancel, "a compaction behind it", func() error {
			return stopped(inStep()).Try(&events.CompactionStart{CompactionID: "c", Turn: 1})
		}},
		{fold.RuleCancel, "a turn that ends as if nothing had happened", func() error {
			return stopped(between()).Try(&events.TurnEnd{Turn: 1, Kind: events.TurnCompleted})
		}},
		{fold.RuleCancel, "a turn that ends with another cause", func() error {
			return stopped(between()).Try(&events.TurnEnd{Turn: 1, Kind: events.TurnAborted, Cause: "another"})
		}},
		{fold.RuleCancel, "the cause of a second cancel", func() error {
			l := stopped(between())
			l.Cancel("impatience", true)
			return l.Try(&events.TurnEnd{Turn: 1, Kind: events.TurnAborted, Cause: "impatience"})
		}},
	}
}

// owing has a step open in which two contexts are owed.
func owing() *foldtest.Log {
	l := called()
	l.ToolCall()
	l.ToolCall()
	l.ToolResultWith([]events.AddedContext{{Plugin: "lint", Text: "one"}, {Plugin: "clock", Text: "two"}})
	l.ToolResult()
	l.StepEnd()
	l.StepStart()
	return l
}

func owedCases() []ruleCase {
	pay := func(l *foldtest.Log, i int, change func(*events.UserMessage), opts ...foldtest.Option) error {
		body, citing := l.OwedBody(l.State.Owed()[i])
		change(body)
		return l.Try(body, append([]foldtest.Option{citing}, opts...)...)
	}
	return []ruleCase{
		{fold.RuleStream, "context that is owed", func() error { return stream(owing(), func(*events.LLMStream) {}) }},
		{fold.RuleMessage, "context out of order", func() error { return pay(owing(), 1, func(*events.UserMessage) {}) }},
		{fold.RuleMessage, "other context", func() error {
			return pay(owing(), 0, func(b *events.UserMessage) { b.Message.Content[0].Text = "three" })
		}},
		{fold.RuleMessage, "context of another plugin", func() error {
			return pay(owing(), 0, func(b *events.UserMessage) { b.Message.Source.Plugin = "clock" })
		}},
		{fold.RuleMessage, "context that cites something else", func() error {
			return pay(owing(), 0, func(*events.UserMessage) {}, foldtest.Citing(1))
		}},
		{fold.RuleMessage, "context that claims an input", func() error {
			return pay(owing(), 0, func(b *events.UserMessage) {
				b.InboxSeq, b.Delivery, b.Message.ID = 9, events.DeliverySteer, string(foldtest.ClaimAt(9).InputID)
			})
		}},
		{fold.RuleMessage, "context that nobody owes", func() error {
			l := owing()
			o := l.State.Owed()[0]
			l.PayContexts()
			body, citing := l.OwedBody(o)
			return l.Try(body, citing)
		}},
	}
}

func imageCases() []ruleCase {
	shown := foldtest.Placeholder(objects.Digest{1}, "an image")
	return []ruleCase{
		{fold.RuleImages, "in mid-call", func() error {
			return streaming().Try(&events.RequestImages{Images: []events.ImageShown{shown}})
		}},
		{fold.RuleImages, "behind the answer", func() error {
			return called().Try(&events.RequestImages{Images: []events.ImageShown{shown}})
		}},
		{fold.RuleImages, "as it is shown already", func() error {
			l := asked()
			l.Images(shown)
			return l.Try(&events.RequestImages{Images: []events.ImageShown{foldtest.Placeholder(objects.Digest{2}, "x"), shown}})
		}},
		{fold.RuleStream, "without the object that an image is shown by", func() error {
			l := asked()
			l.Images(foldtest.Inline(objects.Digest{1}, "", l.Object([]byte("x"), "image/png")))
			return stream(l, func(b *events.LLMStream) { b.Objects = nil })
		}},
	}
}
