package fold_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// update writes the files in testdata anew instead of comparing with them.
var update = flag.Bool("update", false, "write the files in testdata anew")

type scenario struct {
	name string
	log  func() *foldtest.Log
}

// scenarios are logs that people read: testdata/NAME.txt shows what each event does.
func scenarios() []scenario {
	return []scenario{
		{"plain", func() *foldtest.Log {
			l := begun()
			l.Turn("hello", "hi")
			l.Turn("what is 1+1?", "2")
			l.Closed("done")
			return l
		}},
		{"tools", func() *foldtest.Log {
			l, _ := answered()
			l.StepEnd()
			l.StepStart()
			l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, "two files"), foldtest.TextBlock(1, "both read"))
			l.StepEnd()
			l.TurnEnd(events.TurnCompleted)
			return l
		}},
		{"retry", func() *foldtest.Log {
			l := streaming()
			l.Chunks(foldtest.TextBlock(0, "I thi")[:2]...)
			l.Failed(events.FailureTransport)
			l.Retry()
			l.Reply(events.FinishStop, foldtest.TextBlock(0, "I think so"))
			l.StepEnd()
			l.TurnEnd(events.TurnCompleted)
			return l
		}},
		{"takeover", takeoverLog},
		{"compaction", func() *foldtest.Log {
			l, nodes := answered()
			l.StepEnd()
			l.TurnEnd(events.TurnCompleted)
			l.Prune(nodes[2], events.Text("(removed)"))
			l.Turn("and now?", "go on")
			nodes = l.State.Nodes()
			l.Append(&events.CompactionStart{CompactionID: "c1"})
			l.Replace(nodes[0], nodes[3], "summary: two files were read")
			l.Append(&events.CompactionEnd{CompactionID: "c1", Outcome: events.CompactionCompleted})
			l.Turn("next", "done")
			return l
		}},
		{"objects", func() *foldtest.Log {
			l := inStep()
			l.UserBlocks(events.Text("read this"), l.TextObject("a long text"))
			h := foldtest.Header()
			h.System, h.SystemObject = "", l.Object([]byte("a long prompt"), events.TextMediaType)
			l.Header(h)
			l.Reply(events.FinishStop, foldtest.TextBlock(0, "read"))
			l.StepEnd()
			l.TurnEnd(events.TurnCompleted)
			return l
		}},
		{"fork", func() *foldtest.Log {
			l := begun()
			l.Turn("hello", "hi")
			f := l.Fork(int(l.Len()))
			f.Claimed(events.ClaimCreated)
			f.Turn("another way", "fine")
			return f
		}},
	}
}

// takeoverLog loses its worker in mid-call and again between two tools.
func takeoverLog() *foldtest.Log {
	l := streaming()
	l.Chunks(foldtest.TextBlock(0, "let me")[:2]...)
	l.Claimed(events.ClaimTakeover)
	l.Failed(events.FailureInterrupted)
	l.Header(foldtest.Header())
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", "{}"), foldtest.CallBlock(1, "call-2", "read", "{}"))
	l.ToolCall()
	l.Claimed(events.ClaimTakeover)
	l.ToolError(events.ToolOutcomeUnknown)
	l.ToolError(events.ToolNotStarted)
	l.StepEnd()
	l.StepStart()
	h := foldtest.Header()
	h.Config.MaxTokens = 100
	l.Header(h)
	l.Reply(events.FinishAborted, foldtest.TextBlock(0, "it s"))
	l.StepEnd()
	l.TurnEnd(events.TurnAborted)
	return l
}

func TestScenarios(t *testing.T) {
	for _, tt := range scenarios() {
		t.Run(tt.name, func(t *testing.T) {
			got := describe(t, tt.log())
			file := filepath.Join("testdata", tt.name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
				t.Errorf("%s (-want +got); run the test with -update if that is right:\n%s", file, d)
			}
		})
	}
}

// describe shows each event of the log and what it changed in the fold, then the messages at the end.
func describe(t *testing.T, l *foldtest.Log) string {
	t.Helper()
	var out strings.Builder
	s := fold.New(l.State.ID())
	before := summary(s)
	for i := range l.Events {
		apply(t, s, l.Events[i:i+1])
		fmt.Fprintf(&out, "%3d  %s\n", i+1, l.Events[i].Type())
		after := summary(s)
		for k, line := range after {
			if line != before[k] {
				fmt.Fprintf(&out, "       %s\n", line)
			}
		}
		before = after
	}
	out.WriteString("\nmessages\n")
	for i, m := range s.Messages().All() {
		for _, b := range m.Content {
			fmt.Fprintf(&out, "%3d  %s %s\n", i, m.Role, describeBlock(b))
		}
	}
	return out.String()
}

// summary returns one line for each part of the state; a line's position is that of its part.
func summary(s *fold.State) []string {
	_, claim := s.Claim()
	turn, turnOpen := s.Turn()
	step, stepOpen := s.Step()
	_, header := s.Header()
	_, context := s.Context()
	p := s.Position()
	call := "no call"
	if stream, seq, answer, chunks, ok := s.OpenCall(); ok {
		call = fmt.Sprintf("call %d: attempt %d, new objects %d, chunks %d, finished %t", seq, stream.Attempt, len(stream.Objects), chunks, answer.Finished)
	}
	var tools []string
	for _, tool := range s.PendingTools() {
		tools = append(tools, fmt.Sprintf("%s(%d)", tool.ID, tool.CallSeq))
	}
	usual := foldtest.Header()
	owed, _ := s.HeaderOwed(&usual)
	return []string{
		fmt.Sprintf("claim %d", claim),
		fmt.Sprintf("input %d", s.Input()),
		fmt.Sprintf("turn %d open %t", turn, turnOpen),
		fmt.Sprintf("step %d open %t", step, stepOpen),
		fmt.Sprintf("header %d", header),
		fmt.Sprintf("context %d", context),
		fmt.Sprintf("surface %d generation %d", s.Nodes(), p.Generation),
		fmt.Sprintf("new objects %d", len(s.NewObjects())),
		call,
		fmt.Sprintf("pending tools %v", tools),
		fmt.Sprintf("header owed for the usual one: %q", owed),
	}
}

func describeBlock(b events.Block) string {
	switch b.Type {
	case events.BlockToolCall:
		return fmt.Sprintf("%s %s %s %q", b.Type, b.ID, b.Name, b.Arguments)
	case events.BlockToolResult:
		var parts []string
		for _, inner := range b.Content {
			parts = append(parts, describeBlock(inner))
		}
		return fmt.Sprintf("%s %s error %t [%s]", b.Type, b.ToolCallID, b.IsError, strings.Join(parts, ", "))
	case events.BlockText, events.BlockReasoning:
		if b.Object.Bytes > 0 {
			return fmt.Sprintf("%s object of %d bytes", b.Type, b.Object.Bytes)
		}
	}
	return fmt.Sprintf("%s %q", b.Type, b.Text)
}
