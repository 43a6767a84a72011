package images_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/images"
)

func TestInspect(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			before := slices.Clone(s.data)
			got, err := images.Inspect(s.data, images.Limits{})
			if err != nil || got != s.info {
				t.Fatalf("Inspect = %v, %v, want %v", got, err, s.info)
			}
			if !bytes.Equal(s.data, before) {
				t.Error("Inspect changed the bytes")
			}
			got, err = images.Inspect(append(before, "what a camera adds"...), images.Limits{})
			if err != nil || got != s.info {
				t.Errorf("with bytes after the end: Inspect = %v, %v, want %v", got, err, s.info)
			}
		})
	}
}

// pngHead returns the head of a PNG, with a checksum that is right.
func pngHead(w, h uint32) []byte {
	chunk := []byte("IHDR")
	chunk = binary.BigEndian.AppendUint32(chunk, w)
	chunk = binary.BigEndian.AppendUint32(chunk, h)
	chunk = append(chunk, 8, 6, 0, 0, 0)
	out := append([]byte("\x89PNG\r\n\x1a\n"), 0, 0, 0, 13)
	out = append(out, chunk...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(chunk))
}

// gifHead returns a GIF with a screen and a frame of w x h pixels and no data.
func gifHead(w, h uint16) []byte {
	size := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, w), h)
	return slices.Concat([]byte("GIF89a"), size, []byte{0x80, 0, 0, 0, 0, 0, 255, 255, 255}, // two colours
		[]byte{',', 0, 0, 0, 0}, size, []byte{0, 2, 0, ';'})
}

// jpegClaiming returns the JPEG with other dimensions in its frame header.
func jpegClaiming(t *testing.T, w, h uint16) []byte {
	t.Helper()
	out := encodeJPEG(t, paint(8, 8, solid))
	at := bytes.Index(out, []byte{0xff, 0xc0})
	binary.BigEndian.PutUint16(out[at+5:], h)
	binary.BigEndian.PutUint16(out[at+7:], w)
	return out
}

// jpegScans returns a JPEG in which the header of the only scan stands n times.
func jpegScans(t *testing.T, n int) []byte {
	t.Helper()
	out := encodeJPEG(t, paint(8, 8, solid))
	at := bytes.Index(out, []byte{0xff, 0xda, 0})
	scan := out[at : len(out)-2] // without the end of the image
	return slices.Concat(out[:at], bytes.Repeat(scan, n), out[len(out)-2:])
}

func TestInspectRefuses(t *testing.T) {
	some := encodePNG(t, paint(20, 14, solid))
	tests := []struct {
		name   string
		data   []byte
		limits images.Limits
		want   error
		text   string
	}{
		{"nothing", nil, images.Limits{}, images.ErrMediaType, "no bytes"},
		{"empty", []byte{}, images.Limits{}, images.ErrMediaType, "no bytes"},
		{"a text", []byte("GIF files begin otherwise"), images.Limits{}, images.ErrMediaType, "47 49 46 20"},
		{"an SVG", []byte("<svg xmlns='http://www.w3.org/2000/svg'/>"), images.Limits{}, images.ErrMediaType, "PNG, JPEG, GIF and WebP"},
		{"a sound in RIFF", []byte("RIFF\x04\x00\x00\x00WAVE"), images.Limits{}, images.ErrMediaType, ""},
		{"animated WebP", unbase64(t, webpAnimated), images.Limits{}, images.ErrMediaType, "animated WebP"},

		{"too many bytes", make([]byte, images.DefaultMaxBytes+1), images.Limits{}, images.ErrTooLarge, "20971521 bytes, the limit is 20971520"},
		{"too many bytes for a limit", some, images.Limits{MaxBytes: len(some) - 1}, images.ErrTooLarge, "bytes, the limit is"},
		{"too wide", some, images.Limits{MaxSide: 19}, images.ErrTooLarge, "20x14 pixels, the limit is 19 pixels a side"},
		{"too many pixels", some, images.Limits{MaxPixels: 279}, images.ErrTooLarge, "20x14 pixels, the limit is 279 pixels"},
		{"too many scans", jpegScans(t, 101), images.Limits{}, images.ErrTooLarge, "101 scans, the limit is 100"},

		{"a PNG of 2^31 a side", pngHead(1<<31, 1<<31), images.Limits{}, images.ErrTooLarge, "2147483648x2147483648"},
		{"a PNG of 2^31-1 a side", pngHead(1<<31-1, 1<<31-1), images.Limits{}, images.ErrTooLarge, "2147483647x2147483647"},
		{"a PNG of 2^31-1 a side, no limits", pngHead(1<<31-1, 1<<31-1), images.Limits{MaxSide: math.MaxInt}, images.ErrTooLarge, "limit is 40000000 pixels"},
		{"a PNG above the pixels", pngHead(16384, 16384), images.Limits{}, images.ErrTooLarge, "limit is 40000000 pixels"},
		{"a PNG of no width", pngHead(0, 5), images.Limits{}, images.ErrCorrupt, ""},
		{"a JPEG of 65535 a side", jpegClaiming(t, 65535, 65535), images.Limits{}, images.ErrTooLarge, "65535x65535"},
		{"a GIF of 65535 a side", gifHead(65535, 65535), images.Limits{}, images.ErrTooLarge, "65535x65535"},
		{"a GIF of no height", gifHead(5, 0), images.Limits{}, images.ErrCorrupt, ""},
		{"a WebP of 16384 a side", webpStripesHead(16384, 16384), images.Limits{}, images.ErrTooLarge, "16384x16384"},

		{"a PNG without pixels", pngHead(5, 5), images.Limits{}, images.ErrCorrupt, "image/png"},
		{"a JPEG larger than its scan", jpegClaiming(t, 64, 64), images.Limits{}, images.ErrCorrupt, "image/jpeg"},
		{"a GIF without pixels", gifHead(5, 5), images.Limits{}, images.ErrCorrupt, "image/gif"},
		{"a GIF without frames", append(gifHead(5, 5)[:19], ';'), images.Limits{}, images.ErrCorrupt, "no frame"},
		{"a WebP cut behind its pixels", webpWithMetadata(2, 2)[:50], images.Limits{}, images.ErrCorrupt, "50 bytes where the header says"},
		{"a WebP of a frame larger than its canvas", webpCanvas(2, 2, 1000, 1000), images.Limits{MaxPixels: 100}, images.ErrCorrupt, "image/webp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			info, err := images.Inspect(tt.data, tt.limits)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, tt.want) || info != (images.Info{}) {
				t.Fatalf("Inspect = %v, %v, want %v", info, err, tt.want)
			}
			if !strings.Contains(err.Error(), tt.text) {
				t.Errorf("the error does not say %q: %v", tt.text, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Errorf("refused after %d allocated bytes", n)
			}
		})
	}
}

// webpStripesHead returns a WebP whose pixels are missing.
func webpStripesHead(w, h int) []byte { return riff("VP8L", webpHead(w, h).out) }

// webpWithMetadata returns a WebP with a chunk behind its pixels.
func webpWithMetadata(w, h int) []byte {
	out := append(webpStripes(w, h, 255), "EXIF\x20\x00\x00\x00                                "...)
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

// webpCanvas returns a WebP that names a canvas of w x h pixels and has a frame
// of other dimensions.
func webpCanvas(w, h, frameW, frameH int) []byte {
	canvas := []byte("VP8X\x0a\x00\x00\x00\x10\x00\x00\x00")
	canvas = append(canvas, byte(w-1), byte((w-1)>>8), 0, byte(h-1), byte((h-1)>>8), 0)
	frame := webpStripes(frameW, frameH, 9)
	out := slices.Concat(frame[:12], canvas, frame[12:])
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8))
	return out
}

// TestInspectAtLimits admits what is exactly as large as is permitted.
func TestInspectAtLimits(t *testing.T) {
	data := encodePNG(t, paint(20, 14, solid))
	limits := images.Limits{MaxBytes: len(data), MaxPixels: 280, MaxSide: 20}
	if _, err := images.Inspect(data, limits); err != nil {
		t.Error(err)
	}
	if _, err := images.Inspect(jpegScans(t, 100), images.Limits{}); err != nil {
		t.Errorf("a JPEG of 100 scans: %v", err)
	}
}

// TestScansInSegments admits a JPEG with a thumbnail that has a scan, and with
// bytes that look like the beginning of one.
func TestScansInSegments(t *testing.T) {
	thumbnail := encodeJPEG(t, paint(8, 8, solid))
	noise := bytes.Repeat([]byte{0xff, 0xda, 0x00, 0x0c, 0x07, 0xff, 0xda, 0x33}, 1000)
	data := withSegment(withSegment(encodeJPEG(t, paint(8, 8, solid)), 0xe2, thumbnail), 0xe3, noise)
	if info, err := images.Inspect(data, images.Limits{}); err != nil {
		t.Errorf("Inspect = %v, %v", info, err)
	}
}

// TestTruncated cuts every sample at every byte.
func TestTruncated(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			refused := 0
			for n := range s.data {
				info, err := images.Inspect(s.data[:n], images.Limits{})
				switch {
				case err == nil && info != s.info:
					t.Errorf("cut at %d: %v", n, info)
				case err == nil:
				case errors.Is(err, images.ErrCorrupt), errors.Is(err, images.ErrMediaType) && n < 12:
					refused++
				default:
					t.Errorf("cut at %d: %v", n, err)
				}
			}
			// No format here may lose more than the byte that fills a chunk.
			if refused < len(s.data)-1 {
				t.Errorf("%d of %d cuts were refused", refused, len(s.data))
			}
		})
	}
}

// TestFlipped flips every bit of every sample. A PNG has checksums; of the others
// it is only required that they are refused or have dimensions within the limits.
func TestFlipped(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			for i := range 8 * len(s.data) {
				bad := slices.Clone(s.data)
				bad[i/8] ^= 1 << (i % 8)
				info, err := images.Inspect(bad, images.Limits{MaxPixels: 1 << 16})
				if err != nil {
					checkSentinel(t, err)
					continue
				}
				if s.info.MediaType == images.PNG {
					t.Errorf("bit %d of byte %d flipped: accepted", i%8, i/8)
				}
				if err := images.Verify(bad, info); err != nil || info.Width*info.Height > 1<<16 {
					t.Errorf("bit %d of byte %d flipped: %v, %v", i%8, i/8, info, err)
				}
			}
		})
	}
}

// TestGIFBehindTheFirstFrame refuses damage that the decoder of the first frame
// does not come to.
func TestGIFBehindTheFirstFrame(t *testing.T) {
	good := encodeGIF(t, 20, 14, image.Rect(0, 0, 20, 14), image.Rect(3, 3, 9, 9))
	second := bytes.LastIndex(good, []byte{',', 3, 0, 3, 0, 6, 0, 6, 0})
	if second < 0 {
		t.Fatal("no second frame")
	}
	tests := []struct {
		name string
		edit func([]byte) []byte
	}{
		{"a frame that is not in the screen", func(b []byte) []byte { b[second+5] = 18; return b }},
		{"a frame below the screen", func(b []byte) []byte { b[second+8] = 1; return b }},
		{"an unknown block", func(b []byte) []byte { b[second] = 'x'; return b }},
		{"no trailer", func(b []byte) []byte { return b[:len(b)-1] }},
		{"half a descriptor", func(b []byte) []byte { return b[:second+5] }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := images.Inspect(tt.edit(slices.Clone(good)), images.Limits{}); !errors.Is(err, images.ErrCorrupt) {
				t.Errorf("err = %v, want %v", err, images.ErrCorrupt)
			}
		})
	}
}

// TestGIFFrameBomb inspects a GIF of many frames, each as large as the screen:
// the memory is that of one.
func TestGIFFrameBomb(t *testing.T) {
	const side, frames = 1000, 200
	one := encodeGIF(t, side, side, image.Rect(0, 0, side, side))
	at := bytes.Index(one, []byte{',', 0, 0, 0, 0}) // the only frame
	data := slices.Concat(one[:at], bytes.Repeat(one[at:len(one)-1], frames), []byte{';'})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	info, err := images.Inspect(data, images.Limits{MaxBytes: len(data)})
	runtime.ReadMemStats(&after)
	if want := (images.Info{MediaType: images.GIF, Width: side, Height: side}); err != nil || info != want {
		t.Fatalf("Inspect = %v, %v, want %v", info, err, want)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 3*side*side {
		t.Errorf("%d bytes allocated for %d pixels", n, side*side)
	}
}

func TestVerify(t *testing.T) {
	for _, s := range samples(t) {
		t.Run(s.name, func(t *testing.T) {
			if err := images.Verify(s.data, s.info); err != nil {
				t.Errorf("what it is: %v", err)
			}
			for _, claimed := range []images.Info{
				{MediaType: s.info.MediaType, Width: s.info.Width + 1, Height: s.info.Height},
				{MediaType: s.info.MediaType, Width: s.info.Width, Height: s.info.Height - 1},
				{MediaType: "image/bmp", Width: s.info.Width, Height: s.info.Height},
				{},
			} {
				err := images.Verify(s.data, claimed)
				if !errors.Is(err, images.ErrMismatch) {
					t.Errorf("claimed %v: %v, want %v", claimed, err, images.ErrMismatch)
				} else if text := err.Error(); !strings.Contains(text, claimed.String()) || !strings.Contains(text, s.info.String()) {
					t.Errorf("the error does not name both: %v", err)
				}
			}
		})
	}
	for _, tt := range []struct {
		name string
		data []byte
		want error
	}{
		{"nothing", nil, images.ErrMediaType},
		{"half a header", pngHead(5, 5)[:20], images.ErrCorrupt},
		{"half a header of a WebP", webpStripes(2, 2, 9)[:22], images.ErrCorrupt},
		{"beyond the format", pngHead(1<<31, 5), images.ErrTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := images.Verify(tt.data, images.Info{}); !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
		})
	}
}

// checkSentinel checks that a refusal of Inspect is one of those it documents.
func checkSentinel(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, images.ErrMediaType) && !errors.Is(err, images.ErrTooLarge) && !errors.Is(err, images.ErrCorrupt) {
		t.Fatalf("an error without a sentinel: %v", err)
	}
}
