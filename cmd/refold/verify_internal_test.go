package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

func TestConclusion(t *testing.T) {
	found := func(result audit.Result, rule string) audit.Verdict {
		return audit.Verdict{Kind: audit.KindLog, Result: result, Rule: rule}
	}
	for name, c := range map[string]struct {
		matches int
		found   audit.Verdict
		want    string
	}{
		"mismatch":     {1, audit.Verdict{Kind: audit.KindRequest, Result: audit.Mismatch}, "not every request is a match"},
		"signed":       {2, found(audit.BrokenChain, audit.RuleSigned), "differs from what was signed"},
		"rule":         {2, found(audit.InvalidLog, "step"), "the log is at fault"},
		"signature":    {2, found(audit.CouldNotCheck, audit.RuleSignature), "signature of its verifier"},
		"verdict":      {2, found(audit.Mismatch, audit.RuleVerdict), "what was signed about the session"},
		"taken over":   {2, found(audit.BrokenChain, audit.RuleGone), "the log is at fault"},
		"silent":       {2, found(audit.CouldNotCheck, audit.RuleSilent), "a trusted verifier should have signed"},
		"not readable": {2, found(audit.CouldNotCheck, ""), "not everything could be checked"},
	} {
		r := &audit.Report{Requests: 2, Matches: c.matches, Verdicts: []audit.Verdict{{Result: audit.Match}, c.found}}
		if got := conclusion(r); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestLineage words a report about a fork, and tells what is wrong with its parent from what is wrong with itself.
func TestLineage(t *testing.T) {
	broken := audit.Verdict{Kind: audit.KindLog, Result: audit.InvalidLog, Rule: audit.RuleLineage}
	silent := audit.Verdict{Kind: audit.KindLog, Result: audit.CouldNotCheck, Rule: audit.RuleLineage}
	other := audit.Verdict{Kind: audit.KindLog, Result: audit.InvalidLog, Rule: "step"}
	for name, c := range map[string]struct {
		lineage  audit.Lineage
		verdicts []audit.Verdict
		line     string
		end      string // empty: all is well
		code     int
	}{
		"no fork":     {audit.LineageNone, nil, "", "", 0},
		"confirmed":   {audit.LineageConfirmed, nil, "lineage: a fork at event 9 of session 01JZZZZZZZZZZZZZZZZZZZZZZY: confirmed\n", "", 0},
		"unknown":     {audit.LineageUnknown, nil, "unknown", "", 0},
		"no answer":   {audit.LineageUnknown, []audit.Verdict{silent}, "unknown", "not everything could be checked", exitUnread},
		"broken":      {audit.LineageBroken, []audit.Verdict{broken}, "broken", "does not hold the event that the fork names", exitFindings},
		"both broken": {audit.LineageBroken, []audit.Verdict{broken, other}, "broken", "the log is at fault", exitFindings},
	} {
		r := &audit.Report{Session: "01JZZZZZZZZZZZZZZZZZZZZZZZ", Requests: 1, Matches: 1, Lineage: c.lineage, Verdicts: c.verdicts}
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
	for want, v := range map[string]audit.Verdict{
		"-\t-\t-":   {Kind: audit.KindHead},
		"-\t2\t7":   {Kind: audit.KindRequest, Attempt: 2, Recorded: events.BodyDigest{Bytes: 7}},
		"3.1\t1\t7": {Kind: audit.KindRequest, Turn: 3, Step: 1, Attempt: 1, Recorded: events.BodyDigest{Bytes: 7}},
	} {
		if got := where(&v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestVerdictRow(t *testing.T) {
	const session, other events.ID = "01JZZZZZZZZZZZZZZZZZZZZZZZ", "01JZZZZZZZZZZZZZZZZZZZZZZY"
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	v := audit.Verdict{Kind: audit.KindHead, Session: session, Seq: 7, Result: audit.Match, Time: 1}
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
