// Package objectstest is the conformance suite of [objects.Store]: every store of this module passes it, and a store
// written elsewhere should.
package objectstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/refold-dev/refold/pkg/objects"
)

// Harness is a fresh, empty store and the ways to damage what it keeps. A nil function means that the store cannot be
// damaged so; the tests that need it are skipped by name.
type Harness struct {
	// Store is the store under test.
	Store objects.Store

	// Reopen returns a store over the same storage that shares no memory with Store, as another process would.
	Reopen func(t testing.TB) objects.Store

	// Tear leaves what a put of data leaves that died after writing its bytes and before making the object visible.
	Tear func(t testing.TB, ref objects.Ref, data []byte)

	// Flip changes a stored byte of a non-empty object in such a way that the store still has something to read.
	Flip func(t testing.TB, d objects.Digest)

	// DropPart removes a part of a non-empty object and leaves what makes it visible.
	DropPart func(t testing.TB, d objects.Digest)

	// DropObject removes what makes the object visible, and perhaps all of it.
	DropObject func(t testing.TB, d objects.Digest)
}

const textPlain = "text/plain"

// Run runs the suite. It calls open for every test; the harness is the test's own, and open registers what must be
// cleaned up with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, h Harness)
	}{
		{"RoundTrip", testRoundTrip},
		{"Empty", testEmpty},
		{"Absent", testAbsent},
		{"CallerOwnsBytes", testOwnership},
		{"PutAgain", testPutAgain},
		{"MediaTypesShareBytes", testMediaTypes},
		{"BadRefs", testBadRefs},
		{"WrongLengthInRef", testWrongLength},
		{"WrongDigest", testWrongDigest},
		{"Cancelled", testCancelled},
		{"CancelledMidway", testCancelledMidway},
		{"ConcurrentEqualPuts", testConcurrentEqualPuts},
		{"ConcurrentDifferentPuts", testConcurrentDifferentPuts},
		{"Reopen", testReopen},
		{"TornPut", testTornPut},
		{"CorruptByte", testCorruptByte},
		{"MissingPart", testMissingPart},
		{"MissingObject", testMissingObject},
		{"Large/Compressible", func(t *testing.T, h Harness) { testLarge(t, h, compressible(64<<20)) }},
		{"Large/Random", func(t *testing.T, h Harness) { testLarge(t, h, Random(64<<20, 64)) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Random returns n bytes that do not compress, the same ones for the same seed.
func Random(n int, seed uint64) []byte {
	var key [32]byte
	key[0], key[1], key[2] = byte(seed), byte(seed>>8), byte(seed>>16)
	b := make([]byte, n)
	// Never fails, as its documentation says.
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// compressible returns n bytes of text.
func compressible(n int) []byte {
	b := make([]byte, 0, n+64)
	for i := 0; len(b) < n; i++ {
		b = fmt.Appendf(b, "line %d: nothing of note happened here\n", i)
	}
	return b[:n]
}

func mustPut(t testing.TB, s objects.Store, data []byte) objects.Ref {
	t.Helper()
	ref, err := objects.Put(t.Context(), s, textPlain, data)
	if err != nil {
		t.Fatalf("put of %d bytes: %v", len(data), err)
	}
	return ref
}

func mustGet(t testing.TB, s objects.Store, ref objects.Ref, want []byte) []byte {
	t.Helper()
	got, err := objects.Get(t.Context(), s, ref)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("get returned %d other bytes than the %d that were put", len(got), len(want))
	}
	if has, err := s.Has(t.Context(), ref.Digest); err != nil || !has {
		t.Fatalf("has of an object that get returned: %v, %v", has, err)
	}
	return got
}

func mustBeAbsent(t testing.TB, s objects.Store, ref objects.Ref) {
	t.Helper()
	if data, err := objects.Get(t.Context(), s, ref); !errors.Is(err, objects.ErrNotFound) || errors.Is(err, objects.ErrCorrupt) {
		t.Fatalf("get of an absent object: %d bytes, %v", len(data), err)
	}
	if has, err := s.Has(t.Context(), ref.Digest); err != nil || has {
		t.Fatalf("has of an absent object: %v, %v", has, err)
	}
}

func mustBeCorrupt(t testing.TB, s objects.Store, ref objects.Ref) {
	t.Helper()
	data, err := objects.Get(t.Context(), s, ref)
	corrupt, ok := errors.AsType[*objects.CorruptError](err)
	switch {
	case !ok || !errors.Is(err, objects.ErrCorrupt):
		t.Fatalf("get of a damaged object: %d bytes, %v", len(data), err)
	case errors.Is(err, objects.ErrNotFound):
		t.Fatalf("damage must not look like absence: %v", err)
	case corrupt.Digest != ref.Digest || corrupt.Cause == nil:
		t.Fatalf("the error names object %s and cause %v, want object %s", corrupt.Digest, corrupt.Cause, ref.Digest)
	case data != nil:
		t.Fatalf("damage came with %d bytes", len(data))
	}
}

// sizes are lengths around every boundary that a store may have.
var sizes = []int{1, 2, 31, 1 << 10, 512<<10 - 1, 512 << 10, 512<<10 + 1, 1 << 20, 5<<20 + 3}

func testRoundTrip(t *testing.T, h Harness) {
	for i, n := range sizes {
		for _, data := range [][]byte{Random(n, uint64(i)), compressible(n), make([]byte, n)} {
			ref := mustPut(t, h.Store, data)
			if want := (objects.Ref{Digest: objects.Sum(data), Bytes: int64(n), MediaType: textPlain}); ref != want {
				t.Fatalf("put returned %v, want %v", ref, want)
			}
			mustGet(t, h.Store, ref, data)
		}
	}
}

func testEmpty(t *testing.T, h Harness) {
	ref, err := objects.NewRef(textPlain, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustBeAbsent(t, h.Store, ref)
	if got := mustPut(t, h.Store, nil); got != ref {
		t.Fatalf("put returned %v, want %v", got, ref)
	}
	mustPut(t, h.Store, []byte{})
	if got := mustGet(t, h.Store, ref, nil); got == nil {
		t.Fatal("the empty object came back as nil")
	}
}

func testAbsent(t *testing.T, h Harness) {
	mustPut(t, h.Store, []byte("something else"))
	ref, err := objects.NewRef(textPlain, []byte("never put"))
	if err != nil {
		t.Fatal(err)
	}
	mustBeAbsent(t, h.Store, ref)
}

func testOwnership(t *testing.T, h Harness) {
	data := Random(1<<20, 1)
	given := bytes.Clone(data)
	ref := mustPut(t, h.Store, given)
	if !bytes.Equal(given, data) {
		t.Fatal("put changed the bytes it was given")
	}
	clear(given) // the store must not have kept it
	got := mustGet(t, h.Store, ref, data)
	clear(got) // it is ours
	mustGet(t, h.Store, ref, data)
}

func testPutAgain(t *testing.T, h Harness) {
	data := Random(700<<10, 2)
	ref := mustPut(t, h.Store, data)
	for range 3 {
		if again := mustPut(t, h.Store, data); again != ref {
			t.Fatalf("second put returned %v, first %v", again, ref)
		}
	}
	mustGet(t, h.Store, ref, data)
}

func testMediaTypes(t *testing.T, h Harness) {
	data := []byte("<p>text or not</p>")
	plain := mustPut(t, h.Store, data)
	html, err := objects.Put(t.Context(), h.Store, "text/html", data)
	if err != nil {
		t.Fatal(err)
	}
	if plain.Digest != html.Digest || html.MediaType != "text/html" {
		t.Fatalf("refs %v and %v", plain, html)
	}
	mustGet(t, h.Store, plain, data)
	mustGet(t, h.Store, html, data)
}

func testBadRefs(t *testing.T, h Harness) {
	data := []byte("some bytes")
	for _, mediaType := range []string{"", "text", "text/", "/plain", "text/plain; charset=utf-8", "text/plaïn", "text/pl\u2028ain", "a/b/c", "text/plain\n"} {
		ref, err := objects.Put(t.Context(), h.Store, mediaType, data)
		if !errors.Is(err, objects.ErrInvalidRef) || ref != (objects.Ref{}) {
			t.Errorf("put with media type %q: %v, %v", mediaType, ref, err)
		}
	}
	good, err := objects.NewRef(textPlain, data)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		bytes int64
		want  error
	}{
		"negative": {-1, objects.ErrInvalidRef},
		"short":    {good.Bytes - 1, objects.ErrInvalidRef},
		"long":     {good.Bytes + 1, objects.ErrInvalidRef},
		"huge":     {objects.MaxBytes + 1, objects.ErrTooLarge},
	} {
		bad := good
		bad.Bytes = test.bytes
		if err := h.Store.Put(t.Context(), bad, data); !errors.Is(err, test.want) {
			t.Errorf("store put with a %s length: %v", name, err)
		}
	}
	mustBeAbsent(t, h.Store, good)
}

func testWrongLength(t *testing.T, h Harness) {
	data := Random(600<<10, 3)
	ref := mustPut(t, h.Store, data)
	for _, delta := range []int64{-ref.Bytes, -1, 1} {
		wrong := ref
		wrong.Bytes += delta
		mustBeCorrupt(t, h.Store, wrong)
	}
	mustGet(t, h.Store, ref, data)
}

func testWrongDigest(t *testing.T, h Harness) {
	want, other := Random(600<<10, 4), Random(600<<10, 5)
	ref, err := objects.NewRef(textPlain, want)
	if err != nil {
		t.Fatal(err)
	}
	err = h.Store.Put(t.Context(), ref, other)
	if err != nil {
		// A store may compare the digest itself, and then it has nothing.
		if !errors.Is(err, objects.ErrInvalidRef) {
			t.Fatalf("store put under another digest: %v", err)
		}
		mustBeAbsent(t, h.Store, ref)
	} else {
		mustBeCorrupt(t, h.Store, ref)
	}
	mustPut(t, h.Store, want)
	mustGet(t, h.Store, ref, want)
}

func testCancelled(t *testing.T, h Harness) {
	data := []byte("not today")
	there := mustPut(t, h.Store, []byte("there"))
	ref, err := objects.NewRef(textPlain, data)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := objects.Put(ctx, h.Store, textPlain, data); !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v", err)
	}
	if _, err := objects.Get(ctx, h.Store, there); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	if _, err := h.Store.Has(ctx, there.Digest); !errors.Is(err, context.Canceled) {
		t.Errorf("has: %v", err)
	}
	mustBeAbsent(t, h.Store, ref)
}

// countdown is a context that ends when it has been looked at a number of times, so that a test can end an operation
// in its midst without a clock.
type countdown struct {
	context.Context
	cancel context.CancelFunc

	mu   sync.Mutex
	left int
}

func newCountdown(parent context.Context, looks int) *countdown {
	ctx, cancel := context.WithCancel(parent)
	return &countdown{Context: ctx, cancel: cancel, left: looks}
}

func (c *countdown) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left--
	if c.left < 0 {
		c.cancel()
	}
}

func (c *countdown) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *countdown) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func testCancelledMidway(t *testing.T, h Harness) {
	cancelled := 0
	for looks := range 12 {
		data := Random(3<<20+looks, 100+uint64(looks))
		ref, err := objects.NewRef(textPlain, data)
		if err != nil {
			t.Fatal(err)
		}
		ctx := newCountdown(t.Context(), looks)
		_, err = objects.Put(ctx, h.Store, textPlain, data)
		ctx.cancel()
		switch {
		case err == nil:
			mustGet(t, h.Store, ref, data)
		case errors.Is(err, context.Canceled):
			// Whole or absent, whichever; and putting again completes it.
			cancelled++
			if got, err := objects.Get(t.Context(), h.Store, ref); err != nil && !errors.Is(err, objects.ErrNotFound) {
				t.Fatalf("after a put cancelled at look %d: %d bytes, %v", looks, len(got), err)
			}
			mustPut(t, h.Store, data)
			mustGet(t, h.Store, ref, data)
		default:
			t.Fatalf("put cancelled at look %d: %v", looks, err)
		}
		ctx = newCountdown(t.Context(), looks)
		if _, err := objects.Get(ctx, h.Store, ref); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("get cancelled at look %d: %v", looks, err)
		}
		ctx.cancel()
	}
	if cancelled == 0 {
		t.Fatal("no put was cancelled")
	}
}

// testConcurrentEqualPuts has eight writers of one object and eight readers who must see it whole or not at all.
func testConcurrentEqualPuts(t *testing.T, h Harness) {
	for round := range 4 {
		data := append(compressible(1<<20), Random(1<<20, 10+uint64(round))...)
		ref, err := objects.NewRef(textPlain, data)
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan struct{})
		var writers, readers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				if got, err := objects.Put(t.Context(), h.Store, textPlain, data); err != nil || got != ref {
					t.Errorf("concurrent put: %v, %v", got, err)
				}
			})
			readers.Go(func() { readWhile(t, h.Store, ref, written) })
		}
		writers.Wait()
		close(written)
		readers.Wait()
		mustGet(t, h.Store, ref, data)
	}
}

// readWhile reads ref until written is closed. Once seen the object must stay.
func readWhile(t *testing.T, s objects.Store, ref objects.Ref, written <-chan struct{}) {
	seen := false
	for {
		_, err := objects.Get(t.Context(), s, ref)
		switch {
		case err == nil:
			seen = true
		case !errors.Is(err, objects.ErrNotFound):
			t.Errorf("get during puts: %v", err)
			return
		case seen:
			t.Error("the object vanished during puts of the same object")
			return
		}
		select {
		case <-written:
			return
		default:
		}
	}
}

func testConcurrentDifferentPuts(t *testing.T, h Harness) {
	var group sync.WaitGroup
	for i := range 32 {
		group.Go(func() {
			data := Random(10_000+i, 1000+uint64(i))
			ref, err := objects.Put(t.Context(), h.Store, textPlain, data)
			if err != nil {
				t.Errorf("put %d: %v", i, err)
				return
			}
			if got, err := objects.Get(t.Context(), h.Store, ref); err != nil || !bytes.Equal(got, data) {
				t.Errorf("get %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	group.Wait()
}

func testReopen(t *testing.T, h Harness) {
	if h.Reopen == nil {
		t.Skip("this store does not outlive its process")
	}
	data := Random(1<<20+1, 6)
	ref := mustPut(t, h.Store, data)
	again := h.Reopen(t)
	mustGet(t, again, ref, data)
	mustPut(t, again, data)
	mustGet(t, h.Store, ref, data)
}

func testTornPut(t *testing.T, h Harness) {
	if h.Tear == nil {
		t.Skip("a put to this store has no parts that could be left behind")
	}
	for _, data := range [][]byte{Random(100, 7), Random(2<<20, 8)} {
		ref, err := objects.NewRef(textPlain, data)
		if err != nil {
			t.Fatal(err)
		}
		h.Tear(t, ref, data)
		mustBeAbsent(t, h.Store, ref)
		mustPut(t, h.Store, data)
		mustGet(t, h.Store, ref, data)
	}
}

func testCorruptByte(t *testing.T, h Harness) {
	if h.Flip == nil {
		t.Skip("this store cannot be damaged from outside")
	}
	for _, data := range [][]byte{Random(100, 20), compressible(100), Random(2<<20+9, 21), compressible(2<<20 + 9)} {
		damageAndRepair(t, h, data, h.Flip)
	}
}

func testMissingPart(t *testing.T, h Harness) {
	if h.DropPart == nil {
		t.Skip("an object in this store has no parts that could be missing")
	}
	for _, data := range [][]byte{Random(100, 22), Random(2<<20+9, 23)} {
		damageAndRepair(t, h, data, h.DropPart)
	}
}

func damageAndRepair(t *testing.T, h Harness, data []byte, damage func(testing.TB, objects.Digest)) {
	t.Helper()
	ref := mustPut(t, h.Store, data)
	neighbour := slices.Concat(data, []byte("!"))
	other := mustPut(t, h.Store, neighbour)
	damage(t, ref.Digest)
	mustBeCorrupt(t, h.Store, ref)
	mustGet(t, h.Store, other, neighbour)
	mustPut(t, h.Store, data)
	mustGet(t, h.Store, ref, data)
}

func testMissingObject(t *testing.T, h Harness) {
	if h.DropObject == nil {
		t.Skip("nothing can be removed from this store")
	}
	data := Random(2<<20, 24)
	ref := mustPut(t, h.Store, data)
	h.DropObject(t, ref.Digest)
	mustBeAbsent(t, h.Store, ref)
	mustPut(t, h.Store, data)
	mustGet(t, h.Store, ref, data)
}

func testLarge(t *testing.T, h Harness, data []byte) {
	if testing.Short() {
		t.Skip("64 MiB objects are left out of short runs")
	}
	ref := mustPut(t, h.Store, data)
	mustGet(t, h.Store, ref, data)
	mustPut(t, h.Store, data)
}

// Benchmark measures puts and gets of 1 MiB through both doors, next to the SHA-256 of the same bytes, which is the
// least that either can cost.
func Benchmark(b *testing.B, s objects.Store) {
	b.Helper()
	const size = 1 << 20
	data := append(compressible(size/2), Random(size/2, 1)...)
	b.Run("sha256", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			objects.Sum(data)
		}
	})
	b.Run("put/new", func(b *testing.B) {
		b.SetBytes(size)
		fresh := bytes.Clone(data)
		for i := 0; b.Loop(); i++ {
			// A different object each time, in every chunk that a store may make of it.
			for at := 0; at < size; at += 64 << 10 {
				fresh[at], fresh[at+1], fresh[at+2], fresh[at+3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
			}
			mustPut(b, s, fresh)
		}
	})
	ref := mustPut(b, s, data)
	b.Run("put/again", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			mustPut(b, s, data)
		}
	})
	b.Run("get", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := objects.Get(b.Context(), s, ref); err != nil {
				b.Fatal(err)
			}
		}
	})
}
