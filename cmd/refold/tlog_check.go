package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// errFindings means that a check has found something; what it is has been printed.
var errFindings = errors.New("not as it should be")

// maxShown bounds the findings that are listed.
const maxShown = 1000

// The names of what refold tlog check finds. docs/format/tlog.md describes them.
const (
	findFiles     = "files"     // the log's files and its checkpoint
	findStream    = "stream"    // the stored verdicts and the log's entries
	findSignature = "signature" // an entry and who signed it
	findGone      = "gone"      // a session with verdicts and its stream
)

type finding struct {
	What    string    `json:"what"`
	Place   uint64    `json:"place,omitempty"` // in VERDICTS, one more than the index in the log
	Session events.ID `json:"session,omitempty"`
	Text    string    `json:"text"`
}

// logCheck is a check in progress.
type logCheck struct {
	trusted  []string
	tree     *translog.Tree
	sessions map[events.ID]uint64 // the place of the first verdict on it

	Checkpoint checkpointJSON `json:"checkpoint"`
	Verdicts   uint64         `json:"verdicts"` // entries that were looked at
	Newer      uint64         `json:"newer"`    // stored verdicts that the log does not have yet
	Sessions   int            `json:"sessions"`
	Findings   []finding      `json:"findings"`
	More       int            `json:"more,omitempty"` // findings beyond those listed
}

func newTlogCheck(l *logFlags) *cobra.Command {
	var offline bool
	var signers signerFlags
	cmd := &cobra.Command{
		Use: "check", Short: "Check all of the log against its root, the stored verdicts and the sessions", Args: cobra.NoArgs,
		Long: "Reads every entry and every tile of the log and compares them with the checkpoint; the stored verdicts with the entries; each\n" +
			"verdict's signature with its verifier; and the sessions that verdicts name with those that are there.",
		RunE: l.run(func(cmd *cobra.Command, _ []string) error {
			if err := signers.check(); err != nil {
				return err
			}
			tree, _, err := l.tree(cmd)
			if err != nil {
				return err
			}
			c := &logCheck{trusted: signers.trusted, tree: tree, sessions: make(map[events.ID]uint64), Checkpoint: checkpointOf(tree.Checkpoint()), Findings: []finding{}}
			if err := c.all(cmd.Context(), l.globals, offline); err != nil {
				return err
			}
			return c.print(cmd, l.globals.json)
		}),
	}
	cmd.Flags().BoolVar(&offline, "offline", false, "look at the log alone, without the stored verdicts and the sessions")
	signers.flag(cmd, "a verdict of another one is a finding")
	return cmd
}

func (c *logCheck) found(f finding) {
	if len(c.Findings) == maxShown {
		c.More++
		return
	}
	f.Text = program.Printable(f.Text)
	c.Findings = append(c.Findings, f)
}

func (c *logCheck) all(ctx context.Context, g *globals, offline bool) error {
	if offline {
		return c.entries(ctx, nil)
	}
	client, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := c.entries(ctx, client.Verdicts().Entries(ctx, 1)); err != nil {
		return err
	}
	return c.gone(ctx, client)
}

// entries looks at all of the log, beside the stored verdicts unless they are nil.
func (c *logCheck) entries(ctx context.Context, stored iter.Seq2[jetstream.Entry, error]) error {
	next := func() (jetstream.Entry, error, bool) { return jetstream.Entry{}, nil, false }
	if stored != nil {
		var stop func()
		next, stop = iter.Pull2(stored)
		defer stop()
	}
	compared := stored != nil
	place := uint64(0)
	for entry, err := range c.tree.Entries(ctx, 0) {
		if errors.Is(err, translog.ErrTile) || errors.Is(err, translog.ErrNotFound) {
			c.found(finding{What: findFiles, Place: place + 1, Text: err.Error()})
			return nil // nothing behind it can be told apart
		}
		if err != nil {
			return err
		}
		place++
		c.signed(place, entry)
		if compared {
			if compared, err = c.compare(place, entry, next); err != nil {
				return err
			}
		}
	}
	for compared {
		_, err, ok := next()
		if gap := errors.Is(err, eventlog.ErrGap); gap {
			c.found(finding{What: findStream, Text: err.Error()})
		} else if err != nil {
			return err
		}
		if !ok || err != nil {
			break
		}
		c.Newer++
	}
	return nil
}

// compare compares an entry with the next stored verdict. more says whether there may be another one.
func (c *logCheck) compare(place uint64, entry []byte, next func() (jetstream.Entry, error, bool)) (more bool, err error) {
	stored, err, ok := next()
	switch {
	case errors.Is(err, eventlog.ErrGap), errors.Is(err, eventlog.ErrNotFound):
		c.found(finding{What: findStream, Place: place, Text: err.Error()})
		return false, nil
	case err != nil:
		return false, err
	case !ok:
		c.found(finding{What: findStream, Place: place, Text: fmt.Sprintf("the stored verdicts end before place %d, the log holds %d", place, c.Checkpoint.Size)})
		return false, nil
	case !bytes.Equal(translog.Entry(stored.Payload), entry):
		c.found(finding{What: findStream, Place: place, Text: "another verdict is stored than the log holds"})
	default:
		if v, err := audit.DecodeVerdict(entry); err == nil && stored.Subject != subjectOf(&v) {
			c.found(finding{What: findStream, Place: place, Session: v.Session, Text: fmt.Sprintf("it is stored on the subject %q", stored.Subject)})
		}
	}
	return true, nil
}

// subjectOf returns where a verdict is published.
func subjectOf(v *audit.Verdict) string {
	subject := "verdict." + string(v.Session)
	if v.Kind == audit.KindWire || v.Kind == audit.KindStray {
		subject += "." + string(v.Kind)
	}
	return subject
}

// signed looks at who signed an entry, and takes note of its session.
func (c *logCheck) signed(place uint64, entry []byte) {
	c.Verdicts++
	v, err := audit.DecodeVerdict(entry)
	if err != nil {
		c.found(finding{What: findSignature, Place: place, Text: err.Error()})
		return
	}
	if err := v.Verify(); err != nil {
		c.found(finding{What: findSignature, Place: place, Session: v.Session, Text: err.Error()})
		return // whoever wrote it may have made the session up
	}
	if len(c.trusted) > 0 && !slices.Contains(c.trusted, v.Verifier) {
		c.found(finding{What: findSignature, Place: place, Session: v.Session, Text: "it is signed by " + v.Verifier + ", which is not trusted"})
		return
	}
	if v.Kind == audit.KindStray { // anybody may name a session that never was
		return
	}
	if _, ok := c.sessions[v.Session]; !ok && v.Session != audit.NoSession {
		c.sessions[v.Session] = place
	}
}

// gone looks for sessions that have verdicts and no stream.
func (c *logCheck) gone(ctx context.Context, client *jetstream.Client) error {
	c.Sessions = len(c.sessions)
	for info, err := range client.Logs().Sessions(ctx) {
		if err != nil {
			return err
		}
		delete(c.sessions, info.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(c.sessions)) {
		c.found(finding{What: findGone, Place: c.sessions[id], Session: id, Text: "there are verdicts on it and its stream is not there"})
	}
	return nil
}

func (c *logCheck) print(cmd *cobra.Command, json bool) error {
	out := cmd.OutOrStdout()
	if json {
		if err := printJSON(out, c); err != nil {
			return err
		}
	} else if err := c.printText(cmd); err != nil {
		return err
	}
	if n := len(c.Findings) + c.More; n > 0 {
		return fmt.Errorf("log %s: %d findings: %w", program.Printable(c.Checkpoint.Origin), n, errFindings)
	}
	return nil
}

func (c *logCheck) printText(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	if len(c.Findings) > 0 {
		t := table(out, "WHAT\tPLACE\tSESSION\tFINDING")
		for _, f := range c.Findings {
			session := string(f.Session)
			if session == "" {
				session = "-"
			}
			if _, err := fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", f.What, f.Place, session, f.Text); err != nil {
				return err
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if c.More > 0 {
		if _, err := fmt.Fprintf(out, "and %d more\n", c.More); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "log %s: size %d, root %s\n%d verdicts checked, %d newer ones not in the log yet, %d sessions\n",
		program.Printable(c.Checkpoint.Origin), c.Checkpoint.Size, c.Checkpoint.Root, c.Verdicts, c.Newer, c.Sessions)
	return err
}
