package simulator_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

// impatient returns a client that does not wait long.
func (r *rig) impatient(wait time.Duration) provider.Adapter {
	return r.clientOf(provider.Config{HeaderTimeout: wait, IdleTimeout: wait})
}

// TestFailureCodes: every code that a model call may fail with comes from a real response, or the lack of one.
func TestFailureCodes(t *testing.T) {
	fail := func(kind simulator.FailureKind, status int, body string) simulator.Answer {
		return simulator.Answer{Text: "0123456789abcdef", Failure: &simulator.Failure{Kind: kind, After: 1, Status: status, Body: lossless.Text(body)}}
	}
	tests := []struct {
		code   events.FailureCode
		answer simulator.Answer
	}{
		{events.FailureRateLimit, fail(simulator.FailHTTP, 429, "")},
		{events.FailureServer, fail(simulator.FailHTTP, 503, "")},
		{events.FailureServer, fail(simulator.FailError, 0, "")},
		{events.FailureTimeout, fail(simulator.FailHTTP, 504, "")},
		{events.FailureTimeout, fail(simulator.FailHang, 0, "")},
		{events.FailureTimeout, fail(simulator.FailHangBefore, 0, "")},
		{events.FailureTransport, fail(simulator.FailResetBefore, 0, "")},
		{events.FailureTransport, fail(simulator.FailReset, 0, "")},
		{events.FailureStreamClosed, fail(simulator.FailTruncate, 0, "")},
		{events.FailureEmpty, simulator.Answer{}},
		{events.FailureContextWindow, fail(simulator.FailHTTP, 413, "")},
		{events.FailureQuota, fail(simulator.FailHTTP, 402, "")},
		{events.FailureCredential, fail(simulator.FailHTTP, 401, "")},
		{events.FailureInvalid, fail(simulator.FailHTTP, 422, "")},
		{events.FailureMalformed, fail(simulator.FailMalformed, 0, "")},
		{events.FailureContentFilter, simulator.Answer{Text: "no", Finish: "content_filter"}},
		{events.FailureContentFilter, fail(simulator.FailHTTP, 400, `{"error":{"message":"Content Exists Risk"}}`)},
	}
	var produced []events.FailureCode
	for i, tt := range tests {
		r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{{Answer: tt.answer}}}})
		client := r.adapter
		if f := tt.answer.Failure; f != nil && (f.Kind == simulator.FailHang || f.Kind == simulator.FailHangBefore) {
			client = r.impatient(50 * time.Millisecond)
		}
		got := r.askAs(t.Context(), client, "", chat(user("x")))
		if got.failure.Code != tt.code || got.failure.Message == "" {
			t.Errorf("%d: %+v, want %s", i, got, tt.code)
		}
		produced = append(produced, got.failure.Code)
	}

	// The three that the client's side makes.
	r := newRig(t, simulator.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	produced = append(produced, r.askAs(ctx, r.adapter, "", chat(user("x"))).failure.Code)
	_, err := r.adapter.Prepare(t.Context(), events.Config{Provider: "other", Model: "m"})
	produced = append(produced, provider.FailureOf(err).Code)
	p, err := r.adapter.Prepare(t.Context(), events.Config{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range p.Dispatch(t.Context(), provider.Call{}) {
		produced = append(produced, provider.FailureOf(err).Code)
	}

	slices.Sort(produced)
	want := []events.FailureCode{ // all but INTERRUPTED, which a worker writes for one that died
		events.FailureCancelled, events.FailureContentFilter, events.FailureContextWindow, events.FailureEmpty,
		events.FailureCredential, events.FailurePrepared, events.FailureInvalid, events.FailureMalformed, events.FailureNoAdapter,
		events.FailureQuota, events.FailureRateLimit, events.FailureServer, events.FailureStreamClosed, events.FailureTimeout, events.FailureTransport,
	}
	if diff := cmp.Diff(want, slices.Compact(produced)); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
}

// TestHangUntilCancelled: a call whose answer never comes, or never goes on, ends when it is cancelled.
func TestHangUntilCancelled(t *testing.T) {
	for kind, text := range map[simulator.FailureKind]string{simulator.FailHang: "01", simulator.FailHangBefore: ""} {
		r := newRig(t, simulator.Config{Record: true, Script: simulator.Script{Rules: []simulator.Rule{
			{Answer: simulator.Answer{Text: "0123", DeltaSizes: []int{2}, Failure: &simulator.Failure{Kind: kind, After: 1}}},
		}}})
		ctx, cancel := context.WithCancel(t.Context())
		stop := time.AfterFunc(50*time.Millisecond, cancel)
		got := r.askAs(ctx, r.adapter, "", chat(user("x")))
		stop.Stop()
		cancel()
		if got.failure.Code != events.FailureCancelled || !strings.HasPrefix(text, got.text) {
			t.Errorf("%s: %+v", kind, got)
		}
	}
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
		{Answer: simulator.Answer{Text: "after all", Failure: &simulator.Failure{Kind: simulator.FailHangBefore, HangMs: 1}}},
	}}})
	if got := r.ask(chat(user("x"))); got.text != "after all" {
		t.Errorf("%+v", got)
	}
}

// TestTimes: a failure that goes away after a number of times, in each session.
func TestTimes(t *testing.T) {
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
		{
			When:   simulator.Condition{Contains: "busy", Times: 3},
			Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503, RetryAfter: "0.25"}},
		},
		{Answer: simulator.Answer{Text: "done"}},
	}}})
	for _, session := range []events.ID{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"} {
		var got []string
		for _, text := range []string{"busy", "busy", "else", "busy", "busy", "busy"} {
			a := r.askAs(t.Context(), r.adapter, session, chat(user(text)))
			got = append(got, fmt.Sprintf("%s %s%s %d", text, a.text, a.failure.Code, a.failure.RetryAfterMs))
		}
		want := []string{"busy SERVER 250", "busy SERVER 250", "else done 0", "busy SERVER 250", "busy done 0", "busy done 0"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestSplitSurrogates: with deltas counted in UTF-16, pairs come in halves and are whole when joined.
func TestSplitSurrogates(t *testing.T) {
	const family = "\U0001F468\u200d\U0001F469" // two pairs and a joiner: 5 code units
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{{Answer: simulator.Answer{
		Text: family, Calls: []simulator.Call{{Name: "f", Arguments: `{"a":"` + family + `"}`}}, DeltaSizes: []int{1}, UTF16: true,
	}}}}})
	p, err := r.adapter.Prepare(t.Context(), events.Config{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for c, err := range p.Dispatch(t.Context(), callFor(p, chat(user("x")))) {
		if err != nil {
			t.Fatal(err)
		}
		if c.Type == events.ChunkTextDelta {
			texts = append(texts, c.Texts...)
		}
	}
	want := []string{"\xed\xa0\xbd", "\xed\xb1\xa8", "\u200d", "\xed\xa0\xbd", "\xed\xb1\xa9"}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := r.ask(chat(user("x"))); got.text != family || len(got.calls) != 1 || got.calls[0].Arguments != `{"a":"`+family+`"}` {
		t.Errorf("%+v", got)
	}
}

// TestUTF16Sizes: a code point beyond the basic plane counts as two.
func TestUTF16Sizes(t *testing.T) {
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "utf16"}, Answer: simulator.Answer{Text: "\U0001F600b\U0001F600b", DeltaSizes: []int{2}, UTF16: true}},
		{Answer: simulator.Answer{Text: "\U0001F600b\U0001F600b", DeltaSizes: []int{2}}},
	}}})
	if got := r.ask(chat(user("utf16"))); got.deltas != 3 {
		t.Errorf("%d deltas, want 3 for 6 code units", got.deltas)
	}
	if got := r.ask(chat(user("code points"))); got.deltas != 2 {
		t.Errorf("%d deltas, want 2 for 4 code points", got.deltas)
	}
}

// TestDeltas: however an answer is cut, it is the same answer.
func TestDeltas(t *testing.T) {
	var answer simulator.Answer
	units := []string{"a", "\u00e9", "\uffff", "\U0001F600", "\U0010FFFF", "\xed\xa0\x80", "\xed\xbf\xbf"}
	rapid.Check(t, func(rt *rapid.T) {
		answer = simulator.Answer{DeltaSizes: rapid.SliceOfN(rapid.IntRange(1, 5), 1, 3).Draw(rt, "sizes"), UTF16: rapid.Bool().Draw(rt, "utf16")}
		for _, u := range rapid.SliceOfN(rapid.SampledFrom(units), 1, 20).Draw(rt, "text") {
			answer.Text = lossless.Text(events.JoinText(string(answer.Text), u))
		}
		r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{{Answer: answer}}}})
		if got := r.ask(chat(user("x"))); got.text != string(answer.Text) {
			rt.Fatalf("%q, want %q", got.text, answer.Text)
		}
	})
}

// TestCalls: several calls in one answer, with ids and without.
func TestCalls(t *testing.T) {
	r := newRig(t, simulator.Config{Script: simulator.Script{Rules: []simulator.Rule{{Answer: simulator.Answer{Calls: []simulator.Call{
		{Name: "a", Arguments: "{}"}, {Name: "b", Arguments: "{}", NoID: true}, {Name: "c", Arguments: "{", ID: "own"}, {Name: "d", NoID: true},
	}}}}}})
	got := r.ask(chat(user("x")))
	var ids, names []string
	for _, c := range got.calls {
		ids, names = append(ids, c.ID), append(names, c.Name+c.Arguments)
	}
	if diff := cmp.Diff([]string{"a{}", "b{}", "c{", "d"}, names); diff != "" || got.finish != events.FinishToolCalls {
		t.Fatalf("%s, %+v (-want +got):\n%s", got.finish, got.failure, diff)
	}
	if !strings.HasPrefix(ids[0], "call_") || ids[1] != "call_9_1" || ids[2] != "own" || ids[3] != "call_9_3" {
		t.Errorf("%q", ids)
	}
}

// TestModelWindow: a prompt above a model's context window is refused, with the code that says so.
func TestModelWindow(t *testing.T) {
	r := newRig(t, simulator.Config{ContextWindow: 5000, Script: simulator.Script{Models: []simulator.Model{
		{Name: "small", ContextWindow: 100}, {Name: "large", ContextWindow: 10_000}, {Name: "usual"},
	}}})
	for _, tt := range []struct {
		model  string
		tokens int
		fits   bool
	}{
		{"small", 80, true},
		{"small", 100, false},
		{"usual", 4900, true},
		{"usual", 5000, false},
		{"other", 4900, true},
		{"other", 5000, false},
		{"large", 9900, true},
		{"large", 10_000, false},
	} {
		got := r.ask(`{"model":"` + tt.model + `","messages":[` + user(strings.Repeat("four", tt.tokens)) + `],"stream":true}`)
		if tt.fits && got.failure.Code != "" || !tt.fits && (got.failure.Code != events.FailureContextWindow || got.failure.Status != 400) {
			t.Errorf("%+v: %+v", tt, got.failure)
		}
	}
}

// TestConditions: what a rule is compared with.
func TestConditions(t *testing.T) {
	script, err := simulator.ParseScript([]byte(`{"rules":[
	 {"when":{"images":2},"answer":{"text":"two images"}},
	 {"when":{"contains":"see","toolResults":1},"answer":{"text":"one result"}},
	 {"when":{"contains":"see"},"answer":{"text":"see"}},
	 {"when":{"anywhere":"earlier"},"answer":{"text":"anywhere"}},
	 {"answer":{"text":"none"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, simulator.Config{Script: script})
	inline := inlinePart("image/png", png)
	images := userParts(textPart("Attached image(s) from tool result:"), inline)
	for _, tt := range []struct{ body, want string }{
		{chat(userParts(inline), user("and"), userParts(inline)), "two images"},
		{chat(user("see"), calling("x"), toolResult("x", "r")), "one result"},
		{chat(user("see"), calling("x"), toolResult("x", "r"), images), "one result"}, // the images belong to the result
		{chat(user("see"), calling("x"), toolResult("x", "r"), user("and")), "none"},  // a new message
		{chat(user("see"), user("Working directory: /")), "see"},                      // messages that stand together
		{chat(user("earlier"), assistant("a"), user("now")), "anywhere"},
		{chat(user("a"), assistant("earlier"), user("now")), "anywhere"},
		{chat(`{"role":"system","content":"earlier"}`, user("now")), "none"},
		{chat(user("see"), assistant("a"), user("now")), "none"},
	} {
		if got := r.ask(tt.body); got.text != tt.want {
			t.Errorf("%s: %q, want %q", tt.body, got.text, tt.want)
		}
	}
}

// TestSummary: a request to summarise is a prompt like any other: its answer is a short text, whatever words are in it
// and whatever comes before it.
func TestSummary(t *testing.T) {
	r := newRig(t, simulator.Config{})
	directive := user("Summarise the conversation above for your own later use. List every file that was read, " + strings.Repeat("and read on ", 500))
	for _, body := range []string{
		chatWith(tools, user("list files"), calling("x"), toolResult("x", strings.Repeat("r", 5000)), assistant("done"), directive),
		chatWith(tools, user("list files"), calling("x"), toolResult("x", "r"), directive),
		chatWith(tools, user("read it"), assistant(strings.Repeat("long ", 2000)), user("thanks"), directive),
	} {
		got := r.ask(body)
		if got.finish != events.FinishStop || got.text == "" || len(got.text) > 500 || len(got.calls) > 0 {
			t.Errorf("%+v", got)
		}
		if diff := cmp.Diff(got.text, r.ask(body).text); diff != "" {
			t.Errorf("the same request has another answer:\n%s", diff)
		}
	}
}

// TestDocumentedScript: the example of the manual is a script.
func TestDocumentedScript(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "ops", "simulator.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, found := strings.Cut(rest, "```")
	script, err := simulator.ParseScript([]byte(example))
	if err != nil || !found || len(script.Rules) == 0 || len(script.Uploads) == 0 || len(script.Models) == 0 {
		t.Errorf("%+v, %v", script, err)
	}
}
