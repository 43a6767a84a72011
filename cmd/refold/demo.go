package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	demoPatience = 100 * time.Second // for everything
	demoAckWait  = 2 * time.Second   // how soon a killed worker's input is handed to the next one
)

func newDemo() *cobra.Command {
	var keep string
	var w program.WorkerFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Drive a session through tools, a header change and a killed worker, and verify every request",
		Long: "Starts NATS, a verifier, a projector and a provider simulator in this process and a loop worker in another one; drives a\n" +
			"session of four turns, kills the worker with SIGKILL in the middle of an answer, lets a second worker go on, and prints\n" +
			"for every model request what the verifier and the projector say. It fails unless every request is a match.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), demoPatience)
			defer cancel()
			dir, err := demoDir(keep)
			if err != nil {
				return err
			}
			if keep == "" {
				defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
			}
			err = runDemo(ctx, cmd.OutOrStdout(), dir, &w)
			if errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("the demo did not end within %v: %w", demoPatience, err)
			}
			return err
		},
	}
	providerFlags(cmd, &w)
	cmd.Flags().StringVar(&keep, "keep", "", "keep the data in this new directory, for refold --dir DIR/data")
	return cmd
}

func demoDir(keep string) (string, error) {
	if keep == "" {
		return os.MkdirTemp("", "refold-demo-*")
	}
	if entries, err := os.ReadDir(keep); err == nil && len(entries) > 0 {
		return "", fmt.Errorf("--keep: %s is not empty: give a new directory", keep)
	}
	if err := os.MkdirAll(keep, 0o700); err != nil {
		return "", fmt.Errorf("--keep: %w", err)
	}
	return filepath.Abs(keep)
}

// demo is the running demo.
type demo struct {
	out       io.Writer
	local     *program.Local
	worker    program.WorkerFlags
	sim       *simulator.Simulator // nil with a real provider
	simKey    string
	children  int
	current   *child // the worker that runs, nil when none should
	session   events.ID
	log       eventlog.Log
	published uint64 // the place of the last input
}

func runDemo(ctx context.Context, out io.Writer, dir string, w *program.WorkerFlags) error {
	d := &demo{out: out, worker: *w, session: program.NewID()}
	d.worker.Workspace = filepath.Join(dir, "workspace")
	if err := demoWorkspace(d.worker.Workspace); err != nil {
		return err
	}
	services, cancel := context.WithCancel(ctx)
	defer cancel()
	group, services := errgroup.WithContext(services)
	if err := d.simulate(services, group); err != nil {
		return err
	}
	if err := d.worker.Check(ctx); err != nil {
		return err
	}
	home, err := program.OpenHome(filepath.Join(dir, "data"), true)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if d.local, err = program.StartLocal(ctx, home, program.LocalOptions{Port: -1, AckWait: demoAckWait, Log: log}); err != nil {
		return err
	}
	defer d.local.Close()
	group.Go(func() error { return d.local.Audit(services) })
	group.Go(func() error {
		defer cancel()
		if err := d.drive(services); err != nil {
			return err
		}
		return d.report(services)
	})
	d.say("data:    %s\nnats:    %s\nsession: %s\n", home.Dir(), d.local.Server.ClientURL(), d.session)
	err = group.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return nil
	}
	return err
}

func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

func demoWorkspace(dir string) error {
	files := map[string]string{
		"notes.txt":        strings.Repeat("Record before effect. One decision, one event. Append, never rebuild.\n", 12),
		"todo.txt":         "1. Water the log.\n2. Fold it.\n3. Compare the bytes.\n",
		"docs/binary.dat":  "not UTF-8: \xff\xfe, a NUL: \x00\n",
		"docs/unicode.txt": "emoji \U0001F600, line separator \u2028, \u05E2\u05D1\u05E8\u05D9\u05EA\n",
	}
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// The demo's prompts. The simulator's script answers to the words that stand in them.
const (
	promptNotes  = "List the workspace and read notes.txt and docs/binary.dat."
	promptLong   = "Explain at length why a log beats a transcript."
	promptTodo   = "Now read todo.txt and docs/unicode.txt."
	promptThanks = "Thanks. One last word?"
)

func demoScript() simulator.Script {
	results := func(n int) *int { return &n }
	long := strings.Repeat("A transcript says what somebody remembers; a log says what happened. ", 24)
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "notes.txt", ToolResults: results(0)}, Answer: simulator.Answer{
			Reasoning: "I should look before I speak.", Text: "Let me look.", Calls: []simulator.Call{
				{Name: "list", Arguments: `{}`},
				{Name: "read", Arguments: `{"path":"notes.txt"}`},
				{Name: "read", Arguments: `{"path":"docs/binary.dat"}`, NoID: true},
			},
		}},
		{When: simulator.Condition{Contains: "notes.txt"}, Answer: simulator.Answer{Text: "The notes say: record before effect \U0001F600."}},
		{When: simulator.Condition{Contains: "at length"}, Answer: simulator.Answer{
			Reasoning: "This will take a while.", Text: asText(long), DeltaSizes: []int{24}, DelaysMs: []int{40},
		}},
		{When: simulator.Condition{Contains: "todo.txt", ToolResults: results(0)}, Answer: simulator.Answer{Calls: []simulator.Call{
			{Name: "read", Arguments: `{"path":"todo.txt"}`}, {Name: "read", Arguments: `{"path":"docs/unicode.txt"}`},
		}}},
		{When: simulator.Condition{Contains: "todo.txt"}, Answer: simulator.Answer{Text: "Three items, the first: water the log."}},
		{Answer: simulator.Answer{Text: "Fold."}},
	}}
}

// simulate starts the simulator unless the demo uses a real provider.
func (d *demo) simulate(ctx context.Context, group *errgroup.Group) error {
	if d.worker.Provider != providerSimulator {
		return nil
	}
	const key = "demo-key"
	sim, err := simulator.New(simulator.Config{Script: demoScript(), Key: key, Record: true})
	if err != nil {
		return err
	}
	server, err := simulator.Listen("127.0.0.1:0", sim)
	if err != nil {
		return err
	}
	group.Go(func() error { return server.Run(ctx) })
	if d.worker.Key, err = provider.NewSecret(key); err != nil {
		return err
	}
	d.sim, d.simKey = sim, key
	d.worker.Provider, d.worker.As, d.worker.ProviderURL = provider.KindDeepSeek, providerSimulator, server.URL()
	return nil
}

// child is a loop worker in a process of its own.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, read after done
}

// startWorker starts a loop worker as a process of its own.
func (d *demo) startWorker(ctx context.Context) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	d.children++
	w := &d.worker
	c := &child{name: fmt.Sprintf("demo-%d", d.children), done: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, self, "loop-worker",
		"--nats", d.local.Server.ClientURL(), "--name", c.name, "--workspace", w.Workspace,
		"--provider", w.Provider, "--provider-name", w.As, "--provider-url", w.ProviderURL, "--model", w.Model,
		"--system", demoSystem, "--ack-wait", demoAckWait.String(), "--log-level", "error")
	c.cmd.Stderr = os.Stderr
	c.cmd.Env = os.Environ()
	if d.sim != nil {
		c.cmd.Env = slices.DeleteFunc(c.cmd.Env, func(v string) bool { return strings.HasPrefix(v, provider.EnvDeepSeekKey+"=") })
		c.cmd.Env = append(c.cmd.Env, provider.EnvDeepSeekKey+"="+d.simKey)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	go func() {
		defer close(c.done)
		c.err = c.cmd.Wait()
	}()
	d.current = c
	return c, nil
}

// kill ends a worker the hard way.
func (d *demo) kill(c *child) {
	d.current = nil
	_ = c.cmd.Process.Kill() // SIGKILL; it may be gone already
	<-c.done                 // its exit code is the signal's
}

// watched returns a context that ends with the running worker, which is then the cause.
func (d *demo) watched(ctx context.Context) (context.Context, context.CancelFunc) {
	c := d.current
	if c == nil {
		return context.WithCancel(ctx)
	}
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.done:
			cancel(fmt.Errorf("worker %s ended by itself: %w", c.name, c.err))
		case <-watched.Done():
		}
	}()
	return watched, func() { cancel(context.Canceled) }
}

const demoSystem = "You are the assistant of a demonstration. You have read access to a small workspace through two tools, " +
	"list and read. Use them when you are asked about files, and only then. Answer in one or two short sentences unless you " +
	"are asked to explain at length. Never guess what a file holds: read it. When a file holds bytes that are not text, say so."

// drive takes the session through its turns.
func (d *demo) drive(ctx context.Context) error {
	worker, err := d.startWorker(ctx)
	if err != nil {
		return err
	}
	defer func() { d.kill(worker) }()
	if err := d.send(ctx, &events.Input{Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text(promptNotes)}}); err != nil {
		return err
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, endOfTurn(1)); err != nil {
		return err
	}
	d.say("turn 1 done: tools listed and read the workspace\n")
	if err := d.send(ctx, &events.Input{Kind: events.InputConfigure, Options: events.Options{ReasoningEffort: "max"}}); err != nil {
		return err
	}
	if err := d.prompt(ctx, promptLong); err != nil {
		return err
	}
	if err := d.until(ctx, chunkOfTurn(2)); err != nil {
		return err
	}
	d.kill(worker)
	d.say("turn 2: header changed, worker demo-1 killed with SIGKILL in mid-stream\n")
	if worker, err = d.startWorker(ctx); err != nil {
		return err
	}
	if err := d.until(ctx, endOfTurn(2)); err != nil {
		return err
	}
	d.say("turn 2 done: worker demo-2 took over and finished it\n")
	if err := d.prompt(ctx, promptTodo); err != nil {
		return err
	}
	if err := d.until(ctx, endOfTurn(3)); err != nil {
		return err
	}
	d.say("turn 3 done: more tools\n")
	if err := d.send(ctx, &events.Input{Kind: events.InputConfigure, Options: events.Options{System: demoSystem + " Be warm."}}); err != nil {
		return err
	}
	if err := d.prompt(ctx, promptThanks); err != nil {
		return err
	}
	if err := d.until(ctx, endOfTurn(4)); err != nil {
		return err
	}
	d.say("turn 4 done: another system prompt, so the cache had to start anew\n\n")
	return nil
}

func (d *demo) prompt(ctx context.Context, text string) error {
	return d.send(ctx, &events.Input{Kind: events.InputPrompt, Content: []events.Block{events.Text(text)}})
}

func (d *demo) send(ctx context.Context, in *events.Input) (err error) {
	in.ID, in.Time = program.NewID(), time.Now().UnixMilli()
	d.published, _, err = d.local.Client.Inbox().Publish(ctx, d.session, in)
	return err
}

// open opens the session's log as soon as the worker has made it.
func (d *demo) open(ctx context.Context) (err error) {
	ctx, cancel := d.watched(ctx)
	defer cancel()
	d.log, err = openWhenMade(ctx, d.local.Client, d.session)
	return blame(ctx, err)
}

// blame returns the cause when err is there because ctx was cancelled for one.
func blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// until follows the session until an event is the one waited for.
func (d *demo) until(ctx context.Context, found func(*events.Event) (bool, error)) error {
	ctx, cancel := d.watched(ctx)
	defer cancel()
	err := follow(ctx, d.local.Client, d.session, d.log, 1, func(m *eventlog.Message) (bool, error) {
		e, err := m.Event()
		if err != nil {
			return false, err
		}
		ok, err := found(&e)
		return !ok, err
	})
	return blame(ctx, err)
}

func endOfTurn(turn int64) func(*events.Event) (bool, error) {
	return func(e *events.Event) (bool, error) {
		b, ok := e.Body.(*events.TurnEnd)
		if !ok || b.Turn != turn {
			return false, nil
		}
		if b.Kind != events.TurnCompleted {
			return false, fmt.Errorf("turn %d ended as %s: %s %s", turn, b.Kind, b.Failure.Code, b.Failure.Message)
		}
		return true, nil
	}
}

func chunkOfTurn(turn int64) func(*events.Event) (bool, error) {
	return func(e *events.Event) (bool, error) {
		b, ok := e.Body.(*events.AssistantChunk)
		return ok && b.Turn == turn, nil
	}
}

// sentBodies returns the bodies that the simulator received, by the sequence of their llm/stream.
func (d *demo) sentBodies() map[uint64][]byte {
	out := make(map[uint64][]byte)
	for _, r := range d.sim.Requests() {
		out[r.Seq] = bytes.Clone(r.Body)
	}
	return out
}
