package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
)

func newStreams(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "streams",
		Short: "Make the shared streams, for programs that may not",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStreamsMake(g))
	return cmd
}

func newStreamsMake(g *globals) *cobra.Command {
	replicas := 1
	cmd := &cobra.Command{
		Use:   "make [NAME]...",
		Short: "Make the shared streams that are missing: all of them, or those that are named",
		Long: "Makes INBOX with the workers' consumer, OBJECTS, VERDICTS, WITNESS and STEPS where they are missing. What is there is left\n" +
			"alone; where it differs from what would be made, a line says so.\n\n" +
			"Each program makes the streams that it writes, when it may. Where only an operator may, this makes them beforehand.",
		ValidArgs: jetstream.SharedStreams(),
		RunE: func(cmd *cobra.Command, names []string) error {
			for _, name := range names {
				if !slices.Contains(jetstream.SharedStreams(), name) {
					return fmt.Errorf("no shared stream has the name %q: there are %s", name, strings.Join(jetstream.SharedStreams(), ", "))
				}
			}
			return g.makeStreams(cmd, replicas, names)
		},
	}
	cmd.Flags().IntVar(&replicas, "replicas", 1, "copies of each stream that is made: 1, 3 or 5")
	return cmd
}

// makeStreams makes the shared streams with these names, all when there are none, and prints how those differ that are there.
func (g *globals) makeStreams(cmd *cobra.Command, replicas int, names []string) error {
	client, done, err := g.connectReplicated(cmd.Context(), replicas)
	if err != nil {
		return err
	}
	defer done()
	if err := client.EnsureStreams(cmd.Context(), names...); err != nil {
		return err
	}
	differences, err := client.Differences(cmd.Context(), names...)
	if err != nil {
		return err
	}
	for _, d := range differences {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is %s, this would make it %s\n", d.Stream, d.Field, d.Have, d.Want); err != nil {
			return err
		}
	}
	return nil
}

// connectReplicated is connect for a client that makes streams with so many copies.
func (g *globals) connectReplicated(ctx context.Context, replicas int) (*jetstream.Client, func(), error) {
	if !slices.Contains([]int{1, 3, 5}, replicas) { // an even number survives no more than the odd one below it
		return nil, nil, fmt.Errorf("--replicas %d: want 1, 3 or 5", replicas)
	}
	if g.nats == "" {
		if replicas != 1 {
			return nil, nil, errors.New("--replicas: the embedded server is one: give --nats")
		}
		return g.connect(ctx)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	client, err := jetstream.Connect(ctx, jetstream.Config{URL: g.nats, Creds: g.creds, InboxPrefix: g.inbox, Name: "refold", Replicas: replicas, Logger: log})
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}
