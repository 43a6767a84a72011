package bundle

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// ErrContent means that something cannot be put into a bundle, or not at this point. Final.
var ErrContent = errors.New("does not fit into the bundle")

// Writer writes a bundle, in order: messages by sequence, objects by digest, verdicts and receipts by place, the checkpoint,
// inclusion proofs by place. It holds no more than one entry in memory. The same calls give the same bytes. After an error
// every call returns it again, and what was written is of no use. It is not safe for concurrent use.
type Writer struct {
	w        io.Writer
	sum      hash.Hash
	manifest Manifest
	last     key
	end      End
	keys     struct{ verifiers, witnesses keySet }
	objects  audit.ObjectSet
	buf      []byte
	err      error
	most     func(section) uint64 // entries of each section
	count    [sections]uint64
}

// NewWriter begins a bundle. The caller buffers w, calls [Writer.Close], and then makes what was written durable.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	if !m.Session.Valid() {
		return nil, fmt.Errorf("%w: session %.40q is no ULID", ErrContent, m.Session)
	}
	b := &Writer{w: w, sum: sha256.New(), manifest: m, most: section.most}
	return b, b.write(key{section: sectionManifest}, m.encode())
}

// Message writes the next message. Its content is withheld as the manifest says.
func (b *Writer) Message(m *eventlog.Message) error {
	if b.err != nil {
		return b.err
	}
	out, c, withheld, err := b.manifest.Withheld.Withhold(m)
	if err != nil {
		return b.fail(fmt.Errorf("%w: message %d is no event, so that nothing of it can be withheld: %w", ErrContent, m.Seq, err))
	}
	commitment := &c
	if !withheld {
		commitment = nil
	}
	if b.buf, err = appendMessage(b.buf[:0], b.manifest.Session, &out, commitment); err != nil {
		return b.fail(fmt.Errorf("%w: %w", ErrContent, err))
	}
	if e, err := m.Event(); err == nil {
		b.objects.Add(&e, withheld)
	}
	b.end.Messages++
	return b.write(key{section: sectionLog, number: m.Seq}, b.buf)
}

// Objects returns the digests of the objects that the messages written so far call for, in the order in which they are to be
// written. Those that only withheld content names are not among them.
func (b *Writer) Objects() []objects.Digest { return b.objects.Digests() }

// Object writes the next object.
func (b *Writer) Object(d objects.Digest, data []byte) error {
	b.end.Objects++
	return b.write(key{section: sectionObjects, digest: d}, data)
}

// Verdict writes the next verdict, as it is stored at that place of VERDICTS.
func (b *Writer) Verdict(place uint64, payload []byte) error {
	if v, err := audit.DecodeVerdict(payload); err == nil {
		b.keys.verifiers.add(v.Verifier)
	}
	b.end.Verdicts++
	return b.write(key{section: sectionVerdicts, number: place}, payload)
}

// Receipt writes the next receipt, as it is stored at that place of WITNESS.
func (b *Writer) Receipt(place uint64, payload []byte) error {
	if r, err := audit.DecodeReceipt(payload); err == nil {
		b.keys.witnesses.add(r.Witness)
	}
	b.end.Receipts++
	return b.write(key{section: sectionReceipts, number: place}, payload)
}

// Checkpoint writes the checkpoint of the transparency log of VERDICTS, with its signatures.
func (b *Writer) Checkpoint(signed []byte) error {
	return b.write(key{section: sectionCheckpoint}, signed)
}

// Inclusion writes the proof that the verdict at the place stands in the log with the checkpoint.
func (b *Writer) Inclusion(place uint64, hashes []tlog.Hash) error {
	if b.err == nil && b.last.section < sectionCheckpoint {
		return b.fail(fmt.Errorf("%w: an inclusion proof without a checkpoint", ErrContent))
	}
	b.end.Inclusions++
	b.buf = appendInclusion(b.buf[:0], hashes)
	return b.write(key{section: sectionInclusion, number: place}, b.buf)
}

// Close writes the end of the bundle. It does not close the writer below.
func (b *Writer) Close() error {
	if b.err != nil {
		return b.err
	}
	b.end.Verifiers, b.end.Witnesses = b.keys.verifiers, b.keys.witnesses
	b.end.SHA256 = events.Hash(b.sum.Sum(nil))
	if err := b.write(key{section: sectionEnd}, b.end.encode()); err != nil {
		return err
	}
	b.put(make([]byte, 2*blockSize))
	if b.err != nil {
		return b.err
	}
	b.err = fmt.Errorf("%w: it is closed", ErrContent)
	return nil
}

// End returns what the end of the bundle says. It is whole after Close.
func (b *Writer) End() End { return b.end }

// write writes one entry.
func (b *Writer) write(k key, content []byte) error {
	zeros := make([]byte, blockSize)
	switch size := int64(len(content)); {
	case b.err != nil:
		return b.err
	case k.section != sectionManifest && !b.last.less(k):
		return b.fail(fmt.Errorf("%w: %s does not come behind %s", ErrContent, k, b.last))
	case size > k.section.limit():
		return b.fail(fmt.Errorf("%w: %s has %d bytes, at most %d", ErrContent, k, size, k.section.limit()))
	case b.count[k.section] == b.most(k.section):
		return b.fail(fmt.Errorf("%w: %s is one more than the %d entries of %s that a bundle has at most", ErrContent, k, b.most(k.section), k.section.plural()))
	}
	b.count[k.section]++
	var block [blockSize]byte
	b.put(appendHeader(block[:0], k.String(), int64(len(content))))
	b.put(content)
	b.put(zeros[:padding(int64(len(content)))])
	b.last = k
	if k.section != sectionEnd {
		b.end.Entries++
	}
	return b.err
}

func (b *Writer) put(p []byte) {
	if b.err != nil {
		return
	}
	b.sum.Write(p)
	if _, err := b.w.Write(p); err != nil {
		b.err = fmt.Errorf("write bundle: %w", err)
	}
}

func (b *Writer) fail(err error) error {
	b.err = err
	return err
}

// appendInclusion appends the content of an inclusion proof: a line of base64 for each hash.
func appendInclusion(dst []byte, hashes []tlog.Hash) []byte {
	for _, h := range hashes {
		dst = append(append(dst, h.String()...), '\n')
	}
	return dst
}
