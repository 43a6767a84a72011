package audit

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// Withheld says of which messages a log holds no content.
type Withheld struct {
	Withholding Withholding
	// Commitment returns what is known of the stored payload of the event seq; ok is false when the payload itself is at
	// hand. It is asked about the message that is applied, and about none behind it.
	Commitment func(seq uint64) (c Commitment, ok bool)
}

// commitment returns the commitment to the payload of the event, if its content is withheld.
func (w *Withheld) commitment(seq uint64) (Commitment, bool) {
	if w == nil {
		return Commitment{}, false
	}
	return w.Commitment(seq)
}

// hash returns the hash of the stored payload of m, whether or not that is at hand.
func (w *Withheld) hash(m *eventlog.Message) events.Hash {
	if c, ok := w.commitment(m.Seq); ok {
		return c.Payload.SHA256
	}
	return events.HashPayload(m.Payload)
}

// withheldState is what a checker knows of content that is withheld. The zero value knows of none.
type withheldState struct {
	opaque uint64              // the first event of which only the envelope is at hand, 0: none. Behind it nothing is folded
	seqs   map[uint64]struct{} // events without their content
	images bool                // one of them says how images are shown
	seed   bool                // one of them is a fork's copy, and that was said
	said   []Verdict           // see Checker.Unchecked
	hidden map[objects.Digest]struct{}
	clear  map[objects.Digest]struct{}
}

// note keeps what an event says of objects, and that it is without its content.
func (s *withheldState) note(e *events.Event, withheld bool) {
	if s.seqs == nil {
		s.seqs = make(map[uint64]struct{})
		s.hidden, s.clear = make(map[objects.Digest]struct{}), make(map[objects.Digest]struct{})
	}
	refs, into := refsOf(e), s.clear
	if withheld {
		s.seqs[e.Seq], into = struct{}{}, s.hidden
	}
	if b, ok := e.Body.(*events.RequestImages); ok && withheld {
		s.images = true
		for i := range b.Images {
			refs = append(refs, b.Images[i].Object)
		}
	}
	for _, ref := range refs {
		into[ref.Digest] = struct{}{}
	}
}

// objectWithheld reports whether only events without their content name the object.
func (s *withheldState) objectWithheld(d objects.Digest) bool {
	_, open := s.clear[d]
	_, hidden := s.hidden[d]
	return hidden && !open
}

// event decodes a message, with or without its content.
func (c *Checker) event(m *eventlog.Message) (events.Event, error) {
	if c.cfg.Withheld == nil {
		return m.Decode(&c.decoder)
	}
	commitment, ok := c.cfg.Withheld.commitment(m.Seq)
	if !ok {
		e, err := m.Decode(&c.decoder)
		if err == nil {
			err = c.cfg.Withheld.Withholding.whole(&e)
		}
		if err == nil {
			c.withheld.note(&e, false)
		}
		return e, err
	}
	e, err := c.cfg.Withheld.Withholding.Event(m, &commitment)
	if err == nil {
		c.withheld.note(&e, true)
	}
	return e, err
}

// chained takes a message of which only the envelope is at hand, or one behind such a message: it is not folded, but must
// go on with the chain. ok is false for a message that is folded as always.
func (c *Checker) chained(m *eventlog.Message) (v *Verdict, ok bool) {
	commitment, withheld := c.cfg.Withheld.commitment(m.Seq)
	opaque := withheld && commitment.Opaque
	if c.withheld.opaque == 0 && !opaque {
		return nil, false
	}
	var prev events.Hash
	var stream *events.LLMStream
	var e events.Event
	if opaque {
		var err error
		if prev, err = c.cfg.Withheld.Withholding.envelope(m, &commitment); err != nil {
			return c.breakAt(m, InvalidLog, RulePayload, err.Error()), true
		}
	} else {
		var err error
		if e, err = c.event(m); err != nil {
			result, rule := payloadFault(err)
			return c.breakAt(m, result, rule, err.Error()), true
		}
		prev = e.Prev
		stream, _ = e.Body.(*events.LLMStream)
	}
	if prev != c.chain {
		return c.breakAt(m, BrokenChain, string(fold.RuleChain), fmt.Sprintf("prev is %s, the payload before hashes to %s", prev, c.chain)), true
	}
	if !c.ids.add(m.ID) {
		return c.breakAt(m, InvalidLog, RuleID, fmt.Sprintf("an earlier event has the ID %s too", m.ID)), true
	}
	c.seq, c.chain = m.Seq, c.cfg.Withheld.hash(m)
	seen, body := c.verdict(m, KindWire, c.chain), events.Body(nil)
	if stream != nil {
		body = stream
	}
	c.calls.see(&seen, m.Type, body)
	c.unchecked(m, &e)
	switch {
	case stream != nil:
		v := c.verdict(m, KindRequest, c.chain)
		describeStream(&v, stream)
		v.Result, v.Rule = CouldNotCheck, RuleWithheld
		v.Reason = fmt.Sprintf("behind event %d, whose content is withheld, nothing but the chain can be checked", c.withheld.opaque)
		return &v, true
	case c.withheld.opaque == 0:
		c.withheld.opaque = m.Seq
		v := c.verdict(m, KindLog, c.chain)
		v.Result, v.Rule = CouldNotCheck, RuleWithheld
		v.Reason = "its content is withheld: from here on nothing but the chain can be checked"
		return &v, true
	}
	return nil, true
}

// Unchecked returns what of the last message could not be checked since its content is withheld: one log verdict for each
// message that came with its structure and without its content. That structure is the word of whoever took the content out, its
// type included, so that a log with such a message never matches as a whole. Each is returned once, in the caller's own slice.
func (c *Checker) Unchecked() []Verdict {
	said := c.withheld.said
	c.withheld.said = nil
	return said
}

// unchecked says what of an event without its content could not be checked.
func (c *Checker) unchecked(m *eventlog.Message, e *events.Event) {
	if !e.Withheld() {
		return
	}
	v := c.verdict(m, KindLog, c.chain)
	v.Result, v.Rule = CouldNotCheck, RuleWithheld
	switch e.Body.(type) {
	case *events.SessionCreated:
		v.Reason = "its content is withheld: that this is the session's log, and which parent and options it has, is the exporter's word"
	case *events.SessionConfigured:
		v.Reason = "its content is withheld: that it is a session/configured, and which options it sets, is the exporter's word"
	default:
		v.Reason = fmt.Sprintf("its content is withheld: that it is a %s, and its structure, is the exporter's word", e.Type())
	}
	if c.copied(e) && !c.withheld.seed {
		c.withheld.seed = true
		v.Reason = "its content is withheld, and the fork copied it: whether what was copied is its parent's cannot be checked"
	}
	c.withheld.said = append(c.withheld.said, v)
}

// copied reports whether the event is one that a fork copied.
func (c *Checker) copied(e *events.Event) bool {
	created, ok := c.state.Created()
	return ok && created.Parent != (events.Parent{}) && e.Seq > 1 && e.Seq <= created.SeedLength+1
}

// showsWithheld returns why the request cannot be rebuilt, empty when nothing that it shows is withheld.
func (c *Checker) showsWithheld(b *events.LLMStream, request *fold.Request) string {
	if len(c.withheld.seqs) == 0 {
		return ""
	}
	missing := func(seq uint64) bool { _, ok := c.withheld.seqs[seq]; return ok }
	if missing(request.HeaderSeq) {
		return fmt.Sprintf("it has the header of event %d, whose content is withheld", request.HeaderSeq)
	}
	nodes := c.state.Nodes()
	if a := b.Auxiliary; a != nil {
		lo, hi := slices.Index(nodes, a.Region.Start), slices.Index(nodes, a.Region.End)
		if nodes = nodes[max(lo, 0) : max(lo, hi, -1)+1]; lo < 0 {
			nodes = nil
		}
	}
	if i := slices.IndexFunc(nodes, missing); i >= 0 {
		return fmt.Sprintf("it shows event %d, whose content is withheld", nodes[i])
	}
	if c.withheld.images && showsImage(request) {
		return "it shows an image, and how images are shown is withheld"
	}
	return ""
}

func showsImage(request *fold.Request) bool {
	isImage := func(b events.Block) bool {
		return b.Type == events.BlockImage || slices.ContainsFunc(b.Content, func(in events.Block) bool { return in.Type == events.BlockImage })
	}
	for _, m := range request.Messages.All() {
		if slices.ContainsFunc(m.Content, isImage) {
			return true
		}
	}
	return false
}
