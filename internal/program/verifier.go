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
	Creds     string // the file with the credentials of the login, whose key must be another; empty: none
	Trusted   []string
	Witnesses []string // public keys; none: calls are not compared with receipts
	Shadow    bool
	ColdShare float64
	Sweep     time.Duration
	Recheck   time.Duration
	// AuditAtStart is as in [verify.Config].
	AuditAtStart bool
}

// NewVerifier returns a verifier over a connected client.
func NewVerifier(client *jetstream.Client, f *VerifierFlags, reg prometheus.Registerer, log *slog.Logger) (*verify.Verifier, error) {
	key, err := keyfile.Load(f.KeyFile)
	if err == nil {
		err = keyfile.NotLogin(key, f.Creds)
	}
	if err != nil {
		return nil, err
	}
	for _, key := range f.Trusted {
		if err := audit.CheckPublic(key); err != nil {
			return nil, fmt.Errorf("--trust: %w", err)
		}
	}
	for _, key := range f.Witnesses {
		if err := audit.CheckPublic(key); err != nil {
			return nil, fmt.Errorf("--witness: %w", err)
		}
	}
	return verify.New(verify.Config{
		Store: client.Logs(), Objects: client.Objects(), Verdicts: client.Verdicts(), Key: key, Registry: reg, Trusted: f.Trusted,
		Witness: verify.Witness{
			Keys: f.Witnesses, Receipts: client.Receipts(), Wires: client.WireVerdicts(), Strays: client.StrayVerdicts(),
		},
		ShadowDumb: f.Shadow,
		Hints:      follow.Hints(client.Hints()), Alive: client.Healthy, ColdShare: f.ColdShare, Sweep: f.Sweep,
		Recheck: f.Recheck, AuditAtStart: f.AuditAtStart, Log: log,
	})
}

// Verifier returns the verifier command.
func Verifier() *cobra.Command {
	var s Service
	var v VerifierFlags
	var l LogFlags
	cmd := &cobra.Command{
		Use:   "verifier",
		Short: "Refold every model request from the log and the objects, compare, and publish signed verdicts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(); err != nil {
				return err
			}
			return s.Run(cmd.Context(), "verifier", func(_ context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				if v.ColdShare < 0 || v.ColdShare > 1 {
					return nil, fmt.Errorf("--cold-share %v: want a share from 0 to 1", v.ColdShare)
				}
				if v.Recheck < 0 {
					return nil, fmt.Errorf("--recheck %v: want a time, or 0 for never", v.Recheck)
				}
				v.Creds = s.Creds
				verifier, err := NewVerifier(client, &v, reg, log)
				if err != nil {
					return nil, err
				}
				return withLog(verifier, client, l, reg, log)
			})
		},
	}
	s.Flags(cmd)
	l.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&v.KeyFile, "key", env("REFOLD_VERIFIER_KEY", "verifier.seed"), "file with the nkey seed that signs verdicts; it is made when missing (REFOLD_VERIFIER_KEY)")
	f.StringArrayVar(&v.Trusted, "trust", nil, "public key of another verifier whose verdicts are taken for done; may be repeated")
	f.StringArrayVar(&v.Witnesses, "witness", nil, "public key of a witness: every answered call must have its receipt; may be repeated; without it calls are not compared with receipts")
	f.BoolVar(&v.Shadow, "shadow-dumb", false, "fold the requests of each turn a second time, the slow and simple way, and compare; of sessions of up to 2,000 events")
	f.Float64Var(&v.ColdShare, "cold-share", 0.01, "share of turn ends at which the whole session is checked anew from its first event")
	f.DurationVar(&v.Sweep, "sweep", 30*time.Second, "time between looks at all sessions")
	f.DurationVar(&v.Recheck, "recheck", time.Hour, "average time after which the log of a session at rest is folded again and compared with what was signed; 0: never")
	f.BoolVar(&v.AuditAtStart, "audit-at-start", false, "fold all sessions at rest right after the start, not within the time of --recheck")
	return cmd
}
