package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func prompt(text string) *events.Input {
	return &events.Input{
		ID: newID(), Time: 1, Kind: events.InputPrompt,
		Content: []events.Block{{Type: events.BlockText, Text: text}},
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("R%d", replicas), func(t *testing.T) {
			t.Parallel()
			cfg := jetstream.Config{Replicas: replicas, AckWait: 500 * time.Millisecond}
			if replicas == 1 {
				cfg.InProcess = serve(t, nil)
			} else {
				cfg.URL = cluster(t).URLs()
			}
			c := connect(t, cfg)
			if err := c.EnsureStreams(t.Context()); err != nil {
				t.Fatal(err)
			}
			testInbox(t, c)
		})
	}
}

func testInbox(t *testing.T, c *jetstream.Client) {
	t.Helper()
	box, a, b := c.Inbox(), newID(), newID()
	var seqs []uint64
	for i, session := range []events.ID{a, b, a} {
		in := prompt(fmt.Sprint(i))
		seq, duplicate, err := box.Publish(t.Context(), session, in)
		if err != nil || duplicate {
			t.Fatalf("publish: duplicate %t, %v", duplicate, err)
		}
		if again, duplicate, err := box.Publish(t.Context(), session, in); err != nil || !duplicate || again != seq {
			t.Fatalf("publish again: place %d instead of %d, duplicate %t, %v", again, seq, duplicate, err)
		}
		seqs = append(seqs, seq)
	}
	next := func(session events.ID, after, want uint64) {
		t.Helper()
		q, ok, err := box.Next(t.Context(), session, after)
		if err != nil || ok != (want > 0) || q.Seq != want {
			t.Fatalf("next of %s after %d: %d, %t, %v, want %d", session, after, q.Seq, ok, err, want)
		}
	}
	next(a, 0, seqs[0])
	next(a, seqs[0], seqs[2])
	next(a, seqs[2], 0)
	next(b, 0, seqs[1])
	next(newID(), 0, 0)
	if q, err := box.Get(t.Context(), seqs[1]); err != nil || q.Session != b || q.Input.Content[0].Text != "1" {
		t.Fatalf("get: %+v, %v", q, err)
	}
	if _, err := box.Get(t.Context(), 1000); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatalf("get nothing: %v", err)
	}

	d, err := box.Subscribe(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	receive := func() *jetstream.Delivery {
		t.Helper()
		got, err := d.Receive(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := receive()
	if first.Session != a || first.Seq != seqs[0] || first.Redelivered {
		t.Fatalf("first delivery: %+v", first)
	}
	next(a, 0, seqs[0]) // a delivery takes nothing away
	if err := first.InProgress(); err != nil {
		t.Fatal(err)
	}
	if err := first.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
	for q := (jetstream.Queued{}); q.Seq != seqs[2]; { // replicas remove what was acknowledged in their own time
		var err error
		if q, _, err = box.Next(within(t, 10*time.Second), a, 0); err != nil {
			t.Fatal(err)
		}
	}
	second := receive()
	if err := second.NakWithDelay(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	byseq := map[uint64]*jetstream.Delivery{}
	for range 2 {
		x := receive()
		byseq[x.Seq] = x
	}
	if x := byseq[second.Seq]; x == nil || !x.Redelivered || x.Deliveries < 2 {
		t.Fatalf("after the negative acknowledgement: %+v", x)
	}
	// Without a sign of life they all come again.
	if x := receive(); !x.Redelivered {
		t.Fatalf("after the acknowledgement time: %+v", x)
	} else if err := x.Term("test"); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Receive(ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("receive with an ended context: %v", err)
	}
}

func TestInboxStop(t *testing.T) {
	t.Parallel()
	c := local(t)
	for range 5 {
		if _, _, err := c.Inbox().Publish(t.Context(), newID(), prompt("x")); err != nil {
			t.Fatal(err)
		}
	}
	d, err := c.Inbox().Subscribe(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Receive(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	d.Stop()
	if _, err := d.Receive(within(t, 10*time.Second)); !errors.Is(err, jetstream.ErrClosed) {
		t.Fatalf("receive after Stop: %v, want ErrClosed", err)
	}
	other, err := c.Inbox().Subscribe(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Stop()
	for range 4 { // those that were fetched and not received, well before the acknowledgement time of 30 s
		if _, err := other.Receive(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMalformedInput(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	c := connect(t, jetstream.Config{InProcess: serve(t, nil), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	session := newID()
	for _, msg := range []*nats.Msg{
		{Subject: "inbox." + string(session), Data: []byte("{")},
		{Subject: "inbox.nobody", Data: []byte("{}")},
	} {
		if _, err := c.PublishRaw(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	good, _, err := c.Inbox().Publish(t.Context(), session, prompt("x"))
	if err != nil {
		t.Fatal(err)
	}
	if q, ok, err := c.Inbox().Next(t.Context(), session, 0); err != nil || !ok || q.Seq != good {
		t.Fatalf("next: %+v, %t, %v", q, ok, err)
	}
	d, err := c.Inbox().Subscribe(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	if got, err := d.Receive(within(t, 10*time.Second)); err != nil || got.Seq != good {
		t.Fatalf("receive: %+v, %v", got, err)
	}
	for _, want := range []string{"malformed input", string(session), "seq=1", "sha256=", "inbox.nobody"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not name %q:\n%s", want, log.String())
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestRecords(t *testing.T) {
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
			testRecords(t, c.Verdicts())
			testRecords(t, c.Steps())
		})
	}
}

func testRecords(t *testing.T, r *jetstream.Records) {
	t.Helper()
	a, b := newID(), newID()
	if _, err := r.Last(t.Context(), a); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatalf("last of none: %v", err)
	}
	// Several writers do the same work: each record is stored once, and all of them end at the same place.
	const records = 10
	var wg sync.WaitGroup
	for w := range 4 {
		for _, session := range []events.ID{a, b} {
			wg.Go(func() {
				var after uint64
				for n := 0; n < records; {
					id := fmt.Sprintf("%s.%d", session, n)
					seq, err := r.Append(t.Context(), session, id, fmt.Appendf(nil, "%d by %d", n, w), after)
					if errors.Is(err, jetstream.ErrConflict) {
						last, err := r.Last(t.Context(), session)
						if err != nil {
							t.Error(err)
							return
						}
						after = last.Seq
						if _, err := fmt.Sscanf(string(last.Payload), "%d", &n); err != nil {
							t.Error(err)
						}
						n++
						continue
					}
					if err != nil {
						t.Errorf("append: %v", err)
						return
					}
					after = seq
					n++
				}
			})
		}
	}
	wg.Wait()
	for _, session := range []events.ID{a, b} {
		n := 0
		var last jetstream.Record
		for record, err := range r.Read(t.Context(), session, 1) {
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%s.%d", session, n); record.ID != want || record.Session != session || record.Seq <= last.Seq {
				t.Errorf("record %+v, want %s", record, want)
			}
			last = record
			n++
		}
		if n != records {
			t.Errorf("session %s has %d records, want %d", session, n, records)
		}
		if got, err := r.Last(t.Context(), session); err != nil || got.Seq != last.Seq || !bytes.Equal(got.Payload, last.Payload) {
			t.Errorf("last: %+v, %v, want %+v", got, err, last)
		}
		// The same record again is a success, also later.
		if seq, err := r.Append(t.Context(), session, last.ID, last.Payload, last.Seq-1); err != nil && !errors.Is(err, jetstream.ErrConflict) {
			t.Errorf("append again: %d, %v", seq, err)
		}
		var conflict *jetstream.ConflictError
		if _, err := r.Append(t.Context(), session, "other", []byte("x"), 0); !errors.As(err, &conflict) || conflict.Last != last.Seq {
			t.Errorf("append at a taken place: %v", err)
		}
		if _, err := r.Append(t.Context(), session, last.ID, []byte("x"), last.Seq); !errors.Is(err, jetstream.ErrConflict) {
			t.Errorf("another record under the ID of the last: %v", err)
		}
	}
	n := 0
	for _, err := range r.Read(t.Context(), "", 1) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2*records {
		t.Errorf("all sessions have %d records, want %d", n, 2*records)
	}
}

// TestRecordAgain loses the acknowledgement of a record.
func TestRecordAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	c := connect(t, jetstream.Config{InProcess: s})
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Interpose(func(next exchange) exchange {
		return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
			resp, err := next(ctx, msg)
			if strings.HasPrefix(msg.Subject, "verdict.") {
				return nil, jetstream.ErrNoAnswer
			}
			return resp, err
		}
	})
	session := newID()
	var after uint64
	for n := range 3 {
		seq, err := c.Verdicts().Append(t.Context(), session, fmt.Sprint(n), []byte{byte('a' + n)}, after)
		if err != nil || seq != uint64(n+1) {
			t.Fatalf("append without acknowledgement: %d, %v", seq, err)
		}
		after = seq
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	c := local(t)
	id, log := create(t, c)
	all, err := c.Hints().Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	own, err := c.Hints().Subscribe(t.Context(), jetstream.Partition(id))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other, err := c.Hints().Subscribe(t.Context(), (jetstream.Partition(id)+1)%jetstream.Partitions)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	w := writer(t, log, id)
	want := []events.Type{events.TypeSessionCreated, events.TypeTurnStart}
	for _, body := range []events.Body{&events.SessionCreated{}, &events.TurnStart{Turn: 1}} {
		if _, err := w.Append(t.Context(), body); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []*jetstream.HintSubscription{all, own} {
		for i, typ := range want {
			hint, err := sub.Next(within(t, 10*time.Second))
			if err != nil || hint != (jetstream.Hint{Session: id, Seq: uint64(i + 1), Type: typ}) {
				t.Fatalf("hint %+v, %v", hint, err)
			}
		}
	}
	if hint, err := other.Next(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another partition has the hint %+v, %v", hint, err)
	}
	if _, err := c.Hints().Subscribe(t.Context(), jetstream.Partitions); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a partition that does not exist: %v", err)
	}
}

// TestPartition compares with what the server's own mapping function gives.
func TestPartition(t *testing.T) {
	t.Parallel()
	c := local(t)
	_, err := c.JetStream().CreateStream(t.Context(), natsjs.StreamConfig{
		Name: "P", Subjects: []string{"p.*"}, Storage: natsjs.MemoryStorage,
		RePublish: &natsjs.RePublish{Source: "p.*", Destination: fmt.Sprintf("q.{{partition(%d,1)}}.{{wildcard(1)}}", jetstream.Partitions)},
	})
	if err != nil {
		t.Fatal(err)
	}
	sub, err := c.Conn().SubscribeSync("q.>")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		id := newID()
		if _, err := c.PublishRaw(t.Context(), &nats.Msg{Subject: "p." + string(id)}); err != nil {
			t.Fatal(err)
		}
		msg, err := sub.NextMsg(10 * time.Second)
		if want := fmt.Sprintf("q.%d.%s", jetstream.Partition(id), id); err != nil || msg.Subject != want {
			t.Fatalf("the server has %s, %v, want %s", msg.Subject, err, want)
		}
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	c := local(t)
	id := newID()
	sub, err := c.Live().Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, publish := range []events.ID{newID(), id} {
		if err := c.Live().Publish(publish, []byte(publish)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := sub.Next(within(t, 10*time.Second)); err != nil || string(got) != string(id) {
		t.Fatalf("received %q, %v", got, err)
	}
	sub.Close()
	if _, err := sub.Next(t.Context()); !errors.Is(err, jetstream.ErrClosed) {
		t.Fatalf("next after Close: %v", err)
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	c := local(t)
	instance := newID()
	start := time.Now()
	if _, err := c.Presence().Ask(t.Context(), instance, nil); !errors.Is(err, jetstream.ErrNoResponders) || time.Since(start) > 3*time.Second {
		t.Fatalf("ask nobody: %v after %v, want ErrNoResponders at once", err, time.Since(start))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- c.Presence().Serve(ctx, instance, func() { close(ready) }, func(_ context.Context, q []byte) []byte {
			return append([]byte("re: "), q...)
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("serve: %v", err)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got, err := c.Presence().Ask(t.Context(), instance, []byte("hello")); err != nil || string(got) != "re: hello" {
				t.Errorf("ask: %q, %v", got, err)
			}
		})
	}
	wg.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := c.Presence().Ask(t.Context(), instance, nil); !errors.Is(err, jetstream.ErrNoResponders) {
		t.Fatalf("ask after the end: %v, want ErrNoResponders", err)
	}
}

// TestSessionsShrinking lists several pages while streams in the ones already seen are deleted.
func TestSessionsShrinking(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstream.Config{InProcess: serve(t, nil), MemoryStorage: true})
	ids := eventlogtest.IDs()
	const n = 600
	want := map[events.ID]bool{}
	var doomed []events.ID
	for i := range n {
		id := ids()
		if _, err := c.Logs().Create(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if i < 200 && i%2 == 0 {
			doomed = append(doomed, id)
		} else {
			want[id] = true
		}
	}
	seen := 0
	for info, err := range c.Logs().Sessions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		delete(want, info.ID)
		if seen++; seen == 250 {
			for _, id := range doomed {
				if err := c.JetStream().DeleteStream(t.Context(), jetstream.SessionStream(id)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(want) > 0 || seen != n {
		t.Errorf("%d sessions listed, %d that were there all the time not", seen, len(want))
	}
}
