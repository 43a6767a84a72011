package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/eventlog"
)

// openHome returns a new home whose patience never ends.
func openHome(t *testing.T) *Home {
	t.Helper()
	home, err := OpenHome(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	home.patience = time.Hour
	return home
}

// hold takes the home's lock, as a process does that is reached nowhere.
func hold(t *testing.T, home *Home) (release func()) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(home.dir, homeLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { _ = lock.Close() }) // only ever locked
}

// listen makes the home's address one where connections end at once, and calls came after the first.
func listen(t *testing.T, home *Home, came func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		first := sync.OnceFunc(came)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // that is the point
			first()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close() // nothing was written
		<-ended
	})
	leave(t, home, l.Addr().String())
}

// leave leaves an address in the home, as a process does that is killed.
func leave(t *testing.T, home *Home, address string) {
	t.Helper()
	if err := writeFile(filepath.Join(home.dir, homeAddress), "nats://"+address+"\n"); err != nil {
		t.Fatal(err)
	}
}

// deserted returns an address where nobody listens.
func deserted(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// Many commands at a time, on a home whose server was killed, again and again.
func TestConnectAfterKill(t *testing.T) {
	t.Parallel()
	home, log := openHome(t), slog.New(slog.DiscardHandler)
	for round := range 5 {
		leave(t, home, deserted(t))
		var group sync.WaitGroup
		for i := range 6 {
			group.Go(func() {
				client, done, err := home.Connect(t.Context(), log)
				if err != nil {
					t.Errorf("round %d, command %d: %v", round, i, err)
					return
				}
				defer done()
				if err := client.EnsureStreams(t.Context()); err != nil {
					t.Errorf("round %d, command %d: %v", round, i, err)
				}
			})
		}
		group.Wait()
	}
}

// Whoever takes the lock removes the address before anything that may take long or fail.
func TestServeRemovesAddressFirst(t *testing.T) {
	t.Parallel()
	home := openHome(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nothing was written
	leave(t, home, deserted(t))
	port := taken.Addr().(*net.TCPAddr).Port
	if _, _, err := home.Serve(port, slog.New(slog.DiscardHandler)); err == nil || errors.Is(err, ErrInUse) {
		t.Errorf("a port that is taken: %v", err)
	}
	if _, err := os.Stat(filepath.Join(home.dir, homeAddress)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the address is still there: %v", err)
	}
}

type opener func(context.Context, *Home) (done func(), err error)

// openers returns the ways to open a home that wait for others.
func openers() map[string]opener {
	log := slog.New(slog.DiscardHandler)
	return map[string]opener{
		"connect": func(ctx context.Context, home *Home) (func(), error) {
			_, done, err := home.Connect(ctx, log)
			return done, err
		},
		"serve": func(ctx context.Context, home *Home) (func(), error) {
			_, done, err := home.ServeWhenFree(ctx, -1, log)
			return done, err
		},
		"local": func(ctx context.Context, home *Home) (func(), error) {
			local, err := StartLocal(ctx, home, LocalOptions{Port: -1, Log: log})
			if err != nil {
				return nil, err
			}
			return local.Close, nil
		},
	}
}

func TestHomeWaitsForTheLock(t *testing.T) {
	t.Parallel()
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := openHome(t)
			listen(t, home, hold(t, home)) // free when it was found taken
			done, err := open(t.Context(), home)
			if err != nil {
				t.Fatal(err)
			}
			done()
		})
	}
}

func TestHomePatienceEnds(t *testing.T) {
	t.Parallel()
	for name, open := range openers() {
		for _, tt := range []struct {
			address string
			want    error // of Connect
		}{
			{"", ErrInUse},
			{deserted(t), eventlog.ErrUnavailable},
		} {
			t.Run(fmt.Sprintf("%s to %q", name, tt.address), func(t *testing.T) {
				t.Parallel()
				home := openHome(t)
				home.patience = 0
				defer hold(t, home)()
				if tt.address != "" {
					leave(t, home, tt.address)
				}
				want := tt.want
				if name != "connect" {
					want = ErrInUse
				}
				if _, err := open(t.Context(), home); !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			})
		}
	}
}

func TestHomeWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	for name, open := range openers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := openHome(t)
			defer hold(t, home)()
			ctx, cancel := context.WithCancel(t.Context())
			listen(t, home, cancel)
			if _, err := open(ctx, home); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that it was cancelled", err)
			}
		})
	}
}

// A home that somebody serves is given up at once.
func TestServeWhenFreeOfServedHome(t *testing.T) {
	t.Parallel()
	home, log := openHome(t), slog.New(slog.DiscardHandler)
	_, release, err := home.Serve(-1, log)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, _, err := home.ServeWhenFree(t.Context(), -1, log); !errors.Is(err, ErrInUse) {
		t.Errorf("a home that is served: %v", err)
	}
}
