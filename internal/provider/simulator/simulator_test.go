package simulator_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a simulator, its server and a client.
type rig struct {
	t       *testing.T
	sim     *simulator.Simulator
	url     string
	adapter provider.Adapter
}

func newRig(t *testing.T, cfg simulator.Config) *rig {
	t.Helper()
	sim, err := simulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(sim)
	t.Cleanup(s.Close)
	r := &rig{t: t, sim: sim, url: s.URL}
	r.adapter = r.client(cfg.Key)
	return r
}

func (r *rig) client(key string) provider.Adapter {
	r.t.Helper()
	var cfg provider.Config
	if key != "" {
		secret, err := provider.NewSecret(key)
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.Key = secret
	}
	return r.clientOf(cfg)
}

// clientOf returns a client for the simulator, closed after the test.
func (r *rig) clientOf(cfg provider.Config) provider.Adapter {
	r.t.Helper()
	cfg.BaseURL = r.url
	a, err := provider.New(provider.KindDeepSeek, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = a.(io.Closer).Close() })
	return a
}

// result is an answer put together.
type result struct {
	reasoning, text string
	calls           []events.Block
	usage           events.Usage
	finish          events.FinishKind
	failure         events.Failure
	deltas          int
}

func (r *rig) ask(body string) result {
	return r.askAs(r.t.Context(), r.adapter, "01ARZ3NDEKTSV4RRFFQ69G5FAV", body)
}

func (r *rig) askAs(ctx context.Context, a provider.Adapter, session events.ID, body string) result {
	p, err := a.Prepare(ctx, events.Config{Model: "m"})
	if err != nil {
		r.t.Error(err)
		return result{}
	}
	call := callFor(p, body)
	call.Session = session
	var out result
	at := make(map[int64]int)
	for c, err := range p.Dispatch(ctx, call) {
		if err != nil {
			out.failure = provider.FailureOf(err)
			break
		}
		out.deltas += len(c.Texts)
		switch c.Type {
		case events.ChunkTextDelta:
			out.text = events.JoinText(out.text, c.Texts[0])
		case events.ChunkReasoningDelta:
			out.reasoning = events.JoinText(out.reasoning, c.Texts[0])
		case events.ChunkToolCallDelta:
			i, ok := at[c.Index]
			if !ok {
				i = len(out.calls)
				at[c.Index] = i
				out.calls = append(out.calls, events.Block{Type: events.BlockToolCall, ID: c.ID, Name: c.Name})
			}
			out.calls[i].Arguments = events.JoinText(out.calls[i].Arguments, c.Texts[0])
		case events.ChunkUsage:
			out.usage = c.Usage
		case events.ChunkFinish:
			out.finish = c.Finish.Kind
		default: // a block's start or end
		}
	}
	return out
}

// callFor returns the call with a body.
func callFor(p *provider.Prepared, body string) provider.Call {
	return provider.Call{
		Config: p.Config(), Seq: 9, Bytes: int64(len(body)), SHA256: sha256.Sum256([]byte(body)),
		Body: func() io.Reader { return strings.NewReader(body) },
	}
}

// chat writes a request body with messages, each given as JSON.
func chat(messages ...string) string { return chatWith("", messages...) }

func chatWith(members string, messages ...string) string {
	return `{"model":"m",` + members + `"messages":[` + strings.Join(messages, ",") + `],"stream":true}`
}

func user(text string) string      { return `{"role":"user","content":"` + text + `"}` }
func assistant(text string) string { return `{"role":"assistant","content":"` + text + `"}` }

func calling(ids ...string) string {
	var calls []string
	for _, id := range ids {
		calls = append(calls, `{"id":"`+id+`","type":"function","function":{"name":"f","arguments":"{}"}}`)
	}
	return `{"role":"assistant","content":"","tool_calls":[` + strings.Join(calls, ",") + `]}`
}

func toolResult(id, text string) string {
	return `{"role":"tool","tool_call_id":"` + id + `","content":"` + text + `"}`
}

const tools = `"tools":[{"type":"function","function":{"name":"bash","description":"","parameters":{"type":"object"}}},` +
	`{"type":"function","function":{"name":"read_file","description":"","parameters":{"type":"object",` +
	`"properties":{"path":{"type":"string"},"limit":{"type":"integer"},"all":{"type":"boolean"}},"required":["path","limit"]}}}],`

func TestBuiltIn(t *testing.T) {
	r := newRig(t, simulator.Config{})
	first := r.ask(chat(user("hello")))
	if first.finish != events.FinishStop || !strings.Contains(first.text, "hello") || first.reasoning == "" {
		t.Errorf("%+v", first)
	}
	again := r.ask(chat(user("hello")))
	if diff := cmp.Diff(first, again, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("the same request has another answer (-first +second):\n%s", diff)
	}
	call := r.ask(chatWith(tools, user("Please read docs/a.md.")))
	if call.finish != events.FinishToolCalls || len(call.calls) != 1 || call.calls[0].Name != "read_file" ||
		call.calls[0].Arguments != `{"path":"docs/a.md","limit":1}` || call.calls[0].ID == "" {
		t.Errorf("%+v", call)
	}
	if got := r.ask(chatWith(tools, user("list this"))); len(got.calls) != 1 || got.calls[0].Name != "bash" || got.calls[0].Arguments != "{}" {
		t.Errorf("%+v", got)
	}
	after := r.ask(chatWith(tools, user("read x"), calling("c1"), toolResult("c1", "the content")))
	if after.finish != events.FinishStop || !strings.Contains(after.text, "the content") {
		t.Errorf("%+v", after)
	}
	if got := r.ask(chat(user("read without tools"))); got.finish != events.FinishStop {
		t.Errorf("%+v", got)
	}
}

const script = `{"rules":[
 {"when":{"contains":"both","toolResults":0},"answer":{"reasoning":"think \ud83d\ude00","text":"on it","calls":[
   {"name":"f","arguments":"{\"a\":\"\ud800\"","id":"own"},{"name":"g","arguments":"","noId":true}],"deltaSizes":[1,2]}},
 {"when":{"contains":"both","toolResults":2},"answer":{"text":"done"}},
 {"when":{"contains":"flaky","nth":1},"answer":{"failure":{"kind":"http","status":503,"retryAfter":"2"}}},
 {"when":{"contains":"flaky","nth":2},"answer":{"failure":{"kind":"reset-before"}}},
 {"when":{"contains":"flaky"},"answer":{"text":"third time"}},
 {"when":{"model":"other"},"answer":{"text":"other model"}},
 {"when":{"system":"pirate"},"answer":{"text":"arr"}},
 {"when":{"contains":"usage"},"answer":{"text":"u","usage":{"prompt_tokens":7,"completion_tokens":1},"usageAt":"separate"}},
 {"when":{"contains":"null"},"answer":{"text":"u","usage":null}},
 {"when":{"contains":"none"},"answer":{"text":"u","usageAt":"none"}},
 {"when":{"contains":"cut"},"answer":{"text":"u","finish":"length"}},
 {"when":{"contains":"filter"},"answer":{"text":"u","finish":"content_filter"}},
 {"when":{"contains":"empty"},"answer":{}},
 {"when":{"contains":"slow"},"answer":{"text":"0123456789","deltaSizes":[5],"delaysMs":[0,1]}}
]}`

func TestScript(t *testing.T) {
	path := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := simulator.LoadScript(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := simulator.ParseScript(b)
	if diff := cmp.Diff(s, again); err != nil || diff != "" {
		t.Fatalf("through Marshal: %v (-before +after):\n%s", err, diff)
	}
	r := newRig(t, simulator.Config{Script: again})

	got := r.ask(chat(user("do both")))
	want := result{
		reasoning: "think \U0001F600", text: "on it", finish: events.FinishToolCalls, usage: got.usage, deltas: got.deltas,
		calls: []events.Block{
			{Type: events.BlockToolCall, ID: "own", Name: "f", Arguments: "{\"a\":\"\xed\xa0\x80\""},
			{Type: events.BlockToolCall, ID: "call_9_3", Name: "g"},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.deltas < 10 {
		t.Errorf("%d deltas: the sizes were not used", got.deltas)
	}
	if got := r.ask(chat(user("do both"), calling("a", "b"), toolResult("b", "1"), toolResult("a", "2"))); got.text != "done" {
		t.Errorf("%+v", got)
	}
	if len(r.sim.Requests()) != 0 {
		t.Error("requests are recorded unasked")
	}
	for _, session := range []events.ID{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"} { // each counts anew
		for i, code := range []events.FailureCode{events.FailureServer, events.FailureTransport, ""} {
			got := r.askAs(t.Context(), r.adapter, session, chat(user("flaky")))
			if got.failure.Code != code || i == 0 && got.failure.RetryAfterMs != 2000 || i == 2 && got.text != "third time" {
				t.Errorf("attempt %d: %+v", i, got)
			}
		}
	}
	for text, check := range map[string]func(result) bool{
		"usage":  func(r result) bool { return r.usage == events.Usage{InputTokens: 7, OutputTokens: 1} },
		"null":   func(r result) bool { return r.usage == events.Usage{} && r.finish == events.FinishStop },
		"none":   func(r result) bool { return r.usage == events.Usage{} && r.finish == events.FinishStop },
		"cut":    func(r result) bool { return r.finish == events.FinishMaxTokens },
		"filter": func(r result) bool { return r.failure.Code == events.FailureContentFilter },
		"empty":  func(r result) bool { return r.failure.Code == events.FailureEmpty },
		"slow":   func(r result) bool { return r.text == "0123456789" && r.deltas == 2 },
	} {
		if got := r.ask(chat(user(text))); !check(got) {
			t.Errorf("%s: %+v", text, got)
		}
	}
	if got := r.ask(chat(`{"role":"system","content":"be a pirate"}`, user("hi"))); got.text != "arr" {
		t.Errorf("%+v", got)
	}
	if got := r.ask(`{"model":"other","messages":[` + user("hi") + `],"stream":true}`); got.text != "other model" {
		t.Errorf("%+v", got)
	}
}

func TestScriptErrors(t *testing.T) {
	for _, in := range []string{
		`{`, `{"rules":[{"answer":{"txt":"x"}}]}`, `{"rules":[{"answer":{"deltaSizes":[0]}}]}`, `{"rules":[{"answer":{"delaysMs":[-1]}}]}`,
		`{"rules":[{"answer":{"usageAt":"x"}}]}`, `{"rules":[{"answer":{"failure":{"kind":"x"}}}]}`,
		`{"rules":[{"answer":{"failure":{"kind":"http","status":200}}}]}`, `{"rules":[{"when":{"nth":-1},"answer":{}}]}`,
		`{"rules":[{"answer":{"failure":{"kind":"hang","hangMs":-1}}}]}`, `{"rules":[{"when":{"times":-1},"answer":{}}]}`,
		`{"rules":[{"when":{"nth":1,"times":1},"answer":{}}]}`, `{"rules":[],"models":[{"contextWindow":5}]}`,
		`{"rules":[],"models":[{"name":"m","contextWindow":-5}]}`, `{"rules":[],"models":[{"name":"m"},{"name":"m"}]}`,
		`{"rules":[],"uploads":[{"failure":{"kind":"hang"}}]}`, `{"rules":[],"uploads":[{"failure":{"kind":"http","status":200}}]}`,
		`{"rules":[],"uploads":[{"when":{"nth":-1},"failure":{"kind":"reset-before"}}]}`, `{"rules":[],"uploads":[{"when":{}}]}`,
	} {
		if _, err := simulator.ParseScript([]byte(in)); !errors.Is(err, simulator.ErrScript) {
			t.Errorf("%s: %v", in, err)
		}
	}
	if _, err := simulator.LoadScript(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestFailures(t *testing.T) {
	tests := []struct {
		failure simulator.Failure
		text    string
		code    events.FailureCode
	}{
		{simulator.Failure{Kind: simulator.FailHTTP, Status: 429, Body: `{"error":{"message":"m"}}`, RetryAfter: "1"}, "", events.FailureRateLimit},
		{simulator.Failure{Kind: simulator.FailResetBefore}, "", events.FailureTransport},
		{simulator.Failure{Kind: simulator.FailTruncate, After: 2}, "0123", events.FailureStreamClosed},
		{simulator.Failure{Kind: simulator.FailTruncate, After: 99}, "0123456789", events.FailureStreamClosed},
		{simulator.Failure{Kind: simulator.FailError, After: 1}, "01", events.FailureServer},
		{simulator.Failure{Kind: simulator.FailError, After: 1, Body: "{\"error\":\n{\"type\":\"rate_limit\"}}"}, "01", events.FailureRateLimit},
		{simulator.Failure{Kind: simulator.FailMalformed, After: 3}, "012345", events.FailureMalformed},
		{simulator.Failure{Kind: simulator.FailHang, After: 1, HangMs: 1}, "0123456789", ""},
		{simulator.Failure{Kind: simulator.FailNoDone}, "0123456789", ""},
	}
	for _, tt := range tests {
		f := tt.failure
		r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
			{Answer: simulator.Answer{Text: "0123456789", DeltaSizes: []int{2}, Failure: &f}},
		}}})
		if got := r.ask(chat(user("x"))); got.text != tt.text || got.failure.Code != tt.code {
			t.Errorf("%+v: %+v", f, got)
		}
	}

	reset := simulator.Failure{Kind: simulator.FailReset, After: 2}
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
		{Answer: simulator.Answer{Text: "0123456789", DeltaSizes: []int{2}, Failure: &reset}},
	}}})
	// How much of the text survives the reset is the network's affair.
	if got := r.ask(chat(user("x"))); !slices.Contains([]string{"", "01", "0123"}, got.text) || got.failure.Code != events.FailureTransport {
		t.Errorf("reset: %+v", got)
	}
}

func TestValidation(t *testing.T) {
	r := newRig(t, simulator.Config{Record: true})
	good := []string{
		chat(user("a"), assistant("b"), user("c")),
		chat(user("a"), calling("x", "y"), toolResult("y", ""), toolResult("x", ""), user("b")),
		chat(user("a"), calling("x"), toolResult("x", ""), calling("x"), toolResult("x", "")),
		chat(user("a"), `{"role":"assistant","content":"","reasoning_content":"r"}`, user("b")),
		chat(user(`lone \ud800`)),
		chatWith(`"thinking":{"type":"disabled"},"temperature":0.5,"max_tokens":5,"stop":["x"],"x":{"y":[]},`, user("a")),
		chat(`{"role":"user","content":[{"type":"text","text":"parts"}]}`),
	}
	for _, body := range good {
		if got := r.ask(body); got.failure.Code != "" {
			t.Errorf("%s: %+v", body, got.failure)
		}
	}
	bad := []string{
		"", "{", "[]", chat(user("a")) + "{}", "{\"model\":\"\xff\"}", chatWith(`"model":"again",`, user("a")),
		`{"messages":[` + user("a") + `],"stream":true}`, chat(), `{"model":"m","messages":[` + user("a") + `]}`,
		chat(`{"role":"king","content":"a"}`), chat(`{"role":"user"}`), chat(`{"role":"user","content":7}`), chat(`{"role":"assistant"}`),
		chat(user("a"), calling("x")), chat(user("a"), calling("x"), user("b")), chat(user("a"), calling("x", "y"), toolResult("x", ""), user("b"), toolResult("y", "")),
		chat(user("a"), calling("x"), toolResult("x", ""), toolResult("x", "")), chat(user("a"), toolResult("x", "")),
		chat(user("a"), calling("x", "x"), toolResult("x", "")), chat(user("a"), calling("")), chat(user("a"), calling()),
		chat(user("a"), calling("x"), `{"role":"tool","tool_call_id":"x"}`),
		chatWith(`"max_tokens":0,`, user("a")), chatWith(`"temperature":3,`, user("a")), chatWith(`"reasoning_effort":"off",`, user("a")),
		chatWith(`"tools":[{"type":"function","function":{"name":"a b"}}],`, user("a")), chatWith(`"tools":[{"type":"x","function":{"name":"a"}}],`, user("a")),
		chatWith(`"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}],`, user("a")),
		chatWith(`"tools":[{"type":"function","function":{"name":"a","parameters":[]}}],`, user("a")),
		chatWith(`"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"],`, user("a")),
	}
	for _, body := range bad {
		if body == "" {
			continue // the client refuses to send it
		}
		if got := r.ask(body); got.failure.Code != events.FailureInvalid || got.failure.Status != http.StatusBadRequest {
			t.Errorf("%s: %+v", body, got)
		}
	}
	requests := r.sim.Requests()
	if len(requests) != len(good)+len(bad)-1 {
		t.Fatalf("%d requests recorded", len(requests))
	}
	want := simulator.Request{Path: "/chat/completions", Session: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Seq: 9, Body: []byte(good[0]), Status: 200}
	if diff := cmp.Diff(want, requests[0]); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if requests[len(good)].Status != http.StatusBadRequest {
		t.Errorf("status %d recorded for a refused request", requests[len(good)].Status)
	}
}

func TestKeyAndPaths(t *testing.T) {
	r := newRig(t, simulator.Config{Key: "sk-right"})
	if got := r.ask(chat(user("a"))); got.failure.Code != "" {
		t.Errorf("%+v", got)
	}
	for _, key := range []string{"sk-wrong", ""} {
		got := r.askAs(t.Context(), r.client(key), "", chat(user("a")))
		if got.failure.Code != events.FailureCredential || strings.Contains(got.failure.Message, "sk-") {
			t.Errorf("%q: %+v", key, got)
		}
	}
	for path, status := range map[string]int{"/": 404, "/v1/chat/completions": 405, "/v1/files": 405} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("GET %s: %d", path, resp.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestContextWindow(t *testing.T) {
	r := newRig(t, simulator.Config{ContextWindow: 100})
	if got := r.ask(chat(user(strings.Repeat("x", 1000)))); got.failure.Code != events.FailureContextWindow {
		t.Errorf("%+v", got)
	}
}

// TestServer: Run serves until it is told to stop, and ends answers that hang.
func TestServer(t *testing.T) {
	sim, err := simulator.New(simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "hang"}, Answer: simulator.Answer{Text: "ab", DeltaSizes: []int{1}, Failure: &simulator.Failure{Kind: simulator.FailHang, After: 1}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := simulator.Listen("127.0.0.1:0", sim)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- s.Run(ctx) }()
	r := &rig{t: t, sim: sim, url: s.URL()}
	r.adapter = r.client("")
	if got := r.ask(chat(user("hello"))); got.finish != events.FinishStop {
		t.Errorf("%+v", got)
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	if got := r.ask(chat(user("hang"))); got.text != "a" || got.failure.Code == "" {
		t.Errorf("%+v", got)
	}
	if err := <-ran; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := simulator.Listen("256.0.0.1:0", sim); err == nil {
		t.Error("an address that is none was bound")
	}
}

// TestConcurrent: many sessions at once get what they would get alone.
func TestConcurrent(t *testing.T) {
	r := newRig(t, simulator.Config{Record: true})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			text := fmt.Sprintf("number %d", i)
			if got := r.ask(chat(user(text))); !strings.Contains(got.text, text) {
				t.Errorf("%s: %+v", text, got)
			}
		})
	}
	wg.Wait()
	if n := len(r.sim.Requests()); n != 32 {
		t.Errorf("%d requests recorded, want 32", n)
	}
}
