package jetstream

import (
	"bytes"
	"encoding/hex"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/objects/objectstest"
)

// helloManifest is the manifest of "hello\n" as text/plain; docs/format/objects.md prints it field by field.
const helloManifest = "52464f4d" + "01" +
	"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03" +
	"0000000000000006" + "00080000" + "00000001" +
	"0a" + "746578742f706c61696e" +
	"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"

func manifestOf(tb testing.TB, mediaType string, data []byte) objectManifest {
	tb.Helper()
	ref, err := objects.NewRef(mediaType, data)
	if err != nil {
		tb.Fatal(err)
	}
	return newObjectManifest(ref, data)
}

func TestObjectManifestGolden(t *testing.T) {
	m := manifestOf(t, "text/plain", []byte("hello\n"))
	got := m.encode()
	body, sum := got[:len(got)-32], got[len(got)-32:]
	if hex.EncodeToString(body) != helloManifest {
		t.Errorf("manifest\n%x\nwant\n%s", body, helloManifest)
	}
	if want := objects.Sum(body); !bytes.Equal(sum, want[:]) {
		t.Errorf("checksum %x, want %x", sum, want)
	}
	if got, want := objectChunkSubject(m.ref.Digest, 12), "object."+m.ref.Digest.String()+".12"; got != want {
		t.Errorf("chunk subject %s, want %s", got, want)
	}
	if got, want := objectSubject(m.ref.Digest, objectManifestName), "object."+m.ref.Digest.String()+".manifest"; got != want {
		t.Errorf("manifest subject %s, want %s", got, want)
	}
	if got := newObjectCodec(1).encode([]byte("hello\n")); string(got) != "\x00hello\n" {
		t.Errorf("chunk %q", got)
	}
}

func TestObjectManifestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(
			rapid.Int64Range(0, objects.MaxBytes),
			rapid.SampledFrom([]int64{0, 1, objectChunkBytes - 1, objectChunkBytes, objectChunkBytes + 1, objects.MaxBytes}),
		).Draw(t, "bytes")
		m := objectManifest{
			ref: objects.Ref{
				Digest:    objects.Sum([]byte(rapid.String().Draw(t, "name"))),
				Bytes:     size,
				MediaType: rapid.StringMatching(`[a-z]{1,20}/[a-z0-9][a-z0-9.+-]{0,40}`).Draw(t, "media type"),
			},
			chunks: make([]objects.Digest, objectChunkCount(size)),
		}
		var total int64
		for n := range m.chunks {
			m.chunks[n] = objects.Sum([]byte{byte(n), byte(n >> 8)})
			total += int64(m.chunkBytes(n))
		}
		if total != size {
			t.Fatalf("the chunks of %d bytes have %d", size, total)
		}
		encoded := m.encode()
		if len(encoded) > objectChunkBytes {
			t.Fatalf("a manifest of %d bytes does not fit a message", len(encoded))
		}
		got, err := decodeObjectManifest(m.ref.Digest, encoded)
		if err != nil {
			t.Fatal(err)
		}
		if got.ref != m.ref || !bytes.Equal(got.encode(), encoded) {
			t.Fatalf("decoded %v, want %v", got.ref, m.ref)
		}
		encoded[rapid.IntRange(0, len(encoded)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if _, err := decodeObjectManifest(m.ref.Digest, encoded); err == nil {
			t.Fatal("a manifest with a flipped bit was accepted")
		}
	})
}

// resign gives a changed manifest body a checksum that holds, to reach the checks behind it.
func resign(body []byte) []byte {
	sum := objects.Sum(body)
	return append(bytes.Clone(body), sum[:]...)
}

func TestObjectManifestRefuses(t *testing.T) {
	m := manifestOf(t, "text/plain", objectstest.Random(objectChunkBytes+1, 1))
	encoded := m.encode()
	body := encoded[:len(encoded)-32]
	const sizeAt, chunkAt, countAt, typeAt = 37, 45, 49, 53
	for name, change := range map[string]func(b []byte) []byte{
		"size zero":            func(b []byte) []byte { clear(b[sizeAt : sizeAt+8]); return b },
		"size of four GiB":     func(b []byte) []byte { b[sizeAt+3] = 1; return b },
		"negative size":        func(b []byte) []byte { b[sizeAt] = 0xff; return b },
		"other chunk size":     func(b []byte) []byte { b[chunkAt]++; return b },
		"more chunks":          func(b []byte) []byte { b[countAt+3]++; return b },
		"many chunks":          func(b []byte) []byte { b[countAt] = 0xff; return b },
		"longer media type":    func(b []byte) []byte { b[typeAt]++; return b },
		"bad media type":       func(b []byte) []byte { b[typeAt+1] = '/'; return b },
		"one digest too few":   func(b []byte) []byte { return b[:len(b)-32] },
		"one byte more":        func(b []byte) []byte { return append(b, 0) },
		"other object":         func(b []byte) []byte { b[5] ^= 1; return b },
		"other version":        func(b []byte) []byte { b[4] = 2; return b },
		"other magic":          func(b []byte) []byte { b[0] = 'X'; return b },
		"cut at the fixed end": func(b []byte) []byte { return b[:typeAt+1] },
	} {
		if got, err := decodeObjectManifest(m.ref.Digest, resign(change(bytes.Clone(body)))); err == nil {
			t.Errorf("%s: accepted as %v", name, got.ref)
		}
	}
	if _, err := decodeObjectManifest(m.ref.Digest, resign(body)); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// zstdBomb returns a small frame that decompresses to n zero bytes, with no content size in its header.
func zstdBomb(tb testing.TB, n int) []byte {
	tb.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(objectChunkBytes), zstd.WithEncoderConcurrency(1))
	if err != nil {
		tb.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for ; n > 0; n -= len(zeros) {
		if _, err := w.Write(zeros); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// zstdClaim is a frame whose header claims n bytes and a window as large, and that holds almost nothing.
func zstdClaim(n uint64) []byte {
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0} // magic; single segment, content size of 8 bytes
	for i := range 8 {
		frame = append(frame, byte(n>>(8*i)))
	}
	return append(frame, 0x03, 0x00, 0x00) // one last RLE block that is cut short
}

func TestObjectChunkBoundsMemory(t *testing.T) {
	c := newObjectCodec(1)
	dst := make([]byte, objectChunkBytes)
	bombs := map[string][]byte{
		"64 MiB of zeros":        zstdBomb(t, 64<<20),
		"claim of 4 GiB":         zstdClaim(4 << 30),
		"claim of 2^62 bytes":    zstdClaim(1 << 62),
		"claim of one more byte": zstdClaim(objectChunkBytes + 1),
		"window of 3.75 TiB":     {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0x03, 0x00, 0x00},
	}
	for name, bomb := range bombs {
		msg := append([]byte{objectZstd}, bomb...)
		if err := c.decode(dst, msg); err == nil {
			t.Errorf("%s: accepted", name)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			if err := c.decode(dst, msg); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 10*4*objectChunkBytes {
			t.Errorf("%s: refusing it ten times allocated %d bytes", name, grown)
		}
	}
}

func TestObjectChunkRoundTrip(t *testing.T) {
	c := newObjectCodec(2)
	for _, raw := range [][]byte{
		{0},
		[]byte("hello\n"), make([]byte, 100), make([]byte, objectChunkBytes),
		objectstest.Random(objectChunkBytes, 1), bytes.Repeat([]byte("abc"), objectChunkBytes/3),
	} {
		msg := c.encode(raw)
		if len(msg) > len(raw)+1 {
			t.Errorf("%d bytes became %d", len(raw), len(msg))
		}
		dst := make([]byte, len(raw))
		if err := c.decode(dst, msg); err != nil || !bytes.Equal(dst, raw) {
			t.Errorf("%d bytes did not come back: %v", len(raw), err)
		}
		if err := c.decode(make([]byte, len(raw)+1), msg); err == nil {
			t.Errorf("%d bytes were accepted as one more", len(raw))
		}
		if err := c.decode(make([]byte, len(raw)-1), msg); err == nil {
			t.Errorf("%d bytes were accepted as one fewer", len(raw))
		}
	}
}

func FuzzObjectManifest(f *testing.F) {
	hello := manifestOf(f, "text/plain", []byte("hello\n"))
	empty := manifestOf(f, "a/b", nil)
	large := manifestOf(f, "application/zstd", make([]byte, 3*objectChunkBytes+1))
	for _, m := range []objectManifest{hello, empty, large} {
		encoded := m.encode()
		f.Add(encoded[:len(encoded)-32])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		// The checksum is supplied, so that what is behind it gets fuzzed too.
		encoded := resign(body)
		var d objects.Digest
		if len(body) >= 37 {
			d = objects.Digest(body[5:37])
		}
		m, err := decodeObjectManifest(d, encoded)
		if err != nil {
			return
		}
		if err := m.ref.Validate(); err != nil {
			t.Fatalf("accepted an invalid reference: %v", err)
		}
		if len(m.chunks) > objectMaxChunks {
			t.Fatalf("accepted %d chunks", len(m.chunks))
		}
		if !bytes.Equal(m.encode(), encoded) {
			t.Fatalf("accepted bytes that encode otherwise: %x", encoded)
		}
	})
}

func FuzzObjectChunk(f *testing.F) {
	c := newObjectCodec(1)
	f.Add(6, c.encode([]byte("hello\n")))
	f.Add(1000, c.encode(make([]byte, 1000)))
	f.Add(objectChunkBytes, c.encode(bytes.Repeat([]byte("fold "), 1000)))
	f.Add(100, append([]byte{objectZstd}, zstdClaim(4<<30)...))
	f.Fuzz(func(t *testing.T, size int, msg []byte) {
		if size < 0 || size > objectChunkBytes {
			return
		}
		const guard = 64
		buf := bytes.Repeat([]byte{0xa5}, size+guard)
		err := c.decode(buf[:size], msg)
		if !bytes.Equal(buf[size:], bytes.Repeat([]byte{0xa5}, guard)) {
			t.Fatal("the decoder wrote beyond its chunk")
		}
		if err != nil {
			return
		}
		again := make([]byte, size)
		if err := c.decode(again, c.encode(buf[:size])); err != nil || !bytes.Equal(again, buf[:size]) {
			t.Fatalf("what was decoded does not encode and decode again: %v", err)
		}
	})
}
