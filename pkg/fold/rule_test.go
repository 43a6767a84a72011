package fold_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// The places of a log from which the table of broken rules starts.

func begun() *foldtest.Log {
	l := foldtest.New()
	l.Begin()
	return l
}

func inStep() *foldtest.Log {
	l := begun()
	l.TurnStart()
	l.StepStart()
	return l
}

func asked() *foldtest.Log {
	l := inStep()
	l.User("hello")
	l.Header(foldtest.Header())
	return l
}

func streaming() *foldtest.Log {
	l := asked()
	l.Stream()
	return l
}

func finished() *foldtest.Log {
	l := streaming()
	l.Chunks(append(foldtest.TextBlock(0, "hi"), foldtest.FinishChunk(events.FinishStop))...)
	return l
}

func failed() *foldtest.Log {
	l := streaming()
	l.Failed(events.FailureServer)
	return l
}

// called has an answer with the calls call-1 and call-2.
func called() *foldtest.Log {
	l := asked()
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", `{"path":"a"}`), foldtest.CallBlock(1, "call-2", "list", `{}`))
	return l
}

// answered is called with both calls answered: nodes user, assistant, result of call-1, result of call-2.
func answered() (l *foldtest.Log, nodes []uint64) {
	l = called()
	l.ToolCall()
	l.ToolCall()
	l.ToolResult(events.Text("one"))
	l.ToolResult(events.Text("two"))
	return l, l.State.Nodes()
}

func userBody(text string) *events.UserMessage {
	return &events.UserMessage{Message: events.Message{
		ID: string(foldtest.ClaimAt(99).InputID), Role: events.RoleUser, Content: []events.Block{events.Text(text)}, Source: events.Source{Kind: events.SourceUser},
	}}
}

func resultBody(callID string, code events.ToolErrorCode) *events.ToolResult {
	return &events.ToolResult{Turn: 1, Step: 1, Error: events.ToolError{Code: code}, Message: events.Message{
		ID: "r", Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: callID},
		Content: []events.Block{{Type: events.BlockToolResult, ToolCallID: callID, IsError: code != ""}},
	}}
}

func chunkBody(chunks ...events.Chunk) *events.AssistantChunk {
	return &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: chunks}
}

func stream(l *foldtest.Log, change func(*events.LLMStream)) error {
	b := l.StreamBody()
	change(b)
	return l.Try(b)
}

func answer(l *foldtest.Log, change func(*events.AssistantMessage), opts ...foldtest.Option) error {
	b, citing := l.AnswerBody()
	change(b)
	return l.Try(b, append([]foldtest.Option{citing}, opts...)...)
}

func header(l *foldtest.Log, reason events.HeaderReason) error {
	return l.Try(&events.RequestHeader{Header: foldtest.Header(), Reason: reason})
}

type ruleCase struct {
	rule fold.Rule
	name string
	err  func() error
}

func TestRules(t *testing.T) {
	cases := slices.Concat(placeCases(), turnCases(), requestCases(), configCases(), promptCases(), callCases(), toolCases(), surfaceCases(),
		inputCases(), cancelCases(), owedCases(), imageCases(), auxiliaryCases(), compactionCases(), summaryCases(), unsupportedCases())
	provoked := make(map[fold.Rule]bool)
	for _, tt := range cases {
		provoked[tt.rule] = true
		t.Run(string(tt.rule)+"/"+tt.name, func(t *testing.T) {
			err := tt.err()
			var broken *fold.Error
			if !errors.As(err, &broken) || !errors.Is(err, fold.ErrInvalidLog) {
				t.Fatalf("error %v, want a broken rule", err)
			}
			if broken.Rule != tt.rule {
				t.Errorf("broke %q, want %q: %v", broken.Rule, tt.rule, err)
			}
			if broken.Session != foldtest.SessionID && tt.name != "in a fork" || broken.Seq == 0 && tt.rule != fold.RuleSealed {
				t.Errorf("the error does not say where: %+v", broken)
			}
		})
	}
	for name, rule := range ruleConstants(t) {
		if !provoked[rule] {
			t.Errorf("no case provokes %s (%q)", name, rule)
		}
	}
}

// ruleConstants returns the constants of type Rule, by name, as the source has them.
func ruleConstants(t *testing.T) map[string]fold.Rule {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	rules := make(map[string]fold.Rule)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Rule" {
			return true
		}
		for i, name := range spec.Names {
			value, err := strconv.Unquote(spec.Values[i].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			rules[name.Name] = fold.Rule(value)
		}
		return true
	})
	if len(rules) < 20 {
		t.Fatalf("found %d rules in the source", len(rules))
	}
	return rules
}

// TestRulesDocumented looks for every rule in the table of the format page, and for rules there that do not exist.
func TestRulesDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/fold.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## Rules\n")
	if !ok {
		t.Fatal("the page has no section on rules")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	documented := make(map[fold.Rule]bool)
	for line := range strings.Lines(table) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			code, _, _ := strings.Cut(rest, "`")
			documented[fold.Rule(code)] = true
		}
	}
	for name, rule := range ruleConstants(t) {
		if !documented[rule] {
			t.Errorf("%s (%q) has no row in the table of rules", name, rule)
		}
		delete(documented, rule)
	}
	for rule := range documented {
		t.Errorf("the table has a row for %q, which is no rule", rule)
	}
}

func TestErrorText(t *testing.T) {
	err := begun().Try(&events.TurnStart{Turn: 2})
	for _, part := range []string{string(foldtest.SessionID), "event 3", "turn/start", `"turn"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %s", err, part)
		}
	}
}

// TestDead shows that a state takes nothing after what it refused, and stays readable.
func TestDead(t *testing.T) {
	l := begun()
	l.Turn("a", "b")
	s := fold.New(foldtest.SessionID)
	apply(t, s, l.Events[:8])
	before := viewOf(s)
	first := s.Apply(&l.Events[9])
	if !errors.Is(first, fold.ErrInvalidLog) {
		t.Fatalf("error %v for a missing event", first)
	}
	for i := range l.Events {
		if err := s.Apply(&l.Events[i]); !errors.Is(err, first) {
			t.Errorf("event %d: error %v, want the first one", i+1, err)
		}
	}
	if d := diff(before, viewOf(s)); d != "" {
		t.Errorf("(-before +dead):\n%s", d)
	}
}

// TestOutcome follows what is known of a step's model calls, and how many messages entered its turn.
func TestOutcome(t *testing.T) {
	l := inStep()
	expect := func(what string, finish events.FinishKind, tools int, failure events.FailureCode, entered int64) {
		t.Helper()
		f, n, failed := l.State.Outcome()
		if f.Kind != finish || n != tools || failed.Code != failure || l.State.Entered() != entered {
			t.Errorf("%s: finish %q, %d tools, failure %q, %d entered", what, f.Kind, n, failed.Code, l.State.Entered())
		}
	}
	expect("nothing yet", "", 0, "", 0)
	l.User("one")
	l.Inject("two")
	l.Header(foldtest.Header())
	l.Stream()
	l.Failed(events.FailureTimeout)
	expect("a failed attempt", "", 0, events.FailureTimeout, 2)
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c", "read", "{}"))
	expect("an answer behind it", events.FinishToolCalls, 1, "", 2)
	l.ToolError(events.ToolNotStarted)
	l.StepEnd()
	expect("a closed step", events.FinishToolCalls, 1, "", 2)
	l.StepStart()
	expect("the next step", "", 0, "", 2)
	l.StepEnd()
	nodes := l.State.Nodes()
	l.Replace(nodes[0], nodes[0], "summary")
	expect("a replacement does not enter", "", 0, "", 2)
	l.TurnEnd(events.TurnCompleted)
	l.TurnStart()
	expect("the next turn", "", 0, "", 0)
}

func TestNoRequest(t *testing.T) {
	if _, err := inStep().State.Request(); !errors.Is(err, fold.ErrNoRequest) {
		t.Errorf("error %v, want ErrNoRequest", err)
	}
}

// TestPermitted holds logs that look unusual and are valid.
func TestPermitted(t *testing.T) {
	tests := []struct {
		name string
		err  func() error
	}{
		{"a fork of a fork", func() error {
			l := begun()
			l.Turn("a", "b")
			child := l.Fork(int(l.Len()))
			child.Claimed(events.ClaimCreated)
			child.Turn("c", "d")
			grandchild := child.Fork(int(child.Len()))
			return grandchild.Try(&events.LoopClaimed{Worker: "w", Instance: foldtest.ID(1, 1), Reason: events.ClaimCreated})
		}},
		{"a fork whose copy ends in end-seed", func() error {
			l := begun()
			l.Turn("a", "b")
			child := l.Fork(int(l.Len()))
			grandchild := child.Fork(int(child.Len()))
			return grandchild.Try(&events.LoopClaimed{Worker: "w", Instance: foldtest.ID(1, 1), Reason: events.ClaimCreated})
		}},
		{"a step without a model call", func() error { return inStep().Try(&events.StepEnd{Turn: 1, Step: 1}) }},
		{"a failure after the finish", func() error {
			return finished().Try(&events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: events.Failure{Code: events.FailureEmpty}})
		}},
		{"a changed header for another attempt", func() error {
			h := foldtest.Header()
			h.Config.MaxTokens, h.AdapterDefaults.MaxTokens = 99, true
			return failed().Try(&events.RequestHeader{Header: h, Reason: events.HeaderChange})
		}},
		{"a region whose start is numerically larger", func() error {
			l := begun()
			l.Turn("a", "b")
			l.Turn("c", "d")
			nodes := l.State.Nodes()
			first := l.Replace(nodes[0], nodes[1], "summary")
			l.Replace(first, nodes[2], "summary of more")
			return nil
		}},
		{"the same result pruned twice", func() error {
			l, nodes := answered()
			second := l.Prune(nodes[2], events.Text("short"))
			l.Prune(second, events.Text("shorter"))
			return nil
		}},
		{"inputs passed over", func() error {
			b := userBody("x")
			b.InboxSeq = 100
			return inStep().Try(b)
		}},
		{"a steer that was sent before a prompt that entered", func() error {
			l := asked()
			b := userBody("x")
			b.InboxSeq, b.Delivery = 7, events.DeliverySteer
			l.Append(b)
			l.Configured(events.Options{Model: "m"})
			b = userBody("y")
			b.InboxSeq, b.Delivery, b.Message.ID = 9, events.DeliveryInject, string(foldtest.ClaimAt(98).InputID)
			return l.Try(b)
		}},
		{"an input that was passed over is dropped", func() error {
			l := begun()
			l.Append(&events.SessionConfigured{Claim: foldtest.ClaimAt(9)})
			return l.Try(&events.InputDropped{Claim: foldtest.ClaimAt(3), Kind: events.InputPrompt})
		}},
		{"an input dropped in mid-call", func() error {
			return streaming().Try(&events.InputDropped{Claim: foldtest.ClaimAt(9), Kind: events.InputSteer})
		}},
		{"a fork's inbox begins anew", func() error {
			l := begun()
			l.Turn("a", "b")
			f := l.Fork(int(l.Len()))
			f.Claimed(events.ClaimCreated)
			return f.Try(&events.SessionConfigured{Claim: foldtest.ClaimAt(1)})
		}},
		{"a seed whose parent is not known", func() error {
			l := foldtest.New()
			l.Append(&events.SessionCreated{SeedLength: 1})
			l.Claimed(events.ClaimCreated)
			return l.Try(new(events.SessionEndSeed))
		}},
		{"a prompt older than a cancel that kept the queue", func() error {
			l := inStep()
			l.Append(&events.TurnCancelled{Turn: 1, KeepQueue: true, Claim: foldtest.ClaimAt(9)})
			l.Settle()
			l.TurnStart()
			l.StepStart()
			b := userBody("x")
			b.InboxSeq = 8
			return l.Try(b)
		}},
		{"a retry scheduled again when it had started", func() error {
			l := failed()
			l.Retry()
			return l.Try(retry())
		}},
		{"a summary that was put in place before the cancel", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			l.PutSummary()
			l.Cancel("user", false)
			return l.Try(&events.CompactionEnd{CompactionID: id(l), Turn: 1, Outcome: events.CompactionCompleted})
		}},
		{"a summary put in place behind the cancel", func() error {
			l, r := compacting()
			l.Summary(r.Start, r.End, "so far")
			l.Cancel("user", false)
			body, citing, replacing := l.PutBody()
			return l.Try(body, citing, replacing)
		}},
		{"a header between turns, for a title", func() error { return header(begun(), events.HeaderInitial) }},
		{"an answer that was interrupted by the cancel", func() error {
			l := streaming()
			l.Chunks(foldtest.TextBlock(0, "half")...)
			l.Cancel("user", false)
			l.Chunks(foldtest.FinishChunk(events.FinishAborted))
			l.Answer()
			l.Settle()
			return nil
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.err(); err != nil {
				t.Error(err)
			}
		})
	}
}
