package tlog

import (
	"encoding/binary"
	"fmt"
)

// appendEntry appends an entry to a bundle: two bytes of length, big end first, and the entry.
func appendEntry(bundle, entry []byte) []byte {
	return append(binary.BigEndian.AppendUint16(bundle, uint16(len(entry))), entry...) //nolint:gosec // the caller has checked
}

// DecodeBundle returns the entries of a bundle of the given number of them, from 1 to 256. They share its memory. The
// error wraps [ErrTile].
func DecodeBundle(b []byte, width int) ([][]byte, error) {
	if width < 1 || width > tileWidth {
		return nil, fmt.Errorf("%w: a bundle of %d entries", ErrTile, width)
	}
	entries := make([][]byte, 0, width)
	for len(b) > 0 {
		if len(entries) == width {
			return nil, fmt.Errorf("%w: %d bytes behind the last of %d entries", ErrTile, len(b), width)
		}
		if len(b) < 2 {
			return nil, fmt.Errorf("%w: half a length behind %d entries", ErrTile, len(entries))
		}
		n := int(binary.BigEndian.Uint16(b))
		if b = b[2:]; len(b) < n {
			return nil, fmt.Errorf("%w: entry %d has %d bytes and should have %d", ErrTile, len(entries), len(b), n)
		}
		entries, b = append(entries, b[:n:n]), b[n:]
	}
	if len(entries) < width {
		return nil, fmt.Errorf("%w: %d entries, want %d", ErrTile, len(entries), width)
	}
	return entries, nil
}

// DecodeTile returns the hashes of a tile of the given number of them, from 1 to 256. The error wraps [ErrTile].
func DecodeTile(b []byte, width int) ([]Hash, error) {
	if width < 1 || width > tileWidth || len(b) != width*HashSize {
		return nil, fmt.Errorf("%w: %d bytes, want %d hashes of %d bytes", ErrTile, len(b), width, HashSize)
	}
	hashes := make([]Hash, width)
	for i := range hashes {
		hashes[i] = Hash(b[i*HashSize:])
	}
	return hashes, nil
}

func encodeTile(hashes []Hash) []byte {
	b := make([]byte, 0, len(hashes)*HashSize)
	for _, h := range hashes {
		b = append(b, h[:]...)
	}
	return b
}
