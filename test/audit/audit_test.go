// Package audit_test runs verifiers as processes that are killed at random while sessions grow, and counts what they
// have published in the end.
package audit_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/test/child"
)

// TestMain runs the tests, or is a verifier when a test says so.
func TestMain(m *testing.M) {
	child.Main(func(ctx context.Context, a *assignment) error { return a.run(ctx) })
	goleak.VerifyTestMain(m)
}

// size returns a number of the test, which the environment may change.
func size(t *testing.T, name string, usual, short int) int {
	t.Helper()
	if testing.Short() {
		usual = short
	}
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1 on", name, text)
	}
	return n
}

// TestCompleteness has sessions grow while verifiers, two at a time, are killed and started again, some without hints,
// all of them with hints that get lost, while a witness signs what passes. In the end every request has one verdict, and so has
// every call that was answered and every receipt that nothing permits, whatever died when.
//
// REFOLD_AUDIT_KILLS=1000 is a run over everything that can go wrong in about ten minutes.
func TestCompleteness(t *testing.T) {
	sessions, kills := size(t, "REFOLD_AUDIT_SESSIONS", 200, 40), size(t, "REFOLD_AUDIT_KILLS", 40, 8)
	seed := uint64(size(t, "REFOLD_AUDIT_SEED", 1, 1))
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := newLoad(t, client, sessions, seed)
	k := &killer{t: t, url: server.ClientURL(), dir: t.TempDir(), witness: l.witness.Public(), share: newShare(kills)}

	var killers, writers sync.WaitGroup
	for i := range uint64(2) {
		killers.Go(func() { k.run(rand.New(rand.NewPCG(seed, i)), i) })
	}
	began := time.Now()
	for i := range uint64(4) {
		writers.Go(func() { l.write(rand.New(rand.NewPCG(seed, 100+i)), k.share) })
	}
	l.talk()
	writers.Wait()
	loaded := time.Since(began)
	killers.Wait()
	if t.Failed() {
		return
	}
	last := k.start(assignment{Drop: 1, Sweep: 200 * time.Millisecond}, 0)
	if last == nil {
		return
	}
	defer last.Kill()
	l.await()
	total := l.check()
	t.Logf("%d sessions, %d events within %v; %d verifiers killed", total.sessions, total.events, loaded.Round(time.Second), k.share.done())
	t.Logf("%d calls, of which %d were answered, one wire verdict each; %d receipts that nothing permits, one verdict each", total.calls, total.answered, total.strays)
	t.Logf("%d requests and %d heads, one verdict each; every one a match", total.requests, total.heads)
}
