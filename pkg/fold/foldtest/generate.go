package foldtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// Options bound the logs that [Generate] makes. Zero fields stand for the values named.
type Options struct {
	MaxTurns int      // 3
	MaxSteps int      // in each turn: 3
	Body     BodyFunc // [NoBody]
	Images   bool     // messages and results hold images, and every request knows how to show its own
	Forks    bool     // the log may be that of a fork, or of a fork of a fork: the session is that of its first event
}

// Generate draws a valid log: turns, steps, inputs of every kind, failed calls and retries, tool calls in parallel and one
// at a time with added context, headers that change, objects, compactions and titles with and without calls, prunes,
// cancels and workers that die anywhere.
func Generate(t *rapid.T, o Options) []events.Event { return GenerateLog(t, o).Events }

// GenerateLog is Generate for those who need payloads, objects or the fold too.
func GenerateLog(t *rapid.T, o Options) *Log {
	if o.MaxTurns == 0 {
		o.MaxTurns = 3
	}
	if o.MaxSteps == 0 {
		o.MaxSteps = 3
	}
	g := &generator{t: t, o: o, Log: New()}
	g.Body = o.Body
	g.next, g.worker = Header(), events.Options{Provider: "deepseek", Model: "deepseek-chat"}
	g.session()
	return g.Log
}

// generator appends what it draws. Each method appends a part of the log that leaves it valid. Once the turn is cancelled
// they return as soon as they can, with open what was open; turn settles it.
type generator struct {
	*Log

	t       *rapid.T
	o       Options
	next    events.Header  // the header that the next request wants, apart from what the session's options say
	worker  events.Options // the worker's own options
	fills   [2]bool        // whether the adapter fills in the effort and the tokens
	changes bool           // whether an extension changes the configuration to that of next
	calls   int            // tool calls made so far, for their ids
	waiting []events.Claim // inputs that nothing has claimed yet and that came before the last one claimed
}

// one reports true in one of n cases.
func (g *generator) one(n int, what string) bool {
	return rapid.IntRange(1, n).Draw(g.t, what) == n
}

func (g *generator) upTo(n int, what string) int { return rapid.IntRange(0, n).Draw(g.t, what) }

func (g *generator) session() {
	g.Created(g.options())
	g.Claimed(events.ClaimCreated)
	for range 1 + g.upTo(g.o.MaxTurns-1, "more turns") {
		g.between()
		g.turn()
	}
	g.between()
	if !slices.ContainsFunc(g.Events, func(e events.Event) bool { return e.Type() == events.TypeLLMStream }) {
		g.plainTurn()
	}
	if g.one(3, "close") {
		g.dropWaiting(true)
		g.Closed("done")
	}
}

// plainTurn appends a turn with one answered call, in which nothing goes wrong: a log has at least one request.
func (g *generator) plainTurn() {
	g.TurnStart()
	g.StepStart()
	g.User("go")
	g.PayContexts()
	g.header()
	g.Reply(events.FinishStop, TextBlock(0, "on"))
	g.StepEnd()
	g.TurnEnd(events.TurnCompleted)
}

// between is what happens outside of turns.
func (g *generator) between() {
	if g.one(3, "configure") {
		g.Configured(g.options())
	}
	if g.one(4, "resume") {
		g.Claimed(events.ClaimResumed)
	}
	if g.one(6, "cancel nothing") {
		g.Cancel("nothing to cancel", g.one(2, "keep the queue"))
	}
	g.dropWaiting(false)
	g.rewrite()
	g.title()
	g.remark()
	if g.o.Forks && g.one(5, "fork") {
		g.Log = g.OpenFork(len(g.Events), g.options())
		g.waiting = nil
	}
}

// remark appends events that change nothing.
func (g *generator) remark() {
	switch g.upTo(9, "remark") {
	case 0:
		g.Title(Text().Draw(g.t, "title"))
	case 1:
		g.Append(&events.Unknown{Name: "metrics/sample", Data: `{"load":0.5}`})
	case 2:
		g.Append(&events.ApprovalAsked{ApprovalID: "approval-1", CallID: "call-1", Question: "May it run?"})
		g.Append(&events.ApprovalDecided{ApprovalID: "approval-1", Approved: true, By: "operator"})
	}
}

func (g *generator) options() events.Options {
	o := events.Options{Provider: "deepseek", Model: "deepseek-chat"}
	if g.one(2, "options: model") {
		o.Model = "deepseek-reasoner"
	}
	if g.one(3, "options: effort") {
		o.ReasoningEffort = "high"
	}
	if g.one(3, "options: max tokens") {
		o.MaxTokens = 4096
	}
	if g.one(4, "options: stop") {
		o.Stop = []string{"END", Text().Draw(g.t, "stop")}
	}
	switch g.upTo(7, "options: prompt") {
	case 0:
		o.System = "Be brief."
	case 1:
		o.SystemObject = g.object().Object
	case 2:
		o.Tools = []string{"read", "write"}
	}
	return o
}

func (g *generator) turn() {
	g.TurnStart()
	kind := events.TurnCompleted
	for i := range g.o.MaxSteps {
		if g.stopped() {
			break
		}
		if g.rewrite(); g.stopped() { // under pressure
			break
		}
		g.StepStart()
		if g.enter(i == 0); g.stopped() {
			break
		}
		if g.rewrite(); g.stopped() {
			break
		}
		if !g.model() {
			kind = events.TurnError
			break
		}
		called := len(g.State.PendingTools()) > 0
		g.tools()
		g.takeover()
		if g.stopped() || !called {
			break
		}
		g.StepEnd()
		g.remark()
	}
	if _, cancelled := g.State.Cancelled(); cancelled {
		g.Settle()
		return
	}
	if _, open := g.State.Step(); open {
		g.StepEnd()
	}
	g.TurnEnd(kind)
}

// stopped reports whether the turn is cancelled, which happens here now and then.
func (g *generator) stopped() bool {
	if _, cancelled := g.State.Cancelled(); cancelled {
		return true
	}
	if !g.one(25, "cancel") {
		return false
	}
	g.Cancel("user", g.one(2, "keep the queue"))
	if g.one(4, "cancel again") {
		g.Cancel("impatience", true)
	}
	_, cancelled := g.State.Cancelled()
	return cancelled
}
