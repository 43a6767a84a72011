package dsh

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// ErrImages is wrapped when the log shows images and it cannot be told how. The text says what is missing.
var ErrImages = errors.New("the log does not hold how its images were shown")

// mostPixels is what the reference system sends of an image: a larger one is made smaller. Observed.
const mostPixels = 640_000

// plan says how each call shows its images.
type plan struct {
	blocks   map[objects.Digest]attachment // what the block of each attachment names; looked up only
	shown    [][]events.ImageShown         // of each call, in the order of its images
	set      objects.Set                   // the bytes of all that is named and known
	rescaled int
}

// gallery is what is known about images beside the log.
type gallery struct {
	cfg      *Config
	album    []attachment
	calls    []imageCall
	uploads  []upload
	came     map[objects.Digest]picture
	sent     map[objects.Digest]picture
	rescaled int
}

// plan finds out how the calls showed their images.
func (c *Config) plan(t *translator) (*plan, error) {
	g := &gallery{cfg: c, album: t.album, calls: t.calls}
	var err error
	if c.Uploads != nil {
		if g.uploads, err = readUploads(c.Uploads); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrImages, err)
		}
	}
	if c.Attachments != nil {
		if g.came, g.sent, err = readAttachments(c.Attachments, t.album); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrImages, err)
		}
	}
	if err := g.complete(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrImages, err)
	}
	p := &plan{blocks: make(map[objects.Digest]attachment), rescaled: g.rescaled}
	if err := g.name(p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrImages, err)
	}
	takes, err := g.models(p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrImages, err)
	}
	if p.shown, err = g.simulate(p, takes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrImages, err)
	}
	return p, nil
}

// complete adds to the images as they were sent those of the uploads, those that need not be made smaller, and, when
// that is wanted, those that are made smaller anew.
func (g *gallery) complete() error {
	if g.sent == nil {
		g.sent = make(map[objects.Digest]picture)
	}
	for i := range g.album {
		a := &g.album[i]
		d := a.ref.Digest
		for k := range g.uploads {
			if u := &g.uploads[k]; u.of(d) && g.sent[d].data == nil {
				g.sent[d] = u.picture
			}
		}
		if p := g.sent[d]; p.data != nil && objects.Sum(p.data) == d {
			if g.came == nil {
				g.came = make(map[objects.Digest]picture)
			}
			g.came[d] = p
		}
		p := g.came[d]
		switch large := p.info.Width*p.info.Height > mostPixels; {
		case p.data == nil || g.sent[d].data != nil:
		case !large:
			g.sent[d] = p
		case g.cfg.Rescale:
			data, info, err := images.Fit(p.data, p.info, images.Max{Pixels: mostPixels, Types: []string{images.GIF, images.WebP}})
			if err != nil {
				return fmt.Errorf("image sha256:%s: %w", d, err)
			}
			g.sent[d] = picture{data: data, info: info}
			g.rescaled++
		}
	}
	return nil
}

// name decides which object the blocks of each image name, and collects the bytes.
func (g *gallery) name(p *plan) error {
	owner := make(map[objects.Digest]objects.Digest)
	for _, a := range g.album {
		d := a.ref.Digest
		for _, known := range []map[objects.Digest]picture{g.sent, g.came} { // of both the second is named
			pic, ok := known[d]
			if !ok {
				continue
			}
			ref, err := pic.ref()
			if err == nil {
				err = p.set.Add(ref, pic.data)
			}
			if err != nil {
				return fmt.Errorf("image sha256:%s: %w", d, err)
			}
			a = attachment{ref: ref, width: int64(pic.info.Width), height: int64(pic.info.Height), line: a.line}
		}
		if other, ok := owner[a.ref.Digest]; ok {
			return fmt.Errorf("images sha256:%s and sha256:%s were sent as the same bytes: give the images as they came (--attachments DIR)", other, d)
		}
		owner[a.ref.Digest] = d
		p.blocks[d] = a
	}
	return nil
}

// models returns which models take images. Where uploads were recorded these are those named so, and the fewest others
// with which the calls account for every upload; otherwise all but those that are named as taking text only.
func (g *gallery) models(p *plan) (takes func(string) bool, err error) {
	var open []string
	for _, c := range g.calls {
		if !slices.Contains(open, c.model) && !slices.Contains(g.cfg.TextModels, c.model) && !slices.Contains(g.cfg.ImageModels, c.model) {
			open = append(open, c.model)
		}
	}
	with := func(set uint) func(string) bool {
		return func(model string) bool {
			i := slices.Index(open, model)
			return slices.Contains(g.cfg.ImageModels, model) || i >= 0 && set>>i&1 == 1
		}
	}
	every := uint(1)<<len(open) - 1
	if g.cfg.Uploads == nil {
		return with(every), nil
	}
	const most = 10 // a thousand ways to look at
	if len(open) > most {
		return nil, fmt.Errorf("%d models: say which take images (--image-model NAME) and which text only (--text-model NAME)", len(open))
	}
	for n := range len(open) + 1 {
		var found []uint
		for set := uint(0); set <= every; set++ {
			if bits.OnesCount(set) != n {
				continue
			}
			if _, err = g.simulate(p, with(set)); err == nil {
				found = append(found, set)
			}
		}
		if len(found) > 1 {
			return nil, fmt.Errorf("the uploads may be of several of the models %s: say which take images (--image-model NAME) and which text only (--text-model NAME)",
				strings.Join(open, ", "))
		}
		if len(found) == 1 {
			return with(found[0]), nil
		}
	}
	return nil, fmt.Errorf("the recorded uploads do not fit the log's calls, whichever models take images; if all of %s do: %w", strings.Join(open, ", "), err)
}

// simulate does what the reference system does with the images of its calls. It fails when that does not use up the
// recorded uploads, each for the image that it is of.
func (g *gallery) simulate(p *plan, takes func(string) bool) ([][]events.ImageShown, error) {
	s := simulation{gallery: g, plan: p, process: -1}
	out := make([][]events.ImageShown, 0, len(g.calls))
	for i := range g.calls {
		c := &g.calls[i]
		if c.process != s.process {
			s.process, s.files = c.process, make(map[objects.Digest]*upload) // a process forgets its files
		}
		var list []events.ImageShown
		var err error
		if !takes(c.model) {
			for _, d := range c.images {
				list = append(list, placeholder(p.blocks[d].ref.Digest, d))
			}
		} else if list, err = s.pictures(c); err != nil {
			return nil, fmt.Errorf("line %d: a request to %s: %w", c.line, c.model, err)
		}
		out = append(out, list)
	}
	if s.next < len(g.uploads) {
		return nil, fmt.Errorf("no request accounts for upload %s", g.uploads[s.next].name)
	}
	return out, nil
}

// simulation is how far the calls have come.
type simulation struct {
	*gallery
	plan    *plan
	process int
	files   map[objects.Digest]*upload // that the process has uploaded; looked up only
	next    int                        // the next upload
}

// pictures shows the images of a call to a model that takes them. Each is uploaded when the process uses it first, in
// order; when that fails all go inline.
func (s *simulation) pictures(c *imageCall) ([]events.ImageShown, error) {
	inline := s.cfg.Uploads == nil
	for _, d := range c.images {
		if inline || s.files[d] != nil {
			continue
		}
		if s.next == len(s.uploads) {
			return nil, fmt.Errorf("no upload is left for image sha256:%s", d)
		}
		u := &s.uploads[s.next]
		if !u.of(d) {
			return nil, fmt.Errorf("image sha256:%s is to be uploaded, and upload %s is of one whose digest begins with %s", d, u.name, u.prefix)
		}
		s.next++
		if u.fileID == "" {
			inline = true
			continue
		}
		s.files[d] = u
	}
	list := make([]events.ImageShown, 0, len(c.images))
	for _, d := range c.images {
		shown := events.ImageShown{Image: s.plan.blocks[d].ref.Digest}
		pic, known := s.sent[d]
		switch {
		case !inline:
			u := s.files[d]
			pic = u.picture
			shown.As, shown.FileID, shown.Provider, shown.ExpiresAt = events.ImageFile, u.fileID, c.provider, u.expiresAt
		case !known:
			return nil, s.missing(d)
		default:
			ref, err := pic.ref()
			if err != nil {
				return nil, err
			}
			shown.As, shown.Object = events.ImageInline, ref
		}
		shown.Width, shown.Height = int64(pic.info.Width), int64(pic.info.Height)
		shown.Label = label(d, pic.info.Width, pic.info.Height)
		list = append(list, shown)
	}
	return list, nil
}

// missing says what to do about an image whose bytes nobody has.
func (s *simulation) missing(d objects.Digest) error {
	if came, ok := s.came[d]; ok {
		return fmt.Errorf("image sha256:%s has %dx%d pixels and was made smaller: give the bytes that were sent as %s%s in --attachments DIR, or make it smaller anew (--rescale), which gives other bytes than were sent",
			d, came.info.Width, came.info.Height, d, sentMark)
	}
	return fmt.Errorf("nobody has the bytes of image sha256:%s: give the recorded uploads (--uploads DIR; a directory files-api beside the log is found), or the images (--attachments DIR), or say which models take text only (--text-model NAME)", d)
}
