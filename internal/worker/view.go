package worker

import (
	"slices"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// view is what the loop's decisions need to know of the log beside the fold. It follows from the events alone, so that
// another worker decides alike.
type view struct {
	meter compact.Meter

	prompt    uint64 // the sequence of the turn's last message from the inbox
	summaries int    // compactions begun in the turn
	stalled   uint64 // the end of the turn's last compaction when that left the surface as it was
	compacted bool   // a compaction was completed since the loop's last call
	pruned    bool   // a result was shortened since then
	retrying  bool   // the delay before the next call is over

	compacting bool          // a compaction is open
	stopped    bool          // a cancel came while it was, outside of turns
	region     events.Region // of its last call for a summary, zero before the first

	complete bool             // the last answer of the turn called no tool
	entered  int              // messages that have entered in the last step
	steered  bool             // one of them steers
	plugins  []events.Message // those that extensions added before the step

	images []events.Block // each image on the surface, once
	known  map[objects.Digest]struct{}
	fresh  []events.Block // those of them that no answered request has shown

	refused bool // the step's last call of the loop failed with INVALID_REQUEST
	reshown bool // images are shown otherwise since then, because of that
	inlined bool // this was done in the step: images that were files go in the body,
	dropped bool // and this: images are described in text
}

// observe takes the next event of the log, which the fold has taken.
func (v *view) observe(e *events.Event) error {
	switch b := e.Body.(type) {
	case *events.TurnStart:
		v.prompt, v.summaries, v.stalled, v.complete = 0, 0, 0, false
	case *events.StepStart:
		v.retrying, v.entered, v.steered, v.plugins = false, 0, false, nil
	case *events.StepEnd:
		v.refused, v.reshown, v.inlined, v.dropped = false, false, false, false
	case *events.UserMessage:
		v.enter(e, b)
	case *events.AssistantMessage:
		v.fresh = nil
		v.complete = !slices.ContainsFunc(b.Message.Content, func(c events.Block) bool { return c.Type == events.BlockToolCall })
	case *events.ToolResult:
		v.see(b.Message.Content)
		v.pruned = v.pruned || e.Surface.Kind == events.SurfaceReplace
	case *events.LLMRetryStarted:
		v.retrying = true
	case *events.LLMStream:
		v.retrying = false
		switch b.Purpose {
		case events.PurposeLoop:
			v.compacted, v.pruned = false, false
			v.refused, v.reshown = false, false
		case events.PurposeCompaction:
			v.region = b.Auxiliary.Region
		case events.PurposeTitle:
		}
	case *events.LLMFailed:
		v.refused = !v.compacting && b.Failure.Code == events.FailureInvalid
	case *events.RequestImages:
		v.reshow(b)
	case *events.TurnCancelled:
		v.stopped = v.stopped || v.compacting && b.Turn == 0
	case *events.CompactionStart:
		v.summaries++
		v.retrying, v.compacting = false, true
	case *events.CompactionEnd:
		v.compacting, v.stopped, v.region = false, false, events.Region{}
		if b.Outcome == events.CompactionCompleted {
			v.compacted, v.stalled = true, 0
		} else {
			v.stalled = e.Seq
		}
	}
	if err := v.meter.Observe(e); err != nil {
		return err
	}
	if e.Surface.Kind == events.SurfaceReplace { // images may be gone
		fresh := v.fresh
		v.images, v.known = nil, nil
		for _, n := range v.meter.Nodes() {
			if n.Message != nil {
				v.see(n.Message.Content)
			}
		}
		v.fresh = slices.DeleteFunc(fresh, func(b events.Block) bool {
			_, ok := v.known[b.Object.Digest]
			return !ok
		})
	}
	return nil
}

// reshow takes how images are shown.
func (v *view) reshow(b *events.RequestImages) {
	if !v.refused { // nothing is made good by it
		return
	}
	v.reshown = true
	for i := range b.Images {
		v.inlined = v.inlined || b.Images[i].As == events.ImageInline
		v.dropped = v.dropped || b.Images[i].As == events.ImageText
	}
}

// enter takes a user message.
func (v *view) enter(e *events.Event, b *events.UserMessage) {
	if b.InboxSeq > 0 {
		v.prompt = e.Seq
	}
	v.see(b.Message.Content)
	if e.Surface.Kind == events.SurfaceReplace {
		return
	}
	v.entered++
	v.steered = v.steered || b.Delivery == events.DeliverySteer
	if b.Message.Source.Kind == events.SourcePlugin && len(e.Sources) == 0 {
		v.plugins = append(v.plugins, b.Message)
	}
}

// said reports whether an extension's message with the content has entered in the last step.
func (v *view) said(plugin string, content []events.Block) bool {
	return slices.ContainsFunc(v.plugins, func(m events.Message) bool {
		return m.Source.Plugin == plugin && sameTexts(m.Content, content)
	})
}

// sameTexts reports whether two lists hold the same texts.
func sameTexts(a, b []events.Block) bool {
	return slices.EqualFunc(a, b, func(x, y events.Block) bool { return x.Text == y.Text && x.Object == y.Object })
}

// see remembers the images of a message.
func (v *view) see(content []events.Block) {
	for _, b := range content {
		if b.Type == events.BlockToolResult {
			v.see(b.Content)
		}
		if b.Type != events.BlockImage {
			continue
		}
		if _, ok := v.known[b.Object.Digest]; ok {
			continue
		}
		if v.known == nil {
			v.known = make(map[objects.Digest]struct{})
		}
		v.known[b.Object.Digest] = struct{}{}
		v.images, v.fresh = append(v.images, b), append(v.fresh, b)
	}
}
