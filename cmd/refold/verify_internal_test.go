package main

import (
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/events"
)

func TestConclusion(t *testing.T) {
	found := func(result verify.Result, rule string) verify.Verdict {
		return verify.Verdict{Kind: verify.KindLog, Result: result, Rule: rule}
	}
	for name, c := range map[string]struct {
		matches int
		found   verify.Verdict
		want    string
	}{
		"mismatch":     {1, verify.Verdict{Kind: verify.KindRequest, Result: verify.Mismatch}, "not every request is a match"},
		"signed":       {2, found(verify.BrokenChain, verify.RuleSigned), "differs from what was signed"},
		"rule":         {2, found(verify.InvalidLog, "step"), "the log is at fault"},
		"signature":    {2, found(verify.CouldNotCheck, verify.RuleSignature), "signature of its verifier"},
		"not readable": {2, found(verify.CouldNotCheck, ""), "not everything could be checked"},
	} {
		r := &verify.Report{Requests: 2, Matches: c.matches, Verdicts: []verify.Verdict{{Result: verify.Match}, c.found}}
		if got := conclusion(r); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestVerdictRow(t *testing.T) {
	const session, other events.ID = "01JZZZZZZZZZZZZZZZZZZZZZZZ", "01JZZZZZZZZZZZZZZZZZZZZZZY"
	key, err := verify.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	v := verify.Verdict{Kind: verify.KindHead, Session: session, Seq: 7, Result: verify.Match, Time: 1}
	encode := func() []byte {
		b, err := v.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	row := func(payload []byte, of events.ID) string {
		return verdictRow(&jetstream.Record{Session: of, Payload: payload})
	}
	if got := row(encode(), session); got != "7\thead\tmatch\t-\tinvalid" {
		t.Errorf("unsigned: %q", got)
	}
	if err := key.Sign(&v); err != nil {
		t.Fatal(err)
	}
	good := encode()
	if got := row(good, session); got != "7\thead\tmatch\t"+key.Public()+"\tvalid" {
		t.Errorf("signed: %q", got)
	}
	if got := row(good, other); !strings.HasSuffix(got, "\tof another session") {
		t.Errorf("of another session: %q", got)
	}
	v.Seq = 8
	if got := row(encode(), session); !strings.HasSuffix(got, "\tinvalid") {
		t.Errorf("changed: %q", got)
	}
	if got := row([]byte("\x1b[2J\n"), session); got != "-\t-\t-\t-\tno verdict" {
		t.Errorf("no verdict: %q", got)
	}
}
