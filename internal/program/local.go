package program

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/httpserve"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/tlog"
)

// Local is an embedded server with the verifier, the projector and the transparency log on it, all in this process.
type Local struct {
	Server   *embedded.Server
	Client   *jetstream.Client
	Registry *prometheus.Registry
	home     *Home
	ackWait  time.Duration
	release  func()
	log      *slog.Logger

	witnesses []string // public keys of those whose receipts the verifier wants
}

// LocalOptions say how to start a [Local].
type LocalOptions struct {
	Port    int           // of the NATS server, -1: a free one
	AckWait time.Duration // as in [jetstream.Config]
	Log     *slog.Logger
}

// StartLocal starts the server over a home, as [Home.ServeWhenFree] does. The caller calls Close.
func StartLocal(ctx context.Context, home *Home, o LocalOptions) (*Local, error) {
	server, release, err := home.ServeWhenFree(ctx, o.Port, o.Log)
	if err != nil {
		return nil, err
	}
	client, err := connectStreams(ctx, jetstream.Config{InProcess: server, Name: "refold-local", AckWait: o.AckWait, Logger: o.Log})
	if err != nil {
		release()
		return nil, err
	}
	return &Local{Server: server, Client: client, Registry: Registry(), home: home, ackWait: o.AckWait, release: release, log: o.Log}, nil
}

// Close disconnects and stops the server.
func (l *Local) Close() {
	l.Client.Close()
	l.release()
}

// Witness puts a witness between the worker that the flags describe and its provider, whose address they name. The caller
// runs it, and calls Audit and Work afterwards.
func (l *Local) Witness(ctx context.Context, w *WorkerFlags) (*WitnessServer, error) {
	server, err := NewWitness(ctx, l.Client, &WitnessFlags{
		Listen: "127.0.0.1:0", Upstream: w.ProviderURL, KeyFile: l.home.WitnessKeyFile(), PlainHTTP: w.PlainHTTP,
		Grace: time.Second, // whoever interrupts it waits for the end
	}, l.Registry, l.log)
	if err != nil {
		return nil, err
	}
	w.ProviderURL = server.URL()
	l.witnesses = append(l.witnesses, server.Public())
	return server, nil
}

// Audit runs the verifier, the projector and the transparency log until ctx ends.
func (l *Local) Audit(ctx context.Context) error {
	const sweep = 2 * time.Second // the sessions are few
	group, ctx := errgroup.WithContext(ctx)
	v, err := NewVerifier(l.Client, &VerifierFlags{
		KeyFile: l.home.KeyFile(), Witnesses: l.witnesses, Sweep: sweep, AuditAtStart: true,
	}, l.Registry, l.log)
	if err != nil {
		return err
	}
	p, err := NewProjector(l.Client, sweep, 0, l.Registry, l.log)
	if err != nil {
		return err
	}
	keeper, err := NewLog(l.Client, LogFlags{Dir: l.home.LogDir()}, l.Registry, l.log)
	if err != nil {
		return err
	}
	group.Go(func() error { return v.Run(ctx) })
	group.Go(func() error { return p.Run(ctx) })
	group.Go(func() error { return keeper.Run(ctx) })
	return group.Wait()
}

// Mounts returns what the program hands out beside metrics and health.
func (l *Local) Mounts() []httpserve.Mount {
	return []httpserve.Mount{{Path: LogPath, Handler: tlog.Handler(l.home.LogDir())}}
}

// Work runs a loop worker until ctx ends.
func (l *Local) Work(ctx context.Context, w *WorkerFlags) error {
	service, err := NewWorker(ctx, l.Client, w, l.ackWait, l.Registry, l.log)
	if err != nil {
		return err
	}
	return service.Run(ctx)
}
