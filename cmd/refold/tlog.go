package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/tlog"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// logFlags name a transparency log and whose signature counts.
type logFlags struct {
	globals *globals
	where   string
	keys    []string
	warned  bool
}

func newTlog(g *globals) *cobra.Command {
	l := &logFlags{globals: g}
	cmd := &cobra.Command{
		Use: "tlog", Short: "Read and check the transparency log of the verdicts", Args: cobra.NoArgs,
		Long: "Reads the transparency log that a verifier keeps of all verdicts (verifier --log), and checks what it reads: no file is\n" +
			"believed that does not fit to the checkpoint, and with --log-key no checkpoint that is not signed by that key.\n\n" +
			"Exit code 0: it is as it should be. 1: it is not. 2: something could not be read, a flag or an argument is\n" +
			"wrong, or the output could not be written.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	program.FailWith(cmd, exitUnread)
	f := cmd.PersistentFlags()
	f.StringVar(&l.where, "log", os.Getenv("REFOLD_LOG"), "directory or http(s) URL of the log; empty: that of the embedded server (REFOLD_LOG)")
	f.StringArrayVar(&l.keys, "log-key", nil, "public key NAME+HASH+KEY that signs the log's checkpoints; may be repeated")
	cmd.AddCommand(newTlogCheckpoint(l), newTlogInclusion(l), newTlogCheckInclusion(l), newTlogConsistency(l), newTlogCheck(l))
	return cmd
}

// exitCode gives an error its exit code: 1 for what is not as it should be, 2 for what could not be read.
func exitCode(err error) error {
	if err == nil || errors.As(err, new(*program.ExitError)) {
		return err
	}
	for _, finding := range []error{
		translog.ErrTile, translog.ErrNotFound, translog.ErrSignature, translog.ErrNotIncluded, translog.ErrInconsistent, errFindings, errSigner,
	} {
		if errors.Is(err, finding) {
			return &program.ExitError{Code: exitFindings, Err: err}
		}
	}
	return &program.ExitError{Code: exitUnread, Err: err}
}

// run wraps what a command does.
func (l *logFlags) run(do func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		for _, key := range l.keys {
			if _, err := translog.CheckKey(key); err != nil {
				return exitCode(fmt.Errorf("--log-key: %w", err))
			}
		}
		return exitCode(do(cmd, args))
	}
}

// source returns the log's files. That of the embedded server's directory comes with its key.
func (l *logFlags) source() (translog.Tiles, error) {
	if l.where != "" {
		tiles, err := tlog.Open(l.where)
		if err != nil {
			return nil, fmt.Errorf("--log: %w", err)
		}
		return tiles, nil
	}
	if l.globals.nats != "" {
		return nil, errors.New("no log is named: give --log DIR or URL, or set REFOLD_LOG")
	}
	home, err := program.OpenHome(l.globals.dir, false)
	if err != nil {
		return nil, err
	}
	dir, err := tlog.OpenDir(home.LogDir())
	if err != nil {
		return nil, fmt.Errorf("%w: start refold dev, or give --log DIR or URL", err)
	}
	if key, err := files.Read(home.LogDir()+".key"+tlog.PublicSuffix, translog.MaxCheckpointBytes); err == nil && len(l.keys) == 0 {
		l.keys = []string{strings.TrimSpace(string(key))}
	}
	return dir, nil
}

// open believes a signed checkpoint as far as the keys go, and warns when there is none.
func (l *logFlags) open(cmd *cobra.Command, signed []byte) (translog.Checkpoint, error) {
	if len(l.keys) > 0 {
		return translog.OpenCheckpoint(signed, l.keys...)
	}
	c, err := translog.ReadCheckpoint(signed)
	if err == nil && !l.warned {
		l.warned = true
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), "refold: warning: nobody looks at the checkpoint's signature: give --log-key")
	}
	return c, err
}

// newest reads the log's newest checkpoint.
func (l *logFlags) newest(cmd *cobra.Command) (translog.Tiles, []byte, translog.Checkpoint, error) {
	tiles, err := l.source()
	if err != nil {
		return nil, nil, translog.Checkpoint{}, err
	}
	signed, err := tiles.Read(cmd.Context(), translog.CheckpointPath, translog.MaxCheckpointBytes)
	if err != nil { // without one it is no log, and nothing is found
		return nil, nil, translog.Checkpoint{}, &program.ExitError{Code: exitUnread, Err: fmt.Errorf("read the checkpoint: %w", err)}
	}
	c, err := l.open(cmd, signed)
	return tiles, signed, c, err
}

// tree reads the newest checkpoint and the log's last files.
func (l *logFlags) tree(cmd *cobra.Command) (*translog.Tree, []byte, error) {
	tiles, signed, c, err := l.newest(cmd)
	if err != nil {
		return nil, nil, err
	}
	tree, err := translog.OpenTree(cmd.Context(), tiles, c)
	return tree, signed, err
}

type checkpointJSON struct {
	Origin string `json:"origin"`
	Size   uint64 `json:"size"`
	Root   string `json:"root"`
}

func checkpointOf(c translog.Checkpoint) checkpointJSON {
	return checkpointJSON{Origin: c.Origin, Size: c.Size, Root: c.Root.String()}
}

func newTlogCheckpoint(l *logFlags) *cobra.Command {
	return &cobra.Command{
		Use: "checkpoint", Short: "Print the log's newest checkpoint as it is signed", Args: cobra.NoArgs,
		Long: "Prints the newest checkpoint, whose signature is checked with --log-key. Keep it: refold tlog consistency --from FILE shows\n" +
			"later that the log has only grown.",
		RunE: l.run(func(cmd *cobra.Command, _ []string) error {
			_, signed, c, err := l.newest(cmd)
			if err != nil {
				return err
			}
			if l.globals.json {
				return printJSON(cmd.OutOrStdout(), checkpointOf(c))
			}
			_, err = cmd.OutOrStdout().Write(signed)
			return err
		}),
	}
}

func newTlogConsistency(l *logFlags) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use: "consistency --from FILE", Short: "Show that the log has only grown since an older checkpoint", Args: cobra.NoArgs,
		Long: "Compares the newest checkpoint with an older one in a file, and prints the proof, one hash a line. The older one may be that\n" +
			"of another log of the same verdicts: then both hold the same up to its size.",
		RunE: l.run(func(cmd *cobra.Command, _ []string) error {
			b, err := files.Read(from, translog.MaxCheckpointBytes)
			if err != nil {
				return fmt.Errorf("--from: %w: give a file that refold tlog checkpoint printed", err)
			}
			tree, _, err := l.tree(cmd)
			if err != nil {
				return err
			}
			old, err := l.open(cmd, b)
			if err != nil {
				return fmt.Errorf("--from %s: %w", from, err)
			}
			return l.consistent(cmd, old, tree)
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "file with the older checkpoint, as refold tlog checkpoint printed it")
	_ = cmd.MarkFlagRequired("from") // it exists
	return cmd
}

func (l *logFlags) consistent(cmd *cobra.Command, old translog.Checkpoint, tree *translog.Tree) error {
	c := tree.Checkpoint()
	var hashes []translog.Hash
	if old.Size <= c.Size {
		var err error
		if hashes, err = tree.Consistency(cmd.Context(), old.Size); err != nil {
			return err
		}
	}
	if err := translog.VerifyConsistency(old.Size, c.Size, hashes, old.Root, c.Root); err != nil {
		return fmt.Errorf("%s: %w", c.Origin, err)
	}
	lines := make([]string, len(hashes))
	for i, h := range hashes {
		lines[i] = h.String()
	}
	if l.globals.json {
		return printJSON(cmd.OutOrStdout(), struct {
			From   checkpointJSON `json:"from"`
			To     checkpointJSON `json:"to"`
			Hashes []string       `json:"hashes"`
		}{checkpointOf(old), checkpointOf(c), lines})
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s at size %d continues %s at size %d\n", c.Origin, c.Size, old.Origin, old.Size)
	return err
}

// writeOutput writes a result to the file, or to standard output when none is named.
func writeOutput(cmd *cobra.Command, file string, b []byte) error {
	if file == "" {
		_, err := cmd.OutOrStdout().Write(b)
		return err
	}
	const mode = 0o644
	return os.WriteFile(filepath.Clean(file), b, mode)
}

// entryAt returns the entry at an index, and its proof as a file.
func entryAt(ctx context.Context, tree *translog.Tree, signed []byte, index uint64) (entry, file []byte, err error) {
	if entry, err = tree.Entry(ctx, index); err != nil {
		return nil, nil, err
	}
	hashes, err := tree.Inclusion(ctx, index)
	if err != nil {
		return nil, nil, err
	}
	c := tree.Checkpoint()
	if err := translog.VerifyInclusion(index, c.Size, translog.EntryHash(entry), hashes, c.Root); err != nil {
		return nil, nil, err
	}
	file, err = (&translog.Proof{Index: index, Hashes: hashes, Checkpoint: signed}).Encode()
	return entry, file, err
}
