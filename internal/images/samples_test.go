package images_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/color"
	"image/color/palette"
	"image/gif"
	"image/jpeg"
	"image/png"
	"slices"
	"testing"

	"github.com/refold-dev/refold/internal/images"
)

// WebP files of one pixel each. The standard library has no encoder for them.
const (
	webpLossy    = "UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA"
	webpLossless = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="
	webpAlpha    = "UklGRkoAAABXRUJQVlA4WAoAAAAQAAAAAAAAAAAAQUxQSAwAAAARBxAR/Q9ERP8DAABWUDggGAAAABQBAJ0BKgEAAQAAAP4AAA3AAP7mtQAAAA=="
	webpAnimated = "UklGRlIAAABXRUJQVlA4WAoAAAASAAAAAAAAAAAAQU5JTQYAAAD/////AABBTk1GJgAAAAAAAAAAAAAAAAAAAGQAAABWUDhMDQAAAC8AAAAQBxAREYiI/gcA"
)

func unbase64(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// bitWriter writes bits as VP8L packs them, the lowest first.
type bitWriter struct {
	out  []byte
	free int // bits that the last byte still has
}

func (w *bitWriter) write(v uint32, n int) {
	for i := range n {
		if w.free == 0 {
			w.out, w.free = append(w.out, 0), 8
		}
		w.out[len(w.out)-1] |= byte(v>>i&1) << (8 - w.free)
		w.free--
	}
}

// webpStripes returns a lossless WebP of w x h pixels, in rows of two greens:
// 0x20 in even rows and 0xe0 in odd ones, with the given alpha.
func webpStripes(w, h int, alpha byte) []byte {
	b := webpHead(w, h)
	one := func(symbol byte) { // a tree of one symbol, which takes no bits
		b.write(1, 1) // simple
		b.write(0, 1) // one symbol
		b.write(1, 1) // of eight bits
		b.write(uint32(symbol), 8)
	}
	b.write(1, 1)
	b.write(1, 1) // two symbols: a bit for each pixel
	b.write(1, 1)
	b.write(0x20, 8)
	b.write(0xe0, 8)
	one(0) // red
	one(0) // blue
	one(alpha)
	one(0) // distances
	for y := range h {
		for range w {
			b.write(uint32(y&1), 1)
		}
	}
	return riff("VP8L", b.out)
}

// webpHead begins the VP8L data of an image of w x h pixels, without transforms,
// colour cache and groups of trees.
func webpHead(w, h int) *bitWriter {
	b := &bitWriter{}
	b.write(0x2f, 8)
	b.write(uint32(w-1), 14)
	b.write(uint32(h-1), 14)
	b.write(1, 1) // with alpha
	b.write(0, 3) // version
	b.write(0, 1) // no transform
	b.write(0, 1) // no colour cache
	b.write(0, 1) // one group
	return b
}

func riff(kind string, chunk []byte) []byte {
	body := append([]byte("WEBP"+kind), binary.LittleEndian.AppendUint32(nil, uint32(len(chunk)))...)
	body = append(body, chunk...)
	if len(chunk)%2 == 1 {
		body = append(body, 0)
	}
	return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
}

// paint returns an image whose pixels differ from place to place.
func paint(w, h int, alpha func(x, y int) byte) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.SetNRGBA(x, y, color.NRGBA{R: byte(x*255/w + 31*y), G: byte(y * 255 / h), B: byte(x ^ y), A: alpha(x, y)})
		}
	}
	return img
}

func solid(int, int) byte { return 255 }

func faded(x, y int) byte { return byte(40 + 50*((x+y)%4)) }

func encodePNG(tb testing.TB, img image.Image) []byte {
	tb.Helper()
	var buf bytes.Buffer
	if err := png.Encode(&buf, img); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func encodeJPEG(tb testing.TB, img image.Image) []byte {
	tb.Helper()
	var buf bytes.Buffer
	if err := jpeg.Encode(&buf, img, &jpeg.Options{Quality: 90}); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// encodeGIF returns a GIF of a screen of w x h pixels with the frames.
func encodeGIF(tb testing.TB, w, h int, frames ...image.Rectangle) []byte {
	tb.Helper()
	g := &gif.GIF{Config: image.Config{Width: w, Height: h, ColorModel: color.Palette(palette.Plan9)}}
	for i, r := range frames {
		frame := image.NewPaletted(r, palette.Plan9)
		for j := range frame.Pix {
			frame.Pix[j] = byte(7*j + i)
		}
		g.Image, g.Delay = append(g.Image, frame), append(g.Delay, 10)
	}
	var buf bytes.Buffer
	if err := gif.EncodeAll(&buf, g); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// paletted returns img in the colours of a palette.
func paletted(img image.Image) image.Image {
	out := image.NewPaletted(img.Bounds(), palette.WebSafe)
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			out.Set(x, y, img.At(x, y))
		}
	}
	return out
}

// gray returns img without its colours, in 16 bits.
func gray(img image.Image) image.Image {
	out := image.NewGray16(img.Bounds())
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			out.Set(x, y, img.At(x, y))
		}
	}
	return out
}

// withEXIF returns the JPEG with an EXIF segment behind its first marker, whose
// directory holds the orientation after another entry.
func withEXIF(jpg []byte, order binary.AppendByteOrder, orientation uint16) []byte {
	tiff := []byte("II*\x00")
	if order == binary.AppendByteOrder(binary.BigEndian) {
		tiff = []byte("MM\x00*")
	}
	entry := func(tag, value uint16) {
		tiff = order.AppendUint16(tiff, tag)
		tiff = order.AppendUint16(tiff, 3) // a short
		tiff = order.AppendUint32(tiff, 1)
		tiff = order.AppendUint16(tiff, value)
		tiff = order.AppendUint16(tiff, 0)
	}
	tiff = order.AppendUint32(tiff, 8)
	tiff = order.AppendUint16(tiff, 2)
	entry(0x0100, 77)
	entry(0x0112, orientation)
	tiff = order.AppendUint32(tiff, 0)
	return withSegment(jpg, 0xe1, append([]byte("Exif\x00\x00"), tiff...))
}

// withSegment returns the JPEG with a segment behind its first marker.
func withSegment(jpg []byte, kind byte, body []byte) []byte {
	head := binary.BigEndian.AppendUint16([]byte{0xff, kind}, uint16(len(body)+2))
	return slices.Concat(jpg[:2], head, body, jpg[2:])
}

// sample is an image that is admitted.
type sample struct {
	name string
	data []byte
	info images.Info
}

// samples returns an image of every type and of every kind of pixels.
func samples(tb testing.TB) []sample {
	tb.Helper()
	full := image.Rect(0, 0, 20, 14)
	return []sample{
		{"PNG", encodePNG(tb, paint(20, 14, solid)), images.Info{MediaType: "image/png", Width: 20, Height: 14}},
		{"PNG with alpha", encodePNG(tb, paint(13, 7, faded)), images.Info{MediaType: "image/png", Width: 13, Height: 7}},
		{"PNG with a palette", encodePNG(tb, paletted(paint(9, 9, solid))), images.Info{MediaType: "image/png", Width: 9, Height: 9}},
		{"PNG of 16 bits", encodePNG(tb, gray(paint(5, 8, solid))), images.Info{MediaType: "image/png", Width: 5, Height: 8}},
		{"PNG of one pixel", encodePNG(tb, paint(1, 1, solid)), images.Info{MediaType: "image/png", Width: 1, Height: 1}},
		{"JPEG", encodeJPEG(tb, paint(20, 14, solid)), images.Info{MediaType: "image/jpeg", Width: 20, Height: 14}},
		{"JPEG in gray", encodeJPEG(tb, image.NewGray(full)), images.Info{MediaType: "image/jpeg", Width: 20, Height: 14}},
		{"JPEG to be turned", withEXIF(encodeJPEG(tb, paint(20, 14, solid)), binary.BigEndian, 6), images.Info{MediaType: "image/jpeg", Width: 20, Height: 14}},
		{"GIF", encodeGIF(tb, 20, 14, full), images.Info{MediaType: "image/gif", Width: 20, Height: 14}},
		{"animated GIF", encodeGIF(tb, 20, 14, full, image.Rect(3, 3, 9, 9)), images.Info{MediaType: "image/gif", Width: 20, Height: 14}},
		{"GIF of a small frame", encodeGIF(tb, 20, 14, image.Rect(5, 4, 9, 7)), images.Info{MediaType: "image/gif", Width: 20, Height: 14}},
		{"lossy WebP", unbase64(tb, webpLossy), images.Info{MediaType: "image/webp", Width: 1, Height: 1}},
		{"lossless WebP", unbase64(tb, webpLossless), images.Info{MediaType: "image/webp", Width: 1, Height: 1}},
		{"lossy WebP with alpha", unbase64(tb, webpAlpha), images.Info{MediaType: "image/webp", Width: 1, Height: 1}},
		{"WebP", webpStripes(20, 14, 255), images.Info{MediaType: "image/webp", Width: 20, Height: 14}},
		{"WebP with alpha", webpStripes(11, 6, 90), images.Info{MediaType: "image/webp", Width: 11, Height: 6}},
	}
}

// sampleNamed returns one of the samples.
func sampleNamed(tb testing.TB, name string) sample {
	tb.Helper()
	for _, s := range samples(tb) {
		if s.name == name {
			return s
		}
	}
	tb.Fatalf("no sample %q", name)
	return sample{}
}
