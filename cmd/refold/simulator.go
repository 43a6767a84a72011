package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/provider/simulator"
)

func loadScript(path string) (simulator.Script, error) {
	script, err := simulator.LoadScript(path)
	if err != nil {
		return script, fmt.Errorf("--script: %w: docs/ops/simulator.md shows what a script looks like", err)
	}
	return script, nil
}

func newSimulator() *cobra.Command {
	var listen, script, keyEnv string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "simulator",
		Short: "Serve a model provider's API, scripted, with a prefix cache",
		Long: "Serves the chat completions of DeepSeek without a model: answers come from a script or from built-in rules, and the\n" +
			"token counts from a prefix cache that behaves as the vendor documents. docs/ops/simulator.md describes the script.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			cfg := simulator.Config{CacheTTL: ttl, Logger: log}
			if keyEnv != "" {
				if cfg.Key = os.Getenv(keyEnv); cfg.Key == "" {
					return fmt.Errorf("--key-env: the environment variable %s is empty", keyEnv)
				}
			}
			if script != "" {
				var err error
				if cfg.Script, err = loadScript(script); err != nil {
					return err
				}
			}
			sim, err := simulator.New(cfg)
			if err != nil {
				return err
			}
			server, err := simulator.Listen(listen, sim)
			if err != nil {
				return fmt.Errorf("%w: give a free HOST:PORT with --listen", err)
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "simulator: %s\n", server.URL()); err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on; port 0 takes a free one")
	f.StringVar(&script, "script", "", "JSON file with the answers; empty: built-in rules")
	f.StringVar(&keyEnv, "key-env", "", "environment variable with the key that requests must carry; empty: any or none")
	f.DurationVar(&ttl, "cache-ttl", 0, "life of a cached prefix after its last use (default 4h)")
	return cmd
}
