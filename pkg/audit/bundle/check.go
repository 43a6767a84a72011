package bundle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// The rules that a check of a bundle names beside those of a log.
const (
	RuleVerdict    = audit.RuleVerdict // also: what stands among the verdicts is one, of this session
	RuleReceipt    = "receipt"         // a receipt is one, of this session, with the signature of its witness
	RuleInclusion  = "inclusion"       // a verdict stands in the transparency log
	RuleCheckpoint = "checkpoint"      // the checkpoint is signed by a key of the log that is trusted
)

// Options say whom the auditor trusts. All may be empty.
type Options struct {
	Trusted   []string // public keys of verifiers whose verdicts count; empty: those of every verifier
	Witnesses []string // public keys of witnesses, as in [audit.LogCheck]
	// LogKeys holds public keys of the transparency log, as [tlog.Signer.Key] gives them, in which every verdict that counts must
	// be proven to stand. Empty: the signature of the checkpoint is not looked at, and what is behind it needs no proof.
	LogKeys []string
	Cold    bool // as in [audit.LogCheck]
}

// validate refuses keys that are none.
func (o *Options) validate() error {
	for _, key := range slices.Concat(o.Trusted, o.Witnesses) {
		if err := audit.CheckPublic(key); err != nil {
			return err
		}
	}
	for _, key := range o.LogKeys {
		if _, err := tlog.CheckKey(key); err != nil {
			return err
		}
	}
	return nil
}

// Signer is a key, and what it has signed that has its signature and is of this session.
type Signer struct {
	Key     string
	Signed  int
	Trusted bool // the options name it
}

// Inclusions says which verdicts the checkpoint proves to stand in the transparency log.
type Inclusions struct {
	Checkpoint tlog.Checkpoint // zero when the bundle holds none
	Signed     bool            // by one of the keys that the options name
	Proven     int             // verdicts
	Later      int             // verdicts behind the checkpoint: nothing is proven of them
}

// Report is the outcome of [Check].
type Report struct {
	// Report is the check of the log. Its verdicts are followed by what was found about the bundle.
	*audit.Report

	Manifest  Manifest
	End       End
	Verifiers []Signer // in the order of their keys
	Witnesses []Signer // likewise
	Receipts  int      // of requests that count
	Log       Inclusions
	Withheld  int // messages whose content is withheld
	Unchecked int // requests that could not be checked
	Unnamed   int // objects that no message names: they are hashed, and belong to nothing
}

// Check checks all that a bundle holds. What was found and what could not be checked is in the report, whose verdicts are all
// [audit.Match] only when there is nothing of either. The error wraps [ErrFormat], [audit.ErrKey] or [tlog.ErrKey], or is that
// of the file or of ctx: nothing is known then.
func Check(ctx context.Context, b *Reader, o Options) (*Report, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &check{bundle: b, o: &o, report: &Report{Manifest: b.manifest, End: b.end}}
	verdicts, err := c.verdicts()
	if err != nil {
		return nil, err
	}
	receipts, err := c.receipts()
	if err != nil {
		return nil, err
	}
	if err := c.log(ctx, receipts); err != nil {
		return nil, err
	}
	if n, last := c.report.Last, b.manifest.Last; n > last {
		c.add(last+1, audit.BrokenChain, audit.RuleSequence, "the log goes on to event %d, and %s states that it ends at event %d", n, nameManifest, last)
	}
	if err := c.objects(); err != nil {
		return nil, err
	}
	c.absent(verdicts, receipts)
	c.checkpoint()
	if err := c.inclusions(verdicts); err != nil {
		return nil, err
	}
	c.report.Verdicts = slices.Concat(c.report.Verdicts, c.found, c.listed.Rest(audit.Verdict{Session: b.manifest.Session, Seq: c.report.Last}))
	for i := range c.report.Verdicts {
		if v := &c.report.Verdicts[i]; v.Kind == audit.KindRequest && v.Result == audit.CouldNotCheck {
			c.report.Unchecked++
		}
	}
	return c.report, nil
}

// check is a check in progress.
type check struct {
	bundle *Reader
	o      *Options
	report *Report
	found  []audit.Verdict // what is added to the verdicts of the log
	listed audit.Listing   // of these
	prior  []audit.Verdict // those that have their signature and are of this session
	named  audit.ObjectSet // by the messages, as far as they can be read
}

// add adds a finding, or what could not be checked, about the event.
func (c *check) add(seq uint64, result audit.Result, rule, format string, args ...any) {
	if !c.listed.Add(result, rule) {
		return
	}
	c.found = append(c.found, audit.Verdict{
		Kind: audit.KindLog, Session: c.bundle.manifest.Session, Seq: max(seq, 1), Result: result, Rule: rule,
		Reason: audit.Reason(fmt.Sprintf(format, args...)),
	})
}

// placed is what is kept of a verdict, or of what stands in the place of one.
type placed struct {
	place   uint64
	leaf    tlog.Hash
	seq     uint64 // 1 when it is none that is to be believed
	receipt uint64 // the place of the receipt that it names, 0 when it names none or does not count
	counts  bool   // it is of a verifier that is trusted
}

// verdicts reads the verdicts. Those that are none, have no valid signature or are of another session are findings.
func (c *check) verdicts() ([]placed, error) {
	out := make([]placed, 0, c.bundle.count[sectionVerdicts])
	c.prior = make([]audit.Verdict, 0, c.bundle.count[sectionVerdicts])
	var names keySet
	signers, keys := make(signerSet), make(interned)
	for r, err := range c.bundle.Verdicts() {
		if err != nil {
			return nil, err
		}
		p := placed{place: r.Place, leaf: tlog.LeafHash(r.Payload), seq: 1}
		v, err := audit.DecodeVerdict(r.Payload)
		if err == nil {
			names.add(v.Verifier)
		}
		switch {
		case err != nil:
			c.add(1, audit.Mismatch, RuleVerdict, "place %d of VERDICTS holds no verdict: %v", r.Place, err)
		case v.Session != c.bundle.manifest.Session:
			c.add(v.Seq, audit.Mismatch, RuleVerdict, "the verdict at place %d of VERDICTS is about session %s", r.Place, v.Session)
		default:
			if err := v.Verify(); err != nil {
				c.add(v.Seq, audit.Mismatch, RuleVerdict, "the verdict at place %d of VERDICTS is forged: %v", r.Place, err)
				break
			}
			signers[v.Verifier]++
			p.seq, p.counts = v.Seq, len(c.o.Trusted) == 0 || slices.Contains(c.o.Trusted, v.Verifier)
			if p.counts {
				p.receipt = v.Receipt
			}
			v.Verifier, v.Signature = keys.of(v.Verifier), nil // there may be many
			c.prior = append(c.prior, v)
		}
		out = append(out, p)
	}
	c.keys(RuleVerdict, "verifiers", c.bundle.end.Verifiers, names)
	c.report.Verifiers = signers.list(c.o.Trusted)
	return out, nil
}

// receipts reads the receipts. Those that are none, have no valid signature or are of another session are
// findings.
func (c *check) receipts() ([]audit.PlacedReceipt, error) {
	out := make([]audit.PlacedReceipt, 0, c.bundle.count[sectionReceipts])
	var names keySet
	signers, keys := make(signerSet), make(interned)
	for p, err := range c.bundle.Receipts() {
		if err != nil {
			return nil, err
		}
		r, err := audit.DecodeReceipt(p.Payload)
		if err == nil {
			names.add(r.Witness)
		}
		switch {
		case err != nil:
			c.add(1, audit.Mismatch, RuleReceipt, "place %d of WITNESS holds no receipt: %v", p.Place, err)
			continue
		case r.Session != c.bundle.manifest.Session:
			c.add(1, audit.Mismatch, RuleReceipt, "the receipt at place %d of WITNESS is of session %q", p.Place, r.Session)
			continue
		}
		if err := r.Verify(); err != nil {
			c.add(r.Seq, audit.Mismatch, RuleReceipt, "the receipt at place %d of WITNESS is forged: %v", p.Place, err)
			continue
		}
		signers[r.Witness]++
		if r.Kind == audit.ReceiptRequest && (len(c.o.Witnesses) == 0 || slices.Contains(c.o.Witnesses, r.Witness)) {
			c.report.Receipts++
		}
		r.Witness, r.Signature = keys.of(r.Witness), nil // there may be many
		out = append(out, audit.PlacedReceipt{Place: p.Place, Receipt: r})
	}
	c.keys(RuleReceipt, "witnesses", c.bundle.end.Witnesses, names)
	c.report.Witnesses = signers.list(c.o.Witnesses)
	return out, nil
}

// keys compares a list of keys in the end of the bundle with those that the records name.
func (c *check) keys(rule, list string, says, are keySet) {
	for _, key := range says {
		if !slices.Contains(are, key) {
			c.add(1, audit.Mismatch, rule, "%s names %s among its %s, and no record does", nameEnd, key, list)
		}
	}
	for _, key := range are {
		if !slices.Contains(says, key) {
			c.add(1, audit.Mismatch, rule, "%s does not name %s among its %s, and a record does", nameEnd, key, list)
		}
	}
}

// objects hashes the objects, and counts those that nothing names.
func (c *check) objects() error {
	named := make(map[objects.Digest]struct{})
	for _, d := range c.named.Digests() {
		named[d] = struct{}{}
	}
	for o, err := range c.bundle.Objects() {
		if err != nil {
			return err
		}
		if o.Sum != o.Digest {
			c.add(1, audit.CorruptObject, "", "the object %s has the SHA-256 %s", o.Digest, o.Sum)
		}
		if _, ok := named[o.Digest]; !ok {
			c.report.Unnamed++
		}
	}
	return nil
}

// log checks the log, with what was signed about it.
func (c *check) log(ctx context.Context, receipts []audit.PlacedReceipt) error {
	log := c.bundle.Log()
	report, err := audit.CheckLog(ctx, audit.LogCheck{
		Session: c.bundle.manifest.Session, Messages: c.counted(log), Last: c.bundle.manifest.Last, Objects: c.bundle.Object,
		Prior: c.prior, Trusted: c.o.Trusted, Verified: true, Receipts: receipts, Witnesses: c.o.Witnesses, Cold: c.o.Cold, Withheld: log.Withheld(),
		Parents: func(context.Context, events.ID, uint64) (events.Hash, error) {
			return events.Hash{}, fmt.Errorf("the bundle holds one session: %w", eventlog.ErrNotFound)
		},
	})
	if err := errors.Join(err, log.Err()); err != nil {
		return err
	}
	c.report.Report = report
	return nil
}

// counted yields the messages of the log, counts those without their content, and notes the objects that they name.
func (c *check) counted(log *Log) func(yield func(eventlog.Message, error) bool) {
	var decoder events.Decoder
	return func(yield func(eventlog.Message, error) bool) {
		for m, err := range log.Messages() {
			_, withheld := log.Commitment(m.Seq)
			if withheld && err == nil {
				c.report.Withheld++
			}
			if e, bad := m.Decode(&decoder); bad == nil && len(c.bundle.objects) > 0 {
				c.named.Add(&e, withheld)
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// absent looks for receipts that verdicts name and that the bundle does not hold, or only of a witness whose receipts do not count.
func (c *check) absent(verdicts []placed, receipts []audit.PlacedReceipt) {
	held := make(map[uint64]struct{}, len(receipts))
	for i := range receipts {
		if len(c.o.Witnesses) == 0 || slices.Contains(c.o.Witnesses, receipts[i].Receipt.Witness) {
			held[receipts[i].Place] = struct{}{}
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		if v.receipt == 0 {
			continue
		}
		if _, ok := held[v.receipt]; !ok {
			c.add(v.seq, audit.CouldNotCheck, RuleReceipt, "the verdict at place %d of VERDICTS names the receipt at place %d of WITNESS: the bundle holds none there that counts",
				v.place, v.receipt)
		}
	}
}

// checkpoint looks at the checkpoint of the transparency log.
func (c *check) checkpoint() {
	signed := c.bundle.Checkpoint()
	if signed == nil {
		if len(c.o.LogKeys) > 0 {
			c.add(c.report.Last, audit.CouldNotCheck, RuleCheckpoint, "a key of a transparency log is given, and the bundle holds no checkpoint")
		}
		return
	}
	point, err := tlog.ReadCheckpoint(signed)
	if err != nil {
		c.add(c.report.Last, audit.Mismatch, RuleCheckpoint, "%v", err)
		return
	}
	c.report.Log.Checkpoint = point
	if len(c.o.LogKeys) == 0 {
		return
	}
	if _, err := tlog.OpenCheckpoint(signed, c.o.LogKeys...); err != nil {
		c.add(c.report.Last, audit.Mismatch, RuleCheckpoint, "the checkpoint of %s, size %d: %v", point.Origin, point.Size, err)
		return
	}
	c.report.Log.Signed = true
}

// inclusions checks that the verdicts stand in the transparency log.
func (c *check) inclusions(verdicts []placed) error {
	point := c.report.Log.Checkpoint
	if point == (tlog.Checkpoint{}) {
		return nil
	}
	next, stop := iter.Pull2(c.bundle.Inclusions())
	defer stop()
	in, err, more := next()
	alone := 0 // proofs without a verdict
	for i := range verdicts {
		p, seq := &verdicts[i], verdicts[i].seq
		for ; more && err == nil && in.Place < p.place; in, err, more = next() {
			alone++
		}
		hashes, ok := in.Hashes, more && err == nil && in.Place == p.place
		if ok {
			in, err, more = next()
		}
		if err != nil {
			return err
		}
		switch {
		case p.place > point.Size && !ok:
			c.report.Log.Later++
			if p.counts && len(c.o.LogKeys) > 0 {
				c.add(seq, audit.CouldNotCheck, RuleInclusion, "the verdict at place %d of VERDICTS is not in the log %s at size %d: ask for a bundle with a newer checkpoint",
					p.place, point.Origin, point.Size)
			}
		case !ok:
			c.add(seq, audit.CouldNotCheck, RuleInclusion, "no proof that the verdict at place %d of VERDICTS stands in the log %s", p.place, point.Origin)
		default:
			if err := tlog.VerifyInclusion(p.place-1, point.Size, p.leaf, hashes, point.Root); err != nil {
				c.add(seq, audit.Mismatch, RuleInclusion, "the verdict at place %d of VERDICTS does not stand in the log %s: %v", p.place, point.Origin, err)
				continue
			}
			c.report.Log.Proven++
		}
	}
	for more && err == nil {
		alone++
		_, err, more = next()
	}
	if alone > 0 {
		c.add(c.report.Last, audit.Mismatch, RuleInclusion, "%d proofs are of verdicts that the bundle does not hold", alone)
	}
	return err
}

// interned holds each text once.
type interned map[string]string

func (t interned) of(s string) string {
	if _, ok := t[s]; !ok {
		t[s] = s
	}
	return t[s]
}

// signerSet counts what keys have signed.
type signerSet map[string]int

// list returns the keys in their order.
func (s signerSet) list(trusted []string) []Signer {
	out := make([]Signer, 0, len(s))
	for _, key := range slices.Sorted(maps.Keys(s)) {
		out = append(out, Signer{Key: key, Signed: s[key], Trusted: slices.Contains(trusted, key)})
	}
	return out
}
