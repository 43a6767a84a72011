package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func newSession(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "session", Short: "Make, feed, follow and list sessions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionNew(g), newSessionFork(g), newSessionSend(g), newSessionSteer(g), newSessionInject(g), newSessionCancel(g),
		newSessionCompact(g), newSessionConfigure(g), newSessionClose(g), newSessionTail(g), newSessionLog(g), newSessionList(g))
	return cmd
}

func newSessionNew(g *globals) *cobra.Command {
	var o optionFlags
	var m messageFlags
	var cwd, prompt string
	var labels []string
	var wait waitFlag
	cmd := &cobra.Command{
		Use:   "new [TEXT]",
		Short: "Make a session, with a first prompt if there is one, and print its id",
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("prompt") {
				if len(args) > 0 {
					return errTwoTexts
				}
				args = []string{prompt}
			}
			options, err := o.options(cmd)
			if err != nil {
				return err
			}
			in := &events.Input{Kind: events.InputConfigure, Open: true, Options: options}
			if m.given(args) {
				if err := m.message(cmd, args, in); err != nil {
					return err
				}
				in.Kind, in.Cwd = events.InputPrompt, events.TextFromBytes([]byte(cwd))
				if in.Labels, err = parseLabels(labels); err != nil {
					return err
				}
			} else if len(labels) > 0 || cwd != "" {
				return errors.New("--label and --cwd need a first prompt")
			}
			return g.publish(cmd, program.NewID(), in, time.Duration(wait), false)
		},
	}
	o.flags(cmd)
	m.flags(cmd, "the first prompt")
	f := cmd.Flags()
	f.StringVar(&prompt, "prompt", "", "the first prompt")
	f.StringVar(&cwd, "cwd", "", "working directory to note in the log")
	f.StringArrayVar(&labels, "label", nil, "NAME=VALUE to note in the log; may be repeated")
	wait.flag(cmd, "for the turn to end, and print what is said")
	return cmd
}

func newSessionList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the sessions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, done, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			out := cmd.OutOrStdout()
			t := table(io.Discard, "")
			if !g.json {
				t = table(out, "SESSION\tEVENTS\tBYTES\tLAST EVENT")
			}
			for info, err := range client.Logs().Sessions(cmd.Context()) {
				if err != nil {
					return err
				}
				last := info.LastTime.UnixMilli()
				if g.json {
					err = printJSON(out, map[string]any{"session": info.ID, "events": info.Last, "bytes": info.Bytes, "lastTime": last})
				} else {
					_, err = fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", info.ID, info.Last, info.Bytes, stamp(last))
				}
				if err != nil {
					return err
				}
			}
			return t.Flush()
		},
	}
}

func newSessionLog(g *globals) *cobra.Command {
	var from uint64
	cmd := &cobra.Command{
		Use: "log SESSION", Short: "Print a session's events; with --json their stored payloads, one a line", Args: cobra.ExactArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, id, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			last, err := log.Last(cmd.Context())
			if err != nil {
				return err
			}
			if from > 1 && from > last {
				return fmt.Errorf("--from %d: session %s has %d events", from, id, last)
			}
			for m, err := range log.Read(cmd.Context(), max(from, 1)) {
				if err != nil {
					return err
				}
				if err := printEvent(cmd.OutOrStdout(), &m, g.json); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 1, "first sequence to print")
	return cmd
}

// printEvent prints one stored event.
func printEvent(w io.Writer, m *eventlog.Message, raw bool) error {
	if raw {
		_, err := w.Write(append(bytes.Clone(m.Payload), '\n'))
		return err
	}
	e, err := m.Event()
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%6d  %s  %-18s %s", e.Seq, stamp(e.Time), e.Type(), summary(&e))
	_, err = fmt.Fprintln(w, strings.TrimRight(line, " "))
	return err
}

func newSessionTail(g *globals) *cobra.Command {
	var from uint64
	cmd := &cobra.Command{
		Use: "tail SESSION", Short: "Follow a session: its events as they are stored", Args: cobra.ExactArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, id, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
			err = follow(cmd.Context(), client, id, log, from, func(m *eventlog.Message) (bool, error) {
				return true, printEvent(cmd.OutOrStdout(), m, g.json)
			})
			if errors.Is(err, context.Canceled) {
				return nil // the reader has seen enough
			}
			return err
		},
	}
	cmd.Flags().Uint64Var(&from, "from", 1, "first sequence to print")
	return cmd
}
