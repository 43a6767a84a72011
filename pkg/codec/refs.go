package codec

import (
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// Refs returns the objects that a body of the request is built from, each once, in the order header, messages: what a
// builder that starts anew may ask for. Of an image it is the object that is shown, not the one that the message names.
func Refs(r *fold.Request) []objects.Ref {
	refs := r.Header.Refs(nil)
	for _, m := range r.Messages.All() {
		refs = blockRefs(refs, m.Content, r.Images)
	}
	return once(refs)
}

func blockRefs(refs []objects.Ref, blocks []events.Block, images fold.Images) []objects.Ref {
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.Type == events.BlockImage:
			if shown, ok := images.Shown(b.Object.Digest); ok && shown.As == events.ImageInline {
				refs = append(refs, shown.Object)
			}
		case b.Object != objects.Ref{}:
			refs = append(refs, b.Object)
		}
		refs = blockRefs(refs, b.Content, images)
	}
	return refs
}

// Needed returns those of Refs that a builder asks for when it goes on behind the body before: the header's, and of
// listed, the objects that came into use since then, those that bodies hold. Of an image that is what is shown of it.
// It costs in proportion to listed.
func Needed(r *fold.Request, listed []objects.Ref) []objects.Ref {
	refs := r.Header.Refs(nil)
	for _, ref := range listed {
		shown, ok := r.Images.Shown(ref.Digest)
		switch {
		case !ok:
			refs = append(refs, ref)
		case shown.As == events.ImageInline:
			refs = append(refs, shown.Object)
		}
	}
	return once(refs)
}

// once removes repetitions in place.
func once(refs []objects.Ref) []objects.Ref {
	seen := make(map[objects.Ref]struct{}, len(refs))
	kept := refs[:0]
	for _, ref := range refs {
		if _, ok := seen[ref]; !ok {
			seen[ref] = struct{}{}
			kept = append(kept, ref)
		}
	}
	return kept
}
