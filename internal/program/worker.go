package program

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/httpserve"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/events"
)

// WorkerFlags say what a loop worker offers its sessions.
type WorkerFlags struct {
	Name        string
	Workspace   string
	Provider    string // the kind
	As          string // the provider's name in the log; empty: the kind
	ProviderURL string
	Model       string
	Effort      string
	System      string
	PlainHTTP   bool
	Key         provider.Secret // zero: from the environment
	Loop        LoopFlags
}

// The system prompts of sessions that have none.
const (
	systemRead  = "You are a careful assistant with read access to a workspace."
	systemWrite = "You are a careful assistant with read and write access to a workspace."
)

// Flags adds the worker's flags to a command.
func (w *WorkerFlags) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	f.StringVar(&w.Name, "name", env("REFOLD_WORKER", host), "the worker's name, stable over restarts (REFOLD_WORKER)")
	f.StringVar(&w.Provider, "provider", provider.KindDeepSeek, "model provider of sessions that choose none")
	f.StringVar(&w.As, "provider-name", "", "the provider's name in the log; empty: as --provider")
	f.StringVar(&w.ProviderURL, "provider-url", env("REFOLD_PROVIDER_URL", ""), "base URL of the provider's API; empty: the vendor's own service (REFOLD_PROVIDER_URL)")
	f.StringVar(&w.Model, "model", "deepseek-chat", "model of sessions that choose none")
	f.StringVar(&w.Effort, "effort", "", "reasoning effort of sessions that choose none: off, low, high or max")
	f.BoolVar(&w.PlainHTTP, "plain-http", false, "send the key over plain http to hosts other than this one")
	w.SessionFlags(cmd)
}

// SessionFlags adds the flags that say how sessions are run, whatever the provider is.
func (w *WorkerFlags) SessionFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&w.Workspace, "workspace", ".", "directory that the tools show, and change with --allow-write")
	f.StringVar(&w.System, "system", systemRead, "system prompt of sessions that have none; the default speaks of write access with --allow-write")
	w.Loop.Flags(cmd)
}

// system returns the system prompt of sessions that have none.
func (w *WorkerFlags) system() string {
	if w.Loop.AllowWrite && w.System == systemRead {
		return systemWrite
	}
	return w.System
}

// name returns the provider's name in the log.
func (w *WorkerFlags) name() string {
	if w.As != "" {
		return w.As
	}
	return w.Provider
}

func (w *WorkerFlags) adapter(ctx context.Context) (provider.Adapter, error) {
	cfg := provider.Config{Name: w.name(), BaseURL: w.ProviderURL, PlainHTTP: w.PlainHTTP, Key: w.Key}
	adapter, err := provider.New(w.Provider, cfg)
	if err != nil {
		return nil, err
	}
	if w.Effort != "" && w.Model != "" {
		if _, err := adapter.Prepare(ctx, events.Config{Provider: w.name(), Model: w.Model, ReasoningEffort: w.Effort}); err != nil {
			return nil, fmt.Errorf("--effort %q: %w", w.Effort, err)
		}
	}
	m, changed, err := w.Loop.model(ctx, adapter, events.Config{Provider: w.name(), Model: w.Model})
	if err != nil || !changed {
		return adapter, err
	}
	cfg.Models = []provider.Model{m}
	return provider.New(w.Provider, cfg) // the first one has made no connection
}

// Check returns what is wrong with the flags, as far as that can be told without a server.
func (w *WorkerFlags) Check(ctx context.Context) error {
	if _, err := w.Loop.settings(); err != nil {
		return err
	}
	adapter, err := w.adapter(ctx)
	if err != nil {
		return err
	}
	if c, ok := adapter.(io.Closer); ok {
		if err := c.Close(); err != nil {
			return err
		}
	}
	workspace, err := tools.OpenWorkspace(w.Workspace)
	if err != nil {
		return err
	}
	return workspace.Close()
}

// NewWorker returns a loop worker over a connected client.
func NewWorker(ctx context.Context, client *jetstream.Client, w *WorkerFlags, ackWait time.Duration, reg prometheus.Registerer, log *slog.Logger) (*worker.Worker, error) {
	cfg, err := w.Loop.settings()
	if err != nil {
		return nil, err
	}
	adapter, err := w.adapter(ctx)
	if err != nil {
		return nil, err
	}
	workspace, err := tools.OpenWorkspace(w.Workspace) // open as long as the process runs
	if err != nil {
		return nil, err
	}
	set, err := tools.NewSet(w.Loop.tools(workspace)...)
	if err != nil {
		return nil, err
	}
	metrics, err := worker.NewMetrics(reg)
	if err != nil {
		return nil, err
	}
	live, name := client.Live(), w.name()
	cfg.Name, cfg.Instance = w.Name, NewID()
	cfg.Defaults = events.Options{Provider: name, Model: w.Model, ReasoningEffort: w.Effort, System: w.system()}
	cfg.Routes = provider.NewRoutes(map[string]provider.Adapter{name: adapter})
	cfg.Tools, cfg.Objects, cfg.NewID, cfg.Jitter, cfg.Log = set, client.Objects(), NewID, rand.Float64, log
	cfg.Live = func(id events.ID, chunks []byte) {
		if err := live.Publish(id, chunks); err != nil {
			log.DebugContext(ctx, "live chunk not published", slog.Any("error", err))
		}
	}
	return worker.New(cfg, worker.Service{Client: client, AckWait: ackWait, Metrics: metrics})
}

// Worker returns the loop-worker command.
func Worker() *cobra.Command {
	var s Service
	var w WorkerFlags
	cmd := &cobra.Command{
		Use:   "loop-worker",
		Short: "Run the loops of sessions: claim inputs, make model calls, run tools, append every event",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := w.Loop.settings(); err != nil { // before anything is connected
				return err
			}
			return s.Run(cmd.Context(), "loop-worker", func(ctx context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				return NewWorker(ctx, client, &w, s.AckWait, reg, log)
			})
		},
	}
	s.Flags(cmd)
	w.Flags(cmd)
	return cmd
}

// Runner is a service.
type Runner interface {
	// Run works until ctx ends, which is no error.
	Run(ctx context.Context) error
}

// healthy is a service that knows more about its health than that it runs and NATS is reached.
type healthy interface{ Health() error }

// Run connects, builds a service and runs it until ctx ends, with metrics and health when asked to.
func (s *Service) Run(ctx context.Context, name string, build func(context.Context, *jetstream.Client, *prometheus.Registry, *slog.Logger) (Runner, error)) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	if err := s.run(ctx, name, log, build); err != nil && ctx.Err() == nil {
		return err
	}
	return nil // told to stop, perhaps in the middle of the start, it has done what it was told
}

func (s *Service) run(ctx context.Context, name string, log *slog.Logger, build func(context.Context, *jetstream.Client, *prometheus.Registry, *slog.Logger) (Runner, error)) error {
	client, err := s.Connect(ctx, name)
	if err != nil {
		return err
	}
	defer client.Close()
	reg := Registry()
	group, ctx := errgroup.WithContext(ctx)
	service, err := build(ctx, client, reg, log)
	if err != nil {
		return err
	}
	health := client.Healthy
	if h, ok := service.(healthy); ok {
		health = h.Health
	}
	if s.Metrics != "" {
		listener, err := httpserve.Listen(ctx, s.Metrics)
		if err != nil {
			return err
		}
		var mounts []httpserve.Mount
		if m, ok := service.(mounting); ok {
			mounts = m.Mounts()
		}
		group.Go(func() error { return httpserve.ServeListener(ctx, listener, reg, health, mounts...) })
	}
	log.InfoContext(ctx, "ready", slog.String("program", name), slog.String("nats", client.Where()))
	group.Go(func() error { return service.Run(ctx) })
	return group.Wait()
}
