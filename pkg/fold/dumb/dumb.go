// Package dumb is a second fold, written to be obviously right: from a whole prefix of a log it works out, again from
// the first event each time, what the next request shows. It keeps no state, is as slow as that sounds, and shares no
// code with package fold, whose answers it checks.
//
// It takes logs that package fold accepts and checks no rules of its own: about a log that breaks one it may say
// anything. See docs/format/fold.md for what both implement.
package dumb

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// View is what a prefix of a log shows. It shares no memory with the events.
type View struct {
	Header     events.Header          // the header in force, zero when there is none
	HeaderSeq  uint64                 // its sequence, 0 when there is none
	Nodes      []uint64               // the sequences of the surface's nodes, in surface order
	Surface    events.SurfacePosition // where the surface stands
	Messages   []events.Message       // what the surface shows, in surface order
	NewObjects []objects.Ref          // those that came into use since the last llm/stream, in log order, each once
	Input      uint64                 // the highest inbox sequence claimed
	Turn, Step int64                  // the last ones started, Step in Turn; 0 before the first
}

// Fold returns the view of log, the events of a session from the first on. It fails when a replacement names no run
// of surface nodes, or an event has no body.
func Fold(log []events.Event) (View, error) {
	for i := range log {
		if log[i].Body == nil {
			return View{}, fmt.Errorf("dumb fold: event %d has no body", log[i].Seq)
		}
	}
	var v View
	nodes, generation, err := surface(log)
	if err != nil {
		return View{}, err
	}
	v.Nodes = nodes
	v.Surface = events.SurfacePosition{Nodes: int64(len(nodes)), Generation: generation}
	if len(nodes) > 0 {
		v.Surface.Last = nodes[len(nodes)-1]
	}
	for _, seq := range nodes {
		if m := messageOf(find(log, seq)); m != nil && len(m.Content) > 0 {
			v.Messages = append(v.Messages, m.Clone())
		}
	}
	v.Header, v.HeaderSeq = header(log)
	v.NewObjects = newObjects(log)
	v.Input = input(log)
	v.Turn, v.Step = position(log)
	return v, nil
}

// surface returns the nodes that stand after the last event, and how often the surface was rewritten.
func surface(log []events.Event) (nodes []uint64, generation int64, err error) {
	for i := range log {
		e := &log[i]
		switch e.Surface.Kind {
		case events.SurfaceNone:
		case events.SurfaceAppend:
			nodes = append(nodes, e.Seq)
		case events.SurfaceReplace:
			start := slices.Index(nodes, e.Surface.Region.Start)
			end := slices.Index(nodes, e.Surface.Region.End)
			if start < 0 || end < start {
				return nil, 0, fmt.Errorf("dumb fold: event %d replaces %d..%d, which is no run of surface nodes",
					e.Seq, e.Surface.Region.Start, e.Surface.Region.End)
			}
			nodes = slices.Concat(nodes[:start], []uint64{e.Seq}, nodes[end+1:])
			generation++
		}
	}
	return nodes, generation, nil
}

// find returns the event with the sequence, which is known to stand in log.
func find(log []events.Event, seq uint64) *events.Event {
	return &log[slices.IndexFunc(log, func(e events.Event) bool { return e.Seq == seq })]
}

// messageOf returns the message that e holds, nil when it holds none.
func messageOf(e *events.Event) *events.Message {
	switch b := e.Body.(type) {
	case *events.UserMessage:
		return &b.Message
	case *events.AssistantMessage:
		return &b.Message
	case *events.ToolResult:
		return &b.Message
	}
	return nil
}

// header returns the last header recorded.
func header(log []events.Event) (events.Header, uint64) {
	for _, e := range slices.Backward(log) {
		if b, ok := e.Body.(*events.RequestHeader); ok {
			return b.Header.Clone(), e.Seq
		}
	}
	return events.Header{}, 0
}

// newObjects returns the objects that are named behind the last llm/stream and nowhere before it.
func newObjects(log []events.Event) []objects.Ref {
	last := 0
	for i := range log {
		if _, ok := log[i].Body.(*events.LLMStream); ok {
			last = i
		}
	}
	old := named(log[:last])
	var fresh []objects.Ref
	for _, ref := range named(log[last:]) {
		if !slices.Contains(old, ref) && !slices.Contains(fresh, ref) {
			fresh = append(fresh, ref)
		}
	}
	return fresh
}

// named returns the objects that headers and messages name, in log order, as often as they do.
func named(log []events.Event) []objects.Ref {
	var refs []objects.Ref
	add := func(ref objects.Ref) {
		if ref != (objects.Ref{}) {
			refs = append(refs, ref)
		}
	}
	for i := range log {
		if b, ok := log[i].Body.(*events.RequestHeader); ok {
			add(b.Header.SystemObject)
			add(b.Header.ToolsObject)
		}
		if m := messageOf(&log[i]); m != nil {
			for _, block := range m.Content {
				add(block.Object)
				for _, inner := range block.Content {
					add(inner.Object)
				}
			}
		}
	}
	return refs
}

// input returns the highest inbox sequence that an event names.
func input(log []events.Event) uint64 {
	var highest uint64
	for i := range log {
		switch b := log[i].Body.(type) {
		case *events.UserMessage:
			highest = max(highest, b.InboxSeq)
		case *events.SessionConfigured:
			highest = max(highest, b.InboxSeq)
		case *events.SessionClosed:
			highest = max(highest, b.InboxSeq)
		}
	}
	return highest
}

// position returns the last turn, and its last step.
func position(log []events.Event) (turn, step int64) {
	for i := range log {
		switch b := log[i].Body.(type) {
		case *events.TurnStart:
			turn, step = b.Turn, 0
		case *events.StepStart:
			step = b.Step
		}
	}
	return turn, step
}
