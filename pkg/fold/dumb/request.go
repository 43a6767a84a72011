package dumb

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Request is what a model call asks.
type Request struct {
	Header   events.Header
	Messages []events.Message // without those that show nothing
	Objects  []objects.Ref    // what its llm/stream must list
}

// RequestOf returns the request of the llm/stream that stands behind log. Of an auxiliary call the last message is that
// of the directive, with an id and a source that mean nothing.
func RequestOf(log []events.Event, stream *events.LLMStream) (Request, error) {
	v, err := Fold(log)
	if err != nil {
		return Request{}, err
	}
	if stream.Auxiliary == nil {
		return Request{Header: v.Header, Messages: v.Messages, Objects: v.NewObjects}, nil
	}
	r := Request{Header: v.Header, Objects: v.NewObjects}
	r.Header.Config, r.Header.AdapterDefaults = stream.Auxiliary.Config, events.AdapterDefaults{}
	if region := stream.Auxiliary.Region; region != (events.Region{}) {
		start, end := slices.Index(v.Nodes, region.Start), slices.Index(v.Nodes, region.End)
		if start < 0 || end < start {
			return Request{}, fmt.Errorf("dumb fold: %d..%d is no run of surface nodes", region.Start, region.End)
		}
		for _, seq := range v.Nodes[start : end+1] {
			if m := shown(find(log, seq)); m != nil {
				r.Messages = append(r.Messages, m.Clone())
			}
		}
	}
	directive := slices.Clone(stream.Auxiliary.Directive)
	r.Messages = append(r.Messages, events.Message{Role: events.RoleUser, Content: directive})
	r.Objects = append(r.Objects, fresh(named(log), blocks(directive))...)
	return r, nil
}

// images returns how every image named by a request/images is shown, and how many of these events showed one in another
// way than one before them.
func images(log []events.Event) (all []events.ImageShown, changes int64) {
	for i := range log {
		b, ok := log[i].Body.(*events.RequestImages)
		if !ok {
			continue
		}
		changed := false
		for _, image := range b.Images {
			k := slices.IndexFunc(all, func(s events.ImageShown) bool { return s.Image == image.Image })
			if k < 0 {
				all = append(all, image)
				continue
			}
			all[k], changed = image, true
		}
		if changed {
			changes++
		}
	}
	return all, changes
}
