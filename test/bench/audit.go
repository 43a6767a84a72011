package main

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

const (
	delaySessions = 20
	delayEvents   = 600                   // of each session
	delayPace     = 10 * time.Millisecond // from one event of a session to the next
	delayTime     = 1_800_000_000_000     // in the sessions' IDs

	trackedSessions = 500
)

// delay measures how long a verdict takes from the moment at which the append of its event was acknowledged.
func (b *bench) delay(ctx context.Context) error {
	client, err := b.connect(ctx, false)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.EnsureStreams(ctx); err != nil {
		return err
	}
	key, err := audit.NewKey()
	if err != nil {
		return err
	}
	_, stop, err := running(ctx, verify.Config{
		Store: client.Logs(), Objects: client.Objects(), Verdicts: client.Verdicts(), Key: key, Hints: follow.Hints(client.Hints()),
		Partition: func(id events.ID) bool { return strings.HasPrefix(string(id), string(foldtest.ID(delayTime, 0)[:10])) },
	})
	if err != nil {
		return err
	}
	defer stop() //nolint:errcheck // it is asked below
	var delays []time.Duration
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for n := range uint64(delaySessions) {
		group.Go(func() error {
			own, err := delaysOf(ctx, client, foldtest.ID(delayTime, n))
			mu.Lock()
			defer mu.Unlock()
			delays = append(delays, own...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	slices.Sort(delays)
	b.title("Verdicts of a verifier with hints, %d sessions at once, an event of each every %v (%d verdicts)", delaySessions, delayPace, len(delays))
	b.line("from the acknowledged append to the verdict", "median %v, 99%% %v, longest %v",
		delays[len(delays)/2], delays[len(delays)*99/100], delays[len(delays)-1])
	return nil
}

// delaysOf writes a session and returns the delays of its verdicts.
func delaysOf(ctx context.Context, client *jetstream.Client, id events.ID) ([]time.Duration, error) {
	l, err := shaped(id, delayEvents)
	if err != nil {
		return nil, err
	}
	log, err := client.Logs().Create(ctx, id)
	if err != nil {
		return nil, err
	}
	acked := make([]time.Time, l.Len()+1)
	tick := time.NewTicker(delayPace)
	defer tick.Stop()
	var due uint64
	for i := range l.Events {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if err := log.Append(ctx, &l.Events[i], l.Payloads[i]); err != nil {
			return nil, err
		}
		acked[i+1] = time.Now()
		if t := l.Events[i].Type(); t == events.TypeLLMStream || t == events.TypeTurnEnd {
			due = uint64(i + 1)
		}
	}
	var delays []time.Duration
	for from := uint64(1); due > 0; {
		for r, err := range client.Verdicts().Read(ctx, id, from) {
			if err != nil {
				return nil, err
			}
			v, err := audit.DecodeVerdict(r.Payload)
			if err == nil && v.Result != audit.Match {
				err = fmt.Errorf("session %s: %s", id, &v)
			}
			if err != nil {
				return nil, err
			}
			delays = append(delays, max(r.Stored.Sub(acked[v.Seq]), 0))
			from = r.Seq + 1
			if v.Seq == due {
				due = 0
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return delays, nil
}

// shaped returns a session of n events with the true digests of its requests.
func shaped(id events.ID, n int) (*foldtest.Log, error) {
	body, failed, err := bodies()
	if err != nil {
		return nil, err
	}
	l := foldtest.SessionLogOf(id, n, body)
	return l, *failed
}

// running runs a verifier and returns the function that ends it, once, with the error that it ended with.
func running(ctx context.Context, cfg verify.Config) (*verify.Verifier, func() error, error) {
	cfg.Registry = prometheus.NewRegistry()
	v, err := verify.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	return v, sync.OnceValue(func() error { cancel(); return <-done }), nil
}

// tracked measures the memory that a verifier holds for a session: one whose state it keeps, and one at rest after a start.
func (b *bench) tracked(ctx context.Context) error {
	b.title("Memory of a verifier after garbage collection, with %d sessions", trackedSessions)
	for _, n := range []int{100, 1000} {
		if err := b.trackedOf(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) trackedOf(ctx context.Context, n int) error {
	store := eventlog.NewMemory(time.Now)
	var size int
	for i := range uint64(trackedSessions) {
		id := foldtest.ID(delayTime, i)
		l, err := shaped(id, n)
		if err != nil {
			return err
		}
		log, err := store.Create(ctx, id)
		if err != nil {
			return err
		}
		size = 0
		for i := range l.Events {
			if err := log.Append(ctx, &l.Events[i], l.Payloads[i]); err != nil {
				return err
			}
			size += len(l.Payloads[i])
		}
	}
	key, err := audit.NewKey()
	if err != nil {
		return err
	}
	cfg := verify.Config{
		Store: store, Objects: objects.NewMemory(), Verdicts: &lastRecords{last: make(map[events.ID]jetstream.Record)}, Key: key,
		MaxSessions: trackedSessions, Sweep: time.Hour, Recheck: 1000 * time.Hour,
	}
	var heap [3]uint64
	for i, open := range []bool{true, true, false} { // the first one publishes the verdicts
		before := heapInUse()
		cfg.AuditAtStart = open
		if heap[i], err = heapOf(ctx, cfg, open); err != nil {
			return err
		}
		heap[i] -= min(before, heap[i])
	}
	per := func(bytes uint64) string {
		return fmt.Sprintf("%8.1f KB a session", float64(bytes)/trackedSessions/1000)
	}
	b.line(fmt.Sprintf("sessions of %d events, %d KB: open", n, size/1000), "%s", per(heap[1]))
	b.line(fmt.Sprintf("sessions of %d events, %d KB: at rest", n, size/1000), "%s", per(heap[2]))
	return nil
}

// heapOf returns the heap in use when a verifier is current.
func heapOf(ctx context.Context, cfg verify.Config, open bool) (uint64, error) {
	v, stop, err := running(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer stop() //nolint:errcheck // it is asked below
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
		st := v.Status()
		if st.Failed+st.Retrying > 0 {
			return 0, fmt.Errorf("a verifier has trouble: %+v", st)
		}
		if st.Swept.IsZero() || st.Sessions < trackedSessions || st.Lag > 0 || open && st.Open < trackedSessions || open && st.Due > 0 {
			continue
		}
		heap := heapInUse()
		return heap, stop()
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// lastRecords keeps the newest verdict of each session in memory.
type lastRecords struct {
	mu    sync.Mutex
	last  map[events.ID]jetstream.Record
	place uint64
}

func (r *lastRecords) Append(_ context.Context, session events.ID, id string, payload []byte, _ uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.place++
	r.last[session] = jetstream.Record{Session: session, Seq: r.place, ID: id, Payload: slices.Clone(payload)}
	return r.place, nil
}

func (r *lastRecords) Last(_ context.Context, session events.ID) (jetstream.Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	record, ok := r.last[session]
	if !ok {
		return record, eventlog.ErrNotFound
	}
	return record, nil
}

func (r *lastRecords) Counts(context.Context) (map[events.ID]uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[events.ID]uint64)
	for id := range r.last { //refold:unordered each counts for itself
		counts[id] = 1
	}
	return counts, nil
}

func (r *lastRecords) Read(ctx context.Context, session events.ID, _ uint64) iter.Seq2[jetstream.Record, error] {
	return func(yield func(jetstream.Record, error) bool) {
		if record, err := r.Last(ctx, session); err == nil {
			yield(record, nil)
		}
	}
}
