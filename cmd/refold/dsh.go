package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/dsh"
)

func newRequests() *cobra.Command {
	var file, out string
	cmd := &cobra.Command{
		Use:   "requests --dsh FILE --out DIR",
		Short: "Rebuild the requests of a session log of the reference system, without a server",
		Long: "Reads a session log of the reference system (DeepSeek Harness), raw or zstd frames, and writes the exact body of each\n" +
			"of its loop requests, in dispatch order, as 001.json, 002.json and so on. Nothing is written of a log with an error.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := rebuildForeign(file, out)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d requests in %s\n", n, out)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "dsh", "", "session log of the reference system")
	cmd.Flags().StringVar(&out, "out", "", "directory for the bodies; it is made when missing and must be empty")
	for _, name := range []string{"dsh", "out"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

func rebuildForeign(file, out string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("--dsh: %w: give a session log of the reference system", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	session, err := dsh.Translate(f)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return len(session.Requests), writeBodies(session, out)
}

// writeBodies writes all bodies or none: into a directory beside the target, which then takes its place.
func writeBodies(session *dsh.Session, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	entries, err := os.ReadDir(out)
	switch {
	case err == nil && len(entries) > 0:
		return fmt.Errorf("--out: %s is not empty: give another directory", out)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("--out: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".requests-*")
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // it is gone when all went well
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	for i := range session.Requests {
		name := filepath.Join(tmp, fmt.Sprintf("%03d.json", i+1))
		if err := os.WriteFile(name, session.Requests[i].Bytes(), 0o644); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	if err := os.Rename(tmp, out); err != nil { // an empty directory is replaced
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}
