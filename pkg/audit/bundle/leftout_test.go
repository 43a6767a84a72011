package bundle_test

import (
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
)

// TestReceiptLeftOut has a signed verdict on a call whose receipt is not in the bundle: what passed cannot be checked.
func TestReceiptLeftOut(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	k.point, k.proofs = nil, nil
	c := k.LogCheck()
	c.Receipts = k.Receipts(k.witness)
	report, err := audit.CheckLog(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Kind == audit.KindWire })
	wire := report.Verdicts[i]
	if err := k.verifier.Sign(&wire); err != nil {
		t.Fatal(err)
	}
	k.verdicts = append(k.verdicts, bundle.Record{Place: k.verdicts[len(k.verdicts)-1].Place + 1, Payload: encode(t, &wire)})
	k.receipts = nil
	report = audited(t, k.pack(t), bundle.Options{Trusted: []string{k.verifier.Public()}}).Report
	found := slices.DeleteFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Result == audit.Match })
	if len(found) != 1 || found[0].Rule != bundle.RuleReceipt || found[0].Result != audit.CouldNotCheck || found[0].Seq != wire.Seq {
		t.Errorf("found %v", found)
	}
}
