package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
)

func newAudit(g *globals) *cobra.Command {
	var o bundle.Options
	cmd := &cobra.Command{
		Use:   "audit FILE",
		Short: "Check a session from a file that refold export wrote, without a server or a network",
		Long: "Folds the log in the file, rebuilds every model request from it and the objects, and compares length and SHA-256 with what the\n" +
			"log recorded, with what verifiers have signed and with what witnesses have seen; then checks that the verdicts stand in the\n" +
			"transparency log with the checkpoint in the file. Reads nothing but the file.\n\n" +
			"Whom to believe is yours to say: the keys must come to you in another way than the file. Without --trust the verdicts of every\n" +
			"key are compared, without --witness no call needs a receipt, without --log-key nobody has signed the checkpoint.\n\n" +
			"Exit code 0: every request is a match and nothing else was found. 1: findings. 2: the file could not be read, something in\n" +
			"it could not be checked, as requests that show withheld content, a flag or an argument is wrong, or the output could not be\n" +
			"written.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			report, err := auditFile(cmd, args[0], &o)
			if err != nil {
				return &program.ExitError{Code: exitUnread, Err: fmt.Errorf("%s: %w", args[0], err)}
			}
			if g.json {
				err = printRecords(cmd.OutOrStdout(), report)
			} else {
				err = printAudit(cmd.OutOrStdout(), report)
			}
			if err != nil {
				return err
			}
			return auditCode(report)
		},
	}
	program.FailWith(cmd, exitUnread)
	f := cmd.Flags()
	f.StringArrayVar(&o.Trusted, "trust", nil, "public key of a verifier whose signed verdicts count, and of whom one must have signed something; may be repeated; all when absent")
	f.StringArrayVar(&o.Witnesses, "witness", nil, "public key of a witness that every call passes; may be repeated")
	f.StringArrayVar(&o.LogKeys, "log-key", nil, "public key of the transparency log, as in its .pub file, in which every verdict that counts must stand; may be repeated")
	f.BoolVar(&o.Cold, "cold", false, "build every request from its first byte instead of going on from the one before")
	return cmd
}

func auditFile(cmd *cobra.Command, name string, o *bundle.Options) (*bundle.Report, error) {
	info, err := files.Regular(name, math.MaxInt64)
	if err != nil {
		return nil, fmt.Errorf("%w: name a file that refold export wrote, it is read more than once", errors.Unwrap(err)) // the name stands before it
	}
	file, err := files.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	r, err := bundle.NewReader(file, info.Size())
	if err != nil {
		return nil, err
	}
	return bundle.Check(cmd.Context(), r, *o)
}

// printRecords prints the verdicts, one a line, and a summary behind them.
func printRecords(out io.Writer, r *bundle.Report) error {
	for i := range r.Verdicts {
		line, err := r.Verdicts[i].Encode()
		if err != nil {
			return err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return printJSON(out, newSummary(r))
}

// auditSummary is the last line of refold audit --json. docs/format/bundle.md describes it.
type auditSummary struct {
	V          int64         `json:"v"`
	Kind       string        `json:"kind"`
	Session    events.ID     `json:"session"`
	Result     string        `json:"result"`
	Last       uint64        `json:"last"`
	Stated     uint64        `json:"stated"`
	Requests   int           `json:"requests"`
	Matches    int           `json:"matches"`
	Unchecked  int           `json:"unchecked"`
	Confirmed  int           `json:"confirmed"`
	Ignored    int           `json:"ignored"`
	Silent     []string      `json:"silent,omitempty"`
	Verifiers  []auditSigner `json:"verifiers"`
	Receipts   int           `json:"receipts"`
	Calls      int           `json:"calls"`
	Passed     int           `json:"passed"`
	Witnesses  []auditSigner `json:"witnesses"`
	Log        *auditLog     `json:"log,omitempty"`
	Lineage    string        `json:"lineage,omitempty"`
	Parent     events.ID     `json:"parent,omitempty"`
	ParentSeq  uint64        `json:"parentSeq,omitempty"`
	Withheld   []events.Type `json:"withheld,omitempty"`
	Redacted   int           `json:"redacted,omitempty"`
	Objects    uint64        `json:"objects"`
	Unnamed    int           `json:"unnamed,omitempty"`
	Conclusion string        `json:"conclusion"`
}

type auditSigner struct {
	Key     string `json:"key"`
	Signed  int    `json:"signed"`
	Trusted bool   `json:"trusted"`
}

type auditLog struct {
	Origin string `json:"origin"`
	Size   uint64 `json:"size"`
	Root   string `json:"root"`
	Signed bool   `json:"signed"`
	Proven int    `json:"proven"`
	Later  int    `json:"later"`
}

func newSummary(r *bundle.Report) *auditSummary {
	s := &auditSummary{
		V: 1, Kind: "summary", Session: r.Session, Result: "match", Last: r.Last, Stated: r.Manifest.Last, Requests: r.Requests, Matches: r.Matches,
		Unchecked: r.Unchecked, Confirmed: r.Confirmed, Ignored: r.Ignored, Silent: r.Silent, Verifiers: signers(r.Verifiers), Receipts: r.Receipts, Calls: r.Calls,
		Passed: r.Passed, Witnesses: signers(r.Witnesses), Lineage: string(r.Lineage), Parent: r.Parent.ID, ParentSeq: r.Parent.Seq,
		Withheld: r.Manifest.Withheld.Types(), Redacted: r.Withheld, Objects: r.End.Objects, Unnamed: r.Unnamed, Conclusion: auditConclusion(r),
	}
	switch findingsCode(r.Report) {
	case exitFindings:
		s.Result = "findings"
	case exitUnread:
		s.Result = string(audit.CouldNotCheck)
	}
	if p := r.Log.Checkpoint; p.Origin != "" {
		s.Log = &auditLog{Origin: p.Origin, Size: p.Size, Root: p.Root.String(), Signed: r.Log.Signed, Proven: r.Log.Proven, Later: r.Log.Later}
	}
	return s
}

func signers(list []bundle.Signer) []auditSigner {
	out := make([]auditSigner, len(list))
	for i, s := range list {
		out[i] = auditSigner{Key: s.Key, Signed: s.Signed, Trusted: s.Trusted}
	}
	return out
}

// printAudit prints what was not a match, and then what was checked.
func printAudit(out io.Writer, r *bundle.Report) error {
	t := table(out, "SEQ\tKIND\tRESULT\tRULE\tREASON")
	found := false
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Result == audit.Match {
			continue
		}
		found = true
		if _, err := fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\n", v.Seq, v.Kind, v.Result, v.Rule, program.Printable(v.Reason)); err != nil {
			return err
		}
	}
	if found {
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := io.WriteString(out, auditText(r))
	return err
}

// auditText words what was checked, and the conclusion in the last line.
func auditText(r *bundle.Report) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	line("session", "%s", r.Session)
	line("events", "%d, and the stream stated %d", r.Last, r.Manifest.Last)
	line("requests", "%d: %d match, %d do not, %d could not be checked", r.Requests, r.Matches, r.Requests-r.Matches-r.Unchecked, r.Unchecked)
	if r.Unnamed > 0 {
		line("objects", "%d, of which nothing names %d", r.End.Objects, r.Unnamed)
	} else {
		line("objects", "%d", r.End.Objects)
	}
	line("verdicts", "%d signed, %d confirmed, %d of keys that you do not trust", r.End.Verdicts, r.Confirmed, r.Ignored)
	printSigners(line, "verifier", "verdicts", r.Verifiers)
	for _, key := range r.Silent {
		line("warning", "%s has signed nothing about this session", key)
	}
	line("receipts", "%d of requests; %d of %d calls are what a witness saw", r.Receipts, r.Passed, r.Calls)
	printSigners(line, "witness", "receipts", r.Witnesses)
	if p := r.Log.Checkpoint; p.Origin != "" {
		signed := "whose signature nobody looked at: give --log-key"
		if r.Log.Signed {
			signed = "signed by the key that you gave"
		}
		line("log", "%d verdicts are in the log %s at size %d, %s", r.Log.Proven, program.Printable(p.Origin), p.Size, signed)
		if r.Log.Later > 0 {
			line("later", "%d verdicts are newer than that log: nothing is proven of them", r.Log.Later)
		}
	} else {
		line("log", "none: that no verdict was left out is the exporter's word")
	}
	if r.Lineage != audit.LineageNone {
		line("lineage", "a fork at event %d of session %s, which is not in the file: %s", r.Parent.Seq, r.Parent.ID, r.Lineage)
	}
	if types := r.Manifest.Withheld.Types(); len(types) > 0 {
		line("withheld", "the content of %d events, of %s: what they are in outline is the exporter's word", r.Withheld, joinTypes(types))
	}
	line("conclusion", "%s", auditConclusion(r))
	return b.String()
}

func printSigners(line func(name, format string, args ...any), name, what string, list []bundle.Signer) {
	for _, s := range list {
		trusted := "which you did not say that you trust"
		if s.Trusted {
			trusted = "trusted"
		}
		line(name, "%s: %d %s, %s", s.Key, s.Signed, what, trusted)
	}
}

func joinTypes(types []events.Type) string {
	text := make([]string, len(types))
	for i, t := range types {
		text[i] = string(t)
	}
	return strings.Join(text, ", ")
}

// findingsCode returns 0, [exitFindings], or [exitUnread] when nothing was found and something could not be checked.
func findingsCode(r *audit.Report) int {
	code := 0
	for i := range r.Verdicts {
		switch r.Verdicts[i].Result {
		case audit.Match:
		case audit.CouldNotCheck:
			code = max(code, exitUnread)
		default:
			return exitFindings
		}
	}
	return code
}

func auditConclusion(r *bundle.Report) string {
	switch findingsCode(r.Report) {
	case 0:
		return fmt.Sprintf("every one of %d requests is a match, and nothing else was found", r.Requests)
	case exitUnread:
		if r.Matches == r.Requests && onlyWithheld(r.Report) {
			return fmt.Sprintf("every one of %d requests is a match, nothing was found, and what stands in %d events is withheld", r.Requests, r.Withheld)
		}
		if r.Matches == r.Requests {
			return fmt.Sprintf("every one of %d requests is a match, nothing was found, and not everything else could be checked", r.Requests)
		}
		return fmt.Sprintf("%d of %d requests match, nothing was found against the others, and not everything could be checked", r.Matches, r.Requests)
	}
	n := 0
	for i := range r.Verdicts {
		if result := r.Verdicts[i].Result; result != audit.Match && result != audit.CouldNotCheck {
			n++
		}
	}
	return fmt.Sprintf("%d of %d requests match, and there are %d findings", r.Matches, r.Requests, n)
}

// onlyWithheld reports whether nothing but withheld content kept anything from being checked.
func onlyWithheld(r *audit.Report) bool {
	return !slices.ContainsFunc(r.Verdicts, func(v audit.Verdict) bool { return v.Result == audit.CouldNotCheck && v.Rule != audit.RuleWithheld })
}

func auditCode(r *bundle.Report) error {
	code := findingsCode(r.Report)
	if code == 0 {
		return nil
	}
	return &program.ExitError{Code: code, Err: fmt.Errorf("session %s: %s", r.Session, auditConclusion(r))}
}
