package tamper_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// contents are what goes into a bundle.
type contents struct {
	messages []eventlog.Message
	last     uint64
	objects  map[objects.Digest][]byte
	verdicts []bundle.Record
	receipts []bundle.Record
	point    []byte
	proofs   []bundle.Inclusion
}

func (c *contents) clone() *contents {
	return &contents{
		messages: slices.Clone(c.messages), last: c.last, objects: maps.Clone(c.objects), verdicts: slices.Clone(c.verdicts),
		receipts: slices.Clone(c.receipts), point: bytes.Clone(c.point), proofs: slices.Clone(c.proofs),
	}
}

// bundled is a base with the bundle of it.
type bundled struct {
	contents *contents
	file     []byte
	options  bundle.Options
}

// bundle makes the session's bundle, with a transparency log over its verdicts and those of others.
func (b *base) bundle(d *dice) *bundled {
	if b.packed != nil {
		return b.packed
	}
	c := &contents{messages: b.Messages, last: b.last(), objects: make(map[objects.Digest][]byte)}
	for _, ref := range b.Refs {
		c.objects[ref.Digest], _ = b.Source.Bytes(ref.Digest)
	}
	for i := range b.signed {
		payload, err := b.signed[i].Encode()
		if err != nil {
			panic(err)
		}
		c.verdicts = append(c.verdicts, bundle.Record{Place: uint64(2*i + 1), Payload: payload})
	}
	for i := range b.receipts {
		payload, err := b.receipts[i].Receipt.Encode()
		if err != nil {
			panic(err)
		}
		c.receipts = append(c.receipts, bundle.Record{Place: b.receipts[i].Place, Payload: payload})
	}
	o := bundle.Options{Trusted: []string{b.key.Public()}, Witnesses: []string{b.witness.Public()}, LogKeys: []string{d.log.Key()}}
	b.packed = &bundled{contents: c, options: o}
	c.log(d.log)
	b.packed.file = b.pack(c)
	return b.packed
}

// log keeps the verdicts in a transparency log, with others between them.
func (c *contents) log(signer *tlog.Signer) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	files := tiles{}
	builder := tlog.NewBuilder(func(f tlog.File, data []byte) error { files[f.Path()] = bytes.Clone(data); return nil })
	for i := range c.verdicts {
		for builder.Size()+1 < c.verdicts[i].Place {
			must(builder.Append([]byte("another session's verdict")))
		}
		must(builder.Append(c.verdicts[i].Payload))
	}
	must(builder.Flush())
	root, err := builder.Root()
	must(err)
	point := tlog.Checkpoint{Origin: signer.Origin(), Size: builder.Size(), Root: root}
	c.point, err = signer.Sign(point)
	must(err)
	tree, err := tlog.OpenTree(context.Background(), files, point)
	must(err)
	c.proofs = nil
	for _, v := range c.verdicts {
		hashes, err := tree.Inclusion(context.Background(), v.Place-1)
		must(err)
		c.proofs = append(c.proofs, bundle.Inclusion{Place: v.Place, Hashes: hashes})
	}
}

// tiles are the files of a transparency log.
type tiles map[string][]byte

func (f tiles) Read(_ context.Context, path string, _ int) ([]byte, error) {
	b, ok := f[path]
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, tlog.ErrNotFound)
	}
	return b, nil
}

// pack writes a bundle as somebody does who has the program for it.
func (b *base) pack(c *contents) []byte {
	var out bytes.Buffer
	w, err := bundle.NewWriter(&out, bundle.Manifest{Session: b.ID, Last: c.last})
	errs := []error{err}
	for i := range c.messages {
		errs = append(errs, w.Message(&c.messages[i]))
	}
	for _, digest := range slices.SortedFunc(maps.Keys(c.objects), func(x, y objects.Digest) int { return bytes.Compare(x[:], y[:]) }) {
		errs = append(errs, w.Object(digest, c.objects[digest]))
	}
	for _, v := range c.verdicts {
		errs = append(errs, w.Verdict(v.Place, v.Payload))
	}
	for _, r := range c.receipts {
		errs = append(errs, w.Receipt(r.Place, r.Payload))
	}
	if c.point != nil {
		errs = append(errs, w.Checkpoint(c.point))
	}
	for _, p := range c.proofs {
		errs = append(errs, w.Inclusion(p.Place, p.Hashes))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// audited reads and checks a bundle.
func audited(ctx context.Context, file []byte, o bundle.Options) (*audit.Report, error) {
	r, err := bundle.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	report, err := bundle.Check(ctx, r, o)
	if err != nil {
		return nil, err
	}
	return report.Report, nil
}

// bundleKinds change the bytes of a bundle, or what goes into one.
func bundleKinds() []kind {
	return slices.Concat(fileKinds(), contentKinds())
}

// fileKinds change bytes of the file. All of it is refused.
func fileKinds() []kind {
	file := func(change func(d *dice, file []byte) []byte) func(d *dice, b *base) (mutation, bool) {
		return func(d *dice, b *base) (mutation, bool) {
			packed := b.bundle(d)
			wrong := change(d, bytes.Clone(packed.file))
			if wrong == nil || bytes.Equal(wrong, packed.file) {
				return mutation{}, false
			}
			m := mutation{what: fmt.Sprintf("a file of %d bytes", len(wrong))}
			switch _, err := audited(context.Background(), wrong, packed.options); {
			case err == nil:
				m.err = errors.New("the file passes as a bundle")
			case !errors.Is(err, bundle.ErrFormat):
				m.err = fmt.Errorf("refused as something else: %w", err)
			default:
				m.refused = "refused: " + bundle.ErrFormat.Error()
			}
			return m, true
		}
	}
	return []kind{
		{"bundle: bit flipped", 6, file(func(d *dice, f []byte) []byte {
			f[d.index(len(f))] ^= 1 << d.index(8)
			return f
		})},
		{"bundle: cut", 3, file(func(d *dice, f []byte) []byte { return f[:d.index(len(f))] })},
		{"bundle: byte left out", 2, file(func(d *dice, f []byte) []byte {
			at := d.index(len(f))
			return slices.Delete(f, at, at+1)
		})},
		{"bundle: byte put in", 2, file(func(d *dice, f []byte) []byte { return slices.Insert(f, d.index(len(f)+1), byte(d.IntN(256))) })},
		{"bundle: block left out", 1, file(func(d *dice, f []byte) []byte {
			at := 512 * d.index(len(f)/512)
			return slices.Delete(f, at, at+512)
		})},
		{"bundle: entry left out", 2, file(func(d *dice, f []byte) []byte {
			entries := split(f)
			i := d.index(len(entries) - 1)
			return joined(slices.Delete(entries, i, i+1))
		})},
		{"bundle: entry doubled", 2, file(func(d *dice, f []byte) []byte {
			entries := split(f)
			i := d.index(len(entries) - 1)
			return joined(slices.Insert(entries, i, entries[i]))
		})},
		{"bundle: entries swapped", 2, file(func(d *dice, f []byte) []byte {
			entries := split(f)
			i, j := d.index(len(entries)-1), d.index(len(entries)-1)
			entries[i], entries[j] = entries[j], entries[i]
			return joined(entries)
		})},
	}
}

// split returns the entries of a bundle, each with its header; the last one with the end of the file.
func split(file []byte) [][]byte {
	const block = 512
	var out [][]byte
	for len(file) > 0 {
		var size int
		if _, err := fmt.Sscanf(string(file[124:135]), "%o", &size); err != nil {
			panic(err)
		}
		n := block + (size+block-1)/block*block
		if bytes.HasPrefix(file, []byte("end.json\x00")) {
			n = len(file)
		}
		out = append(out, file[:n:n])
		file = file[n:]
	}
	return out
}

// joined returns the entries as a file whose end names its digest, as it is without anything changed.
func joined(entries [][]byte) []byte {
	head := slices.Concat(entries[:len(entries)-1]...)
	end := bytes.Clone(entries[len(entries)-1])
	sum := sha256.Sum256(head)
	_, rest, ok := strings.Cut(string(end), `"sha256":"`)
	if !ok {
		panic("the end names no digest")
	}
	copy(end[len(end)-len(rest):], hex.EncodeToString(sum[:]))
	return append(head, end...)
}

// repacked returns a kind's function that changes what goes into a bundle.
func repacked(change func(d *dice, b *base, c *contents) (want, also found, ok bool)) func(d *dice, b *base) (mutation, bool) {
	return func(d *dice, b *base) (mutation, bool) {
		packed := b.bundle(d)
		c := packed.contents.clone()
		want, also, ok := change(d, b, c)
		if !ok {
			return mutation{}, false
		}
		return mutation{what: "packed anew", file: b.pack(c), options: packed.options, want: want, also: also, maybe: len(want) == 0}, true
	}
}

// consequences are what may be found beside a change of the log, whose verdicts and receipts stay what they were.
func consequences() found {
	return slices.Concat(
		broken(audit.RuleSigned), of(audit.Mismatch, bundle.RuleVerdict, audit.RuleWire, audit.RuleUnlogged, audit.RuleUnwitnessed),
		of(audit.CouldNotCheck, bundle.RuleReceipt),
	)
}

func contentKinds() []kind {
	return []kind{
		{"bundle packed anew: event changed", 3, repacked(func(d *dice, b *base, c *contents) (found, found, bool) {
			i, payload := b.edit(d)
			c.messages[i].Payload = payload
			want, maybe := b.whatBreaks(i, payload)
			return want, consequences(), !maybe
		})},
		{"bundle packed anew: event left out", 2, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			i := d.index(len(c.messages))
			c.messages = slices.Delete(c.messages, i, i+1)
			return broken(audit.RuleSequence), consequences(), true
		})},
		{"bundle packed anew: log cut, and says so", 1, repacked(func(d *dice, b *base, c *contents) (found, found, bool) {
			n := 1 + d.index(len(c.messages)-1)
			c.messages, c.last = c.messages[:n], uint64(n)
			return broken(audit.RuleSigned), consequences(), uint64(n) < b.lastSigned
		})},
		{"bundle packed anew: object left out", 2, repacked(func(d *dice, b *base, c *contents) (found, found, bool) {
			ref, _, ok := b.object(d)
			delete(c.objects, ref.Digest)
			return of(audit.MissingObject, ""), nil, ok
		})},
		{"bundle packed anew: object changed", 2, repacked(func(d *dice, b *base, c *contents) (found, found, bool) {
			ref, right, ok := b.object(d)
			if !ok {
				return nil, nil, false
			}
			c.objects[ref.Digest] = append(bytes.Clone(right), byte(d.IntN(256)))
			return of(audit.CorruptObject, ""), nil, true
		})},
		{"bundle packed anew: verdict's byte changed", 3, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			i := d.index(len(c.verdicts))
			c.verdicts[i].Payload = damaged(d, c.verdicts[i].Payload)
			return of(audit.Mismatch, bundle.RuleVerdict), of(audit.Mismatch, audit.RuleSilent, bundle.RuleInclusion), true
		})},
		{"bundle packed anew: verdict left out", 2, repacked(leftOut)},
		{"bundle packed anew: verdict contradicts", 3, repacked(contradicts)},
		{"bundle packed anew: verdict on a call contradicts", 3, repacked(contradictsCall)},
		{"bundle packed anew: log goes on behind the last that it states", 1, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			c.last -= 1 + uint64(d.index(len(c.messages)))
			return broken(audit.RuleSequence), nil, true
		})},
		{"bundle packed anew: object that nothing names is another", 1, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			var digest objects.Digest
			for i := range digest {
				digest[i] = byte(d.IntN(256))
			}
			c.objects[digest] = []byte("what nobody named")
			return of(audit.CorruptObject, ""), nil, true
		})},
		{"bundle packed anew: verdict says match for a mismatch", 2, lyingVerifier},
		{"bundle packed anew: receipt's byte changed", 2, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			if len(c.receipts) == 0 {
				return nil, nil, false
			}
			i := d.index(len(c.receipts))
			c.receipts[i].Payload = damaged(d, c.receipts[i].Payload)
			return of(audit.Mismatch, bundle.RuleReceipt), append(of(audit.Mismatch, audit.RuleUnwitnessed), of(audit.CouldNotCheck, bundle.RuleReceipt)...), true
		})},
		{"bundle packed anew: receipt left out", 2, repacked(func(d *dice, b *base, c *contents) (found, found, bool) {
			i, ok := b.call(d)
			if !ok {
				return nil, nil, false
			}
			c.receipts = slices.Delete(c.receipts, i, i+1)
			if b.Answered(b.receipts[i].Receipt.Seq) {
				return of(audit.Mismatch, audit.RuleUnwitnessed), of(audit.CouldNotCheck, bundle.RuleReceipt), true
			}
			return of(audit.CouldNotCheck, bundle.RuleReceipt), nil, slices.ContainsFunc(b.signed, func(v audit.Verdict) bool { return v.Receipt == b.receipts[i].Place })
		})},
		{"bundle packed anew: proof changed", 2, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			p := &c.proofs[d.index(len(c.proofs))]
			if len(p.Hashes) == 0 {
				return nil, nil, false
			}
			p.Hashes = slices.Clone(p.Hashes)
			p.Hashes[d.index(len(p.Hashes))][d.index(32)] ^= 1 << d.index(8)
			return of(audit.Mismatch, bundle.RuleInclusion), nil, true
		})},
		{"bundle packed anew: proof left out", 1, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			i := d.index(len(c.proofs))
			c.proofs = slices.Delete(c.proofs, i, i+1)
			return of(audit.CouldNotCheck, bundle.RuleInclusion), nil, true
		})},
		{"bundle packed anew: checkpoint's byte changed", 2, repacked(func(d *dice, _ *base, c *contents) (found, found, bool) {
			c.point[d.index(len(c.point))] ^= 1 << d.index(8)
			return of(audit.Mismatch, bundle.RuleCheckpoint), of(audit.Mismatch, bundle.RuleInclusion), true
		})},
		{"bundle packed anew: checkpoint left out", 1, repacked(func(_ *dice, _ *base, c *contents) (found, found, bool) {
			c.point, c.proofs = nil, nil
			return of(audit.CouldNotCheck, bundle.RuleCheckpoint), nil, true
		})},
	}
}

// leftOut leaves out a verdict and its proof.
func leftOut(d *dice, b *base, c *contents) (want, also found, ok bool) {
	i := d.index(len(c.verdicts))
	c.verdicts, c.proofs = slices.Delete(c.verdicts, i, i+1), slices.Delete(c.proofs, i, i+1)
	return b.missed(i), nil, true
}

// contradicts has a trusted verifier sign what is not so. The transparency log holds it.
func contradicts(d *dice, b *base, c *contents) (want, also found, ok bool) {
	i := d.index(len(c.verdicts))
	v := b.signed[i]
	if v.Kind != audit.KindRequest {
		return nil, nil, false
	}
	untrue(d, &v)
	signVerdict(b.key, &v)
	c.verdicts[i].Payload, _ = v.Encode()
	c.log(d.log)
	return of(audit.Mismatch, bundle.RuleVerdict), nil, true
}

// contradictsCall has a trusted verifier sign what is not so of a call, or name another receipt.
func contradictsCall(d *dice, b *base, c *contents) (want, also found, ok bool) {
	i := d.index(len(c.verdicts))
	v := b.signed[i]
	if v.Kind != audit.KindWire {
		return nil, nil, false
	}
	if other := b.receipts[d.index(len(b.receipts))].Place; d.IntN(3) == 0 && other != v.Receipt {
		v.Receipt = other
	} else {
		untrueCall(d, &v)
	}
	signVerdict(b.key, &v)
	c.verdicts[i].Payload, _ = v.Encode()
	c.log(d.log)
	return of(audit.Mismatch, bundle.RuleVerdict), nil, true
}

// lyingVerifier signs that a request matches that does not.
func lyingVerifier(d *dice, b *base) (mutation, bool) {
	m, ok := b.restated(d, of(audit.Mismatch, ""), func(s *events.LLMStream) { s.Body.SHA256[d.index(32)] ^= 1 << d.index(8) })
	if !ok {
		return m, false
	}
	packed := b.bundle(d)
	c := packed.contents.clone()
	c.messages = nil
	for message, err := range m.check.Messages {
		if err != nil {
			panic(err)
		}
		c.messages = append(c.messages, message)
	}
	m.check.Messages = audittest.Sequence(c.messages)
	report, err := audit.CheckLog(context.Background(), m.check)
	if err != nil {
		panic(err)
	}
	c.verdicts, c.receipts = nil, nil
	for i := range report.Verdicts {
		v := report.Verdicts[i]
		if v.Result == audit.Mismatch {
			v.Result, v.Reason, v.Rebuilt = audit.Match, "", v.Recorded
		}
		signVerdict(b.key, &v)
		payload, err := v.Encode()
		if err != nil {
			panic(err)
		}
		c.verdicts = append(c.verdicts, bundle.Record{Place: uint64(i + 1), Payload: payload})
	}
	c.log(d.log)
	o := packed.options
	o.Witnesses = nil
	return mutation{what: m.what, file: b.pack(c), options: o, want: of(audit.Mismatch, bundle.RuleVerdict), also: m.want}, true
}
