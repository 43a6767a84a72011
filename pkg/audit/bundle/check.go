package bundle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
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
	if err := c.log(ctx, verdicts, receipts); err != nil {
		return nil, err
	}
	c.absent(verdicts, receipts)
	c.checkpoint()
	if err := c.inclusions(verdicts); err != nil {
		return nil, err
	}
	c.report.Verdicts = append(c.report.Verdicts, c.found...)
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
}

// add adds a finding, or what could not be checked, about the event.
func (c *check) add(seq uint64, result audit.Result, rule, format string, args ...any) {
	c.found = append(c.found, audit.Verdict{
		Kind: audit.KindLog, Session: c.bundle.manifest.Session, Seq: max(seq, 1), Result: result, Rule: rule,
		Reason: audit.Reason(fmt.Sprintf(format, args...)),
	})
}

// placed is a verdict that has its signature and is of this session.
type placed struct {
	place   uint64
	leaf    tlog.Hash
	verdict *audit.Verdict // nil: it is none, or none that is to be believed
	counts  bool           // it is of a verifier that is trusted
}

// verdicts reads the verdicts. Those that are none, have no valid signature or are of another session are findings.
func (c *check) verdicts() ([]placed, error) {
	var out []placed
	signers := make(signerSet)
	for r, err := range c.bundle.Verdicts() {
		if err != nil {
			return nil, err
		}
		p := placed{place: r.Place, leaf: tlog.LeafHash(r.Payload)}
		v, err := audit.DecodeVerdict(r.Payload)
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
			p.verdict, p.counts = &v, len(c.o.Trusted) == 0 || slices.Contains(c.o.Trusted, v.Verifier)
		}
		out = append(out, p)
	}
	c.report.Verifiers = signers.list(c.o.Trusted)
	return out, nil
}

// receipts reads the receipts of requests. Those that are none, have no valid signature or are of another session are
// findings.
func (c *check) receipts() ([]audit.PlacedReceipt, error) {
	var out []audit.PlacedReceipt
	signers := make(signerSet)
	for p, err := range c.bundle.Receipts() {
		if err != nil {
			return nil, err
		}
		r, err := audit.DecodeReceipt(p.Payload)
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
		if r.Kind != audit.ReceiptRequest {
			continue
		}
		if len(c.o.Witnesses) == 0 || slices.Contains(c.o.Witnesses, r.Witness) {
			c.report.Receipts++
		}
		out = append(out, audit.PlacedReceipt{Place: p.Place, Receipt: r})
	}
	c.report.Witnesses = signers.list(c.o.Witnesses)
	return out, nil
}

// log checks the log, with what was signed about it.
func (c *check) log(ctx context.Context, verdicts []placed, receipts []audit.PlacedReceipt) error {
	var prior []audit.Verdict
	for i := range verdicts {
		if verdicts[i].verdict != nil {
			prior = append(prior, *verdicts[i].verdict)
		}
	}
	log := c.bundle.Log()
	report, err := audit.CheckLog(ctx, audit.LogCheck{
		Session: c.bundle.manifest.Session, Messages: c.counted(log), Last: c.bundle.manifest.Last, Objects: c.bundle.Object,
		Prior: prior, Trusted: c.o.Trusted, Verified: true, Receipts: receipts, Witnesses: c.o.Witnesses, Cold: c.o.Cold, Withheld: log.Withheld(),
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

// counted yields the messages of the log and counts those without their content.
func (c *check) counted(log *Log) func(yield func(eventlog.Message, error) bool) {
	return func(yield func(eventlog.Message, error) bool) {
		for m, err := range log.Messages() {
			if _, ok := log.Commitment(m.Seq); ok && err == nil {
				c.report.Withheld++
			}
			if !yield(m, err) {
				return
			}
		}
	}
}

// absent looks for receipts that verdicts name and that the bundle does not hold.
func (c *check) absent(verdicts []placed, receipts []audit.PlacedReceipt) {
	held := make(map[uint64]struct{}, len(receipts))
	for i := range receipts {
		held[receipts[i].Place] = struct{}{}
	}
	for i := range verdicts {
		v := verdicts[i].verdict
		if !verdicts[i].counts || v.Kind != audit.KindWire || v.Result != audit.Match {
			continue
		}
		if _, ok := held[v.Receipt]; !ok {
			c.add(v.Seq, audit.CouldNotCheck, RuleReceipt, "the verdict at place %d of VERDICTS names the receipt at place %d of WITNESS, which the bundle does not hold",
				verdicts[i].place, v.Receipt)
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
	proofs := make(map[uint64][]tlog.Hash)
	for in, err := range c.bundle.Inclusions() {
		if err != nil {
			return err
		}
		proofs[in.Place] = in.Hashes
	}
	for i := range verdicts {
		p, seq := &verdicts[i], uint64(1)
		if p.verdict != nil {
			seq = p.verdict.Seq
		}
		hashes, ok := proofs[p.place]
		delete(proofs, p.place)
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
	if len(proofs) > 0 {
		c.add(c.report.Last, audit.Mismatch, RuleInclusion, "%d proofs are of verdicts that the bundle does not hold", len(proofs))
	}
	return nil
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
