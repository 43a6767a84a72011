package provider

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/sse"
	"github.com/refold-dev/refold/pkg/events"
)

// decodeStream decodes an answer in parts and returns its chunks and how it failed.
func decodeStream(seq uint64, parts ...string) ([]events.Chunk, *Error) {
	s := chatStream{seq: seq}
	dec := sse.NewDecoder(0)
	var failed *Error
	emit := func(ev sse.Event) bool {
		failed = s.event(ev)
		return failed == nil && !s.done
	}
	for _, p := range parts {
		if err := dec.Feed([]byte(p), emit); err != nil {
			return s.take(), s.malformed(err)
		}
		if failed != nil {
			return s.take(), failed
		}
		if s.done {
			break
		}
	}
	if !s.done {
		_ = dec.Close(emit)
	}
	if failed == nil {
		failed = s.closed(nil)
	}
	return s.take(), failed
}

// say writes chunks in the short form of the tests: one word each.
func say(chunks []events.Chunk) string {
	var out []string
	for _, c := range chunks {
		switch c.Type {
		case events.ChunkBlockStart:
			out = append(out, fmt.Sprintf("+%d:%s", c.Index, c.BlockType))
		case events.ChunkTextDelta:
			out = append(out, fmt.Sprintf("%d=%q", c.Index, c.Texts))
		case events.ChunkReasoningDelta:
			out = append(out, fmt.Sprintf("%d~%q", c.Index, c.Texts))
		case events.ChunkToolCallDelta:
			out = append(out, fmt.Sprintf("%d!%s/%s%q", c.Index, c.ID, c.Name, c.Texts))
		case events.ChunkBlockEnd:
			out = append(out, fmt.Sprintf("-%d", c.Index))
		case events.ChunkUsage:
			out = append(out, fmt.Sprintf("usage:%d", c.Usage.TotalInput()))
		case events.ChunkFinish:
			out = append(out, fmt.Sprintf("%s(%s)", c.Finish.Kind, c.Finish.Raw))
		default:
			out = append(out, fmt.Sprintf("?%q", c.Type))
		}
	}
	return strings.Join(out, " ")
}

// data writes lines of JSON as events.
func data(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("data: " + l + "\n\n")
	}
	return b.String()
}

func delta(members string) string { return `{"choices":[{"index":0,"delta":{` + members + `}}]}` }

func callPiece(members string) string { return delta(`"tool_calls":[{` + members + `}]`) }

func finish(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

const done = "[DONE]"

var streamTests = []struct {
	name, in string
	want     string
	code     events.FailureCode
}{
	{
		"text", data(delta(`"role":"assistant","content":""`), delta(`"content":"a"`), delta(`"content":" b"`), finish("stop"), done),
		`+0:text 0=["a"] 0=[" b"] -0 stop()`, "",
	},
	{
		"reasoning before text in one delta", data(delta(`"content":"a","reasoning_content":"r"`), finish("stop"), done),
		`+0:reasoning 0~["r"] +1:text 1=["a"] -0 -1 stop()`, "",
	},
	{
		"text goes on after a call", data(delta(`"content":"a"`), callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":"{}"}`), delta(`"content":"b"`), finish("tool_calls"), done),
		`+0:text 0=["a"] +1:tool-call 1!x/f["{}"] 0=["b"] -0 -1 tool-calls()`, "",
	},
	{
		"a split pair", data(delta(`"content":"\ud83d"`), delta(`"content":"\ude00"`), finish("stop"), done),
		`+0:text 0=["\xed\xa0\xbd"] 0=["\xed\xb8\x80"] -0 stop()`, "",
	},
	{
		"raw arguments", data(callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":"{\"n\": 9007199254740993 , \u2028"}`), finish("length"), done),
		`+0:tool-call 0!x/f["{\"n\": 9007199254740993 , \u2028"] -0 max-tokens()`, "",
	},
	{
		"not UTF-8", data(delta("\"content\":\"a\xffb\""), finish("stop"), done),
		`+0:text 0=["a\xed\xb3\xbfb"] -0 stop()`, "",
	},
	{
		"first empty arguments are kept, later ones are not", data(callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":""}`), callPiece(`"index":0,"function":{"arguments":""}`), callPiece(`"index":0`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f[""] -0 tool-calls()`, "",
	},
	{
		"interleaved calls", data(callPiece(`"index":0,"id":"x","function":{"name":"f"}`), callPiece(`"index":1,"id":"y","function":{"name":"g"}`), callPiece(`"index":0,"function":{"arguments":"1"}`), callPiece(`"index":1,"function":{"arguments":"2"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f[""] +1:tool-call 1!y/g[""] 0!x/f["1"] 1!y/g["2"] -0 -1 tool-calls()`, "",
	},
	{
		"no id", data(delta(`"content":"a"`), callPiece(`"index":0,"function":{"name":"f","arguments":"1"}`), callPiece(`"index":0,"id":"late","function":{"arguments":"2"}`), finish("tool_calls"), done),
		`+0:text 0=["a"] +1:tool-call 1!call_7_1/f["1"] 1!call_7_1/f["2"] -0 -1 tool-calls()`, "",
	},
	{
		"an id too long", data(callPiece(`"index":0,"id":"`+strings.Repeat("i", maxCallID+1)+`","function":{"name":"f","arguments":"1"}`), finish("tool_calls"), done),
		`+0:tool-call 0!call_7_0/f["1"] -0 tool-calls()`, "",
	},
	{
		"an id twice", data(callPiece(`"index":0,"id":"x","function":{"name":"f"}`), callPiece(`"index":1,"id":"x","function":{"name":"f"}`), callPiece(`"index":1,"function":{"arguments":"2"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f[""] +1:tool-call 1!call_7_1/f[""] 1!call_7_1/f["2"] -0 -1 tool-calls()`, "",
	},
	{
		"a provider's id in our form", data(callPiece(`"index":0,"id":"call_7_1","function":{"name":"f"}`), callPiece(`"index":1,"function":{"name":"f"}`), finish("tool_calls"), done),
		`+0:tool-call 0!call_7_1/f[""] +1:tool-call 1!call_7_1_1/f[""] -0 -1 tool-calls()`, "",
	},
	{
		"one number for every call", data(callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":"1"}`), callPiece(`"index":0,"id":"y","function":{"name":"f","arguments":"2"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f["1"] +1:tool-call 1!y/f["2"] -0 -1 tool-calls()`, "",
	},
	{
		"an id made anew for every piece", data(callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":"1"}`), callPiece(`"index":0,"id":"y","function":{"arguments":"2"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f["1"] 0!x/f["2"] -0 tool-calls()`, "",
	},
	{
		"neither numbers nor ids", data(callPiece(`"function":{"name":"f","arguments":"1"}`), callPiece(`"function":{"arguments":"2"}`), callPiece(`"function":{"name":"g","arguments":"3"}`), finish("tool_calls"), done),
		`+0:tool-call 0!call_7_0/f["1"] 0!call_7_0/f["2"] +1:tool-call 1!call_7_1/g["3"] -0 -1 tool-calls()`, "",
	},
	{
		"ids without numbers", data(callPiece(`"id":"x","function":{"name":"f"}`), callPiece(`"id":"y","function":{"name":"g"}`), callPiece(`"id":"x","function":{"arguments":"1"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/f[""] +1:tool-call 1!y/g[""] 0!x/f["1"] -0 -1 tool-calls()`, "",
	},
	{
		"a late name", data(callPiece(`"index":0,"id":"x","function":{"arguments":"1"}`), callPiece(`"index":0,"function":{"name":"f"}`), callPiece(`"index":0,"function":{"name":"f","arguments":"2"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/["1"] 0!x/f[""] 0!x/f["2"] -0 tool-calls()`, "",
	},
	{
		"no name at all", data(callPiece(`"index":0,"id":"x","function":{"arguments":"1"}`), finish("tool_calls"), done),
		`+0:tool-call 0!x/["1"]`, events.FailureMalformed,
	},
	{
		"stop with a call", data(callPiece(`"index":0,"id":"x","function":{"name":"f"}`), finish("stop"), done),
		`+0:tool-call 0!x/f[""] -0 tool-calls(stop)`, "",
	},
	{"an unknown reason", data(delta(`"content":"a"`), finish("weary"), done), `+0:text 0=["a"] -0 stop(weary)`, ""},
	{"no reason", data(delta(`"content":"a"`), done), `+0:text 0=["a"] -0 stop()`, ""},
	{"an empty reason", data(delta(`"content":"a"`), finish(""), done), `+0:text 0=["a"] -0 stop()`, ""},
	{"length without content", data(finish("length"), done), `max-tokens()`, ""},
	{"tool_calls without calls", data(finish("tool_calls"), done), `tool-calls()`, ""},
	{"empty", data(delta(`"content":""`), finish("stop"), done), "", events.FailureEmpty},
	{"empty without reason", data(delta(`"content":null`), done), "", events.FailureEmpty},
	{
		"filtered", data(delta(`"content":"a"`), `{"choices":[{"delta":{},"finish_reason":"content_filter"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}`, done),
		`+0:text 0=["a"] -0 usage:9`, events.FailureContentFilter,
	},
	{"out of resources", data(delta(`"content":"a"`), finish("insufficient_system_resource"), done), `+0:text 0=["a"]`, events.FailureServer},

	{"complete without [DONE]", data(delta(`"content":"a"`), finish("stop")), `+0:text 0=["a"] -0 stop()`, ""},
	{"closed", data(delta(`"content":"a"`)), `+0:text 0=["a"]`, events.FailureStreamClosed},
	{"nothing at all", "", "", events.FailureStreamClosed},
	{"[DONE] without a blank line", data(delta(`"content":"a"`)) + "data: [DONE]\n", `+0:text 0=["a"] -0 stop()`, ""},
	{"[DONE] without a line end", data(delta(`"content":"a"`)) + "data: [DONE]", `+0:text 0=["a"] -0 stop()`, ""},
	{"half of [DONE]", data(delta(`"content":"a"`)) + "data: [DON", `+0:text 0=["a"]`, events.FailureStreamClosed},
	{"a whole object without a blank line", data(delta(`"content":"a"`)) + "data: " + finish("stop"), `+0:text 0=["a"] -0 stop()`, ""},
	{"half an object", data(delta(`"content":"a"`)) + `data: {"choices":[{"delta":{"content":"b"`, `+0:text 0=["a"]`, events.FailureStreamClosed},
	{"nothing counts after [DONE]", data(delta(`"content":"a"`), done, "{", delta(`"content":"b"`)), `+0:text 0=["a"] -0 stop()`, ""},

	{"comments and empty data", ": keep-alive\n\ndata:\n\n" + data(delta(`"content":"a"`), done), `+0:text 0=["a"] -0 stop()`, ""},
	{"an object over two lines", "data: {\"choices\":\r\ndata: [{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n" + data(done), `+0:text 0=["a"] -0 stop()`, ""},
	{"nulls everywhere", data(`{"choices":null,"usage":null,"error":null}`, `{"choices":[{"delta":null,"finish_reason":null}]}`, delta(`"content":null,"reasoning_content":null,"tool_calls":null`), delta(`"content":"a"`), done), `+0:text 0=["a"] -0 stop()`, ""},
	{"the last of two names counts", data(delta(`"content":"x","content":"a"`), done), `+0:text 0=["a"] -0 stop()`, ""},
	{"unknown members", data(`{"x":{"choices":[{}]},"choices":[{"logprobs":{"content":[1]},"delta":{"content":"a","refusal":null,"y":[{}]}}]}`, done), `+0:text 0=["a"] -0 stop()`, ""},

	{"no JSON", data(delta(`"content":"a"`), "{not json", done), `+0:text 0=["a"]`, events.FailureMalformed},
	{"two values", data(delta(`"content":"a"`)+"{}", done), "", events.FailureMalformed},
	{"no object", data(`"text"`, done), "", events.FailureMalformed},
	{"content that is no text", data(delta(`"content":[{"type":"text"}]`), done), "", events.FailureMalformed},
	{"arguments that are no text", data(callPiece(`"index":0,"id":"x","function":{"name":"f","arguments":{}}`), done), "", events.FailureMalformed},
	{"a second choice", data(`{"choices":[{"delta":{}},{"delta":{}}]}`, done), "", events.FailureMalformed},
	{"another choice", data(`{"choices":[{"index":1,"delta":{"content":"a"}}]}`, done), "", events.FailureMalformed},
	{"usage that is no object", data(`{"choices":[],"usage":3}`, done), "", events.FailureMalformed},

	{"an error object", data(delta(`"content":"a"`), `{"error":{"message":"busy","type":"server_error"}}`), `+0:text 0=["a"]`, events.FailureServer},
	{"an error text", data(`{"error":"busy"}`), "", events.FailureServer},
	{"an error event", "event: error\n" + data(`{"message":"slow down","type":"rate_limit_error"}`), "", events.FailureRateLimit},
	{"an error event of bare text", "event: error\n" + data(`overloaded`), "", events.FailureServer},
	{"an error event without data", "event: error\ndata\n\n", "", events.FailureServer},
	{"an error by number", data(`{"error":{"message":"x","code":429}}`), "", events.FailureRateLimit},
	{"a full context", data(`{"error":{"message":"x","code":"context_length_exceeded"}}`), "", events.FailureContextWindow},
	{
		"usage before an error", data(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, `{"error":{"message":"busy"}}`),
		`+0:text 0=["a"] usage:5`, events.FailureServer,
	},
	{
		"usage in a chunk without choices", data(delta(`"content":"a"`), finish("stop"), `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, done),
		`+0:text 0=["a"] -0 usage:5 stop()`, "",
	},
	{
		"usage in every chunk", data(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, `{"choices":[{"delta":{}}],"usage":{"prompt_tokens":6,"completion_tokens":2}}`, done),
		`+0:text 0=["a"] -0 usage:6 stop()`, "",
	},
	{
		"usage in two halves", data(`{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5}}`, `{"choices":[],"usage":{"completion_tokens":2}}`, done),
		`+0:text 0=["a"] -0 usage:5 usage:5 stop()`, "",
	},
}

func TestChatStream(t *testing.T) {
	for _, tt := range streamTests {
		t.Run(tt.name, func(t *testing.T) {
			chunks, failed := decodeStream(7, tt.in)
			if got := say(chunks); got != tt.want {
				t.Errorf("chunks\n got %s\nwant %s", got, tt.want)
			}
			var code events.FailureCode
			if failed != nil {
				code = failed.Failure.Code
			}
			if code != tt.code {
				t.Errorf("failure = %v, want code %q", failed, tt.code)
			}
			if failed != nil && (failed.Failure.Message == "" || !events.ValidText(failed.Failure.Message)) {
				t.Errorf("message %q", failed.Failure.Message)
			}
			checkSplit(t, tt.in)
			checkEncodable(t, chunks)
		})
	}
}

// checkSplit decodes byte by byte and compares.
func checkSplit(t *testing.T, in string) {
	t.Helper()
	parts := make([]string, len(in))
	for i := range len(in) {
		parts[i] = in[i : i+1]
	}
	whole, failed := decodeStream(7, in)
	split, splitFailed := decodeStream(7, parts...)
	if diff := cmp.Diff(whole, split); diff != "" || (failed == nil) != (splitFailed == nil) ||
		failed != nil && failed.Failure != splitFailed.Failure {
		t.Errorf("byte by byte: %v, %v (-whole +split):\n%s", failed, splitFailed, diff)
	}
}

// checkEncodable proves that the log takes the chunks and gives them back.
func checkEncodable(t *testing.T, chunks []events.Chunk) {
	t.Helper()
	if len(chunks) == 0 {
		return
	}
	e := events.Event{
		Seq: 5, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Time: 1, Prev: events.Hash{1},
		Body: &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: chunks},
	}
	b, err := events.Encode(&e)
	if err != nil {
		t.Fatalf("the log refuses the chunks: %v", err)
	}
	back, err := events.Decode(b)
	if err != nil {
		t.Fatalf("the log cannot be read: %v", err)
	}
	if diff := cmp.Diff(chunks, back.Body.(*events.AssistantChunk).Chunks); diff != "" {
		t.Fatalf("through the log (-before +after):\n%s", diff)
	}
}

func TestTooManyBlocks(t *testing.T) {
	var lines []string
	for i := range maxBlocks + 1 {
		lines = append(lines, callPiece(fmt.Sprintf(`"index":%d,"id":"x%d","function":{"name":"f"}`, i, i)))
	}
	chunks, failed := decodeStream(7, data(lines...))
	if failed == nil || failed.Failure.Code != events.FailureMalformed || len(chunks) != 2*maxBlocks {
		t.Errorf("%d chunks, %v", len(chunks), failed)
	}
}

// FuzzChatStream: no input panics, splitting it makes no difference and the log takes every chunk.
func FuzzChatStream(f *testing.F) {
	for _, tt := range streamTests {
		f.Add(tt.in)
	}
	for _, tt := range usageTests {
		f.Add(data(`{"choices":[{"delta":{"content":"a"}}],"usage":`+tt.in+`}`, done))
	}
	f.Fuzz(func(t *testing.T, in string) {
		chunks, failed := decodeStream(7, in)
		if failed != nil && !events.ValidText(failed.Failure.Message) {
			t.Errorf("message %q", failed.Failure.Message)
		}
		if n := len(chunks); failed == nil && (n == 0 || chunks[n-1].Type != events.ChunkFinish) {
			t.Errorf("an answer ends without finish and without failure: %s", say(chunks))
		}
		checkSplit(t, in)
		checkEncodable(t, chunks)
	})
}
