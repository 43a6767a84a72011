package tlog_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/tlog"
)

// memory is a log's files in memory.
type memory map[string][]byte

func (m memory) Read(_ context.Context, path string, limit int) ([]byte, error) {
	b, ok := m[path]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: %w", path, tlog.ErrNotFound)
	case len(b) > limit:
		return nil, fmt.Errorf("%s: %w: longer than %d bytes", path, tlog.ErrTile, limit)
	}
	return bytes.Clone(b), nil
}

func (m memory) write(f tlog.File, b []byte) error {
	m[f.Path()] = bytes.Clone(b)
	return nil
}

// naive is RFC 6962's definition of the root, word for word.
func naive(leaves []tlog.Hash) tlog.Hash {
	switch len(leaves) {
	case 0:
		return tlog.EmptyRoot()
	case 1:
		return leaves[0]
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	return tlog.NodeHash(naive(leaves[:k]), naive(leaves[k:]))
}

// naivePath is RFC 6962's definition of an audit path.
func naivePath(m int, leaves []tlog.Hash) []tlog.Hash {
	if len(leaves) <= 1 {
		return nil
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	if m < k {
		return append(naivePath(m, leaves[:k]), naive(leaves[k:]))
	}
	return append(naivePath(m-k, leaves[k:]), naive(leaves[:k]))
}

// naiveProof is RFC 6962's definition of a consistency proof.
func naiveProof(m int, leaves []tlog.Hash, whole bool) []tlog.Hash {
	if m == len(leaves) {
		if whole {
			return nil
		}
		return []tlog.Hash{naive(leaves)}
	}
	k := 1
	for k*2 < len(leaves) {
		k *= 2
	}
	if m <= k {
		return append(naiveProof(m, leaves[:k], whole), naive(leaves[k:]))
	}
	return append(naiveProof(m-k, leaves[k:], false), naive(leaves[:k]))
}

func payload(i int) []byte { return fmt.Appendf(nil, "payload %d", i) }

func leaves(n int) []tlog.Hash {
	out := make([]tlog.Hash, n)
	for i := range out {
		out[i] = tlog.LeafHash(payload(i))
	}
	return out
}

// grow builds a log of n leaves, with files for the sizes in flush too.
func grow(t testing.TB, n int, flush ...int) (memory, *tlog.Builder) {
	t.Helper()
	m := memory{}
	b := tlog.NewBuilder(m.write)
	for i := range n {
		if err := b.Append(payload(i)); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(flush, i+1) {
			if err := b.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	return m, b
}

func point(t testing.TB, b *tlog.Builder) tlog.Checkpoint {
	t.Helper()
	root, err := b.Root()
	if err != nil {
		t.Fatal(err)
	}
	return tlog.Checkpoint{Origin: "example.com/log", Size: b.Size(), Root: root}
}

func open(t testing.TB, m memory, c tlog.Checkpoint) *tlog.Tree {
	t.Helper()
	tree, err := tlog.OpenTree(t.Context(), m, c)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestKnownRoots compares with the vectors that implementations of RFC 6962 share.
func TestKnownRoots(t *testing.T) {
	inputs := []string{"", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"}
	roots := []string{
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
		"fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
		"aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
		"d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
		"4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
		"76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
		"ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
		"5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
	}
	b := tlog.NewBuilder(memory{}.write)
	for i, want := range roots {
		root, err := b.Root()
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(root[:]); got != want {
			t.Errorf("size %d: root %s, want %s", i, got, want)
		}
		if i < len(inputs) {
			leaf, err := hex.DecodeString(inputs[i])
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Append(leaf); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAgainstNaive compares roots and proofs with the definitions, in logs of several levels of tiles.
func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{1, 2, 3, 255, 256, 257, 511, 512, 513, 700, 1024}).Draw(rt, "size")
		size = max(1, size-rapid.IntRange(0, 3).Draw(rt, "less"))
		all := leaves(size)
		m, b := grow(t, size)
		c := point(t, b)
		if c.Root != naive(all) {
			rt.Fatalf("size %d: another root", size)
		}
		tree := open(t, m, c)
		index := rapid.IntRange(0, size-1).Draw(rt, "index")
		path, err := tree.Inclusion(t.Context(), uint64(index))
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(naivePath(index, all), path, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("size %d, index %d: %s", size, index, diff)
		}
		if err := tlog.VerifyInclusion(uint64(index), c.Size, all[index], path, c.Root); err != nil {
			rt.Fatal(err)
		}
		if err := tlog.VerifyInclusion(uint64(index), c.Size, tlog.LeafHash([]byte("other")), path, c.Root); !errors.Is(err, tlog.ErrNotIncluded) {
			rt.Fatalf("another leaf: %v", err)
		}
		old := rapid.IntRange(1, size).Draw(rt, "old")
		hashes, err := tree.Consistency(t.Context(), uint64(old))
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(naiveProof(old, all, true), hashes, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("sizes %d, %d: %s", old, size, diff)
		}
		if err := tlog.VerifyConsistency(uint64(old), c.Size, hashes, naive(all[:old]), c.Root); err != nil {
			rt.Fatal(err)
		}
		if err := tlog.VerifyConsistency(uint64(old), c.Size, hashes, tlog.LeafHash(nil), c.Root); !errors.Is(err, tlog.ErrInconsistent) {
			rt.Fatalf("another root: %v", err)
		}
		entry, err := tree.Entry(t.Context(), uint64(index))
		if err != nil || !bytes.Equal(entry, payload(index)) {
			rt.Fatalf("entry %d: %q, %v", index, entry, err)
		}
	})
}

// TestThreeLevels looks at a log with more than 65,536 leaves.
func TestThreeLevels(t *testing.T) {
	const size = 256*256 + 300
	m, b := grow(t, size)
	c := point(t, b)
	all := leaves(size)
	if c.Root != naive(all) {
		t.Fatal("another root")
	}
	tree := open(t, m, c)
	for _, index := range []uint64{0, 255, 256, 65_535, 65_536, size - 1} {
		path, err := tree.Inclusion(t.Context(), index)
		if err != nil {
			t.Fatal(err)
		}
		if err := tlog.VerifyInclusion(index, size, all[index], path, c.Root); err != nil {
			t.Error(err)
		}
	}
	for _, old := range []uint64{0, 1, 256, 65_535, 65_536, 65_537, size} {
		hashes, err := tree.Consistency(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		if err := tlog.VerifyConsistency(old, size, hashes, naive(all[:old]), c.Root); err != nil {
			t.Error(err)
		}
	}
	next := 0
	for entry, err := range tree.Entries(t.Context(), 0) {
		if err != nil || !bytes.Equal(entry, payload(next)) {
			t.Fatalf("entry %d: %q, %v", next, entry, err)
		}
		next++
	}
	if next != size {
		t.Errorf("%d entries", next)
	}
}

// TestGoesOn shows that a builder over stored files makes the same files as one that was never interrupted.
func TestGoesOn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 600).Draw(rt, "size")
		cuts := rapid.SliceOfN(rapid.IntRange(1, size), 0, 6).Draw(rt, "cuts")
		slices.Sort(cuts)
		want, whole := grow(t, size, cuts...)
		m := memory{}
		b := tlog.NewBuilder(m.write)
		for i := range size {
			if err := b.Append(payload(i)); err != nil {
				rt.Fatal(err)
			}
			if !slices.Contains(cuts, i+1) {
				continue
			}
			if err := b.Flush(); err != nil {
				rt.Fatal(err)
			}
			var err error
			if b, err = open(t, m, point(t, b)).Builder(t.Context(), m.write); err != nil {
				rt.Fatal(err)
			}
		}
		if err := b.Flush(); err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(want, m); diff != "" {
			rt.Fatal(diff)
		}
		if point(t, b) != point(t, whole) {
			rt.Fatal("another root")
		}
	})
}

// TestOldFiles reads a log by an old checkpoint whose partial files are gone.
func TestOldFiles(t *testing.T) {
	m, _ := grow(t, 300)
	_, b := grow(t, 200)
	c := point(t, b)
	tree := open(t, m, c)
	for i := range uint64(200) {
		entry, err := tree.Entry(t.Context(), i)
		if err != nil || !bytes.Equal(entry, payload(int(i))) {
			t.Fatalf("entry %d: %q, %v", i, entry, err)
		}
	}
	if _, err := tree.Entry(t.Context(), 200); !errors.Is(err, tlog.ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := tree.Inclusion(t.Context(), 200); !errors.Is(err, tlog.ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := tree.Consistency(t.Context(), 201); !errors.Is(err, tlog.ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := tree.Leaf(t.Context(), 200); !errors.Is(err, tlog.ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
}

// everything reads all that a log has.
func everything(t *testing.T, m memory, c tlog.Checkpoint) error {
	t.Helper()
	tree, err := tlog.OpenTree(t.Context(), m, c)
	if err != nil {
		return err
	}
	for _, err := range tree.Entries(t.Context(), 0) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestEveryByteCounts changes every file of a log, and finds each by its name.
func TestEveryByteCounts(t *testing.T) {
	const size = 600
	whole, b := grow(t, size)
	c := point(t, b)
	if err := everything(t, whole, c); err != nil {
		t.Fatal(err)
	}
	if len(whole) != 7 { // two full tiles and bundles, one partial of each, one partial tile above
		t.Fatalf("%d files: %q", len(whole), slices.Sorted(maps.Keys(whole)))
	}
	for _, path := range slices.Sorted(maps.Keys(whole)) {
		for name, change := range map[string]func([]byte) []byte{
			"flip":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			"first":  func(b []byte) []byte { b[0] ^= 0x80; return b },
			"last":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
			"cut":    func(b []byte) []byte { return b[:len(b)-1] },
			"longer": func(b []byte) []byte { return append(b, 0) },
			"empty":  func([]byte) []byte { return nil },
			"gone":   nil,
		} {
			m := maps.Clone(whole)
			delete(m, path)
			want := tlog.ErrNotFound
			if change != nil {
				m[path], want = change(bytes.Clone(whole[path])), tlog.ErrTile
			}
			err := everything(t, m, c)
			if !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %s: %v", path, name, err)
			}
		}
	}
}

func TestOversize(t *testing.T) {
	long := bytes.Repeat([]byte("x"), tlog.MaxEntry+1)
	if got := tlog.Entry(long[1:]); !bytes.Equal(got, long[1:]) {
		t.Error("the longest payload is not its own entry")
	}
	const want = "refold oversize 0b5eb0f2a07d4ac2cb2c5a2a4a1c1c57"
	entry := string(tlog.Entry(long))
	if !strings.HasPrefix(entry, "refold oversize ") || len(entry) != len("refold oversize ")+64 {
		t.Errorf("%q, not like %q", entry, want)
	}
	m := memory{}
	b := tlog.NewBuilder(m.write)
	for _, p := range [][]byte{long, long[1:], {}} {
		if err := b.Append(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := everything(t, m, point(t, b)); err != nil {
		t.Error(err)
	}
}

func TestPaths(t *testing.T) {
	for path, f := range map[string]tlog.File{
		"tile/0/000":                       {Width: 256},
		"tile/0/000.p/1":                   {Width: 1},
		"tile/3/x001/x234/067":             {Level: 3, N: 1_234_067, Width: 256},
		"tile/entries/x001/234.p/255":      {Entries: true, N: 1_234, Width: 255},
		"tile/6/999":                       {Level: 6, N: 999, Width: 256},
		"tile/entries/x001/x000/x000/000":  {Entries: true, N: 1_000_000_000, Width: 256},
		"tile/entries/x001/x000/000.p/200": {Entries: true, N: 1_000_000, Width: 200},
		"tile/1/x000/000":                  {},
		"tile/1/x000/001":                  {},
		"tile/1/1":                         {},
		"tile/01/001":                      {},
		"tile/+1/001":                      {},
		"tile/8/001":                       {},
		"tile/-1/001":                      {},
		"tile/1/001.p/0":                   {},
		"tile/1/001.p/256":                 {},
		"tile/1/001.p/01":                  {},
		"tile/1/001.p/":                    {},
		"tile/1/001/":                      {},
		"tile/1/../001":                    {},
		"tile/../../etc/passwd":            {},
		"tile/entries/../x001/001":         {},
		"/tile/0/000":                      {},
		"tile//0/000":                      {},
		"tile/0/-01":                       {},
		"tile/0/+01":                       {},
		"tile/0":                           {},
		"tile/":                            {},
		"":                                 {},
		"checkpoint":                       {},
		"tile/0/000.p/1.p/1":               {},
		"tile/0/x999/x999/x999/x999/x999/x999/999": {},
	} {
		got, ok := tlog.ParsePath(path)
		if want := f.Width != 0; ok != want {
			t.Errorf("%q: %v", path, ok)
		} else if ok && (got != f || f.Path() != path) {
			t.Errorf("%q: %+v, written as %q", path, got, f.Path())
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("tile/3/x001/x234/067.p/9")
	f.Fuzz(func(t *testing.T, path string) {
		if got, ok := tlog.ParsePath(path); ok && got.Path() != path {
			t.Errorf("%q is read and written as %q", path, got.Path())
		}
	})
}

func FuzzDecodeBundle(f *testing.F) {
	f.Add([]byte{0, 1, 'a', 0, 0}, 2)
	f.Add([]byte{0xff, 0xff, 'a'}, 1)
	f.Fuzz(func(t *testing.T, b []byte, width int) {
		entries, err := tlog.DecodeBundle(b, width)
		if err != nil {
			if !errors.Is(err, tlog.ErrTile) {
				t.Error(err)
			}
			return
		}
		n := 0
		for _, e := range entries {
			n += 2 + len(e)
		}
		if n != len(b) || len(entries) != width {
			t.Errorf("%d entries of %d bytes from %d bytes, width %d", len(entries), n, len(b), width)
		}
	})
}
