package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// TestAdd runs what the witness and the log of verdicts need of records, alone and replicated.
func TestAdd(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", replicas), func(t *testing.T) {
			t.Parallel()
			cfg := jetstream.Config{Replicas: replicas}
			if replicas == 1 {
				cfg.InProcess = serve(t, nil)
			} else {
				cfg.URL = cluster(t).URLs()
			}
			c := connect(t, cfg)
			if err := c.EnsureStreams(t.Context()); err != nil {
				t.Fatal(err)
			}
			testAdd(t, c)
			testEntries(t, c)
		})
	}
}

func testAdd(t *testing.T, c *jetstream.Client) {
	t.Helper()
	if counts, err := c.Receipts().Counts(t.Context()); err != nil || len(counts) != 0 {
		t.Fatalf("counts of nothing: %v, %v", counts, err)
	}
	a, b := newID(), newID()
	const records = 10
	var wg sync.WaitGroup
	for _, r := range []*jetstream.Records{c.Receipts(), c.AnswerReceipts()} { // two kinds on one stream
		for _, session := range []events.ID{a, b} {
			for n := range records {
				wg.Go(func() {
					id := fmt.Sprintf("%s.%d.%p", session, n, r)
					first, err := r.Add(t.Context(), session, id, fmt.Appendf(nil, "%d", n))
					if err != nil {
						t.Error(err)
						return
					}
					if again, err := r.Add(t.Context(), session, id, fmt.Appendf(nil, "%d", n)); err != nil || again != first {
						t.Errorf("added again: place %d instead of %d, %v", again, first, err)
					}
				})
			}
		}
	}
	wg.Wait()
	for _, r := range []*jetstream.Records{c.Receipts(), c.AnswerReceipts()} {
		counts, err := r.Counts(t.Context())
		if err != nil || len(counts) != 2 || counts[a] != records || counts[b] != records {
			t.Errorf("%v, %v", counts, err)
		}
		seen := map[string]bool{}
		for record, err := range r.Read(t.Context(), a, 1) {
			if err != nil {
				t.Fatal(err)
			}
			seen[string(record.Payload)] = true
		}
		if len(seen) != records {
			t.Errorf("%d different records, want %d", len(seen), records)
		}
	}
	for name, err := range map[string]error{
		"no session": func() error { _, err := c.Receipts().Add(t.Context(), "x", "id", []byte("x")); return err }(),
		"no id":      func() error { _, err := c.Receipts().Add(t.Context(), a, "", []byte("x")); return err }(),
		"no payload": func() error { _, err := c.Receipts().Add(t.Context(), a, "id", nil); return err }(),
	} {
		if !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testEntries reads a stream of several kinds in the order of its places.
func testEntries(t *testing.T, c *jetstream.Client) {
	t.Helper()
	session := newID()
	var want []string
	for i, r := range []*jetstream.Records{c.Verdicts(), c.WireVerdicts(), c.StrayVerdicts(), c.WireVerdicts()} {
		payload := fmt.Sprintf("verdict %d", i)
		if seq, err := r.Add(t.Context(), session, payload, []byte(payload)); err != nil || seq != uint64(i+1) {
			t.Fatalf("place %d, %v", seq, err)
		}
		want = append(want, payload)
	}
	subjects := []string{"", ".wire", ".stray", ".wire"}
	for from := range uint64(6) {
		next := max(from, 1)
		for e, err := range c.Verdicts().Entries(t.Context(), from) {
			if err != nil {
				t.Fatal(err)
			}
			i := e.Seq - 1
			if e.Seq != next || string(e.Payload) != want[i] || e.Subject != "verdict."+string(session)+subjects[i] {
				t.Errorf("from %d: %+v", from, e)
			}
			next++
		}
		if next != max(from, 5) {
			t.Errorf("from %d: the next would be %d", from, next)
		}
	}
	for r, want := range map[*jetstream.Records]int{c.Verdicts(): 1, c.WireVerdicts(): 2, c.StrayVerdicts(): 1} {
		n := 0
		for _, err := range r.Read(t.Context(), session, 1) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != want {
			t.Errorf("%d records of one kind, want %d", n, want)
		}
	}
}

// TestEntriesGap: a place without a message is told apart from the end.
func TestEntriesGap(t *testing.T) {
	t.Parallel()
	c := local(t)
	ctx := t.Context()
	if err := c.JetStream().DeleteStream(ctx, jetstream.StepsStream); err != nil {
		t.Fatal(err)
	}
	stream, err := c.JetStream().CreateStream(ctx, stepsThatCanBeDeleted())
	if err != nil {
		t.Fatal(err)
	}
	session := newID()
	for i := range 4 {
		if _, err := c.Steps().Add(ctx, session, fmt.Sprint(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (n int, err error) {
		for _, err := range c.Steps().Entries(ctx, 1) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if n, err := read(); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := stream.DeleteMsg(ctx, 4); err != nil {
		t.Fatal(err)
	}
	if n, err := read(); n != 3 || !errors.Is(err, eventlog.ErrGap) {
		t.Errorf("without the last: %d, %v", n, err)
	}
	if err := stream.DeleteMsg(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if n, err := read(); n != 1 || !errors.Is(err, eventlog.ErrGap) {
		t.Errorf("without one in the middle: %d, %v", n, err)
	}
	if err := c.JetStream().DeleteStream(ctx, jetstream.StepsStream); err != nil {
		t.Fatal(err)
	}
	if n, err := read(); n != 0 || !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("without the stream: %d, %v", n, err)
	}
	if _, err := c.Steps().Counts(ctx); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("counts without the stream: %v", err)
	}
}

// TestAddAgain loses acknowledgements, and requests: the record is stored once.
func TestAddAgain(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstream.Config{InProcess: serve(t, nil)})
	var n atomic.Int64
	c.Interpose(func(next exchange) exchange {
		return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
			if !strings.HasPrefix(msg.Subject, "witness.") {
				return next(ctx, msg)
			}
			switch n.Add(1) % 3 {
			case 1:
				return nil, jetstream.ErrNoAnswer
			case 2:
				if _, err := next(ctx, msg); err != nil {
					return nil, err
				}
				return nil, jetstream.ErrNoAnswer
			}
			return next(ctx, msg)
		}
	})
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	session := newID()
	for i := range 3 {
		if seq, err := c.Receipts().Add(t.Context(), session, fmt.Sprint(i), []byte{byte('a' + i)}); err != nil || seq != uint64(i+1) {
			t.Fatalf("place %d, %v", seq, err)
		}
	}
	if counts, err := c.Receipts().Counts(t.Context()); err != nil || counts[session] != 3 {
		t.Errorf("%v, %v", counts, err)
	}
}

// TestAddRefused: what no try makes good is told at once, everything else within the time.
func TestAddRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, users(map[string]*server.Permissions{
		"all":  nil,
		"mute": {Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}}},
	}))
	as := func(name string) *jetstream.Client {
		return connect(t, jetstream.Config{URL: strings.Replace(s.ClientURL(), "://", "://"+name+":pass@", 1), AppendTimeout: 10 * time.Minute})
	}
	all := as("all")
	if err := all.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	session := newID()
	if _, err := as("mute").Receipts().Add(t.Context(), session, "id", []byte("x")); !errors.Is(err, eventlog.ErrPermission) {
		t.Errorf("without the right: %v", err)
	}
	if _, err := all.Receipts().Add(t.Context(), session, "id", make([]byte, 2<<20)); !errors.Is(err, eventlog.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	full := connect(t, jetstream.Config{InProcess: serve(t, func(o *embedded.Options) { o.MaxStore = 1 << 20 }), AppendTimeout: 10 * time.Minute})
	if err := full.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		_, err = full.Receipts().Add(t.Context(), session, fmt.Sprint(i), bytes.Repeat([]byte("x"), 100<<10))
	}
	if !errors.Is(err, eventlog.ErrFull) {
		t.Errorf("full: %v", err)
	}
	s.Shutdown()
	if _, err := all.Receipts().Add(within(t, 100*time.Millisecond), session, "other", []byte("x")); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// stepsThatCanBeDeleted is a stream of records whose messages somebody may delete.
func stepsThatCanBeDeleted() natsjs.StreamConfig {
	return natsjs.StreamConfig{Name: jetstream.StepsStream, Subjects: []string{"step.*"}, AllowDirect: true}
}
