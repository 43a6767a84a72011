package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// The exit codes of what audits, refold verify, refold audit and refold tlog, beside 0: all match. An error of any kind has the
// second, so that nothing but a finding looks like one.
const (
	exitFindings = 1
	exitUnread   = 2
)

func newVerify(g *globals) *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify SESSION",
		Short: "Rebuild and check every model request of a session, here and now",
		Long: "Folds the session's log, rebuilds every model request from it and the objects, and compares length and SHA-256 with what\n" +
			"the log recorded; then compares the log with the verdicts and heads that verifiers have signed, and a fork with its\n" +
			"parent's log, when that is there. With --witness every call is compared with the receipt of it too: the digest on the wire\n" +
			"with the recorded and the rebuilt one. Asks no worker.\n\n" +
			"Exit code 0: every request is a match and nothing else was found. 1: findings. 2: something could not be checked,\n" +
			"a flag or an argument is wrong, or the output could not be written.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.validate(); err != nil {
				return &program.ExitError{Code: exitUnread, Err: err}
			}
			client, id, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return &program.ExitError{Code: exitUnread, Err: err}
			}
			defer done()
			report, err := check(cmd.Context(), client, id, log, &f)
			if err != nil {
				return &program.ExitError{Code: exitUnread, Err: err}
			}
			for _, key := range report.Silent {
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "refold: warning: --trust %s has signed nothing about session %s\n", key, id); err != nil {
					return err
				}
			}
			if g.json && report.Lineage == audit.LineageUnknown { // the rest is in the records
				if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "refold: warning: %s", lineage(report)); err != nil {
					return err
				}
			}
			if err := g.printReport(cmd.OutOrStdout(), report); err != nil {
				return err
			}
			return verdictCode(report)
		},
	}
	program.FailWith(cmd, exitUnread)
	cmd.Flags().BoolVar(&f.cold, "cold", false, "build every request from its first byte instead of going on from the one before")
	cmd.Flags().StringArrayVar(&f.trusted, "trust", nil, "public key of a verifier whose signed verdicts count, and of whom one must have signed something; may be repeated; all when absent")
	cmd.Flags().StringArrayVar(&f.witnesses, "witness", nil, "public key of a witness: every answered call must have its receipt; may be repeated; without it receipts are not looked at")
	return cmd
}

// verifyFlags say what is checked.
type verifyFlags struct {
	cold               bool
	trusted, witnesses []string
}

func (f *verifyFlags) validate() error {
	for _, key := range f.trusted {
		if err := audit.CheckPublic(key); err != nil {
			return fmt.Errorf("--trust: %w", err)
		}
	}
	for _, key := range f.witnesses {
		if err := audit.CheckPublic(key); err != nil {
			return fmt.Errorf("--witness: %w", err)
		}
	}
	return nil
}

func check(ctx context.Context, client *jetstream.Client, id events.ID, log eventlog.Log, f *verifyFlags) (*audit.Report, error) {
	last, err := log.Last(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := storedVerdicts(ctx, client, id)
	if err != nil {
		return nil, err
	}
	prior, unread := decodeVerdicts(id, stored)
	var seen []audit.PlacedReceipt
	if len(f.witnesses) > 0 {
		var others []audit.Verdict
		if seen, others, err = receipts(ctx, client, id); err != nil {
			return nil, err
		}
		unread = append(unread, others...)
	}
	check := audit.LogCheck{
		Session: id, Messages: log.Read(ctx, 1), Last: last, Objects: audit.FromStore(client.Objects()),
		Parents: audit.FromLogs(client.Logs()), Prior: prior, Trusted: f.trusted, Cold: f.cold, Receipts: seen, Witnesses: f.witnesses,
	}
	var unknown []audit.Verdict
	if len(f.witnesses) > 0 {
		if unknown, err = snapshot(ctx, log, &check); err != nil {
			return nil, err
		}
	}
	report, err := audit.CheckLog(ctx, check)
	if err == nil {
		report.Verdicts = slices.Concat(unread, report.Verdicts, unknown)
	}
	return report, err
}

// decodeVerdicts returns the stored verdicts, and what is to be said about records that are none: whoever can write to the
// stream can put one there, and it hides nothing of what the others say.
func decodeVerdicts(id events.ID, stored []jetstream.Record) (verdicts, unread []audit.Verdict) {
	for _, r := range stored {
		v, err := audit.DecodeVerdict(r.Payload)
		if err != nil {
			unread = append(unread, unreadRecord(id, jetstream.VerdictsStream, r.Seq, err))
			continue
		}
		verdicts = append(verdicts, v)
	}
	return verdicts, unread
}

// unreadRecord says that nobody can have signed what stands at a place of a stream.
func unreadRecord(id events.ID, stream string, place uint64, cause error) audit.Verdict {
	return audit.Verdict{
		Kind: audit.KindLog, Session: id, Seq: 1, Result: audit.CouldNotCheck, Rule: audit.RuleSignature,
		Reason: audit.Reason(fmt.Sprintf("place %d of %s: %v", place, stream, cause)),
	}
}

func (g *globals) printReport(out io.Writer, r *audit.Report) error {
	t := table(io.Discard, "")
	if !g.json {
		t = table(out, "SEQ\tKIND\tSTEP\tATTEMPT\tBYTES\tRESULT\tREASON")
	}
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		var err error
		if g.json {
			var line []byte
			if line, err = v.Encode(); err == nil {
				_, err = out.Write(append(line, '\n'))
			}
		} else {
			_, err = fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\n", v.Seq, v.Kind, where(v), v.Result, program.Printable(detail(v)))
		}
		if err != nil {
			return err
		}
	}
	if g.json {
		return nil
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var calls string
	if r.Calls > 0 {
		calls = fmt.Sprintf("calls: %d looked at, %d passed the witness as recorded and as rebuilt\n", r.Calls, r.Passed)
	}
	_, err := fmt.Fprintf(out, "session %s: %d events, %d requests, %d match, %d signed verdicts confirmed\n%s%s",
		r.Session, r.Last, r.Requests, r.Matches, r.Confirmed, calls, lineage(r))
	return err
}

// lineage words how a fork stands to its parent, in a line; empty for a session that is no fork.
func lineage(r *audit.Report) string {
	parent := fmt.Sprintf("event %d of session %s", r.Parent.Seq, r.Parent.ID)
	switch r.Lineage {
	case audit.LineageNone:
	case audit.LineageConfirmed:
		return fmt.Sprintf("lineage: a fork at %s: confirmed\n", parent)
	case audit.LineageUnknown:
		return fmt.Sprintf("lineage: a fork at %s: unknown: that log is not there, or cannot be read\n", parent)
	case audit.LineageBroken:
		return fmt.Sprintf("lineage: a fork at %s: broken: that log holds something else\n", parent)
	}
	return ""
}

// where words which request a verdict is on; a head, and a request whose event cannot be read, is on none.
func where(v *audit.Verdict) string {
	switch {
	case v.Kind == audit.KindStray:
		return fmt.Sprintf("-\t-\t%d", v.Wire.Bytes)
	case v.Attempt == 0:
		return "-\t-\t-"
	}
	return fmt.Sprintf("%s\t%d\t%d", stepName(v.Turn, v.Step), v.Attempt, v.Recorded.Bytes)
}

// stepName names a step, 0 for none that is open in the turn; a call between turns belongs to no turn either.
func stepName(turn, step int64) string {
	if turn == 0 {
		return "-"
	}
	return fmt.Sprintf("%d.%d", turn, step)
}

// conclusion words what was found beside matches.
func conclusion(r *audit.Report) string {
	found := func(rule string) bool {
		return slices.ContainsFunc(r.Verdicts, func(v audit.Verdict) bool { return v.Rule == rule })
	}
	passed := func(v audit.Verdict) bool {
		return v.Result == audit.Mismatch && (v.Kind == audit.KindWire || v.Kind == audit.KindStray)
	}
	fault := func(v audit.Verdict) bool {
		return v.Result != audit.Match && v.Result != audit.CouldNotCheck && v.Rule != audit.RuleLineage && v.Rule != audit.RuleSilent
	}
	switch {
	case r.Matches < r.Requests:
		return "not every request is a match"
	case found(audit.RuleSigned):
		return "every request is a match, but the log differs from what was signed"
	case found(audit.RuleVerdict):
		return "every request is a match, but what was signed about the session is not what it shows"
	case slices.ContainsFunc(r.Verdicts, passed):
		return "every request is a match, but what passed the witness is not what the log says"
	case slices.ContainsFunc(r.Verdicts, fault):
		return "every request is a match, but the log is at fault"
	case r.Lineage == audit.LineageBroken:
		return "every request is a match, but the parent's log does not hold the event that the fork names"
	case found(audit.RuleSilent):
		return "every request is a match, but what a trusted verifier should have signed is not there"
	case found(audit.RuleSignature):
		return "every request is a match, but a stored verdict does not have the signature of its verifier"
	}
	return "every request that was read is a match, but not everything could be checked"
}

func verdictCode(r *audit.Report) error {
	code := findingsCode(r)
	if code == 0 {
		return nil
	}
	return &program.ExitError{Code: code, Err: fmt.Errorf("session %s: %s", r.Session, conclusion(r))}
}
