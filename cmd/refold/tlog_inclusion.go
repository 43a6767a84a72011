package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// errNotLogged means that the log does not hold a verdict.
var errNotLogged = errors.New("the log does not hold it, up to its newest checkpoint")

// errSigner means that an entry is not what somebody signed whose word counts.
var errSigner = errors.New("not signed by a verifier that counts")

// signerFlags say whose verdicts count.
type signerFlags struct{ trusted []string }

func (s *signerFlags) flag(cmd *cobra.Command, what string) {
	cmd.Flags().StringArrayVar(&s.trusted, "trust", nil, "public key of a verifier; "+what+"; may be repeated; any verifier when absent")
}

func (s *signerFlags) check() error {
	for _, key := range s.trusted {
		if err := audit.CheckPublic(key); err != nil {
			return fmt.Errorf("--trust: %w", err)
		}
	}
	return nil
}

// believe returns nil when the verdict has the signature of a verifier that counts. The error wraps [errSigner].
func (s *signerFlags) believe(v *audit.Verdict) error {
	if err := v.Verify(); err != nil {
		return fmt.Errorf("%w: %w", errSigner, err)
	}
	if len(s.trusted) > 0 && !slices.Contains(s.trusted, v.Verifier) {
		return fmt.Errorf("%w: %s signed it, and no --trust names that key", errSigner, v.Verifier)
	}
	return nil
}

func newTlogInclusion(l *logFlags) *cobra.Command {
	var kind, file, entryFile string
	var index int64
	var signers signerFlags
	cmd := &cobra.Command{
		Use: "inclusion SESSION SEQ | --index N", Short: "Print the proof that a verdict stands in the log",
		Long: "Prints a proof file (c2sp.org/tlog-proof) for the verdict on an event of a session, the first of its kind that its verifier has\n" +
			"signed, or for the entry at an index, from 0: the verdict at the place N+1 of VERDICTS, whatever it is. A verdict is found by\n" +
			"reading the log up to it. refold tlog check-inclusion checks the proof without the log.",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("index") {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(2)(cmd, args)
		},
		ValidArgsFunction: l.globals.completeSessions,
		RunE: l.run(func(cmd *cobra.Command, args []string) error {
			at := uint64(index) //nolint:gosec // looked at below
			if len(args) == 0 && index < 0 {
				return fmt.Errorf("--index %d: want a number from 0", index)
			}
			if err := signers.check(); err != nil {
				return err
			}
			tree, signed, err := l.tree(cmd)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				if at, err = findVerdict(cmd.Context(), tree, args[0], args[1], audit.Kind(kind), &signers); err != nil {
					return err
				}
			}
			entry, proof, err := entryAt(cmd.Context(), tree, signed, at)
			if err != nil {
				return err
			}
			if entryFile != "" {
				if err := writeOutput(cmd, entryFile, entry); err != nil {
					return err
				}
			}
			return writeOutput(cmd, file, proof)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(audit.KindRequest), "kind of the verdict: request, head, log, wire or stray")
	f.Int64Var(&index, "index", 0, "index of the entry instead of a session and an event")
	f.StringVarP(&file, "output", "o", "", "file to write the proof to instead of standard output")
	f.StringVar(&entryFile, "entry", "", "file to write the entry to as well: the verdict's bytes")
	signers.flag(cmd, "verdicts of others are passed over")
	return cmd
}

// findVerdict returns the index of the first verdict of the kind on an event that somebody has signed whose word counts.
// What is not signed so is passed over: whoever may write to VERDICTS can put it there, before the verifier's.
func findVerdict(ctx context.Context, tree *translog.Tree, session, seq string, kind audit.Kind, signers *signerFlags) (uint64, error) {
	id, err := events.ParseID(session)
	if err != nil {
		return 0, fmt.Errorf("no session id: %w", err)
	}
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no event: want its sequence, from 1", seq)
	}
	if kinds := []audit.Kind{audit.KindRequest, audit.KindHead, audit.KindLog, audit.KindWire, audit.KindStray}; !slices.Contains(kinds, kind) {
		return 0, fmt.Errorf("--kind %q: want one of %q", kind, kinds)
	}
	index, passed := uint64(0), ""
	for entry, err := range tree.Entries(ctx, 0) {
		if err != nil {
			return 0, err
		}
		if bytes.Contains(entry, []byte(id)) {
			v, err := audit.DecodeVerdict(entry)
			if err == nil && v.Session == id && v.Seq == n && v.Kind == kind {
				err := signers.believe(&v)
				if err == nil {
					return index, nil
				}
				if passed == "" {
					passed = fmt.Sprintf("; the entry at index %d says so and does not count: %v", index, err)
				}
			}
		}
		index++
	}
	return 0, fmt.Errorf("%s verdict on event %d of session %s: %w%s", kind, n, id, errNotLogged, passed)
}

func newTlogCheckInclusion(l *logFlags) *cobra.Command {
	var entryFile string
	var signers signerFlags
	cmd := &cobra.Command{
		Use: "check-inclusion FILE --entry FILE --log-key KEY", Short: "Check such a proof, without the log", Args: cobra.ExactArgs(1),
		Long: "Checks that the checkpoint in a proof file is signed by the log's key and that the entry stands in that log; then that a verdict\n" +
			"in it has the signature of its verifier, with --trust that of one of these. A log holds whatever was stored, and only who signed\n" +
			"it makes it a verdict. Reads nothing but the two files. The entry is the verdict's bytes as they are stored; one line end behind\n" +
			"them does not matter.",
		RunE: l.run(func(cmd *cobra.Command, args []string) error {
			if len(l.keys) == 0 {
				return errors.New("whose signature counts? give --log-key")
			}
			if err := signers.check(); err != nil {
				return err
			}
			b, err := files.Read(args[0], translog.MaxProofBytes)
			if err != nil {
				return fmt.Errorf("%w: give a proof that refold tlog inclusion wrote", err)
			}
			p, err := translog.ParseProof(b)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			const longest = 64 << 20 // any message of a stream
			payload, err := files.Read(entryFile, longest)
			if err != nil {
				return fmt.Errorf("--entry: %w: give the file that refold tlog inclusion --entry wrote", err)
			}
			c, err := p.Verify(payload, l.keys...)
			if short, ok := bytes.CutSuffix(payload, []byte("\n")); ok && errors.Is(err, translog.ErrNotIncluded) {
				payload = short
				c, err = p.Verify(payload, l.keys...)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return l.printIncluded(cmd, c, p.Index, payload, &signers)
		}),
	}
	cmd.Flags().StringVar(&entryFile, "entry", "", "file with the entry: the verdict's bytes")
	_ = cmd.MarkFlagRequired("entry") // it exists
	signers.flag(cmd, "a verdict of another one is a finding")
	return cmd
}

// printIncluded tells what a proof has shown, and who says it. An entry that is not signed by a verifier that counts is a
// finding: it stands in the log, and proves nothing about the session.
func (l *logFlags) printIncluded(cmd *cobra.Command, c translog.Checkpoint, index uint64, payload []byte, signers *signerFlags) error {
	v, err := audit.DecodeVerdict(payload)
	verdict := json.RawMessage(payload)
	what, who := "an entry that is no verdict", "nobody's word counts for it"
	switch {
	case err == nil:
		err = signers.believe(&v)
		what = fmt.Sprintf("the %s verdict %s on event %d of session %s", v.Kind, v.Result, v.Seq, v.Session)
		who = "it is signed by " + v.Verifier
		if len(signers.trusted) == 0 {
			who += ", which you did not say that you trust"
		}
	case len(signers.trusted) > 0:
		err = fmt.Errorf("%w: %w", errSigner, err)
	default:
		verdict, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("the entry at index %d of the log %s: %w", index, program.Printable(c.Origin), err)
	}
	if l.globals.json {
		return printJSON(cmd.OutOrStdout(), struct {
			Checkpoint checkpointJSON  `json:"checkpoint"`
			Verdict    json.RawMessage `json:"verdict,omitempty"`
			Index      uint64          `json:"index"`
		}{checkpointOf(c), verdict, index})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s stands in the log %s, at index %d of %d\n%s\n", what, program.Printable(c.Origin), index, c.Size, who)
	return err
}
