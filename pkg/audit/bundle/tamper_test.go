package bundle_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// resign changes the first verdict of the kind and has the verifier sign what it says then.
func (k *kit) resign(t testing.TB, kind audit.Kind, change func(*audit.Verdict)) {
	t.Helper()
	i := k.find(t, kind)
	v, err := audit.DecodeVerdict(k.verdicts[i].Payload)
	if err != nil {
		t.Fatal(err)
	}
	change(&v)
	if err := k.verifier.Sign(&v); err != nil {
		t.Fatal(err)
	}
	k.verdicts[i].Payload = encode(t, &v)
	k.proofs, k.point = nil, nil
	k.seeLog(t)
}

// signCalls has the verifier sign the verdicts on the calls that the witness has seen as well.
func (k *kit) signCalls(t testing.TB) {
	t.Helper()
	place := k.verdicts[len(k.verdicts)-1].Place
	for _, v := range audited(t, k.pack(t), k.trust()).Verdicts {
		if v.Kind != audit.KindWire {
			continue
		}
		if err := k.verifier.Sign(&v); err != nil {
			t.Fatal(err)
		}
		place++
		k.verdicts = append(k.verdicts, bundle.Record{Place: place, Payload: encode(t, &v)})
	}
	k.seeLog(t)
}

// find returns the index of the first verdict of the kind.
func (k *kit) find(t testing.TB, kind audit.Kind) int {
	t.Helper()
	for i, r := range k.verdicts {
		if bytes.Contains(r.Payload, []byte(`"kind":"`+string(kind)+`"`)) {
			return i
		}
	}
	t.Fatal("no such verdict")
	return 0
}

// receipt changes the first receipt and has the witness sign what it says then.
func (k *kit) receipt(t testing.TB, change func(*audit.Receipt)) {
	t.Helper()
	r, err := audit.DecodeReceipt(k.receipts[0].Payload)
	if err != nil {
		t.Fatal(err)
	}
	change(&r)
	if err := k.witness.SignReceipt(&r); err != nil {
		t.Fatal(err)
	}
	if k.receipts[0].Payload, err = r.Encode(); err != nil {
		t.Fatal(err)
	}
}

// lastObject is an object that the log names and that is in the store.
func (k *kit) lastObject(t testing.TB) objects.Ref {
	t.Helper()
	if len(k.Refs) == 0 {
		t.Fatal("no objects")
	}
	return k.Refs[len(k.Refs)-1]
}

// TestTampered changes what goes into a bundle as somebody would who can write all of it and has some of the keys. Each change
// is found by the rule that is named, as a finding unless the result says otherwise.
func TestTampered(t *testing.T) {
	digest := events.BodyDigest{Bytes: 3, SHA256: events.HashPayload([]byte("abc"))}
	for name, tt := range map[string]struct {
		change func(t *testing.T, k *kit)
		rule   string
		result audit.Result
	}{
		"a message less":       {func(_ *testing.T, k *kit) { k.Messages = append(k.Messages[:5:5], k.Messages[6:]...) }, audit.RuleSequence, audit.BrokenChain},
		"the log is cut":       {func(_ *testing.T, k *kit) { k.Messages = k.Messages[:len(k.Messages)-1] }, audit.RuleSequence, audit.BrokenChain},
		"and says so":          {func(_ *testing.T, k *kit) { k.Messages = k.Messages[:len(k.Messages)-1]; k.manifest.Last-- }, audit.RuleSigned, audit.BrokenChain},
		"an object is missing": {func(t *testing.T, k *kit) { k.skip[k.lastObject(t).Digest] = true }, "", audit.MissingObject},
		"an object is another": {func(t *testing.T, k *kit) {
			d := k.lastObject(t).Digest
			data, _ := k.Source.Bytes(d)
			k.bytes[d] = flip(data, 0)
		}, "", audit.CorruptObject},
		"an object is longer": {func(t *testing.T, k *kit) {
			d := k.lastObject(t).Digest
			data, _ := k.Source.Bytes(d)
			k.bytes[d] = append(bytes.Clone(data), 0)
		}, "", audit.CorruptObject},
		"a forged verdict": {func(t *testing.T, k *kit) {
			r := &k.verdicts[k.find(t, audit.KindRequest)]
			r.Payload = bytes.Replace(r.Payload, []byte(`"time":0`), []byte(`"time":1`), 1)
		}, bundle.RuleVerdict, audit.Mismatch},
		"no verdict": {func(_ *testing.T, k *kit) { k.verdicts[0].Payload = []byte("no verdict") }, bundle.RuleVerdict, audit.Mismatch},
		"another session's verdict": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindHead, func(v *audit.Verdict) { v.Session = foldtest.ID(1, 1) })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict says mismatch": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Result = audit.Mismatch })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict says that the log is broken": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Result, v.Rule = audit.InvalidLog, "turn" })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict of another recorded body": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Recorded = digest })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict of another rebuilt body": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Rebuilt = digest })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a match without a body": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Rebuilt = events.BodyDigest{} })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict on no request": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Seq, v.Chain = 2, events.HashPayload(k.Messages[1].Payload) })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a head where no turn ends": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindHead, func(v *audit.Verdict) { v.Seq, v.Chain = 2, events.HashPayload(k.Messages[1].Payload) })
		}, bundle.RuleVerdict, audit.Mismatch},
		"a verdict of another log": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindHead, func(v *audit.Verdict) { v.Chain[0] ^= 1 })
		}, audit.RuleSigned, audit.BrokenChain},
		"a finding of the verifier": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindHead, func(v *audit.Verdict) { v.Kind, v.Result, v.Rule = audit.KindLog, audit.BrokenChain, audit.RuleGone })
		}, audit.RuleGone, audit.BrokenChain},
		"a broken chain, and the log is another now": {func(t *testing.T, k *kit) {
			k.resign(t, audit.KindRequest, func(v *audit.Verdict) {
				v.Result, v.Rule, v.Rebuilt = audit.BrokenChain, "chain", events.BodyDigest{}
				v.Chain[0] ^= 1
			})
		}, "chain", audit.BrokenChain},
		"a verdict less": {func(t *testing.T, k *kit) {
			i := k.find(t, audit.KindRequest)
			k.verdicts = append(k.verdicts[:i:i], k.verdicts[i+1:]...)
			k.proofs = append(k.proofs[:i:i], k.proofs[i+1:]...)
		}, audit.RuleSilent, audit.Mismatch},
		"and its proof stays": {func(t *testing.T, k *kit) {
			i := k.find(t, audit.KindRequest)
			k.verdicts = append(k.verdicts[:i:i], k.verdicts[i+1:]...)
		}, bundle.RuleInclusion, audit.Mismatch},
		"another body passed": {func(t *testing.T, k *kit) {
			k.receipt(t, func(r *audit.Receipt) { r.Body = digest })
		}, audit.RuleWire, audit.Mismatch},
		"a receipt less": {func(_ *testing.T, k *kit) { k.receipts = k.receipts[1:] }, audit.RuleUnwitnessed, audit.Mismatch},
		"a call that the log does not permit": {func(t *testing.T, k *kit) {
			k.receipt(t, func(r *audit.Receipt) { r.Seq = 2 })
		}, audit.RuleUnlogged, audit.Mismatch},
		"another session's receipt": {func(t *testing.T, k *kit) {
			k.receipt(t, func(r *audit.Receipt) { r.Session = foldtest.ID(1, 1) })
		}, bundle.RuleReceipt, audit.Mismatch},
		"a forged receipt": {func(_ *testing.T, k *kit) {
			k.receipts[0].Payload = bytes.Replace(k.receipts[0].Payload, []byte(`"POST"`), []byte(`"PUTT"`), 1)
		}, bundle.RuleReceipt, audit.Mismatch},
		"no receipt": {func(_ *testing.T, k *kit) { k.receipts[0].Payload = []byte("{}") }, bundle.RuleReceipt, audit.Mismatch},
		"another root": {func(_ *testing.T, k *kit) {
			lines := bytes.Split(k.point, []byte("\n"))
			lines[2] = []byte(tlog.LeafHash(nil).String())
			k.point = bytes.Join(lines, []byte("\n"))
		}, bundle.RuleInclusion, audit.Mismatch},
		"a forged checkpoint": {func(_ *testing.T, k *kit) {
			k.point = bytes.Replace(k.point, []byte("\n"), []byte(".evil\n"), 1)
		}, bundle.RuleCheckpoint, audit.Mismatch},
		"no checkpoint":       {func(_ *testing.T, k *kit) { k.point = []byte("no checkpoint") }, bundle.RuleCheckpoint, audit.Mismatch},
		"an empty checkpoint": {func(_ *testing.T, k *kit) { k.point = []byte{} }, bundle.RuleCheckpoint, audit.Mismatch},
		"a checkpoint less":   {func(_ *testing.T, k *kit) { k.point, k.proofs = nil, nil }, bundle.RuleCheckpoint, audit.CouldNotCheck},
		"a proof of another": {func(_ *testing.T, k *kit) {
			k.proofs[0].Hashes, k.proofs[1].Hashes = k.proofs[1].Hashes, k.proofs[0].Hashes
		}, bundle.RuleInclusion, audit.Mismatch},
		"a proof less":   {func(_ *testing.T, k *kit) { k.proofs = k.proofs[1:] }, bundle.RuleInclusion, audit.CouldNotCheck},
		"an empty proof": {func(_ *testing.T, k *kit) { k.proofs[0].Hashes = nil }, bundle.RuleInclusion, audit.Mismatch},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, audittest.Of("whole", audittest.Whole()))
			tt.change(t, k)
			report := audited(t, k.pack(t), k.trust())
			for i := range report.Verdicts {
				if v := &report.Verdicts[i]; v.Rule == tt.rule && v.Result == tt.result {
					return
				}
			}
			t.Errorf("want %s %q, got\n%s", tt.result, tt.rule, findings(report))
		})
	}
}

// TestReceiptsLeftOut takes the receipts away that signed verdicts on calls name. An auditor who names no witness cannot say more
// than that they are not there.
func TestReceiptsLeftOut(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	k.signCalls(t)
	receipts := k.receipts
	verifier := bundle.Options{Trusted: []string{k.verifier.Public()}}
	calls := len(receipts)
	for name, tt := range map[string]struct {
		options  bundle.Options
		receipts []bundle.Record
		want     map[string]int
		less     int // verdicts that are not confirmed: where receipts are looked at, those without theirs
	}{
		"all there":                 {k.trust(), receipts, nil, 0},
		"all there, nobody trusted": {bundle.Options{}, receipts, nil, 0},
		"nobody trusted":            {bundle.Options{}, nil, map[string]int{"could-not-check receipt": calls}, 0},
		"a verifier trusted":        {verifier, nil, map[string]int{"could-not-check receipt": calls}, 0},
		"one is left":               {verifier, receipts[:1], map[string]int{"could-not-check receipt": calls - 1}, calls - 1},
		"a witness trusted": {k.trust(), nil, map[string]int{
			"could-not-check receipt": calls, "mismatch unwitnessed": calls - 1, // one call was not answered
		}, calls},
		"another witness trusted": {bundle.Options{Witnesses: []string{newKey(t).Public()}}, receipts, map[string]int{
			"could-not-check receipt": calls, "mismatch unwitnessed": calls - 1,
		}, calls},
	} {
		k.receipts = tt.receipts
		report := audited(t, k.pack(t), tt.options)
		got := make(map[string]int)
		for i := range report.Verdicts {
			if v := &report.Verdicts[i]; v.Result != audit.Match {
				got[fmt.Sprintf("%s %s", v.Result, v.Rule)]++
			}
		}
		if !maps.Equal(got, tt.want) || report.Confirmed != len(k.verdicts)-tt.less {
			t.Errorf("%s: %d of %d confirmed, found %v, want %v", name, report.Confirmed, len(k.verdicts), got, tt.want)
		}
	}
}

// TestUntrusted signs with a key that the auditor does not trust: it is neither believed nor held against the log, and does not
// stand for the verdict of somebody who is.
func TestUntrusted(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	trusted := k.verifier
	k.verifier = newKey(t)
	k.resign(t, audit.KindRequest, func(v *audit.Verdict) { v.Result = audit.Mismatch })
	k.verifier = trusted
	report := audited(t, k.pack(t), k.trust())
	if got := findings(report); !strings.Contains(got, "log could-not-check silent") || strings.Count(got, "\n") != 1 || report.Ignored != 1 || len(report.Verifiers) != 2 {
		t.Errorf("%d ignored, verifiers %+v\n%s", report.Ignored, report.Verifiers, got)
	}
	if got := findings(audited(t, k.pack(t), bundle.Options{})); !strings.Contains(got, "says request mismatch: the log says match") {
		t.Errorf("without a list: %s", got)
	}
}

// edit changes the content of the first entry with the prefix that holds text, and its size.
func edit(t *testing.T, files []file, prefix, text string, change func(string) string) []byte {
	t.Helper()
	out := with(files, "none", nil)
	for i := range out {
		f := &out[i]
		if !strings.HasPrefix(f.name, prefix) || !bytes.Contains(f.content, []byte(text)) {
			continue
		}
		var size int
		if _, err := fmt.Sscanf(string(f.header[124:135]), "%o", &size); err != nil {
			t.Fatal(err)
		}
		content := change(string(f.content[:size]))
		f.content = make([]byte, (len(content)+block-1)/block*block)
		copy(f.content, content)
		field(124, fmt.Sprintf("%011o", len(content)))(f)
		return join(out)
	}
	t.Fatalf("no %s with %q", prefix, text)
	return nil
}

// TestWithheldTampered changes what stands for withheld content.
func TestWithheldTampered(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	outline := split(t, k.withheld(t, events.TypeUserMessage))
	opaque := split(t, k.withheld(t, events.TypeAssistantMessage))
	swap := func(old, with string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, with, 1) }
	}
	zeros := strings.Repeat("0", 64)
	other := func(s string) string { // another commitment
		_, rest, _ := strings.Cut(s, " ")
		kind, rest, _ := strings.Cut(rest, " ")
		return "withheld " + kind + " " + zeros + rest[64:]
	}
	for name, tt := range map[string]struct {
		file   []byte
		rule   string
		result audit.Result
	}{
		"another commitment":   {edit(t, outline, "log/", "withheld structure", other), "chain", audit.BrokenChain},
		"a text that is shown": {edit(t, outline, "log/", `"text":"withheld:sha256:`, swap(`"text":"withheld:sha256:`, `"text":"instead:sha256:`)), audit.RulePayload, audit.InvalidLog},
		"a length with a zero": {edit(t, outline, "log/", `"text":"withheld:sha256:`, func(s string) string {
			i := strings.Index(s, `"text":"withheld:sha256:`) + len(`"text":"withheld:sha256:`) + len(zeros) + 1
			return s[:i] + "0" + s[i:]
		}), audit.RulePayload, audit.InvalidLog},
		"a length of nothing": {edit(t, outline, "log/", "withheld structure", func(s string) string {
			i := strings.Index(s, "\n")
			return s[:strings.LastIndex(s[:i], " ")] + " 0" + s[i:]
		}), audit.RulePayload, audit.InvalidLog},
		"another type":                      {edit(t, outline, "log/", "session/created", func(s string) string { return "withheld structure " + zeros + " 12\n" + s }), audit.RulePayload, audit.InvalidLog},
		"structure for envelope":            {edit(t, opaque, "log/", "withheld envelope", swap("envelope", "structure")), audit.RulePayload, audit.InvalidLog},
		"envelope for structure":            {edit(t, outline, "log/", "withheld structure", swap("structure", "envelope")), audit.RulePayload, audit.InvalidLog},
		"another commitment of an envelope": {edit(t, opaque, "log/", "withheld envelope", other), "chain", audit.BrokenChain},
		"another prev":                      {edit(t, opaque, "log/", "withheld envelope", func(s string) string { i := strings.Index(s, `"prev":"`) + 8; return s[:i] + zeros + s[i+64:] }), "chain", audit.BrokenChain},
		"another type's envelope": {edit(t, opaque, "log/", "withheld envelope", func(s string) string {
			return strings.ReplaceAll(strings.ReplaceAll(s, "assistant/chunk", "session/closed"), "assistant.chunk", "session.closed")
		}), audit.RulePayload, audit.InvalidLog},
		"another id":         {edit(t, opaque, "log/", "withheld envelope", swap(`"id":"0`, `"id":"1`)), audit.RulePayload, audit.InvalidLog},
		"a long envelope":    {edit(t, opaque, "log/", "withheld envelope", func(s string) string { return s + strings.Repeat(" ", 2000) }), audit.RulePayload, audit.InvalidLog},
		"a space in it":      {edit(t, opaque, "log/", "withheld envelope", swap(`"v":1`, `"v": 1`)), audit.RulePayload, audit.InvalidLog},
		"an event behind it": {edit(t, opaque, "log/", `"type":"step/end"`, swap(`"time":1`, `"time":2`)), "chain", audit.BrokenChain},
	} {
		t.Run(name, func(t *testing.T) {
			report := audited(t, tt.file, k.trust())
			for i := range report.Verdicts {
				if v := &report.Verdicts[i]; v.Rule == tt.rule && v.Result == tt.result {
					return
				}
			}
			t.Errorf("want %s %q, got\n%s", tt.result, tt.rule, findings(report))
		})
	}
	r, err := open(edit(t, outline, "bundle.json", "withheld", swap(`,"withheld":["user/message"]`, "")))
	if err == nil {
		_, err = bundle.Check(t.Context(), r, bundle.Options{})
	}
	if err == nil || !strings.Contains(err.Error(), "nothing that is withheld") {
		t.Errorf("withheld content that the manifest does not name: %v", err)
	}
}
