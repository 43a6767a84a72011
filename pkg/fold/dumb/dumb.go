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
	Inputs     Inputs                 // what was claimed of the inbox
	Owed       []Owed                 // the context that has to enter before the next call of the loop, in order
	Images     []events.ImageShown    // how images are shown, in the order in which they were first named
	ImagesOver int64                  // how many events changed how an image is shown
	Sections   []events.Message       // the newest message of each context that still stands on the surface, in log order
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
		if m := shown(find(log, seq)); m != nil {
			v.Messages = append(v.Messages, m.Clone())
		}
	}
	v.Header, v.HeaderSeq = header(log)
	v.NewObjects = newObjects(log)
	v.Inputs = inputs(log)
	v.Owed = owed(log)
	v.Images, v.ImagesOver = images(log)
	v.Sections = sections(log, nodes)
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

// shown returns the message of e as the model sees it: nil for an answer that says nothing.
func shown(e *events.Event) *events.Message {
	if b, ok := e.Body.(*events.AssistantMessage); ok && len(b.Message.Content) == 0 {
		return nil
	}
	return messageOf(e)
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
	split := 0
	for i := range log {
		if _, ok := log[i].Body.(*events.LLMStream); ok {
			split = i + 1
		}
	}
	return fresh(named(log[:split]), named(log[split:]))
}

// fresh returns those of refs that are not in old, each once.
func fresh(old, refs []objects.Ref) []objects.Ref {
	var out []objects.Ref
	for _, ref := range refs {
		if ref != (objects.Ref{}) && !slices.Contains(old, ref) && !slices.Contains(out, ref) {
			out = append(out, ref)
		}
	}
	return out
}

// named returns the objects that headers, messages, images and directives name, in log order, as often as they do. A
// zero reference among them means nothing.
func named(log []events.Event) []objects.Ref {
	var refs []objects.Ref
	for i := range log {
		switch b := log[i].Body.(type) {
		case *events.RequestHeader:
			refs = append(refs, b.Header.SystemObject, b.Header.ToolsObject)
		case *events.RequestImages:
			for _, image := range b.Images {
				refs = append(refs, image.Object)
			}
		case *events.LLMStream:
			if b.Auxiliary != nil {
				refs = append(refs, blocks(b.Auxiliary.Directive)...)
			}
		}
		if m := messageOf(&log[i]); m != nil {
			refs = append(refs, blocks(m.Content)...)
		}
	}
	return refs
}

// blocks returns the objects of the content, in order.
func blocks(content []events.Block) []objects.Ref {
	var refs []objects.Ref
	for _, block := range content {
		refs = append(refs, block.Object)
		refs = append(refs, blocks(block.Content)...)
	}
	return refs
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
