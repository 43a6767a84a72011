package images

import (
	"errors"
	"image"
	"strings"
	"testing"
)

// exifOf returns the beginning of a JPEG with the TIFF structure in EXIF.
func exifOf(tiff string) []byte {
	n := 2 + 6 + len(tiff)
	return []byte("\xff\xd8\xff\xe1" + string([]byte{byte(n >> 8), byte(n)}) + "Exif\x00\x00" + tiff + "\xff\xda\x00\x00")
}

func TestJPEGOrientation(t *testing.T) {
	const (
		head  = "II*\x00\x08\x00\x00\x00"
		other = "\x00\x01\x03\x00\x01\x00\x00\x00\x09\x00\x00\x00"
		six   = "\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00"
	)
	good := exifOf(head + "\x01\x00" + six)
	tests := []struct {
		name string
		data []byte
		want orientation
	}{
		{"little end first", good, 6},
		{"big end first", exifOf("MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"), 6},
		{"behind another entry", exifOf(head + "\x02\x00" + other + six), 6},
		{"behind another segment", []byte("\xff\xd8\xff\xe0\x00\x04ab" + string(good[2:])), 6},
		{"behind fill bytes", []byte("\xff\xd8\xff\xff" + string(good[2:])), 6},
		{"a directory further on", exifOf("II*\x00\x0a\x00\x00\x00..\x01\x00" + six), 6},
		{"the first of two", exifOf(head + "\x02\x00" + six + strings.Replace(six, "\x06", "\x03", 1)), 6},

		{"no segment", []byte("\xff\xd8\xff\xda\x00\x02"), 1},
		{"behind the scan", []byte("\xff\xd8\xff\xda\x00\x02" + string(good[2:])), 1},
		{"another signature", []byte(strings.Replace(string(good), "Exif", "exif", 1)), 1},
		{"another byte order", exifOf("IM*\x00\x08\x00\x00\x00\x01\x00" + six), 1},
		{"not enough entries", exifOf(head + "\x02\x00" + other), 1},
		{"an entry beyond the count", exifOf(head + "\x01\x00" + other + six), 1},
		{"a directory beyond the end", exifOf("II*\x00\xff\xff\xff\xff\x01\x00" + six), 1},
		{"a directory in the header", exifOf("II*\x00\x02\x00\x00\x00" + "12345678" + six), 1},
		{"zero", exifOf(head + "\x01\x00" + strings.Replace(six, "\x06", "\x00", 1)), 1},
		{"nine", exifOf(head + "\x01\x00" + strings.Replace(six, "\x06", "\x09", 1)), 1},
		{"not a short", exifOf(head + "\x01\x00" + strings.Replace(six, "\x03", "\x04", 1)), 1},
		{"two values", exifOf(head + "\x01\x00\x12\x01\x03\x00\x02\x00\x00\x00\x06\x00\x00\x00"), 1},
		{"a segment beyond the end", []byte("\xff\xd8\xff\xe1\xff\xffExif\x00\x00" + head + "\x01\x00" + six), 1},
		{"no length", []byte("\xff\xd8\xff\xe1\x00\x01" + string(good[2:])), 1},
		{"no marker", []byte("\xff\xd8\x00\x00" + string(good[2:])), 1},
		{"nothing", nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := jpegOrientation(tt.data); got != tt.want {
				t.Errorf("orientation %d, want %d", got, tt.want)
			}
		})
	}
	for n := range good {
		if got := jpegOrientation(good[:n]); got != upright && n < len(good)-4 {
			t.Errorf("cut at %d: orientation %d", n, got)
		}
	}
}

// TestTurnIsOneToOne shows that turning loses no pixel.
func TestTurnIsOneToOne(t *testing.T) {
	img := image.NewRGBA(image.Rect(0, 0, 3, 2))
	for i := range img.Pix {
		img.Pix[i] = byte(i / 4)
	}
	for o := upright; o <= 8; o++ {
		seen := map[byte]bool{}
		out := o.turn(img)
		for i := 0; i < len(out.Pix); i += 4 {
			seen[out.Pix[i]] = true
		}
		if len(seen) != 6 || out.Rect.Dx() == 2 != o.swapsSides() {
			t.Errorf("orientation %d: %d pixels of 6 in %v", o, len(seen), out.Rect)
		}
	}
}

// TestGuard makes an error of a decoder's panic.
func TestGuard(t *testing.T) {
	err := guard(WebP, func() error {
		panic("corrupt")
	})
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("err = %v, want %v", err, ErrCorrupt)
	}
}

func FuzzJPEGOrientation(f *testing.F) {
	f.Add(exifOf("II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00\x00\x00"))
	f.Add(exifOf("MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got := jpegOrientation(data); got < 1 || got > 8 {
			t.Errorf("orientation %d", got)
		}
	})
}
