package verify

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// TestMovedSays: a finding that is said at the event of another verdict can be encoded, keeps the order, and is known for what
// it says when it is found again.
func TestMovedSays(t *testing.T) {
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	hash := func(t *rapid.T, name string) events.Hash {
		if rapid.Bool().Draw(t, name+" is there") {
			return events.HashPayload([]byte(rapid.StringN(0, 2, 2).Draw(t, name)))
		}
		return events.Hash{}
	}
	const session = events.ID("01JZZZZZZZ0000000000000001")
	rapid.Check(t, func(t *rapid.T) {
		found := &audit.Verdict{
			Kind: rapid.SampledFrom([]audit.Kind{audit.KindRequest, audit.KindLog}).Draw(t, "kind"), Session: session,
			Seq:   rapid.Uint64Range(1, 9).Draw(t, "seq"),
			Chain: hash(t, "found"),
			Result: rapid.SampledFrom([]audit.Result{
				audit.Mismatch, audit.MissingObject, audit.CorruptObject, audit.InvalidLog, audit.UnknownCodec, audit.BrokenChain,
			}).Draw(t, "result"),
			Rule:   rapid.SampledFrom([]string{"", audit.RuleSequence, audit.RuleID, audit.RuleCold, audit.RuleShadow, audit.RuleLineage}).Draw(t, "rule"),
			Reason: audit.Reason(rapid.StringN(0, 1100, -1).Draw(t, "reason")),
			Turn:   1, Codec: "c",
		}
		newest := &audit.Verdict{
			Kind: audit.KindHead, Session: session, Seq: rapid.Uint64Range(found.Seq, 20).Draw(t, "newest"), Chain: hash(t, "newest"), Result: audit.Match,
		}
		v := moved(found, newest)
		if err := key.Sign(v); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Encode(); err != nil {
			t.Fatal(err)
		}
		if v.Kind != audit.KindLog || v.Seq != newest.Seq || v.Result != found.Result || v.Rule != found.Rule {
			t.Fatalf("moved to %s", v)
		}
		if !says(v, found) {
			t.Fatalf("%s is not known for %s", v, found)
		}
		p := position{place: 1, verdict: *newest}
		if found.Seq < newest.Seq && p.before(found.Seq, found.Kind) {
			t.Fatal("the order is lost")
		}
		other := *found
		other.Seq += 100
		if !once(found.Rule) && found.Rule != audit.RuleCold && says(v, &other) {
			t.Fatalf("%s is taken for %s", v, &other)
		}
	})
}
