package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/dsh"
)

// importInline is the longest text of an imported event, in bytes: as much as a worker leaves in its own.
const importInline = 64 << 10

func newImport(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import", Short: "Make sessions of the logs of other systems", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImportDSH(g))
	return cmd
}

func newImportDSH(g *globals) *cobra.Command {
	var outside outsideFlags
	var session string
	cmd := &cobra.Command{
		Use:   "dsh FILE",
		Short: "Make a session of a session log of DeepSeek Harness, and print its id",
		Long: "Reads a session log of the reference system (DeepSeek Harness), raw or zstd frames, and stores it as a session, which\n" +
			"refold verify accepts and refold session send continues. What has no counterpart is kept in events of types dsh/....\n\n" +
			"The same file becomes the same session with the same events: importing it again completes an import that ended early,\n" +
			"and otherwise changes nothing. docs/ops/import.md says what is taken over and how.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg := dsh.Config{InlineMax: importInline}
			if session != "" {
				id, err := parseSession(session)
				if err != nil {
					return fmt.Errorf("--session: %w", err)
				}
				cfg.Session = id
			}
			log, err := outside.translate(args[0], cfg)
			if err != nil {
				return err
			}
			return g.importLog(cmd, log)
		},
	}
	outside.flags(cmd)
	cmd.Flags().StringVar(&session, "session", "", "id of the session; empty: one that follows from the log")
	return cmd
}

// importLog stores a translated log and tells what was done.
func (g *globals) importLog(cmd *cobra.Command, log *dsh.Session) error {
	client, done, err := g.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer done()
	if err := client.EnsureStreams(cmd.Context()); err != nil {
		return err
	}
	const headerRoom = 4 << 10
	result, err := log.Import(cmd.Context(), dsh.Target{
		Logs: client.Logs(), Objects: client.Objects(), MaxEventBytes: client.MaxPayload() - headerRoom,
	})
	if err != nil {
		return err
	}
	if g.json {
		return printJSON(cmd.OutOrStdout(), map[string]any{
			"session": log.ID, "events": len(log.Events), "found": result.Found, "stored": result.Stored, "beyond": result.Beyond,
			"requests": len(log.Requests), "objects": len(log.Objects), "rescaled": log.Rescaled,
		})
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), log.ID); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "refold: session %s: %s\n", log.ID, told(log, result))
	return err
}

// told words what an import did.
func told(log *dsh.Session, r dsh.Imported) string {
	n := len(log.Events)
	switch {
	case r.Beyond > 0:
		return fmt.Sprintf("the %d events were imported before, and the session has gone on by %d", n, r.Beyond)
	case r.Stored == 0:
		return fmt.Sprintf("the %d events were imported before", n)
	case r.Found > 0:
		return fmt.Sprintf("%d of %d events were imported before, %d were added", r.Found, n, r.Stored)
	case log.Rescaled > 0:
		return fmt.Sprintf("%d events and %d objects imported; %d images were made smaller anew, so that requests with them differ from those that were sent",
			n, len(log.Objects), log.Rescaled)
	}
	return fmt.Sprintf("%d events and %d objects imported", n, len(log.Objects))
}
