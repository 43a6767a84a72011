package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
)

func newVerdict(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verdict", Short: "List what verifiers have signed", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newVerdictList(g))
	return cmd
}

func newVerdictList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list SESSION", Short: "List the stored verdicts on a session; with --json as they are stored, one a line", Args: cobra.ExactArgs(1),
		Long: "Lists the stored verdicts on a session, oldest first, and whether each has the signature of the verifier that it names.\n" +
			"Whose signature counts is for you to say: refold verify --trust KEY compares the log with those of one verifier.",
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, id, _, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			out := cmd.OutOrStdout()
			t := table(io.Discard, "")
			if !g.json {
				t = table(out, "SEQ\tKIND\tRESULT\tVERIFIER\tSIGNATURE")
			}
			for r, err := range client.Verdicts().Read(cmd.Context(), id, 1) {
				if err != nil {
					return err
				}
				if g.json {
					_, err = out.Write(append(r.Payload, '\n'))
				} else {
					_, err = fmt.Fprintln(t, verdictRow(&r))
				}
				if err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
}

// verdictRow returns a stored verdict's row of the table. What it holds can be printed: a decoded verdict has no other text.
func verdictRow(r *jetstream.Record) string {
	v, err := audit.DecodeVerdict(r.Payload)
	switch {
	case err != nil:
		return "-\t-\t-\t-\tno verdict"
	case v.Session != r.Session:
		return fmt.Sprintf("%d\t%s\t%s\t%s\tof another session", v.Seq, v.Kind, v.Result, cmp.Or(v.Verifier, "-"))
	}
	signature := "valid"
	if v.Verify() != nil {
		signature = "invalid"
	}
	return fmt.Sprintf("%d\t%s\t%s\t%s\t%s", v.Seq, v.Kind, v.Result, cmp.Or(v.Verifier, "-"), signature)
}
