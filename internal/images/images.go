// Package images decides on the bytes of images: what they are, whether they
// are admitted, and how they are made to fit what a provider accepts.
//
// A media type is read from the bytes, never from a name or from what a sender
// says. Four types are known: PNG, JPEG, GIF and WebP. [Inspect] admits an
// image, [Verify] compares its bytes with what a reference says of them, and
// [Fit] makes the bytes that a request carries.
//
// Images come from anybody, so nothing is allocated for pixels before the
// header's dimensions were held against the limits, and a panic of a decoder is
// an error. What remains is proportional to [Limits.MaxPixels]: decoding takes
// up to 24 bytes a pixel, for a progressive JPEG of four colours.
//
// The package is pure: no clock, no randomness, no I/O, no goroutine, no
// package-level state.
package images

import (
	"errors"
	"fmt"
)

// The media types that the package knows.
const (
	PNG  = "image/png"
	JPEG = "image/jpeg"
	GIF  = "image/gif"
	WebP = "image/webp"
)

// The values of [Limits] that stand for zero.
const (
	DefaultMaxBytes  = 20 << 20
	DefaultMaxPixels = 40_000_000
	DefaultMaxSide   = 16384
)

var (
	// ErrMediaType is returned for bytes that are no image of a known type, and
	// for animated WebP, which nothing here decodes. The image cannot be used.
	ErrMediaType = errors.New("images: unknown media type")

	// ErrTooLarge is returned for an image above a limit, which the text names
	// with what was found. A smaller image would be admitted.
	ErrTooLarge = errors.New("images: image too large")

	// ErrCorrupt is returned for an image that does not decode to its end. The
	// text says where the decoder stopped. The image cannot be used.
	ErrCorrupt = errors.New("images: image does not decode")

	// ErrMismatch is returned for bytes that are not what was claimed of them.
	// The text names both. Either the claim or the bytes are wrong: use neither.
	ErrMismatch = errors.New("images: image is not what it was claimed to be")
)

// Info is what the bytes of an image say of it.
type Info struct {
	// MediaType is one of [PNG], [JPEG], [GIF] and [WebP].
	MediaType string
	// Width and Height are in pixels, as stored: an orientation in EXIF is not
	// applied. For a GIF they are those of the logical screen, in which the
	// frames lie.
	Width, Height int
}

// String returns the media type and the dimensions, for messages.
func (i Info) String() string {
	return fmt.Sprintf("%s of %dx%d pixels", i.MediaType, i.Width, i.Height)
}

// Limits bound the images that are admitted. Zero fields, and negative ones,
// stand for the defaults.
type Limits struct {
	// MaxBytes bounds the length of the encoded image, in bytes.
	MaxBytes int
	// MaxPixels bounds width times height. It also bounds the memory that
	// decoding takes.
	MaxPixels int
	// MaxSide bounds width and height each, in pixels.
	MaxSide int
}

func (l Limits) withDefaults() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = DefaultMaxBytes
	}
	if l.MaxPixels <= 0 {
		l.MaxPixels = DefaultMaxPixels
	}
	if l.MaxSide <= 0 {
		l.MaxSide = DefaultMaxSide
	}
	return l
}

// check holds the dimensions against the limits.
func (l Limits) check(info Info) error {
	if side := max(info.Width, info.Height); side > l.MaxSide {
		return fmt.Errorf("%w: %v, the limit is %d pixels a side", ErrTooLarge, info, l.MaxSide)
	}
	if info.pixels() > int64(l.MaxPixels) {
		return fmt.Errorf("%w: %v, the limit is %d pixels", ErrTooLarge, info, l.MaxPixels)
	}
	return nil
}

// pixels returns width times height, which for a side of 32 bits is no int
// everywhere.
func (i Info) pixels() int64 { return int64(i.Width) * int64(i.Height) }

// Inspect returns what the bytes say of the image. It decodes the whole image,
// so that a truncated or damaged one is refused as far as its format shows the
// damage: PNG has checksums, the others refuse what cannot be decoded and let a
// flipped bit in a pixel pass. Of an animated GIF the first frame is decoded,
// of the others only the structure is read; of an animated PNG the default
// image is decoded. Bytes after an image's end are permitted, cameras write
// them.
//
// It fails with [ErrMediaType], [ErrTooLarge] or [ErrCorrupt]. The cheap checks
// come first: the length, the type, the dimensions, then the pixels. Inspect
// keeps no reference to data.
func Inspect(data []byte, limits Limits) (Info, error) {
	limits = limits.withDefaults()
	if len(data) > limits.MaxBytes {
		return Info{}, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(data), limits.MaxBytes)
	}
	info, err := identify(data)
	if err != nil {
		return Info{}, err
	}
	if err := limits.check(info); err != nil {
		return Info{}, err
	}
	if _, err := decode(data, info); err != nil {
		return Info{}, err
	}
	return info, nil
}

// Verify reports whether the media type and the dimensions are those of the
// bytes; otherwise it fails with [ErrMismatch]. It fails with [ErrMediaType],
// [ErrTooLarge] or [ErrCorrupt] when the bytes say nothing that could be
// compared.
//
// It reads the header alone and has no limits. Whoever admits an image MUST call
// [Inspect] too; bytes that were admitted before and are known by their digest
// need only this.
func Verify(data []byte, claimed Info) error {
	found, err := identify(data)
	if err != nil {
		return err
	}
	if found != claimed {
		return fmt.Errorf("%w: claimed %v, found %v", ErrMismatch, claimed, found)
	}
	return nil
}
