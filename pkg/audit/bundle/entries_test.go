package bundle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestLast states another last event than the log has.
func TestLast(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	n := uint64(len(k.Messages))
	for last := range n + 3 {
		if last == n {
			continue
		}
		k.manifest.Last = last
		want := fmt.Sprintf("%d log broken-chain sequence: ", min(last, n)+1)
		if got := findings(audited(t, k.pack(t), k.trust())); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("last %d of %d: %q, want %q", last, n, got, want)
		}
	}
}

// TestKeysOfTheEnd changes the lists of keys in the end of a bundle: they are those that the records name.
func TestKeysOfTheEnd(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	files := split(t, k.pack(t))
	for list, rule := range map[string]string{"verifiers": bundle.RuleVerdict, "witnesses": bundle.RuleReceipt} {
		key, other := k.verifier.Public(), newKey(t).Public()
		if list == "witnesses" {
			key = k.witness.Public()
		}
		both := []string{key, other}
		slices.Sort(both)
		was := fmt.Sprintf(`"%s":["%s"]`, list, key)
		for name, tt := range map[string]struct {
			is    string
			wrong []string // the keys that are not as they should be
		}{
			"left out":     {"", []string{key}},
			"another":      {fmt.Sprintf(`"%s":["%s"]`, list, other), []string{other, key}},
			"one too many": {fmt.Sprintf(`"%s":["%s","%s"]`, list, both[0], both[1]), []string{other}},
		} {
			file := edit(t, files, "end.json", was, func(s string) string {
				return strings.Replace(strings.Replace(s, was, tt.is, 1), ",,", ",", 1)
			})
			report := audited(t, file, k.trust())
			var got []string
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				if v.Result == audit.Match {
					continue
				}
				if v.Kind != audit.KindLog || v.Seq != 1 || v.Result != audit.Mismatch || v.Rule != rule {
					t.Errorf("%s: %s: found %s", list, name, v)
				}
				for _, key := range tt.wrong {
					if strings.Contains(v.Reason, key) {
						got = append(got, key)
					}
				}
			}
			if !slices.Equal(got, tt.wrong) {
				t.Errorf("%s: %s: found %v, want %v", list, name, got, tt.wrong)
			}
		}
	}
}

// TestManyKeys: of more keys than an end names it names the first ones.
func TestManyKeys(t *testing.T) {
	const most = 64
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	first := []string{k.verifier.Public()}
	for i := range most + 6 {
		v := decoded(t, k.verdicts[0].Payload)
		key := newKey(t)
		if err := key.Sign(&v); err != nil {
			t.Fatal(err)
		}
		k.verdicts = append(k.verdicts, bundle.Record{Place: 1 << 20 * uint64(i+1), Payload: encode(t, &v)})
		if len(first) < most {
			first = append(first, key.Public())
		}
	}
	k.point, k.proofs = nil, nil
	slices.Sort(first)
	report := audited(t, k.pack(t), bundle.Options{})
	if got := findings(report); got != "" || !slices.Equal(report.End.Verifiers, first) || len(report.Verifiers) != most+7 {
		t.Errorf("%d of %d keys: %v\n%s", len(report.End.Verifiers), len(report.Verifiers), report.End.Verifiers, got)
	}
}

// TestObjectsThatNothingNames: they are hashed like all others, and counted.
func TestObjectsThatNothingNames(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	if report := audited(t, k.pack(t), k.trust()); report.Unnamed != 0 || report.End.Objects == 0 {
		t.Fatalf("%d of %d objects are named by nothing", report.Unnamed, report.End.Objects)
	}
	honest := []byte("what nobody named")
	k.extra = map[objects.Digest][]byte{objects.Sum(honest): honest}
	if report := audited(t, k.pack(t), k.trust()); findings(report) != "" || report.Unnamed != 1 {
		t.Errorf("%d, %s", report.Unnamed, findings(report))
	}
	for _, data := range []string{"", "what somebody else named", "what nobody nameD"} {
		k.extra[objects.Sum(honest)] = []byte(data)
		want := fmt.Sprintf("1 log corrupt-object : the object %s has the SHA-256 %s\n", objects.Sum(honest), objects.Sum([]byte(data)))
		if report := audited(t, k.pack(t), k.trust()); findings(report) != want || report.Unnamed != 1 {
			t.Errorf("%q: %d, %s, want %s", data, report.Unnamed, findings(report), want)
		}
	}
}

// TestObjectsOfWithheldContent: an object that only withheld content names is named by nothing that the bundle shows.
func TestObjectsOfWithheldContent(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	image := []byte("a screen shot")
	k.extra = map[objects.Digest][]byte{objects.Sum(image): image}
	report := audited(t, k.withheld(t, events.TypeUserMessage, events.TypeToolResult), k.trust())
	if got := onlyUnchecked(report); got != "" || report.Unnamed != 1 {
		t.Errorf("%d, %s", report.Unnamed, got)
	}
}
