package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sync/errgroup"
)

// Cluster is several servers that replicate streams among each other, on the loopback interface: for tests.
type Cluster struct {
	Servers []*Server // in the order of their names: a server that was stopped stays in its place

	options []*server.Options
	logger  *slog.Logger
}

const (
	clusterName     = "refold"
	clusterAttempts = 5
	clusterPoll     = 5 * time.Millisecond
)

// StartCluster starts n servers with their streams below dir, and returns when they have elected a leader that knows of
// them all. Each listens on a free port. Logger nil: nobody. The caller calls [Cluster.Shutdown].
func StartCluster(n int, dir string, logger *slog.Logger) (*Cluster, error) {
	if n < 2 {
		return nil, fmt.Errorf("embedded NATS cluster: %d servers, want at least 2", n)
	}
	var err error
	for range clusterAttempts { // between finding a free port and using it somebody else may
		var c *Cluster
		if c, err = tryCluster(n, dir, logger); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("embedded NATS cluster: %w", err)
}

func tryCluster(n int, dir string, logger *slog.Logger) (*Cluster, error) {
	ports, err := freePorts(n)
	if err != nil {
		return nil, err
	}
	routes := make([]string, n)
	for i, port := range ports {
		routes[i] = "nats://127.0.0.1:" + strconv.Itoa(port)
	}
	c := &Cluster{Servers: make([]*Server, n), logger: logger}
	for i, port := range ports {
		name := fmt.Sprintf("refold-%d", i+1)
		o := Options{StoreDir: filepath.Join(dir, name), Name: name, Port: -1}
		opts, err := o.server()
		if err != nil {
			return nil, err
		}
		opts.Cluster = server.ClusterOpts{Name: clusterName, Host: "127.0.0.1", Port: port}
		opts.Routes = server.RoutesFromStr(strings.Join(routes, ","))
		c.options = append(c.options, opts)
	}
	group := new(errgroup.Group)
	for i := range c.options {
		group.Go(func() error { return c.start(i) })
	}
	err = group.Wait()
	if err == nil {
		err = c.WaitReady(startTimeout)
	}
	if err != nil {
		c.Shutdown()
		return nil, err
	}
	return c, nil
}

// freePorts returns n ports that nobody listens on right now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() //nolint:errcheck // nothing was written
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, errors.New("find a free port: the listener has no TCP address")
		}
		ports = append(ports, addr.Port)
	}
	return ports, nil
}

func (c *Cluster) start(i int) error {
	opts := c.options[i].Clone()
	s, err := start(opts, c.logger)
	if err != nil {
		return err
	}
	c.options[i].Port = s.Port() // a restart comes back at the same address
	c.Servers[i] = s
	return nil
}

// WaitReady waits until the running servers have a JetStream leader that knows of all the cluster's servers and every
// server is up to date.
func (c *Cluster) WaitReady(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for !c.ready() {
		if time.Now().After(deadline) {
			return fmt.Errorf("no JetStream leader with %d servers in %v", len(c.Servers), timeout)
		}
		time.Sleep(clusterPoll)
	}
	return nil
}

func (c *Cluster) ready() bool {
	leaders, running := 0, 0
	for _, s := range c.Servers {
		if !s.ns.Running() {
			continue
		}
		running++
		if !s.ns.JetStreamIsCurrent() || s.ns.NumRoutes() == 0 {
			return false
		}
		if s.ns.JetStreamIsLeader() && len(s.ns.JetStreamClusterPeers()) >= len(c.Servers) {
			leaders++
		}
	}
	return running > 0 && leaders == 1
}

// URLs returns the addresses of all servers, separated by commas.
func (c *Cluster) URLs() string {
	urls := make([]string, len(c.options))
	for i, o := range c.options {
		u := url.URL{Scheme: "nats", Host: net.JoinHostPort(o.Host, strconv.Itoa(o.Port))}
		urls[i] = u.String()
	}
	return strings.Join(urls, ",")
}

// Stop stops server i and waits until it is down; the others go on.
func (c *Cluster) Stop(i int) { c.Servers[i].Shutdown() }

// Restart starts server i again, at the same address and with the same streams.
func (c *Cluster) Restart(i int) error { return c.start(i) }

// StreamLeader returns the index of the server that leads the stream of the global account, -1 when none does now.
func (c *Cluster) StreamLeader(stream string) int {
	for i, s := range c.Servers {
		if s.ns.Running() && s.ns.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

// Shutdown stops all servers and waits until they are down.
func (c *Cluster) Shutdown() {
	for _, s := range c.Servers {
		if s != nil {
			s.Shutdown()
		}
	}
}
