package images_test

import (
	"testing"

	"github.com/refold-dev/refold/internal/images"
)

// FuzzInspect inspects anything, and fits what is admitted.
func FuzzInspect(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.data)
	}
	f.Add(pngHead(1<<31, 1<<31))
	f.Add(gifHead(65535, 65535))
	f.Add(webpStripesHead(16384, 16384))
	f.Add(unbase64(f, webpAnimated))
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := images.Limits{MaxBytes: 1 << 16, MaxPixels: 1 << 14, MaxSide: 1 << 10}
		info, err := images.Inspect(data, limits)
		if err != nil {
			checkSentinel(t, err)
			return
		}
		if info.Width < 1 || info.Height < 1 || max(info.Width, info.Height) > limits.MaxSide ||
			info.Width*info.Height > limits.MaxPixels || len(data) > limits.MaxBytes {
			t.Fatalf("admitted above the limits: %v in %d bytes", info, len(data))
		}
		if err := images.Verify(data, info); err != nil {
			t.Fatal(err)
		}
		bounds := images.Max{Side: 16, Pixels: 100}
		out, got, err := images.Fit(data, info, bounds)
		if err != nil {
			t.Fatalf("%v was admitted, but is not fitted: %v", info, err)
		}
		if max(got.Width, got.Height) > bounds.Side || got.Width*got.Height > bounds.Pixels {
			t.Fatalf("%v of %v is above the bounds", got, info)
		}
		if found, err := images.Inspect(out, images.Limits{}); err != nil || found != got {
			t.Fatalf("fitted to %v, but the bytes are %v, %v", got, found, err)
		}
	})
}
