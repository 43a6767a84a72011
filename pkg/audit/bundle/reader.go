package bundle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// Reader reads a bundle. What it has in memory is where the objects stand, some 100 bytes for each, and no content.
type Reader struct {
	r          io.ReaderAt
	size       int64
	manifest   Manifest
	end        End
	checkpoint []byte
	objects    map[objects.Digest]entry
	first      [sections]int64 // where the first header of a section stands
	count      [sections]uint64
}

// NewReader reads the whole file once and checks its form: every header, the order, the numbers and the digest that the end
// names. What the entries say is not looked at. The error wraps [ErrFormat], or is that of r. The file MUST NOT change while it
// is read; what is read twice is checked twice.
func NewReader(r io.ReaderAt, size int64) (*Reader, error) { return newReader(r, size, section.most) }

// newReader takes how many entries of each section are read.
func newReader(r io.ReaderAt, size int64, most func(section) uint64) (*Reader, error) {
	if err := sniff(r, size); err != nil {
		return nil, err
	}
	b := &Reader{r: r, size: size, objects: make(map[objects.Digest]entry)}
	c := newCursor(r, 0, size, sha256.New())
	var sum []byte
	for {
		at := c.off
		e, err := c.header(&sum)
		if err != nil {
			return nil, err
		}
		s := e.key.section
		if b.count[s] == 0 {
			b.first[s] = at
		}
		if b.count[s]++; b.count[s] > most(s) {
			return nil, &FormatError{Offset: at, Entry: e.key.String(), Reason: fmt.Sprintf("more than %d entries of %s: a bundle has no more", most(s), s.plural())}
		}
		if err := b.index(c, &e); err != nil {
			return nil, err
		}
		if s == sectionEnd {
			break
		}
	}
	if err := b.checkEnd(sum); err != nil {
		return nil, err
	}
	return b, c.finish()
}

// index takes an entry of the first pass.
func (b *Reader) index(c *cursor, e *entry) error {
	switch e.key.section {
	case sectionManifest, sectionCheckpoint, sectionEnd:
		content, err := c.content(e, nil)
		if err != nil {
			return err
		}
		switch e.key.section {
		case sectionManifest:
			b.manifest, err = decodeManifest(content)
		case sectionEnd:
			b.end, err = decodeEnd(content)
		default:
			b.checkpoint = append([]byte{}, content...) // not nil: one without bytes is there, and is none
		}
		if err != nil {
			return e.wrong("%v", err)
		}
		return nil
	case sectionObjects:
		b.objects[e.key.digest] = *e
	case sectionLog, sectionVerdicts, sectionReceipts, sectionInclusion, sections:
	}
	return c.skip(e)
}

// checkEnd compares what the end says with what was read.
func (b *Reader) checkEnd(sum []byte) error {
	at := entry{key: key{section: sectionEnd}, offset: b.first[sectionEnd]}
	entries := uint64(0)
	for _, n := range b.count[:sectionEnd] {
		entries += n
	}
	for _, n := range [...]struct {
		what      string
		says, are uint64
	}{
		{"entries", b.end.Entries, entries},
		{"messages", b.end.Messages, b.count[sectionLog]},
		{"objects", b.end.Objects, b.count[sectionObjects]},
		{"verdicts", b.end.Verdicts, b.count[sectionVerdicts]},
		{"receipts", b.end.Receipts, b.count[sectionReceipts]},
		{"inclusions", b.end.Inclusions, b.count[sectionInclusion]},
	} {
		if n.says != n.are {
			return at.wrong("it counts %d %s, and there are %d", n.says, n.what, n.are)
		}
	}
	if !bytes.Equal(sum, b.end.SHA256[:]) {
		return at.wrong("what stands before it has the SHA-256 %x, and it names %s: the file is damaged", sum, b.end.SHA256)
	}
	return nil
}

// sniff refuses files that are something else at first sight.
func sniff(r io.ReaderAt, size int64) error {
	if size == 0 {
		return &FormatError{Reason: "the file is empty"}
	}
	var head [6]byte
	n, err := r.ReadAt(head[:min(size, int64(len(head)))], 0)
	if n == 0 && err != nil {
		return fmt.Errorf("read bundle: %w", err)
	}
	for _, f := range [...]struct{ magic, name string }{
		{"\x1f\x8b", "a gzip"}, {"PK\x03\x04", "a zip"}, {"\x28\xb5\x2f\xfd", "a zstd"}, {"BZh", "a bzip2"}, {"\xfd7zXZ\x00", "an xz"},
	} {
		if bytes.HasPrefix(head[:n], []byte(f.magic)) {
			return &FormatError{Reason: fmt.Sprintf("this is %s file: unpack it first", f.name)}
		}
	}
	return nil
}

// Manifest returns what the bundle says of itself first.
func (b *Reader) Manifest() Manifest { return b.manifest }

// End returns what the bundle says of itself last.
func (b *Reader) End() End { return b.end }

// Checkpoint returns the signed checkpoint of the transparency log, nil when there is none.
func (b *Reader) Checkpoint() []byte { return b.checkpoint }

// Object is an [audit.Objects] that looks nowhere but in the bundle.
func (b *Reader) Object(_ context.Context, ref objects.Ref) ([]byte, error) {
	e, ok := b.objects[ref.Digest]
	if !ok {
		return nil, fmt.Errorf("the bundle holds no object %s: %w", ref.Digest, objects.ErrNotFound)
	}
	if e.size != ref.Bytes {
		return nil, &objects.CorruptError{Digest: ref.Digest, Cause: fmt.Errorf("the reference says %d bytes, the bundle has %d", ref.Bytes, e.size)}
	}
	data := make([]byte, e.size)
	if _, err := io.ReadFull(io.NewSectionReader(b.r, e.offset, e.size), data); err != nil {
		return nil, fmt.Errorf("read object %s: %w: %w", ref.Digest, objects.ErrUnavailable, err)
	}
	if err := objects.Verify(ref, data); err != nil {
		return nil, err
	}
	return data, nil
}

// Hashed is an object of a bundle.
type Hashed struct {
	Digest objects.Digest // what its name says
	Sum    objects.Digest // what its bytes hash to
}

// Objects reads all objects and hashes them, by digest. It stops at the first error, which is that of the file.
func (b *Reader) Objects() iter.Seq2[Hashed, error] {
	return func(yield func(Hashed, error) bool) {
		byPlace := func(a, b entry) int { return cmp.Compare(a.offset, b.offset) }
		for _, e := range slices.SortedFunc(maps.Values(b.objects), byPlace) {
			sum := sha256.New()
			n, err := io.Copy(sum, io.NewSectionReader(b.r, e.offset, e.size))
			if err == nil && n < e.size {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				yield(Hashed{}, fmt.Errorf("read object %s: %w", e.key.digest, err))
				return
			}
			if !yield(Hashed{Digest: e.key.digest, Sum: objects.Digest(sum.Sum(nil))}, nil) {
				return
			}
		}
	}
}

// each calls yield for the entries of a section until it returns false.
func (b *Reader) each(s section, yield func(entry, []byte) bool) error {
	c := newCursor(b.r, b.first[s], b.size, nil)
	for range b.count[s] {
		e, err := c.header(nil)
		if err != nil {
			return err
		}
		if e.key.section != s {
			return e.wrong("the file has changed while it was read")
		}
		content, err := c.content(&e, nil)
		if err != nil {
			return err
		}
		if !yield(e, content) {
			return nil
		}
	}
	return nil
}

// Record is a verdict or a receipt as it is stored.
type Record struct {
	Place   uint64 // in its stream
	Payload []byte // the receiver's own
}

// records yields a section as records.
func (b *Reader) records(s section) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		err := b.each(s, func(e entry, content []byte) bool { return yield(Record{Place: e.key.number, Payload: content}, nil) })
		if err != nil {
			yield(Record{}, err)
		}
	}
}

// Verdicts yields the verdicts of all kinds, by place. It stops at the first error, which wraps [ErrFormat] or is that of the
// file.
func (b *Reader) Verdicts() iter.Seq2[Record, error] { return b.records(sectionVerdicts) }

// Receipts yields the receipts of requests and answers, by place, as [Reader.Verdicts].
func (b *Reader) Receipts() iter.Seq2[Record, error] { return b.records(sectionReceipts) }

// Inclusion is the proof that a verdict stands in the transparency log.
type Inclusion struct {
	Place  uint64 // of the verdict in VERDICTS: its leaf has the index Place-1
	Hashes []tlog.Hash
}

// Inclusions yields the proofs, by place, as [Reader.Verdicts].
func (b *Reader) Inclusions() iter.Seq2[Inclusion, error] {
	return func(yield func(Inclusion, error) bool) {
		var malformed error
		err := b.each(sectionInclusion, func(e entry, content []byte) bool {
			in := Inclusion{Place: e.key.number}
			for line := range bytes.Lines(content) {
				h, err := tlog.ParseHash(string(bytes.TrimSuffix(line, []byte("\n"))))
				if err != nil || line[len(line)-1] != '\n' {
					malformed = e.wrong("line %d is no hash in base64: %.60q", len(in.Hashes)+1, line)
					return false
				}
				in.Hashes = append(in.Hashes, h)
			}
			return yield(in, nil)
		})
		if malformed != nil {
			err = malformed
		}
		if err != nil {
			yield(Inclusion{}, err)
		}
	}
}

// Log is the log of a bundle as it is read. It is not safe for concurrent use.
type Log struct {
	bundle   *Reader
	seq      uint64 // of the message yielded last
	withheld *audit.Commitment
	err      error
}

// Log returns the session's log.
func (b *Reader) Log() *Log { return &Log{bundle: b} }

// Messages yields the messages, by sequence. A missing one is not reported: its sequence is. It stops at the first error, which
// [Log.Err] then returns. A message whose content is withheld has what is left of it as its payload.
func (l *Log) Messages() iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		session := l.bundle.manifest.Session
		var malformed error
		err := l.bundle.each(sectionLog, func(e entry, content []byte) bool {
			m, c, why := parseMessage(session, e.key.number, content)
			if c != nil && why == "" && l.bundle.manifest.Withheld.None() {
				why = nameManifest + " names nothing that is withheld"
			}
			if why != "" {
				malformed = e.wrong("%s", why)
				return false
			}
			l.seq, l.withheld = m.Seq, c
			return yield(m, nil)
		})
		if malformed != nil {
			err = malformed
		}
		if l.err = err; err != nil {
			yield(eventlog.Message{}, err)
		}
	}
}

// Commitment returns the commitment to the payload of the message that was yielded last; ok is false for others, and when
// the payload is at hand.
func (l *Log) Commitment(seq uint64) (c audit.Commitment, ok bool) {
	if seq != l.seq || l.withheld == nil {
		return c, false
	}
	return *l.withheld, true
}

// Err returns why the iteration ended early, nil when it did not.
func (l *Log) Err() error { return l.err }

// Withheld returns what a check is to know of content that is withheld, nil when none is.
func (l *Log) Withheld() *audit.Withheld {
	if l.bundle.manifest.Withheld.None() {
		return nil
	}
	return &audit.Withheld{Withholding: l.bundle.manifest.Withheld, Commitment: l.Commitment}
}
