package images_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"image/color"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/images"
)

// TestFitUnchanged returns the same slice for what fits.
func TestFitUnchanged(t *testing.T) {
	every := []string{images.GIF, images.WebP}
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			for _, bounds := range []images.Max{
				{Types: every},
				{Side: max(s.info.Width, s.info.Height), Types: every},
				{Pixels: s.info.Width * s.info.Height, Types: every},
				{Bytes: len(s.data), Types: every},
			} {
				out, info, err := images.Fit(s.data, s.info, bounds)
				if err != nil || info != s.info || len(out) != len(s.data) || &out[0] != &s.data[0] {
					t.Errorf("%+v: not the same image: %v, %v", bounds, info, err)
				}
			}
		})
	}
}

func TestFit(t *testing.T) {
	png, jpg := images.PNG, images.JPEG
	tests := []struct {
		sample string
		bounds images.Max
		want   images.Info
	}{
		{"PNG", images.Max{Side: 10}, images.Info{MediaType: png, Width: 10, Height: 7}},
		{"PNG", images.Max{Side: 19}, images.Info{MediaType: png, Width: 19, Height: 13}},
		{"PNG", images.Max{Pixels: 279}, images.Info{MediaType: png, Width: 19, Height: 13}},
		{"PNG", images.Max{Pixels: 1}, images.Info{MediaType: png, Width: 1, Height: 1}},
		{"PNG", images.Max{Side: 12, Pixels: 69}, images.Info{MediaType: png, Width: 9, Height: 6}},
		{"PNG with alpha", images.Max{Side: 6}, images.Info{MediaType: png, Width: 6, Height: 3}},
		{"PNG with a palette", images.Max{Side: 3}, images.Info{MediaType: png, Width: 3, Height: 3}},
		{"PNG of 16 bits", images.Max{Side: 4}, images.Info{MediaType: png, Width: 3, Height: 4}},
		{"JPEG", images.Max{Side: 10}, images.Info{MediaType: jpg, Width: 10, Height: 7}},
		{"JPEG in gray", images.Max{Side: 10}, images.Info{MediaType: jpg, Width: 10, Height: 7}},
		{"JPEG to be turned", images.Max{Side: 10}, images.Info{MediaType: jpg, Width: 7, Height: 10}},
		{"GIF", images.Max{}, images.Info{MediaType: png, Width: 20, Height: 14}},
		{"GIF", images.Max{Side: 10, Types: []string{images.GIF}}, images.Info{MediaType: png, Width: 10, Height: 7}},
		{"animated GIF", images.Max{}, images.Info{MediaType: png, Width: 20, Height: 14}},
		{"GIF of a small frame", images.Max{}, images.Info{MediaType: png, Width: 20, Height: 14}},
		{"WebP", images.Max{}, images.Info{MediaType: jpg, Width: 20, Height: 14}},
		{"WebP with alpha", images.Max{}, images.Info{MediaType: png, Width: 11, Height: 6}},
		{"lossy WebP", images.Max{}, images.Info{MediaType: jpg, Width: 1, Height: 1}},
		{"lossy WebP with alpha", images.Max{Types: []string{images.GIF}}, images.Info{MediaType: png, Width: 1, Height: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.sample, func(t *testing.T) {
			s := sampleNamed(t, tt.sample)
			before := slices.Clone(s.data)
			out, info, err := images.Fit(s.data, s.info, tt.bounds)
			if err != nil || info != tt.want {
				t.Fatalf("%+v: Fit = %v, %v, want %v", tt.bounds, info, err, tt.want)
			}
			if found, err := images.Inspect(out, images.Limits{}); err != nil || found != info {
				t.Errorf("%+v: the bytes are %v, %v, want %v", tt.bounds, found, err, info)
			}
			if !bytes.Equal(s.data, before) {
				t.Error("Fit changed the source")
			}
		})
	}
}

// TestFitRefuses names what Fit does not do.
func TestFitRefuses(t *testing.T) {
	s := sampleNamed(t, "JPEG")
	cut := s.data[:len(s.data)-20]
	tests := []struct {
		name   string
		data   []byte
		info   images.Info
		bounds images.Max
		want   error
	}{
		{"not the info of the bytes", s.data, images.Info{MediaType: images.JPEG, Width: 20, Height: 15}, images.Max{}, images.ErrMismatch},
		{"no image", []byte("text"), s.info, images.Max{}, images.ErrMediaType},
		{"a truncated image", cut, s.info, images.Max{Side: 5}, images.ErrCorrupt},
		{"no room for a pixel", s.data, s.info, images.Max{Bytes: 100}, images.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, info, err := images.Fit(tt.data, tt.info, tt.bounds)
			if !errors.Is(err, tt.want) || out != nil || info != (images.Info{}) {
				t.Errorf("Fit = %d bytes, %v, %v, want %v", len(out), info, err, tt.want)
			}
		})
	}
}

// TestFitBytes makes a noisy image smaller until its bytes fit.
func TestFitBytes(t *testing.T) {
	noise := paint(120, 90, solid)
	state := uint32(1)
	for i := range noise.Pix {
		if i%4 != 3 {
			state = state*1664525 + 1013904223
			noise.Pix[i] = byte(state >> 24)
		}
	}
	for _, tt := range []struct {
		name string
		data []byte
	}{
		{images.PNG, encodePNG(t, noise)},
		{images.JPEG, encodeJPEG(t, noise)},
	} {
		info := images.Info{MediaType: tt.name, Width: 120, Height: 90}
		for _, n := range []int{len(tt.data) - 1, len(tt.data) / 2, 3000, 1000} {
			out, got, err := images.Fit(tt.data, info, images.Max{Bytes: n})
			if err != nil || len(out) > n {
				t.Errorf("%s within %d bytes: %d bytes, %v", tt.name, n, len(out), err)
			}
			if len(out) < n/3 {
				t.Errorf("%s within %d bytes: no more than %d bytes of %v", tt.name, n, len(out), got)
			}
		}
	}
	// The last resort is a single pixel.
	s := sampleNamed(t, "PNG with alpha")
	pixel, want, err := images.Fit(s.data, s.info, images.Max{Side: 1})
	if err != nil {
		t.Fatal(err)
	}
	if out, got, err := images.Fit(s.data, s.info, images.Max{Bytes: len(pixel)}); err != nil || got != want || !bytes.Equal(out, pixel) {
		t.Errorf("within %d bytes: %v, %v, want %v", len(pixel), got, err, want)
	}
	if _, got, err := images.Fit(s.data, s.info, images.Max{Bytes: len(pixel) - 1}); !errors.Is(err, images.ErrTooLarge) {
		t.Errorf("within %d bytes: %v, %v, want %v", len(pixel)-1, got, err, images.ErrTooLarge)
	}
	// A JPEG of better quality fits with all its pixels when encoded anew.
	jpg := encodeJPEG(t, noise)
	info := images.Info{MediaType: images.JPEG, Width: 120, Height: 90}
	if _, got, err := images.Fit(jpg, info, images.Max{Bytes: len(jpg) - 1}); err != nil || got != info {
		t.Errorf("Fit = %v, %v, want %v", got, err, info)
	}
}

// corners are the colours that TestFitOrientation paints, by row and column.
var corners = [2][2]color.NRGBA{
	{{R: 255, A: 255}, {G: 255, A: 255}},
	{{B: 255, A: 255}, {R: 255, G: 255, B: 255, A: 255}},
}

// nearest returns the row and the column of the corner whose colour is nearest.
func nearest(c color.Color) [2]int {
	r, g, b, _ := c.RGBA()
	best, at := math.Inf(1), [2]int{}
	for row := range corners {
		for column, k := range corners[row] {
			kr, kg, kb, _ := k.RGBA()
			d := math.Hypot(math.Hypot(float64(r)-float64(kr), float64(g)-float64(kg)), float64(b)-float64(kb))
			if d < best {
				best, at = d, [2]int{row, column}
			}
		}
	}
	return at
}

// TestFitOrientation stores an image of four coloured quarters so that a viewer
// that heeds EXIF shows red at the upper left, green at the upper right, blue at
// the lower left and white at the lower right, and requires Fit to show the same.
func TestFitOrientation(t *testing.T) {
	const w, h = 64, 32 // as shown
	// Where the first row and the first column of what is stored lie in what is
	// shown, from the EXIF standard: for 6 the row is the right side and the
	// column is the top.
	stored := map[uint16]func(u, v float64) (x, y float64){ // u across, v down, of 0 to 1
		1: func(u, v float64) (x, y float64) { return u, v },
		2: func(u, v float64) (x, y float64) { return 1 - u, v },
		3: func(u, v float64) (x, y float64) { return 1 - u, 1 - v },
		4: func(u, v float64) (x, y float64) { return u, 1 - v },
		5: func(u, v float64) (x, y float64) { return v, u },
		6: func(u, v float64) (x, y float64) { return 1 - v, u },
		7: func(u, v float64) (x, y float64) { return 1 - v, 1 - u },
		8: func(u, v float64) (x, y float64) { return v, 1 - u },
	}
	for o := uint16(1); o <= 8; o++ {
		sw, sh := w, h
		if o >= 5 {
			sw, sh = h, w
		}
		img := image.NewNRGBA(image.Rect(0, 0, sw, sh))
		for y := range sh {
			for x := range sw {
				u, v := stored[o]((float64(x)+0.5)/float64(sw), (float64(y)+0.5)/float64(sh))
				img.SetNRGBA(x, y, corners[int(2*v)][int(2*u)])
			}
		}
		jpg := encodeJPEG(t, img)
		for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			for _, bounds := range []images.Max{{Side: 32}, {Bytes: len(withEXIF(jpg, order, o)) - 1}} {
				data := withEXIF(jpg, order, o)
				info := images.Info{MediaType: images.JPEG, Width: sw, Height: sh}
				out, got, err := images.Fit(data, info, bounds)
				if err != nil || got.Width != 2*got.Height {
					t.Fatalf("orientation %d, %v: %v, %v, want twice as wide as high", o, order, got, err)
				}
				shown, _, err := image.Decode(bytes.NewReader(out))
				if err != nil {
					t.Fatal(err)
				}
				for row := range 2 {
					for column := range 2 {
						at := shown.At((2*column+1)*got.Width/4, (2*row+1)*got.Height/4)
						if found := nearest(at); found != [2]int{row, column} {
							t.Errorf("orientation %d, %v: row %d, column %d shows the colour of %v", o, order, row, column, found)
						}
					}
				}
			}
		}
	}
}

// TestFitPixels checks the pixels of what comes out.
func TestFitPixels(t *testing.T) {
	t.Run("alpha", func(t *testing.T) {
		img := image.NewNRGBA(image.Rect(0, 0, 40, 20)) // left half red, right half transparent
		for y := range 20 {
			for x := range 20 {
				img.SetNRGBA(x, y, color.NRGBA{R: 200, A: 255})
			}
		}
		got := fitted(t, encodePNG(t, img), images.Max{Side: 10})
		if c := color.NRGBAModel.Convert(got.At(2, 2)); c != (color.NRGBA{R: 200, A: 255}) {
			t.Errorf("left: %v", c)
		}
		if _, _, _, a := got.At(8, 2).RGBA(); a != 0 {
			t.Errorf("right: alpha %d", a)
		}
	})
	t.Run("a GIF's frame in its screen", func(t *testing.T) {
		got := fitted(t, sampleNamed(t, "GIF of a small frame").data, images.Max{})
		for _, tt := range []struct {
			x, y   int
			opaque bool
		}{{5, 4, true}, {8, 6, true}, {4, 4, false}, {9, 6, false}, {8, 7, false}, {0, 0, false}, {19, 13, false}} {
			if _, _, _, a := got.At(tt.x, tt.y).RGBA(); a == 0xffff != tt.opaque || a != 0 && a != 0xffff {
				t.Errorf("(%d, %d): alpha %#x, want opaque %v", tt.x, tt.y, a, tt.opaque)
			}
		}
	})
	t.Run("the first frame of an animation", func(t *testing.T) {
		one := fitted(t, sampleNamed(t, "GIF").data, images.Max{})
		two := fitted(t, sampleNamed(t, "animated GIF").data, images.Max{})
		if !bytes.Equal(encodePNG(t, one), encodePNG(t, two)) {
			t.Error("another picture than the first frame")
		}
	})
	t.Run("a WebP as JPEG", func(t *testing.T) {
		got := fitted(t, webpStripes(32, 16, 255), images.Max{Side: 8})
		// Stripes of one pixel become the mean of both greens.
		if _, g, _, _ := got.At(4, 2).RGBA(); g>>8 < 0x78 || g>>8 > 0x88 {
			t.Errorf("green %#x, want about 0x80", g>>8)
		}
	})
}

// fitted returns the pixels that Fit makes of data.
func fitted(t *testing.T, data []byte, bounds images.Max) image.Image {
	t.Helper()
	info, err := images.Inspect(data, images.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := images.Fit(data, info, bounds)
	if err != nil {
		t.Fatal(err)
	}
	img, _, err := image.Decode(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestFitProperty fits images of random types, sizes and bounds.
func TestFitProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := rapid.IntRange(1, 90).Draw(rt, "width")
		h := rapid.IntRange(1, 90).Draw(rt, "height")
		var data []byte
		kind := rapid.SampledFrom([]string{images.PNG, images.JPEG, images.GIF, images.WebP}).Draw(rt, "type")
		alpha := rapid.Bool().Draw(rt, "alpha")
		switch kind {
		case images.PNG:
			data = encodePNG(t, paint(w, h, map[bool]func(int, int) byte{true: faded, false: solid}[alpha]))
		case images.JPEG:
			alpha = false
			data = encodeJPEG(t, paint(w, h, solid))
		case images.GIF:
			data = encodeGIF(t, w, h, image.Rect(0, 0, w, h))
		default:
			data = webpStripes(w, h, map[bool]byte{true: 100, false: 255}[alpha])
		}
		bounds := images.Max{
			Side:   rapid.IntRange(0, 100).Draw(rt, "side"),
			Pixels: rapid.IntRange(0, 9000).Draw(rt, "pixels"),
			Bytes:  rapid.SampledFrom([]int{0, 0, 1000, 2000}).Draw(rt, "bytes"),
		}
		info, err := images.Inspect(data, images.Limits{})
		if want := (images.Info{MediaType: kind, Width: w, Height: h}); err != nil || info != want {
			rt.Fatalf("Inspect = %v, %v, want %v", info, err, want)
		}
		out, got, err := images.Fit(data, info, bounds)
		if err != nil {
			rt.Fatal(err)
		}
		if again, info2, err := images.Fit(slices.Clone(data), info, bounds); err != nil || info2 != got || !bytes.Equal(again, out) {
			rt.Fatalf("the second time: %v, %v, want %v", info2, err, got)
		}
		if found, err := images.Inspect(out, images.Limits{}); err != nil || found != got {
			rt.Fatalf("the bytes are %v, %v, want %v", found, err, got)
		}
		checkFit(rt, info, got, len(out), bounds)
		if want := kind == images.PNG || kind == images.GIF || alpha; want != (got.MediaType == images.PNG) {
			rt.Fatalf("from %v with alpha %v to %v", info, alpha, got)
		}
		// What fits stays as it is.
		if same, _, err := images.Fit(out, got, bounds); err != nil || &same[0] != &out[0] {
			rt.Fatalf("fitted again: %v", err)
		}
	})
}

// checkFit holds the dimensions of a fitted image against the bounds, the aspect
// ratio and what a larger one would be.
func checkFit(rt *rapid.T, from, got images.Info, size int, bounds images.Max) {
	within := func(w, h int) bool {
		return (bounds.Side == 0 || max(w, h) <= bounds.Side) && (bounds.Pixels == 0 || w*h <= bounds.Pixels) &&
			w <= from.Width && h <= from.Height
	}
	if !within(got.Width, got.Height) || min(got.Width, got.Height) < 1 || bounds.Bytes > 0 && size > bounds.Bytes {
		rt.Fatalf("%v of %d bytes from %v is not within %+v", got, size, from, bounds)
	}
	long := max(got.Width, got.Height)
	side := func(n, long int) int {
		return max(1, int(math.Round(float64(n)*float64(long)/float64(max(from.Width, from.Height)))))
	}
	if got.Width != side(from.Width, long) || got.Height != side(from.Height, long) {
		rt.Fatalf("%v from %v: the aspect ratio is not kept", got, from)
	}
	if bounds.Bytes == 0 && within(side(from.Width, long+1), side(from.Height, long+1)) {
		rt.Fatalf("%v from %v within %+v could be larger", got, from, bounds)
	}
}
