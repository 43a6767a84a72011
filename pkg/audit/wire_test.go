package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func digestOf(s string) events.BodyDigest {
	return events.BodyDigest{Bytes: int64(len(s)), SHA256: events.HashPayload([]byte(s))}
}

// witnessed checks the session with the receipts and the key of a witness.
func witnessed(t *testing.T, s *audittest.Session, receipts []audit.PlacedReceipt, witnesses ...string) *audit.Report {
	t.Helper()
	check := s.LogCheck()
	check.Receipts, check.Witnesses = receipts, witnesses
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Verdicts {
		if _, err := report.Verdicts[i].Encode(); err != nil {
			t.Errorf("%s: %v", &report.Verdicts[i], err)
		}
	}
	return report
}

// findings returns what a report holds beside matches.
func findings(r *audit.Report) string {
	var out []string
	for _, v := range r.Verdicts {
		if v.Result != audit.Match {
			out = append(out, fmt.Sprintf("%d %s %s %s", v.Seq, v.Kind, v.Result, v.Rule))
		}
	}
	return strings.Join(out, ", ")
}

func honest() []*audittest.Session {
	_, fork := audittest.Forked()
	return []*audittest.Session{
		audittest.Of("sample", audittest.Sample(foldtest.SessionID)), audittest.Of("whole", audittest.Whole()), audittest.Of("fork", fork),
	}
}

// TestHonestCalls compares what passed a witness with logs that hold auxiliary calls, failures, a takeover and copies.
func TestHonestCalls(t *testing.T) {
	key := newKey(t)
	for _, s := range honest() {
		receipts := s.Receipts(key)
		slices.Reverse(receipts) // their places tell the order
		for _, witnesses := range [][]string{nil, {key.Public()}, {newKey(t).Public(), key.Public()}} {
			r := witnessed(t, s, receipts, witnesses...)
			if n := len(s.Calls()); !r.AllMatch() || r.Calls != n || r.Passed != n || n == 0 {
				t.Errorf("%s: %d calls, %d of %d passed: %s", s.Name, len(s.Calls()), r.Passed, r.Calls, findings(r))
			}
			for _, v := range r.Verdicts {
				if v.Kind == audit.KindWire && (v.Wire != v.Recorded || v.Wire != v.Rebuilt || v.Receipt == 0 || v.Chain == events.Hash{} || v.Event == "" || v.Attempt == 0) {
					t.Errorf("%s: %+v", s.Name, v)
				}
			}
		}
		if r := witnessed(t, s, nil); r.Calls != 0 || !r.AllMatch() {
			t.Errorf("%s: without a witness: %s", s.Name, findings(r))
		}
		if r := witnessed(t, s, receipts, newKey(t).Public()); r.Unheard != len(receipts) || r.Passed != 0 {
			t.Errorf("%s: receipts of somebody else: %d", s.Name, r.Unheard)
		}
	}
}

// TestHeadBehindCalls: the head of a turn stands behind the wire verdicts of its calls.
func TestHeadBehindCalls(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("", audittest.Whole())
	var last uint64
	for _, v := range witnessed(t, s, s.Receipts(key), key.Public()).Verdicts {
		if v.Kind == audit.KindWire && v.Seq < last {
			t.Errorf("%s stands behind the head of event %d", &v, last)
		}
		if v.Kind == audit.KindHead {
			last = v.Seq
		}
	}
}

// TestReceiptsMissing takes every receipt away, one at a time.
func TestReceiptsMissing(t *testing.T) {
	key := newKey(t)
	for _, s := range honest() {
		all := s.Receipts(key)
		for i, p := range all {
			rest := slices.Delete(slices.Clone(all), i, i+1)
			want := ""
			if p.Receipt.Kind == audit.ReceiptRequest && p.Receipt.Seq > 0 && s.Answered(p.Receipt.Seq) {
				want = fmt.Sprintf("%d wire mismatch unwitnessed", p.Receipt.Seq)
			}
			if got := findings(witnessed(t, s, rest, key.Public())); got != want {
				t.Errorf("%s: without the receipt at place %d: %q, want %q", s.Name, p.Place, got, want)
			}
			if got := findings(witnessed(t, s, rest)); got != "" {
				t.Errorf("%s: nobody to be trusted, without the receipt at place %d: %q", s.Name, p.Place, got)
			}
		}
	}
}

// TestReceiptsDiffer changes one receipt of a session in each way.
func TestReceiptsDiffer(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("whole", audittest.Whole())
	calls := s.Calls()
	seq := calls[1].Seq
	recorded := calls[1].Body.(*events.LLMStream).Body
	signed := func(r audit.Receipt) audit.Receipt {
		if err := key.SignReceipt(&r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	more := func(r audit.Receipt) func(all []audit.PlacedReceipt) []audit.PlacedReceipt {
		r.Call = foldtest.ID(1_733_000_000_000, 1<<40)
		return func(all []audit.PlacedReceipt) []audit.PlacedReceipt {
			return append(all, audit.PlacedReceipt{Place: 1000, Receipt: signed(r)})
		}
	}
	change := func(f func(r *audit.Receipt)) func(all []audit.PlacedReceipt) []audit.PlacedReceipt {
		return func(all []audit.PlacedReceipt) []audit.PlacedReceipt {
			for i := range all {
				if r := &all[i].Receipt; r.Seq == seq && r.Kind == audit.ReceiptRequest {
					f(r)
				}
			}
			return all
		}
	}
	upload := s.Receipt(0, digestOf("file"))
	upload.Target = "/v1/files"
	other := s.Receipt(seq, recorded)
	other.Session = foldtest.ID(1, 1)
	wire, repeated := fmt.Sprintf("%d wire mismatch wire", seq), fmt.Sprintf("%d stray mismatch repeated", seq)
	unwitnessed := fmt.Sprintf("%d wire mismatch unwitnessed", seq)
	for name, tt := range map[string]struct {
		change func([]audit.PlacedReceipt) []audit.PlacedReceipt
		want   string
	}{
		"another body":       {change(func(r *audit.Receipt) { r.Body = digestOf("other"); *r = signed(*r) }), wire},
		"the length differs": {change(func(r *audit.Receipt) { r.Body.Bytes++; *r = signed(*r) }), wire},
		"twice":              {more(s.Receipt(seq, recorded)), repeated},
		"twice, another":     {more(s.Receipt(seq, digestOf("other"))), repeated},
		"no such event":      {more(s.Receipt(9999, recorded)), "9999 stray mismatch unlogged"},
		"no llm/stream":      {more(s.Receipt(seq+1, recorded)), fmt.Sprintf("%d stray mismatch unlogged", seq+1)},
		"no event":           {more(s.Receipt(0, recorded)), "1 stray mismatch unlogged"},
		"an upload":          {more(upload), ""},
		"no body":            {more(s.Receipt(seq, events.BodyDigest{SHA256: events.HashPayload(nil)})), ""},
		"moved": {
			change(func(r *audit.Receipt) { r.Seq = calls[2].Seq; *r = signed(*r) }),
			fmt.Sprintf("%s, %d wire mismatch wire, %d stray mismatch repeated", unwitnessed, calls[2].Seq, calls[2].Seq),
		},
		"a flipped bit":      {change(func(r *audit.Receipt) { r.Body.SHA256[0] ^= 1 }), fmt.Sprintf("%d log could-not-check signature, %s", seq, unwitnessed)},
		"of another session": {more(other), fmt.Sprintf("%d log could-not-check signature", seq)},
	} {
		r := witnessed(t, s, tt.change(s.Receipts(key)), key.Public())
		if got := findings(r); got != tt.want || r.AllMatch() != (tt.want == "") {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if r.Matches != r.Requests {
			t.Errorf("%s: %d of %d requests match", name, r.Matches, r.Requests)
		}
	}
}

// TestRecordedIsSent: a worker that records what it sent, and not what the log gives, is found by the third digest too.
func TestRecordedIsSent(t *testing.T) {
	key := newKey(t)
	l, _ := lying(2, "deepseek-chat/1", func(b []byte) []byte { return []byte(strings.Replace(string(b), "hello", "hellO", 1)) })
	s := audittest.Of("lying", l)
	r := witnessed(t, s, s.Receipts(key), key.Public())
	i := slices.IndexFunc(r.Verdicts, func(v audit.Verdict) bool { return v.Kind == audit.KindWire && v.Result != audit.Match })
	if i < 0 || r.Passed != r.Calls-1 {
		t.Fatalf("%d of %d passed: %s", r.Passed, r.Calls, findings(r))
	}
	if v := r.Verdicts[i]; v.Rule != audit.RuleWire || v.Wire != v.Recorded || v.Wire == v.Rebuilt || (v.Rebuilt == events.BodyDigest{}) {
		t.Errorf("%+v", v)
	}
}

// TestCopiedCalls: what a fork copied needs no receipt of the fork, and permits no call of it.
func TestCopiedCalls(t *testing.T) {
	key := newKey(t)
	_, fork := audittest.Forked()
	s := audittest.Of("fork", fork)
	i := slices.IndexFunc(s.Events, func(e events.Event) bool { return e.Type() == events.TypeLLMStream })
	r := s.Receipt(s.Events[i].Seq, s.Events[i].Body.(*events.LLMStream).Body)
	if err := key.SignReceipt(&r); err != nil {
		t.Fatal(err)
	}
	got := findings(witnessed(t, s, append(s.Receipts(key), audit.PlacedReceipt{Place: 900, Receipt: r}), key.Public()))
	if want := fmt.Sprintf("%d stray mismatch unlogged", r.Seq); got != want {
		t.Errorf("a call of a copied event: %q, want %q", got, want)
	}
}

// TestOpenCall cuts a log behind each event: a call that has not ended is no finding, unless another body has passed.
func TestOpenCall(t *testing.T) {
	key := newKey(t)
	whole := audittest.Of("sample", audittest.Sample(foldtest.SessionID))
	for n := 1; n <= len(whole.Messages); n++ {
		s := *whole
		s.Messages, s.Events = whole.Messages[:n], whole.Events[:n]
		receipts := s.Receipts(key)
		if got := findings(witnessed(t, &s, receipts, key.Public())); got != "" {
			t.Errorf("cut behind event %d: %s", n, got)
		}
		if s.Events[n-1].Type() != events.TypeLLMStream {
			continue
		}
		for i := range receipts {
			if r := &receipts[i].Receipt; r.Seq == uint64(n) && r.Kind == audit.ReceiptRequest {
				r.Body = digestOf("other")
				if err := key.SignReceipt(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, want := findings(witnessed(t, &s, receipts, key.Public())), fmt.Sprintf("%d stray mismatch wire", n); got != want {
			t.Errorf("cut behind event %d: %q, want %q", n, got, want)
		}
	}
}

// TestCallsBehindABreak: where the log broke the recorded bodies are still compared, and nothing is called a stray that the
// log, or what of it could be read, permits.
func TestCallsBehindABreak(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("sample", audittest.Sample(foldtest.SessionID))
	receipts := s.Receipts(key)
	strays := func(r *audit.Report) string {
		var out []string
		for _, v := range r.Verdicts {
			if v.Kind == audit.KindStray || v.Kind == audit.KindWire && v.Result != audit.Match {
				out = append(out, v.String())
			}
		}
		return strings.Join(out, "\n")
	}
	broken := *s
	broken.Messages = slices.Clone(s.Messages)
	broken.Messages[4].Payload = []byte("{}")
	if got := strays(witnessed(t, &broken, receipts, key.Public())); got != "" {
		t.Errorf("broken: %s", got)
	}
	last := &receipts[len(receipts)-2].Receipt
	last.Body = digestOf("other")
	if err := key.SignReceipt(last); err != nil {
		t.Fatal(err)
	}
	if got := strays(witnessed(t, &broken, receipts, key.Public())); !strings.Contains(got, fmt.Sprintf(`event %d: stray mismatch, rule "wire"`, last.Seq)) {
		t.Errorf("broken, with another body: %s", got)
	}
	check := s.LogCheck()
	check.Receipts, check.Witnesses = s.Receipts(key), []string{key.Public()}
	check.Messages = func(yield func(eventlog.Message, error) bool) {
		for i, m := range s.Messages {
			if i == 20 {
				yield(eventlog.Message{}, eventlog.ErrUnavailable)
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if got := strays(report); got != "" {
		t.Errorf("a log that cannot be read on: %s", got)
	}
}

// TestSignedCalls compares a log with signed wire and stray verdicts.
func TestSignedCalls(t *testing.T) {
	key, verifier := newKey(t), newKey(t)
	s := audittest.Of("sample", audittest.Sample(foldtest.SessionID))
	receipts := s.Receipts(key)
	for i := range receipts { // the first call passes twice
		if r := receipts[i].Receipt; r.Seq > 0 && r.Kind == audit.ReceiptRequest {
			receipts = append(receipts, audit.PlacedReceipt{Place: 500, Receipt: r})
			break
		}
	}
	prior := witnessed(t, s, receipts, key.Public()).Verdicts
	for i := range prior {
		if err := verifier.Sign(&prior[i]); err != nil {
			t.Fatal(err)
		}
	}
	check := s.LogCheck()
	check.Prior, check.Trusted = prior, []string{verifier.Public()}
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if got := findings(report); got != "8 stray mismatch repeated" || report.Confirmed != len(prior)-1 { // which no log shows
		t.Errorf("%d of %d confirmed: %s", report.Confirmed, len(prior), got)
	}
	check.Receipts, check.Witnesses = receipts, []string{key.Public()}
	if report, err = audit.CheckLog(t.Context(), check); err != nil {
		t.Fatal(err)
	}
	if got := findings(report); got != "8 stray mismatch repeated" || report.Confirmed != len(prior) {
		t.Errorf("with receipts: %d of %d confirmed: %s", report.Confirmed, len(prior), got)
	}
}

// TestCallWithoutBuild: a request that could not be built is compared all the same, by two digests.
func TestCallWithoutBuild(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("sample", audittest.Sample(foldtest.SessionID))
	check := s.LogCheck()
	check.Receipts, check.Witnesses = s.Receipts(key), []string{key.Public()}
	check.Objects = func(context.Context, objects.Ref) ([]byte, error) { return nil, errors.New("away") }
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if report.Matches != 0 || report.Passed != report.Calls || report.Calls != len(s.Calls()) || report.AllMatch() {
		t.Errorf("%d matches, %d of %d calls passed", report.Matches, report.Passed, report.Calls)
	}
}

// TestReceiptOfAnUnreadableCall: what a witness saw for an event that cannot be read is not what that recorded, and the reason says
// why.
func TestReceiptOfAnUnreadableCall(t *testing.T) {
	key := newKey(t)
	s := audittest.Of("sample", audittest.Sample(foldtest.SessionID))
	receipts := s.Receipts(key)
	seq := s.Calls()[0].Seq
	s.Messages = slices.Clone(s.Messages)
	s.Messages[seq-1].Payload = []byte("{}")
	r := witnessed(t, s, receipts, key.Public())
	i := slices.IndexFunc(r.Verdicts, func(v audit.Verdict) bool { return v.Kind == audit.KindStray && v.Seq == seq })
	if i < 0 {
		t.Fatalf("found %s", findings(r))
	}
	if v := r.Verdicts[i]; v.Rule != audit.RuleWire || (v.Recorded != events.BodyDigest{}) || !strings.Contains(v.Reason, "what the event recorded cannot be read") {
		t.Errorf("%s", &v)
	}
}
