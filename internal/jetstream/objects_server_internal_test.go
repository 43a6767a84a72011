package jetstream

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// objectsServer starts a server in this process, without a listener.
func objectsServer(tb testing.TB, change func(*server.Options)) *server.Server {
	tb.Helper()
	opts := &server.Options{
		ServerName: "objects",
		DontListen: true,
		JetStream:  true,
		StoreDir:   tb.TempDir(),
		NoLog:      true,
		NoSigs:     true,
	}
	if change != nil {
		change(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		tb.Fatal(err)
	}
	s.Start()
	tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(10 * time.Second) {
		tb.Fatal("the embedded server did not start")
	}
	return s
}

// objectsCluster starts three servers in this process that form a cluster.
func objectsCluster(tb testing.TB) []*server.Server {
	tb.Helper()
	// Every server must be told all routes before any of them runs, so the ports are found first.
	var ports []int
	var routes []string
	for range 3 {
		l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, "nats://"+l.Addr().String())
		if err := l.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	var servers []*server.Server
	for n, port := range ports {
		servers = append(servers, objectsServer(tb, func(o *server.Options) {
			o.ServerName = fmt.Sprintf("objects-%d", n)
			o.DontListen, o.Host, o.Port = false, "127.0.0.1", -1 // routes wait for the client listener
			o.Cluster = server.ClusterOpts{Name: "objects", Host: "127.0.0.1", Port: port}
			o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		}))
	}
	return servers
}

func objectsConnect(tb testing.TB, s *server.Server, opts ...nats.Option) natsjs.JetStream {
	tb.Helper()
	nc, err := nats.Connect("", append(opts, nats.InProcessServer(s))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	// Generous, because the race detector makes a loaded machine slow to answer.
	js, err := natsjs.New(nc, natsjs.WithDefaultTimeout(time.Minute))
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

// createObjects creates the stream. A young cluster may not answer before it has a leader, so it is asked again, each
// time when the attempt's own timeout has passed.
func createObjects(tb testing.TB, js natsjs.JetStream, cfg natsjs.StreamConfig) natsjs.Stream {
	tb.Helper()
	var last error
	for range 30 {
		ctx, cancel := context.WithTimeout(tb.Context(), time.Second)
		stream, err := js.CreateOrUpdateStream(ctx, cfg)
		if err == nil {
			cancel()
			return stream
		}
		<-ctx.Done()
		cancel()
		last = err
	}
	tb.Fatal(last)
	return nil
}
