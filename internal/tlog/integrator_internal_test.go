package tlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const origin = "example.com/log"

// stream is a stream of verdicts in memory.
type stream struct {
	payloads [][]byte
	err      error
}

func (s *stream) Entries(_ context.Context, from uint64) iter.Seq2[jetstream.Entry, error] {
	return func(yield func(jetstream.Entry, error) bool) {
		if s.err != nil {
			yield(jetstream.Entry{}, s.err)
			return
		}
		for seq := from; seq <= uint64(len(s.payloads)); seq++ {
			if s.payloads[seq-1] == nil {
				yield(jetstream.Entry{}, fmt.Errorf("%w: place %d", eventlog.ErrGap, seq))
				return
			}
			if !yield(jetstream.Entry{Seq: seq, Payload: s.payloads[seq-1]}, nil) {
				return
			}
		}
	}
}

func payload(n int) []byte { return fmt.Appendf(nil, "verdict %d", n) }

func (s *stream) grow(n int) {
	for range n {
		s.payloads = append(s.payloads, payload(len(s.payloads)))
	}
}

// root is the root over the first n payloads of the stream.
func (s *stream) root(t testing.TB, n int) translog.Hash {
	t.Helper()
	b := translog.NewBuilder(func(translog.File, []byte) error { return nil })
	for _, p := range s.payloads[:n] {
		if err := b.Append(p); err != nil {
			t.Fatal(err)
		}
	}
	root, err := b.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func newSigner(t testing.TB) *translog.Signer {
	t.Helper()
	s, err := LoadSigner(filepath.Join(t.TempDir(), "log.key"), origin)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keeper returns an integrator that is not run: a test makes its turns.
func keeper(t testing.TB, dir string, s *stream, signer *translog.Signer) *Integrator {
	t.Helper()
	i, err := New(Config{Dir: dir, Signer: signer, Verdicts: s, Registry: prometheus.NewPedanticRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// opened is a keeper that has taken its directory, until the test ends or it is closed.
func opened(t testing.TB, dir string, s *stream, signer *translog.Signer) *Integrator {
	t.Helper()
	i := keeper(t, dir, s, signer)
	if err := i.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.dir.close)
	i.dir.fsync = unsynced
	return i
}

// unsynced spares the disk: no power is cut in tests.
func unsynced(*os.File) error { return nil }

func read(t testing.TB, dir string, signer *translog.Signer) (*translog.Tree, translog.Checkpoint) {
	t.Helper()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := d.Read(t.Context(), translog.CheckpointPath, translog.MaxCheckpointBytes)
	if err != nil {
		t.Fatal(err)
	}
	c, err := translog.OpenCheckpoint(signed, signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	tree, err := translog.OpenTree(t.Context(), d, c)
	if err != nil {
		t.Fatal(err)
	}
	return tree, c
}

// whole checks that the directory holds the log of the stream's first payloads, every entry of it, and returns how many.
func whole(t testing.TB, dir string, s *stream, signer *translog.Signer) uint64 {
	t.Helper()
	tree, c := read(t, dir, signer)
	if want := s.root(t, int(c.Size)); c.Root != want {
		t.Fatalf("size %d: another root", c.Size)
	}
	next := 0
	for entry, err := range tree.Entries(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(entry, s.payloads[next]) {
			t.Fatalf("entry %d: %q", next, entry)
		}
		next++
	}
	if uint64(next) != c.Size {
		t.Fatalf("%d entries, size %d", next, c.Size)
	}
	return c.Size
}

func TestGrows(t *testing.T) {
	dir, signer, s := filepath.Join(t.TempDir(), "log"), newSigner(t), &stream{}
	i := opened(t, dir, s, signer)
	if n := whole(t, dir, s, signer); n != 0 {
		t.Fatalf("size %d", n)
	}
	for _, n := range []int{0, 1, 1, 200, 53, 1, 0, 1, 600, 256} {
		s.grow(n)
		i.turn(t.Context())
		if err := i.Health(); err != nil {
			t.Fatal(err)
		}
		if n := whole(t, dir, s, signer); n != uint64(len(s.payloads)) {
			t.Fatalf("size %d, %d verdicts", n, len(s.payloads))
		}
	}
	if got := testutil.ToFloat64(i.metrics.size); got != float64(len(s.payloads)) {
		t.Errorf("metric %v", got)
	}
	var partial []string
	for _, path := range filesIn(t, dir) {
		if strings.Contains(path, ".p/") {
			partial = append(partial, path)
		}
	}
	for _, path := range partial { // of what is full now, no beginning is left
		full, _, _ := strings.Cut(path, ".p/")
		if _, err := os.Stat(filepath.Join(dir, full)); err == nil {
			t.Errorf("%s is left", path)
		}
	}
	if _, err := lockDir(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second writer: %v", err)
	}
}

// filesIn returns the paths of all files in the directory.
func filesIn(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var errFault = errors.New("fault")

// TestEveryStepFails fails every step of the way in turn, as one that was not done and as one that was done and reported as
// failed, and has the process killed there. Whoever goes on afterwards never signs what does not continue every checkpoint
// that had been seen.
func TestEveryStepFails(t *testing.T) {
	signer := newSigner(t)
	rounds := []int{3, 252, 3}
	run := func(dir string, s *stream, fault func(step, path string, after bool) error) (seen []translog.Checkpoint, steps int, failed bool) {
		i := keeper(t, dir, s, signer)
		w, err := lockDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		w.fsync = unsynced
		w.fault = func(step, path string, after bool) error {
			steps++
			return fault(step, path, after)
		}
		i.dir = w
		err = i.load(t.Context())
		if errors.Is(err, errNoCheckpoint) {
			if err = w.empty(); err == nil {
				err = i.publish(translog.Checkpoint{Origin: origin, Root: translog.EmptyRoot()})
			}
		}
		for _, n := range rounds {
			if err != nil {
				break
			}
			s.grow(n)
			err = i.forward(t.Context())
			if _, statErr := os.Stat(filepath.Join(dir, translog.CheckpointPath)); statErr == nil {
				_, c := read(t, dir, signer)
				seen = append(seen, c)
			}
		}
		return seen, steps, err != nil
	}
	_, steps, failed := run(t.TempDir(), &stream{}, func(string, string, bool) error { return nil })
	if failed || steps < 40 {
		t.Fatalf("%d steps, failed: %v", steps, failed)
	}
	for at := range steps {
		dir, s, n := t.TempDir(), &stream{}, -1
		seen, _, failed := run(dir, s, func(string, string, bool) error {
			if n++; n == at {
				return errFault
			}
			return nil
		})
		if !failed {
			t.Fatalf("step %d did not fail", at)
		}
		i := opened(t, dir, s, signer)
		s.grow(40)
		i.turn(t.Context())
		if err := i.Health(); err != nil {
			t.Fatalf("step %d: %v", at, err)
		}
		if size := whole(t, dir, s, signer); size != uint64(len(s.payloads)) {
			t.Fatalf("step %d: size %d, %d verdicts", at, size, len(s.payloads))
		}
		tree, c := read(t, dir, signer)
		for _, old := range seen {
			hashes, err := tree.Consistency(t.Context(), old.Size)
			if err != nil {
				t.Fatal(err)
			}
			if err := translog.VerifyConsistency(old.Size, c.Size, hashes, old.Root, c.Root); err != nil {
				t.Errorf("step %d: %v", at, err)
			}
		}
		i.dir.close()
	}
	t.Logf("%d steps failed", steps)
}

// TestTriesAgain goes on in the same process after every kind of failure, such as of a full disk.
func TestTriesAgain(t *testing.T) {
	signer, parent, runs := newSigner(t), t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		dir, s := filepath.Join(parent, fmt.Sprint(runs)), &stream{}
		i := keeper(t, dir, s, signer)
		if err := i.open(t.Context()); err != nil {
			rt.Fatal(err)
		}
		defer i.dir.close()
		i.dir.fsync = unsynced
		for range 4 {
			s.grow(rapid.IntRange(0, 300).Draw(rt, "more"))
			at := rapid.IntRange(0, 40).Draw(rt, "step")
			i.dir.fault = func(string, string, bool) error {
				if at--; at < 0 {
					return &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
				}
				return nil
			}
			i.turn(t.Context())
			if err := i.Health(); err != nil && !errors.Is(err, syscall.ENOSPC) {
				rt.Fatal(err)
			}
			whole(t, dir, s, signer)
		}
		i.dir.fault = nil
		i.turn(t.Context())
		if err := i.Health(); err != nil {
			rt.Fatal(err)
		}
		if n := whole(t, dir, s, signer); n != uint64(len(s.payloads)) {
			rt.Fatalf("size %d, %d verdicts", n, len(s.payloads))
		}
	})
}

// TestStops shows what ends a log for good.
func TestStops(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*stream)
		want   string
	}{
		"shorter":                {func(s *stream) { s.payloads = s.payloads[:299] }, "they end before place 300"},
		"gone":                   {func(s *stream) { s.err = eventlog.ErrNotFound }, "not those in the log"},
		"empty":                  {func(s *stream) { s.payloads = nil }, "they end before place 300"},
		"the last one rewritten": {func(s *stream) { s.payloads[299] = []byte("x") }, "place 300 holds another one"},
		"one rewritten":          {func(s *stream) { s.payloads[17] = []byte("x") }, "place 18 holds another one"},
		"two swapped":            {func(s *stream) { s.payloads[9], s.payloads[20] = s.payloads[20], s.payloads[9] }, "place 10 holds another one"},
		"one removed":            {func(s *stream) { s.payloads[100] = nil }, "place 101"},
		"a gap behind":           {func(s *stream) { s.payloads = append(s.payloads, nil, payload(9)) }, "place 301"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, signer, s := t.TempDir(), newSigner(t), &stream{}
			s.grow(300)
			i := opened(t, dir, s, signer)
			i.turn(t.Context())
			_, before := read(t, dir, signer)
			s.payloads = slices.Clone(s.payloads)
			tt.change(s)
			i.passed, i.recheckAt = false, 0 // time passes
			for range maxDoubts {
				if i.failed != nil {
					t.Fatal("believed at once")
				}
				i.turn(t.Context())
			}
			if err := i.Health(); !errors.Is(err, ErrStream) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
			if testutil.ToFloat64(i.metrics.failed) != 1 {
				t.Error("no metric says so")
			}
			s.err, s.payloads = nil, nil
			s.grow(400)
			i.turn(t.Context()) // it is final
			if _, after := read(t, dir, signer); after != before {
				t.Errorf("%+v was signed after %+v", after, before)
			}
		})
	}
}

// TestDamagedEntries shows that files of the log itself are looked at again, also those that no proof needs.
func TestDamagedEntries(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"removed": os.Remove,
		"changed": func(file string) error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			return os.WriteFile(file, b, 0o600)
		},
	} {
		for _, file := range []string{"tile/entries/000", "tile/0/000"} {
			t.Run(name+" "+file, func(t *testing.T) {
				dir, signer, s := t.TempDir(), newSigner(t), &stream{}
				s.grow(300)
				i := opened(t, dir, s, signer)
				i.turn(t.Context())
				if err := i.Health(); err != nil {
					t.Fatal(err)
				}
				_, before := read(t, dir, signer)
				if err := errors.Join(os.Chmod(filepath.Join(dir, file), 0o600), damage(filepath.Join(dir, file))); err != nil {
					t.Fatal(err)
				}
				i.passed, i.recheckAt = false, 0 // time passes
				for range maxDoubts {
					i.turn(t.Context())
				}
				if err := i.Health(); err == nil {
					t.Error("nothing is wrong")
				}
				s.grow(1)
				i.turn(t.Context())
				if _, after := read(t, dir, signer); after != before {
					t.Errorf("%+v was signed after %+v", after, before)
				}
			})
		}
	}
}

// TestMoment shows that a fault of a moment ends nothing.
func TestMoment(t *testing.T) {
	dir, signer, s := t.TempDir(), newSigner(t), &stream{}
	s.grow(10)
	i := opened(t, dir, s, signer)
	i.turn(t.Context())
	all := s.payloads
	for range 3 {
		s.payloads = all[:9]
		i.turn(t.Context())
		i.turn(t.Context())
		if err := i.Health(); !errors.Is(err, ErrStream) {
			t.Fatal(err)
		}
		s.payloads = all
		i.turn(t.Context())
		if err := i.Health(); err != nil {
			t.Fatal(err)
		}
	}
	s.err = eventlog.ErrUnavailable
	for range 2 * maxDoubts {
		i.turn(t.Context())
	}
	if err := i.Health(); !errors.Is(err, eventlog.ErrUnavailable) || i.failed != nil {
		t.Fatal(err)
	}
	s.err = nil
	s.grow(1)
	i.turn(t.Context())
	if n := whole(t, dir, s, signer); n != 11 || i.Health() != nil {
		t.Errorf("size %d, %v", n, i.Health())
	}
}

// TestDamage changes every file on disk, and finds each: at the start, or when it is compared.
func TestDamage(t *testing.T) {
	signer, s, dir := newSigner(t), &stream{}, t.TempDir()
	s.grow(600)
	i := opened(t, dir, s, signer)
	i.turn(t.Context())
	i.dir.close()
	stored := map[string][]byte{}
	for _, path := range filesIn(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if path != lockName {
			stored[path] = b
		}
	}
	edge := []string{"checkpoint", "tile/0/002.p/88", "tile/1/000.p/2", "tile/entries/002.p/88"}
	for _, path := range slices.Sorted(maps.Keys(stored)) {
		again := t.TempDir()
		files := fstest.MapFS{}
		for p, b := range stored {
			if p == path {
				b = bytes.Clone(b)
				b[len(b)/3] ^= 1
			}
			files[p] = &fstest.MapFile{Data: b, Mode: 0o644}
		}
		if err := os.CopyFS(again, files); err != nil {
			t.Fatal(err)
		}
		j := keeper(t, again, s, signer)
		err := j.open(t.Context())
		if slices.Contains(edge, path) {
			if !errors.Is(err, translog.ErrTile) && !errors.Is(err, translog.ErrSignature) && !errors.Is(err, translog.ErrCheckpoint) ||
				!strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		j.turn(t.Context())
		if strings.HasPrefix(path, "tile/0/") { // entries in the middle are for refold tlog check
			if err := j.Health(); !errors.Is(err, translog.ErrTile) || !strings.Contains(err.Error(), path) || j.failed == nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		j.dir.close()
	}
}

// TestNotALog refuses a directory that cannot be continued.
func TestNotALog(t *testing.T) {
	signer, s := newSigner(t), &stream{}
	s.grow(3)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "photo.png"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keeper(t, dir, s, signer).Run(t.Context()); !errors.Is(err, ErrDir) {
		t.Errorf("a directory of something else: %v", err)
	}
	dir = t.TempDir()
	i := opened(t, dir, s, signer)
	i.turn(t.Context())
	i.dir.close()
	if err := keeper(t, dir, s, newSigner(t)).Run(t.Context()); !errors.Is(err, translog.ErrSignature) {
		t.Errorf("another key: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, translog.CheckpointPath)); err != nil {
		t.Fatal(err)
	}
	if err := keeper(t, dir, s, signer).Run(t.Context()); !errors.Is(err, ErrDir) {
		t.Errorf("a log without its checkpoint: %v", err)
	}
	if err := keeper(t, filepath.Join(dir, lockName), s, signer).Run(t.Context()); !errors.Is(err, ErrDir) {
		t.Errorf("a file: %v", err)
	}
}
