package forks_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

func newID() events.ID { return events.ID(ulid.Make().String()) }

// system is a server, a provider, and the services that a test starts.
type system struct {
	t      *testing.T
	server *embedded.Server
	client *jetstream.Client
	url    string // the provider's
	key    *audit.Key
}

func newSystem(t *testing.T) *system {
	t.Helper()
	running, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Shutdown)
	sim, err := simulator.New(simulator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(sim)
	t.Cleanup(web.Close)
	s := &system{t: t, server: running, url: web.URL, key: newKey(t)}
	s.client, err = jetstream.Connect(t.Context(), jetstream.Config{InProcess: running, Logger: s.log()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	if err := s.client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func newKey(t *testing.T) *audit.Key {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// runner is a service.
type runner interface {
	Run(ctx context.Context) error
}

// start runs a service and returns a function that ends it.
func (s *system) start(r runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

func (s *system) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// work runs a worker until the test ends.
func (s *system) work() {
	s.t.Helper()
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: s.url, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	metrics, err := worker.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		s.t.Fatal(err)
	}
	none, err := tools.NewSet()
	if err != nil {
		s.t.Fatal(err)
	}
	w, err := worker.New(worker.Config{
		Name: "worker", Instance: newID(), Tools: none, Objects: s.client.Objects(), NewID: newID, Log: s.log(),
		Routes:   provider.NewRoutes(map[string]provider.Adapter{provider.KindDeepSeek: adapter}),
		Defaults: events.Options{Provider: provider.KindDeepSeek, Model: "deepseek-chat", System: "Be brief."},
	}, worker.Service{Client: s.client, Metrics: metrics})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.start(w))
}

func (s *system) verifier() (stop func()) {
	s.t.Helper()
	v, err := verify.New(verify.Config{
		Store: s.client.Logs(), Objects: s.client.Objects(), Verdicts: s.client.Verdicts(), Key: s.key,
		Registry: prometheus.NewPedanticRegistry(), Hints: follow.Hints(s.client.Hints()), Sweep: 50 * time.Millisecond, AuditAtStart: true,
		Log: s.log(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.start(v)
}

func (s *system) projector() (stop func()) {
	s.t.Helper()
	p, err := project.New(project.Config{
		Store: s.client.Logs(), Steps: s.client.Steps(), Objects: s.client.Objects(), Hints: s.client.Hints(), Instance: newID(),
		Registry: prometheus.NewPedanticRegistry(), Sweep: 50 * time.Millisecond, Log: s.log(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.start(p)
}

func (s *system) send(id events.ID, in events.Input) {
	s.t.Helper()
	in.ID, in.Time = newID(), time.Now().UnixMilli()
	if _, _, err := s.client.Inbox().Publish(s.t.Context(), id, &in); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) prompt(id events.ID, open bool, text string) {
	s.t.Helper()
	s.send(id, events.Input{Kind: events.InputPrompt, Open: open, Content: []events.Block{events.Text(text)}})
}

// until waits for a condition.
func (s *system) until(id events.ID, what string, holds func() bool) {
	s.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			for _, e := range s.events(id) {
				s.t.Logf("%d %s %+v", e.Seq, e.Type(), e.Body)
			}
			s.t.Fatalf("session %s: not in time: %s", id, what)
		}
	}
}

// events returns the events of a session's log, none when there is no such log.
func (s *system) events(id events.ID) []events.Event {
	s.t.Helper()
	log, err := s.client.Logs().Open(s.t.Context(), id)
	if err != nil {
		return nil
	}
	var list []events.Event
	for m, err := range log.Read(s.t.Context(), 1) {
		if err != nil {
			s.t.Fatal(err)
		}
		e, err := m.Event()
		if err != nil {
			s.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func (s *system) fold(id events.ID) *fold.State {
	s.t.Helper()
	state := fold.New(id)
	list := s.events(id)
	for i := range list {
		if err := state.Apply(&list[i]); err != nil {
			s.t.Fatal(err)
		}
	}
	return state
}

// turns waits until the session has ended so many turns and no other one is open, and returns its last event.
func (s *system) turns(id events.ID, n int64) uint64 {
	s.t.Helper()
	var last uint64
	s.until(id, "the end of a turn", func() bool {
		state := s.fold(id)
		turn, open := state.Turn()
		last = state.Seq()
		return turn == n && !open
	})
	return last
}

// said returns what users said in the session.
func (s *system) said(id events.ID) (out []string) {
	s.t.Helper()
	for _, m := range s.fold(id).Messages().All() {
		if m.Source.Kind == events.SourceUser {
			out = append(out, m.Content[0].Text)
		}
	}
	return out
}

// check checks the session here and now, as refold verify does.
func (s *system) check(id events.ID) *audit.Report {
	s.t.Helper()
	log, err := s.client.Logs().Open(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	last, err := log.Last(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	report, err := audit.CheckLog(s.t.Context(), audit.LogCheck{
		Session: id, Messages: log.Read(s.t.Context(), 1), Last: last, Objects: audit.FromStore(s.client.Objects()),
		Parents: audit.FromLogs(s.client.Logs()), Prior: s.signed(id),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return report
}

// wantFaults checks the session and wants all of its requests to match, and no faults but those of the rules.
func (s *system) wantFaults(id events.ID, rules ...string) {
	s.t.Helper()
	r := s.check(id)
	found := make(map[string]bool)
	for _, v := range r.Verdicts {
		if v.Result != audit.Match {
			found[v.Rule] = true
		}
	}
	for _, rule := range rules {
		if !found[rule] {
			s.t.Errorf("session %s: nothing found by the rule %q: %v", id, rule, r.Verdicts)
		}
		delete(found, rule)
	}
	if len(found) > 0 || r.Matches != r.Requests || r.Requests == 0 {
		s.t.Errorf("session %s: %d of %d requests match: %v", id, r.Matches, r.Requests, r.Verdicts)
	}
}

// signed returns the verdicts that were published about the session.
func (s *system) signed(id events.ID) []audit.Verdict {
	s.t.Helper()
	var out []audit.Verdict
	for record, err := range s.client.Verdicts().Read(s.t.Context(), id, 1) {
		if err != nil {
			s.t.Fatal(err)
		}
		v, err := audit.DecodeVerdict(record.Payload)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// faults returns the rules that published verdicts name.
func (s *system) faults(id events.ID) (rules []string) {
	s.t.Helper()
	for _, v := range s.signed(id) {
		if v.Result != audit.Match {
			rules = append(rules, v.Rule)
		}
	}
	return rules
}

func (s *system) untilFault(id events.ID, rule string) {
	s.t.Helper()
	s.until(id, "a verdict with the rule "+rule, func() bool {
		got := s.faults(id)
		return len(got) > 0 && got[len(got)-1] == rule
	})
}

// untilVerified waits for the head of the session's last turn.
func (s *system) untilVerified(id events.ID) {
	s.t.Helper()
	var last uint64
	for _, e := range s.events(id) {
		if e.Type() == events.TypeTurnEnd {
			last = e.Seq
		}
	}
	s.until(id, "verdicts", func() bool {
		got := s.signed(id)
		return len(got) > 0 && got[len(got)-1].Seq >= last
	})
}

// causes waits for n step records of the session and returns their causes. There are no more.
func (s *system) causes(id events.ID, n int) (out []project.Cause) {
	s.t.Helper()
	s.until(id, "step records", func() bool {
		out = nil
		for record, err := range s.client.Steps().Read(s.t.Context(), id, 1) {
			if err != nil {
				s.t.Fatal(err)
			}
			r, err := project.Decode(record.Payload)
			if err != nil {
				s.t.Fatal(err)
			}
			out = append(out, r.Cause)
		}
		return len(out) >= n
	})
	return out
}

// linked links the events anew and returns them as they are stored.
func linked(list []events.Event) []events.Event {
	out := make([]events.Event, len(list))
	var prev events.Hash
	for i := range list {
		e := list[i]
		e.Prev = prev
		payload, err := events.Encode(&e)
		if err == nil {
			out[i], err = events.Decode(payload)
		}
		if err != nil {
			panic(err)
		}
		prev, _ = out[i].Hash()
	}
	return out
}

// later returns the events with the one at seq a millisecond later, and everything behind it linked to fit.
func later(list []events.Event, seq uint64) []events.Event {
	list[seq-1].Time++
	return linked(list)
}

// replace puts a log with other events in the place of the session's, which no program of ours does. A server that made a
// stream anew under the name of one that it has just deleted was seen to know the old one's first event still: then it
// is done again.
func (s *system) replace(id events.ID, list []events.Event) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for {
		s.deleteStream(id)
		err := s.fill(ctx, id, list)
		if err == nil {
			return
		}
		if !errors.Is(err, eventlog.ErrCorrupt) && !errors.Is(err, eventlog.ErrLostOwnership) {
			s.t.Fatal(err)
		}
	}
}

// fill makes the session's log and stores the events in it.
func (s *system) fill(ctx context.Context, id events.ID, list []events.Event) error {
	log, err := s.client.Logs().Create(ctx, id)
	if err != nil {
		return err
	}
	for i := range list {
		payload, err := events.Encode(&list[i])
		if err == nil {
			err = log.Append(ctx, &list[i], payload)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *system) deleteStream(id events.ID) {
	s.t.Helper()
	conn, err := nats.Connect("", nats.InProcessServer(s.server.InProcess()))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := js.DeleteStream(s.t.Context(), jetstream.SessionStream(id)); err != nil {
		s.t.Fatal(err)
	}
}
