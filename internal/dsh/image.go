package dsh

import (
	"fmt"
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// attachment is an image as the reference system's log names it.
type attachment struct {
	ref           objects.Ref // of the image as it came; the log does not hold its bytes
	width, height int64
	line          int // where it stands first
}

// imageCall is a model call that shows images.
type imageCall struct {
	process         int // calls of one process have the same number
	provider, model string
	images          []objects.Digest // of the attachments, in the order of the request, each once
	line            int
}

// content translates the blocks of a message. The images among them are added to t.pictures. What a model says stays
// inline: it must be what its chunks add up to.
func (t *translator) content(in []block, role events.Role) ([]events.Block, error) {
	out := make([]events.Block, 0, len(in))
	for i := range in {
		b := &in[i]
		e := events.Block{Type: events.BlockType(b.Type)}
		var err error
		switch e.Type {
		case events.BlockText:
			if e.Text = string(b.Text); role == events.RoleUser {
				e, err = t.textBlock(e.Text)
			}
		case events.BlockReasoning:
			e.Text = string(b.Text)
		case events.BlockToolCall:
			e.ID, e.Name, e.Arguments = string(b.ID), string(b.Name), string(b.Arguments)
		case events.BlockToolResult:
			e.ToolCallID, e.IsError = string(b.ToolCallID), b.IsError
			e.Content, err = t.content(b.Content, role)
		case events.BlockImage:
			e, err = t.image(b)
		default:
			err = fmt.Errorf("a block of type %q cannot be rebuilt", clip(string(b.Type)))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func (t *translator) textBlock(s string) (events.Block, error) {
	if !t.long(len(s)) {
		return events.Text(s), nil
	}
	ref, err := t.object(events.TextMediaType, []byte(s))
	return events.Block{Type: events.BlockText, Object: ref}, err
}

// image translates a block of type image. It names the image as it came when its bytes are known, otherwise the bytes
// that were sent of it.
func (t *translator) image(b *block) (events.Block, error) {
	in := &b.Attachment
	digest, err := objects.ParseDigest(strings.TrimPrefix(string(in.ID), "sha256:"))
	if err != nil {
		return events.Block{}, fmt.Errorf(`a block of type "image": attachment id: %w`, err)
	}
	i := slices.IndexFunc(t.album, func(a attachment) bool { return a.ref.Digest == digest })
	if i < 0 {
		i = len(t.album)
		t.album = append(t.album, attachment{
			ref:   objects.Ref{Digest: digest, Bytes: count(in.Bytes, new(bool)), MediaType: string(in.MediaType)},
			width: count(in.Width, new(bool)), height: count(in.Height, new(bool)), line: t.line,
		})
	}
	a := t.album[i]
	if t.plan != nil {
		a = t.plan.blocks[digest]
		t.use(a.ref)
	}
	t.pictures = append(t.pictures, digest)
	return events.Block{Type: events.BlockImage, Object: a.ref, Width: a.width, Height: a.height, Name: string(in.Name)}, nil
}

// show remembers which images the surface's new event shows.
func (t *translator) show(seq uint64) {
	if len(t.pictures) > 0 {
		t.pictured[seq] = slices.Clone(t.pictures)
	}
}

// showImages records how the images of the next request are shown, as far as that is not in force.
func (t *translator) showImages(r *row) error {
	if len(t.pictured) == 0 {
		return nil
	}
	h, headerSeq := t.state.Header()
	c := imageCall{process: t.process, provider: h.Config.Provider, model: h.Config.Model, line: t.line}
	for _, seq := range t.state.Nodes() {
		for _, d := range t.pictured[seq] {
			if !slices.Contains(c.images, d) {
				c.images = append(c.images, d)
			}
		}
	}
	if len(c.images) == 0 || headerSeq == 0 {
		return nil
	}
	shown := t.planned(&c)
	if shown == nil {
		return fmt.Errorf("event %d shows other images than in the first reading: the file has changed meanwhile", r.Seq)
	}
	t.calls = append(t.calls, c)
	current := t.state.Images()
	var changed []events.ImageShown
	for _, s := range shown {
		if old, ok := current.Shown(s.Image); !ok || old != s {
			changed = append(changed, s)
		}
		if (s.Object != objects.Ref{}) {
			t.use(s.Object)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	_, err := t.plain(&events.RequestImages{Images: changed})
	return err
}

// planned returns how the next call shows its images: without a plan as placeholders.
func (t *translator) planned(c *imageCall) []events.ImageShown {
	if t.plan != nil {
		if n := len(t.calls); n < len(t.plan.shown) && len(t.plan.shown[n]) == len(c.images) {
			return t.plan.shown[n]
		}
		return nil
	}
	shown := make([]events.ImageShown, 0, len(c.images))
	for _, d := range c.images {
		shown = append(shown, placeholder(d, d))
	}
	return shown
}

// placeholder returns how a model is shown an image that takes text only. image is the object that the block names.
func placeholder(image, attachment objects.Digest) events.ImageShown {
	const short = 8
	return events.ImageShown{
		Image: image, As: events.ImageText,
		Label: "[image omitted because this model accepts text only; attachment sha256:" + attachment.String()[:short] + "]",
	}
}

// label stands before an image of that size.
func label(attachment objects.Digest, width, height int) string {
	return fmt.Sprintf("\nImage sha256:%s; request image %dx%dpx.", attachment, width, height)
}
