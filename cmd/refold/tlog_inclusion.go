package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// errNotLogged means that the log does not hold a verdict.
var errNotLogged = errors.New("the log does not hold it, up to its newest checkpoint")

func newTlogInclusion(l *logFlags) *cobra.Command {
	var kind, file, entryFile string
	var index int64
	cmd := &cobra.Command{
		Use: "inclusion SESSION SEQ | --index N", Short: "Print the proof that a verdict stands in the log",
		Long: "Prints a proof file (c2sp.org/tlog-proof) for the verdict on an event of a session, the first of its kind, or for the entry at\n" +
			"an index, from 0: the verdict at the place N+1 of VERDICTS. refold tlog check-inclusion checks it without the log.\n" +
			"A verdict is found by reading the log up to it.",
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
			tree, signed, err := l.tree(cmd)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				if at, err = findVerdict(cmd.Context(), tree, args[0], args[1], audit.Kind(kind)); err != nil {
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
	return cmd
}

// findVerdict returns the index of the first verdict of the kind on an event.
func findVerdict(ctx context.Context, tree *translog.Tree, session, seq string, kind audit.Kind) (uint64, error) {
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
	index := uint64(0)
	for entry, err := range tree.Entries(ctx, 0) {
		if err != nil {
			return 0, err
		}
		if bytes.Contains(entry, []byte(id)) {
			v, err := audit.DecodeVerdict(entry)
			if err == nil && v.Session == id && v.Seq == n && v.Kind == kind {
				return index, nil
			}
		}
		index++
	}
	return 0, fmt.Errorf("%s verdict on event %d of session %s: %w", kind, n, id, errNotLogged)
}

func newTlogCheckInclusion(l *logFlags) *cobra.Command {
	var entryFile string
	cmd := &cobra.Command{
		Use: "check-inclusion FILE --entry FILE --log-key KEY", Short: "Check such a proof, without the log", Args: cobra.ExactArgs(1),
		Long: "Checks that the checkpoint in a proof file is signed by the log's key and that the entry stands in that log. Reads nothing but the\n" +
			"two files. The entry is the verdict's bytes as they are stored; one line end behind them does not matter.",
		RunE: l.run(func(cmd *cobra.Command, args []string) error {
			if len(l.keys) == 0 {
				return errors.New("whose signature counts? give --log-key")
			}
			b, err := readSmallFile(args[0], translog.MaxProofBytes)
			if err != nil {
				return err
			}
			p, err := translog.ParseProof(b)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			const longest = 64 << 20 // any message of a stream
			payload, err := readSmallFile(entryFile, longest)
			if err != nil {
				return fmt.Errorf("--entry: %w", err)
			}
			c, err := p.Verify(payload, l.keys...)
			if short, ok := bytes.CutSuffix(payload, []byte("\n")); ok && errors.Is(err, translog.ErrNotIncluded) {
				payload = short
				c, err = p.Verify(payload, l.keys...)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return l.printIncluded(cmd, c, p.Index, payload)
		}),
	}
	cmd.Flags().StringVar(&entryFile, "entry", "", "file with the entry: the verdict's bytes")
	_ = cmd.MarkFlagRequired("entry") // it exists
	return cmd
}

// printIncluded tells what a proof has shown.
func (l *logFlags) printIncluded(cmd *cobra.Command, c translog.Checkpoint, index uint64, payload []byte) error {
	if l.globals.json {
		return printJSON(cmd.OutOrStdout(), struct {
			Checkpoint checkpointJSON `json:"checkpoint"`
			Index      uint64         `json:"index"`
		}{checkpointOf(c), index})
	}
	what := "an entry that is no verdict"
	if v, err := audit.DecodeVerdict(payload); err == nil {
		what = fmt.Sprintf("the %s verdict %s on event %d of session %s", v.Kind, v.Result, v.Seq, v.Session)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s stands in the log %s, at index %d of %d\n", what, program.Printable(c.Origin), index, c.Size)
	return err
}
