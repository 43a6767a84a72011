package worker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rivo/uniseg"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// calls is a script whose first answer calls these tools.
func calls(names ...string) simulator.Script {
	var list []simulator.Call
	for _, n := range names {
		list = append(list, simulator.Call{Name: n, Arguments: "{}"})
	}
	return toolWork(list...)
}

// TestToolPool runs parallel tools beside each other, as many as the pool has places, and answers in model order.
func TestToolPool(t *testing.T) {
	names := []string{"t1", "t2", "t3", "t4", "t5"}
	r := newRig(t, calls(names...))
	r.cfg.ToolPool = 2
	var mu sync.Mutex
	running, most := 0, 0
	pair := make(chan struct{}) // the first two wait for each other
	second := make(chan struct{})
	var list []tools.Tool
	for i, name := range names {
		list = append(list, &fake{name: name, safety: tools.Safety{Parallel: true}, run: func(context.Context, string) tools.Result {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			switch i {
			case 0:
				close(pair)
				<-second // t1 ends behind t2
			case 1:
				<-pair
				defer close(second)
			}
			mu.Lock()
			running--
			mu.Unlock()
			return output(name)
		}})
	}
	r.use(list...)
	k := r.talk()
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls t1() t2() t3() t4() t5()",
		"tool t1", "tool t2", "tool t3", "tool t4", "tool t5", "result t1", "result t2", "result t3", "result t4", "result t5", "step end",
		"step 2", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	if most != 2 {
		t.Errorf("%d tools ran at a time", most)
	}
}

// TestExclusiveTools stand alone between parallel ones.
func TestExclusiveTools(t *testing.T) {
	r := newRig(t, calls("p1", "p2", "x", "p3", "y", "z"))
	var mu sync.Mutex
	running := 0
	var list []tools.Tool
	for _, name := range []string{"p1", "p2", "x", "p3", "y", "z"} {
		list = append(list, &fake{name: name, safety: tools.Safety{Parallel: name[0] == 'p'}, run: func(context.Context, string) tools.Result {
			mu.Lock()
			running++
			if name[0] != 'p' && running != 1 {
				t.Errorf("%s runs beside others", name)
			}
			mu.Unlock()
			mu.Lock()
			running--
			mu.Unlock()
			return output(name)
		}})
	}
	r.use(list...)
	k := r.talk()
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls p1() p2() x() p3() y() z()",
		"tool p1", "tool p2", "result p1", "result p2", "tool x", "result x", "tool p3", "result p3", "tool y", "result y", "tool z", "result z", "step end",
		"step 2", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestToolFailures answers what cannot be done, and lets nothing run that must not.
func TestToolFailures(t *testing.T) {
	for name, c := range map[string]struct {
		call   simulator.Call
		safety tools.Safety
		run    func(ctx context.Context, _ string) tools.Result
		code   string
		text   string
	}{
		"unknown":    {call: simulator.Call{Name: "b", Arguments: "{}"}, code: "TOOL_UNKNOWN", text: `Error: there is no tool "b"`},
		"no JSON":    {call: simulator.Call{Name: "a", Arguments: `{"n":`}, code: "TOOL_BAD_ARGUMENTS"},
		"wrong type": {call: simulator.Call{Name: "a", Arguments: `{"n":"x"}`}, code: "TOOL_BAD_ARGUMENTS"},
		"late": {
			call: simulator.Call{Name: "a", Arguments: "{}"}, safety: tools.Safety{Timeout: 3 * time.Millisecond},
			run: func(ctx context.Context, _ string) tools.Result {
				<-ctx.Done()
				return tools.Failed(events.ToolFailed, "stopped")
			},
			code: "TOOL_TIMEOUT", text: "Error: the tool gave no answer within 3ms",
		},
		"late, with an answer": {
			call: simulator.Call{Name: "a", Arguments: "{}"}, safety: tools.Safety{Timeout: time.Millisecond},
			run: func(ctx context.Context, _ string) tools.Result { <-ctx.Done(); return output("done all the same") }, text: "done all the same",
		},
		"panic": {
			call: simulator.Call{Name: "a", Arguments: ""}, run: func(context.Context, string) tools.Result { panic("oh") },
			code: "TOOL_FAILED", text: "Error: the tool failed: it crashed: oh",
		},
		"bad meta": {
			call: simulator.Call{Name: "a", Arguments: "{}"},
			run:  func(context.Context, string) tools.Result { return tools.Result{Output: []byte("x"), Meta: "{"} }, text: "x",
		},
		"bad code": {
			call: simulator.Call{Name: "a", Arguments: "{}"},
			run: func(context.Context, string) tools.Result {
				return tools.Result{Output: []byte("x"), Error: events.ToolError{Code: "no code", Message: "m"}}
			}, code: "TOOL_FAILED", text: "x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.run == nil {
				c.run = func(context.Context, string) tools.Result { t.Error("it ran"); return output("") }
			}
			r := newRig(t, toolWork(c.call))
			r.use(&fake{name: "a", safety: c.safety, run: c.run})
			k := r.talk()
			k.prompt("work")
			k.rest()
			list, s := k.all()
			var code string
			for i := range list {
				if b, ok := list[i].Body.(*events.ToolResult); ok {
					code = string(b.Error.Code)
					if (code != "") != b.Message.Content[0].IsError {
						t.Errorf("code %q, error %t", code, b.Message.Content[0].IsError)
					}
				}
			}
			if got := results(t, list)[c.call.Name]; code != c.code || c.text != "" && got != c.text {
				t.Errorf("result %s %q", code, got)
			}
			if finish, _, _ := s.Outcome(); finish.Kind != events.FinishStop {
				t.Errorf("the turn's last answer finished with %q", finish.Kind)
			}
		})
	}
}

// TestToolOutputLimit cuts between flags, never inside one, and says how much is left out.
func TestToolOutputLimit(t *testing.T) {
	flag := "\U0001F1E9\U0001F1EA" // two letters, eight bytes
	for most := 200; most < 217; most++ {
		r := newRig(t, calls("a"))
		whole := strings.Repeat(flag, 100)
		r.use(&fake{name: "a", safety: tools.Safety{MaxOutput: most}, run: func(context.Context, string) tools.Result { return output(whole) }})
		k := r.talk()
		k.prompt("work")
		k.rest()
		list, _ := k.all()
		got := results(t, list)["a"]
		var left int
		head, rest, _ := strings.Cut(got, "\n")
		line, tail, _ := strings.Cut(rest, "\n")
		if _, err := fmt.Sscanf(line, "[%d of 800 bytes left out]", &left); err != nil {
			t.Fatalf("limit %d: %q: %v", most, got, err)
		}
		if len(got) > most || left != len(whole)-len(head)-len(tail) || strings.Trim(head, flag) != "" || len(head)%len(flag) != 0 || len(tail)%len(flag) != 0 {
			t.Errorf("limit %d: %d bytes, %q", most, len(got), got)
		}
		if n := uniseg.GraphemeClusterCount(head + tail); n != (len(head)+len(tail))/len(flag) {
			t.Errorf("limit %d: %d clusters", most, n)
		}
	}
}

// TestToolOutputObject puts a large output into the object store; one that the store does not take is a failure that the
// model reads.
func TestToolOutputObject(t *testing.T) {
	r := newRig(t, calls("a"))
	r.cfg.InlineMax = 1000
	text := strings.Repeat("\x00\xff 0123456789", 100)
	r.use(&fake{name: "a", run: func(context.Context, string) tools.Result { return output(text) }})
	k := r.talk()
	k.prompt("work")
	k.rest()
	_, s := k.all()
	var got []byte
	for _, m := range s.Messages().All() {
		if m.Source.Kind != events.SourceTool {
			continue
		}
		data, err := objects.Get(t.Context(), r.store, m.Content[0].Content[0].Object)
		if err != nil {
			t.Fatal(err)
		}
		got = events.BytesFromText(string(data))
	}
	if string(got) != text {
		t.Errorf("%d bytes came back", len(got))
	}

	full := newRig(t, calls("a"))
	full.cfg.InlineMax, full.cfg.Objects = 1000, &fullStore{full.store}
	full.use(&fake{name: "a", run: func(context.Context, string) tools.Result { return output(text) }})
	k = full.talk()
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a()", "tool a", "result a TOOL_FAILED", "step end",
		"step 2", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// fullStore takes no objects.
type fullStore struct{ objects.Store }

func (*fullStore) Put(context.Context, objects.Ref, []byte) error { return objects.ErrFull }

// TestToolNoID gives calls without ids, or with one that stands twice, ids of their own, the same on both sides.
func TestToolNoID(t *testing.T) {
	r := newRig(t, toolWork(
		simulator.Call{Name: "mark", Arguments: "{}", NoID: true}, simulator.Call{Name: "mark", Arguments: " {} ", NoID: true},
		simulator.Call{Name: "mark", Arguments: "{}", ID: "same"}, simulator.Call{Name: "mark", Arguments: "{}", ID: "same"},
	))
	k := r.talk()
	k.prompt("work")
	k.rest()
	list, _ := k.all()
	seen := make(map[string]bool)
	for i := range list {
		if b, ok := list[i].Body.(*events.ToolCall); ok {
			if b.CallID == "" || seen[b.CallID] {
				t.Errorf("call id %q", b.CallID)
			}
			seen[b.CallID] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d calls", len(seen))
	}
}

// TestRepeatedTool repeats a read-only tool after a crash, in a way that a cancel can stop.
func TestRepeatedTool(t *testing.T) {
	r := newRig(t, calls("a", "b"))
	k := r.talk()
	n := 0
	r.use(
		&fake{name: "a", safety: tools.Safety{ReadOnly: true}, run: func(ctx context.Context, _ string) tools.Result {
			if n++; n == 2 {
				k.cancel(false)
			}
			<-ctx.Done()
			return tools.Failed(events.ToolFailed, "stopped")
		}},
		&fake{name: "b", run: func(context.Context, string) tools.Result { t.Error("it ran"); return output("") }},
	)
	k.prompt("work")
	k.crash(1, is[*events.ToolCall])
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a() b()", "tool a", "claimed takeover",
		"cancelled turn 1 keep false", "result a TOOL_CANCELLED", "result b TOOL_NOT_STARTED", "step end", "turn end aborted user",
	)
}

// TestUnicode sends an emoji that is split over two deltas, a lone surrogate in arguments and in a tool's output, and a
// message of 200 kB: all come back as they were, and go out as JSON.stringify writes them.
func TestUnicode(t *testing.T) {
	lone := "\xed\xa0\xbd" // the first half of an emoji
	arguments := `{"s":"` + lone + `","t":"\ud83d","n":12345678901234567890}`
	r := newRig(t, simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{ToolResults: new(0), Times: 1}, Answer: simulator.Answer{
			Reasoning: "\U0001F914", Text: "a\U0001F600b\u2028<&>", UTF16: true, DeltaSizes: []int{2, 1},
			Calls: []simulator.Call{{Name: "a", Arguments: lossless.Text(arguments)}},
		}},
		{Answer: simulator.Answer{Text: "Fine."}},
	}})
	var got string
	r.use(&fake{name: "a", run: func(_ context.Context, arguments string) tools.Result {
		got = arguments
		return tools.Result{Output: events.BytesFromText("out\x7f\x01 " + lone)}
	}})
	k := r.talk()
	long := strings.Repeat("\U0001F469\u200D\U0001F680 \"q\" \\ \u00e9\n", 200<<10/25)
	k.prompt(long)
	k.rest()
	if got != arguments {
		t.Errorf("the tool got %q", got)
	}
	_, s := k.all()
	var texts []string
	for _, m := range s.Messages().All() {
		for _, b := range m.Content {
			if b.Type == events.BlockToolResult {
				b = b.Content[0]
			}
			text := b.Text + b.Arguments
			if b.Object.Bytes > 0 {
				data, err := objects.Get(t.Context(), r.store, b.Object)
				if err != nil {
					t.Fatal(err)
				}
				text = string(data)
			}
			texts = append(texts, text)
		}
	}
	want := []string{long, "\U0001F914", "a\U0001F600b\u2028<&>", arguments, "out\x7f\x01 " + events.TextFromBytes([]byte(lone)), "Fine."}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Error(diff)
	}
	sent := r.sim.Requests()
	body := string(sent[len(sent)-1].Body)
	for _, part := range []string{
		`"content":"a` + "\U0001F600b\u2028" + `<&>"`, `"reasoning_content":"` + "\U0001F914" + `"`,
		`"arguments":"{\"s\":\"\ud83d\",\"t\":\"\\ud83d\",\"n\":12345678901234567890}"`,
		"\"content\":\"out\x7f\\u0001 \\udced\\udca0\\udcbd\"", `\"q\" \\ ` + "\u00e9" + `\n`,
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the request has no %s", part)
		}
	}
}
