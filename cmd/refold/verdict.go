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
		Long: "Lists the stored verdicts of all kinds on a session, oldest first, and whether each has the signature of the verifier that it\n" +
			"names. Those on calls that named no session are under the ID " + string(audit.NoSession) + ".\n" +
			"Whose signature counts is for you to say: refold verify --trust KEY compares the log with those of one verifier.",
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseSession(args[0])
			if err != nil {
				return err
			}
			client, done, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			stored, err := storedVerdicts(cmd.Context(), client, id)
			if err != nil {
				return err
			}
			if len(stored) == 0 && id != audit.NoSession { // of a session that is gone they are all that is left
				if _, err := client.Logs().Open(cmd.Context(), id); err != nil {
					return fmt.Errorf("%w (refold session list shows those that exist)", err)
				}
			}
			out := cmd.OutOrStdout()
			t := table(io.Discard, "")
			if !g.json {
				t = table(out, "SEQ\tKIND\tRESULT\tVERIFIER\tSIGNATURE")
			}
			for i := range stored {
				var err error
				if g.json {
					_, err = out.Write(append(stored[i].Payload, '\n'))
				} else {
					_, err = fmt.Fprintln(t, verdictRow(&stored[i]))
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
	result := string(v.Result)
	if v.Result != audit.Match && v.Rule != "" {
		result += " (" + v.Rule + ")"
	}
	return fmt.Sprintf("%d\t%s\t%s\t%s\t%s", v.Seq, v.Kind, result, cmp.Or(v.Verifier, "-"), signature)
}
