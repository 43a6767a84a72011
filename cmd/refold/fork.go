package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

func newSessionFork(g *globals) *cobra.Command {
	var o optionFlags
	var at uint64
	var cwd string
	var labels []string
	var wait waitFlag
	cmd := &cobra.Command{
		Use: "fork PARENT", Short: "Make a session that begins with what another holds, and print its id",
		Long: "Makes a session whose log begins with a copy of the parent's, up to its last event with which no turn is open, or up to the\n" +
			"event --at. The parent stays as it is. The options are those of the parent, changed as the flags say.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := &events.Input{Kind: events.InputFork, Open: true, Cwd: events.TextFromBytes([]byte(cwd))}
			in.Parent.Seq = at
			var err error
			if in.Parent.ID, err = parseSession(args[0]); err != nil {
				return err
			}
			if in.Options, err = o.options(cmd); err != nil {
				return err
			}
			if in.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if cmd.Flags().Changed("at") && at == 0 {
				return errors.New("--at 0: sequences count from 1: refold session log shows them")
			}
			client, done, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			if err := forkable(cmd.Context(), client, in.Parent); err != nil {
				return err
			}
			return g.publishTo(cmd.Context(), cmd, client, program.NewID(), in, time.Duration(wait), false)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.Uint64Var(&at, "at", 0, "the last event to copy, one with which no turn is open; the latest such one when absent")
	f.StringVar(&cwd, "cwd", "", "working directory to note in the log; the parent's when absent")
	f.StringArrayVar(&labels, "label", nil, "NAME=VALUE to note in the log; may be repeated")
	wait.flag(cmd, "for the session to be made")
	return cmd
}

// forkable returns an error when it can be told that no fork starts there. Whoever may not read the parent cannot tell:
// then the worker decides.
func forkable(ctx context.Context, client *jetstream.Client, at events.ForkPoint) error {
	log, err := client.Logs().Open(ctx, at.ID)
	if errors.Is(err, eventlog.ErrNotFound) {
		return fmt.Errorf("%w (refold session list shows those that exist)", err)
	}
	if err != nil || at.Seq == 0 {
		return nil // see above
	}
	state := fold.New(at.ID)
	var decoder events.Decoder
	var boundary uint64
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			return err
		}
		e, err := m.Take(&decoder)
		if err == nil {
			err = state.Apply(&e)
		}
		if err != nil {
			return fmt.Errorf("session %s: %w", at.ID, err)
		}
		if state.AtBoundary() && !state.Closed() {
			boundary = e.Seq
		}
		if e.Seq == at.Seq {
			break
		}
	}
	switch {
	case state.Seq() < at.Seq:
		return fmt.Errorf("--at %d: session %s has %d events: refold session log %s shows them", at.Seq, at.ID, state.Seq(), at.ID)
	case boundary != at.Seq:
		return fmt.Errorf("--at %d: something is open there: the nearest event before it at which a fork can start is %d", at.Seq, boundary)
	}
	return nil
}
