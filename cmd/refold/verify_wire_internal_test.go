package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

func digestOf(s string) events.BodyDigest {
	return events.BodyDigest{Bytes: int64(len(s)), SHA256: events.HashPayload([]byte(s))}
}

func TestDigests(t *testing.T) {
	a, b, c := digestOf("a"), digestOf("bb"), digestOf("ccc")
	for want, v := range map[string]audit.Verdict{
		"recorded = rebuilt = wire, receipt 7":                                            {Result: audit.Match, Recorded: a, Rebuilt: a, Wire: a, Receipt: 7},
		"recorded = wire, receipt 7":                                                      {Result: audit.Match, Recorded: a, Wire: a, Receipt: 7},
		"recorded = rebuilt ca978112ca1b/1, wire 3b64db95cb55/2, receipt 7":               {Result: audit.Mismatch, Recorded: a, Rebuilt: a, Wire: b, Receipt: 7},
		"recorded ca978112ca1b/1, rebuilt 3b64db95cb55/2, wire 64daa44ad493/3, receipt 7": {Result: audit.Mismatch, Recorded: a, Rebuilt: b, Wire: c, Receipt: 7},
		"recorded = rebuilt ca978112ca1b/1":                                               {Result: audit.Mismatch, Recorded: a, Rebuilt: a},
		"wire 3b64db95cb55/2, receipt 7":                                                  {Result: audit.Mismatch, Wire: b, Receipt: 7},
		"recorded ca978112ca1b/1, rebuilt 3b64db95cb55/2, wire ca978112ca1b/1, receipt 7": {Result: audit.Mismatch, Recorded: a, Rebuilt: b, Wire: a, Receipt: 7},
	} {
		if got := digests(&v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := detail(&audit.Verdict{Kind: audit.KindRequest, Reason: "r", Recorded: a}); got != "r" {
		t.Errorf("a request: %q", got)
	}
	if got := detail(&audit.Verdict{Kind: audit.KindStray, Rule: "unlogged", Reason: "r", Wire: b, Receipt: 1, Result: audit.Mismatch}); got != "unlogged: r (wire 3b64db95cb55/2, receipt 1)" {
		t.Errorf("a stray: %q", got)
	}
}

func TestConclusionOfCalls(t *testing.T) {
	for _, kind := range []audit.Kind{audit.KindWire, audit.KindStray} {
		r := &audit.Report{Requests: 1, Matches: 1, Verdicts: []audit.Verdict{{Kind: kind, Result: audit.Mismatch, Rule: audit.RuleWire}}}
		if got := conclusion(r); !strings.Contains(got, "what passed the witness") {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

// growing is a log that has grown since it was first looked at.
type growing struct {
	eventlog.Log
	last    uint64
	current error
}

func (g *growing) Last(context.Context) (uint64, error) { return g.last, nil }
func (g *growing) Current(context.Context) error        { return g.current }

func numbered(n uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for seq := uint64(1); seq <= n; seq++ {
			if !yield(eventlog.Message{Seq: seq}, nil) {
				return
			}
		}
	}
}

// TestSnapshot: what came while receipts were read is left for the next check; what is about events that do not exist is not.
func TestSnapshot(t *testing.T) {
	check := audit.LogCheck{Last: 5, Messages: numbered(9)}
	for _, seq := range []uint64{0, 3, 5, 6, 8, 9, 77} {
		check.Receipts = append(check.Receipts, audit.PlacedReceipt{Place: seq, Receipt: audit.Receipt{Seq: seq}})
		check.Prior = append(check.Prior, audit.Verdict{Seq: seq})
	}
	if unknown, err := snapshot(t.Context(), &growing{last: 8}, &check); err != nil || len(unknown) > 0 {
		t.Fatal(unknown, err)
	}
	var receipts, prior, messages []uint64
	for _, p := range check.Receipts {
		receipts = append(receipts, p.Receipt.Seq)
	}
	for _, v := range check.Prior {
		prior = append(prior, v.Seq)
	}
	for m, err := range check.Messages {
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m.Seq)
	}
	if want := []uint64{0, 3, 5, 9, 77}; !slices.Equal(receipts, want) || !slices.Equal(prior, want) {
		t.Errorf("receipts %d, verdicts %d, want %d", receipts, prior, want)
	}
	if !slices.Equal(messages, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("messages %d", messages)
	}
	broken := errors.New("broken")
	if _, err := snapshot(t.Context(), &growing{current: broken}, &check); !errors.Is(err, broken) {
		t.Errorf("a log that cannot be asked: %v", err)
	}
}

// TestSnapshotOfACopy: of a mirror that may lack events only what it holds is checked, and that is said. No receipt of a call that
// it may lack is held against it.
func TestSnapshotOfACopy(t *testing.T) {
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	s := turned("good", 1, false)
	check := s.LogCheck()
	check.Receipts, check.Witnesses = s.Receipts(key), []string{key.Public()}
	later := check.Receipts[0]
	later.Place, later.Receipt.Seq = 900, check.Last+1
	later.Receipt.Body = digestOf("of a later call")
	if err := key.SignReceipt(&later.Receipt); err != nil {
		t.Fatal(err)
	}
	check.Receipts = append(check.Receipts, later)
	gone := fmt.Errorf("%w: the origin has no such stream", eventlog.ErrUnavailable)
	unknown, err := snapshot(t.Context(), &growing{last: check.Last, current: gone}, &check)
	if err != nil || len(unknown) != 1 || unknown[0].Result != audit.CouldNotCheck || !strings.Contains(unknown[0].Reason, "no such stream") {
		t.Fatalf("unknown %v: %v", unknown, err)
	}
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if !report.AllMatch() || report.Calls == 0 || report.Calls != report.Passed {
		t.Errorf("%d calls, %d passed: %v", report.Calls, report.Passed, report.Verdicts)
	}
	report.Verdicts = append(report.Verdicts, unknown...)
	if exit, ok := errors.AsType[*program.ExitError](verdictCode(report)); !ok || exit.Code != exitUnread || exit.Err == nil {
		t.Errorf("the end is %v", exit)
	}
}

// TestUnreadRecords: whoever may write to VERDICTS or WITNESS can put anything there, and hides nothing with it.
func TestUnreadRecords(t *testing.T) {
	b := newLogBench(t)
	witness, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	added := uint64(0)
	add := func(s *audittest.Session, records *jetstream.Records, payload []byte) {
		t.Helper()
		added++
		if _, err := records.Add(t.Context(), s.ID, string(foldtest.ID(1, added)), payload); err != nil {
			t.Fatal(err)
		}
	}
	good, bad := turned("good", 1, false), turned("bad", 2, true)
	for _, s := range []*audittest.Session{good, bad} {
		b.put(s)
		for _, key := range []*audit.Key{stranger, witness} {
			for _, p := range s.Receipts(key) {
				payload, err := p.Receipt.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if p.Receipt.Kind == audit.ReceiptRequest {
					add(s, b.client.Receipts(), payload)
				}
			}
		}
	}
	run := func(s *audittest.Session, code int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		args = append([]string{"verify", string(s.ID), "--json", "--nats", b.url, "--dir", t.TempDir()}, args...)
		if got := exitOf(t, &out, args...); got != code {
			t.Errorf("%s %q: exit code %d, want %d: %s", s.Name, args, got, code, out.String())
		}
		return out.String()
	}
	trusting := []string{"--witness", witness.Public()}
	run(good, 0)
	run(good, 0, trusting...) // the stranger's receipts are nothing
	run(bad, exitFindings)
	for _, s := range []*audittest.Session{good, bad} {
		for _, records := range []*jetstream.Records{b.client.Verdicts(), b.client.WireVerdicts(), b.client.StrayVerdicts(), b.client.Receipts()} {
			add(s, records, []byte("nonsense"))
			add(s, records, []byte(`{"v":99}`))
		}
	}
	unread := `"result":"could-not-check","rule":"signature","reason":"place `
	for want, args := range map[int][]string{6: nil, 8: trusting} {
		out := run(good, exitUnread, args...)
		if n := strings.Count(out, unread); n != want || !strings.Contains(out, `"kind":"request"`) || !strings.Contains(out, `"result":"match"`) {
			t.Errorf("%q: %d records that cannot be read, want %d: %s", args, n, want, out)
		}
		out = run(bad, exitFindings, args...)
		if n := strings.Count(out, unread); n != want || !strings.Contains(out, `"result":"mismatch"`) {
			t.Errorf("%q: %d records that cannot be read, want %d: %s", args, n, want, out)
		}
	}
}
