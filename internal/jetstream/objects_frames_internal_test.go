package jetstream

import (
	"bytes"
	"testing"
)

// TestObjectFrames holds what docs/format/objects.md says about the frames of a chunk, with frames made by hand.
func TestObjectFrames(t *testing.T) {
	const raw = "hello, hello, hello, hello, hello, hello, hello, hello, hello"
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd}
	// frame returns a frame of one raw block, with the frame's descriptor and what follows it.
	frame := func(header []byte, content string) []byte {
		block := uint32(len(content))<<3 | 1
		b := append(bytes.Clone(magic), header...)
		b = append(b, byte(block), byte(block>>8), byte(block>>16))
		return append(b, content...)
	}
	// repeated returns a frame of one block that repeats a byte, so that the payload is shorter than the raw bytes.
	repeated := func(header []byte) []byte {
		const n = 200
		block := uint32(n)<<3 | 1<<1 | 1
		b := append(bytes.Clone(magic), header...)
		return append(b, byte(block), byte(block>>8), byte(block>>16), 'x')
	}
	windowOf := func(exponent byte) []byte { return []byte{0x00, (exponent - 10) << 3} }
	const window512KiB, window1MiB = 19, 20
	skippable := []byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'a', 'b', 'c'}
	empty := frame([]byte{0x20, 0}, "")
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	want := bytes.Repeat([]byte("x"), 200)
	for name, c := range map[string]struct {
		payload []byte
		ok      bool
	}{
		"one frame":            {repeated(windowOf(window512KiB)), true},
		"an empty one before":  {join(empty, repeated(windowOf(window512KiB))), true},
		"an empty one behind":  {join(repeated(windowOf(window512KiB)), empty), true},
		"skippable ones":       {join(skippable, repeated(windowOf(window512KiB)), skippable), true},
		"a window of 1 MiB":    {repeated(windowOf(window1MiB)), false},
		"a raw frame too long": {join(repeated(windowOf(window512KiB)), frame([]byte{0x20, byte(len(raw))}, raw)), false},
		"only skippable":       {skippable, false},
	} {
		dst := make([]byte, len(want))
		err := newObjectCodec(1).decode(dst, append([]byte{objectZstd}, c.payload...))
		if (err == nil) != c.ok || err == nil && !bytes.Equal(dst, want) {
			t.Errorf("%s: %v, %q", name, err, dst)
		}
	}
}
