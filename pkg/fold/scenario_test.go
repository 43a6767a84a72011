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
			l.Compact(nodes[0], nodes[3], "two files were read")
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
			f := l.OpenFork(int(l.Len()), events.Options{MaxTokens: 100})
			f.Turn("another way", "fine")
			return f
		}},
		{"inputs", inputsLog},
		{"cancel", cancelLog},
		{"overflow", overflowLog},
		{"title", func() *foldtest.Log {
			l := begun()
			l.Turn("hello", "hi")
			nodes := l.State.Nodes()
			region := events.Region{Start: nodes[0], End: nodes[1]}
			l.AuxStream(events.PurposeTitle, region, events.Text("Name this."))
			l.Claimed(events.ClaimTakeover)
			l.Failed(events.FailureInterrupted)
			l.Header(foldtest.Header())
			l.AuxStream(events.PurposeTitle, region, events.Text("Name this."))
			l.Chunks(append(foldtest.TextBlock(0, "A greeting"), foldtest.FinishChunk(events.FinishStop))...)
			l.TitleOfCall("A greeting")
			return l
		}},
		{"images", func() *foldtest.Log {
			l := inStep()
			image := l.ImageBlock([]byte("a large image"), 4000, 3000)
			l.UserBlocks(events.Text("what is it?"), image)
			l.Header(foldtest.Header())
			l.Images(foldtest.Inline(image.Object.Digest, "image 1", l.Object([]byte("a smaller one"), "image/jpeg")))
			l.Stream()
			l.Failed(events.FailureInvalid)
			l.Images(foldtest.File(image.Object.Digest, "file-1"))
			l.Reply(events.FinishStop, foldtest.TextBlock(0, "a cat"))
			l.Settle()
			return l
		}},
		{"context", func() *foldtest.Log {
			l := owing()
			l.PayContexts()
			l.Section("time", "noon")
			l.Reply(events.FinishStop, foldtest.TextBlock(0, "both read"))
			l.StepEnd()
			l.TurnEnd(events.TurnCompleted)
			return l
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

// inputsLog claims inputs of both lanes out of the order of the inbox: a steer goes before a prompt that came earlier.
func inputsLog() *foldtest.Log {
	l := inStep()
	l.Append(claiming(2, events.DeliverySteer))
	l.Append(claiming(1, events.DeliveryPrompt))
	l.Inject("a plugin's")
	l.Header(foldtest.Header())
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "hi"))
	l.StepEnd()
	l.StepStart()
	l.Append(claiming(4, events.DeliveryInject))
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "noted"))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.Append(&events.SessionConfigured{Claim: foldtest.ClaimAt(5), Options: events.Options{MaxSteps: 3}})
	l.Append(&events.InputDropped{Claim: foldtest.ClaimAt(3), Kind: events.InputPrompt, Cause: "it was passed over"})
	l.TurnStart()
	l.StepStart()
	l.Append(&events.InputDropped{Claim: foldtest.ClaimAt(6), Kind: events.InputPrompt, Cause: "rejected"})
	l.StepEnd()
	l.TurnEnd(events.TurnBlocked)
	l.Closed("done")
	return l
}

// cancelLog is cancelled in mid-call, between tools, and in a backoff that another worker waits for.
func cancelLog() *foldtest.Log {
	l := streaming()
	l.Chunks(foldtest.TextBlock(0, "let me")...)
	l.Cancel("user", true)
	l.Chunks(foldtest.FinishChunk(events.FinishAborted))
	l.Answer()
	l.StepEnd()
	l.TurnEnd(events.TurnAborted)
	l.TurnStart()
	l.StepStart()
	l.User("read both")
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", "{}"), foldtest.CallBlock(1, "call-2", "read", "{}"))
	l.ToolCall()
	l.Cancel("user", false)
	l.Settle()
	l.TurnStart()
	l.StepStart()
	l.User("again")
	l.Stream()
	l.Failed(events.FailureRateLimit)
	l.RetryScheduled()
	l.Claimed(events.ClaimTakeover)
	l.Cancel("user", false)
	l.Settle()
	return l
}

// overflowLog compacts in a step whose call did not fit: the first attempt to get a summary fails.
func overflowLog() *foldtest.Log {
	l := begun()
	l.Turn("hello", "hi")
	l.TurnStart()
	l.StepStart()
	l.User("a long story")
	l.Stream()
	l.Failed(events.FailureContextWindow)
	nodes := l.State.Nodes()
	region := events.Region{Start: nodes[0], End: nodes[1]}
	l.CompactionStart(events.CompactionOverflow)
	l.AuxStream(events.PurposeCompaction, region, events.Text("Summarise this."))
	l.Failed(events.FailureServer)
	l.Retry()
	l.AuxStream(events.PurposeCompaction, region, events.Text("Summarise this."))
	l.Chunks(append(foldtest.TextBlock(0, "They said hello."), foldtest.FinishChunk(events.FinishStop))...)
	l.SummaryOfCall()
	l.PutSummary()
	l.CompactionEnd(events.CompactionCompleted)
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "a good story"))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
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
		call = fmt.Sprintf("call %d: %s, attempt %d, new objects %d, chunks %d, finished %t", seq, stream.Purpose, stream.Attempt, len(stream.Objects), chunks, answer.Finished)
	}
	var tools []string
	for _, tool := range s.PendingTools() {
		tools = append(tools, fmt.Sprintf("%s(%d)", tool.ID, tool.CallSeq))
	}
	usual := foldtest.Header()
	owed, _ := s.HeaderOwed(&usual)
	return []string{
		fmt.Sprintf("claim %d", claim),
		describeInputs(s),
		fmt.Sprintf("turn %d open %t", turn, turnOpen),
		fmt.Sprintf("step %d open %t", step, stepOpen),
		fmt.Sprintf("header %d", header),
		fmt.Sprintf("context %d", context),
		fmt.Sprintf("surface %d generation %d", s.Nodes(), p.Generation),
		fmt.Sprintf("new objects %d", len(s.NewObjects())),
		call,
		fmt.Sprintf("pending tools %v", tools),
		fmt.Sprintf("header owed for the usual one: %q", owed),
		describeCompaction(s),
		describeRetry(s),
		fmt.Sprintf("context owed %v", s.Owed()),
		fmt.Sprintf("images changed %d", s.Images().Generation()),
		fmt.Sprintf("title %q, %d calls for the next", s.Title(), s.TitleAttempt()),
		fmt.Sprintf("a fork may start here: %t", s.AtBoundary()),
	}
}

// describeInputs shows how far each lane of the inbox has come, and the cancels.
func describeInputs(s *fold.State) string {
	var turn, step uint64
	for s.PassedOver(turn+1, false) {
		turn++
	}
	for s.PassedOver(step+1, true) {
		step++
	}
	out := fmt.Sprintf("inbox: turns %d, steps %d, floor %d", turn, step, s.Floor())
	if c, ok := s.Cancelled(); ok {
		out += fmt.Sprintf(", turn cancelled by %q", c.Cause)
	}
	return out
}

func describeCompaction(s *fold.State) string {
	c, ok := s.Compaction()
	if !ok {
		return "no compaction"
	}
	return fmt.Sprintf("compaction %d: %s, attempt %d, failure %q, summary %d, in place %t",
		c.StartSeq, c.Start.Reason, c.Attempt, c.Failure.Code, c.SummarySeq, c.Replaced)
}

func describeRetry(s *fold.State) string {
	r, at, ok := s.PendingRetry()
	if !ok {
		return "no retry scheduled"
	}
	return fmt.Sprintf("retry %d scheduled, due at %d", r.Retry, at+r.DelayMs)
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
	case events.BlockImage:
		return fmt.Sprintf("%s %dx%d of %d bytes", b.Type, b.Width, b.Height, b.Object.Bytes)
	case events.BlockText, events.BlockReasoning:
		if b.Object.Bytes > 0 {
			return fmt.Sprintf("%s object of %d bytes", b.Type, b.Object.Bytes)
		}
	}
	return fmt.Sprintf("%s %q", b.Type, b.Text)
}
