package bundle_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

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

// weighed is a file in memory that looks, while it is read, how much memory is in use.
type weighed struct {
	*bytes.Reader

	reads int
	most  uint64 // bytes
}

func (w *weighed) ReadAt(p []byte, off int64) (int, error) {
	const often = 8
	if w.reads++; w.reads%often == 0 {
		w.most = max(w.most, inUse())
	}
	return w.Reader.ReadAt(p, off)
}

// inUse returns how many bytes of memory are reachable.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestManyRecords bounds what an audit does with many records of strangers: it is done once for each, it keeps less of one than a
// kilobyte, and does not list all.
func TestManyRecords(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	key := newKey(t)
	const n = 4000
	signed := func(change func(v *audit.Verdict, i int)) func(i int) {
		return func(i int) {
			v := audit.Verdict{Session: k.ID, Seq: 2, Time: int64(i), Chain: events.HashPayload([]byte("x"))}
			change(&v, i)
			if err := key.Sign(&v); err != nil {
				t.Fatal(err)
			}
			k.verdicts = append(k.verdicts, bundle.Record{Place: uint64(i + 1), Payload: encode(t, &v)})
		}
	}
	long := strings.Repeat("reason ", 50)
	for kind, tt := range map[string]struct {
		add  func(i int)
		rest []string // of what more is said to be there
	}{
		"heads": {signed(func(v *audit.Verdict, _ int) { v.Kind, v.Result = audit.KindHead, audit.Match }), []string{"broken-chain signed"}},
		"heads without a payload": {
			signed(func(v *audit.Verdict, _ int) { v.Kind, v.Result, v.Chain = audit.KindHead, audit.Match, events.Hash{} }), []string{"mismatch verdict"},
		},
		"one finding": {
			signed(func(v *audit.Verdict, _ int) { v.Kind, v.Result, v.Rule = audit.KindLog, audit.InvalidLog, "x" }), []string{"broken-chain signed"},
		},
		"many findings": {signed(func(v *audit.Verdict, i int) {
			v.Kind, v.Result, v.Rule, v.Reason = audit.KindLog, audit.InvalidLog, fmt.Sprint(i), long
		}), []string{"broken-chain signed", "invalid-log verdict"}},
		"no verdicts": {func(i int) {
			k.verdicts = append(k.verdicts, bundle.Record{Place: uint64(i + 1), Payload: []byte(long)})
		}, []string{"mismatch verdict"}},
		"no receipts": {func(i int) {
			k.receipts = append(k.receipts, bundle.Record{Place: uint64(i + 1), Payload: []byte(long)})
		}, []string{"mismatch receipt"}},
		"strays": {func(i int) {
			r := k.Receipt(9999, events.BodyDigest{Bytes: int64(i + 1), SHA256: events.HashPayload(nil)})
			if err := key.SignReceipt(&r); err != nil {
				t.Fatal(err)
			}
			payload, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			k.receipts = append(k.receipts, bundle.Record{Place: uint64(i + 1), Payload: payload})
		}, []string{"mismatch unlogged"}},
	} {
		k.verdicts, k.receipts, k.proofs, k.point = nil, nil, nil, nil
		for i := range n {
			tt.add(i)
		}
		packed := k.pack(t)
		before := inUse()
		file := &weighed{Reader: bytes.NewReader(packed)}
		r, err := bundle.NewReader(file, int64(len(packed)))
		if err != nil {
			t.Fatal(err)
		}
		report, err := bundle.Check(t.Context(), r, bundle.Options{})
		if err != nil {
			t.Fatal(err)
		}
		const fixed, each = 2 << 20, 1 << 10 // bytes
		if used := int64(file.most) - int64(before); used > fixed+n*each {
			t.Errorf("%s: %d bytes for %d records", kind, used, n)
		} else {
			t.Logf("%s: %d bytes for %d records", kind, used, n)
		}
		var rest []string
		for i := range report.Verdicts {
			if v := &report.Verdicts[i]; strings.Contains(v.Reason, "more records like") {
				rest = append(rest, fmt.Sprintf("%s %s", v.Result, v.Rule))
			}
		}
		slices.Sort(rest)
		if !slices.Equal(rest, tt.rest) || len(report.Verdicts) > (audit.MaxListed+1)*len(rest)+50 || report.Confirmed != 0 {
			t.Errorf("%s: more of %q, want %q; %d verdicts, %d confirmed", kind, rest, tt.rest, len(report.Verdicts), report.Confirmed)
		}
	}
}
