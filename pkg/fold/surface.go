package fold

import (
	"iter"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// MessageOf returns the message that a surface event shows the model; ok is false when it shows none. It is the
// one projection of an event to a message: worker, verifier and everybody else use it. The message is a copy.
//
// An assistant message with empty content stands on the surface to host its usage and derives no message.
func MessageOf(e *events.Event) (m events.Message, ok bool) {
	p := messageOf(e)
	if p == nil {
		return m, false
	}
	return p.Clone(), true
}

func messageOf(e *events.Event) *events.Message {
	switch b := e.Body.(type) {
	case *events.UserMessage:
		return &b.Message
	case *events.ToolResult:
		return &b.Message
	case *events.AssistantMessage:
		if len(b.Message.Content) > 0 {
			return &b.Message
		}
	}
	return nil
}

// surface is the ordered list of the events that the next request shows.
type surface struct {
	nodes      []node
	shown      []*events.Message // the messages of the nodes that have one; never changed in place
	generation int64
}

type node struct {
	seq     uint64
	body    events.Body
	message *events.Message // nil: the node shows nothing
}

func nodeOf(e *events.Event) node { return node{seq: e.Seq, body: e.Body, message: messageOf(e)} }

func (f *surface) position() events.SurfacePosition {
	p := events.SurfacePosition{Nodes: int64(len(f.nodes)), Generation: f.generation}
	if n := len(f.nodes); n > 0 {
		p.Last = f.nodes[n-1].seq
	}
	return p
}

func (f *surface) push(n node) {
	f.nodes = append(f.nodes, n)
	if n.message != nil {
		f.shown = append(f.shown, n.message)
	}
}

// ToolResult returns a copy of the tool/result that is the surface node with that sequence; ok is false when there is no
// such node.
func (s *State) ToolResult(seq uint64) (r events.ToolResult, ok bool) {
	i := s.surface.index(seq)
	if i < 0 {
		return r, false
	}
	b, ok := s.surface.nodes[i].body.(*events.ToolResult)
	if !ok {
		return r, false
	}
	r = *b
	r.Message = b.Message.Clone()
	r.Contexts = slices.Clone(b.Contexts)
	return r, true
}

// run returns the positions [lo,hi] that a region names.
func (f *surface) run(r events.Region) (lo, hi int, ok bool) {
	lo, hi = f.index(r.Start), f.index(r.End)
	return lo, hi, lo >= 0 && hi >= lo
}

// seqs returns the sequences of the nodes [lo,hi].
func (f *surface) seqs(lo, hi int) []uint64 {
	out := make([]uint64, 0, hi-lo+1)
	for _, n := range f.nodes[lo : hi+1] {
		out = append(out, n.seq)
	}
	return out
}

// index returns the position of the node with the sequence, or -1.
func (f *surface) index(seq uint64) int {
	return slices.IndexFunc(f.nodes, func(n node) bool { return n.seq == seq })
}

// replace puts n in the place of the nodes [lo,hi].
func (f *surface) replace(lo, hi int, n node) {
	nodes := make([]node, 0, len(f.nodes)-(hi-lo))
	nodes = append(nodes, f.nodes[:lo]...)
	nodes = append(nodes, n)
	nodes = append(nodes, f.nodes[hi+1:]...)
	f.nodes, f.shown = nodes, nil
	for _, n := range nodes {
		if n.message != nil {
			f.shown = append(f.shown, n.message)
		}
	}
	f.generation++
}

func (f *surface) messages() Messages {
	n := len(f.shown)
	return Messages{list: f.shown[:n:n], generation: f.generation}
}

func (s *State) push(e *events.Event, m *events.Message) {
	s.surface.push(nodeOf(e))
	s.refs.add(m.Refs(nil))
}

// region resolves the event's replacement to positions [lo,hi] and checks its provenance.
func (s *State) region(e *events.Event) (lo, hi int, err error) {
	if s.call != nil {
		return 0, 0, s.refuse(e, RuleReplace, "a model call is open")
	}
	r := e.Surface.Region
	lo, hi, ok := s.surface.run(r)
	if !ok {
		return 0, 0, s.refuse(e, RuleReplace, "%d..%d is no run of surface nodes", r.Start, r.End)
	}
	cited := slices.Sorted(slices.Values(e.Sources))
	for _, n := range s.surface.nodes[lo : hi+1] {
		if _, ok := slices.BinarySearch(cited, n.seq); !ok {
			return 0, 0, s.refuse(e, RuleReplace, "it shadows node %d without citing it", n.seq)
		}
	}
	return lo, hi, nil
}

func (s *State) replace(e *events.Event, m *events.Message) error {
	lo, hi, err := s.region(e)
	if err != nil {
		return err
	}
	if err := s.balanced(e, RuleReplace, lo, hi); err != nil {
		return err
	}
	if err := s.placeSummary(e, m); err != nil {
		return err
	}
	s.rewrite(lo, hi, e)
	s.refs.add(m.Refs(nil))
	return nil
}

// rewrite puts e in the place of the nodes [lo,hi] and forgets the contexts that went with them.
func (s *State) rewrite(lo, hi int, e *events.Event) {
	s.forget(s.surface.nodes[lo : hi+1])
	s.surface.replace(lo, hi, nodeOf(e))
}

// balanced refuses to shadow a tool call without its result, or the other way round: no provider takes such a
// history.
func (s *State) balanced(e *events.Event, rule Rule, lo, hi int) error {
	var open []string
	for _, n := range s.surface.nodes[lo : hi+1] {
		if n.message == nil {
			continue
		}
		for i := range n.message.Content {
			switch c := &n.message.Content[i]; c.Type {
			case events.BlockToolCall:
				open = append(open, c.ID)
			case events.BlockToolResult:
				k := slices.Index(open, c.ToolCallID)
				if k < 0 {
					return s.refuse(e, rule, "it shadows the result of call %q without the call", c.ToolCallID)
				}
				open = slices.Delete(open, k, k+1)
			default: // nothing to balance
			}
		}
	}
	if len(open) > 0 {
		return s.refuse(e, rule, "it shadows call %q without its result", open[0])
	}
	return nil
}

// replaceResult handles a tool result that takes the place of another: it rewrites exactly one result and only its
// content. What it holds for programs may go.
func (s *State) replaceResult(e *events.Event, b *events.ToolResult) error {
	if err := s.notCompacting(e); err != nil {
		return err
	}
	lo, hi, err := s.region(e)
	if err != nil {
		return err
	}
	old, ok := s.surface.nodes[lo].body.(*events.ToolResult)
	if lo != hi || !ok {
		return s.refuse(e, RuleReplace, "a tool result replaces exactly one tool result")
	}
	if len(b.Contexts) > 0 {
		return s.refuse(e, RuleReplace, "a replacement adds no context")
	}
	if b.Turn != old.Turn || b.Step != old.Step || b.CallID() != old.CallID() || b.Message.ID != old.Message.ID ||
		b.Message.Source != old.Message.Source || b.Message.Content[0].IsError != old.Message.Content[0].IsError || b.Error != old.Error {
		return s.refuse(e, RuleReplace, "it must keep everything of the result of event %d but its content", s.surface.nodes[lo].seq)
	}
	s.rewrite(lo, hi, e)
	s.refs.add(b.Message.Refs(nil))
	return nil
}

// refTracker collects the objects that came into use, each once.
type refTracker struct {
	seen  map[objects.Ref]struct{}
	fresh []objects.Ref
}

func (t *refTracker) add(refs []objects.Ref) {
	for _, r := range refs {
		if _, ok := t.seen[r]; ok {
			continue
		}
		if t.seen == nil {
			t.seen = make(map[objects.Ref]struct{})
		}
		t.seen[r] = struct{}{}
		t.fresh = append(t.fresh, r)
	}
}

// Messages is a conversation, in order. It is a value that later events do not change, and nothing handed out
// through it lets a caller change logged history.
type Messages struct {
	list       []*events.Message
	generation int64
}

// Len returns the number of messages.
func (m Messages) Len() int { return len(m.list) }

// At returns a copy of message i.
func (m Messages) At(i int) events.Message { return m.list[i].Clone() }

// All yields copies of the messages with their index, in order.
func (m Messages) All() iter.Seq2[int, events.Message] { return m.From(0) }

// From yields copies of the messages from index i on.
func (m Messages) From(i int) iter.Seq2[int, events.Message] {
	return func(yield func(int, events.Message) bool) {
		for ; i < len(m.list); i++ {
			if !yield(i, m.list[i].Clone()) {
				return
			}
		}
	}
}

// Extends reports whether m is o with messages appended: same session, same generation of the surface, at least as
// long. It holds for any two values of one state between which no replacement was folded.
func (m Messages) Extends(o Messages) bool {
	n := len(o.list)
	return len(m.list) >= n && (n == 0 || m.list[n-1] == o.list[n-1] && m.list[0] == o.list[0] && m.generation == o.generation)
}
