package fold

import (
	"maps"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Images says how a request shows images. It is a value that later events do not change.
type Images struct {
	shown      map[objects.Digest]events.ImageShown // never changed once set
	generation int64
}

// Shown returns how the image with that digest is shown; ok is false when no event has said so.
func (i Images) Shown(image objects.Digest) (shown events.ImageShown, ok bool) {
	shown, ok = i.shown[image]
	return shown, ok
}

// Generation counts the changes of how an image is shown that had been said before: with the same generation, a
// message that could be shown is shown as it was.
func (i Images) Generation() int64 { return i.generation }

// Images returns how images are shown now.
func (s *State) Images() Images { return s.images }

func (s *State) applyImages(e *events.Event, b *events.RequestImages) error {
	if err := s.preparing(e, RuleImages); err != nil {
		return err
	}
	shown := maps.Clone(s.images.shown)
	if shown == nil {
		shown = make(map[objects.Digest]events.ImageShown, len(b.Images))
	}
	changed := false
	for _, image := range b.Images {
		old, ok := shown[image.Image]
		if ok && old == image {
			return s.refuse(e, RuleImages, "image %s is shown like that already", image.Image)
		}
		changed = changed || ok
		shown[image.Image] = image
		if image.Object != (objects.Ref{}) {
			s.refs.add([]objects.Ref{image.Object})
		}
	}
	s.images.shown = shown
	if changed {
		s.images.generation++
	}
	return nil
}
