package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
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

// TestLineage words a report about a fork, and tells what is wrong with its parent from what is wrong with itself.
func TestLineage(t *testing.T) {
	broken := verify.Verdict{Kind: verify.KindLog, Result: verify.InvalidLog, Rule: verify.RuleLineage}
	silent := verify.Verdict{Kind: verify.KindLog, Result: verify.CouldNotCheck, Rule: verify.RuleLineage}
	other := verify.Verdict{Kind: verify.KindLog, Result: verify.InvalidLog, Rule: "step"}
	for name, c := range map[string]struct {
		lineage  verify.Lineage
		verdicts []verify.Verdict
		line     string
		end      string // empty: all is well
		code     int
	}{
		"no fork":     {verify.LineageNone, nil, "", "", 0},
		"confirmed":   {verify.LineageConfirmed, nil, "lineage: a fork at event 9 of session 01JZZZZZZZZZZZZZZZZZZZZZZY: confirmed\n", "", 0},
		"unknown":     {verify.LineageUnknown, nil, "unknown", "", 0},
		"no answer":   {verify.LineageUnknown, []verify.Verdict{silent}, "unknown", "not everything could be checked", exitUnread},
		"broken":      {verify.LineageBroken, []verify.Verdict{broken}, "broken", "does not hold the event that the fork names", exitFindings},
		"both broken": {verify.LineageBroken, []verify.Verdict{broken, other}, "broken", "the log is at fault", exitFindings},
	} {
		r := &verify.Report{Session: "01JZZZZZZZZZZZZZZZZZZZZZZZ", Requests: 1, Matches: 1, Lineage: c.lineage, Verdicts: c.verdicts}
		r.Parent.ID, r.Parent.Seq = "01JZZZZZZZZZZZZZZZZZZZZZZY", 9
		got := lineage(r)
		if !strings.Contains(got, c.line) || (c.line == "") != (got == "") || strings.Count(got, "\n") != min(len(got), 1) {
			t.Errorf("%s: %q", name, got)
		}
		err := verdictCode(r)
		exit, ok := errors.AsType[*program.ExitError](err)
		if ok != (c.code != 0) || ok && (exit.Code != c.code || !strings.Contains(err.Error(), c.end)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWhere: a request of an auxiliary call between turns is one all the same.
func TestWhere(t *testing.T) {
	for want, v := range map[string]verify.Verdict{
		"-\t-\t-":   {Kind: verify.KindHead},
		"-\t2\t7":   {Kind: verify.KindRequest, Attempt: 2, Recorded: events.BodyDigest{Bytes: 7}},
		"3.1\t1\t7": {Kind: verify.KindRequest, Turn: 3, Step: 1, Attempt: 1, Recorded: events.BodyDigest{Bytes: 7}},
	} {
		if got := where(&v); got != want {
			t.Errorf("%q, want %q", got, want)
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
