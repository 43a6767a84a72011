package dsh_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/fold"
)

// record writes a log in the reference system's format.
type record struct {
	lines []string
	seq   int
	turn  int
	step  int
}

func newRecord() *record {
	return &record{lines: []string{`{"type":"session","version":0,"id":"s","createdAt":1796046772653,"cwd":"/data","delegationDepth":0}`}}
}

// row adds an event; rest is what follows its data, from the comma on.
func (l *record) row(kind, data, rest string) int {
	l.lines = append(l.lines, fmt.Sprintf(`{"type":%q,"seq":%d,"time":%d,"data":%s%s}`, kind, l.seq, 1796046772657+l.seq, data, rest))
	l.seq++
	return l.seq - 1
}

func (l *record) text() string { return strings.Join(l.lines, "\n") + "\n" }

const onSurface = `,"surfaceOp":"append"`

func (l *record) place() string { return fmt.Sprintf(`"turn":%d,"step":%d`, l.turn, l.step) }

func (l *record) turnStart() {
	l.turn++
	l.step = 0
	l.row("turn/start", fmt.Sprintf(`{"turn":%d}`, l.turn), "")
}

func (l *record) turnEnd(reason string) {
	l.row("turn/end", fmt.Sprintf(`{"turn":%d,"reason":%s}`, l.turn, reason), "")
}

func (l *record) stepStart() { l.step++; l.row("step/start", "{"+l.place()+"}", "") }

func (l *record) stepEnd() { l.row("step/end", "{"+l.place()+"}", "") }

func (l *record) user(text string) int { return l.userFrom(text, `{"kind":"user"}`) }

func (l *record) userFrom(text, source string) int {
	return l.row("user/message", fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"source":%s,"role":"user","id":"u%d"}`, text, source, l.seq), onSurface)
}

func (l *record) header(reason, model string) {
	l.row("request/header", fmt.Sprintf(`{"header":{"config":{"provider":"p","model":%q,"maxTokens":9}},"reason":%q}`, model, reason), "")
}

func (l *record) chunk(c string) int {
	return l.row("assistant/chunk", "{"+l.place()+`,"chunk":`+c+"}", "")
}

func (l *record) finish(reason string) int {
	return l.chunk(`{"type":"finish","reason":` + reason + `}`)
}

// say adds the chunks of a block of text, or of reasoning.
func (l *record) say(index int, kind, text string) {
	l.chunk(fmt.Sprintf(`{"type":"block-start","index":%d,"blockType":%q}`, index, kind))
	l.chunk(fmt.Sprintf(`{"type":"%s-delta","index":%d,"text":%q}`, kind, index, text))
}

// call adds the chunks of a tool call.
func (l *record) call(index int, id, name, arguments string) {
	l.chunk(fmt.Sprintf(`{"type":"block-start","index":%d,"blockType":"tool-call"}`, index))
	l.chunk(fmt.Sprintf(`{"type":"tool-call-delta","index":%d,"id":%q,"name":%q,"argumentsDelta":%q}`, index, id, name, arguments))
	l.chunk(fmt.Sprintf(`{"type":"block-end","index":%d,"block":{}}`, index))
}

// answer adds an assistant message with the content; rest holds further fields, from the comma on.
func (l *record) answer(content, rest string) int {
	return l.row("assistant/message", fmt.Sprintf(`{%s,"message":{"role":"assistant","content":[%s],"source":{"kind":"model","provider":"p","model":"m"},"id":"a%d"}%s}`,
		l.place(), content, l.seq, rest), `,"sourceEventSeqs":[]`+onSurface)
}

// reply is a step's whole plain answer.
func (l *record) reply(text string) {
	l.say(0, "text", text)
	l.finish(`{"kind":"stop"}`)
	l.answer(blockText(text), "")
}

func (l *record) toolCall(id string) int {
	return l.row("tool/call", fmt.Sprintf(`{%s,"callId":%q,"name":"n","arguments":"as changed by a plugin"}`, l.place(), id), "")
}

func (l *record) result(id, text, code string, sources ...int) int {
	failed := ""
	if code != "" {
		failed = fmt.Sprintf(`,"error":{"name":"E","code":%q}`, code)
	}
	return l.row("tool/result", fmt.Sprintf(`{%s,"message":{"source":{"kind":"tool","callId":%q},"content":[{"type":"tool-result","toolCallId":%q,"content":[{"type":"text","text":%q}],"isError":%t}],"role":"user","id":"r%d"}%s}`,
		l.place(), id, id, text, code != "", l.seq, failed), strings.ReplaceAll(fmt.Sprintf(`,"sourceEventSeqs":%v`, sources), " ", ",")+onSurface)
}

func blockText(text string) string { return fmt.Sprintf(`{"type":"text","text":%q}`, text) }

func blockCall(id, name, arguments string) string {
	return fmt.Sprintf(`{"type":"tool-call","id":%q,"name":%q,"arguments":%q}`, id, name, arguments)
}

// The messages as the reference system sends them.

func wireUser(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }

func wireSaid(text string) string { return fmt.Sprintf(`{"role":"assistant","content":%q}`, text) }

func wireCalls(text string, calls ...string) string {
	return fmt.Sprintf(`{"role":"assistant","content":%q,"tool_calls":[%s]}`, text, strings.Join(calls, ","))
}

func wireCall(id, name, arguments string) string {
	return fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, id, name, arguments)
}

func wireResult(id, text string) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q}`, id, text)
}

func body(model string, messages ...string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[%s],"stream":true,"stream_options":{"include_usage":true},"max_tokens":9}`, model, strings.Join(messages, ","))
}

// open starts a log with a turn whose first step is ready for its model call.
func open(text string) *record {
	l := newRecord()
	l.turnStart()
	l.stepStart()
	l.user(text)
	l.header("initial", "m")
	l.row("request/context", `{"provider":"p","model":"m","contextWindow":100}`, "")
	return l
}

// next goes on with a turn of one plain step.
func (l *record) next(text, reply string) {
	l.turnStart()
	l.stepStart()
	l.user(text)
	l.reply(reply)
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
}

// shapes are logs of the kinds that the recorded scenarios do not show, with the bodies that they call for.
var shapes = []struct {
	name string
	make func() (*record, []string)
}{
	{"fork", shapeFork},
	{"fork in the middle of a turn", shapeForkOpen},
	{"interrupted text", shapeInterrupted},
	{"interrupted, nothing kept", shapeInterruptedEmpty},
	{"interrupted behind its finish", shapeInterruptedLate},
	{"cancelled as a failure, text kept", shapeCancelledFailure},
	{"tools cancelled", shapeToolsCancelled},
	{"first tool refused, second runs", shapeToolRefused},
	{"parallel, then exclusive", shapeMixedTools},
	{"steering and context", shapeSteering},
	{"blocked turns", shapeBlocked},
	{"tool calls without id, and twice the same", shapeToolIDs},
	{"another provider and model", shapeSwitch},
	{"pruned failure", shapePruned},
	{"retry without a finish", shapeRetry},
	{"chunks of unknown kinds", shapeUnknownChunks},
	{"boundaries missing", shapeNoBoundaries},
}

func shapeFork() (*record, []string) {
	l := open("one")
	l.reply("first")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.row("session/end-seed", "{}", "")
	l.row("agent/inbox/spliced", `{"target":"next-turn","start":0,"inserted":[]}`, "")
	l.turnStart()
	l.stepStart()
	l.user("two")
	l.header("resume", "m")
	l.reply("second")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("first"), wireUser("two"))}
}

func shapeForkOpen() (*record, []string) {
	l := open("one")
	l.call(0, "c1", "n", "{}")
	l.finish(`{"kind":"tool-calls"}`)
	l.answer(blockCall("c1", "n", "{}"), "")
	c := l.toolCall("c1")
	l.result("c1", "done", "", c)
	l.row("session/end-seed", "{}", "") // the copy ends inside the step
	l.turnStart()
	l.stepStart()
	l.user("two")
	l.header("resume", "m2")
	l.reply("second")
	return l, []string{
		body("m", wireUser("one")),
		body("m2", wireUser("one"), wireCalls("", wireCall("c1", "n", "{}")), wireResult("c1", "done"), wireUser("two")),
	}
}

func shapeInterrupted() (*record, []string) {
	l := open("one")
	l.say(0, "reasoning", " \n")
	l.say(1, "text", "half a sen")
	l.call(2, "c1", "n", `{"a":`)
	l.answer(blockText("half a sen"), `,"interrupted":true`)
	l.stepEnd()
	l.turnEnd(`{"kind":"aborted","cause":{"by":"user"}}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("half a sen"), wireUser("two"))}
}

func shapeInterruptedEmpty() (*record, []string) {
	l := open("one")
	l.say(0, "text", " ")
	l.finish(`{"kind":"aborted"}`)
	l.stepEnd()
	l.turnEnd(`{"kind":"aborted","cause":"user"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireUser("two"))}
}

func shapeInterruptedLate() (*record, []string) {
	l := open("one")
	l.say(0, "text", "All of it.")
	l.call(1, "c1", "n", "{}")
	l.chunk(`{"type":"usage","usage":{"inputTokens":3,"outputTokens":2}}`)
	l.finish(`{"kind":"tool-calls"}`)
	l.answer(blockText("All of it."), `,"usage":{"inputTokens":3,"outputTokens":2},"interrupted":true`)
	l.stepEnd()
	l.turnEnd(`{"kind":"aborted"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("All of it."), wireUser("two"))}
}

func shapeCancelledFailure() (*record, []string) {
	l := open("one")
	l.say(0, "text", "part")
	l.finish(`{"kind":"error","failure":{"message":"x","code":"aborted-409","status":0}}`)
	l.answer(blockText("part"), `,"interrupted":true`)
	l.stepEnd()
	l.turnEnd(`{"kind":"aborted"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("part"), wireUser("two"))}
}

// callThree is a step whose answer calls three tools.
func callThree() (*record, string) {
	l := open("one")
	var blocks, wire []string
	for i, id := range []string{"c1", "c2", "c3"} {
		l.call(i, id, "n", "{}")
		blocks, wire = append(blocks, blockCall(id, "n", "{}")), append(wire, wireCall(id, "n", "{}"))
	}
	l.finish(`{"kind":"tool-calls"}`)
	l.answer(strings.Join(blocks, ","), "")
	return l, wireCalls("", wire...)
}

func shapeToolsCancelled() (*record, []string) {
	l, calls := callThree()
	c1, c2 := l.toolCall("c1"), l.toolCall("c2")
	l.result("c1", "done", "", c1)
	l.result("c2", "cancelled", "ABORTED", c2)
	l.result("c3", "skipped", "ABORTED")
	l.stepEnd()
	l.turnEnd(`{"kind":"aborted","cause":"user"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), calls,
		wireResult("c1", "done"), wireResult("c2", "cancelled"), wireResult("c3", "skipped"), wireUser("two"))}
}

func shapeToolRefused() (*record, []string) {
	l, calls := callThree()
	l.row("approval/asked", `{"approvalId":"x","callId":"c1"}`, "")
	l.row("approval/decided", `{"approvalId":"x","approved":false}`, "")
	c2, c3 := l.toolCall("c2"), l.toolCall("c3")
	l.result("c1", "refused", "DENIED")
	l.result("c2", "two", "", c2)
	l.result("c3", "three", "", c3)
	l.stepEnd()
	l.stepStart()
	l.reply("ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), calls,
		wireResult("c1", "refused"), wireResult("c2", "two"), wireResult("c3", "three"))}
}

func shapeMixedTools() (*record, []string) {
	l, calls := callThree()
	c1, c2 := l.toolCall("c1"), l.toolCall("c2")
	l.result("c1", "1", "", c1)
	l.result("c2", "", "", c2)
	c3 := l.toolCall("c3")
	l.result("c3", "3", "", c3)
	l.stepEnd()
	l.stepStart()
	l.reply("ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), calls,
		wireResult("c1", "1"), wireResult("c2", "(no output)"), wireResult("c3", "3"))}
}

func shapeSteering() (*record, []string) {
	l := open("one")
	l.userFrom("the time is noon", `{"kind":"dynamic-context","plugin":7,"key":"clock"}`)
	l.row("session/title", `{"title":"t"}`, "")
	l.reply("first")
	l.stepEnd()
	l.stepStart()
	l.user("steer")
	l.user("and again")
	l.userFrom("a note", `{"kind":"plugin","plugin":"corpus","form":"notice"}`)
	l.reply("second")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	first := []string{wireUser("one"), wireUser("the time is noon")}
	second := slices.Concat(first, []string{wireSaid("first"), wireUser("steer"), wireUser("and again"), wireUser("a note")})
	return l, []string{body("m", first...), body("m", second...)}
}

func shapeBlocked() (*record, []string) {
	l := newRecord()
	l.turnStart()
	l.turnEnd(`{"kind":"blocked","cause":"a plugin"}`)
	l.turnStart()
	l.turnEnd(`{"kind":"something new"}`)
	l.turnStart()
	l.stepStart()
	l.user("one")
	l.header("initial", "m")
	l.reply("first")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	return l, []string{body("m", wireUser("one"))}
}

func shapeToolIDs() (*record, []string) {
	l := open("one")
	l.call(0, "", "n", "1")
	l.call(1, "c", "n", "2")
	l.call(2, "c", "n", "3")
	l.finish(`{"kind":"tool-calls"}`)
	l.answer(strings.Join([]string{blockCall("", "n", "1"), blockCall("c", "n", "2"), blockCall("c", "n", "3")}, ","), "")
	for _, id := range []string{"", "c", "c"} {
		c := l.toolCall(id)
		l.result(id, "of "+id, "", c)
	}
	l.stepEnd()
	l.stepStart()
	l.reply("ok")
	calls := wireCalls("", wireCall("", "n", "1"), wireCall("c", "n", "2"), wireCall("c", "n", "3"))
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), calls, wireResult("", "of "), wireResult("c", "of c"), wireResult("c", "of c"))}
}

func shapeSwitch() (*record, []string) {
	l := open("one")
	l.say(0, "reasoning", "hm")
	l.say(1, "text", "first")
	l.finish(`{"kind":"stop"}`)
	l.answer(`{"type":"reasoning","text":"hm"},`+blockText("first"), "")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.turnStart()
	l.stepStart()
	l.user("two")
	l.row("request/header", `{"header":{"config":{"provider":"other","model":"x","reasoningEffort":"off","temperature":0.5,"stop":["."]},"system":"S"},"reason":"change"}`, "")
	l.row("request/context", `{"provider":"other","model":"x"}`, "")
	l.reply("second")
	return l, []string{body("m", wireUser("one")), `{"model":"x","messages":[{"role":"system","content":"S"},{"role":"user","content":"one"},` +
		`{"role":"assistant","content":"first","reasoning_content":"hm"},{"role":"user","content":"two"}],` +
		`"stream":true,"stream_options":{"include_usage":true},"thinking":{"type":"disabled"},"temperature":0.5,"stop":["."]}`}
}

func shapePruned() (*record, []string) {
	l, calls := callThree()
	for _, id := range []string{"c1", "c2", "c3"} {
		c := l.toolCall(id)
		l.result(id, "a long one", "BAD", c)
	}
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.turnStart()
	replaced := l.seq - 6 // the result of c2
	l.row("tool/result", `{"turn":1,"step":1,"message":{"content":[{"type":"tool-result","toolCallId":"c2","content":"short"}],"role":"user","id":"other"}}`,
		fmt.Sprintf(`,"surfaceOp":{"op":"replace","start":%d,"end":%d}`, replaced, replaced))
	l.stepStart()
	l.user("two")
	l.reply("ok")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), calls,
		wireResult("c1", "a long one"), wireResult("c2", "short"), wireResult("c3", "a long one"), wireUser("two"))}
}

func shapeRetry() (*record, []string) {
	l := open("one")
	l.say(0, "text", "lost")
	l.row("llm/retry", "{"+l.place()+`,"retryId":"r","retry":1}`, "")
	l.row("llm/retry-started", "{"+l.place()+`,"retryId":"r","retry":1}`, "")
	l.reply("first")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("first"), wireUser("two"))}
}

func shapeUnknownChunks() (*record, []string) {
	l := open("one")
	l.chunk(`{"type":"ping"}`)
	l.chunk(`{"type":"block-start","index":0,"blockType":"search"}`)
	l.say(1, "text", "first")
	l.finish(`{"kind":"pause"}`)
	l.answer(blockText("first"), `,"usage":{"inputTokens":-3,"outputTokens":2.5}`)
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.next("two", "ok")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("first"), wireUser("two"))}
}

func shapeNoBoundaries() (*record, []string) {
	l := newRecord()
	l.turn, l.step = 1, 1
	l.user("one")
	l.header("initial", "m")
	l.reply("first")
	l.user("two")
	l.step++
	l.reply("second")
	return l, []string{body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("first"), wireUser("two"))}
}

// TestShapes rebuilds the requests of each kind of log byte for byte, and finds that what it was translated to folds.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l, want := s.make()
			session, err := dsh.Translate(strings.NewReader(l.text()))
			if err != nil {
				t.Fatalf("%v\n%s", err, l.text())
			}
			if len(session.Requests) != len(want) {
				t.Errorf("%d requests, want %d", len(session.Requests), len(want))
			}
			for i := range min(len(want), len(session.Requests)) {
				if got := string(session.Requests[i].Bytes()); got != want[i] {
					t.Errorf("request %d:\n got %s\nwant %s", i+1, got, want[i])
				}
			}
			again, err := dsh.Translate(strings.NewReader(l.text()))
			if err != nil || !slices.EqualFunc(again.Payloads, session.Payloads, bytes.Equal) {
				t.Errorf("it translates to another log the second time (%v)", err)
			}
			state := fold.New(session.ID)
			for i := range session.Events {
				if err := state.Apply(&session.Events[i]); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
