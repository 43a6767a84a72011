package images

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"image/png"
	"math"
	"slices"
	"sort"

	"golang.org/x/image/draw"
)

// jpegQuality is that of the JPEGs that Fit makes, of 100.
const jpegQuality = 85

// Max bounds the images that [Fit] makes. A field that is zero or negative
// bounds nothing.
type Max struct {
	// Side bounds width and height each, in pixels.
	Side int
	// Pixels bounds width times height.
	Pixels int
	// Bytes bounds the length of the encoded image, in bytes.
	Bytes int
	// Types are the media types that are left as they are when they fit,
	// besides [PNG] and [JPEG].
	Types []string
}

// holds reports whether an image of that many bytes may stay as it is.
func (m Max) holds(info Info, size int) bool {
	return (info.MediaType == PNG || info.MediaType == JPEG || slices.Contains(m.Types, info.MediaType)) &&
		(m.Side <= 0 || max(info.Width, info.Height) <= m.Side) &&
		(m.Pixels <= 0 || info.pixels() <= int64(m.Pixels)) &&
		(m.Bytes <= 0 || size <= m.Bytes)
}

// Fit returns an image of data that fits within the bounds, and what it is. An
// image that fits is returned as it is: out is data itself, the same slice.
// Otherwise out is new, and the caller owns it.
//
// The image is made smaller as a whole, never larger, to the largest dimensions
// within Side and Pixels with the aspect ratio kept: the longer side is n, the
// shorter one is rounded to the nearest pixel and at least 1. When what comes
// out is above Bytes, it is made smaller until it is not. Of an animated image
// the first frame is kept. The result is a PNG when the source is PNG or GIF or
// has a pixel that is not opaque, otherwise a JPEG. It carries no metadata: a
// JPEG whose EXIF orientation says that it is to be turned comes out turned, as
// its sender sees it, so that outInfo may have the sides of info exchanged. Only
// a JPEG's orientation is heeded; in PNG and WebP it is rare, and viewers differ.
//
// The same data, info and bounds give the same bytes with the same build. Another
// version of Go or of the scaler may give others, so whoever must know later what
// was sent keeps out, and does not make it again.
//
// info MUST be what [Inspect] returned for data: Fit decodes what info says,
// within no limits of its own. Beside the source it holds up to 32 bytes for
// every pixel of an image of out's width and the source's height. Fit fails with
// [ErrMismatch] when info is not of data, with [ErrCorrupt] when data does not
// decode, and with [ErrTooLarge] when not even a single pixel is within Bytes.
func Fit(data []byte, info Info, bounds Max) (out []byte, outInfo Info, err error) {
	if err := Verify(data, info); err != nil {
		return nil, Info{}, err
	}
	if bounds.holds(info, len(data)) {
		return data, info, nil
	}
	img, err := decode(data, info)
	if err != nil {
		return nil, Info{}, err
	}
	p := picture{img: img, info: info, turned: upright}
	if info.MediaType == JPEG {
		p.turned = jpegOrientation(data)
	}
	// The decoded image is the decoder's: what it panics with is its too.
	err = guard(info.MediaType, func() (err error) {
		out, outInfo, err = p.fit(bounds)
		return err
	})
	if err != nil {
		return nil, Info{}, err
	}
	if out == nil {
		return nil, Info{}, fmt.Errorf("%w: a single pixel of %v needs more bytes than %d",
			ErrTooLarge, outInfo.MediaType, bounds.Bytes)
	}
	return out, outInfo, nil
}

// picture is a decoded image and how it is to be shown.
type picture struct {
	img    image.Image
	info   Info
	turned orientation
}

// fit returns the largest encoding within bounds, or nil when a single pixel is
// above bounds.Bytes.
func (p *picture) fit(bounds Max) ([]byte, Info, error) {
	p.fillScreen()
	mediaType := JPEG
	if p.info.MediaType == PNG || p.info.MediaType == GIF || !opaque(p.img) {
		mediaType = PNG
	}
	for long := longestSide(p.info, bounds); ; {
		w, h := scaled(p.info, long)
		out, info, err := p.encode(w, h, mediaType)
		if err != nil || bounds.Bytes <= 0 || len(out) <= bounds.Bytes {
			return out, info, err
		}
		if long == 1 {
			return nil, info, nil
		}
		// The bytes go about with the square of the side. Each step is at least
		// a twentieth, so that there are few.
		ratio := math.Sqrt(float64(bounds.Bytes) / float64(len(out)))
		long = max(1, min(long-1, int(float64(long)*ratio*0.95)))
	}
}

// fillScreen draws the frame of a GIF that does not fill its logical screen on
// one that is transparent.
func (p *picture) fillScreen() {
	whole := image.Rect(0, 0, p.info.Width, p.info.Height)
	frame := p.img.Bounds()
	if frame == whole {
		return
	}
	screen := image.NewRGBA(whole)
	draw.Draw(screen, frame, p.img, frame.Min, draw.Src)
	p.img = screen
}

// opaque reports whether every pixel is opaque.
func opaque(img image.Image) bool {
	o, ok := img.(interface{ Opaque() bool })
	return ok && o.Opaque()
}

// longestSide returns the longer side of the largest image of info's aspect
// ratio within Side and Pixels, at most that of info and at least 1.
func longestSide(info Info, bounds Max) int {
	long := max(info.Width, info.Height)
	if bounds.Side > 0 {
		long = min(long, bounds.Side)
	}
	if bounds.Pixels <= 0 {
		return long
	}
	// The pixels never become fewer with a longer side.
	return max(1, sort.Search(long, func(i int) bool {
		w, h := scaled(info, i+1)
		return int64(w)*int64(h) > int64(bounds.Pixels)
	}))
}

// scaled returns the dimensions of info with the longer side at long.
func scaled(info Info, long int) (w, h int) {
	whole := int64(max(info.Width, info.Height))
	scale := func(side int) int {
		return max(1, int((2*int64(side)*int64(long)+whole)/(2*whole)))
	}
	return scale(info.Width), scale(info.Height)
}

// encode returns the picture with w x h pixels before it is turned.
func (p *picture) encode(w, h int, mediaType string) ([]byte, Info, error) {
	img := p.img
	if w != p.info.Width || h != p.info.Height || p.turned != upright {
		dst := image.NewRGBA(image.Rect(0, 0, w, h))
		if dst.Rect == img.Bounds() {
			draw.Draw(dst, dst.Rect, img, image.Point{}, draw.Src)
		} else {
			draw.CatmullRom.Scale(dst, dst.Rect, img, img.Bounds(), draw.Src, nil)
		}
		img = p.turned.turn(dst)
	}
	info := Info{MediaType: mediaType, Width: img.Bounds().Dx(), Height: img.Bounds().Dy()}
	var buf bytes.Buffer
	var err error
	if mediaType == PNG {
		err = png.Encode(&buf, img)
	} else {
		err = jpeg.Encode(&buf, img, &jpeg.Options{Quality: jpegQuality})
	}
	return buf.Bytes(), info, err
}
