// Package httpserve serves a program's metrics and health, and what else it has for readers.
package httpserve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ErrListen means that the address cannot be listened on. The message names address and cause.
var ErrListen = errors.New("cannot serve metrics")

const (
	headerTimeout   = 5 * time.Second
	shutdownTimeout = 2 * time.Second
)

// Mount is something else that a program hands out.
type Mount struct {
	Path    string // where, with a slash before and behind, such as /log/
	Handler http.Handler
}

// Handler answers GET /metrics with what reg gathers, and GET /healthz with 200 while health returns nil and with 503
// and the error's text while it does not. The handlers of mounts see paths without the mount's own.
func Handler(reg prometheus.Gatherer, health func() error, mounts ...Mount) http.Handler {
	mux := http.NewServeMux()
	for _, m := range mounts {
		mux.Handle(m.Path, http.StripPrefix(strings.TrimSuffix(m.Path, "/"), m.Handler))
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := health(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err) // the client may have gone
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// Listen takes an address. The error wraps [ErrListen].
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w on %q: %w: give a free HOST:PORT", ErrListen, addr, err)
	}
	return l, nil
}

// Serve answers on addr until ctx ends, which is no error. The error wraps [ErrListen] when the address is malformed or
// taken.
func Serve(ctx context.Context, addr string, reg prometheus.Gatherer, health func() error, mounts ...Mount) error {
	l, err := Listen(ctx, addr)
	if err != nil {
		return err
	}
	return ServeListener(ctx, l, reg, health, mounts...)
}

// ServeListener is Serve on a listener, which it closes.
func ServeListener(ctx context.Context, l net.Listener, reg prometheus.Gatherer, health func() error, mounts ...Mount) error {
	server := &http.Server{Handler: Handler(reg, health, mounts...), ReadHeaderTimeout: headerTimeout}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			err = server.Close() // somebody still reads
			stopped <- err
			return
		}
		stopped <- nil
	})
	err := server.Serve(l)
	if stop() { // ctx has not ended: the listener failed
		return fmt.Errorf("serve metrics on %s: %w", l.Addr(), err)
	}
	return <-stopped
}
