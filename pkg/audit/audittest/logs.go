package audittest

import (
	"strings"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// Sample returns a log with objects, tool calls, a retry, a changed header, a pruned result and a takeover in the middle
// of an answer.
func Sample(id events.ID) *foldtest.Log {
	l := &foldtest.Log{State: fold.New(id), Objects: new(objects.Set)}
	l.Body = Bodies()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(events.Text("Look at "), l.TextObject("a large \u2028 prompt \U0001F680 "+strings.Repeat("text ", 40)))
	h := foldtest.Header()
	h.System, h.SystemObject = "", l.Object([]byte("You are a careful assistant with a long prompt."), events.TextMediaType)
	tools, err := events.AppendTools(nil, h.Tools)
	if err != nil {
		panic(err)
	}
	h.Tools, h.ToolsObject = nil, l.Object(tools, events.ToolsMediaType)
	l.Header(h)
	l.Context(65536)
	l.Stream()
	l.Failed(events.FailureServer)
	l.Retry()
	l.Reply(events.FinishToolCalls, foldtest.ReasoningBlock(0, "Let me", " look."),
		foldtest.CallBlock(1, "call_1", "list", `{"path":`, `"."}`), foldtest.CallBlock(2, "call_2", "read", `{"path":"go.mod"}`))
	l.ToolCall()
	l.ToolCall()
	l.ToolResult(l.TextObject("a\nb\n" + strings.Repeat("c", 200)))
	pruned := l.ToolResult(events.Text("module m"))
	l.StepEnd()
	l.StepStart()
	l.Stream()
	l.Chunks(foldtest.TextBlock(0, "Half an ans")...)
	l.Claimed(events.ClaimTakeover)
	l.Failed(events.FailureInterrupted)
	l.Header(h)
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "Done", "."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.Title("a look around")
	l.TurnStart()
	l.StepStart()
	l.User("Now think harder.")
	l.Prune(pruned, events.Text("(pruned)"))
	h.Config.ReasoningEffort = "high"
	l.Header(h)
	l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, "Hm."), foldtest.TextBlock(1, "Thought."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	return l
}

// Whole returns a log with images in every form, a title's call, a compaction whose first call fails, and a turn that is
// cancelled.
func Whole() *foldtest.Log {
	l := foldtest.New()
	l.Body = Bodies()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	big, shot := l.ImageBlock([]byte("a large image"), 1600, 1200), l.ImageBlock([]byte("a screen shot"), 40, 30)
	l.UserBlocks(events.Text("What is this?"), big)
	l.Header(foldtest.Header())
	l.Images(foldtest.Inline(big.Object.Digest, "Image 1", l.Object([]byte("a small image"), "image/png")))
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call_1", "read", `{"path":"shot.png"}`))
	l.ToolCall()
	l.ToolResult(events.Text("shot:"), shot)
	l.StepEnd()
	l.StepStart()
	l.Images(foldtest.File(shot.Object.Digest, "file-1"))
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "A dog."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.AuxStream(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	l.Chunks(append(foldtest.TextBlock(0, "Dogs"), foldtest.FinishChunk(events.FinishStop))...)
	l.TitleOfCall("Dogs")
	nodes := l.State.Nodes()
	region := events.Region{Start: nodes[0], End: nodes[len(nodes)-1]}
	directive := []events.Block{events.Text("Summarise this: "), l.TextObject("all of it")}
	l.CompactionStart(events.CompactionCommand)
	l.AuxStream(events.PurposeCompaction, region, directive...)
	l.Failed(events.FailureServer)
	l.Retry()
	l.AuxStream(events.PurposeCompaction, region, directive...)
	l.Chunks(append(foldtest.TextBlock(0, "There was a dog."), foldtest.FinishChunk(events.FinishStop))...)
	l.SummaryOfCall()
	l.PutSummary()
	l.CompactionEnd(events.CompactionCompleted)
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(events.Text("And this?"), shot)
	l.Images(foldtest.Placeholder(shot.Object.Digest, "[no image]"))
	l.Stream()
	l.Chunks(append(foldtest.TextBlock(0, "Half"), foldtest.FinishChunk(events.FinishAborted))...)
	l.Append(&events.TurnCancelled{Turn: 2, Cause: "user"})
	l.Answer()
	l.StepEnd()
	l.TurnEnd(events.TurnAborted)
	return l
}

// Forked returns a log and a fork of it that has gone on.
func Forked() (parent, fork *foldtest.Log) {
	parent = Whole()
	fork = parent.OpenFork(int(parent.Len()), events.Options{})
	fork.Body = Bodies()
	fork.Turn("hello", "fork")
	return parent, fork
}
