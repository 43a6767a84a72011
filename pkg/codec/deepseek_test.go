package codec_test

import (
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

const (
	high = "\xed\xa0\xbd" // U+D83D, half of a pair
	low  = "\xed\xb8\x80" // U+DE00, the other half
)

// bodyOf returns the body of the request that the log calls for after the session's first step was opened, the header
// recorded and what write appends.
func bodyOf(t *testing.T, h events.Header, write func(l *foldtest.Log)) string {
	t.Helper()
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	if h.Config.Provider == "" {
		h.Config.Provider = "deepseek"
	}
	if h.Config.Model == "" {
		h.Config.Model = "m"
	}
	if write == nil {
		write = func(*foldtest.Log) {}
	}
	first := l.Len()
	l.User("go")
	l.Header(h)
	write(l)
	if l.Len() < first+2 {
		t.Fatal("no header")
	}
	r, err := l.State.Request()
	if err != nil {
		t.Fatal(err)
	}
	body := build(t, newBuilder(t, codec.Options{}), &r, l.Objects)
	return string(body.Bytes())
}

const (
	head = `{"model":"m","messages":[`
	said = `{"role":"user","content":"go"}`
	tail = `],"stream":true,"stream_options":{"include_usage":true}`
)

func TestHeader(t *testing.T) {
	const (
		read = `{"type":"function","function":{"name":"read","description":"Reads \"it\".","parameters":{ "b": 1.0, "a":[1E3] }}}`
		bare = `{"type":"function","function":{"name":"a","description":"","parameters":true}}`
	)
	tools := []events.Tool{
		{Name: "read", Description: `Reads "it".`, Parameters: `{ "b": 1.0, "a":[1E3] }`},
		{Name: "a", Parameters: `true`},
	}
	for name, c := range map[string]struct {
		header events.Header
		want   string
	}{
		"nothing but a model": {events.Header{}, head + said + tail + `}`},
		"system prompt first": {
			events.Header{System: "Be\nkind."},
			head + `{"role":"system","content":"Be\nkind."},` + said + tail + `}`,
		},
		"model is escaped": {
			events.Header{Config: events.Config{Model: "a\"\u2028" + low}},
			`{"model":"a\"` + "\u2028" + `\ude00","messages":[` + said + tail + `}`,
		},
		"effort off": {
			events.Header{Config: events.Config{ReasoningEffort: "off"}},
			head + said + tail + `,"thinking":{"type":"disabled"}}`,
		},
		"effort low": {
			events.Header{Config: events.Config{ReasoningEffort: "low"}},
			head + said + tail + `,"thinking":{"type":"enabled"},"reasoning_effort":"low"}`,
		},
		"effort high, filled in by the adapter": {
			events.Header{Config: events.Config{ReasoningEffort: "high"}, AdapterDefaults: events.AdapterDefaults{ReasoningEffort: true}},
			head + said + tail + `,"thinking":{"type":"enabled"},"reasoning_effort":"high"}`,
		},
		"effort of a vendor to come": {
			events.Header{Config: events.Config{ReasoningEffort: "max\x01"}},
			head + said + tail + `,"thinking":{"type":"enabled"},"reasoning_effort":"max\u0001"}`,
		},
		"tools in the header's order, schemas byte for byte": {
			events.Header{Tools: tools}, head + said + tail + `,"tools":[` + read + `,` + bare + `]}`,
		},
		"temperature as ECMAScript prints it": {
			events.Header{Config: events.Config{Temperature: "1e-7"}}, head + said + tail + `,"temperature":1e-7}`,
		},
		"temperature zero is not absent": {
			events.Header{Config: events.Config{Temperature: "0"}}, head + said + tail + `,"temperature":0}`,
		},
		"max tokens beyond 2^53": {
			events.Header{Config: events.Config{MaxTokens: 9007199254740993}}, head + said + tail + `,"max_tokens":9007199254740993}`,
		},
		"stop": {
			events.Header{Config: events.Config{Stop: []string{"\n", "END"}}}, head + said + tail + `,"stop":["\n","END"]}`,
		},
		"everything, in order": {
			events.Header{
				Config: events.Config{
					Stop: []string{""}, MaxTokens: 1, Temperature: "0.7", ReasoningEffort: "max", Model: "m", Provider: "elsewhere",
				},
				System: "s", Tools: tools[1:],
			},
			head + `{"role":"system","content":"s"},` + said + tail + `,"thinking":{"type":"enabled"},"reasoning_effort":"max","tools":[` +
				bare + `],"temperature":0.7,"max_tokens":1,"stop":[""]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bodyOf(t, c.header, nil); got != c.want {
				t.Errorf("body\n %s\nwant\n %s", got, c.want)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	tool := func(l *foldtest.Log, blocks ...events.Block) {
		l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c1", "read", "{}"))
		l.ToolCall()
		l.ToolResult(blocks...)
	}
	const called = `{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{}"}}]},`
	for name, c := range map[string]struct {
		write func(l *foldtest.Log)
		want  string // behind the first user message
	}{
		"texts join without separator": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishStop, foldtest.TextBlock(0, "on", "e"), foldtest.TextBlock(1, "two"))
			},
			`{"role":"assistant","content":"onetwo"}`,
		},
		"reasoning": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, "hm"), foldtest.TextBlock(1, "yes"), foldtest.ReasoningBlock(2, " ok"))
			},
			`{"role":"assistant","content":"yes","reasoning_content":"hm ok"}`,
		},
		"reasoning alone: content is empty, not null": {
			func(l *foldtest.Log) { l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, "hm")) },
			`{"role":"assistant","content":"","reasoning_content":"hm"}`,
		},
		"empty reasoning is none": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, ""), foldtest.TextBlock(1, ""))
			},
			`{"role":"assistant","content":""}`,
		},
		"calls behind text, arguments as the raw string": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishToolCalls,
					foldtest.CallBlock(0, "c1", "read", `{"n": 9007199254740993,`, ` "s":"`+"\u00e9"+`"`),
					foldtest.TextBlock(1, "then"), foldtest.CallBlock(2, "c\n", "", ""))
			},
			`{"role":"assistant","content":"then","tool_calls":[` +
				`{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"n\": 9007199254740993, \"s\":\"` + "\u00e9" + `\""}},` +
				`{"id":"c\n","type":"function","function":{"name":"","arguments":""}}]}`,
		},
		"calls of a cut-off answer are dropped": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishMaxTokens, foldtest.TextBlock(0, "so"), foldtest.CallBlock(1, "c", "read", "{"))
			},
			`{"role":"assistant","content":"so"}`,
		},
		"white space of an interrupted answer is dropped": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishAborted, foldtest.ReasoningBlock(0, "\n \u00a0"), foldtest.TextBlock(1, " so"))
			},
			`{"role":"assistant","content":" so"}`,
		},
		"an answer without blocks is no message": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishAborted, foldtest.TextBlock(0, " "))
				l.StepEnd()
				l.StepStart()
				l.User("again")
			},
			`{"role":"user","content":"again"}`,
		},
		"results": {
			func(l *foldtest.Log) { tool(l, events.Text("a"), events.Text(""), events.Text("b\t")) },
			called + `{"role":"tool","tool_call_id":"c1","content":"ab\t"}`,
		},
		"result of no block": {
			func(l *foldtest.Log) { tool(l) }, called + `{"role":"tool","tool_call_id":"c1","content":"(no output)"}`,
		},
		"empty result": {
			func(l *foldtest.Log) { tool(l, events.Text("")) },
			called + `{"role":"tool","tool_call_id":"c1","content":"(no output)"}`,
		},
		"empty result as an object": {
			func(l *foldtest.Log) { tool(l, l.TextObject("")) },
			called + `{"role":"tool","tool_call_id":"c1","content":"(no output)"}`,
		},
		"white space is output": {
			func(l *foldtest.Log) { tool(l, events.Text("\n")) },
			called + `{"role":"tool","tool_call_id":"c1","content":"\n"}`,
		},
		"errors look like results": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c1", "read", "{}"))
				l.ToolError(events.ToolNotStarted)
			},
			called + `{"role":"tool","tool_call_id":"c1","content":"error: TOOL_NOT_STARTED"}`,
		},
		"parallel results in model order": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c1", "read", "1"), foldtest.CallBlock(1, "c2", "list", "2"))
				l.ToolCall()
				l.ToolCall()
				l.ToolResult(events.Text("one"))
				l.ToolResult(l.TextObject("two"), events.Text("!"))
			},
			`{"role":"assistant","content":"","tool_calls":[` +
				`{"id":"c1","type":"function","function":{"name":"read","arguments":"1"}},` +
				`{"id":"c2","type":"function","function":{"name":"list","arguments":"2"}}]},` +
				`{"role":"tool","tool_call_id":"c1","content":"one"},{"role":"tool","tool_call_id":"c2","content":"two!"}`,
		},
		"pairs split between deltas, blocks and objects join": {
			func(l *foldtest.Log) { tool(l, l.TextObject("a"+high), events.Text(low+"b"), events.Text(low)) },
			called + `{"role":"tool","tool_call_id":"c1","content":"a` + "\U0001F600" + `b\ude00"}`,
		},
		"escapes": {
			func(l *foldtest.Log) {
				tool(l, events.Text("\x00\x07\b\t\n\v\f\r\x1b\x1f \"\\/'"), events.Text("\x7f\u0080\u2028\u2029\ufeff\ufffe</script>&"),
					events.Text(high+"x"+low), events.Text(events.TextFromBytes([]byte{'\xff'})))
			},
			called + `{"role":"tool","tool_call_id":"c1","content":"\u0000\u0007\b\t\n\u000b\f\r\u001b\u001f \"\\/'` +
				"\x7f\u0080\u2028\u2029\ufeff\ufffe</script>&" + `\ud83dx\ude00\udcff"}`,
		},
		"a replacement": {
			func(l *foldtest.Log) {
				l.Reply(events.FinishStop, foldtest.TextBlock(0, "yes"))
				l.StepEnd()
				l.TurnEnd(events.TurnCompleted)
				l.TurnStart()
				l.StepStart()
				nodes := l.State.Nodes()
				l.Replace(nodes[1], nodes[1], "summary")
			},
			`{"role":"user","content":"summary"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := head + said + "," + c.want + tail + "}"
			if got := bodyOf(t, events.Header{}, c.write); got != want {
				t.Errorf("body\n %s\nwant\n %s", got, want)
			}
		})
	}
}

// TestNoMessages is a request that nothing stands in.
func TestNoMessages(t *testing.T) {
	for system, want := range map[string]string{
		"":  head + tail + "}",
		"s": head + `{"role":"system","content":"s"}` + tail + "}",
	} {
		l := foldtest.New()
		l.Begin()
		l.TurnStart()
		l.StepStart()
		l.Header(events.Header{Config: events.Config{Provider: "p", Model: "m"}, System: system})
		r, err := l.State.Request()
		if err != nil {
			t.Fatal(err)
		}
		b := newBuilder(t, codec.Options{})
		body := build(t, b, &r, l.Objects)
		if got := string(body.Bytes()); got != want {
			t.Errorf("body\n %s\nwant\n %s", got, want)
		}
		l.User("go")
		if r, err = l.State.Request(); err != nil {
			t.Fatal(err)
		}
		next := build(t, b, &r, l.Objects)
		comma := ","
		if system == "" {
			comma = ""
		}
		want = strings.Replace(want, "],", comma+said+"],", 1)
		if got := string(next.Bytes()); got != want || next.Reused() != body.Stable() {
			t.Errorf("then %d bytes of %d reused,\n %s\nwant\n %s", next.Reused(), body.Stable(), got, want)
		}
	}
}
