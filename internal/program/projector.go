package program

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/project"
)

// NewProjector returns a projector over a connected client.
func NewProjector(client *jetstream.Client, sweep, ttl time.Duration, reg prometheus.Registerer, log *slog.Logger) (*project.Projector, error) {
	return project.New(project.Config{
		Store: client.Logs(), Steps: client.Steps(), Objects: client.Objects(), Hints: client.Hints(),
		Instance: NewID(), Registry: reg, Sweep: sweep, TTL: ttl, Log: log,
	})
}

// Projector returns the projector command.
func Projector() *cobra.Command {
	var s Service
	var sweep, ttl time.Duration
	cmd := &cobra.Command{
		Use:   "projector",
		Short: "Turn finished steps into durable records and metrics: what each cost, and why the cache gave less than it could",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), "projector", func(_ context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				return NewProjector(client, sweep, ttl, reg, log)
			})
		},
	}
	s.Flags(cmd)
	cmd.Flags().DurationVar(&sweep, "sweep", 30*time.Second, "time between looks at all sessions")
	cmd.Flags().DurationVar(&ttl, "cache-ttl", project.DefaultTTL, "how long the provider keeps a prefix that nobody uses")
	return cmd
}
