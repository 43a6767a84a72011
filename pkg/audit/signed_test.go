package audit_test

import (
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestSigned has a verifier sign something else about the session than the check finds. All of it is found, and none of it is
// confirmed.
func TestSigned(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("", audittest.Sample(foldtest.SessionID))
	honest := s.Sign(t.Context(), key)
	first := func(kind audit.Kind) int {
		return slices.IndexFunc(honest, func(v audit.Verdict) bool { return v.Kind == kind })
	}
	request, head := first(audit.KindRequest), first(audit.KindHead)
	changed := func(i int, change func(v *audit.Verdict)) func() []audit.Verdict {
		return func() []audit.Verdict {
			all := slices.Clone(honest)
			change(&all[i])
			if err := key.Sign(&all[i]); err != nil {
				t.Fatal(err)
			}
			return all
		}
	}
	added := func(result audit.Result, rule string, kind audit.Kind) func() []audit.Verdict {
		return func() []audit.Verdict {
			v := honest[head]
			v.Kind, v.Result, v.Rule = kind, result, rule
			if kind == audit.KindStray || kind == audit.KindWire {
				v.Receipt, v.Wire = 7, digestOf("another")
			}
			if err := key.Sign(&v); err != nil {
				t.Fatal(err)
			}
			return append(slices.Clone(honest), v)
		}
	}
	other := digestOf("other")
	for name, tt := range map[string]struct {
		signed func() []audit.Verdict
		result audit.Result
		rule   string
		less   int // not confirmed
	}{
		"a mismatch":                {changed(request, func(v *audit.Verdict) { v.Result = audit.Mismatch }), audit.Mismatch, audit.RuleVerdict, 1},
		"an invalid log":            {changed(request, func(v *audit.Verdict) { v.Result, v.Rule = audit.InvalidLog, "turn" }), audit.Mismatch, audit.RuleVerdict, 1},
		"another recorded body":     {changed(request, func(v *audit.Verdict) { v.Recorded = other }), audit.Mismatch, audit.RuleVerdict, 1},
		"another rebuilt body":      {changed(request, func(v *audit.Verdict) { v.Rebuilt = other }), audit.Mismatch, audit.RuleVerdict, 1},
		"no payload":                {changed(request, func(v *audit.Verdict) { v.Event, v.Chain = "", events.Hash{} }), audit.Mismatch, audit.RuleVerdict, 1},
		"a match of other payloads": {changed(request, func(v *audit.Verdict) { v.Chain[0] ^= 1 }), audit.BrokenChain, audit.RuleSigned, 1},
		"a mismatch of other payloads": {changed(request, func(v *audit.Verdict) {
			v.Chain[0] ^= 1
			v.Result = audit.Mismatch
		}), audit.BrokenChain, audit.RuleSigned, 1},
		"a broken chain": {changed(request, func(v *audit.Verdict) {
			v.Result, v.Rule = audit.BrokenChain, "chain"
		}), audit.Mismatch, audit.RuleVerdict, 1},
		"a broken chain of other payloads": {changed(request, func(v *audit.Verdict) {
			v.Result, v.Rule = audit.BrokenChain, "chain"
			v.Chain[0] ^= 1
		}), audit.BrokenChain, "chain", 1},
		"a broken chain behind the end": {changed(request, func(v *audit.Verdict) {
			v.Seq, v.Result, v.Rule = 1000, audit.BrokenChain, audit.RuleEarlier
		}), audit.BrokenChain, audit.RuleEarlier, 1},
		"a head where none is":   {changed(head, func(v *audit.Verdict) { v.Seq, v.Chain = 2, events.HashPayload(s.Messages[1].Payload) }), audit.Mismatch, audit.RuleVerdict, 1},
		"a head behind the end":  {changed(head, func(v *audit.Verdict) { v.Seq, v.Event, v.Chain = 9999, "", events.Hash{} }), audit.Mismatch, audit.RuleVerdict, 1},
		"a match behind the end": {changed(request, func(v *audit.Verdict) { v.Seq, v.Event, v.Chain = 9999, "", events.Hash{} }), audit.Mismatch, audit.RuleVerdict, 1},
		"another codec":          {changed(request, func(v *audit.Verdict) { v.Codec = "other-chat/1" }), audit.Mismatch, audit.RuleVerdict, 1},
		"another step":           {changed(request, func(v *audit.Verdict) { v.Step++ }), audit.Mismatch, audit.RuleVerdict, 1},
		"another event's ID":     {changed(request, func(v *audit.Verdict) { v.Event = honest[head].Event }), audit.Mismatch, audit.RuleVerdict, 1},
		"a request less":         {func() []audit.Verdict { return slices.Delete(slices.Clone(honest), request, request+1) }, audit.Mismatch, audit.RuleSilent, 1},
		"that the log is gone":   {added(audit.BrokenChain, audit.RuleGone, audit.KindLog), audit.BrokenChain, audit.RuleGone, 0},
		"that it was cold":       {added(audit.Mismatch, audit.RuleCold, audit.KindLog), audit.Mismatch, audit.RuleCold, 0},
		"the second fold":        {added(audit.InvalidLog, audit.RuleShadow, audit.KindLog), audit.InvalidLog, audit.RuleShadow, 0},
		"the lineage":            {added(audit.InvalidLog, audit.RuleLineage, audit.KindLog), audit.InvalidLog, audit.RuleLineage, 0},
		"a stray call":           {added(audit.Mismatch, audit.RuleUnlogged, audit.KindStray), audit.Mismatch, audit.RuleUnlogged, 0},
		"another body that went": {added(audit.Mismatch, audit.RuleWire, audit.KindWire), audit.Mismatch, audit.RuleWire, 0},
	} {
		t.Run(name, func(t *testing.T) {
			signed := tt.signed()
			report := check(t, s, s.Messages, func(c *audit.LogCheck) { c.Prior, c.Trusted = signed, []string{key.Public()} })
			n := 0
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				switch {
				case v.Result == audit.Match:
				case v.Result == tt.result && v.Rule == tt.rule:
					n++
				case v.Rule != audit.RuleSilent: // what stood in the place of the changed one is missing
					t.Errorf("found %s", v)
				}
				if _, err := v.Encode(); err != nil {
					t.Error(err)
				}
			}
			if n != 1 || report.Confirmed != len(honest)-tt.less || report.Matches != report.Requests {
				t.Errorf("found it %d times, confirmed %d of %d, %d of %d requests match", n, report.Confirmed, len(signed), report.Matches, report.Requests)
			}
		})
	}
}

// TestSignedObjects: what a verifier found of objects may have been repaired since, which is no contradiction and no
// confirmation; what it found of the request stands when the objects are gone.
func TestSignedObjects(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("", audittest.Sample(foldtest.SessionID))
	signed := s.Sign(t.Context(), key)
	i := slices.IndexFunc(signed, func(v audit.Verdict) bool { return v.Kind == audit.KindRequest })
	v := &signed[i]
	v.Result, v.Rebuilt = audit.MissingObject, events.BodyDigest{}
	if err := key.Sign(v); err != nil {
		t.Fatal(err)
	}
	report := check(t, s, s.Messages, func(c *audit.LogCheck) { c.Prior = signed })
	if !report.AllMatch() || report.Confirmed != len(signed)-1 {
		t.Errorf("repaired: %v, %d of %d", report.Verdicts, report.Confirmed, len(signed))
	}
	v.Result = audit.Mismatch
	if err := key.Sign(v); err != nil {
		t.Fatal(err)
	}
	report = check(t, s, s.Messages, func(c *audit.LogCheck) {
		c.Prior, c.Objects = signed, audit.FromStore(&audittest.Store{Source: s.Source, Fail: objects.ErrUnavailable})
	})
	stands := slices.ContainsFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Kind == audit.KindRequest && v.Result == audit.Mismatch })
	if unchecked := slices.ContainsFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Result == audit.CouldNotCheck && v.Seq == signed[i].Seq }); unchecked && !stands {
		t.Errorf("no objects: %v", report.Verdicts)
	}
}

// TestPriorPartial compares with one verdict of many: that there are no others says nothing.
func TestPriorPartial(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("", audittest.Sample(foldtest.SessionID))
	signed := s.Sign(t.Context(), key)
	newest := signed[len(signed)-1:]
	if report := check(t, s, s.Messages, func(c *audit.LogCheck) { c.Prior, c.PriorPartial = newest, true }); !report.AllMatch() || report.Confirmed != 1 {
		t.Errorf("%v", report.Verdicts)
	}
	if report := check(t, s, s.Messages, func(c *audit.LogCheck) { c.Prior = newest }); report.AllMatch() {
		t.Error("requests without a verdict, and nothing is said")
	}
}
