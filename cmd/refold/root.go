package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// globals are the flags of every command.
type globals struct {
	nats  string
	creds string
	inbox string // where answers are received
	dir   string
	json  bool
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:   "refold",
		Short: "Run fleets of LLM agents whose every model request can be rebuilt from the log",
		Long: "Refold keeps each session of an agent in a log from which every model request can be rebuilt, byte for byte.\n\n" +
			"Without --nats the commands use the embedded server of `refold dev`, or its data directory when it is not running.\n\n" +
			"Start with `refold demo`, or with `refold dev` in one terminal and `refold session new --wait 30s \"Hello\"` in another.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := root.PersistentFlags()
	f.StringVar(&g.nats, "nats", os.Getenv("REFOLD_NATS"), "URL of a NATS server or cluster; empty: the embedded one (REFOLD_NATS)")
	f.StringVar(&g.creds, "creds", os.Getenv("REFOLD_CREDS"), "NATS credentials file (REFOLD_CREDS)")
	f.StringVar(&g.inbox, "inbox-prefix", os.Getenv("REFOLD_INBOX_PREFIX"), "where answers of --nats are received, as the credentials permit; empty: _INBOX (REFOLD_INBOX_PREFIX)")
	f.StringVar(&g.dir, "dir", program.DefaultHome(), "data directory of the embedded server (REFOLD_DIR)")
	f.BoolVar(&g.json, "json", false, "print JSON instead of text where there is a choice")
	root.AddCommand(
		newSession(g), newRequest(g), newVerify(g), newVerdict(g), newTlog(g), newExport(g), newAudit(g), newObject(g), newRequests(), newImport(g), newSimulator(), newDev(g), newDemo(),
		program.Mirror(), newStreams(g),
		hidden(program.Worker()), hidden(program.Verifier()), hidden(program.Projector()), hidden(program.Witness()),
	)
	return root
}

// hidden keeps the services out of the help: they are programs of their own, and here for processes that start them.
func hidden(cmd *cobra.Command) *cobra.Command {
	cmd.Hidden = true
	return cmd
}

// connect returns a client of the server that the flags name. The caller calls done.
func (g *globals) connect(ctx context.Context) (client *jetstream.Client, done func(), err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	if g.nats != "" {
		client, err := jetstream.Connect(ctx, jetstream.Config{URL: g.nats, Creds: g.creds, InboxPrefix: g.inbox, Name: "refold", Logger: log})
		if err != nil {
			return nil, nil, err
		}
		return client, client.Close, nil
	}
	home, err := program.OpenHome(g.dir, false)
	if err != nil {
		return nil, nil, err
	}
	return home.Connect(ctx, log)
}

// open connects and opens a session's log.
func (g *globals) open(ctx context.Context, arg string) (*jetstream.Client, events.ID, eventlog.Log, func(), error) {
	id, err := parseSession(arg)
	if err != nil {
		return nil, "", nil, nil, err
	}
	client, done, err := g.connect(ctx)
	if err != nil {
		return nil, "", nil, nil, err
	}
	log, err := client.Logs().Open(ctx, id)
	if err != nil {
		done()
		return nil, "", nil, nil, fmt.Errorf("%w (refold session list shows those that exist)", err)
	}
	return client, id, log, done, nil
}

func parseSession(arg string) (events.ID, error) {
	id, err := events.ParseID(arg)
	if err != nil {
		return "", fmt.Errorf("no session id: %w (refold session list shows those that exist)", err)
	}
	return id, nil
}

// completeSessions completes a session's id; silently nothing when there is no server.
func (g *globals) completeSessions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	client, done, err := g.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	var ids []string
	for info, err := range client.Logs().Sessions(ctx) {
		if err == nil {
			ids = append(ids, string(info.ID))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// table prints aligned columns.
func table(w io.Writer, header string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, header) // an error comes back from Flush
	return t
}

// printJSON prints a value as one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
