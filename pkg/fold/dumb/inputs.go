package dumb

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// Inputs is what a log has claimed of its inbox. A fork's own inbox begins behind its last session/end-seed.
type Inputs struct {
	Claims []events.Claim // in log order
	Turn   uint64         // the highest place claimed by a prompt, a compaction, or a configured or closed session
	Step   uint64         // the highest place claimed by a steer or an inject
	Floor  uint64         // the highest place of a cancel that dropped the queue
}

func inputs(log []events.Event) Inputs {
	var in Inputs
	for _, e := range log {
		claim, step, turn := events.Claim{}, false, false
		switch b := e.Body.(type) {
		case *events.SessionEndSeed:
			in = Inputs{}
		case *events.UserMessage:
			if b.InboxSeq > 0 {
				claim = events.Claim{InboxSeq: b.InboxSeq, InputID: events.ID(b.Message.ID)}
			}
			step, turn = b.Delivery != "", b.Delivery == ""
		case *events.SessionConfigured:
			claim, turn = b.Claim, true
		case *events.CompactionStart:
			claim, turn = b.Claim, true
		case *events.SessionClosed:
			claim, turn = b.Claim, true
		case *events.InputDropped:
			claim = b.Claim
		case *events.TurnCancelled:
			claim = b.Claim
			if !b.KeepQueue {
				in.Floor = max(in.Floor, claim.InboxSeq)
			}
		}
		if claim == (events.Claim{}) {
			continue
		}
		in.Claims = append(in.Claims, claim)
		if turn {
			in.Turn = max(in.Turn, claim.InboxSeq)
		}
		if step {
			in.Step = max(in.Step, claim.InboxSeq)
		}
	}
	return in
}

// Owed is context that a tool's result brought.
type Owed struct {
	events.AddedContext
	Result uint64 // the sequence of the tool/result
}

// owed returns the contexts that results brought, without as many of the first ones as messages of plugins have entered
// that cite something.
func owed(log []events.Event) []Owed {
	var all []Owed
	paid := 0
	for _, e := range log {
		if e.Surface.Kind != events.SurfaceAppend {
			continue
		}
		switch b := e.Body.(type) {
		case *events.ToolResult:
			for _, c := range b.Contexts {
				all = append(all, Owed{AddedContext: c, Result: e.Seq})
			}
		case *events.UserMessage:
			if b.Message.Source.Kind == events.SourcePlugin && len(e.Sources) > 0 {
				paid++
			}
		}
	}
	return slices.Clone(all[paid:])
}

// sections returns the messages of contexts behind which none of the same context was appended, if they are nodes.
func sections(log []events.Event, nodes []uint64) []events.Message {
	names := make([]string, len(log)) // of the context whose message is appended there
	for i, e := range log {
		b, ok := e.Body.(*events.UserMessage)
		if ok && e.Surface.Kind == events.SurfaceAppend && b.Message.Source.Kind == events.SourceContext {
			names[i] = "context " + b.Message.Source.Plugin
		}
	}
	var out []events.Message
	for i := range log {
		if names[i] != "" && !slices.Contains(names[i+1:], names[i]) && slices.Contains(nodes, log[i].Seq) {
			out = append(out, messageOf(&log[i]).Clone())
		}
	}
	return out
}
