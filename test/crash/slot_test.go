package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/test/child"
)

// slot is a place where sessions are played, one after another: workers of one server share their inputs, so two
// sessions at a time need two of them. Its provider survives the workers.
type slot struct {
	script   script
	client   *jetstream.Client
	hints    <-chan jetstream.Hint
	nats     string
	replicas int
	provider string

	mu  sync.Mutex
	now *run // the session that is played
}

// newSlot starts a server, or a cluster of as many as there are replicas, and a provider.
func newSlot(t *testing.T, replicas int, played script) *slot {
	t.Helper()
	s := &slot{replicas: replicas, script: played}
	if replicas == 1 {
		server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Shutdown)
		s.nats = server.ClientURL()
	} else {
		cluster, err := embedded.StartCluster(replicas, t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Shutdown)
		s.nats = cluster.URLs()
	}
	client, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.nats, Replicas: replicas, AckWait: ackWait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.client = client
	s.listen(t)
	sim, err := simulator.New(simulator.Config{Script: played.answers, ContextWindow: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s.record(sim))
	t.Cleanup(web.Close)
	s.provider = web.URL
	return s
}

// listen receives the slot's hints until the test ends.
func (s *slot) listen(t *testing.T) {
	t.Helper()
	sub, err := s.client.Hints().Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hints := make(chan jetstream.Hint)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			h, err := sub.Next(ctx)
			if err != nil {
				return
			}
			select {
			case hints <- h:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		sub.Close()
	})
	s.hints = hints
}

// record shows every request to the session that is played before it is answered.
func (s *slot) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // its sender was killed: nothing came that could be answered
		}
		seq, _ := strconv.ParseUint(r.Header.Get(provider.HeaderSeq), 10, 64)
		s.mu.Lock()
		now := s.now
		s.mu.Unlock()
		now.received(context.WithoutCancel(r.Context()), events.ID(r.Header.Get(provider.HeaderSession)), seq, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// run is one session that is played.
type run struct {
	slot    *slot
	id      events.ID
	effects string // the file of the tool with an effect
	kills   []kill

	mu       sync.Mutex
	left     []entry           // inputs that were not sent yet
	inputs   map[uint64]string // the ids of those that were, by their place in the inbox
	bodies   map[uint64][]byte // what the provider received, by the request's sequence
	problems []error           // what went wrong outside of the test's goroutine
}

// received keeps a request and sends the inputs that wait for it.
func (r *run) received(ctx context.Context, id events.ID, seq uint64, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, twice := r.bodies[seq]; twice || id != r.id {
		r.problems = append(r.problems, fmt.Errorf("request %d of session %s was sent before, or is of another session", seq, id))
	}
	r.bodies[seq] = body
	if len(r.left) > 0 && bytes.Contains(body, []byte(r.left[0].cue)) {
		r.send(ctx)
	}
}

// send sends the next entry and those that go with it.
func (r *run) send(ctx context.Context) {
	for first := true; len(r.left) > 0 && (first || r.left[0].cue == ""); first = false {
		in := r.left[0].input
		in.ID, in.Time = newID(), time.Now().UnixMilli()
		seq, _, err := r.slot.client.Inbox().Publish(ctx, r.id, &in)
		if err != nil {
			r.problems = append(r.problems, err)
			return
		}
		r.inputs[seq] = string(in.ID)
		r.left = r.left[1:]
	}
}

// kill is what a killed worker left behind.
type kill struct {
	at      passed
	last    uint64             // the log's last event
	pending []fold.PendingTool // calls without a result, those of an answer that only its chunks hold among them
	open    uint64             // the request whose answer had not come whole, 0 for none
	effects string             // what the file of the tool with an effect held
}

// patience bounds one session with all of its crashes.
const patience = time.Minute

// play plays the scripted session: one worker after another is killed at its boundary, the last one finishes. With trace
// set it returns the boundaries that the last one passed.
func (s *slot) play(t *testing.T, trace bool, stops ...boundary) (r *run, trail []passed) {
	t.Helper()
	r = &run{
		slot: s, id: newID(), effects: filepath.Join(t.TempDir(), "effects"), left: s.script.entries,
		inputs: make(map[uint64]string), bodies: make(map[uint64][]byte),
	}
	s.mu.Lock()
	s.now = r
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r.mu.Lock()
	r.send(ctx)
	r.mu.Unlock()
	for _, stop := range stops {
		p := s.start(t, r, stop.String(), false)
		at := r.stopped(ctx, t, p)
		p.kill(t)
		r.kills = append(r.kills, r.look(ctx, t, at))
	}
	p := s.start(t, r, "", trace)
	trail = append(r.rest(ctx, t, p), p.kill(t)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.problems...); err != nil {
		t.Error(err)
	}
	return r, trail
}

// stopped waits until the process stands at its boundary.
func (r *run) stopped(ctx context.Context, t *testing.T, p *process) passed {
	t.Helper()
	for {
		select {
		case at, ok := <-p.reports:
			if ok {
				return at
			}
			p.lost(t)
		case <-r.slot.hints: // nobody else takes them
		case <-ctx.Done():
			p.kill(t)
			r.dump(ctx, t)
			t.Fatalf("the worker never came to %s\n%s", p.stop, p.errors.String())
		}
	}
}

// rest waits until the session is closed and has no input left, and returns what the process reported meanwhile.
func (r *run) rest(ctx context.Context, t *testing.T, p *process) (trail []passed) {
	t.Helper()
	const seldom, often = 500 * time.Millisecond, 2 * time.Millisecond
	look := time.NewTimer(seldom) // hints may be lost
	defer look.Stop()
	closed := false
	for {
		select {
		case at, ok := <-p.reports:
			if !ok {
				p.lost(t)
			}
			trail = append(trail, at)
			continue
		case h := <-r.slot.hints:
			if closed || h.Session != r.id || h.Type != events.TypeSessionClosed {
				continue
			}
		case <-look.C:
		case <-ctx.Done():
			p.kill(t)
			r.dump(ctx, t)
			t.Fatalf("the session never came to rest\n%s", p.errors.String())
		}
		if !closed {
			state, _ := r.fold(ctx, t)
			closed = state.Closed()
		}
		wait := seldom
		if closed {
			_, more, err := r.slot.client.Inbox().Next(ctx, r.id, 0)
			if err == nil && !more {
				return trail
			}
			wait = often // the acknowledgement is on its way
		}
		look.Reset(wait)
	}
}

// look says what a killed worker left behind.
func (r *run) look(ctx context.Context, t *testing.T, at passed) kill {
	t.Helper()
	state, _ := r.fold(ctx, t)
	k := kill{at: at, last: state.Seq(), pending: state.PendingTools(), effects: r.marked(t)}
	_, seq, answer, _, open := state.OpenCall()
	switch {
	case open && !answer.Finished:
		if _, cancelled := state.Cancelled(); !cancelled { // the cancel ends it otherwise
			k.open = seq
		}
	case open:
		for _, b := range answer.Content() {
			if b.Type == events.BlockToolCall {
				k.pending = append(k.pending, fold.PendingTool{ID: b.ID, Name: b.Name})
			}
		}
	}
	return k
}

// fold returns the session as its log has it now.
func (r *run) fold(ctx context.Context, t *testing.T) (*fold.State, []events.Event) {
	t.Helper()
	state := fold.New(r.id)
	log, err := r.slot.client.Logs().Open(ctx, r.id)
	if errors.Is(err, eventlog.ErrNotFound) {
		return state, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []events.Event
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			t.Fatal(err)
		}
		e, err := m.Event()
		if err != nil {
			t.Fatal(err)
		}
		if err := state.Apply(&e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return state, list
}

// marked returns what the file of the tool with an effect holds.
func (r *run) marked(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(r.effects)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

func (r *run) dump(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, k := range r.kills {
		t.Logf("killed %s with %d events", k.at, k.last)
	}
	_, list := r.fold(context.WithoutCancel(ctx), t) // it may be over
	for _, e := range list {
		t.Logf("%d %s %.300s", e.Seq, e.Type(), fmt.Sprintf("%+v", e.Body))
	}
}

// process is a worker process.
type process struct {
	*child.Process

	state   *os.ProcessState // when it is gone
	stop    string
	reports <-chan passed
	errors  bytes.Buffer // what it had to say; read after it is gone
	close   func() []passed
}

// start starts a worker process for the session.
func (s *slot) start(t *testing.T, r *run, stop string, trace bool) *process {
	t.Helper()
	told, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{stop: stop}
	a := assignment{NATS: s.nats, Replicas: s.replicas, Provider: s.provider, Effects: r.effects, Stop: stop, Trace: trace}
	p.Process, err = child.Start(&a, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, provider.EnvDeepSeekKey+"=", "GOMAXPROCS=1")
		cmd.ExtraFiles, cmd.Stderr = []*os.File{tell}, &p.errors
	})
	_ = tell.Close() // the process has its own
	if err != nil {
		t.Fatal(err)
	}
	p.reports = reports(told)
	p.close = sync.OnceValue(func() (rest []passed) {
		p.state = p.Kill()
		for at := range p.reports {
			rest = append(rest, at)
		}
		_ = told.Close()
		return rest
	})
	t.Cleanup(func() { p.close() })
	return p
}

// kill kills the process with SIGKILL, waits until it is gone, and returns what it reported and nobody has read.
func (p *process) kill(t *testing.T) []passed {
	t.Helper()
	rest := p.close()
	if status, ok := p.state.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the worker was not killed, it ended: %v\n%s", p.state, p.errors.String())
	}
	return rest
}

// lost ends the test: the process was not to end by itself.
func (p *process) lost(t *testing.T) {
	t.Helper()
	p.close()
	t.Fatalf("the worker ended by itself: %v\n%s", p.state, p.errors.String())
}
