package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

func newID() events.ID { return events.ID(ulid.Make().String()) }

// fleet is a server, a provider and as many workers as a test starts.
type fleet struct {
	t      *testing.T
	server *embedded.Server
	url    string
	tools  *tools.Set
	client *jetstream.Client
}

const ackWait = time.Second

func newFleet(t *testing.T, script simulator.Script) *fleet {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("alpha"), 0o600); err != nil {
		t.Fatal(err)
	}
	ws, err := tools.OpenWorkspace(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	set, err := tools.NewSet(ws.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simulator.New(simulator.Config{Script: script, ContextWindow: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(sim)
	t.Cleanup(web.Close)
	f := &fleet{t: t, server: server, url: web.URL, tools: set}
	f.client = f.connect()
	if err := f.client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fleet) connect() *jetstream.Client {
	f.t.Helper()
	c, err := jetstream.Connect(f.t.Context(), jetstream.Config{InProcess: f.server, AckWait: ackWait})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// member is a running worker.
type member struct {
	client *jetstream.Client
	stop   context.CancelFunc
	done   chan error
}

// start starts a worker; change may change how it is configured.
func (f *fleet) start(name string, change ...func(*worker.Config, *worker.Service)) *member {
	f.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: f.url, Transport: transport, Models: []provider.Model{{Name: "deepseek-chat", ContextWindow: 1 << 21}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	metrics, err := worker.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		f.t.Fatal(err)
	}
	client, err := jetstream.Connect(f.t.Context(), jetstream.Config{InProcess: f.server, AckWait: ackWait, RequestTimeout: time.Second, AppendTimeout: 2 * time.Second})
	if err != nil {
		f.t.Fatal(err)
	}
	cfg, service := worker.Config{
		Name: name, Instance: newID(), Tools: f.tools, Objects: client.Objects(), NewID: newID,
		Routes:   provider.NewRoutes(map[string]provider.Adapter{provider.KindDeepSeek: adapter}),
		Defaults: events.Options{Provider: provider.KindDeepSeek, Model: "deepseek-chat", System: "Be brief."},
		Log:      slog.New(slog.NewTextHandler(f.t.Output(), nil)),
	}, worker.Service{Client: client, AckWait: ackWait, Idle: 200 * time.Millisecond, Metrics: metrics}
	for _, c := range change {
		c(&cfg, &service)
	}
	w, err := worker.New(cfg, service)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	m := &member{client: client, stop: cancel, done: make(chan error, 1)}
	go func() { m.done <- w.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-m.done; err != nil { // one that was cut off
			f.t.Logf("worker %s: %v", name, err)
		}
		client.Close()
	})
	return m
}

// cutOff takes a worker's connection away: it can tell nobody anything any more.
func (m *member) cutOff() { m.client.Close() }

func (f *fleet) send(id events.ID, in events.Input) uint64 {
	f.t.Helper()
	in.ID, in.Time = newID(), time.Now().UnixMilli()
	seq, _, err := f.client.Inbox().Publish(f.t.Context(), id, &in)
	if err != nil {
		f.t.Fatal(err)
	}
	return seq
}

func (f *fleet) prompt(id events.ID, open bool, text string) uint64 {
	f.t.Helper()
	return f.send(id, events.Input{Kind: events.InputPrompt, Open: open, Content: []events.Block{events.Text(text)}})
}

// until waits until the session's fold is as wanted, and returns it with the events.
func (f *fleet) until(id events.ID, what string, ok func(*fold.State) bool) (*fold.State, []events.Event) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	for {
		if s, list := f.fold(ctx, id); s != nil && ok(s) {
			return s, list
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			_, list := f.fold(f.t.Context(), id)
			for _, e := range list {
				f.t.Logf("%d %s %+v", e.Seq, e.Type(), e.Body)
			}
			f.t.Fatalf("session %s: %s did not come", id, what)
		}
	}
}

func (f *fleet) fold(ctx context.Context, id events.ID) (*fold.State, []events.Event) {
	f.t.Helper()
	log, err := f.client.Logs().Open(ctx, id)
	if err != nil {
		return nil, nil
	}
	s := fold.New(id)
	var list []events.Event
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			return nil, nil
		}
		e, err := m.Event()
		if err != nil {
			f.t.Fatal(err)
		}
		list = append(list, e)
		if err := s.Apply(&e); err != nil {
			f.t.Fatal(err)
		}
	}
	return s, list
}

func resting(turns int64) func(*fold.State) bool {
	return func(s *fold.State) bool {
		turn, open := s.Turn()
		return turn == turns && !open
	}
}

func userTexts(s *fold.State) (out []string) {
	for _, m := range s.Messages().All() {
		if m.Source.Kind == events.SourceUser {
			out = append(out, m.Content[0].Text)
		}
	}
	return out
}

func TestTakeoverInMidStream(t *testing.T) {
	slow := simulator.Answer{Text: "one two three four five six seven eight nine ten", DeltaSizes: []int{4}, DelaysMs: []int{40}}
	f := newFleet(t, simulator.Script{Rules: []simulator.Rule{{Answer: slow}}})
	first := f.start("first")
	id := newID()
	f.prompt(id, true, "count")
	f.until(id, "the first chunk", func(s *fold.State) bool {
		_, _, _, chunks, open := s.OpenCall()
		return open && len(chunks) > 0
	})
	first.cutOff()
	f.start("second")
	f.prompt(id, false, "again")
	s, list := f.until(id, "the second turn's end", resting(2))
	if diff := cmp.Diff([]string{"count", "again"}, userTexts(s)); diff != "" {
		t.Error(diff)
	}
	var claims, failures []string
	for _, e := range list {
		switch b := e.Body.(type) {
		case *events.LoopClaimed:
			claims = append(claims, b.Worker+" "+string(b.Reason))
		case *events.LLMFailed:
			failures = append(failures, string(b.Failure.Code))
		}
	}
	if diff := cmp.Diff([]string{"first created", "second takeover"}, claims); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"INTERRUPTED"}, failures); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedInputs(t *testing.T) {
	f := newFleet(t, simulator.Script{})
	f.start("w")
	unknown, closed := newID(), newID()
	refused := f.prompt(unknown, false, "who are you")
	f.prompt(closed, true, "hello")
	f.send(closed, events.Input{Kind: events.InputConfigure, Options: events.Options{Model: "deepseek-reasoner"}})
	f.prompt(closed, false, "hello again")
	f.send(closed, events.Input{Kind: events.InputClose, Reason: "enough"})
	late := f.prompt(closed, false, "too late")
	s, list := f.until(closed, "the close", (*fold.State).Closed)
	if diff := cmp.Diff([]string{"hello", "hello again"}, userTexts(s)); diff != "" {
		t.Error(diff)
	}
	var reasons []events.HeaderReason
	for _, e := range list {
		if b, ok := e.Body.(*events.RequestHeader); ok {
			reasons = append(reasons, b.Reason)
		}
	}
	if diff := cmp.Diff([]events.HeaderReason{events.HeaderInitial, events.HeaderChange}, reasons); diff != "" {
		t.Error(diff)
	}
	for _, seq := range []uint64{refused, late} {
		f.gone(seq)
	}
	if s, _ := f.fold(t.Context(), unknown); s != nil {
		t.Error("an input that opens no session made one")
	}
}

// gone waits until the inbox no longer holds the input.
func (f *fleet) gone(seq uint64) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	for {
		if _, err := f.client.Inbox().Get(ctx, seq); err != nil && ctx.Err() == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			f.t.Fatalf("input %d is still in the inbox", seq)
		}
	}
}

func TestManySessionsTwoWorkers(t *testing.T) {
	f := newFleet(t, simulator.Script{})
	f.start("a")
	f.start("b")
	const sessions, prompts = 8, 3
	var ids []events.ID
	var seqs []uint64
	for range sessions {
		ids = append(ids, newID())
	}
	for p := range prompts {
		for _, id := range ids {
			seqs = append(seqs, f.prompt(id, p == 0, fmt.Sprintf("prompt %d", p)))
		}
	}
	for _, id := range ids {
		s, _ := f.until(id, "all turns", resting(prompts))
		if diff := cmp.Diff([]string{"prompt 0", "prompt 1", "prompt 2"}, userTexts(s)); diff != "" {
			t.Errorf("session %s: %s", id, diff)
		}
	}
	for _, seq := range seqs {
		f.gone(seq)
	}
}

var _ eventlog.Store = (*jetstream.Logs)(nil)

// TestUnusableInputs sends inputs that no event can hold, or that refer to objects. They are refused, and those behind
// them are handled.
func TestUnusableInputs(t *testing.T) {
	f := newFleet(t, simulator.Script{})
	f.start("w")
	id, never := newID(), newID()
	f.prompt(id, true, "first")
	many := make([]events.Block, 17)
	for i := range many {
		many[i] = events.Text(strings.Repeat("x", 60<<10))
	}
	long := strings.Repeat("s", 130_000)
	stops := []string{long, long, long, long, long, long, long}
	refs := events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: 5, MediaType: events.TextMediaType}}
	unusable := []uint64{
		f.send(id, events.Input{Kind: events.InputConfigure, Options: events.Options{Stop: stops}}),
		f.send(id, events.Input{Kind: events.InputPrompt, Content: []events.Block{refs}}),
		f.send(never, events.Input{Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text("x")}, Cwd: strings.Repeat("c", 1_040_000)}),
	}
	f.send(id, events.Input{Kind: events.InputPrompt, Content: many})
	f.prompt(id, false, "last")
	s, list := f.until(id, "the last turn's end", resting(3))
	texts := userTexts(s)
	if len(texts) != 3 || texts[0] != "first" || texts[2] != "last" {
		t.Errorf("%d user messages: %.60q", len(texts), texts)
	}
	for _, e := range list {
		if b, ok := e.Body.(*events.TurnEnd); ok && b.Kind != events.TurnCompleted {
			t.Errorf("turn %d ended as %s: %s", b.Turn, b.Kind, b.Failure.Message)
		}
	}
	for _, seq := range unusable[:2] {
		f.gone(seq)
	}
	f.gone(unusable[2])
	if s, _ := f.fold(t.Context(), never); s != nil {
		t.Error("an input that cannot be used made a session")
	}
}
