package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/internal/files"
)

func newRequests() *cobra.Command {
	var outside outsideFlags
	var file, out string
	cmd := &cobra.Command{
		Use:   "requests --dsh FILE --out DIR",
		Short: "Rebuild the requests of a session log of the reference system, without a server",
		Long: "Reads a session log of the reference system (DeepSeek Harness), raw or zstd frames, and writes the exact body of each\n" +
			"of its loop requests, in dispatch order, as 001.json, 002.json and so on. Nothing is written of a log with an error.\n\n" +
			"How images were shown is not in such a log: see docs/ops/import.md for where that is taken from.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			session, err := outside.translate(file, dsh.Config{})
			if err != nil {
				return fmt.Errorf("--dsh: %w", err)
			}
			if err := writeBodies(session, out); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d requests in %s\n", len(session.Requests), out)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "dsh", "", "session log of the reference system")
	outside.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "directory for the bodies; it is made when missing and must be empty")
	for _, name := range []string{"dsh", "out"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

// outsideFlags are the flags for what a session log of the reference system does not hold.
type outsideFlags struct {
	uploads, attachments    string
	textModels, imageModels []string
	rescale                 bool
}

func (o *outsideFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.uploads, "uploads", "", "directory with the recorded uploads of images; empty: files-api beside the log, if it is there")
	f.StringVar(&o.attachments, "attachments", "", "directory with the images of the log by digest")
	f.StringSliceVar(&o.textModels, "text-model", nil, "model that takes text only; may be repeated")
	f.StringSliceVar(&o.imageModels, "image-model", nil, "model that takes images; may be repeated")
	f.BoolVar(&o.rescale, "rescale", false, "make large images smaller anew when the bytes that were sent are not there")
}

// translate reads the session log of the reference system in a file.
func (o *outsideFlags) translate(file string, cfg dsh.Config) (*dsh.Session, error) {
	for _, model := range o.textModels {
		if slices.Contains(o.imageModels, model) {
			return nil, fmt.Errorf("--text-model and --image-model: both name %q: give it to one of them", model)
		}
	}
	f, err := files.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: give a session log of the reference system", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	cfg.TextModels, cfg.ImageModels, cfg.Rescale = o.textModels, o.imageModels, o.rescale
	uploads := o.uploads
	if uploads == "" {
		beside := filepath.Join(filepath.Dir(file), "files-api")
		if info, err := os.Stat(beside); err == nil && info.IsDir() {
			uploads = beside
		}
	}
	if uploads != "" {
		cfg.Uploads = os.DirFS(uploads)
	}
	if o.attachments != "" {
		cfg.Attachments = os.DirFS(o.attachments)
	}
	session, err := cfg.Translate(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return session, nil
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
