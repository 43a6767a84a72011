package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Options says how to run a server.
type Options struct {
	// StoreDir is the directory of the streams; it is made when missing. What a server left there before is served
	// again. Required.
	StoreDir string
	// Name is the server's name. Empty: refold.
	Name string
	// Host is where to listen. Empty: 127.0.0.1.
	Host string
	// Port is where to listen. 0: nowhere, the server is reached in process only. -1: a free port.
	Port int
	// MaxPayload is the largest message, in bytes. 0: the server's default of 1 MiB. At most 64 MiB.
	MaxPayload int32
	// MaxStore bounds the streams' files, in bytes. 0: what the server finds fit for the disk.
	MaxStore int64
	// SyncAlways makes every acknowledged message survive a power cut, at about four times the time per message.
	// Otherwise a power cut may lose what was acknowledged in the last two minutes; the end of the process does not.
	SyncAlways bool
	// Logger receives what the server has to say; its notices are debug messages here. Nil: nobody.
	Logger *slog.Logger
	// Configure changes the server's options last, for accounts and permissions. Nil: nothing to change.
	Configure func(*server.Options)
}

// startTimeout bounds how long a server may take to accept connections, with all streams recovered.
const startTimeout = 30 * time.Second

// Server is a running server.
type Server struct {
	ns *server.Server
}

var _ nats.InProcessConnProvider = (*Server)(nil)

// Start starts a server and returns when it accepts connections. The caller calls [Server.Shutdown].
func Start(o Options) (*Server, error) {
	opts, err := o.server()
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	return start(opts, o.Logger)
}

func (o *Options) server() (*server.Options, error) {
	switch {
	case o.StoreDir == "":
		return nil, errors.New("a store directory is needed")
	case o.Port < -1 || o.Port > 65535:
		return nil, fmt.Errorf("port %d, want 0 to 65535, or -1 for a free one", o.Port)
	case o.MaxPayload < 0 || o.MaxPayload > 64<<20:
		return nil, fmt.Errorf("max payload %d, want at most %d", o.MaxPayload, 64<<20)
	case o.MaxStore < 0:
		return nil, fmt.Errorf("max store %d is negative", o.MaxStore)
	}
	opts := &server.Options{
		ServerName:        or(o.Name, "refold"),
		Host:              or(o.Host, "127.0.0.1"),
		Port:              o.Port,
		DontListen:        o.Port == 0,
		JetStream:         true,
		StoreDir:          o.StoreDir,
		JetStreamMaxStore: o.MaxStore,
		SyncAlways:        o.SyncAlways,
		MaxPayload:        o.MaxPayload,
		NoSigs:            true,
		NoLog:             true,
	}
	if o.MaxPayload > server.MAX_PENDING_SIZE {
		opts.MaxPending = int64(o.MaxPayload)
	}
	if o.Configure != nil {
		o.Configure(opts)
	}
	return opts, nil
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func start(opts *server.Options, logger *slog.Logger) (*Server, error) {
	ns, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server %s: %w", opts.ServerName, err)
	}
	if logger != nil {
		debug := logger.Enabled(context.Background(), slog.LevelDebug)
		ns.SetLoggerV2(&slogAdaptor{logger.With(slog.String("server", opts.ServerName))}, debug, false, false)
	}
	ns.Start()
	s := &Server{ns: ns}
	if !ns.ReadyForConnections(startTimeout) {
		s.Shutdown()
		return nil, fmt.Errorf("embedded NATS server %s: not ready in %v: is the port free, and %s writable by this process alone?",
			opts.ServerName, startTimeout, opts.StoreDir)
	}
	if !ns.JetStreamEnabled() {
		s.Shutdown()
		return nil, fmt.Errorf("embedded NATS server %s: JetStream did not start: is %s writable by this process alone?",
			opts.ServerName, opts.StoreDir)
	}
	return s, nil
}

// ClientURL returns the address for clients outside of this process; empty when the server does not listen.
func (s *Server) ClientURL() string {
	if s.ns.Addr() == nil {
		return ""
	}
	return s.ns.ClientURL()
}

// Port returns the port that the server listens on, 0 when it does not.
func (s *Server) Port() int {
	if a, ok := s.ns.Addr().(*net.TCPAddr); ok {
		return a.Port
	}
	return 0
}

// InProcess returns the way for clients in this process to connect without a socket.
func (s *Server) InProcess() nats.InProcessConnProvider { return s }

// InProcessConn implements [nats.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) {
	conn, err := s.ns.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server %s: %w", s.ns.Name(), err)
	}
	return conn, nil
}

// Name returns the server's name.
func (s *Server) Name() string { return s.ns.Name() }

// NATS returns the server itself, for what this package does not cover.
func (s *Server) NATS() *server.Server { return s.ns }

// Shutdown stops the server, disconnects its clients, and waits until the streams are closed. It may be called more
// than once.
func (s *Server) Shutdown() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}
