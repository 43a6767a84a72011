package embedded_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInProcess(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, err := embedded.Start(embedded.Options{
		StoreDir: filepath.Join(t.TempDir(), "made"), Name: "one",
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.ClientURL() != "" || s.Port() != 0 || s.Name() != "one" {
		t.Errorf("a server that does not listen: URL %q, port %d, name %q", s.ClientURL(), s.Port(), s.Name())
	}
	conn, err := nats.Connect("", nats.InProcessServer(s.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	if conn.MaxPayload() != 1<<20 {
		t.Errorf("max payload %d", conn.MaxPayload())
	}
	conn.Close()
	s.Shutdown()
	s.Shutdown()
	if _, err := s.InProcessConn(); err == nil {
		t.Error("connected to a server that was stopped")
	}
	if log.Len() > 0 {
		t.Errorf("an ordinary run has logged:\n%s", &log)
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1, MaxPayload: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.MaxPayload() != 8<<20 || s.Port() == 0 || !strings.Contains(s.ClientURL(), "127.0.0.1") {
		t.Errorf("URL %s, port %d, max payload %d", s.ClientURL(), s.Port(), conn.MaxPayload())
	}
	if other, err := embedded.Start(embedded.Options{StoreDir: "", Port: -1}); err == nil {
		other.Shutdown()
		t.Error("a server without a directory has started")
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, o := range []embedded.Options{{}, {StoreDir: dir, Port: -2}, {StoreDir: dir, Port: 70000}, {StoreDir: dir, MaxPayload: 65 << 20}, {StoreDir: dir, MaxStore: -1}} {
		if s, err := embedded.Start(o); err == nil {
			s.Shutdown()
			t.Errorf("started with %+v", o)
		}
	}
	if c, err := embedded.StartCluster(1, dir, nil); err == nil {
		c.Shutdown()
		t.Error("started a cluster of one")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c, err := embedded.StartCluster(3, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown()
	urls := c.URLs()
	c.Stop(1)
	if err := c.Restart(1); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if c.URLs() != urls {
		t.Errorf("after a restart the addresses are %s, before %s", c.URLs(), urls)
	}
	if c.StreamLeader("NONE") != -1 {
		t.Error("a stream that does not exist has a leader")
	}
}
