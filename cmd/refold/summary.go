package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

func textOf(blocks []events.Block) string {
	var parts []string
	for _, b := range blocks {
		if b.Type == events.BlockText {
			parts = append(parts, b.Text)
		}
	}
	return events.JoinText(parts...)
}

// quoted returns what blocks say, and names the objects that hold more of it.
func quoted(blocks []events.Block) string {
	parts := []string{strconv.Quote(textOf(blocks))}
	for _, b := range blocks {
		if (b.Object != objects.Ref{}) {
			parts = append(parts, fmt.Sprintf("object %s, %d bytes", b.Object.Digest, b.Object.Bytes))
		}
	}
	if len(parts) > 1 && parts[0] == `""` {
		parts = parts[1:]
	}
	return strings.Join(parts, ", ")
}

// summary tells what an event is about, on one line.
func summary(e *events.Event) string {
	const most = 100
	var s string
	switch b := e.Body.(type) {
	case *events.SessionCreated:
		var labels []string
		for _, l := range b.Labels {
			labels = append(labels, l.Name+"="+l.Value)
		}
		s = strings.Join(labels, " ")
	case *events.SessionConfigured:
		s = fmt.Sprintf("by input %d", b.InboxSeq)
	case *events.SessionClosed:
		s = b.Reason
	case *events.SessionTitle:
		s = b.Title
	case *events.RequestContext:
		s = fmt.Sprintf("%s/%s, a window of %d tokens", b.Provider, b.Model, b.ContextWindow)
	case *events.LoopClaimed:
		s = fmt.Sprintf("%s by %s", b.Reason, b.Worker)
	case *events.TurnStart:
		s = fmt.Sprintf("turn %d", b.Turn)
	case *events.TurnEnd:
		s = fmt.Sprintf("turn %d %s %s%s", b.Turn, b.Kind, b.Cause, b.Failure.Code)
	case *events.StepStart:
		s = fmt.Sprintf("step %d.%d", b.Turn, b.Step)
	case *events.StepEnd:
		s = fmt.Sprintf("step %d.%d", b.Turn, b.Step)
	case *events.UserMessage:
		s = quoted(b.Message.Content)
	case *events.RequestHeader:
		s = fmt.Sprintf("%s %s/%s effort=%s tools=%d", b.Reason, b.Header.Config.Provider, b.Header.Config.Model, b.Header.Config.ReasoningEffort, len(b.Header.Tools))
	case *events.LLMStream:
		s = fmt.Sprintf("step %d.%d attempt %d, %d bytes, %s", b.Turn, b.Step, b.Attempt, b.Body.Bytes, b.Body.SHA256)
	case *events.AssistantChunk:
		s = fmt.Sprintf("step %d.%d attempt %d, %d chunks", b.Turn, b.Step, b.Attempt, len(b.Chunks))
	case *events.AssistantMessage:
		s = fmt.Sprintf("%s %s", b.Finish.Kind, quoted(b.Message.Content))
	case *events.LLMFailed:
		s = fmt.Sprintf("attempt %d %s: %s", b.Attempt, b.Failure.Code, b.Failure.Message)
	case *events.ToolCall:
		s = fmt.Sprintf("%s %s", b.Name, b.Arguments)
	case *events.ToolResult:
		s = fmt.Sprintf("%s %s %s", b.CallID(), b.Error.Code, quoted(b.Message.Content[0].Content))
	}
	s = program.Printable(s)
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "..."
	}
	return s
}
