package worker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newID() events.ID { return events.ID(ulid.Make().String()) }

// rig is a worker's surroundings: a workspace, an object store and a provider.
type rig struct {
	t     *testing.T
	sim   *simulator.Simulator
	cfg   Config
	store *objects.Memory
	url   string
	http  http.RoundTripper
}

// route gives the provider that name, with these models.
func (r *rig) route(name string, models ...provider.Model) {
	r.t.Helper()
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{Name: name, BaseURL: r.url, Transport: r.http, Models: models, Now: r.cfg.Now})
	if err != nil {
		r.t.Fatal(err)
	}
	r.cfg.Routes.Set(name, adapter)
}

func newRig(t *testing.T, script simulator.Script) *rig {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "alpha", "b.bin": "\xff\x00\xfe", "big.txt": strings.Repeat("0123456789abcdef", 1<<12)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ws, err := tools.OpenWorkspace(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ws.Close() })
	set, err := tools.NewSet(append(ws.Tools(), &mark{})...)
	if err != nil {
		t.Fatal(err)
	}
	sim, err := simulator.New(simulator.Config{Script: script, Record: true})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	r := &rig{t: t, sim: sim, store: objects.NewMemory(), url: server.URL, http: server.Client().Transport}
	r.cfg = Config{
		Name: "w", Instance: newID(), Tools: set, Objects: r.store, NewID: newID,
		Routes:   provider.NewRoutes(nil),
		Defaults: events.Options{Provider: provider.KindDeepSeek, Model: "deepseek-chat", System: "You are terse."},
		Retry:    provider.RetryPolicy{Base: time.Millisecond, Max: 5 * time.Millisecond}, InlineMax: 16 << 10,
	}
	if err := r.cfg.complete(); err != nil {
		t.Fatal(err)
	}
	r.route(provider.KindDeepSeek)
	return r
}

// mark is a tool with an effect that must not happen twice.
type mark struct{}

func (*mark) Schema() events.Tool {
	return events.Tool{Name: "mark", Description: "Leave a mark.", Parameters: `{"type":"object"}`}
}
func (*mark) Safety() tools.Safety                     { return tools.Safety{} }
func (*mark) Run(context.Context, string) tools.Result { return tools.Result{Output: []byte("marked")} }

// open opens a session's loop over a queue, which may be used again.
func (r *rig) open(log eventlog.Log, id events.ID, q *memoryQueue) *loop {
	r.t.Helper()
	l, err := openLoop(r.t.Context(), &r.cfg, id, log, q)
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// memoryQueue is an inbox in memory, which forgets nothing.
type memoryQueue struct {
	mu      sync.Mutex
	inputs  []*input
	arrived chan struct{}
	looked  func(after uint64) // is told of each look, under mu
}

func newQueue(inputs ...*input) *memoryQueue {
	return &memoryQueue{inputs: inputs, arrived: make(chan struct{}, 1)}
}

func (q *memoryQueue) add(in *input) {
	q.mu.Lock()
	q.inputs = append(q.inputs, in)
	q.mu.Unlock()
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

func (q *memoryQueue) Next(_ context.Context, after uint64) (events.Input, uint64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.looked != nil {
		q.looked(after)
	}
	for _, in := range q.inputs {
		if in.seq > after {
			return in.Input, in.seq, nil
		}
	}
	return events.Input{}, 0, nil
}

func (q *memoryQueue) Arrived() <-chan struct{} { return q.arrived }

func (q *memoryQueue) Again(d time.Duration) {
	time.AfterFunc(d, func() {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	})
}

func (l *loop) rest(ctx context.Context) error { return l.run(ctx, func() {}) }

func prompt(seq uint64, text string) *input {
	return &input{seq: seq, Input: events.Input{ID: newID(), Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text(text)}}}
}

// history returns the log's events; it fails when they do not fold.
func history(t *testing.T, log eventlog.Log, id events.ID) ([]events.Event, *fold.State) {
	t.Helper()
	s := fold.New(id)
	var out []events.Event
	for m, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := m.Event()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
		if err := s.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	return out, s
}

// rebuild checks every llm/stream of the log, of auxiliary calls too: body and digest rebuilt from the prefix and the
// objects alone.
func (r *rig) rebuild(log []events.Event, id events.ID) (bodies []string) {
	r.t.Helper()
	s := fold.New(id)
	for i := range log {
		if b, ok := log[i].Body.(*events.LLMStream); ok {
			req, err := s.RequestOf(b)
			if err != nil {
				r.t.Fatal(err)
			}
			builder, err := codec.New(b.Codec, codec.Options{})
			if err != nil {
				r.t.Fatal(err)
			}
			body, err := replay.Build(r.t.Context(), builder, &req, r.store, b.Objects)
			if err != nil {
				r.t.Fatalf("event %d: %v", log[i].Seq, err)
			}
			if body.Digest() != b.Body {
				r.t.Errorf("event %d: rebuilt %v, recorded %v", log[i].Seq, body.Digest(), b.Body)
			}
			bodies = append(bodies, string(body.Bytes()))
		}
		if err := s.Apply(&log[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	return bodies
}

func script() simulator.Script {
	results := func(n int) *int { return &n }
	return simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "tools", ToolResults: results(0)}, Answer: simulator.Answer{
			Reasoning: "look first", Text: "Looking.", Calls: []simulator.Call{
				{Name: "list", Arguments: `{}`}, {Name: "read", Arguments: `{"path":"b.bin"}`}, {Name: "mark", Arguments: `{}`, NoID: true}, {Name: "nosuch", Arguments: `{"x":`},
			},
		}},
		{When: simulator.Condition{Contains: "tools", ToolResults: results(4)}, Answer: simulator.Answer{
			Calls: []simulator.Call{{Name: "read", Arguments: `{"path":"big.txt"}`}},
		}},
		{When: simulator.Condition{Contains: "tools"}, Answer: simulator.Answer{Text: "Seen \U0001F600 it all."}},
		{When: simulator.Condition{Contains: "flaky", Nth: 1}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 503}}},
		{When: simulator.Condition{Contains: "flaky", Nth: 2}, Answer: simulator.Answer{Text: "partial", Failure: &simulator.Failure{Kind: simulator.FailReset, After: 1}}},
		{When: simulator.Condition{Contains: "refused", Times: 1}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 400}}},
		{When: simulator.Condition{}, Answer: simulator.Answer{Text: "Fine."}},
	}}
}

func TestTurnWithTools(t *testing.T) {
	r := newRig(t, script())
	id := newID()
	log, err := eventlog.NewMemory(time.Now).Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	q := newQueue()
	l := r.open(log, id, q)
	for i, text := range []string{"use tools", "again", "flaky please", "refused", "more"} {
		q.add(prompt(uint64(i+1), text))
		if err := l.rest(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got, s := history(t, log, id)
	bodies := r.rebuild(got, id)
	sent := r.sim.Requests()
	if len(sent) != len(bodies) || len(bodies) == 0 {
		t.Fatalf("%d requests sent, %d recorded", len(sent), len(bodies))
	}
	for i := range sent {
		if string(sent[i].Body) != bodies[i] {
			t.Errorf("request %d: sent\n%s\nrebuilt\n%s", i, sent[i].Body, bodies[i])
		}
	}
	if turn, open := s.Turn(); turn != 5 || open {
		t.Errorf("turn %d, open %t", turn, open)
	}
	var ends []string
	for _, e := range got {
		if b, ok := e.Body.(*events.TurnEnd); ok {
			ends = append(ends, fmt.Sprint(b.Kind, b.Failure.Code))
		}
	}
	want := []string{"completed", "completed", "completed", "errorINVALID_REQUEST", "completed"}
	if diff := cmp.Diff(want, ends); diff != "" {
		t.Error(diff)
	}
	// The binary file's bytes come back exactly, and the large file is an object.
	var binary, large bool
	for _, m := range s.Messages().All() {
		for _, b := range m.Content {
			for _, c := range b.Content {
				binary = binary || string(events.BytesFromText(c.Text)) == "\xff\x00\xfe"
				large = large || c.Object.Bytes == 1<<16
			}
		}
	}
	if !binary || !large {
		t.Errorf("binary result kept: %t, large result in an object: %t", binary, large)
	}
}

// cut is a log whose appends stop working at one event, as when the process is killed there: before the event is
// stored, or after it is stored and before anybody knows.
type cut struct {
	eventlog.Log
	at     uint64
	stored bool
}

var errKilled = errors.New("killed")

func (c *cut) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if e.Seq < c.at {
		return c.Log.Append(ctx, e, payload)
	}
	if e.Seq == c.at && c.stored {
		if err := c.Log.Append(ctx, e, payload); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, errKilled)
}

func (c *cut) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return c.Log.Read(ctx, from)
}

// TestCrashAnywhere kills the loop before and after each append of a session, and lets another instance go on. Nothing
// is lost, no input is used twice, every request can be rebuilt.
func TestCrashAnywhere(t *testing.T) {
	inputs := func() []*input {
		return []*input{prompt(3, "use tools"), prompt(7, "flaky please"), prompt(8, "last")}
	}
	reference := newRig(t, script())
	id := newID()
	log, err := eventlog.NewMemory(time.Now).Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := reference.open(log, id, newQueue(inputs()...)).rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole, final := history(t, log, id)
	boundaries := 0
	for at := uint64(1); at <= uint64(len(whole)); at++ {
		for _, stored := range []bool{false, true} {
			boundaries++
			crashAt(t, at, stored, inputs(), users(final))
		}
	}
	t.Logf("%d boundaries of a session of %d events", boundaries, len(whole))
}

func users(s *fold.State) (out []string) {
	for _, m := range s.Messages().All() {
		if m.Source.Kind == events.SourceUser {
			out = append(out, m.Content[0].Text)
		}
	}
	return out
}

func crashAt(t *testing.T, at uint64, stored bool, inputs []*input, want []string) {
	t.Helper()
	name := fmt.Sprintf("event %d, stored %t", at, stored)
	r := newRig(t, script())
	id := newID()
	memory, err := eventlog.NewMemory(time.Now).Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var log eventlog.Log = &cut{Log: memory, at: at, stored: stored}
	q := newQueue(inputs...)
	if err := r.open(log, id, q).rest(t.Context()); !errors.Is(err, errKilled) {
		t.Fatalf("%s: %v", name, err)
	}
	r.cfg.Instance = newID()
	if err := r.open(memory, id, q).rest(t.Context()); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	got, s := history(t, memory, id)
	r.rebuild(got, id)
	if diff := cmp.Diff(want, users(s)); diff != "" {
		t.Errorf("%s: user messages: %s", name, diff)
	}
	marks := 0
	for _, e := range got {
		if b, ok := e.Body.(*events.ToolCall); ok && b.Name == "mark" {
			marks++
		}
		if b, ok := e.Body.(*events.TurnEnd); ok && b.Kind != events.TurnCompleted {
			t.Errorf("%s: turn %d ended as %s %s", name, b.Turn, b.Kind, b.Failure.Message)
		}
	}
	if marks > 1 {
		t.Errorf("%s: the tool with an effect was started %d times", name, marks)
	}
	if turn, open := s.Turn(); turn != 3 || open {
		t.Errorf("%s: turn %d, open %t", name, turn, open)
	}
}
