package crash_test

import (
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

func newID() events.ID { return events.ID(ulid.Make().String()) }

// script is a session: what the client sends, what the provider answers, and what comes of it when nothing interrupts
// it.
type script struct {
	entries []entry // the last one closes the session
	answers simulator.Script
	want    outcome // without requests
}

// entry is an input of a script.
type entry struct {
	input events.Input
	// cue is a text in the body of a model request: the input is sent while the provider has that request and has not
	// answered yet, behind the entries before it. Empty: with the entry before it.
	cue string
}

func message(kind events.InputKind, text string) events.Input {
	return events.Input{Kind: kind, Content: []events.Block{events.Text(text)}}
}

func opening(text string) events.Input {
	in := message(events.InputPrompt, text)
	in.Open = true
	return in
}

func rule(contains string, a simulator.Answer) simulator.Rule {
	return simulator.Rule{When: simulator.Condition{Contains: lossless.Text(contains)}, Answer: a}
}

func call(id string, op operation) simulator.Call {
	return simulator.Call{ID: id, Name: string(op), Arguments: lossless.Text(`{"call":"` + id + `"}`)}
}

// toolsScript is a session with prompts and tools: three calls, of which two may run at a time; a word on the last result; a
// change of the model; an overload; and a long answer.
func toolsScript() script {
	first := rule("first:", simulator.Answer{Text: "I look.", Calls: []simulator.Call{call("c1", opLook), call("c2", opLook), call("c3", opMark)}})
	first.When.ToolResults = new(int)
	overload := rule("second:", simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}})
	overload.When.Nth = 1
	return script{
		entries: []entry{
			{input: opening("first: look twice, then mark")},
			{input: events.Input{Kind: events.InputConfigure, Options: events.Options{Model: "deepseek-reasoner"}}, cue: "first:"},
			{input: message(events.InputPrompt, "second: tell me more")},
			{input: events.Input{Kind: events.InputClose, Reason: "enough"}},
		},
		answers: simulator.Script{Rules: []simulator.Rule{
			first, overload,
			rule("second:", simulator.Answer{Text: lossless.Text(story()), DeltaSizes: []int{len(story()) - 4, 4}}),
		}},
		want: outcome{
			Shown: []shown{
				{Who: "user", Text: "first: look twice, then mark"},
				{Who: "model", Text: "I look.", Calls: []string{`c1 look {"call":"c1"}`, `c2 look {"call":"c2"}`, `c3 mark {"call":"c3"}`}},
				{Who: "tool", Call: "c1", Text: seen("c1")},
				{Who: "tool", Call: "c2", Text: seen("c2")},
				{Who: "tool", Call: "c3", Text: "marked c3"},
				{Who: "model", Text: "After 3 tool result(s), the last one begins: marked c3"},
				{Who: "user", Text: "second: tell me more"},
				{Who: "model", Text: story()},
			},
			Turns:   []string{"1 completed", "2 completed"},
			Effects: "c3\n",
		},
	}
}

// controlsScript is a session that is steered, added to, cancelled in the middle of a call, and compacted.
func controlsScript() script {
	mark := rule("third:", simulator.Answer{Text: lossless.Text(long("I mark. ")), Calls: []simulator.Call{call("m1", opMark)}})
	mark.When.ToolResults = new(int)
	return script{
		entries: []entry{
			{input: opening("third: mark")},
			{input: message(events.InputSteer, "steer: and be quick"), cue: "third:"},
			{input: message(events.InputInject, "inject: by the way"), cue: "steer:"},
			{input: message(events.InputPrompt, "fourth: wait")},
			{input: events.Input{Kind: events.InputCancel, Cause: "enough of it"}, cue: "fourth:"},
			{input: events.Input{Kind: events.InputCompact}},
			{input: message(events.InputPrompt, "fifth: good bye")},
			{input: events.Input{Kind: events.InputClose, Reason: "done"}},
		},
		answers: simulator.Script{Rules: []simulator.Rule{
			rule(compact.Directive, simulator.Answer{Text: "It was marked."}), // messages of the user in a row are one
			rule("fifth:", simulator.Answer{Text: "Good bye."}),
			rule("fourth:", simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHangBefore}}),
			rule("steer:", simulator.Answer{Text: lossless.Text(long("Quick. "))}),
			mark,
		}},
		want: outcome{
			Shown: []shown{
				{Who: "plugin", Text: compact.SummaryPreamble + compact.SummaryOpen + "It was marked." + compact.SummaryClose + compact.SummaryClosing},
				{Who: "model", Text: long("Quick. ")},
				{Who: "user", Text: "inject: by the way"},
				{Who: "user", Text: "fourth: wait"},
				{Who: "user", Text: "fifth: good bye"},
				{Who: "model", Text: "Good bye."},
			},
			Turns:   []string{"1 completed", "2 aborted", "3 completed"},
			Effects: "m1\n",
		},
	}
}

// long returns a text that is worth summarising.
func long(word string) string { return strings.TrimSpace(strings.Repeat(word, 500)) }

// claimed returns the place in the inbox of the input that an event claims, 0 when it claims none.
func claimed(body events.Body) uint64 {
	switch b := body.(type) {
	case *events.UserMessage:
		return b.InboxSeq
	case *events.SessionConfigured:
		return b.Claim.InboxSeq
	case *events.SessionClosed:
		return b.Claim.InboxSeq
	case *events.CompactionStart:
		return b.Claim.InboxSeq
	case *events.TurnCancelled:
		return b.Claim.InboxSeq
	case *events.InputDropped:
		return b.Claim.InboxSeq
	}
	return 0
}

// seen is what the tool that only reads answers to a call: once little, once more than stays in an event.
func seen(call string) string {
	if call == "c2" {
		return strings.Repeat("much to see ", 2*inline/12)
	}
	return "little to see"
}

// story is an answer that does not fit into one run of chunks.
func story() string {
	const run = 64 << 10
	return "more " + strings.Repeat("and more ", run/9)
}
