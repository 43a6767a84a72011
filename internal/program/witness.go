package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/internal/witness"
)

// WitnessFlags say where a witness stands.
type WitnessFlags struct {
	Listen    string // the address; port 0 takes a free one
	Upstream  string // the base URL of the provider's API
	KeyFile   string
	Creds     string // as in [VerifierFlags]
	PlainHTTP bool
	Record    bool          // a request passes only when the log of its session permits it
	MaxCalls  int           // that may be under way at once; 0: the witness's own
	Grace     time.Duration // 0: the witness's own
}

// WitnessServer is a witness with the address that it serves.
type WitnessServer struct {
	witness  *witness.Witness
	listener net.Listener
}

// NewWitness returns a witness over a connected client. Its address is taken: the caller calls Run.
func NewWitness(ctx context.Context, client *jetstream.Client, f *WitnessFlags, reg prometheus.Registerer, log *slog.Logger) (*WitnessServer, error) {
	if f.Upstream == "" {
		return nil, errors.New("no provider to stand before: give --upstream URL or set REFOLD_WITNESS_UPSTREAM")
	}
	key, err := keyfile.Load(f.KeyFile)
	if err == nil {
		err = keyfile.NotLogin(key, f.Creds)
	}
	if err != nil {
		return nil, err
	}
	listener, err := witness.Listen(ctx, f.Listen)
	if err != nil {
		return nil, err
	}
	cfg := witness.Config{
		Upstream: f.Upstream, PlainHTTP: f.PlainHTTP, Key: key, Requests: client.Receipts(), Answers: client.AnswerReceipts(),
		NewID: NewID, Registry: reg, MaxCalls: f.MaxCalls, Grace: f.Grace, Log: log,
	}
	if f.Record {
		cfg.Record = client.Logs()
	}
	w, err := witness.New(cfg)
	if err != nil {
		_ = listener.Close() // nobody has connected
		return nil, fmt.Errorf("--upstream: %w", err)
	}
	return &WitnessServer{witness: w, listener: listener}, nil
}

// URL returns the base URL for workers.
func (s *WitnessServer) URL() string { return "http://" + s.listener.Addr().String() }

// Public returns the public key that signs the receipts.
func (s *WitnessServer) Public() string { return s.witness.Public() }

// Run implements [Runner].
func (s *WitnessServer) Run(ctx context.Context) error { return s.witness.Serve(ctx, s.listener) }

// WitnessKeyFile returns the path of the seed of the witness that runs beside a worker in one process.
func (h *Home) WitnessKeyFile() string { return filepath.Join(h.dir, "witness.seed") }

// Witness returns the witness command.
func Witness() *cobra.Command {
	var s Service
	var w WitnessFlags
	cmd := &cobra.Command{
		Use:   "witness",
		Short: "Stand between workers and a provider, and sign receipts of the bytes that pass",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if w.Grace < 0 {
				return fmt.Errorf("--grace %v: want a time", w.Grace)
			}
			if w.MaxCalls < 1 {
				return fmt.Errorf("--max-calls %d: want at least 1", w.MaxCalls)
			}
			out := cmd.OutOrStdout()
			w.Creds = s.Creds
			return s.Run(cmd.Context(), "witness", func(ctx context.Context, client *jetstream.Client, reg *prometheus.Registry, log *slog.Logger) (Runner, error) {
				return announced(ctx, out, client, &w, reg, log)
			})
		},
	}
	s.Flags(cmd)
	f := cmd.Flags()
	f.StringVar(&w.Listen, "listen", "127.0.0.1:8090", "address for workers; port 0 takes a free one")
	f.StringVar(&w.Upstream, "upstream", env("REFOLD_WITNESS_UPSTREAM", ""), "base URL of the provider's API (REFOLD_WITNESS_UPSTREAM)")
	f.StringVar(&w.KeyFile, "key", env("REFOLD_WITNESS_KEY", "witness.seed"), "file with the nkey seed that signs receipts; it is made when missing (REFOLD_WITNESS_KEY)")
	f.BoolVar(&w.PlainHTTP, "plain-http", false, "send what workers send, keys included, over plain http to an upstream on another host")
	f.BoolVar(&w.Record, "require-record", false, "pass a request only when its session's log holds the event that permits it, with the digest of this body; needs the right to read sessions")
	f.IntVar(&w.MaxCalls, "max-calls", witness.DefaultMaxCalls, "how many calls may be under way at once; one more is answered with status 503")
	f.DurationVar(&w.Grace, "grace", 10*time.Second, "how long calls under way may go on when the witness is told to stop")
	return cmd
}

// announced returns a witness and says where it is and how verifiers know it.
func announced(ctx context.Context, out io.Writer, client *jetstream.Client, w *WitnessFlags, reg prometheus.Registerer, log *slog.Logger) (Runner, error) {
	server, err := NewWitness(ctx, client, w, reg, log)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(out, "witness: %s\nkey:     %s\n", server.URL(), server.Public()); err != nil {
		return nil, errors.Join(err, server.listener.Close())
	}
	return server, nil
}
