package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

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
		switch {
		case b.Type == events.BlockImage:
			parts = append(parts, fmt.Sprintf("%s of %dx%d pixels, object %s", b.Object.MediaType, b.Width, b.Height, b.Object.Digest))
		case b.Object != objects.Ref{}:
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
	const most = 120
	s, ok := sessionSummary(e.Body)
	if !ok {
		s, ok = turnSummary(e.Body)
	}
	if !ok {
		s, ok = callSummary(e.Body)
	}
	if !ok {
		s = compactionSummary(e.Body)
	}
	s = strings.TrimSpace(program.Printable(s))
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "..."
	}
	return s
}

// sessionSummary is about the session as a whole.
func sessionSummary(body events.Body) (s string, ok bool) {
	switch b := body.(type) {
	case *events.SessionCreated:
		var parts []string
		if b.Parent.ID != "" {
			parts = append(parts, fmt.Sprintf("fork of %s at %d", b.Parent.ID, b.Parent.Seq))
		}
		for _, l := range b.Labels {
			parts = append(parts, l.Name+"="+l.Value)
		}
		s = strings.Join(parts, " ")
	case *events.SessionConfigured:
		s = fmt.Sprintf("by input %d%s", b.Claim.InboxSeq, optionsSummary(&b.Options))
	case *events.SessionClosed:
		s = b.Reason
	case *events.SessionTitle:
		s = b.Title
	case *events.InputDropped:
		s = fmt.Sprintf("%s, input %d: %s", b.Kind, b.Claim.InboxSeq, b.Cause)
	case *events.LoopClaimed:
		s = fmt.Sprintf("%s by %s", b.Reason, b.Worker)
	default:
		return "", false
	}
	return s, true
}

// optionsSummary names the options that are set.
func optionsSummary(o *events.Options) string {
	var s strings.Builder
	for _, f := range []struct{ name, value string }{
		{"provider", o.Provider},
		{"model", o.Model},
		{"effort", o.ReasoningEffort},
		{"max-tokens", counted(o.MaxTokens)},
		{"max-steps", counted(o.MaxSteps)},
		{"temperature", string(o.Temperature)},
		{"tools", strings.Join(o.Tools, ",")},
	} {
		if f.value != "" {
			fmt.Fprintf(&s, " %s=%s", f.name, f.value)
		}
	}
	if o.System != "" || (o.SystemObject != objects.Ref{}) {
		s.WriteString(" system")
	}
	if len(o.Stop) > 0 {
		s.WriteString(" stop")
	}
	return s.String()
}

// counted returns a limit as text, nothing for none.
func counted(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// turnSummary is about turns, steps, and what is said and done in them.
func turnSummary(body events.Body) (s string, ok bool) {
	switch b := body.(type) {
	case *events.TurnStart:
		s = fmt.Sprintf("turn %d", b.Turn)
	case *events.TurnEnd:
		s = fmt.Sprintf("turn %d %s %s%s", b.Turn, b.Kind, b.Cause, b.Failure.Code)
	case *events.TurnCancelled:
		s = fmt.Sprintf("by input %d: %s", b.Claim.InboxSeq, b.Cause)
		if b.KeepQueue {
			s = fmt.Sprintf("by input %d, the others stay: %s", b.Claim.InboxSeq, b.Cause)
		}
		if b.Turn > 0 {
			s = fmt.Sprintf("turn %d %s", b.Turn, s)
		}
	case *events.StepStart:
		s = place(b.Turn, b.Step)
	case *events.StepEnd:
		s = place(b.Turn, b.Step)
	case *events.UserMessage:
		s = quoted(b.Message.Content)
		switch source := &b.Message.Source; {
		case b.Delivery != events.DeliveryPrompt:
			s = fmt.Sprintf("%s %s", b.Delivery, s)
		case source.Plugin != "":
			s = fmt.Sprintf("%s %s %s", source.Kind, source.Plugin, s)
		}
	case *events.ToolCall:
		s = fmt.Sprintf("%s %s", b.Name, b.Arguments)
	case *events.ToolResult:
		s = fmt.Sprintf("%s %s %s", b.CallID(), b.Error.Code, quoted(b.Message.Content[0].Content))
	case *events.ApprovalAsked:
		s = fmt.Sprintf("%s %s", b.CallID, b.Question)
	case *events.ApprovalDecided:
		s = fmt.Sprintf("approved=%t %s", b.Approved, b.By)
	default:
		return "", false
	}
	return s, true
}

// place names the step or the turn in which something happens, nothing outside of both.
func place(turn, step int64) string {
	switch {
	case step > 0:
		return fmt.Sprintf("step %d.%d ", turn, step)
	case turn > 0:
		return fmt.Sprintf("turn %d ", turn)
	}
	return ""
}

// callSummary is about model calls.
func callSummary(body events.Body) (s string, ok bool) {
	switch b := body.(type) {
	case *events.RequestHeader:
		s = headerSummary(b)
	case *events.RequestContext:
		s = fmt.Sprintf("%s/%s, a window of %d tokens", b.Provider, b.Model, b.ContextWindow)
	case *events.RequestImages:
		parts := make([]string, len(b.Images))
		for i := range b.Images {
			parts[i] = imageSummary(&b.Images[i])
		}
		s = strings.Join(parts, ", ")
	case *events.LLMStream:
		s = fmt.Sprintf("%sattempt %d, %d bytes, %s", place(b.Turn, b.Step), b.Attempt, b.Body.Bytes, b.Body.SHA256)
		if b.Purpose != events.PurposeLoop {
			s = fmt.Sprintf("%s %s", b.Purpose, s)
		}
	case *events.AssistantChunk:
		s = fmt.Sprintf("%sattempt %d, %d chunks", place(b.Turn, b.Step), b.Attempt, len(b.Chunks))
	case *events.AssistantMessage:
		s = fmt.Sprintf("%s %s", b.Finish.Kind, quoted(b.Message.Content))
	case *events.LLMFailed:
		s = fmt.Sprintf("attempt %d %s: %s", b.Attempt, b.Failure.Code, b.Failure.Message)
	case *events.LLMRetry:
		most := ""
		if b.MaxRetries > 0 {
			most = fmt.Sprintf(" of %d", b.MaxRetries)
		}
		s = fmt.Sprintf("%sretry %d%s in %v after %s", place(b.Turn, b.Step), b.Retry, most, time.Duration(b.DelayMs)*time.Millisecond, b.Failure.Code)
	case *events.LLMRetryStarted:
		s = fmt.Sprintf("%sretry %d", place(b.Turn, b.Step), b.Retry)
	default:
		return "", false
	}
	return s, true
}

// headerSummary names who changed the configuration that the log would have given: that is where a request departs from it.
func headerSummary(b *events.RequestHeader) string {
	c := &b.Header.Config
	tools := strconv.Itoa(len(b.Header.Tools))
	if object := b.Header.ToolsObject; (object != objects.Ref{}) {
		const short = 12
		tools = "object " + object.Digest.String()[:short]
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s/%s effort=%s", b.Reason, c.Provider, c.Model, c.ReasoningEffort)
	for _, change := range b.ChangedBy {
		fields := make([]string, len(change.Fields))
		for i, f := range change.Fields {
			fields[i] = string(f)
		}
		fmt.Fprintf(&s, " %s changed by %s", strings.Join(fields, ","), change.Extension)
	}
	s.WriteString(" tools=" + tools)
	return s.String()
}

func imageSummary(i *events.ImageShown) string {
	const short = 12
	s := fmt.Sprintf("%s as %s", i.Image.String()[:short], i.As)
	if i.Width > 0 {
		s += fmt.Sprintf(" of %dx%d pixels", i.Width, i.Height)
	}
	if i.FileID != "" {
		s += " " + i.FileID
	}
	return s
}

// compactionSummary is about what makes history smaller.
func compactionSummary(body events.Body) string {
	switch b := body.(type) {
	case *events.CompactionStart:
		s := fmt.Sprintf("%s %s", b.Reason, place(b.Turn, 0))
		if b.Claim.InboxSeq > 0 {
			s += fmt.Sprintf("by input %d", b.Claim.InboxSeq)
		}
		return s
	case *events.CompactionSummary:
		return fmt.Sprintf("%d messages, about %d tokens, become %s", len(b.Shadowed), b.ShadowedTokens, quoted(b.Summary))
	case *events.CompactionEnd:
		if b.Error != "" {
			return fmt.Sprintf("%s: %s", b.Outcome, b.Error)
		}
		return string(b.Outcome)
	case *events.CompactionPrune:
		return fmt.Sprintf("event %d, about %d tokens fewer", b.Region.Start, b.ShadowedTokens)
	}
	return ""
}
