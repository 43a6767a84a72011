package images

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"

	"golang.org/x/image/webp"
)

const (
	pngMagic  = "\x89PNG\r\n\x1a\n"
	jpegMagic = "\xff\xd8\xff"

	// maxScans bounds the scans of a JPEG. A progressive image has about ten.
	// Each scan may visit every block and need only a few bytes for it, so that
	// without a bound a file of a few megabytes decodes for minutes.
	maxScans = 100
)

// identify returns the media type and the dimensions from the head of data.
// The dimensions are positive. Nothing of their size is allocated.
func identify(data []byte) (info Info, err error) {
	mediaType, err := sniff(data)
	if err != nil {
		return Info{}, err
	}
	if mediaType == PNG {
		return pngHeader(data)
	}
	var config image.Config
	err = guard(mediaType, func() (err error) {
		config, err = decodeConfig(data, mediaType)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	return positive(Info{MediaType: mediaType, Width: config.Width, Height: config.Height})
}

// sniff returns the media type of data by its first bytes.
func sniff(data []byte) (string, error) {
	switch {
	case len(data) == 0:
		return "", fmt.Errorf("%w: no bytes", ErrMediaType)
	case hasPrefix(data, pngMagic):
		return PNG, nil
	case hasPrefix(data, jpegMagic):
		return JPEG, nil
	case hasPrefix(data, "GIF87a"), hasPrefix(data, "GIF89a"):
		return GIF, nil
	case hasPrefix(data, "RIFF") && len(data) >= 12 && string(data[8:12]) == "WEBP":
		return WebP, webpAnimation(data)
	default:
		return "", fmt.Errorf("%w: the bytes begin with % x, known are PNG, JPEG, GIF and WebP",
			ErrMediaType, data[:min(len(data), 12)])
	}
}

func hasPrefix(data []byte, prefix string) bool {
	return len(data) >= len(prefix) && string(data[:len(prefix)]) == prefix
}

// webpAnimation refuses animated WebP, for which the decoder only knows that it
// finds no picture.
func webpAnimation(data []byte) error {
	const animationBit = 1 << 1
	if len(data) > 20 && string(data[12:16]) == "VP8X" && data[20]&animationBit != 0 {
		return fmt.Errorf("%w: animated WebP", ErrMediaType)
	}
	return nil
}

// pngHeader reads the dimensions itself. The decoder calls large ones
// unsupported, which does not tell the sender that a smaller image would do.
func pngHeader(data []byte) (Info, error) {
	const head = len(pngMagic) + 4 + len("IHDR") + 4 + 4
	if len(data) < head || string(data[12:16]) != "IHDR" {
		return Info{}, fmt.Errorf("%w: %s without a header of its dimensions", ErrCorrupt, PNG)
	}
	w, h := binary.BigEndian.Uint32(data[16:]), binary.BigEndian.Uint32(data[20:])
	if w > math.MaxInt32 || h > math.MaxInt32 {
		return Info{}, fmt.Errorf("%w: %s of %dx%d pixels, the limit of the format is %d pixels a side",
			ErrTooLarge, PNG, w, h, math.MaxInt32)
	}
	return positive(Info{MediaType: PNG, Width: int(w), Height: int(h)})
}

func positive(info Info) (Info, error) {
	if info.Width <= 0 || info.Height <= 0 {
		return Info{}, fmt.Errorf("%w: %v", ErrCorrupt, info)
	}
	return info, nil
}

func decodeConfig(data []byte, mediaType string) (image.Config, error) {
	r := bytes.NewReader(data)
	switch mediaType {
	case JPEG:
		return jpeg.DecodeConfig(r)
	case GIF:
		return gif.DecodeConfig(r)
	default:
		return webp.DecodeConfig(r)
	}
}

// decode returns the pixels of data, whose header says info. The bounds begin at
// (0, 0), and for a GIF they are those of the first frame, which may lie
// anywhere in the logical screen. It fails with [ErrCorrupt], and with
// [ErrTooLarge] for too many scans.
func decode(data []byte, info Info) (img image.Image, err error) {
	if info.MediaType == JPEG {
		if n := countScans(data); n > maxScans {
			return nil, fmt.Errorf("%w: %s of %d scans, the limit is %d", ErrTooLarge, JPEG, n, maxScans)
		}
	}
	err = guard(info.MediaType, func() (err error) {
		r := bytes.NewReader(data)
		switch info.MediaType {
		case PNG:
			img, err = png.Decode(r)
		case JPEG:
			img, err = jpeg.Decode(r)
		case GIF:
			if err := walkGIF(data, info); err != nil {
				return err
			}
			img, err = gif.Decode(r)
		default:
			if err := checkRIFF(data); err != nil {
				return err
			}
			img, err = webp.Decode(r)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	whole := image.Rect(0, 0, info.Width, info.Height)
	if b := img.Bounds(); b != whole && (info.MediaType != GIF || !b.In(whole)) {
		return nil, fmt.Errorf("%w: the header says %v, the pixels are %dx%d", ErrCorrupt, info, b.Dx(), b.Dy())
	}
	return img, nil
}

// guard runs a step of a decoder and makes [ErrCorrupt] of its errors and its
// panics.
func guard(mediaType string, step func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %s: the decoder panicked: %v", ErrCorrupt, mediaType, p)
		}
	}()
	if err := step(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, mediaType, err)
	}
	return nil
}

// countScans returns how many headers of scans are in data, or more: it also
// counts those in a thumbnail and in what follows the image. No reader of the
// format can see more than these.
func countScans(data []byte) int {
	n := 0
	for {
		i := bytes.Index(data, []byte{0xff, 0xda, 0x00})
		if i < 0 {
			return n
		}
		data = data[i+3:]
		// A length of 6 and twice the number of components, then that number.
		if len(data) >= 2 && 1 <= data[1] && data[1] <= 4 && data[0] == 6+2*data[1] {
			n++
		}
	}
}

// checkRIFF refuses a file shorter than it says. The decoder stops after the
// pixels and would not see it; it also takes the lengths of chunks, which it
// holds against this one, for what to allocate.
func checkRIFF(data []byte) error {
	const before = 8 // "RIFF" and the length itself
	if n := int64(binary.LittleEndian.Uint32(data[4:])); n+before > int64(len(data)) {
		return fmt.Errorf("%d bytes where the header says %d", len(data), n+before)
	}
	return nil
}

// walkGIF goes over the blocks of a GIF to its trailer without decoding a frame,
// because the decoder of one frame does not look behind it. Every frame must lie
// in the logical screen.
func walkGIF(data []byte, info Info) error {
	const (
		tableBit  = 1 << 7
		tableBits = 1<<3 - 1
	)
	tableSize := func(fields byte) int {
		if fields&tableBit == 0 {
			return 0
		}
		return 3 << (1 + fields&tableBits)
	}
	const header = 13
	at := header + tableSize(data[10]) // identify has seen the header
	for frames := 0; ; {
		if at >= len(data) {
			return fmt.Errorf("the file ends in block %d without a trailer", frames)
		}
		switch kind := data[at]; kind {
		case ';':
			if frames == 0 {
				return fmt.Errorf("no frame before the trailer")
			}
			return nil
		case '!':
			at = skipBlocks(data, at+2) // a label
		case ',':
			const descriptor = 10
			if len(data)-at < descriptor {
				return fmt.Errorf("the file ends in the descriptor of frame %d", frames)
			}
			field := func(i int) int { return int(binary.LittleEndian.Uint16(data[at+i:])) }
			if field(1)+field(5) > info.Width || field(3)+field(7) > info.Height {
				return fmt.Errorf("frame %d is not inside the logical screen", frames)
			}
			frames++
			// The descriptor, a colour table, the size of codes.
			at = skipBlocks(data, at+descriptor+tableSize(data[at+9])+1)
		default:
			return fmt.Errorf("a block of unknown kind %#02x after %d frames", kind, frames)
		}
	}
}

// skipBlocks returns the place behind the sub-blocks that begin at place at, or
// one behind the end of data when they do not end.
func skipBlocks(data []byte, at int) int {
	for at < len(data) {
		n := int(data[at])
		at += 1 + n
		if n == 0 {
			return at
		}
	}
	return len(data) + 1
}
