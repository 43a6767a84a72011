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
	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
)

// VerifierFlags say how a verifier works.
type VerifierFlags struct {
	KeyFile   string
	Trusted   []string
	ColdShare float64
	Sweep     time.Duration
	Recheck   time.Duration
}

// NewVerifier returns a verifier over a connected client.
func NewVerifier(client *jetstream.Client, f *VerifierFlags, reg prometheus.Registerer, log *slog.Logger) (*verify.Verifier, error) {
	key, err := keyfile.Load(f.KeyFile)
	if err != nil {
		return nil, err
	}
	for _, key := range f.Trusted {
		if err := audit.CheckPublic(key); err != nil {
			return nil, fmt.Errorf("--trust: %w", err)
		}
	}
	return verify.New(verify.Config{
		Store: client.Logs(), Objects: client.Objects(), Verdicts: client.Verdicts(), Key: key, Registry: reg, Trusted: f.Trusted,
		Hints: follow.Hints(client.Hints()), Alive: client.Healthy, ColdShare: f.ColdShare, Sweep: f.Sweep,
		Recheck: f.Recheck, Log: log,
	})
}

// Verifier returns the verifier command.
func Verifier() *cobra.Command {
	var s Service
	var v VerifierFlags
	cmd := &cobra.Command{
		Use:   "verifier",
		Short: "Refold every model request from the log and the objects, compare, and publish signed verdicts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), "verifier", func(_ context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				if v.ColdShare < 0 || v.ColdShare > 1 {
					return nil, fmt.Errorf("--cold-share %v: want a share from 0 to 1", v.ColdShare)
				}
				if v.Recheck < 0 {
					return nil, fmt.Errorf("--recheck %v: want a time, or 0 for never", v.Recheck)
				}
				return NewVerifier(client, &v, reg, log)
			})
		},
	}
	s.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&v.KeyFile, "key", env("REFOLD_VERIFIER_KEY", "verifier.seed"), "file with the nkey seed that signs verdicts; it is made when missing (REFOLD_VERIFIER_KEY)")
	f.StringArrayVar(&v.Trusted, "trust", nil, "public key of another verifier whose verdicts are taken for done; may be repeated")
	f.Float64Var(&v.ColdShare, "cold-share", 0.01, "share of turn ends at which the whole session is checked anew from its first event")
	f.DurationVar(&v.Sweep, "sweep", 30*time.Second, "time between looks at all sessions")
	f.DurationVar(&v.Recheck, "recheck", time.Hour, "average time after which the log of a session at rest is compared again with what was signed; 0: only after a start")
	return cmd
}
