package audit_test

import (
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func newID() events.ID { return events.ID(ulid.Make().String()) }

// load is what the verifiers look at.
type load struct {
	t       *testing.T
	client  *jetstream.Client
	witness *audit.Key
	sent    int // turns of every session of the worker

	mu      sync.Mutex
	growing []*growing // not written to their ends
	spoken  []events.ID
	all     []events.ID
	total   int // events of the logs that are written here
	written int
	odd     map[uint64]string // receipts that nothing permits, by place: the rule
}

// growing is a log that is written bit by bit, by one writer at a time.
type growing struct {
	id       events.ID
	session  *audittest.Session
	log      eventlog.Log
	next     int
	reserved bool
	calls    int
}

// newLoad draws the logs, of which two in three hold whatever a log may hold, and names the sessions that a worker runs.
func newLoad(t *testing.T, client *jetstream.Client, sessions int, seed uint64) *load {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, client: client, witness: key, sent: 3, odd: make(map[uint64]string)}
	drawn := rapid.Custom(func(rt *rapid.T) *foldtest.Log {
		return foldtest.GenerateLog(rt, foldtest.Options{Body: audittest.Bodies(), Images: true})
	})
	for i := range sessions {
		id := newID()
		l.all = append(l.all, id)
		if i%16 == 0 {
			l.spoken = append(l.spoken, id)
			continue
		}
		g := &growing{id: id}
		if i%3 == 0 {
			g.session = audittest.Of("", audittest.Sample(id))
		} else {
			g.session = renamed(t, drawn.Example(int(seed)<<16+i), id)
		}
		l.growing = append(l.growing, g)
		l.total += len(g.session.Messages)
	}
	return l
}

// renamed returns the session of a log under another ID.
func renamed(t *testing.T, log *foldtest.Log, id events.ID) *audittest.Session {
	t.Helper()
	s := audittest.Of("", log)
	first, err := events.Decode(s.Messages[0].Payload)
	if err != nil {
		t.Fatal(err)
	}
	created, ok := first.Body.(*events.SessionCreated)
	if !ok {
		t.Fatalf("a log begins with %s", first.Type())
	}
	created.Session = id
	if s.Messages[0].Payload, err = events.Encode(&first); err != nil {
		t.Fatal(err)
	}
	s.ID = id
	s.Messages = audittest.Relink(s.Messages, 0)
	for i := range s.Messages {
		if s.Events[i], err = events.Decode(s.Messages[i].Payload); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// write appends a few events to a session, then to another one, until all are written. It keeps pace with the kills.
func (l *load) write(random *rand.Rand, killed *share) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !l.t.Failed() {
		g, ahead := l.reserve(random, killed.part())
		if g == nil && !ahead {
			return
		}
		if g == nil {
			select {
			case <-tick.C:
				continue
			case <-l.t.Context().Done():
				return
			}
		}
		err := l.append(g, 1+random.IntN(8))
		if err != nil {
			l.t.Errorf("session %s: %v", g.id, err)
		}
		l.mu.Lock()
		g.reserved = false
		l.mu.Unlock()
	}
}

// reserve returns a session that is to grow: nil when all are written, or when the load is ahead of the kills.
func (l *load) reserve(random *rand.Rand, killed float64) (g *growing, ahead bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.growing) == 0 {
		return nil, false
	}
	const lead = 0.05
	if float64(l.written) > (killed+lead)*float64(l.total) {
		return nil, true
	}
	i := random.IntN(len(l.growing))
	if g = l.growing[i]; g.reserved {
		return nil, true
	}
	g.reserved = true
	return g, false
}

// append appends up to n events, and stores before each the objects that it lists, and behind each call what a witness sees.
func (l *load) append(g *growing, n int) (err error) {
	ctx := l.t.Context()
	if g.log == nil {
		if g.log, err = l.client.Logs().Create(ctx, g.id); err != nil {
			return err
		}
	}
	for ; n > 0 && g.next < len(g.session.Messages); n-- {
		e := &g.session.Events[g.next]
		if b, ok := e.Body.(*events.LLMStream); ok {
			for _, ref := range b.Objects {
				data, _ := g.session.Source.Bytes(ref.Digest)
				if _, err := objects.Put(ctx, l.client.Objects(), ref.MediaType, data); err != nil {
					return err
				}
			}
		}
		if err := g.log.Append(ctx, e, g.session.Messages[g.next].Payload); err != nil {
			return err
		}
		if err := l.pass(g, e); err != nil {
			return err
		}
		g.next++
		l.mu.Lock()
		l.written++
		l.mu.Unlock()
	}
	if g.next == len(g.session.Messages) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, other := range l.growing {
			if other == g {
				l.growing = append(l.growing[:i], l.growing[i+1:]...)
				break
			}
		}
	}
	return nil
}

// talk sends prompts to the sessions that a worker runs, and starts that one. It returns before they are answered.
func (l *load) talk() {
	l.t.Helper()
	sim, err := simulator.New(simulator.Config{})
	if err != nil {
		l.t.Fatal(err)
	}
	web := httptest.NewServer(sim)
	l.t.Cleanup(web.Close)
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: l.stand(web.URL), Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	metrics, err := worker.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		l.t.Fatal(err)
	}
	none, err := tools.NewSet()
	if err != nil {
		l.t.Fatal(err)
	}
	w, err := worker.New(worker.Config{
		Name: "worker", Instance: newID(), Tools: none, Objects: l.client.Objects(), NewID: newID,
		Log:      slog.New(slog.NewTextHandler(l.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Routes:   provider.NewRoutes(map[string]provider.Adapter{provider.KindDeepSeek: adapter}),
		Defaults: events.Options{Provider: provider.KindDeepSeek, Model: "deepseek-chat", System: "Be brief."},
	}, worker.Service{Client: l.client, Metrics: metrics})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(run(l.t, w.Run))
	for turn := range l.sent {
		for _, id := range l.spoken {
			in := events.Input{
				ID: newID(), Time: time.Now().UnixMilli(), Kind: events.InputPrompt, Open: turn == 0,
				Content: []events.Block{events.Text("Tell me more.")},
			}
			if _, _, err := l.client.Inbox().Publish(l.t.Context(), id, &in); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}
