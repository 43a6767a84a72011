package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/httpserve"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
)

// providerSimulator is the name of the built-in simulator, as a flag's value and in the log.
const providerSimulator = "simulator"

func newDev(g *globals) *cobra.Command {
	var port int
	var metrics, script string
	var witness bool
	var w program.WorkerFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process: NATS, worker, verifier, projector and a provider simulator",
		Long: "Runs NATS with file storage under --dir, a loop worker, a verifier, a projector and a provider simulator in one process,\n" +
			"until it is interrupted. The other commands find it by --dir. With --provider deepseek and DEEPSEEK_API_KEY set it\n" +
			"uses the real service.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if g.nats != "" {
				return errors.New("refold dev brings its own NATS server: leave --nats and REFOLD_NATS out, or run the programs one by one")
			}
			if witness && w.Provider != providerSimulator && w.ProviderURL == "" {
				return errors.New("--witness stands before one address: give the provider's with --provider-url")
			}
			return runDev(cmd.Context(), cmd.OutOrStdout(), g.dir, port, metrics, script, witness, &w)
		},
	}
	f := cmd.Flags()
	f.IntVar(&port, "port", -1, "port of the NATS server on 127.0.0.1; -1 takes a free one")
	f.StringVar(&metrics, "metrics", "127.0.0.1:0", "address for /metrics and /healthz; port 0 takes a free one")
	f.StringVar(&script, "script", "", "script of the simulator")
	f.BoolVar(&witness, "witness", false, "run a witness between worker and provider too, and have the verifier compare each call with its receipt")
	providerFlags(cmd, &w)
	w.SessionFlags(cmd)
	return cmd
}

func providerFlags(cmd *cobra.Command, w *program.WorkerFlags) {
	f := cmd.Flags()
	f.StringVar(&w.Provider, "provider", providerSimulator, "simulator, or deepseek for the real service")
	f.StringVar(&w.ProviderURL, "provider-url", "", "base URL of the real service's API; empty: the vendor's own")
	f.StringVar(&w.Model, "model", "deepseek-chat", "model of sessions that choose none")
}

func runDev(ctx context.Context, out io.Writer, dir string, port int, metrics, script string, witness bool, w *program.WorkerFlags) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	group, ctx := errgroup.WithContext(ctx)
	sim, err := simulate(ctx, group, w, script)
	if err != nil {
		return err
	}
	w.Name = "dev"
	if err := w.Check(ctx); err != nil {
		return err
	}
	home, err := program.OpenHome(dir, true)
	if err != nil {
		return err
	}
	local, err := program.StartLocal(ctx, home, program.LocalOptions{Port: port, Log: log})
	if err != nil {
		return err
	}
	defer local.Close()
	listener, err := httpserve.Listen(ctx, metrics)
	if err != nil {
		return err
	}
	key := "none"
	if witness {
		stands, err := local.Witness(ctx, w)
		if err != nil {
			return err
		}
		key = stands.Public()
		group.Go(func() error { return stands.Run(ctx) })
	}
	group.Go(func() error {
		return httpserve.ServeListener(ctx, listener, local.Registry, local.Client.Healthy, local.Mounts()...)
	})
	group.Go(func() error { return local.Audit(ctx) })
	group.Go(func() error { return local.Work(ctx, w) })
	simulated := "none"
	if sim != nil {
		simulated = sim.URL()
	}
	_, err = fmt.Fprintf(out, "data:      %s\nnats:      %s\nmetrics:   http://%s/metrics\nsimulator: %s\nwitness:   %s\nready; interrupt to stop\n",
		home.Dir(), local.Server.ClientURL(), listener.Addr(), simulated, key)
	if err != nil {
		return err
	}
	return group.Wait()
}

// simulate starts the simulator when w asks for it and points w at it; nil when w asks for something else.
func simulate(ctx context.Context, group *errgroup.Group, w *program.WorkerFlags, script string) (*simulator.Server, error) {
	if w.Provider != providerSimulator {
		if script != "" {
			return nil, errors.New("--script is for the simulator: leave it out, or choose --provider simulator")
		}
		return nil, nil //nolint:nilnil // no simulator is no failure
	}
	var cfg simulator.Config
	if script != "" {
		var err error
		if cfg.Script, err = loadScript(script); err != nil {
			return nil, err
		}
	}
	const key = "simulator" // a real key in the environment is not for it
	cfg.Key = key
	sim, err := simulator.New(cfg)
	if err != nil {
		return nil, err
	}
	if w.Key, err = provider.NewSecret(key); err != nil {
		return nil, err
	}
	server, err := simulator.Listen("127.0.0.1:0", sim)
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return server.Run(ctx) })
	w.Provider, w.As, w.ProviderURL = provider.KindDeepSeek, providerSimulator, server.URL()
	return server, nil
}
