package tlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/tlog"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// bench is a server with streams, and a client.
type bench struct {
	t      *testing.T
	server *embedded.Server
	client *jetstream.Client
	stored int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server.InProcess()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, server: server, client: client}
}

func payload(n int) []byte { return fmt.Appendf(nil, "record %d", n) }

// store adds records of all kinds.
func (b *bench) store(n int) {
	b.t.Helper()
	for range n {
		kinds := []*jetstream.Records{b.client.Verdicts(), b.client.WireVerdicts(), b.client.StrayVerdicts()}
		id := foldtest.ID(1_700_000_000_000, uint64(b.stored%7))
		if _, err := kinds[b.stored%3].Add(b.t.Context(), id, fmt.Sprint(b.stored), payload(b.stored)); err != nil {
			b.t.Fatal(err)
		}
		b.stored++
	}
}

// admin returns JetStream as an operator has it.
func (b *bench) admin() natsjs.JetStream {
	b.t.Helper()
	conn, err := nats.Connect("", nats.InProcessServer(b.server.InProcess()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	js, err := natsjs.New(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	return js
}

// keep runs an integrator and returns a function that stops it.
func (b *bench) keep(dir, origin string) (i *tlog.Integrator, key string, stop func()) {
	b.t.Helper()
	signer, err := tlog.LoadSigner(dir+".key", origin)
	if err != nil {
		b.t.Fatal(err)
	}
	i, err = tlog.New(tlog.Config{
		Dir: dir, Signer: signer, Verdicts: b.client.Verdicts(), Registry: prometheus.NewPedanticRegistry(), Interval: 5 * time.Millisecond,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	return i, signer.Key(), func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
	}
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited for: %s", what)
		}
	}
}

// point returns the newest checkpoint, of size 0 when there is none yet.
func point(t *testing.T, tiles translog.Tiles, key string) translog.Checkpoint {
	t.Helper()
	signed, err := tiles.Read(t.Context(), translog.CheckpointPath, translog.MaxCheckpointBytes)
	if errors.Is(err, translog.ErrNotFound) {
		return translog.Checkpoint{}
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := translog.OpenCheckpoint(signed, key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKeeps keeps two logs of one stream, restarts one, and reads them over HTTP.
func TestKeeps(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(t.TempDir(), "log")
	b.store(40)
	_, key, stop := b.keep(dir, "example.com/one")
	files, err := tlog.OpenDir(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files.Read(t.Context(), "log.key", 100); !errors.Is(err, translog.ErrNotFound) {
		t.Errorf("a file that is no log's: %v", err)
	}
	server := httptest.NewServer(http.StripPrefix("/log", tlog.Handler(dir)))
	defer server.Close()
	remote, err := tlog.NewHTTP(server.URL+"/log", server.Client())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "40 leaves", func() bool { return point(t, remote, key).Size == 40 })
	b.store(250)
	until(t, "290 leaves", func() bool { return point(t, remote, key).Size == 290 })
	old := point(t, remote, key)
	stop()
	b.store(2000) // more than one question brings
	i, _, stop := b.keep(dir, "")
	defer stop()
	until(t, "2290 leaves", func() bool { return point(t, remote, key).Size == 2290 })
	if err := i.Health(); err != nil {
		t.Error(err)
	}
	c := point(t, remote, key)
	tree, err := translog.OpenTree(t.Context(), remote, c)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for entry, err := range tree.Entries(t.Context(), 0) {
		if err != nil || !bytes.Equal(entry, payload(n)) {
			t.Fatalf("entry %d: %q, %v", n, entry, err)
		}
		n++
	}
	hashes, err := tree.Consistency(t.Context(), old.Size)
	if err != nil {
		t.Fatal(err)
	}
	if err := translog.VerifyConsistency(old.Size, c.Size, hashes, old.Root, c.Root); err != nil {
		t.Error(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	_, otherKey, stopOther := b.keep(other, "example.com/two")
	defer stopOther()
	otherDir := http.Dir(other) // any web server will do
	plain := httptest.NewServer(http.FileServer(otherDir))
	defer plain.Close()
	second, err := tlog.NewHTTP(plain.URL, plain.Client())
	if err != nil {
		t.Fatal(err)
	}
	until(t, "another log", func() bool { return point(t, second, otherKey).Size == 2290 })
	if point(t, second, otherKey).Root != c.Root {
		t.Error("two logs of one stream have two roots")
	}
}

// TestStreamChanged changes VERDICTS behind the log's back.
func TestStreamChanged(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *bench){
		"deleted": func(t *testing.T, b *bench) {
			t.Helper()
			if err := b.admin().DeleteStream(t.Context(), jetstream.VerdictsStream); err != nil {
				t.Fatal(err)
			}
		},
		"made anew": func(t *testing.T, b *bench) {
			t.Helper()
			if err := b.admin().DeleteStream(t.Context(), jetstream.VerdictsStream); err != nil {
				t.Fatal(err)
			}
			if err := b.client.EnsureStreams(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.stored = 100
			b.store(60)
		},
		"evicted": func(t *testing.T, b *bench) {
			t.Helper()
			stream, err := b.admin().Stream(t.Context(), jetstream.VerdictsStream)
			if err != nil {
				t.Fatal(err)
			}
			cfg := stream.CachedInfo().Config
			cfg.MaxMsgs, cfg.Discard = 10, natsjs.DiscardOld
			if _, err := b.admin().UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.store(50)
			dir := filepath.Join(t.TempDir(), "log")
			i, key, stop := b.keep(dir, "example.com/log")
			files := &tlogDir{t, dir}
			until(t, "50 leaves", func() bool { return point(t, files, key).Size == 50 })
			before := point(t, files, key)
			if name == "evicted" { // what is gone at the beginning shows when all is compared again, as after a start
				stop()
				change(t, b)
				i, _, stop = b.keep(dir, "")
			} else {
				change(t, b)
			}
			until(t, "the log has stopped", func() bool { return errors.Is(i.Health(), tlog.ErrStream) })
			b.stored = 1000
			if name != "deleted" {
				b.store(30)
			}
			until(t, "it stays so", func() bool { return errors.Is(i.Health(), tlog.ErrStream) })
			stop()
			if after := point(t, files, key); after != before {
				t.Errorf("%+v was signed after %+v", after, before)
			}
		})
	}
}

// tlogDir reads a directory that may not be there yet.
type tlogDir struct {
	t   *testing.T
	dir string
}

func (d *tlogDir) Read(ctx context.Context, path string, limit int) ([]byte, error) {
	d.t.Helper()
	dir, err := tlog.OpenDir(d.dir)
	if err != nil {
		return nil, translog.ErrNotFound
	}
	return dir.Read(ctx, path, limit)
}

// TestHandler shows that nothing but a log's files is handed out.
func TestHandler(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "log")
	secret := filepath.Join(root, "log.key")
	for path, text := range map[string]string{
		secret: "secret", dir + "/checkpoint": "point", dir + "/tile/0/000.p/3": "three", dir + "/lock": "secret", dir + "/tmp/x": "secret",
		dir + "/tile/0/secret": "secret", dir + "/tile/0/001": strings.Repeat("x", 256*32+1),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, dir+"/tile/0/002"); err != nil {
		t.Fatal(err)
	}
	handler := tlog.Handler(dir)
	for path, want := range map[string]string{
		"/checkpoint": "point", "/tile/0/000.p/3": "three", "/": "", "/lock": "", "/tmp/x": "", "/tile": "", "/tile/": "", "/tile/0": "",
		"/tile/0/": "", "/tile/0/secret": "", "/tile/0/000.p/": "", "/../log.key": "", "/tile/../../log.key": "", "/tile/0/002": "",
		"/tile/0/001": "", "/tile/0/003": "", "//checkpoint": "", "/%2e%2e/log.key": "", "/tile/0/000.p/03": "",
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r := httptest.NewRequestWithContext(t.Context(), method, "http://x/", http.NoBody)
			r.URL.Path = path
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			body, err := io.ReadAll(w.Result().Body)
			if err != nil {
				t.Fatal(err)
			}
			switch given := want != "" && method == http.MethodGet; {
			case given && (w.Code != http.StatusOK || string(body) != want):
				t.Errorf("%s %s: %d %q", method, path, w.Code, body)
			case !given && (w.Code == http.StatusOK || strings.Contains(string(body), "secret")):
				t.Errorf("%s %s: %d %q", method, path, w.Code, body)
			}
		}
	}
}

// TestHandlerCaches shows that only what the checkpoint covers is said to stay: what stands beyond it may be replaced.
func TestHandlerCaches(t *testing.T) {
	dir := t.TempDir()
	secret, err := translog.GenerateSigner(strings.NewReader(strings.Repeat("x", 64)), "example.com/one")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := translog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, data []byte) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{
		"tile/0/000.p/1", "tile/0/000.p/255", "tile/0/000", "tile/0/001", "tile/0/002.p/87", "tile/0/002.p/88", "tile/0/002.p/89", "tile/0/002",
		"tile/0/003", "tile/0/x999/x999/x999/x999/x999/999", "tile/1/000.p/1", "tile/1/000.p/2", "tile/1/000.p/3", "tile/1/001.p/1",
		"tile/2/000.p/1", "tile/7/000.p/1", "tile/entries/000", "tile/entries/002.p/88", "tile/entries/002.p/89",
	}
	for _, path := range files {
		write(path, []byte("x"))
	}
	for size, kept := range map[uint64][]string{
		0: nil,
		1: {"tile/0/000.p/1"},
		600: {
			"tile/0/000.p/1", "tile/0/000.p/255", "tile/0/000", "tile/0/001", "tile/0/002.p/87", "tile/0/002.p/88", "tile/1/000.p/1", "tile/1/000.p/2",
			"tile/entries/000", "tile/entries/002.p/88",
		},
	} {
		point := translog.Checkpoint{Origin: signer.Origin(), Root: translog.EmptyRoot()}
		if size > 0 {
			point.Size, point.Root = size, translog.LeafHash([]byte("some tree"))
		}
		signed, err := signer.Sign(point)
		if err != nil {
			t.Fatal(err)
		}
		write(translog.CheckpointPath, signed)
		for _, path := range slices.Concat(files, []string{translog.CheckpointPath}) {
			w := httptest.NewRecorder()
			tlog.Handler(dir).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/"+path, http.NoBody))
			cache := w.Result().Header.Get("Cache-Control")
			if w.Code != http.StatusOK || strings.Contains(cache, "immutable") != slices.Contains(kept, path) || cache == "" {
				t.Errorf("size %d, %s: %d, %q", size, path, w.Code, cache)
			}
		}
	}
	if err := os.Remove(filepath.Join(dir, translog.CheckpointPath)); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	tlog.Handler(dir).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/tile/0/000", http.NoBody))
	if cache := w.Result().Header.Get("Cache-Control"); w.Code != http.StatusOK || cache != "no-cache" {
		t.Errorf("without a checkpoint: %d, %q", w.Code, cache)
	}
}

// TestHTTP shows what becomes of servers that do not do what they should.
func TestHTTP(t *testing.T) {
	for name, tt := range map[string]struct {
		handle http.HandlerFunc
		want   error
	}{
		"not there": {http.NotFound, translog.ErrNotFound},
		"broken":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, tlog.ErrUnavailable},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for range 1 << 12 {
				if _, err := w.Write(make([]byte, 1<<12)); err != nil {
					return
				}
			}
		}, translog.ErrTile},
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("x"))
		}, tlog.ErrUnavailable},
	} {
		server := httptest.NewServer(tt.handle)
		h, err := tlog.NewHTTP(server.URL+"/", server.Client())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Read(t.Context(), "tile/0/000", 8192); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := h.Read(t.Context(), "tile/0/../secret", 8192); !errors.Is(err, translog.ErrNotFound) {
			t.Errorf("%s: another path: %v", name, err)
		}
		server.Close()
		if _, err := h.Read(t.Context(), "checkpoint", 100); !errors.Is(err, tlog.ErrUnavailable) {
			t.Errorf("%s: nobody there: %v", name, err)
		}
	}
	for _, bad := range []string{"", "ftp://x/", "http://", "http://x/?q", "http://x/#f", "x", "http://\x00"} {
		if _, err := tlog.NewHTTP(bad, http.DefaultClient); !errors.Is(err, tlog.ErrURL) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSigners(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log.key")
	s, err := tlog.LoadSigner(file, "example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	public, err := os.ReadFile(file + tlog.PublicSuffix)
	if err != nil || string(public) != s.Key()+"\n" {
		t.Errorf("%q, %v", public, err)
	}
	for _, origin := range []string{"", "example.com/log"} {
		if again, err := tlog.LoadSigner(file, origin); err != nil || again.Key() != s.Key() {
			t.Errorf("%q: %v", origin, err)
		}
	}
	if _, err := tlog.LoadSigner(file, "example.com/other"); !errors.Is(err, translog.ErrKey) {
		t.Errorf("another name: %v", err)
	}
	if _, err := tlog.LoadSigner(filepath.Join(t.TempDir(), "x"), "not a name"); !errors.Is(err, translog.ErrOrigin) {
		t.Errorf("no name: %v", err)
	}
	if _, err := tlog.LoadSigner(filepath.Join(t.TempDir(), "x", "y"), "example.com/log"); !errors.Is(err, translog.ErrKey) {
		t.Errorf("nowhere: %v", err)
	}
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tlog.LoadSigner(file, ""); !errors.Is(err, translog.ErrKey) {
		t.Errorf("nonsense: %v", err)
	}
}

// TestOneWriter lets nobody else write a log's directory.
func TestOneWriter(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(t.TempDir(), "log")
	_, key, stop := b.keep(dir, "example.com/log")
	defer stop()
	until(t, "a log", func() bool { return point(t, &tlogDir{t, dir}, key).Origin != "" })
	signer, err := tlog.LoadSigner(dir+".key", "")
	if err != nil {
		t.Fatal(err)
	}
	second, err := tlog.New(tlog.Config{Dir: dir, Signer: signer, Verdicts: b.client.Verdicts(), Registry: prometheus.NewPedanticRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, tlog.ErrLocked) {
		t.Errorf("a second writer: %v", err)
	}
}
