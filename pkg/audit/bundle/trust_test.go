package bundle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/tlog"
)

// TestKeysBind leaves out, or replaces, what the keys that the auditor names have signed. Nothing of that passes.
func TestKeysBind(t *testing.T) {
	type expectation struct {
		result audit.Result
		rule   string
	}
	strangers := func(t *testing.T, k *kit, kind audit.Kind, change func(*audit.Verdict)) {
		t.Helper()
		trusted := k.verifier
		k.verifier = newKey(t)
		k.resign(t, kind, change)
		k.verifier = trusted
	}
	same := func(*audit.Verdict) {}
	for name, tt := range map[string]struct {
		change func(t *testing.T, k *kit)
		keys   func(o *bundle.Options) // nil: all
		want   expectation             // zero: nothing
	}{
		"an empty log's checkpoint": {func(t *testing.T, k *kit) {
			var err error
			if k.point, err = k.logSigner.Sign(tlog.Checkpoint{Origin: k.logSigner.Origin(), Root: tlog.EmptyRoot()}); err != nil {
				t.Fatal(err)
			}
			k.proofs = nil
		}, nil, expectation{audit.CouldNotCheck, bundle.RuleInclusion}},
		"a checkpoint before the last verdict": {func(t *testing.T, k *kit) {
			k.sawLog(t, k.logSigner, k.verdicts[len(k.verdicts)-1].Place-1)
		}, nil, expectation{audit.CouldNotCheck, bundle.RuleInclusion}},
		"the same without a key of the log": {func(t *testing.T, k *kit) {
			k.sawLog(t, k.logSigner, k.verdicts[len(k.verdicts)-1].Place-1)
		}, func(o *bundle.Options) { o.LogKeys = nil }, expectation{}},
		"a verdict that was never in the log": {func(t *testing.T, k *kit) {
			v := decoded(t, k.verdicts[k.find(t, audit.KindRequest)].Payload)
			v.Time++
			if err := k.verifier.Sign(&v); err != nil {
				t.Fatal(err)
			}
			k.verdicts = append(k.verdicts, bundle.Record{Place: 1 << 40, Payload: encode(t, &v)})
		}, nil, expectation{audit.CouldNotCheck, bundle.RuleInclusion}},
		"all verdicts left out": {func(_ *testing.T, k *kit) {
			k.verdicts, k.proofs = nil, nil
		}, nil, expectation{audit.CouldNotCheck, audit.RuleSilent}},
		"and the log cut": {func(_ *testing.T, k *kit) {
			k.verdicts, k.proofs, k.receipts = nil, nil, nil
			k.Messages = k.Messages[:4]
			k.manifest.Last = 4
		}, nil, expectation{audit.CouldNotCheck, audit.RuleSilent}},
		"all verdicts left out, and nobody is trusted": {func(_ *testing.T, k *kit) {
			k.verdicts, k.proofs = nil, nil
		}, func(o *bundle.Options) { o.Trusted = nil }, expectation{}},
		"one of two keys has signed": {func(*testing.T, *kit) {}, func(o *bundle.Options) {
			o.Trusted = append(o.Trusted, newKey(t).Public())
		}, expectation{}},
		"a stranger's in the place of one": {func(t *testing.T, k *kit) {
			strangers(t, k, audit.KindRequest, same)
		}, nil, expectation{audit.CouldNotCheck, audit.RuleSilent}},
		"a stranger's head behind everything": {func(t *testing.T, k *kit) {
			i := k.find(t, audit.KindHead) // requests behind the first head have no verdict yet
			k.verdicts = k.verdicts[:i+1]
			v := decoded(t, k.verdicts[i].Payload)
			v.Seq = 1 << 40
			if err := newKey(t).Sign(&v); err != nil {
				t.Fatal(err)
			}
			k.verdicts = append(k.verdicts, bundle.Record{Place: k.verdicts[i].Place + 1, Payload: encode(t, &v)})
			k.seeLog(t)
		}, nil, expectation{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, audittest.Of("whole", audittest.Whole()))
			tt.change(t, k)
			o := k.trust()
			if tt.keys != nil {
				tt.keys(&o)
			}
			report := audited(t, k.pack(t), o)
			found := false
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				if v.Result == audit.Match {
					continue
				}
				if (expectation{v.Result, v.Rule}) != tt.want {
					t.Errorf("found %s", v)
				}
				found = true
			}
			if found != (tt.want != expectation{}) {
				t.Errorf("want %v, got %s", tt.want, findings(report))
			}
		})
	}
}

func decoded(t *testing.T, payload []byte) audit.Verdict {
	t.Helper()
	v, err := audit.DecodeVerdict(payload)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestFindingsStayWithheld withholds the content of requests about which a verifier has found something: that stands.
func TestFindingsStayWithheld(t *testing.T) {
	for name, tt := range map[string]struct {
		withhold []events.Type
		change   func(*audit.Verdict)
	}{
		"mismatch":    {[]events.Type{events.TypeUserMessage}, func(v *audit.Verdict) { v.Result = audit.Mismatch; v.Rebuilt.SHA256[0] ^= 1 }},
		"invalid-log": {[]events.Type{events.TypeAssistantMessage, events.TypeRequestHeader}, func(v *audit.Verdict) { v.Result, v.Rule = audit.InvalidLog, "stream" }},
	} {
		k := newKit(t, audittest.Of("whole", audittest.Whole()))
		k.resign(t, audit.KindRequest, tt.change)
		report := audited(t, k.withheld(t, tt.withhold...), k.trust())
		if got := onlyUnchecked(report); !strings.Contains(got, "request "+name) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s", name, got)
		}
		if report.Confirmed != len(k.verdicts)-1 {
			t.Errorf("%s: %d of %d confirmed", name, report.Confirmed, len(k.verdicts))
		}
	}
}

// TestManyRecords bounds what an audit does with many records of strangers: it is done once for each.
func TestManyRecords(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	key := newKey(t)
	const n = 4000
	for kind, change := range map[string]func(v *audit.Verdict, i int){
		"heads":       func(v *audit.Verdict, _ int) { v.Kind, v.Result = audit.KindHead, audit.Match },
		"one finding": func(v *audit.Verdict, _ int) { v.Kind, v.Result, v.Rule = audit.KindLog, audit.InvalidLog, "x" },
		"many findings": func(v *audit.Verdict, i int) {
			v.Kind, v.Result, v.Rule = audit.KindLog, audit.InvalidLog, fmt.Sprint(i)
		},
	} {
		k.verdicts, k.proofs, k.point = nil, nil, nil
		for i := range n {
			v := audit.Verdict{Session: k.ID, Seq: 2, Time: int64(i), Chain: events.HashPayload([]byte("x"))}
			change(&v, i)
			if err := key.Sign(&v); err != nil {
				t.Fatal(err)
			}
			k.verdicts = append(k.verdicts, bundle.Record{Place: uint64(i + 1), Payload: encode(t, &v)})
		}
		packed := k.pack(t)
		start := time.Now()
		report := audited(t, packed, bundle.Options{})
		t.Logf("%s: %d records: %s, %d verdicts", kind, n, time.Since(start), len(report.Verdicts))
		if report.Verifiers[0].Signed != n || report.Confirmed != 0 || len(report.Verdicts) > 3*n {
			t.Errorf("%s: %+v, %d confirmed, %d verdicts", kind, report.Verifiers, report.Confirmed, len(report.Verdicts))
		}
	}
}
