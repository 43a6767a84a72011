package foldtest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// rewrite compacts part of the surface, replaces part of it without, or prunes a result.
func (g *generator) rewrite() {
	switch g.upTo(7, "rewrite") {
	case 0:
		g.compaction(rapid.SampledFrom([]events.CompactionReason{
			events.CompactionPressure, events.CompactionCommand, "",
		}).Draw(g.t, "reason"))
	case 1:
		results := slices.DeleteFunc(g.State.Nodes(), func(seq uint64) bool {
			return g.Events[seq-1].Type() != events.TypeToolResult
		})
		if len(results) > 0 {
			g.Prune(rapid.SampledFrom(results).Draw(g.t, "pruned"), events.Text("(removed)"))
		}
	case 2:
		if r := g.region(); r != (events.Region{}) {
			g.Replace(r.Start, r.End, "edited")
		}
	}
}

// region draws a balanced region of the surface, zero when there is none.
func (g *generator) region() events.Region {
	regions := g.balanced()
	if len(regions) == 0 {
		return events.Region{}
	}
	return rapid.SampledFrom(regions).Draw(g.t, "region")
}

// compaction appends a compaction: with a model call or without, successful or not.
func (g *generator) compaction(reason events.CompactionReason) {
	r := g.region()
	g.CompactionStart(reason)
	switch {
	case r == events.Region{}:
		g.CompactionEnd(events.CompactionNoProgress)
		return
	case g.stopped():
		return
	case g.one(3, "no call"):
		g.Summary(r.Start, r.End, "so far")
	case !g.summary(r):
		if !g.stopped() {
			g.CompactionEnd(events.CompactionFailed)
		}
		return
	}
	g.takeover()
	if g.stopped() {
		return
	}
	if g.one(6, "not put in place") {
		g.CompactionEnd(events.CompactionInterrupted)
		return
	}
	g.PutSummary()
	if !g.stopped() {
		g.CompactionEnd(events.CompactionCompleted)
	}
}

// summary appends the calls of a compaction and reports whether one gave a summary.
func (g *generator) summary(r events.Region) bool {
	const most = 2
	for attempt := range most {
		g.header()
		directive := []events.Block{events.Text("Summarise this.")}
		if g.one(3, "directive: object") {
			directive = append(directive, g.object())
		}
		g.AuxStream(events.PurposeCompaction, r, directive...)
		finished := g.stream()
		if g.stopped() {
			return false
		}
		if _, _, answer, _, _ := g.State.OpenCall(); finished && answer.Finish.Kind == events.FinishStop {
			g.SummaryOfCall()
			return true
		}
		if !g.again(attempt == most-1) {
			return false
		}
	}
	return false
}

// title appends a call for a title now and then.
func (g *generator) title() {
	if !g.one(8, "a title's call") {
		return
	}
	g.header()
	var r events.Region
	if g.one(2, "of a region") {
		r = g.region()
	}
	g.AuxStream(events.PurposeTitle, r, events.Text("Name this."))
	finished := g.stream()
	if g.stopped() {
		return
	}
	if finished && !g.one(4, "the title is no use") {
		g.TitleOfCall("a title")
		return
	}
	g.Failed(events.FailureMalformed)
}

// balanced returns the regions of the surface that hold each call with its result.
func (g *generator) balanced() []events.Region {
	nodes := g.State.Nodes()
	var regions []events.Region
	for lo := range nodes {
		open := make(map[string]bool)
		for _, end := range nodes[lo:] {
			if !balance(open, g.Events[end-1].Body) {
				break
			}
			if len(open) == 0 {
				regions = append(regions, events.Region{Start: nodes[lo], End: end})
			}
		}
	}
	return regions
}

// balance enters the body's calls and results in open; false when a result has no call there.
func balance(open map[string]bool, body events.Body) bool {
	switch b := body.(type) {
	case *events.AssistantMessage:
		for _, block := range b.Message.Content {
			if block.Type == events.BlockToolCall {
				open[block.ID] = true
			}
		}
	case *events.ToolResult:
		if !open[b.CallID()] {
			return false
		}
		delete(open, b.CallID())
	}
	return true
}
