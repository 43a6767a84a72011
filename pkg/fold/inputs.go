package fold

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// inputs is what a log has claimed of its inbox. It grows by about a hundred bytes with every input: that nothing is
// used twice holds for the whole life of a session.
type inputs struct {
	turn, step uint64 // the highest claimed of each lane
	floor      uint64 // messages below it are dropped: a cancel came behind them
	seqs       map[uint64]struct{}
	ids        map[events.ID]struct{}
}

// lane is a queue of the inbox: its inputs are claimed in order.
type lane uint8

const (
	laneNone lane = iota // claimed whenever it comes: a cancel, or an input that is dropped
	laneTurn             // prompts and what is handled between turns
	laneStep             // messages for the next step
)

// mark returns where the highest claimed sequence of the lane is kept, nil when the lane has no order.
func (in *inputs) mark(l lane) *uint64 {
	switch l {
	case laneTurn:
		return &in.turn
	case laneStep:
		return &in.step
	case laneNone:
	}
	return nil
}

// claimInput records that the event claims an input of the inbox; a claim without a place claims none.
func (s *State) claimInput(e *events.Event, l lane, c events.Claim) error {
	if c.InboxSeq == 0 {
		return nil
	}
	in := &s.inputs
	mark := in.mark(l)
	_, seqTaken := in.seqs[c.InboxSeq]
	_, idTaken := in.ids[c.InputID]
	switch {
	case seqTaken:
		return s.refuse(e, RuleInput, "input %d was claimed before", c.InboxSeq)
	case idTaken:
		return s.refuse(e, RuleInput, "an input with the id %s was claimed before", c.InputID)
	case mark != nil && c.InboxSeq <= *mark:
		return s.refuse(e, RuleInput, "input %d was passed over: the log has claimed %d of its lane", c.InboxSeq, *mark)
	}
	if mark != nil {
		*mark = c.InboxSeq
	}
	if in.seqs == nil {
		in.seqs, in.ids = make(map[uint64]struct{}), make(map[events.ID]struct{})
	}
	in.seqs[c.InboxSeq] = struct{}{}
	in.ids[c.InputID] = struct{}{}
	return nil
}

// Claimed reports whether an event of the log has claimed the input at that place of the inbox, or one with that id.
// Such an input must not be used again.
func (s *State) Claimed(c events.Claim) bool {
	_, seq := s.inputs.seqs[c.InboxSeq]
	_, id := s.inputs.ids[c.InputID]
	return seq || id
}

// PassedOver reports whether the log has gone past an input of the turn lane (step false) or the step lane without
// claiming it, so that it can no longer be claimed by what it asks for: it is dropped.
func (s *State) PassedOver(seq uint64, step bool) bool {
	if step {
		return seq <= s.inputs.step
	}
	return seq <= s.inputs.turn
}

// Floor returns the place in the inbox below which messages are dropped, because a cancel came behind them; 0 when none
// did.
func (s *State) Floor() uint64 { return s.inputs.floor }

// Prompted reports whether the last turn has claimed its prompt.
func (s *State) Prompted() bool { return s.prompted }

// Cancelled returns the cancel of the open turn, the first one when there were more.
func (s *State) Cancelled() (c events.TurnCancelled, ok bool) {
	if s.cancelled == nil {
		return c, false
	}
	return *s.cancelled, true
}

func (s *State) applyCancelled(e *events.Event, b *events.TurnCancelled) error {
	if b.Turn != s.openTurn() {
		return s.refuse(e, RuleCancel, "it cancels turn %d; turn %d is the last (open: %t)", b.Turn, s.turn, s.turnOpen)
	}
	if err := s.claimInput(e, laneNone, b.Claim); err != nil {
		return err
	}
	if !b.KeepQueue {
		s.inputs.floor = max(s.inputs.floor, b.Claim.InboxSeq)
	}
	if s.turnOpen && s.cancelled == nil {
		s.cancelled = b
	}
	return nil
}

// uncancelled refuses what would begin something new in a cancelled turn.
func (s *State) uncancelled(e *events.Event) error {
	if s.cancelled != nil {
		return s.refuse(e, RuleCancel, "turn %d was cancelled", s.turn)
	}
	return nil
}

// openTurn and openStep return the numbers of what is open, 0 when nothing is.
func (s *State) openTurn() int64 {
	if s.turnOpen {
		return s.turn
	}
	return 0
}

func (s *State) openStep() int64 {
	if s.stepOpen {
		return s.step
	}
	return 0
}

// claimMessage checks the claim of a user message that enters.
func (s *State) claimMessage(e *events.Event, b *events.UserMessage) error {
	if b.InboxSeq == 0 {
		return nil
	}
	if b.InboxSeq < s.inputs.floor {
		return s.refuse(e, RuleInput, "input %d came before the cancel of input %d, which dropped it", b.InboxSeq, s.inputs.floor)
	}
	id, err := events.ParseID(b.Message.ID)
	if err != nil {
		return s.refuse(e, RuleInput, "a message that claims an input has its id, not %q", b.Message.ID)
	}
	c := events.Claim{InboxSeq: b.InboxSeq, InputID: id}
	if b.Delivery != events.DeliveryPrompt {
		return s.claimInput(e, laneStep, c)
	}
	if s.step != 1 || s.prompted {
		return s.refuse(e, RuleMessage, "a prompt enters in the first step of a turn, one in each")
	}
	if err := s.claimInput(e, laneTurn, c); err != nil {
		return err
	}
	s.prompted = true
	return nil
}

// owedContext is context that came with a tool's result and has to enter in the next step.
type owedContext struct {
	seq  uint64 // of the tool/result
	item events.AddedContext
}

// OwedContext is context that a tool/result brought and that has to enter before the next call of the loop.
type OwedContext struct {
	events.AddedContext
	Result uint64 // the sequence of the tool/result, which the user message cites
}

// Owed returns the context that has to enter before the next call of the loop, in order.
func (s *State) Owed() []OwedContext {
	out := make([]OwedContext, len(s.owed))
	for i, o := range s.owed {
		out[i] = OwedContext{AddedContext: o.item, Result: o.seq}
	}
	return out
}

// payContext takes an owed context off the list when the message is its.
func (s *State) payContext(e *events.Event, b *events.UserMessage) error {
	if b.Message.Source.Kind != events.SourcePlugin || len(e.Sources) == 0 {
		return nil
	}
	if len(s.owed) == 0 {
		return s.refuse(e, RuleMessage, "it cites events, but no tool/result owes context")
	}
	o := s.owed[0]
	if b.InboxSeq != 0 {
		return s.refuse(e, RuleMessage, "it claims an input and cites events")
	}
	content := []events.Block{events.Text(o.item.Text)}
	if !slices.Equal(e.Sources, []uint64{o.seq}) || b.Message.Source.Plugin != o.item.Plugin || !slices.EqualFunc(b.Message.Content, content, blockEqual) {
		return s.refuse(e, RuleMessage, "the next context that is owed is that of %q from event %d", o.item.Plugin, o.seq)
	}
	if s.owed = s.owed[1:]; len(s.owed) == 0 {
		s.owed = nil
	}
	return nil
}

// retained is a context message that stands on the surface.
type retained struct {
	plugin string
	seq    uint64
	body   *events.UserMessage
}

// retain remembers the newest message of each context.
func (s *State) retain(e *events.Event, b *events.UserMessage) {
	if b.Message.Source.Kind != events.SourceContext {
		return
	}
	s.contexts = slices.DeleteFunc(s.contexts, func(r retained) bool { return r.plugin == b.Message.Source.Plugin })
	s.contexts = append(s.contexts, retained{plugin: b.Message.Source.Plugin, seq: e.Seq, body: b})
}

// forget removes the contexts whose messages are among the nodes that go.
func (s *State) forget(nodes []node) {
	s.contexts = slices.DeleteFunc(s.contexts, func(r retained) bool {
		return slices.ContainsFunc(nodes, func(n node) bool { return n.seq == r.seq })
	})
}

// RetainedContext returns a copy of the newest message of the context with that name; ok is false when there is none or
// it stands on the surface no more. A context whose text is the same does not enter again.
func (s *State) RetainedContext(name string) (m events.Message, ok bool) {
	for _, r := range s.contexts {
		if r.plugin == name {
			return r.body.Message.Clone(), true
		}
	}
	return m, false
}
