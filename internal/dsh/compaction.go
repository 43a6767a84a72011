package dsh

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// settle ends the open model call and the open compaction, of which the reference system recorded no end.
func (t *translator) settle() error {
	if err := t.abandon(); err != nil {
		return err
	}
	c, open := t.state.Compaction()
	if !open {
		return nil
	}
	end := &events.CompactionEnd{CompactionID: c.Start.CompactionID, Turn: c.Start.Turn, Outcome: events.CompactionInterrupted}
	if c.Replaced {
		end.Outcome = events.CompactionCompleted
	}
	_, err := t.plain(end)
	return err
}

// compactionStart translates the start of a compaction. Its model call is not in the reference system's log, which does
// not hold what that call was asked.
func (t *translator) compactionStart(r *row) (uint64, error) {
	var c struct {
		ID text `json:"compactionId"`
	}
	if err := unmarshal(r.Data, &c); err != nil || c.ID == "" {
		return t.foreign(r)
	}
	if err := t.settle(); err != nil {
		return 0, err
	}
	if err := t.startRetry(); err != nil {
		return 0, err
	}
	if _, open := t.state.Step(); open && t.state.Answered() {
		if len(t.state.PendingTools()) > 0 { // our log has no compaction between a tool's call and its result
			return t.foreign(r)
		}
		if err := t.closeStep(); err != nil {
			return 0, err
		}
	}
	turn, open := t.state.Turn()
	if !open {
		turn = 0
	}
	return t.plain(&events.CompactionStart{CompactionID: string(c.ID), Turn: turn})
}

func (t *translator) compactionSummary(r *row) (uint64, error) {
	var s struct {
		ID      text   `json:"compactionId"`
		Summary blocks `json:"summary"`
		Range   struct {
			Start uint64 `json:"start"`
			End   uint64 `json:"end"`
		} `json:"shadowedRange"`
		Tokens    float64 `json:"shadowedTokenCount"`
		Provider  loose   `json:"provider"`
		Model     loose   `json:"model"`
		MaxTokens float64 `json:"maxTokens"`
		Usage     *usage  `json:"usage"`
	}
	if err := unmarshal(r.Data, &s); err != nil {
		return t.foreign(r)
	}
	c, open := t.state.Compaction()
	region, shadowed := t.shadowed(s.Range.Start, s.Range.End)
	if !open || c.Start.CompactionID != string(s.ID) || c.SummarySeq != 0 || shadowed == nil {
		return t.foreign(r)
	}
	b := &events.CompactionSummary{
		CompactionID: string(s.ID), Region: region, Shadowed: shadowed, ShadowedTokens: count(s.Tokens, new(bool)),
		Provider: string(s.Provider), Model: string(s.Model), MaxTokens: count(s.MaxTokens, new(bool)),
	}
	for i := range s.Summary {
		if s.Summary[i].Type != text(events.BlockText) {
			return t.foreign(r)
		}
		b.Summary = append(b.Summary, events.Text(string(s.Summary[i].Text)))
	}
	b.Usage, b.UsageReported = s.Usage.event()
	return t.plain(b)
}

// shadowed returns the region of our surface that the reference system's sequences name, and its nodes; nil when it is
// none.
func (t *translator) shadowed(start, end uint64) (events.Region, []uint64) {
	region := events.Region{Start: t.seqs[start], End: t.seqs[end]}
	nodes := t.state.Nodes()
	lo, hi := slices.Index(nodes, region.Start), slices.Index(nodes, region.End)
	if lo < 0 || hi < lo {
		return region, nil
	}
	return region, slices.Clone(nodes[lo : hi+1])
}

// checkpoint returns what a message must cite that puts a compaction's summary in place. One that belongs to no open
// compaction with that summary is a plugin's own.
func (t *translator) checkpoint(b *events.UserMessage, op events.SurfaceOp) ([]uint64, error) {
	c, open := t.state.Compaction()
	id := b.Message.Source.CompactionID
	if open && id == c.Start.CompactionID && c.SummarySeq != 0 && !c.Replaced && op.Region == c.Summary.Region {
		return []uint64{c.StartSeq, c.SummarySeq}, nil
	}
	b.Message.Source.CompactionID = ""
	return nil, t.settle()
}

func (t *translator) compactionEnd(r *row) (uint64, error) {
	var e struct {
		ID    text  `json:"compactionId"`
		Error loose `json:"error"`
	}
	if err := unmarshal(r.Data, &e); err != nil {
		return t.foreign(r)
	}
	c, open := t.state.Compaction()
	if !open || c.Start.CompactionID != string(e.ID) {
		return t.foreign(r)
	}
	b := &events.CompactionEnd{CompactionID: string(e.ID), Turn: c.Start.Turn, Outcome: events.CompactionInterrupted, Error: string(e.Error)}
	switch {
	case c.Replaced:
		b.Outcome = events.CompactionCompleted
	case e.Error != "":
		b.Outcome = events.CompactionFailed
	}
	return t.plain(b)
}

// prune translates the announcement that a tool result is shortened.
func (t *translator) prune(r *row) (uint64, error) {
	var p struct {
		Range struct {
			Start uint64 `json:"start"`
			End   uint64 `json:"end"`
		} `json:"shadowedRange"`
		Tokens float64 `json:"shadowedTokenCount"`
	}
	if err := unmarshal(r.Data, &p); err != nil {
		return t.foreign(r)
	}
	region, shadowed := t.shadowed(p.Range.Start, p.Range.End)
	if shadowed == nil {
		return t.foreign(r)
	}
	return t.plain(&events.CompactionPrune{Region: region, Shadowed: shadowed, ShadowedTokens: count(p.Tokens, new(bool))})
}
