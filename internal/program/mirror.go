package program

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/mirror"
)

// mirrorName is the mirror's, among the programs.
const mirrorName = "mirror"

// MirrorFlags say what a mirror copies.
type MirrorFlags struct {
	Origin jetstream.Origin
	Sweep  time.Duration
	Hints  bool
}

// NewMirror returns a mirror over a connected client.
func NewMirror(client *jetstream.Client, f *MirrorFlags, reg prometheus.Registerer, log *slog.Logger) (*mirror.Mirror, error) {
	if f.Sweep <= 0 {
		return nil, fmt.Errorf("--sweep %v: want a positive time", f.Sweep)
	}
	mirrors, err := client.Mirrors(f.Origin)
	if err != nil {
		return nil, fmt.Errorf("--from-api and --from-deliver: %w", err)
	}
	cfg := mirror.Config{Mirrors: mirrors, Registry: reg, Sweep: f.Sweep, Log: log}
	if f.Hints {
		cfg.Hints = follow.Hints(client.Hints())
	}
	return mirror.New(cfg)
}

// Mirror returns the command that keeps an auditor's account in step with a fleet's.
func Mirror() *cobra.Command {
	var s Service
	var m MirrorFlags
	cmd := &cobra.Command{
		Use:   mirrorName,
		Short: "Keep mirrors, in this NATS account, of the sessions, objects and receipts of another one",
		Long: "Runs until it is stopped. Lists the streams of another account, whose JetStream API this account imports under a prefix, and\n" +
			"makes a mirror of each session's stream, of OBJECTS and of WITNESS. What was copied is never changed or deleted: when the other\n" +
			"account deletes or replaces a stream the copy stands, and the log and the metrics say so.\n\n" +
			"docs/ops/mirror.md shows the configuration of both accounts.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), mirrorName, func(_ context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				return NewMirror(client, &m, reg, log)
			})
		},
	}
	s.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&m.Origin.API, "from-api", env("REFOLD_FROM_API", "fleet.api"), "subject under which the other account's $JS.API is imported (REFOLD_FROM_API)")
	f.StringVar(&m.Origin.Deliver, "from-deliver", env("REFOLD_FROM_DELIVER", "fleet.deliver"), "subject under which the other account delivers (REFOLD_FROM_DELIVER)")
	f.DurationVar(&m.Sweep, "sweep", 10*time.Second, "time between looks at all streams")
	f.BoolVar(&m.Hints, "hints", true, "mirror a new session as soon as a hint tells of it, where the other account's hints are imported")
	return cmd
}
