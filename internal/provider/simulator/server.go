package simulator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Server serves a simulator over HTTP.
type Server struct {
	listener net.Listener
	handler  http.Handler
}

// Listen binds an address, such as 127.0.0.1:0, so that [Server.URL] is known before [Server.Run] starts. Connections
// wait until then. A server that is never run is closed by [Server.Close].
func Listen(addr string, sim *Simulator) (*Server, error) {
	l, err := net.Listen("tcp", addr) //nolint:noctx // to bind an address does not wait
	if err != nil {
		return nil, fmt.Errorf("simulator: listen on %s: %w", addr, err)
	}
	return &Server{listener: l, handler: sim}, nil
}

// URL returns the base URL for clients.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Close frees the address of a server that does not run.
func (s *Server) Close() error { return s.listener.Close() }

// shutdownTime is how long answers under way may take to notice the end.
const shutdownTime = 5 * time.Second

// Run serves until ctx is cancelled, then ends the answers under way, hanging ones included, and returns nil when
// nothing runs any more. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	srv := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("simulator: serve %s: %w", s.listener.Addr(), err)
	case <-ctx.Done():
	}
	cancelRequests()
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancelStop()
	err := srv.Shutdown(stop)
	if err != nil {
		err = errors.Join(fmt.Errorf("simulator: shut down: %w", err), srv.Close())
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("simulator: serve %s: %w", s.listener.Addr(), end))
	}
	return err
}
