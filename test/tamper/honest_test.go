package tamper_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestHonest audits generated honest sessions with everything that happens in them until 5,000 requests were checked, or as many
// as REFOLD_HONEST says, and wants no finding: warm and cold, beside what verifiers and witnesses have signed, with an
// object store that does not always answer, by checkers that begin anywhere, and of one in ten the bundle. REFOLD_HONEST_SEED makes others.
func TestHonest(t *testing.T) {
	n, seed := number(t, "REFOLD_HONEST", short(5000)), number(t, "REFOLD_HONEST_SEED", 1)
	k := newKeys(t)
	d := rand.New(rand.NewPCG(uint64(seed), 1))
	log := &dice{keys: k, log: newLog(t)}
	requests, calls, verdicts, sessions := 0, 0, 0, 0
	seen := make(map[events.Type]int)
	for ; requests < n && !t.Failed(); sessions++ {
		l := generate(seed<<32 + sessions)
		s := audittest.Of("generated "+strconv.Itoa(seed<<32+sessions), l)
		for i := range s.Events {
			seen[s.Events[i].Type()]++
		}
		h := &honest{Session: s, keys: k, dice: d}
		h.witnessed()
		first := h.check(t, false)
		if !first.AllMatch() {
			t.Errorf("%s: %v", s.Name, findingsOf(first))
		}
		h.sign(first)
		again := h.check(t, true)
		if !again.AllMatch() || again.Confirmed != len(h.signed) || again.Requests != first.Requests || again.Calls != first.Calls ||
			len(again.Silent) != 0 || again.Ignored != 0 || again.Unheard != 0 {
			t.Errorf("%s: again: %v, %+v", s.Name, findingsOf(again), again)
		}
		h.anywhere(t, first)
		if sessions%10 == 0 {
			b := newBase(t, s, l, k)
			packed := b.bundle(log)
			if report, err := audited(t.Context(), packed.file, packed.options); err != nil || !report.AllMatch() || report.Requests != first.Requests {
				t.Errorf("%s: as a bundle: %v, %+v", s.Name, err, report)
			}
		}
		requests, calls, verdicts = requests+first.Requests, calls+first.Calls, verdicts+len(h.signed)
	}
	if t.Failed() {
		return
	}
	for _, typ := range []events.Type{
		events.TypeLLMFailed, events.TypeLLMRetry, events.TypeTurnCancelled, events.TypeCompactionEnd, events.TypeSessionEndSeed,
		events.TypeRequestImages, events.TypeCompactionPrune, events.TypeSessionTitle, events.TypeSessionClosed,
	} {
		if seen[typ] == 0 {
			t.Errorf("no session has a %s", typ)
		}
	}
	t.Logf("%d sessions, %d requests, %d calls with receipts, %d signed verdicts: no finding", sessions, requests, calls, verdicts)
}

// honest is a session in which nothing is wrong.
type honest struct {
	*audittest.Session

	keys   keys
	dice   *rand.Rand
	passed []audit.PlacedReceipt
	signed []audit.Verdict
}

// check checks the session in one go, cold or warm. With signed, the rest of what was signed is there too.
func (h *honest) check(t *testing.T, signed bool) *audit.Report {
	t.Helper()
	c := h.LogCheck()
	c.Receipts, c.Witnesses, c.Cold = h.passed, []string{h.keys.witness.Public()}, h.dice.IntN(2) == 0
	if signed {
		c.Prior, c.Trusted = h.signed, []string{h.keys.verifier.Public()}
	}
	report, err := audit.CheckLog(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// witnessed keeps what the witness saw: all calls, but for some of those that failed before anything came, which may have
// been refused on the way.
func (h *honest) witnessed() {
	h.passed = slices.DeleteFunc(h.Receipts(h.keys.witness), func(p audit.PlacedReceipt) bool {
		return p.Receipt.Seq > 0 && !h.Answered(p.Receipt.Seq) && h.dice.IntN(2) == 0
	})
}

func (h *honest) sign(report *audit.Report) {
	h.signed = slices.Clone(report.Verdicts)
	for i := range h.signed {
		signVerdict(h.keys.verifier, &h.signed[i])
	}
}

// anywhere has a checker that was not there before go on behind some event, as after a restart, and another one after
// that. Together they say what one check of the whole says, whether or not the objects are there at the first try.
func (h *honest) anywhere(t *testing.T, whole *audit.Report) {
	t.Helper()
	var want, got []audit.Verdict
	for _, v := range whole.Verdicts {
		if v.Kind == audit.KindRequest || v.Kind == audit.KindHead {
			want = append(want, v)
		}
	}
	n := len(h.Messages)
	split := h.dice.IntN(n + 1)
	for _, part := range [][2]int{{0, split}, {split, n}} {
		store := &audittest.Store{Source: h.Source}
		c := audit.NewChecker(audit.CheckerConfig{
			Session: h.ID, Objects: audit.FromStore(store), Quiet: uint64(part[0]), Cold: h.dice.IntN(2) == 0,
		})
		for i := range h.Messages[:part[1]] {
			if h.dice.IntN(4) == 0 {
				store.Fail = objects.ErrUnavailable
			}
			v, err := c.Apply(context.Background(), h.Messages[i])
			for store.Fail = nil; errors.Is(err, audit.ErrCouldNotCheck); {
				v, err = c.Apply(context.Background(), h.Messages[i])
			}
			if err != nil {
				t.Fatalf("%s: %v", h.Name, err)
			}
			if v != nil {
				got = append(got, *v)
			}
		}
	}
	same := slices.EqualFunc(got, want, func(a, b audit.Verdict) bool {
		return a.Kind == b.Kind && a.Seq == b.Seq && a.Result == b.Result && a.Chain == b.Chain && a.Rebuilt == b.Rebuilt && a.Recorded == b.Recorded
	})
	if !same {
		t.Errorf("%s: in two parts, from %d on: %v, want %v", h.Name, split, got, want)
	}
}
