package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/tlog"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

func newExport(g *globals) *cobra.Command {
	var file, logSource string
	var withhold []string
	var force bool
	wait := waitFlag(coverWait)
	cmd := &cobra.Command{
		Use:   "export SESSION -o FILE",
		Short: "Write all that is known of a session to one file, for refold audit",
		Long: "Writes the session's log as it is stored, its objects, what verifiers and witnesses have signed about it and, with --log,\n" +
			"the newest checkpoint of the transparency log with the proofs that the verdicts stand in it. Whoever has the file checks it\n" +
			"with refold audit FILE and needs neither a server nor a network. A session that grows meanwhile is written as it was.\n\n" +
			"--withhold replaces the content of events by its hash: of user/message, tool/result, request/header, or assistant/message with\n" +
			"assistant/chunk, tool/call, compaction/summary and session/title, of which each says what the others say.\n" +
			"What short or guessable content was can be guessed from its hash.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return errors.New("no file: give -o FILE, or -o - for standard output")
			}
			if cmd.Flags().Changed("withhold") && len(withhold) == 0 { // such as of a variable that is not set: nothing would be left out
				return errors.New("--withhold: it names no type: give some, or leave the flag out")
			}
			types := make([]events.Type, len(withhold))
			for i, t := range withhold {
				types[i] = events.Type(t)
			}
			withheld, err := audit.NewWithholding(types)
			if err != nil {
				return fmt.Errorf("--withhold: %w", err)
			}
			x := &exporter{withheld: withheld, wait: time.Duration(wait), warn: func(text string) {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "refold: warning: %s\n", program.Printable(text)) // the file is what counts
			}}
			if x.tiles, err = g.logOf(cmd.Context(), logSource); err != nil {
				return err
			}
			if err := free(file, force); err != nil {
				return err
			}
			client, id, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			x.client, x.id, x.log = client, id, log
			if file == "-" {
				_, err := x.write(cmd.Context(), cmd.OutOrStdout())
				return err
			}
			var end bundle.End
			err = install(file, force, func(w io.Writer) error { end, err = x.write(cmd.Context(), w); return err })
			if err != nil {
				return err
			}
			return g.printExport(cmd.OutOrStdout(), file, id, &end)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "file to write; - for standard output")
	f.StringSliceVar(&withhold, "withhold", nil, "types of events whose content is left out, separated by commas")
	f.StringVar(&logSource, "log", os.Getenv("REFOLD_LOG"), "directory or URL of the transparency log of the verdicts; empty: that of the embedded server, if it has one (REFOLD_LOG)")
	f.Var(&wait, "wait", "wait so long for a checkpoint of the log that covers every verdict; 0 for not to wait")
	f.BoolVar(&force, "force", false, "replace the file when it is there")
	return cmd
}

// logOf returns the transparency log that is named, or that of the embedded server; nil when there is none.
func (g *globals) logOf(ctx context.Context, where string) (translog.Tiles, error) {
	if where != "" {
		tiles, err := tlog.Open(where)
		if err != nil {
			return nil, fmt.Errorf("--log: %w", err)
		}
		return tiles, nil
	}
	if g.nats != "" {
		return nil, nil
	}
	home, err := program.OpenHome(g.dir, false)
	if err != nil {
		return nil, err
	}
	dir, err := tlog.OpenDir(home.LogDir())
	if err != nil {
		return nil, nil //nolint:nilerr // it keeps none
	}
	if _, err := dir.Read(ctx, translog.CheckpointPath, translog.MaxCheckpointBytes); errors.Is(err, translog.ErrNotFound) {
		return nil, nil
	}
	return dir, nil
}

func (g *globals) printExport(out io.Writer, file string, id events.ID, end *bundle.End) error {
	if g.json {
		return printJSON(out, struct {
			Session    events.ID `json:"session"`
			File       string    `json:"file"`
			Messages   uint64    `json:"messages"`
			Objects    uint64    `json:"objects"`
			Verdicts   uint64    `json:"verdicts"`
			Receipts   uint64    `json:"receipts"`
			Inclusions uint64    `json:"inclusions"`
		}{id, file, end.Messages, end.Objects, end.Verdicts, end.Receipts, end.Inclusions})
	}
	_, err := fmt.Fprintf(out, "session %s: %d events, %d objects, %d verdicts, %d receipts, %d proofs of inclusion\n",
		id, end.Messages, end.Objects, end.Verdicts, end.Receipts, end.Inclusions)
	return err
}

// errTaken means that a file is there which may not be replaced.
var errTaken = errors.New("is there already")

// free refuses a file that is there, unless it may be replaced.
func free(file string, force bool) error {
	info, err := os.Lstat(file)
	switch {
	case file == "-" || errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("-o: %w", err)
	case info.IsDir():
		return fmt.Errorf("-o %s is a directory: name a file", file)
	case info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0:
		return fmt.Errorf("-o %s is no regular file: name a file", file)
	case !force:
		return taken(file)
	}
	return nil
}

func taken(file string) error {
	return fmt.Errorf("-o %s %w: name another file, or give --force to replace it", file, errTaken)
}

// install writes a file that is there as a whole and durable, or not at all.
func install(file string, force bool, write func(io.Writer) error) (err error) {
	dir := filepath.Dir(file)
	temp, err := os.CreateTemp(dir, ".refold-export-*")
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	defer func() {
		err = errors.Join(err, temp.Close())
		if err != nil {
			_ = os.Remove(temp.Name()) // best effort
		}
	}()
	const buffer = 1 << 20
	w := bufio.NewWriterSize(temp, buffer)
	if err := write(w); err != nil {
		return err
	}
	if err := errors.Join(w.Flush(), temp.Sync()); err != nil {
		return fmt.Errorf("write %s: %w: nothing was left behind", file, err)
	}
	if err := giveName(temp.Name(), file, force); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

// giveName gives a finished file its name. Only with force it takes the place of another: somebody may have written one
// meanwhile, and a rename would replace it. The error wraps [errTaken] then.
func giveName(temp, file string, force bool) error {
	if force {
		if err := free(file, force); err != nil {
			return err
		}
		if err := os.Rename(temp, file); err != nil {
			return fmt.Errorf("-o: %w", err)
		}
		return nil
	}
	switch err := os.Link(temp, file); {
	case errors.Is(err, fs.ErrExist):
		return taken(file)
	case err != nil:
		return fmt.Errorf("-o: %w: where a file system has no links, --force writes without", err)
	}
	if err := os.Remove(temp); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	return nil
}

// exporter writes the bundle of one session.
type exporter struct {
	client   *jetstream.Client
	id       events.ID
	log      eventlog.Log
	withheld audit.Withholding
	tiles    translog.Tiles // nil: no transparency log
	wait     time.Duration  // for a checkpoint that covers every verdict
	warn     func(text string)
}

// marked is a kind of records, and the place of the session's last one when the export began.
type marked struct {
	records *jetstream.Records
	place   uint64
}

// write writes a snapshot. What was signed is looked at first, then the end of the log: so the log holds, unless it was cut,
// all that anything signed by then is about.
func (x *exporter) write(ctx context.Context, w io.Writer) (bundle.End, error) {
	c := x.client
	verdicts, err := x.marks(ctx, c.Verdicts(), c.WireVerdicts(), c.StrayVerdicts())
	if err != nil {
		return bundle.End{}, err
	}
	receipts, err := x.marks(ctx, c.Receipts(), c.AnswerReceipts())
	if err != nil {
		return bundle.End{}, err
	}
	last, err := x.log.Last(ctx)
	if err != nil {
		return bundle.End{}, err
	}
	b, err := bundle.NewWriter(w, bundle.Manifest{Session: x.id, Last: last, Withheld: x.withheld})
	if err != nil {
		return bundle.End{}, err
	}
	if err := x.messages(ctx, b, last); err != nil {
		return bundle.End{}, err
	}
	if err := x.objects(ctx, b); err != nil {
		return bundle.End{}, err
	}
	signed, err := x.records(ctx, verdicts, last, verdictSeq)
	if err != nil {
		return bundle.End{}, err
	}
	for _, r := range signed {
		if err := b.Verdict(r.Place, r.Payload); err != nil {
			return bundle.End{}, err
		}
	}
	seen, err := x.records(ctx, receipts, last, receiptSeq)
	if err != nil {
		return bundle.End{}, err
	}
	for _, r := range seen {
		if err := b.Receipt(r.Place, r.Payload); err != nil {
			return bundle.End{}, err
		}
	}
	if err := x.proofs(ctx, b, signed); err != nil {
		return bundle.End{}, err
	}
	err = b.Close()
	return b.End(), err
}

// messages writes the log up to its last event. One that is damaged is written as far as it can be read.
func (x *exporter) messages(ctx context.Context, b *bundle.Writer, last uint64) error {
	for m, err := range x.log.Read(ctx, 1) {
		switch {
		case errors.Is(err, eventlog.ErrGap), errors.Is(err, eventlog.ErrCorrupt):
			x.warn(fmt.Sprintf("the log is damaged, and the bundle ends before: %v", err))
			return nil
		case err != nil:
			return err
		case m.Seq > last:
			return nil
		}
		if err := b.Message(&m); err != nil {
			return err
		}
	}
	return nil
}

// objects writes the objects that the store holds. Those that it lacks, or that are corrupt, are left out: the check says so
// of each request that needs one.
func (x *exporter) objects(ctx context.Context, b *bundle.Writer) error {
	store := x.client.Objects()
	for _, d := range b.Objects() {
		data, err := objects.Fetch(ctx, store, d)
		switch {
		case errors.Is(err, objects.ErrNotFound), errors.Is(err, objects.ErrCorrupt):
			x.warn(fmt.Sprintf("an object is left out: %v", err))
			continue
		case err != nil:
			return err
		}
		if err := b.Object(d, data); err != nil {
			return err
		}
	}
	return nil
}

// marks looks where the session's records end. A stream that is not there has none.
func (x *exporter) marks(ctx context.Context, kinds ...*jetstream.Records) ([]marked, error) {
	out := make([]marked, len(kinds))
	for i, records := range kinds {
		out[i].records = records
		last, err := records.Last(ctx, x.id)
		if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
			return nil, err
		}
		out[i].place = last.Seq
	}
	return out, nil
}

// records returns the session's records of some kinds, by place: those that were there when the export began, and of the later
// ones those about events up to the last.
func (x *exporter) records(ctx context.Context, kinds []marked, last uint64, seqOf func([]byte) (uint64, bool)) ([]bundle.Record, error) {
	var out []bundle.Record
	for _, kind := range kinds {
		for r, err := range kind.records.Read(ctx, x.id, 1) {
			if errors.Is(err, eventlog.ErrNotFound) {
				break
			}
			if err != nil {
				return nil, err
			}
			if seq, ok := seqOf(r.Payload); r.Seq > kind.place && (!ok || seq > last) {
				continue
			}
			if len(r.Payload) > bundle.MaxRecord {
				x.warn(fmt.Sprintf("the record at place %d has %d bytes and is left out", r.Seq, len(r.Payload)))
				continue
			}
			out = append(out, bundle.Record{Place: r.Seq, Payload: r.Payload})
		}
	}
	slices.SortFunc(out, func(a, b bundle.Record) int { return cmp.Compare(a.Place, b.Place) })
	return out, nil
}

func verdictSeq(payload []byte) (uint64, bool) {
	v, err := audit.DecodeVerdict(payload)
	return v.Seq, err == nil
}

func receiptSeq(payload []byte) (uint64, bool) {
	r, err := audit.DecodeReceipt(payload)
	return r.Seq, err == nil
}

const (
	coverWait  = 10 * time.Second       // some times as long as a log takes for a checkpoint
	coverAgain = 200 * time.Millisecond // between two looks
)

// covering returns the newest checkpoint, when one comes in time one that covers all verdicts.
func (x *exporter) covering(ctx context.Context, verdicts []bundle.Record) ([]byte, translog.Checkpoint, error) {
	newest := uint64(0)
	if len(verdicts) > 0 {
		newest = verdicts[len(verdicts)-1].Place
	}
	late := time.After(x.wait)
	for {
		signed, err := x.tiles.Read(ctx, translog.CheckpointPath, translog.MaxCheckpointBytes)
		if err != nil {
			return nil, translog.Checkpoint{}, err
		}
		point, err := translog.ReadCheckpoint(signed)
		if err != nil || point.Size >= newest {
			return signed, point, err
		}
		select {
		case <-ctx.Done():
			return nil, translog.Checkpoint{}, ctx.Err()
		case <-late:
			x.warn(fmt.Sprintf("the log %s has %d verdicts, and the session's newest is at place %d: those behind are without a proof, and refold audit --log-key says so",
				point.Origin, point.Size, newest))
			return signed, point, nil
		case <-time.After(coverAgain):
		}
	}
}

// proofs writes the newest checkpoint of the transparency log, and the proofs for the verdicts that it covers.
func (x *exporter) proofs(ctx context.Context, b *bundle.Writer, verdicts []bundle.Record) error {
	if x.tiles == nil {
		return nil
	}
	signed, point, err := x.covering(ctx, verdicts)
	if err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	tree, err := translog.OpenTree(ctx, x.tiles, point)
	if err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	if err := b.Checkpoint(signed); err != nil {
		return err
	}
	for _, r := range verdicts {
		if r.Place > point.Size {
			continue
		}
		hashes, err := tree.Inclusion(ctx, r.Place-1)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		if err := b.Inclusion(r.Place, hashes); err != nil {
			return err
		}
	}
	return nil
}
