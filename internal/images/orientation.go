package images

import (
	"encoding/binary"
	"image"
)

// orientation says how the stored pixels must be turned to be upright, with the
// values 1 to 8 of EXIF. 1 is upright.
type orientation int

const upright orientation = 1

// swapsSides reports whether width and height change places.
func (o orientation) swapsSides() bool { return o >= 5 }

// source returns the stored pixel that is shown at (x, y), where w and h are the
// dimensions as stored.
func (o orientation) source(x, y, w, h int) (sx, sy int) {
	switch o {
	case 2: // mirrored
		return w - 1 - x, y
	case 3: // turned by half
		return w - 1 - x, h - 1 - y
	case 4: // upside down
		return x, h - 1 - y
	case 5: // transposed
		return y, x
	case 6: // to be turned right
		return y, h - 1 - x
	case 7: // transposed at the other diagonal
		return w - 1 - y, h - 1 - x
	case 8: // to be turned left
		return w - 1 - y, x
	default:
		return x, y
	}
}

// turn returns the pixels of img, whose bounds begin at (0, 0), upright.
func (o orientation) turn(img *image.RGBA) *image.RGBA {
	if o == upright {
		return img
	}
	w, h := img.Rect.Dx(), img.Rect.Dy()
	shown := image.Rect(0, 0, w, h)
	if o.swapsSides() {
		shown = image.Rect(0, 0, h, w)
	}
	out := image.NewRGBA(shown)
	for y := range shown.Dy() {
		for x := range shown.Dx() {
			sx, sy := o.source(x, y, w, h)
			i, j := out.PixOffset(x, y), img.PixOffset(sx, sy)
			copy(out.Pix[i:i+4], img.Pix[j:j+4])
		}
	}
	return out
}

// jpegOrientation returns the orientation that the EXIF segment of a JPEG names,
// or upright when there is none or it is not sound: a broken note on a picture
// does not make the picture unusable. It looks at the segments before the first
// scan.
func jpegOrientation(data []byte) orientation {
	const (
		marker, app1, sos, eoi = 0xff, 0xe1, 0xda, 0xd9
		signature              = "Exif\x00\x00"
	)
	for at := 2; at+4 <= len(data); { // behind the start of the image
		if data[at] != marker {
			return upright
		}
		kind := data[at+1]
		switch kind {
		case marker: // a fill byte
			at++
			continue
		case sos, eoi:
			return upright
		}
		n := int(binary.BigEndian.Uint16(data[at+2:])) // with the length itself
		if n < 2 || at+2+n > len(data) {
			return upright
		}
		segment := data[at+4 : at+2+n]
		if kind == app1 && hasPrefix(segment, signature) {
			return tiffOrientation(segment[len(signature):])
		}
		at += 2 + n
	}
	return upright
}

// tiffOrientation returns the orientation in the first directory of a TIFF
// structure.
func tiffOrientation(data []byte) orientation {
	const (
		header, entrySize = 8, 12
		tag, short        = 0x0112, 3
	)
	var order binary.ByteOrder
	switch {
	case len(data) < header:
		return upright
	case hasPrefix(data, "II*\x00"):
		order = binary.LittleEndian
	case hasPrefix(data, "MM\x00*"):
		order = binary.BigEndian
	default:
		return upright
	}
	at := int64(order.Uint32(data[4:]))
	if at < header || at+2 > int64(len(data)) {
		return upright
	}
	entries := data[at+2:]
	for range order.Uint16(data[at:]) {
		if len(entries) < entrySize {
			return upright
		}
		if order.Uint16(entries) == tag {
			value := order.Uint16(entries[8:])
			if order.Uint16(entries[2:]) != short || order.Uint32(entries[4:]) != 1 || value < 1 || value > 8 {
				return upright
			}
			return orientation(value)
		}
		entries = entries[entrySize:]
	}
	return upright
}
