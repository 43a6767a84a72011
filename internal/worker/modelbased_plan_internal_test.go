package worker

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

// plan is all that happens to a session, drawn before anything runs, so that a failure can be read and made smaller.
type plan struct {
	window, limit int64 // of the context: what the adapter says, and what the provider takes
	images, files bool
	always        bool // the retry policy
	parallel      bool // the pool has room for more than one tool

	answers []answerPlan // of the session's first requests, in order; all others are answered in short
	appends []moment     // what happens at the n-th append
	rounds  [][]deed     // what happens while the session is at rest, before it is run again
	fork    [][]deed     // the rounds of a fork of the session, none: there is no fork
	forkAt  int          // at which of the parent's boundaries
}

// moment is a place on the way of an append.
type moment struct {
	append int  // from 1, counted over the whole plan
	stored bool // the event is in the log already
	deeds  []deed
}

// deed is one thing that happens.
type deed struct {
	kind  deedKind
	input events.InputKind
	text  string // of a message
	keep  bool   // of a cancel: keepQueue
	which int    // of a repetition: which input
}

type deedKind string

const (
	deedInput    deedKind = "input"    // a client sends an input
	deedRepeat   deedKind = "repeat"   // a client sends an earlier input once more
	deedKill     deedKind = "kill"     // the worker dies
	deedStop     deedKind = "stop"     // the worker is told to stop
	deedTakeover deedKind = "takeover" // another worker takes the session and works until it is at rest
	deedOutage   deedKind = "outage"   // the object store does not answer, once
)

// answerPlan is how one request is answered.
type answerPlan struct {
	text    string
	think   bool
	finish  string
	calls   []callPlan
	failure *simulator.Failure
	before  []deed // before anything is answered
	at      int    // the write behind which
	during  []deed // happen
	late    []deed // a while after the answer: in the backoff that follows it, or while tools run
}

// callPlan is a tool call of an answer.
type callPlan struct {
	tool   string
	broken bool // its arguments are no JSON
	noID   bool
	during []deed
}

// emphasis says what a plan has more of than others.
type emphasis struct {
	deaths   bool // workers die, stop and lose their sessions
	failures bool
	small    bool // the context window is small
}

func draw[T any](t *rapid.T, what string, from ...T) T { return rapid.SampledFrom(from).Draw(t, what) }

// seldom is true one time in n, and false when shrunk.
func seldom(t *rapid.T, n int, what string) bool {
	return rapid.IntRange(1, n).Draw(t, what) == n && n > 1
}

func drawPlan(t *rapid.T, e emphasis) *plan {
	p := &plan{
		window: 128_000, limit: 128_000, images: seldom(t, 3, "images"), always: e.failures && seldom(t, 3, "always"),
		parallel: seldom(t, 2, "parallel"),
	}
	if e.small {
		p.window = draw[int64](t, "window", 128_000, 3_000, 5_000)
		p.limit = draw[int64](t, "limit", 128_000, 2_000, 4_000)
	}
	p.files = p.images && seldom(t, 2, "files")
	for range rapid.IntRange(0, 8).Draw(t, "answers") {
		p.answers = append(p.answers, drawAnswer(t, e))
	}
	for range rapid.IntRange(0, 3).Draw(t, "moments") {
		p.appends = append(p.appends, moment{
			append: rapid.IntRange(1, 60).Draw(t, "append"), stored: rapid.Bool().Draw(t, "stored"), deeds: drawDeeds(t, e, 1, 3),
		})
	}
	p.rounds = [][]deed{append([]deed{{kind: deedInput, input: events.InputPrompt, text: "first"}}, drawDeeds(t, emphasis{}, 0, 5)...)}
	for range rapid.IntRange(0, 3).Draw(t, "rounds") {
		p.rounds = append(p.rounds, drawDeeds(t, emphasis{}, 1, 5))
	}
	for range rapid.IntRange(0, 2).Draw(t, "fork rounds") {
		p.fork = append(p.fork, drawDeeds(t, emphasis{}, 0, 3))
	}
	p.forkAt = rapid.IntRange(0, 5).Draw(t, "fork at")
	return p
}

func drawDeeds(t *rapid.T, e emphasis, least, most int) (out []deed) {
	for range rapid.IntRange(least, most).Draw(t, "deeds") {
		out = append(out, drawDeed(t, e))
	}
	return out
}

func drawDeed(t *rapid.T, e emphasis) deed {
	if e.deaths && seldom(t, 2, "death") {
		return deed{kind: draw(t, "death", deedKill, deedKill, deedTakeover, deedTakeover, deedStop, deedOutage)}
	}
	if seldom(t, 12, "repeat") {
		return deed{kind: deedRepeat, which: rapid.IntRange(0, 9).Draw(t, "which")}
	}
	d := deed{kind: deedInput, input: draw(t, "input",
		events.InputPrompt, events.InputPrompt, events.InputSteer, events.InputSteer, events.InputInject, events.InputInject,
		events.InputCancel, events.InputCancel, events.InputCompact, events.InputConfigure, events.InputConfigure)}
	if seldom(t, 30, "close") {
		d.input = events.InputClose
	}
	switch d.input {
	case events.InputPrompt, events.InputSteer, events.InputInject:
		d.text = draw(t, "text", "hello", "hello", "\U0001F600 \u00e9\u0301", "long", "longer", textImage, textRefused, textRejected, textAdding, textFailing)
	case events.InputCancel:
		d.keep = rapid.Bool().Draw(t, "keep")
	case events.InputConfigure:
		d.text = draw(t, "option", "system", "effort", "steps", "nowhere", "here")
	default: // nothing more to choose
	}
	return d
}

// The texts of messages that mean something.
const (
	textImage    = "image"    // an image comes with it
	textRefused  = "refused"  // it can never be used
	textRejected = "rejected" // an extension rejects the step
	textAdding   = "adding"   // an extension adds to it
	textFailing  = "failing"  // an extension fails
)

func drawAnswer(t *rapid.T, e emphasis) answerPlan {
	a := answerPlan{
		text: draw(t, "answer", "Fine.", "Fine.", "", "\U0001F468\u200D\U0001F469 said \"so\"", "a long answer"), think: seldom(t, 3, "think"),
		at: rapid.IntRange(1, 12).Draw(t, "write"),
	}
	if !seldom(t, 3, "no calls") {
		for range rapid.IntRange(0, 3).Draw(t, "calls") {
			a.calls = append(a.calls, callPlan{
				tool:   draw(t, "tool", "mark", "note", "note", "peek", "peek", "big", "draw", "nosuch"),
				broken: seldom(t, 8, "broken"), noID: seldom(t, 6, "no id"), during: drawDeeds(t, e, 0, 2),
			})
		}
	}
	if seldom(t, 10, "finish") {
		a.finish = draw(t, "reason", "length", "content_filter")
	}
	if seldom(t, 2, "before") {
		a.before = drawDeeds(t, e, 1, 2)
	}
	if seldom(t, 2, "during") {
		a.during = drawDeeds(t, e, 1, 3)
	}
	if seldom(t, 4, "late") {
		a.late = drawDeeds(t, e, 1, 2)
	}
	often := 6
	if e.failures {
		often = 2
	}
	if seldom(t, often, "failure") {
		a.failure = drawFailure(t)
	}
	return a
}

func drawFailure(t *rapid.T) *simulator.Failure {
	kind := draw(t, "failure", simulator.FailHTTP, simulator.FailHTTP, simulator.FailHTTP, simulator.FailResetBefore, simulator.FailHangBefore,
		simulator.FailReset, simulator.FailTruncate, simulator.FailError, simulator.FailMalformed, simulator.FailHang, simulator.FailNoDone)
	f := &simulator.Failure{Kind: kind}
	switch kind {
	case simulator.FailHTTP:
		f.Status = draw(t, "status", 503, 500, 504, 429, 400, 401, 402, 413, 301)
		if f.Status == 429 && rapid.Bool().Draw(t, "after") {
			f.RetryAfter = "1"
		}
		if f.Status == 400 && rapid.Bool().Draw(t, "risk") {
			f.Body = `{"error":{"message":"Content Exists Risk","type":"invalid_request_error","code":"content_filter"}}`
		}
	case simulator.FailHangBefore:
		f.HangMs = draw(t, "hang", 50, 400_000)
	default:
		f.After = rapid.IntRange(0, 3).Draw(t, "after")
	}
	return f
}

// script returns the simulator's part of the plan.
func (p *plan) script() simulator.Script {
	var s simulator.Script
	for i, a := range p.answers {
		answer := simulator.Answer{Text: lossless.Text(a.text), Finish: a.finish, Failure: a.failure}
		if a.think {
			answer.Reasoning = "Hm."
		}
		for k, c := range a.calls {
			arguments := fmt.Sprintf(`{"call":%q}`, callName(i, k))
			if c.broken {
				arguments = `{"call":`
			}
			answer.Calls = append(answer.Calls, simulator.Call{Name: c.tool, Arguments: lossless.Text(arguments), NoID: c.noID})
		}
		s.Rules = append(s.Rules, simulator.Rule{When: simulator.Condition{Nth: i + 1}, Answer: answer})
	}
	s.Rules = append(s.Rules, simulator.Rule{Answer: simulator.Answer{Text: "Done."}})
	return s
}

// callName is how a tool finds its call in the plan.
func callName(answer, call int) string { return fmt.Sprintf("%d.%d", answer+1, call+1) }

func (p *plan) retry() provider.RetryPolicy {
	if p.always {
		return provider.RetryPolicy{Mode: provider.RetryAlways}
	}
	return provider.RetryPolicy{MaxAttempts: 3}
}

// String shows the plan, one thing a line.
func (p *plan) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) }
	line("window %d, limit %d, images %t, files %t, always %t, parallel %t", p.window, p.limit, p.images, p.files, p.always, p.parallel)
	for i, r := range p.rounds {
		line("round %d: %v", i+1, r)
	}
	for i, a := range p.answers {
		line("request %d: before %v; %q, thinking %t, finish %q, failure %+v; behind write %d: %v; late: %v", i+1, a.before, a.text, a.think, a.finish, a.failure, a.at, a.during, a.late)
		for k, c := range a.calls {
			line("  call %s: %s, broken %t, without id %t, during: %v", callName(i, k), c.tool, c.broken, c.noID, c.during)
		}
	}
	for _, m := range p.appends {
		line("append %d (stored %t): %v", m.append, m.stored, m.deeds)
	}
	for i, r := range p.fork {
		line("fork at boundary %d, round %d: %v", p.forkAt, i+1, r)
	}
	return b.String()
}

func (d deed) String() string {
	switch d.kind {
	case deedInput:
		return strings.TrimSpace(fmt.Sprintf("%s %q keep=%t", d.input, d.text, d.keep))
	case deedRepeat:
		return fmt.Sprintf("repeat %d", d.which)
	default:
		return string(d.kind)
	}
}
