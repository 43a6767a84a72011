package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/jetstream"
)

// Home is the directory of the embedded server: its streams, the verifier's key, the transparency log, a lock, and the
// address of the process that serves it.
type Home struct {
	dir      string
	patience time.Duration // with another process that has the lock and cannot be reached
}

// homePatience is enough for a short command to end, and for one that serves to start or stop.
const homePatience = 5 * time.Second

// The names in a home.
const (
	homeLock    = "lock"
	homeAddress = "address"
	homeStreams = "streams"
	homeKey     = "verifier.seed"
	homeLog     = "log"
)

// maxAddress bounds what is read of the address.
const maxAddress = 4 << 10

// ErrInUse means that another process serves the home.
var ErrInUse = errors.New("directory in use")

// DefaultHome returns REFOLD_DIR, or .refold in the working directory.
func DefaultHome() string { return env("REFOLD_DIR", ".refold") }

// OpenHome returns the home in dir; create makes it when it is missing. Otherwise a missing one is an error that wraps
// [fs.ErrNotExist].
func OpenHome(dir string, create bool) (*Home, error) {
	if create {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w: give another with --dir", err)
		}
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no data directory %s: %w: start refold dev, or give --dir or --nats", dir, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("data directory: %s is no directory: give another with --dir", dir)
	}
	abs, err := filepath.Abs(dir)
	return &Home{dir: abs, patience: homePatience}, err
}

// Dir returns the home's absolute path.
func (h *Home) Dir() string { return h.dir }

// KeyFile returns the path of the verifier's seed.
func (h *Home) KeyFile() string { return filepath.Join(h.dir, homeKey) }

// LogDir returns the directory of the transparency log; its key's file is beside it.
func (h *Home) LogDir() string { return filepath.Join(h.dir, homeLog) }

// Serve starts the embedded server over the home's streams and holds the lock until release is called. The error wraps
// [ErrInUse] when another process serves it, see [Home.ServeWhenFree]. port is as in [embedded.Options].
func (h *Home) Serve(port int, log *slog.Logger) (server *embedded.Server, release func(), err error) {
	lock, err := os.OpenFile(filepath.Join(h.dir, homeLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close() // nothing was written
		return nil, nil, fmt.Errorf("%w: another refold process serves %s: stop it, or give another --dir", ErrInUse, h.dir)
	}
	address := filepath.Join(h.dir, homeAddress)
	if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by one that was killed
		_ = lock.Close()
		return nil, nil, fmt.Errorf("data directory: %w", err)
	}
	if err := portFree(port); err != nil {
		_ = lock.Close()
		return nil, nil, err
	}
	server, err = embedded.Start(embedded.Options{StoreDir: filepath.Join(h.dir, homeStreams), Port: port, Logger: log})
	if err != nil {
		_ = lock.Close()
		return nil, nil, err
	}
	if url := server.ClientURL(); url != "" {
		err = writeFile(address, url+"\n")
	}
	release = func() {
		_ = os.Remove(address) // whoever has the lock next removes one that stays
		server.Shutdown()
		_ = lock.Close()
	}
	if err != nil {
		release()
		return nil, nil, fmt.Errorf("data directory: %w", err)
	}
	return server, release, nil
}

// portFree returns an error when somebody listens on the port: the server itself would only find that out by waiting.
func portFree(port int) error {
	if port <= 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // it does not block
	if err != nil {
		return fmt.Errorf("NATS server: %w: give a free port with --port, or -1 for any", err)
	}
	return l.Close()
}

// writeFile replaces a small file in one piece.
func writeFile(path, content string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// ServeWhenFree is [Home.Serve] that waits a while for a process that has the lock and cannot be reached: a short
// command, or one that starts or stops. The error wraps [ErrInUse] at once when a server answers at the home's address.
func (h *Home) ServeWhenFree(ctx context.Context, port int, log *slog.Logger) (server *embedded.Server, release func(), err error) {
	err = h.retry(ctx, func() (again bool, err error) {
		if server, release, err = h.Serve(port, log); !errors.Is(err, ErrInUse) {
			return false, err
		}
		client, unreached := h.reach(ctx, log)
		if unreached == nil {
			client.Close()
		}
		return unreached != nil, err
	})
	return server, release, err
}

// Connect returns a client of whoever serves the home, or of a server in this process when nobody does. It waits a
// while for another process that has the lock and cannot be reached. The caller calls done.
func (h *Home) Connect(ctx context.Context, log *slog.Logger) (client *jetstream.Client, done func(), err error) {
	err = h.retry(ctx, func() (again bool, err error) {
		server, release, err := h.Serve(0, log)
		switch {
		case errors.Is(err, ErrInUse):
			var unreached error
			if client, unreached = h.reach(ctx, log); unreached == nil {
				done = client.Close
				return false, nil
			}
			if !errors.Is(unreached, fs.ErrNotExist) {
				err = unreached
			}
			return true, err
		case err != nil:
			return false, err
		}
		if client, err = connectStreams(ctx, jetstream.Config{InProcess: server, Logger: log}); err != nil {
			release()
			return false, err
		}
		done = func() { client.Close(); release() }
		return false, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return client, done, nil
}

// connectStreams returns a client that has seen to it that the shared streams with these names are there, all of them when
// none is named.
func connectStreams(ctx context.Context, cfg jetstream.Config, streams ...string) (*jetstream.Client, error) {
	client, err := jetstream.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := client.EnsureStreams(ctx, streams...); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// reach connects to the address in the home. The error wraps [fs.ErrNotExist] when there is none.
func (h *Home) reach(ctx context.Context, log *slog.Logger) (*jetstream.Client, error) {
	url, err := files.Read(filepath.Join(h.dir, homeAddress), maxAddress)
	if err != nil {
		return nil, err
	}
	return jetstream.Connect(ctx, jetstream.Config{URL: strings.TrimSpace(string(url)), Logger: log})
}

// retry calls try until it does not want to be called again, ctx ends or the home's patience does, and returns its last
// error.
func (h *Home) retry(ctx context.Context, try func() (again bool, err error)) error {
	const pause = 50 * time.Millisecond
	deadline := time.Now().Add(h.patience)
	for {
		again, err := try()
		if !again || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
