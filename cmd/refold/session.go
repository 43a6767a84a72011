package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func newSession(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use: "session", Short: "Make, feed, follow and list sessions", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSessionNew(g), newSessionSend(g), newSessionConfigure(g), newSessionClose(g),
		newSessionTail(g), newSessionLog(g), newSessionList(g))
	return cmd
}

// maxInputBytes bounds what is read for one input.
const maxInputBytes = 32 << 20

func readText(cmd *cobra.Command, path string) (string, error) {
	r := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close() //nolint:errcheck // only read from
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxInputBytes+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxInputBytes {
		return "", fmt.Errorf("%s is larger than %d bytes, the most that is read", path, maxInputBytes)
	}
	return events.TextFromBytes(b), nil
}

var (
	errEmptyPrompt = errors.New("the prompt is empty: give a text, or --file with one")
	errTwoPrompts  = errors.New("give the text either as an argument, with --prompt or with --file")
)

// promptText returns the text of the arguments or the file.
func promptText(cmd *cobra.Command, args []string, file string) (string, error) {
	switch {
	case file != "" && len(args) > 0:
		return "", errTwoPrompts
	case file != "":
		text, err := readText(cmd, file)
		if err != nil {
			return "", fmt.Errorf("--file: %w: give a file that can be read, or - for standard input", err)
		}
		if text == "" {
			return "", errEmptyPrompt
		}
		return text, nil
	}
	text := events.TextFromBytes([]byte(strings.Join(args, " ")))
	if text == "" {
		return "", errEmptyPrompt
	}
	return text, nil
}

// publish sends an input and tells its place; with wait it follows the session until the input's turn has ended.
func (g *globals) publish(cmd *cobra.Command, id events.ID, in *events.Input, wait time.Duration, known bool) error {
	ctx := cmd.Context()
	client, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	if known {
		if err := takesInputs(ctx, client, id); err != nil {
			return err
		}
	}
	in.ID, in.Time = program.NewID(), time.Now().UnixMilli()
	payload, err := events.EncodeInput(in)
	if err != nil {
		return err
	}
	const headerRoom = 4 << 10
	if most := client.MaxPayload() - headerRoom; int64(len(payload)) > most {
		return fmt.Errorf("the input has %d bytes, the server takes %d: shorten it, or raise max_payload", len(payload), most)
	}
	seq, _, err := client.Inbox().Publish(ctx, id, in)
	if err != nil {
		return err
	}
	if g.json {
		err = printJSON(cmd.OutOrStdout(), map[string]any{"session": id, "input": in.ID, "seq": seq})
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	if err != nil || wait == 0 {
		return err
	}
	return g.waitFor(ctx, cmd, client, id, seq, wait)
}

// takesInputs returns an error when it can be told that the session does not exist, or that it is closed. Credentials
// that may only publish cannot tell.
func takesInputs(ctx context.Context, client *jetstream.Client, id events.ID) error {
	log, err := client.Logs().Open(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		if _, waiting, nextErr := client.Inbox().Next(ctx, id, 0); nextErr == nil && !waiting {
			return fmt.Errorf("%w (refold session list shows those that exist)", err)
		}
		return nil
	}
	if err != nil {
		return nil // the publish will tell
	}
	last, err := log.Last(ctx)
	if err != nil || last == 0 {
		return nil
	}
	for m, err := range log.Read(ctx, last) {
		if err != nil {
			break
		}
		if e, err := m.Event(); err == nil && e.Type() == events.TypeSessionClosed {
			return fmt.Errorf("session %s is closed and takes no more inputs: refold session new makes another", id)
		}
	}
	return nil
}

func newSessionNew(g *globals) *cobra.Command {
	var o optionFlags
	var file, cwd, prompt string
	var labels []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "new [TEXT]",
		Short: "Make a session, with a first prompt if there is one, and print its id",
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("prompt") {
				if len(args) > 0 {
					return errTwoPrompts
				}
				args = []string{prompt}
			}
			options, err := o.options(cmd)
			if err != nil {
				return err
			}
			in := &events.Input{Kind: events.InputConfigure, Open: true, Options: options}
			if len(args) > 0 || file != "" {
				text, err := promptText(cmd, args, file)
				if err != nil {
					return err
				}
				in.Kind, in.Content, in.Cwd = events.InputPrompt, []events.Block{events.Text(text)}, events.TextFromBytes([]byte(cwd))
				if in.Labels, err = parseLabels(labels); err != nil {
					return err
				}
			} else if len(labels) > 0 || cwd != "" {
				return errors.New("--label and --cwd need a first prompt")
			}
			return g.publish(cmd, program.NewID(), in, wait, false)
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&prompt, "prompt", "", "the first prompt")
	f.StringVar(&file, "file", "", "file that holds the first prompt; - for standard input")
	f.StringVar(&cwd, "cwd", "", "working directory to note in the log")
	f.StringArrayVar(&labels, "label", nil, "NAME=VALUE to note in the log; may be repeated")
	f.DurationVar(&wait, "wait", 0, "wait so long for the turn to end, and print what is said")
	return cmd
}

func newSessionSend(g *globals) *cobra.Command {
	var file string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "send SESSION [TEXT]", Short: "Send a prompt to a session", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseSession(args[0])
			if err != nil {
				return err
			}
			text, err := promptText(cmd, args[1:], file)
			if err != nil {
				return err
			}
			return g.publish(cmd, id, &events.Input{Kind: events.InputPrompt, Content: []events.Block{events.Text(text)}}, wait, true)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "file that holds the prompt; - for standard input")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for the turn to end, and print what is said")
	return cmd
}

func newSessionConfigure(g *globals) *cobra.Command {
	var o optionFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "configure SESSION", Short: "Change a session's options from its next turn on", Args: cobra.ExactArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseSession(args[0])
			if err != nil {
				return err
			}
			options, err := o.changed(cmd)
			if err != nil {
				return err
			}
			return g.publish(cmd, id, &events.Input{Kind: events.InputConfigure, Options: options}, wait, true)
		},
	}
	o.flags(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for the change to be recorded")
	return cmd
}

func newSessionClose(g *globals) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "close SESSION", Short: "Close a session: it takes no more inputs", Args: cobra.ExactArgs(1),
		ValidArgsFunction: g.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseSession(args[0])
			if err != nil {
				return err
			}
			return g.publish(cmd, id, &events.Input{Kind: events.InputClose, Reason: events.TextFromBytes([]byte(reason))}, 0, true)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "asked to", "why, for the log")
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
			_, _, log, done, err := g.open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer done()
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

// follow shows the events from a sequence on, and those that come, until show returns false or fails. Hints only make
// it faster: it looks again every second anyway.
func follow(ctx context.Context, client *jetstream.Client, id events.ID, log eventlog.Log, from uint64, show func(*eventlog.Message) (bool, error)) error {
	live, err := client.Live().Subscribe(ctx, id)
	if err != nil {
		return err
	}
	defer live.Close()
	next := max(from, 1)
	for {
		last, err := log.Last(ctx)
		if err != nil {
			return err
		}
		if next <= last {
			for m, err := range log.Read(ctx, next) {
				if err != nil {
					return err
				}
				next = m.Seq + 1
				if more, err := show(&m); err != nil || !more {
					return err
				}
			}
		}
		const again = time.Second
		wait, cancel := context.WithTimeout(ctx, again)
		_, err = live.Next(wait)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
}

// waitFor prints what the model says in the turn that the input opens, until the turn ends. For an input that changes
// options it waits until that is recorded.
func (g *globals) waitFor(ctx context.Context, cmd *cobra.Command, client *jetstream.Client, id events.ID, input uint64, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	log, err := openWhenMade(ctx, client, id)
	if err != nil {
		return err
	}
	claimed := false
	err = follow(ctx, client, id, log, 1, func(m *eventlog.Message) (bool, error) {
		e, err := m.Event()
		if err != nil {
			return false, err
		}
		switch b := e.Body.(type) {
		case *events.UserMessage:
			claimed = claimed || b.InboxSeq >= input
		case *events.SessionConfigured:
			return b.InboxSeq < input, nil
		case *events.SessionClosed:
			return false, fmt.Errorf("session %s was closed before input %d was done", id, input)
		case *events.AssistantMessage:
			if text := textOf(b.Message.Content); claimed && text != "" {
				return true, g.say(cmd.OutOrStdout(), text)
			}
		case *events.TurnEnd:
			if !claimed {
				return true, nil
			}
			if b.Kind == events.TurnError {
				return false, fmt.Errorf("turn %d failed: %s: %s", b.Turn, b.Failure.Code, b.Failure.Message)
			}
			return false, nil
		}
		return true, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("session %s: input %d is not done after %v: is a worker running? The input is kept", id, input, patience)
	}
	return err
}

// say prints what the model said, line by line; what a terminal might take for a command is made harmless.
func (g *globals) say(w io.Writer, text string) error {
	if g.json {
		return printJSON(w, map[string]string{"text": string(events.BytesFromText(text))})
	}
	for line := range strings.Lines(strings.TrimSuffix(text, "\n") + "\n") {
		if _, err := fmt.Fprintln(w, program.Printable(strings.TrimSuffix(line, "\n"))); err != nil {
			return err
		}
	}
	return nil
}

func openWhenMade(ctx context.Context, client *jetstream.Client, id events.ID) (eventlog.Log, error) {
	for {
		log, err := client.Logs().Open(ctx, id)
		if !errors.Is(err, eventlog.ErrNotFound) {
			return log, err
		}
		const again = 50 * time.Millisecond
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, fmt.Errorf("session %s was not made in time: is a worker running? The input is kept: %w", id, ctx.Err())
		}
	}
}
