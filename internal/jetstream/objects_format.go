package jetstream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"github.com/refold-dev/refold/pkg/objects"
)

// The byte format of the OBJECTS stream; docs/format/objects.md describes it and changes with this file.
const (
	// objectChunkBytes is the length of every chunk's raw bytes but the last one's. It is part of the format, so that
	// the chunks of any two writers of an object are interchangeable.
	objectChunkBytes = 512 << 10

	// objectMaxChunks is the number of chunks of the largest object.
	objectMaxChunks = objects.MaxBytes / objectChunkBytes

	objectManifestName = "manifest"
	objectVersion      = 1

	// The first byte of a chunk's message says how the rest is encoded.
	objectRaw  = 0
	objectZstd = 1

	// objectManifestFixed is the length of a manifest without media type and chunk digests.
	objectManifestFixed = len(objectMagic) + 1 + sha256.Size + 8 + 4 + 4 + 1 + sha256.Size

	// objectHeaderRoom is more than the headers of any message of ours take.
	objectHeaderRoom = 1 << 10
)

// objectMagic begins every manifest.
const objectMagic = "RFOM"

// objectManifest is the message that makes an object complete.
type objectManifest struct {
	ref    objects.Ref
	chunks []objects.Digest // of the raw bytes of chunk 0, 1, ...
}

// newObjectManifest returns the manifest of data.
func newObjectManifest(ref objects.Ref, data []byte) objectManifest {
	m := objectManifest{ref: ref, chunks: make([]objects.Digest, objectChunkCount(ref.Bytes))}
	for n := range m.chunks {
		m.chunks[n] = objects.Sum(objectChunk(data, n))
	}
	return m
}

// objectChunkCount returns the number of chunks of an object of n bytes; the empty object has none.
func objectChunkCount(n int64) int {
	return int((n + objectChunkBytes - 1) / objectChunkBytes)
}

// objectChunk returns the raw bytes of chunk n of data.
func objectChunk(data []byte, n int) []byte {
	lo := n * objectChunkBytes
	return data[lo:min(lo+objectChunkBytes, len(data))]
}

// chunkBytes returns the raw length of chunk n.
func (m *objectManifest) chunkBytes(n int) int {
	return int(min(objectChunkBytes, m.ref.Bytes-int64(n)*objectChunkBytes))
}

// encode returns the encoding of m.
func (m *objectManifest) encode() []byte {
	dst := []byte(objectMagic)
	dst = append(dst, objectVersion)
	dst = append(dst, m.ref.Digest[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.ref.Bytes))
	dst = binary.BigEndian.AppendUint32(dst, objectChunkBytes)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(m.chunks)))
	dst = append(dst, byte(len(m.ref.MediaType)))
	dst = append(dst, m.ref.MediaType...)
	for _, d := range m.chunks {
		dst = append(dst, d[:]...)
	}
	sum := sha256.Sum256(dst)
	return append(dst, sum[:]...)
}

// decodeObjectManifest decodes the manifest of the object d. It accepts exactly what encode produces and allocates in
// proportion to b.
func decodeObjectManifest(d objects.Digest, b []byte) (objectManifest, error) {
	var m objectManifest
	if len(b) < objectManifestFixed {
		return m, fmt.Errorf("it has %d bytes, a manifest has at least %d", len(b), objectManifestFixed)
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	rest, ok := bytes.CutPrefix(body, []byte(objectMagic))
	if !ok {
		return m, fmt.Errorf("it begins with %q instead of %q", body[:len(objectMagic)], objectMagic)
	}
	if rest[0] != objectVersion {
		return m, fmt.Errorf("its format version is %d, this program knows %d", rest[0], objectVersion)
	}
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return m, errors.New("its checksum does not match")
	}
	rest = rest[1:]
	m.ref.Digest = objects.Digest(rest[:sha256.Size])
	rest = rest[sha256.Size:]
	size, chunk, count := binary.BigEndian.Uint64(rest), binary.BigEndian.Uint32(rest[8:]), binary.BigEndian.Uint32(rest[12:])
	typeLen := int(rest[16])
	rest = rest[17:]
	switch {
	case m.ref.Digest != d:
		return m, fmt.Errorf("it belongs to object %s", m.ref.Digest)
	case size > objects.MaxBytes:
		return m, fmt.Errorf("it states %d bytes, an object has at most %d", size, int64(objects.MaxBytes))
	case chunk != objectChunkBytes:
		return m, fmt.Errorf("it states chunks of %d bytes instead of %d", chunk, objectChunkBytes)
	case int64(count) != int64(objectChunkCount(int64(size))):
		return m, fmt.Errorf("it states %d chunks for %d bytes", count, size)
	case len(rest) != typeLen+int(count)*sha256.Size:
		return m, fmt.Errorf("it has %d bytes for a media type of %d and %d digests", len(rest), typeLen, count)
	}
	m.ref.Bytes = int64(size)
	m.ref.MediaType = string(rest[:typeLen])
	if err := m.ref.Validate(); err != nil {
		return m, err
	}
	m.chunks = make([]objects.Digest, count)
	for n := range m.chunks {
		m.chunks[n] = objects.Digest(rest[typeLen+n*sha256.Size:])
	}
	return m, nil
}

// objectSubject returns the subject of part n of the object d: a chunk's number or [objectManifestName].
func objectSubject(d objects.Digest, part string) string {
	b := make([]byte, 0, len("object.")+2*len(d)+1+len(part))
	b = append(b, "object."...)
	b = d.AppendHex(b)
	b = append(b, '.')
	return string(append(b, part...))
}

// objectChunkSubject returns the subject of chunk n of the object d.
func objectChunkSubject(d objects.Digest, n int) string {
	return objectSubject(d, strconv.Itoa(n))
}

// objectCodec encodes and decodes chunks; it is safe for concurrent use.
type objectCodec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

// newObjectCodec returns a codec that works on at most parallel chunks at a time.
func newObjectCodec(parallel int) *objectCodec {
	enc, err := zstd.NewWriter(nil,
		zstd.WithEncoderConcurrency(parallel),
		zstd.WithWindowSize(objectChunkBytes),
		zstd.WithEncoderCRC(false), // the digest of the raw bytes says more
	)
	if err != nil {
		panic("jetstream: constant zstd encoder options refused: " + err.Error())
	}
	dec, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(parallel),
		zstd.WithDecoderMaxMemory(objectChunkBytes),
		zstd.WithDecoderMaxWindow(objectChunkBytes),
		zstd.WithDecodeAllCapLimit(true),
	)
	if err != nil {
		panic("jetstream: constant zstd decoder options refused: " + err.Error())
	}
	return &objectCodec{enc: enc, dec: dec}
}

// encode returns the message of a chunk with these raw bytes, compressed if that makes it shorter.
func (c *objectCodec) encode(raw []byte) []byte {
	msg := c.enc.EncodeAll(raw, append(make([]byte, 0, len(raw)/2+64), objectZstd))
	if len(msg) < 1+len(raw) {
		return msg
	}
	return append(append(make([]byte, 0, 1+len(raw)), objectRaw), raw...)
}

// decode decodes a chunk's message into dst, whose length is what the manifest says the raw length is. Nothing is
// allocated in proportion to what the message claims.
func (c *objectCodec) decode(dst, msg []byte) error {
	if len(msg) == 0 {
		return errors.New("it is empty")
	}
	payload := msg[1:]
	switch msg[0] {
	case objectRaw:
		if len(payload) != len(dst) {
			return fmt.Errorf("it holds %d bytes, the manifest says %d", len(payload), len(dst))
		}
		copy(dst, payload)
		return nil
	case objectZstd:
		if len(payload) >= len(dst) {
			return fmt.Errorf("it holds %d compressed bytes, the manifest says %d raw ones", len(payload), len(dst))
		}
		// The capacity bounds both the output and the memory, and keeps neighbouring chunks out of reach.
		raw, err := c.dec.DecodeAll(payload, dst[:0:len(dst)])
		if err != nil {
			return fmt.Errorf("it does not decompress to at most %d bytes: %w", len(dst), err)
		}
		if len(raw) != len(dst) {
			return fmt.Errorf("it decompresses to %d bytes, the manifest says %d", len(raw), len(dst))
		}
		copy(dst, raw) // a no-op unless the decoder chose a buffer of its own
		return nil
	default:
		return fmt.Errorf("its encoding is %d, this program knows %d and %d", msg[0], objectRaw, objectZstd)
	}
}
