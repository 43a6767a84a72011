package program

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
)

// Local is an embedded server with the verifier and the projector on it, all in this process.
type Local struct {
	Server   *embedded.Server
	Client   *jetstream.Client
	Registry *prometheus.Registry
	home     *Home
	ackWait  time.Duration
	release  func()
	log      *slog.Logger
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

// Audit runs the verifier and the projector until ctx ends.
func (l *Local) Audit(ctx context.Context) error {
	const sweep = 2 * time.Second // the sessions are few
	group, ctx := errgroup.WithContext(ctx)
	v, err := NewVerifier(l.Client, &VerifierFlags{KeyFile: l.home.KeyFile(), Sweep: sweep}, l.Registry, l.log)
	if err != nil {
		return err
	}
	p, err := NewProjector(l.Client, sweep, 0, l.Registry, l.log)
	if err != nil {
		return err
	}
	group.Go(func() error { return v.Run(ctx) })
	group.Go(func() error { return p.Run(ctx) })
	return group.Wait()
}

// Work runs a loop worker until ctx ends.
func (l *Local) Work(ctx context.Context, w *WorkerFlags) error {
	service, err := NewWorker(ctx, l.Client, w, l.ackWait, l.Registry, l.log)
	if err != nil {
		return err
	}
	return service.Run(ctx)
}
