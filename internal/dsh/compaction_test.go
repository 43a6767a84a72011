package dsh_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// twoTurns is a log of two turns; it returns the sequences of their four messages.
func twoTurns() (l *record, nodes []int) {
	l = open("one")
	nodes = append(nodes, 2)
	l.reply("first")
	nodes = append(nodes, l.seq-1)
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	l.turnStart()
	l.stepStart()
	nodes = append(nodes, l.user("two"))
	l.reply("second")
	nodes = append(nodes, l.seq-1)
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	return l, nodes
}

func (l *record) summary(id, text string, nodes []int) int {
	return l.row("compaction/summary", fmt.Sprintf(`{"compactionId":%q,"summary":[%s],"rawOutput":[],"llmStreamCall":true,"shadowedRange":{"start":%d,"end":%d},"shadowedSeqs":[],"shadowedTokenCount":9.5,"provider":"p","model":"m","maxTokens":256,"usage":{"inputTokens":1,"outputTokens":2}}`,
		id, blockText(text), nodes[0], nodes[len(nodes)-1]), "")
}

// checkpoint replaces the nodes by a message that cites events.
func (l *record) checkpoint(id, text string, nodes []int, cites ...int) {
	l.row("user/message", fmt.Sprintf(`{"content":[%s],"source":{"kind":"plugin","plugin":"compact","compactionId":%q},"role":"user","id":"k%d"}`, blockText(text), id, l.seq),
		fmt.Sprintf(`,"sourceEventSeqs":%s,"surfaceOp":{"op":"replace","start":%d,"end":%d}`,
			strings.ReplaceAll(fmt.Sprint(slices.Concat(cites, nodes)), " ", ","), nodes[0], nodes[len(nodes)-1]))
}

func (l *record) compactionStart(id, turn string) int {
	return l.row("compaction/start", fmt.Sprintf(`{"compactionId":%q,"turn":%s}`, id, turn), "")
}

func (l *record) compactionEnd(id, rest string) {
	l.row("compaction/end", fmt.Sprintf(`{"compactionId":%q,"turn":null%s}`, id, rest), "")
}

// types returns the types of the events whose name begins with one of the prefixes.
func types(s *dsh.Session, prefixes ...string) []string {
	var out []string
	for i := range s.Events {
		name := string(s.Events[i].Type())
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			if e, ok := s.Events[i].Body.(*events.CompactionEnd); ok {
				name += " " + string(e.Outcome)
			}
			out = append(out, name)
		}
	}
	return out
}

// TestCompactions pairs the events of compactions as our log has them, and keeps as it is what does not pair.
func TestCompactions(t *testing.T) {
	t.Parallel()
	after := func(said string) []string {
		first := []string{wireUser("one")}
		second := append(slices.Clone(first), wireSaid("first"), wireUser("two"))
		return []string{body("m", first...), body("m", second...), body("m", wireUser("sum"), wireSaid("second"), wireUser(said))}
	}
	whole := func(l *record) {
		l.turnStart()
		l.stepStart()
		l.user("three")
		l.reply("third")
		l.stepEnd()
		l.turnEnd(`{"kind":"completed"}`)
	}
	for name, c := range map[string]struct {
		make func(l *record, nodes []int)
		want []string
	}{
		"between turns": {func(l *record, nodes []int) {
			start := l.compactionStart("c", "null")
			l.row("agent/inbox/spliced", `{}`, "")
			sum := l.summary("c", "sum", nodes[:3])
			l.checkpoint("c", "sum", nodes[:3], start, sum)
			l.compactionEnd("c", "")
			whole(l)
		}, []string{"compaction/start", "compaction/summary", "compaction/end completed"}},
		"cites too little, ends never": {func(l *record, nodes []int) {
			l.compactionStart("c", "null")
			l.summary("c", "sum", nodes[:3])
			l.checkpoint("c", "sum", nodes[:3])
			whole(l)
		}, []string{"compaction/start", "compaction/summary", "compaction/end completed"}},
		"no summary": {func(l *record, nodes []int) {
			start := l.compactionStart("c", "null")
			l.checkpoint("c", "sum", nodes[:3], start)
			l.compactionEnd("c", "")
			whole(l)
		}, []string{"compaction/start", "compaction/end interrupted", "dsh/compaction/end"}},
		"no start": {func(l *record, nodes []int) {
			sum := l.summary("c", "sum", nodes[:3])
			l.checkpoint("c", "sum", nodes[:3], sum)
			l.compactionEnd("c", "")
			whole(l)
		}, []string{"dsh/compaction/summary", "dsh/compaction/end"}},
		"a summary of other nodes": {func(l *record, nodes []int) {
			start := l.compactionStart("c", "null")
			sum := l.summary("c", "sum", nodes[:2])
			l.checkpoint("c", "sum", nodes[:3], start, sum)
			whole(l)
		}, []string{"compaction/start", "compaction/summary", "compaction/end interrupted"}},
		"one fails, one begins in the next": {func(l *record, nodes []int) {
			l.compactionStart("a", "null")
			l.compactionEnd("a", `,"error":"too large"`)
			l.compactionStart("b", "null")
			start := l.compactionStart("c", "null")
			sum := l.summary("c", "sum", nodes[:3])
			l.checkpoint("c", "sum", nodes[:3], start, sum)
			l.compactionEnd("c", "")
			whole(l)
		}, []string{
			"compaction/start", "compaction/end failed", "compaction/start", "compaction/end interrupted",
			"compaction/start", "compaction/summary", "compaction/end completed",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, nodes := twoTurns()
			c.make(l, nodes)
			s, err := dsh.Translate(strings.NewReader(l.text()))
			if err != nil {
				t.Fatal(err)
			}
			check(t, s, after("three"))
			if got := types(s, "compaction/", "dsh/compaction/"); !slices.Equal(got, c.want) {
				t.Errorf("events %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestOverflow compacts in a step whose call failed, and while a retry waits.
func TestOverflow(t *testing.T) {
	t.Parallel()
	l, nodes := twoTurns()
	l.turnStart()
	l.stepStart()
	l.user("three")
	l.finish(`{"kind":"error","failure":{"message":"long","code":"CONTEXT_WINDOW_EXCEEDED"}}`)
	l.row("llm/retry", "{"+l.place()+`,"retryId":"r","retry":1,"maxRetries":3,"delayMs":20,"failure":{"message":"long","code":"SERVER"}}`, "")
	start := l.compactionStart("c", "3")
	sum := l.summary("c", "sum", nodes[:3])
	l.checkpoint("c", "sum", nodes[:3], start, sum)
	l.compactionEnd("c", "")
	l.reply("third")
	l.row("compaction/prune", `{"shadowedRange":{"start":0,"end":0}}`, "")
	s, err := dsh.Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, []string{
		body("m", wireUser("one")), body("m", wireUser("one"), wireSaid("first"), wireUser("two")),
		body("m", wireUser("one"), wireSaid("first"), wireUser("two"), wireSaid("second"), wireUser("three")),
		body("m", wireUser("sum"), wireSaid("second"), wireUser("three")),
	})
	want := []string{
		"llm/failed", "llm/retry", "llm/retry-started", "compaction/start", "compaction/summary", "compaction/end completed", "dsh/compaction/prune",
	}
	if got := types(s, "llm/f", "llm/r", "compaction/", "dsh/compaction/", "dsh/llm/"); !slices.Equal(got, want) {
		t.Errorf("events %q\nwant %q", got, want)
	}
}

// TestRetries pairs the schedule of an attempt with its start.
func TestRetries(t *testing.T) {
	t.Parallel()
	row := func(l *record, kind, id string, n int) {
		l.row("llm/"+kind, "{"+l.place()+fmt.Sprintf(`,"retryId":%q,"retry":%d,"delayMs":5}`, id, n), "")
	}
	fails := func(l *record) {
		l.finish(`{"kind":"error","failure":{"message":"x","code":"SERVER","status":500}}`)
	}
	l := open("one")
	row(l, "retry", "early", 1) // nothing has failed
	fails(l)
	row(l, "retry-started", "early", 1) // nothing is scheduled
	row(l, "retry", "r", 1)
	row(l, "retry", "r", 1) // one is scheduled
	row(l, "retry-started", "r", 2)
	row(l, "retry-started", "r", 1)
	fails(l)
	row(l, "retry", "r", 0)
	row(l, "retry", "r", 2) // it starts without saying so
	l.reply("first")
	s, err := dsh.Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	one := body("m", wireUser("one"))
	check(t, s, []string{one, one, one})
	want := []string{
		"dsh/llm/retry", "llm/failed", "dsh/llm/retry-started", "llm/retry", "dsh/llm/retry", "dsh/llm/retry-started", "llm/retry-started",
		"llm/failed", "dsh/llm/retry", "llm/retry", "llm/retry-started",
	}
	if got := types(s, "llm/f", "llm/r", "dsh/llm/"); !slices.Equal(got, want) {
		t.Errorf("events %q\nwant %q", got, want)
	}
}

// TestKept keeps the data of events without a counterpart byte for byte.
func TestKept(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	long := `{"text":"` + strings.Repeat("y", 2000) + `"}`
	l := open("one")
	data := []string{`{"a" : "\ud800 \u00e9 é",  "n":1.50}`, deep, long, "[1,2]"}
	kinds := []string{"agent/inbox/spliced", "x", "x/y", "A type/with/too/many/words"}
	for i, d := range data {
		l.row(kinds[i], d, "")
	}
	l.row("session/title", `{"title":"T"}`, "")
	l.reply("first")
	s, err := (&dsh.Config{InlineMax: 1000}).Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, []string{body("m", wireUser("one"))})
	var kept []string
	for i := range s.Events {
		e := &s.Events[i]
		if u, ok := e.Body.(*events.Unknown); ok && e.Type() != "dsh/session" {
			if !e.Ignorable {
				t.Errorf("event %d is not ignorable", i+1)
			}
			kept = append(kept, string(u.Data))
		}
	}
	if len(kept) != len(data) || kept[0] != data[0] {
		t.Fatalf("kept %d: %.900q", len(kept), kept)
	}
	for i, d := range data[1:] {
		ref := objects.Sum([]byte(d)).String()
		if !slices.ContainsFunc(s.Objects, func(o dsh.Object) bool { return o.Ref.Digest.String() == ref && string(o.Data) == d }) || !strings.Contains(kept[i+1], ref) {
			t.Errorf("%.60q was not kept: %s", d, kept[i+1])
		}
	}
	if !strings.Contains(string(s.Payloads[2]), `"type":"session","version":0,"id":"s"`) {
		t.Errorf("the header was not kept: %s", s.Payloads[2])
	}
}

// TestLong moves long texts into objects; the requests stay the same.
func TestLong(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("long text ", 300)
	l := newRecord()
	l.turnStart()
	l.stepStart()
	l.user(text)
	l.row("request/header", fmt.Sprintf(`{"header":{"config":{"provider":"p","model":"m","maxTokens":9},"system":%q,"tools":[{"name":"n","description":%q,"parameters":{}}]},"reason":"initial"}`, text, text), "")
	l.call(0, "c1", "n", "{}")
	l.finish(`{"kind":"tool-calls"}`)
	l.answer(blockCall("c1", "n", "{}"), "")
	c := l.toolCall("c1")
	l.result("c1", text, "", c)
	l.stepEnd()
	l.stepStart()
	l.chunk(`{"type":"block-start","index":0,"blockType":"text"}`)
	l.lines = append(l.lines, fmt.Sprintf(`{"type":"text-chunks","seq0":%d,"time0":1796046772700,"data":{%s,"index":0,"texts":[%s"x"]}}`,
		l.seq, l.place(), strings.Repeat(`"word ",`, 1000)))
	l.seq += 1001
	l.finish(`{"kind":"stop"}`)
	said := strings.Repeat("word ", 1000) + "x"
	l.answer(blockText(said), "")
	l.stepEnd()
	l.stepStart()
	l.user("two")
	l.reply("ok")

	short, err := dsh.Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	long, err := (&dsh.Config{InlineMax: 1000}).Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range short.Requests {
		want = append(want, string(short.Requests[i].Bytes()))
	}
	check(t, long, want)
	if len(want) != 3 || !strings.Contains(want[2], said) || len(short.Objects) != 0 || len(long.Objects) != 2 { // one text, and the tools
		t.Errorf("%d requests, %d and %d objects", len(want), len(short.Objects), len(long.Objects))
	}
	for i, p := range long.Payloads {
		if _, ok := long.Events[i].Body.(*events.AssistantMessage); !ok && len(p) > 3000 {
			t.Errorf("event %d (%s) has %d bytes", i+1, long.Events[i].Type(), len(p))
		}
	}
}

// TestCitedContext: a plugin's message may cite events, which in our log only what a tool owed does.
func TestCitedContext(t *testing.T) {
	t.Parallel()
	l := newRecord()
	l.turnStart()
	l.stepStart()
	one := l.user("one")
	l.row("user/message", `{"content":"a note","source":{"kind":"plugin","plugin":"n"},"role":"user","id":"n1"}`, fmt.Sprintf(`,"sourceEventSeqs":[%d]%s`, one, onSurface))
	l.header("initial", "m")
	l.reply("ok")
	s, err := dsh.Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, []string{body("m", wireUser("one"), wireUser("a note"))})
}
