package project_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server with a session whose log a test appends to.
type world struct {
	*jetstream.Client
	t *testing.T

	store objects.Store
	log   eventlog.Log
	l     *foldtest.Log
	next  int
	runs  uint64
}

func newWorld(t *testing.T, l *foldtest.Log) *world {
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
	w := &world{Client: client, t: t, store: objects.NewMemory(), l: l}
	if w.log, err = client.Logs().Create(t.Context(), l.State.ID()); err != nil {
		t.Fatal(err)
	}
	return w
}

// grow appends the log's next n events.
func (w *world) grow(n int) {
	w.t.Helper()
	for range min(n, len(w.l.Events)-w.next) {
		if err := w.log.Append(w.t.Context(), &w.l.Events[w.next], w.l.Payloads[w.next]); err != nil {
			w.t.Fatal(err)
		}
		w.next++
	}
}

func (w *world) config() project.Config {
	w.runs++
	return project.Config{
		Store: w.Logs(), Steps: w.Steps(), Objects: w.store, Hints: w.Hints(), Registry: prometheus.NewRegistry(),
		Instance: foldtest.ID(1, w.runs), Sweep: 10 * time.Millisecond,
	}
}

// start runs a projector and returns a function that ends it.
func (w *world) start(cfg project.Config) (stop func()) {
	w.t.Helper()
	p, err := project.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() {
		w.t.Helper()
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	}
}

// stored returns the session's records.
func (w *world) stored() []project.Record {
	w.t.Helper()
	var out []project.Record
	for stored, err := range w.Steps().Read(w.t.Context(), w.l.State.ID(), 1) {
		if err != nil {
			w.t.Fatal(err)
		}
		r, err := project.Decode(stored.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		if stored.ID != r.ID() {
			w.t.Errorf("record %s is stored as %s", r.ID(), stored.ID)
		}
		out = append(out, r)
	}
	return out
}

// await waits until the session has n records.
func (w *world) await(n int) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for len(w.stored()) < n {
		select {
		case <-deadline:
			w.t.Fatalf("%d records, want %d", len(w.stored()), n)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// check compares what is stored with what the pure core makes of the log.
func (w *world) check() {
	w.t.Helper()
	want := records(w.t, w.l, project.Options{})
	got := w.stored()
	for i := range got {
		if !got[i].Projector.Valid() {
			w.t.Errorf("record %s names no projector", got[i].ID())
		}
		got[i].Projector = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("records: %s", diff)
	}
}

// value sums a metric over all labels that match.
func value(t *testing.T, reg prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetName()+"="+l.GetValue())
			}
			match := true
			for _, want := range labels {
				match = match && strings.Contains(" "+strings.Join(have, " ")+" ", " "+want+" ")
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func steps(l *foldtest.Log) (n int) {
	for i := range l.Events {
		if l.Events[i].Type() == events.TypeStepEnd {
			n++
		}
	}
	return n
}

func TestProjectorRestarts(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			w := newWorld(t, foldtest.SessionLog(600, realBody))
			var counted float64
			for w.next < len(w.l.Events) {
				cfg := w.config()
				stop := w.start(cfg)
				for range 1 + random.IntN(4) {
					w.grow(1 + random.IntN(30))
				}
				if random.IntN(2) == 0 {
					w.await(1 + random.IntN(1+steps(w.l.Prefix(w.next))) - 1)
				}
				stop()
				counted += value(t, cfg.Registry.(*prometheus.Registry), "refold_steps_total")
			}
			stop := w.start(w.config())
			w.await(steps(w.l))
			stop()
			w.check()
			if counted > float64(steps(w.l)) {
				t.Errorf("%v steps counted of %d", counted, steps(w.l))
			}
		})
	}
}

func TestTwoProjectors(t *testing.T) {
	w := newWorld(t, foldtest.SessionLog(1500, realBody))
	a, b := w.config(), w.config()
	a.Workers, b.Workers = 2, 2
	stopA, stopB := w.start(a), w.start(b)
	for w.next < len(w.l.Events) {
		w.grow(50)
	}
	w.await(steps(w.l))
	stopA()
	stopB()
	w.check()
	own := map[events.ID]float64{}
	for _, r := range w.stored() {
		own[r.Projector]++
	}
	for _, cfg := range []project.Config{a, b} {
		reg := cfg.Registry.(*prometheus.Registry)
		if got := value(t, reg, "refold_steps_total"); got != own[cfg.Instance] {
			t.Errorf("a projector counted %v steps and published %v", got, own[cfg.Instance])
		}
	}
}

// memory keeps the records of one session, as the stream does.
type memory struct {
	mu     sync.Mutex
	stored []jetstream.Record
}

func (m *memory) Last(_ context.Context, session events.ID) (jetstream.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.stored) == 0 {
		return jetstream.Record{}, fmt.Errorf("session %s: %w", session, eventlog.ErrNotFound)
	}
	return m.stored[len(m.stored)-1], nil
}

func (m *memory) Append(_ context.Context, session events.ID, id string, payload []byte, after uint64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := uint64(len(m.stored))
	if last > 0 && last == after+1 && bytes.Equal(m.stored[last-1].Payload, payload) {
		return last, nil
	}
	if last != after {
		return 0, &jetstream.ConflictError{Session: session, Last: last}
	}
	m.stored = append(m.stored, jetstream.Record{Session: session, Seq: last + 1, ID: id, Payload: payload})
	return last + 1, nil
}

// faulty fails every record once before it is stored and once behind.
type faulty struct {
	memory

	calls int
}

var errFault = errors.New("on purpose")

func (f *faulty) Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (uint64, error) {
	f.calls++
	if f.calls%3 == 1 {
		return 0, errFault
	}
	place, err := f.memory.Append(ctx, session, id, payload, after)
	if err == nil && f.calls%3 == 2 {
		return 0, errFault
	}
	return place, err
}

// rival publishes every second step a moment before the projector does.
type rival struct {
	memory

	t     *testing.T
	calls int
}

func (v *rival) Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (uint64, error) {
	if v.calls++; v.calls%2 == 0 {
		r, err := project.Decode(payload)
		if err != nil {
			v.t.Error(err)
		}
		r.Projector = foldtest.ID(9, 9)
		first, err := project.Encode(&r)
		if err != nil {
			v.t.Error(err)
		}
		if _, err := v.memory.Append(ctx, session, id, first, after); err != nil {
			v.t.Error(err)
		}
	}
	return v.memory.Append(ctx, session, id, payload, after)
}

// runMemory projects a log that is in memory for an hour of virtual time, and returns the core's records and the metrics.
func runMemory(t *testing.T, steps project.Records) ([]project.Record, *prometheus.Registry) {
	t.Helper()
	l := foldtest.SessionLog(400, realBody)
	store := eventlog.NewMemory(time.Now)
	log, err := store.Create(t.Context(), l.State.ID())
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Events {
		if err := log.Append(t.Context(), &l.Events[i], l.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	p, err := project.New(project.Config{
		Store: store, Steps: steps, Objects: objects.NewMemory(), Registry: reg, Instance: foldtest.ID(1, 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	<-time.After(time.Hour)
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return records(t, l, project.Options{}), reg
}

// wantOnce checks that every record is stored once.
func (m *memory) wantOnce(t *testing.T, want []project.Record) {
	t.Helper()
	if len(m.stored) != len(want) {
		t.Fatalf("%d records, want %d", len(m.stored), len(want))
	}
	for i := range want {
		got, err := project.Decode(m.stored[i].Payload)
		if err != nil {
			t.Fatal(err)
		}
		got.Projector = ""
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestPublishFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := new(faulty)
		want, reg := runMemory(t, steps)
		steps.wantOnce(t, want)
		if got := value(t, reg, "refold_steps_total"); got != float64(len(want)) {
			t.Errorf("%v steps counted, want %d", got, len(want))
		}
	})
}

// TestLostRaces: what somebody else has published is neither published again nor counted.
func TestLostRaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := &rival{t: t}
		want, reg := runMemory(t, steps)
		steps.wantOnce(t, want)
		lost := float64(len(want) / 2)
		if got := value(t, reg, "refold_projector_records_of_others_total"); got != lost || lost == 0 {
			t.Errorf("%v races lost, want %v", got, lost)
		}
		if got := value(t, reg, "refold_steps_total"); got != float64(len(want))-lost {
			t.Errorf("%v steps counted, want %v", got, float64(len(want))-lost)
		}
	})
}

// TestProjectorObjects: objects come from the store; one that is gone costs the byte figures and nothing else.
func TestProjectorObjects(t *testing.T) {
	for _, present := range []bool{true, false} {
		t.Run(fmt.Sprintf("present=%t", present), func(t *testing.T) {
			s := newScript()
			s.Begin()
			s.TurnStart()
			s.StepStart()
			s.UserBlocks(s.TextObject("a large text"))
			s.reply(usage(700, 0))
			s.end()
			s.header.System += "!"
			s.turn(usage(740, 0))
			w := newWorld(t, s.Log)
			if present {
				if _, err := objects.Put(t.Context(), w.store, events.TextMediaType, []byte("a large text")); err != nil {
					t.Fatal(err)
				}
			}
			w.grow(len(s.Events))
			stop := w.start(w.config())
			w.await(2)
			stop()
			if present {
				w.check()
				return
			}
			rs := w.stored()
			for i := range rs {
				if a := rs[i].Last(); a.Unbuilt != project.UnbuiltMissing || a.Prefix.Bytes != 0 || a.Bytes == 0 {
					t.Errorf("attempt %+v", a)
				}
			}
			if diff := cmp.Diff([]project.Cause{project.CauseFirstRequest, project.CauseSystem}, causes(rs)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestInvalidLog: a session whose log has no meaning is given up and reported, the others go on.
func TestInvalidLog(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	w := newWorld(t, s.Log)
	w.grow(len(s.Events))
	bad, err := w.Logs().Create(t.Context(), foldtest.ID(5, 5))
	if err != nil {
		t.Fatal(err)
	}
	e := events.Event{Seq: 1, ID: foldtest.ID(1, 1), Body: &events.TurnStart{Turn: 1}}
	payload, err := events.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Append(t.Context(), &e, payload); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	stop := w.start(cfg)
	w.await(1)
	deadline := time.After(time.Minute)
	for value(t, cfg.Registry.(*prometheus.Registry), "refold_projector_sessions_failed") != 1 {
		select {
		case <-deadline:
			t.Fatal("the session was not given up")
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	w.check()
}

func TestConfigErrors(t *testing.T) {
	w := newWorld(t, newScript().Log)
	for name, change := range map[string]func(*project.Config){
		"no store":     func(c *project.Config) { c.Store = nil },
		"no steps":     func(c *project.Config) { c.Steps = nil },
		"no objects":   func(c *project.Config) { c.Objects = nil },
		"no registry":  func(c *project.Config) { c.Registry = nil },
		"no instance":  func(c *project.Config) { c.Instance = "" },
		"negative TTL": func(c *project.Config) { c.TTL = -1 },
	} {
		cfg := w.config()
		change(&cfg)
		if _, err := project.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
