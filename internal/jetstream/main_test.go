package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server for one test.
func serve(t testing.TB, configure func(*embedded.Options)) *embedded.Server {
	t.Helper()
	o := embedded.Options{StoreDir: t.TempDir()}
	if configure != nil {
		configure(&o)
	}
	s, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// cluster starts three servers for one test.
func cluster(t testing.TB) *embedded.Cluster {
	t.Helper()
	c, err := embedded.StartCluster(3, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Shutdown)
	return c
}

func connect(t testing.TB, cfg jetstream.Config) *jetstream.Client {
	t.Helper()
	c, err := jetstream.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// local returns a client of a server of its own, with the shared streams.
func local(t testing.TB) *jetstream.Client {
	t.Helper()
	c := connect(t, jetstream.Config{InProcess: serve(t, nil)})
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func newID() events.ID { return eventlogtest.IDs()() }

// within returns a context that ends after d.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// users gives the server's clients names and permissions: they connect with nats://NAME:pass@host.
func users(permissions map[string]*server.Permissions) func(*embedded.Options) {
	return func(o *embedded.Options) {
		o.Port = -1
		o.Configure = func(opts *server.Options) {
			for name, p := range permissions {
				opts.Users = append(opts.Users, &server.User{Username: name, Password: "pass", Permissions: p})
			}
		}
	}
}
