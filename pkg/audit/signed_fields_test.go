package audit_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// changed returns a verdict with each other value that a field gets here.
func changed(t *testing.T, v audit.Verdict, field string) []audit.Verdict {
	t.Helper()
	var others []any
	switch value := reflect.ValueOf(v).FieldByName(field).Interface().(type) {
	case audit.Kind:
		others = []any{audit.KindRequest, audit.KindHead, audit.KindLog, audit.KindWire, audit.KindStray}
	case audit.Result:
		for _, r := range audit.Results() {
			others = append(others, r)
		}
	case events.ID:
		others = []any{events.ID(""), foldtest.ID(1, 1)}
	case events.Hash:
		flipped := value
		flipped[7] ^= 1
		others = []any{flipped, events.Hash{}}
	case events.BodyDigest:
		longer, flipped := value, value
		longer.Bytes++
		flipped.SHA256[31] ^= 1
		others = []any{longer, flipped, events.BodyDigest{}}
	case string:
		others = []any{"", value + "x"}
	case uint64:
		others = []any{value + 1, value - 1, uint64(0)}
	case int64:
		others = []any{value + 1, value - 1, int64(0)}
	case bool:
		others = []any{!value}
	default:
		t.Fatalf("%s is a %T: say what else it can be", field, value)
	}
	var out []audit.Verdict
	for _, other := range others {
		c := v
		reflect.ValueOf(&c).Elem().FieldByName(field).Set(reflect.ValueOf(other))
		if !reflect.DeepEqual(c, v) {
			out = append(out, c)
		}
	}
	return out
}

// signedSession is a session with what its verifier has signed about it.
type signedSession struct {
	check  audit.LogCheck
	signed []audit.Verdict
}

// signedSessions are sessions with verdicts of every kind and with every result but those of objects.
func signedSessions(t *testing.T, verifier, witness *audit.Key) map[string]signedSession {
	t.Helper()
	all := make(map[string]audit.LogCheck)
	for _, s := range honest() {
		c := s.LogCheck()
		c.Receipts = s.Receipts(witness)
		all[s.Name] = c
	}
	lies, _ := lying(2, "deepseek-chat/1", func(b []byte) []byte { return append(b, ' ') })
	s := audittest.Of("lying", lies)
	c := s.LogCheck()
	c.Receipts = s.Receipts(witness)
	all[s.Name] = c

	s = audittest.Of("calls", audittest.Sample(foldtest.SessionID))
	c = s.LogCheck()
	c.Receipts = s.Receipts(witness)
	calls := s.Calls()
	add := func(r audit.Receipt) {
		if err := witness.SignReceipt(&r); err != nil {
			t.Fatal(err)
		}
		c.Receipts = append(c.Receipts, audit.PlacedReceipt{Place: uint64(1000 + len(c.Receipts)), Receipt: r})
	}
	c.Receipts = slices.DeleteFunc(c.Receipts, func(p audit.PlacedReceipt) bool {
		return p.Receipt.Seq == calls[1].Seq || p.Receipt.Seq == calls[2].Seq
	})
	add(s.Receipt(calls[1].Seq, digestOf("another body")))               // wire; of the third there is none
	add(s.Receipt(calls[3].Seq, calls[3].Body.(*events.LLMStream).Body)) // repeated
	add(s.Receipt(2, digestOf("no call")))                               // unlogged
	all[s.Name] = c

	out := make(map[string]signedSession)
	for name, c := range all {
		c.Witnesses = []string{witness.Public()}
		report, err := audit.CheckLog(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		signed := report.Verdicts
		for i := range signed {
			if err := verifier.Sign(&signed[i]); err != nil {
				t.Fatal(err)
			}
		}
		c.Trusted = []string{verifier.Public()}
		out[name] = signedSession{c, signed}
	}
	return out
}

// records counts what a report holds beside matches.
func records(r *audit.Report) map[string]int {
	out := make(map[string]int)
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Result != audit.Match {
			out[fmt.Sprintf("%d %s %s %s %d", v.Seq, v.Kind, v.Result, v.Rule, v.Receipt)]++
		}
	}
	return out
}

// notComparable are the fields of a verdict that say what is in no log and no receipt, or for people. docs/format/verdicts.md
// has them, with the reason.
func notComparable(before, after *audit.Verdict, field string) bool {
	switch field {
	case "Time", "Verifier", "Signature":
		return true
	case "Reason":
		return before.Result != audit.Match
	case "Located", "Offset", "Pointer":
		return before.Kind == audit.KindRequest && before.Result == audit.Mismatch
	case "Rebuilt":
		differs := before.Rule == audit.RuleWire && before.Wire == before.Recorded // by the rebuilt body alone
		return before.Kind == audit.KindWire && after.Rebuilt == events.BodyDigest{} && !differs
	}
	return false
}

// TestSignedFields changes each field of each signed verdict, and has the verifier sign it again. A match that is changed is
// found, by a rule that is no match and says more than that something could not be checked. What was a finding before stays one,
// and is not confirmed any more, or another one stands beside it.
func TestSignedFields(t *testing.T) {
	verifier := newKey(t)
	kinds := make(map[audit.Kind]int)
	for name, s := range signedSessions(t, verifier, newKey(t)) {
		check := func(signed []audit.Verdict) *audit.Report {
			c := s.check
			c.Prior = signed
			report, err := audit.CheckLog(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			return report
		}
		before := check(s.signed)
		known := records(before)
		for i, v := range s.signed {
			kinds[v.Kind]++
			for _, field := range reflect.VisibleFields(reflect.TypeFor[audit.Verdict]()) {
				if field.Name == "Signature" || field.Name == "Verifier" {
					continue
				}
				for _, other := range changed(t, v, field.Name) {
					if verifier.Sign(&other) != nil { // no such verdict has a form
						continue
					}
					signed := slices.Clone(s.signed)
					signed[i] = other
					after := check(signed)
					found := records(after)
					maps.DeleteFunc(found, func(what string, n int) bool { return n <= known[what] })
					noticed := len(found) > 0 || after.Confirmed < before.Confirmed && (v.Result != audit.Match || field.Name == "Receipt")
					if noticed == notComparable(&v, &other, field.Name) {
						t.Errorf("%s: %s: %s is %v: %t, found %v, %d of %d confirmed before, %d after", name, &v, field.Name,
							reflect.ValueOf(other).FieldByName(field.Name), noticed, found, before.Confirmed, len(signed), after.Confirmed)
					}
				}
			}
		}
	}
	for _, kind := range []audit.Kind{audit.KindRequest, audit.KindHead, audit.KindWire, audit.KindStray} {
		if kinds[kind] == 0 {
			t.Errorf("no verdict of the kind %s", kind)
		}
	}
}
