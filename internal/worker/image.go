package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// fileMargin is how long before its end a provider's file is used no more.
const fileMargin = 10 * time.Minute

// keepImage puts an attachment into the object store, for the image block of content that names it.
func (l *loop) keepImage(ctx context.Context, content []events.Block, data []byte) error {
	digest := objects.Sum(data)
	for i := range content {
		if b := &content[i]; b.Type == events.BlockImage && b.Object.Digest == digest {
			_, err := objects.Put(ctx, l.cfg.Objects, b.Object.MediaType, data)
			return err
		}
	}
	return fmt.Errorf("session %s: an attachment belongs to no image", l.id)
}

// toolImage keeps an image that a tool gave and returns its block. One that cannot be used becomes a text that says why.
func (l *loop) toolImage(ctx context.Context, image tools.Image) (events.Block, error) {
	info, err := l.cfg.inspect(image.Data)
	if err != nil {
		return events.Text(fmt.Sprintf("[an image of %d bytes cannot be shown: %v]", len(image.Data), err)), nil
	}
	ref, err := objects.Put(ctx, l.cfg.Objects, info.MediaType, image.Data)
	if errors.Is(err, objects.ErrFull) || errors.Is(err, objects.ErrTooLarge) {
		return events.Text(fmt.Sprintf("[an image of %d bytes could not be kept: %v]", len(image.Data), err)), nil
	}
	const longName = 256
	name, _ := tools.Cut(events.TextFromBytes([]byte(image.Name)), longName)
	return events.Block{Type: events.BlockImage, Object: ref, Width: int64(info.Width), Height: int64(info.Height), Name: name}, err
}

// showImages records how the images of the conversation are shown to the prepared route, where that is not recorded yet
// or has to change.
func (l *loop) showImages(ctx context.Context, prepared *provider.Prepared) error {
	var list []events.ImageShown
	current, r := l.state.Images(), l.remedy()
	for i := range l.view.images {
		b := &l.view.images[i]
		old, shown := current.Shown(b.Object.Digest)
		harmful := shown && l.harmful(r, &old)
		if shown && !harmful && l.stillShown(&old, prepared) {
			continue
		}
		if harmful && r == remedyText {
			list = append(list, events.ImageShown{Image: old.Image, As: events.ImageText, Label: notTaken(old.Image, prepared)})
			continue
		}
		next, err := l.show(ctx, b, prepared, !harmful)
		if err != nil {
			return err
		}
		if !shown || next != old {
			list = append(list, next)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return l.put(ctx, &events.RequestImages{Images: list})
}

// remedy is what is done about a request that the provider refused as invalid and that showed images: they may be why.
type remedy int

const (
	remedyNone   remedy = iota
	remedyAgain         // it is done: images are shown otherwise already
	remedyInline        // files go in the body: the provider may have forgotten them, or they may be another account's
	remedyText          // images that it has never taken are left out
)

// remedy returns what is to be done before the open step's next attempt. Each is done once in a step; all of it follows
// from the log.
func (l *loop) remedy() remedy {
	v := &l.view
	switch {
	case !v.refused:
		return remedyNone
	case v.reshown:
		return remedyAgain
	case !v.inlined && l.anyHarmful(remedyInline):
		return remedyInline
	case !v.dropped && l.anyHarmful(remedyText):
		return remedyText
	}
	return remedyNone
}

func (l *loop) anyHarmful(r remedy) bool {
	current := l.state.Images()
	return slices.ContainsFunc(l.view.images, func(b events.Block) bool {
		s, ok := current.Shown(b.Object.Digest)
		return ok && l.harmful(r, &s)
	})
}

// harmful reports whether a remedy concerns an image that is shown like that.
func (l *loop) harmful(r remedy, s *events.ImageShown) bool {
	switch r {
	case remedyInline:
		return s.As == events.ImageFile
	case remedyText:
		return s.As != events.ImageText && slices.ContainsFunc(l.view.fresh, func(b events.Block) bool { return b.Object.Digest == s.Image })
	case remedyNone, remedyAgain:
	}
	return false
}

// notTaken is the placeholder of an image that the route did not take. Another route may.
func notTaken(image objects.Digest, prepared *provider.Prepared) string {
	c := prepared.Config()
	return fmt.Sprintf("[image left out: %s did not take it for %s; sha256:%s]", c.Provider, c.Model, image)
}

// stillShown reports whether an image can stay as it is shown: a change would cost the prompt cache.
func (l *loop) stillShown(s *events.ImageShown, prepared *provider.Prepared) bool {
	most := prepared.MaxImagePixels()
	fits := most == 0 || s.Width <= most/max(s.Height, 1)
	switch s.As {
	case events.ImageText:
		return !prepared.AcceptsImages() || s.Label == notTaken(s.Image, prepared)
	case events.ImageInline:
		return prepared.AcceptsImages() && fits
	case events.ImageFile:
		fresh := s.ExpiresAt == 0 || l.cfg.Now().Add(fileMargin).UnixMilli() < s.ExpiresAt
		return prepared.AcceptsImages() && fits && fresh && prepared.Files() && s.Provider == prepared.Config().Provider
	}
	return false
}

// show decides how an image is shown; files permits that it is uploaded.
func (l *loop) show(ctx context.Context, b *events.Block, prepared *provider.Prepared, files bool) (events.ImageShown, error) {
	s := events.ImageShown{Image: b.Object.Digest}
	if !prepared.AcceptsImages() {
		s.As, s.Label = events.ImageText, fmt.Sprintf("[image left out: this model reads text only; sha256:%s]", b.Object.Digest)
		return s, nil
	}
	data, err := objects.Get(ctx, l.cfg.Objects, b.Object)
	if err != nil {
		return s, err
	}
	info := images.Info{MediaType: b.Object.MediaType, Width: int(b.Width), Height: int(b.Height)}
	sent, sentInfo, err := images.Fit(data, info, images.Max{Pixels: int(prepared.MaxImagePixels()), Types: []string{images.GIF, images.WebP}})
	if err != nil {
		return s, &provider.Error{Failure: events.Failure{Code: events.FailureInvalid, Message: err.Error()}, Err: err}
	}
	s.Width, s.Height = int64(sentInfo.Width), int64(sentInfo.Height)
	s.Label = fmt.Sprintf("\nImage sha256:%s, %dx%d pixels.", b.Object.Digest, s.Width, s.Height)
	if files && prepared.Files() {
		file, err := ask(ctx, l, func(ctx context.Context) (provider.FileID, error) {
			return prepared.Uploader().Upload(ctx, provider.Upload{
				Session: l.id, Name: imageName(b.Object.Digest, sentInfo.MediaType), MediaType: sentInfo.MediaType, Data: sent,
			})
		})
		if err == nil {
			s.As, s.FileID, s.Provider = events.ImageFile, file.ID, prepared.Config().Provider
			if !file.Expires.IsZero() {
				s.ExpiresAt = file.Expires.UnixMilli()
			}
			return s, nil
		}
		if errors.Is(err, errCancelled) {
			return s, err
		}
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		l.log.WarnContext(ctx, "an image goes into the request: the provider did not take it as a file", slog.Any("error", err))
	}
	s.As, s.Object = events.ImageInline, b.Object
	if !bytes.Equal(sent, data) {
		s.Object, err = objects.Put(ctx, l.cfg.Objects, sentInfo.MediaType, sent)
	}
	return s, err
}

// imageName returns a file name for the provider's listings.
func imageName(digest objects.Digest, mediaType string) string {
	const short = 16
	_, extension, _ := strings.Cut(mediaType, "/")
	return digest.String()[:short] + "." + extension
}
