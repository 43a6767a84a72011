package objects_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/objects/objectstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	objectstest.Run(t, func(*testing.T) objectstest.Harness {
		m := objects.NewMemory()
		return objectstest.Harness{
			Store: m,
			Flip: func(t testing.TB, d objects.Digest) {
				// The store trusts the digest, which is what makes it damageable.
				data, err := m.Get(t.Context(), d)
				if err != nil {
					t.Fatal(err)
				}
				data[len(data)/2] ^= 1
				ref := objects.Ref{Digest: d, Bytes: int64(len(data)), MediaType: "text/plain"}
				if err := m.Put(t.Context(), ref, data); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestDir(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) objectstest.Harness {
		root := filepath.Join(t.TempDir(), "objects")
		open := func(t testing.TB) objects.Store {
			d, err := objects.OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		return objectstest.Harness{
			Store:  open(t),
			Reopen: open,
			Tear: func(t testing.TB, ref objects.Ref, data []byte) {
				if err := os.WriteFile(filepath.Join(root, "tmp", ref.Digest.String()+".1"), data, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			Flip: func(t testing.TB, d objects.Digest) {
				data, err := os.ReadFile(objectPath(root, d))
				if err != nil {
					t.Fatal(err)
				}
				data[len(data)/2] ^= 1
				if err := os.WriteFile(objectPath(root, d), data, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			DropPart: func(t testing.TB, d objects.Digest) {
				if err := os.Truncate(objectPath(root, d), 10); err != nil {
					t.Fatal(err)
				}
			},
			DropObject: func(t testing.TB, d objects.Digest) {
				if err := os.Remove(objectPath(root, d)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// objectPath is the documented place of an object, spelled out here so that the format is pinned.
func objectPath(root string, d objects.Digest) string {
	s := d.String()
	return filepath.Join(root, s[0:2], s[2:4], s)
}

func TestDirLayout(t *testing.T) {
	root := t.TempDir()
	d, err := objects.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(t.Context(), d, "text/plain", []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			rel, _ := filepath.Rel(root, path)
			data, err := os.ReadFile(path)
			got = append(got, filepath.ToSlash(rel)+" "+string(data))
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"58/91/5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03 hello\n",
		"FORMAT refold-objects/1\n",
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestOpenDirRefuses(t *testing.T) {
	t.Run("other things", func(t *testing.T) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "thesis.tex"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.OpenDir(root); err == nil {
			t.Error("a directory with other things in it was taken for a store")
		}
	})
	t.Run("another format", func(t *testing.T) {
		root := t.TempDir()
		if err := os.WriteFile(filepath.Join(root, "FORMAT"), []byte("refold-objects/2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.OpenDir(root); err == nil {
			t.Error("an unknown format was accepted")
		}
	})
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.OpenDir(path); !errors.Is(err, objects.ErrUnavailable) {
			t.Errorf("a file was opened as a directory: %v", err)
		}
	})
}

// TestDirUnmounted: while the file system is away nothing may be called absent.
func TestDirUnmounted(t *testing.T) {
	root := filepath.Join(t.TempDir(), "objects")
	d, err := objects.OpenDir(root)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := objects.Put(t.Context(), d, "text/plain", []byte("here"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(root, root+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Get(t.Context(), d, ref); !errors.Is(err, objects.ErrUnavailable) || errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := d.Has(t.Context(), ref.Digest); !errors.Is(err, objects.ErrUnavailable) {
		t.Errorf("has: %v", err)
	}
	if _, err := objects.Put(t.Context(), d, "text/plain", []byte("more")); !errors.Is(err, objects.ErrUnavailable) {
		t.Errorf("put: %v", err)
	}
}

// lyingStore returns bytes that nobody asked for.
type lyingStore struct{ data []byte }

func (s lyingStore) Put(context.Context, objects.Ref, []byte) error { return objects.ErrFull }

func (s lyingStore) Get(context.Context, objects.Digest) ([]byte, error) { return s.data, nil }

func (s lyingStore) Has(context.Context, objects.Digest) (bool, error) { return true, nil }

func TestDoors(t *testing.T) {
	ref, err := objects.NewRef("text/plain", []byte("true"))
	if err != nil {
		t.Fatal(err)
	}
	for _, lie := range []string{"", "tru", "trues", "trux"} {
		data, err := objects.Get(t.Context(), lyingStore{[]byte(lie)}, ref)
		corrupt, ok := errors.AsType[*objects.CorruptError](err)
		if !ok || corrupt.Digest != ref.Digest || data != nil {
			t.Errorf("get from a store that returns %q: %q, %v", lie, data, err)
		}
	}
	if ref, err := objects.Put(t.Context(), lyingStore{}, "text/plain", []byte("x")); !errors.Is(err, objects.ErrFull) || ref != (objects.Ref{}) {
		t.Errorf("put to a full store: %v, %v", ref, err)
	}
	for _, lie := range []string{"", "tru", "trues", "trux"} {
		data, err := objects.Fetch(t.Context(), lyingStore{[]byte(lie)}, ref.Digest)
		corrupt, ok := errors.AsType[*objects.CorruptError](err)
		if !ok || corrupt.Digest != ref.Digest || data != nil {
			t.Errorf("fetch from a store that returns %q: %q, %v", lie, data, err)
		}
	}
	if data, err := objects.Fetch(t.Context(), lyingStore{[]byte("true")}, ref.Digest); err != nil || string(data) != "true" {
		t.Errorf("fetch: %q, %v", data, err)
	}
	if _, err := objects.Fetch(t.Context(), objects.NewMemory(), ref.Digest); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("fetch of what is not there: %v", err)
	}
	bad := ref
	bad.MediaType = "text"
	if _, err := objects.Get(t.Context(), lyingStore{[]byte("true")}, bad); !errors.Is(err, objects.ErrInvalidRef) {
		t.Errorf("get of an invalid ref: %v", err)
	}
}

func TestSet(t *testing.T) {
	var s objects.Set
	data := []byte("fetched")
	ref, err := objects.NewRef("text/plain", data)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Bytes(ref.Digest); ok {
		t.Error("the empty set has an object")
	}
	if err := s.Add(ref, []byte("fetches")); !errors.Is(err, objects.ErrCorrupt) || s.Len() != 0 {
		t.Errorf("other bytes were added: %v", err)
	}
	for range 2 {
		if err := s.Add(ref, data); err != nil || s.Len() != 1 {
			t.Errorf("add: %v, %d objects", err, s.Len())
		}
	}
	if got, ok := s.Bytes(ref.Digest); !ok || string(got) != "fetched" {
		t.Errorf("bytes: %q, %v", got, ok)
	}
}

func BenchmarkMemory(b *testing.B) { objectstest.Benchmark(b, objects.NewMemory()) }

func BenchmarkDir(b *testing.B) {
	d, err := objects.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	objectstest.Benchmark(b, d)
}
