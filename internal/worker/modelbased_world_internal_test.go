package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// world carries a plan out, in a bubble of its own: workers that come and go, their clients and a provider.
type world struct {
	ctx   context.Context //nolint:containedctx // of the whole plan: deeds happen in callbacks
	plan  *plan
	cfg   Config
	sim   *simulator.Simulator
	logs  *eventlog.Memory
	store *objects.Memory

	id  events.ID // of the session under way
	box *inbox    // its inbox

	checked uint64 // the session's model calls are checked up to this event

	mu      sync.Mutex
	ids     int
	appends int
	alive   []*life // the last one is believed to own the session
	done    map[string]bool
	asked   map[string]int // requests, by session
	effects map[string]int // of tools, by call
	bad     []string       // what must not be and was

	serving sync.WaitGroup // requests
	running atomic.Int32   // tools
	outages atomic.Int32   // the next operations of the object store fail
}

const (
	mostEvents = 2_000 // of a session: more than any plan leads to
	mostLives  = 100
)

func newWorld(t *testing.T, p *plan) *world {
	t.Helper()
	w := &world{
		ctx: t.Context(), plan: p, logs: eventlog.NewMemory(time.Now), store: objects.NewMemory(),
		done: make(map[string]bool), asked: make(map[string]int),
	}
	var err error
	if w.sim, err = simulator.New(simulator.Config{Script: p.script(), ContextWindow: p.limit, CacheUnits: 64, Record: true}); err != nil {
		t.Fatal(err)
	}
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: "http://127.0.0.1", Transport: inProcess{http.HandlerFunc(w.serve), &w.serving},
		Models: []provider.Model{{ContextWindow: p.window, MaxTokens: 512, Images: p.images, Files: p.files}},
	})
	if err != nil {
		t.Fatal(err)
	}
	set, err := tools.NewSet(
		&worldTool{w: w, name: "mark"}, &worldTool{w: w, name: "note", safety: tools.Safety{Parallel: true}},
		&worldTool{w: w, name: "peek", safety: tools.Safety{Parallel: true, ReadOnly: true}}, &worldTool{w: w, name: "big", safety: tools.Safety{ReadOnly: true}},
		&worldTool{w: w, name: "draw"},
	)
	if err != nil {
		t.Fatal(err)
	}
	retry := p.retry()
	retry.Base, retry.Max = 20*time.Millisecond, 90*time.Millisecond
	x := worldExtension{}
	w.cfg = Config{
		Name: "w", Instance: w.newID(), Tools: set, Objects: &flakyStore{w.store, w}, Sessions: w.logs, NewID: w.newID,
		Routes:   provider.NewRoutes(map[string]provider.Adapter{provider.KindDeepSeek: adapter}),
		Defaults: events.Options{Provider: provider.KindDeepSeek, Model: "model", System: "You are terse."},
		Extensions: Extensions{
			PreStep: []PreStep{x}, CallConfig: []CallConfig{x}, RequestError: []RequestError{x}, Tools: []ToolHook{x}, TurnStopping: []TurnStopping{x}, Contexts: []ContextSection{x},
		},
		Retry: retry, MaxSteps: 9, SummaryMax: 128, InlineMax: 1 << 10, MaxEventBytes: 64 << 10, ToolPool: 1,
		ChunkInterval: 10 * time.Millisecond, Jitter: func() float64 { return 0.5 },
	}
	if p.parallel {
		w.cfg.ToolPool = 4
	}
	if err := w.cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return w
}

// violate notes what must not be.
func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad = append(w.bad, fmt.Sprintf(format, args...))
}

// newID returns the next of the ids of this world, which are the same each time the plan is carried out.
func (w *world) newID() events.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids++
	return events.ID(fmt.Sprintf("%026d", w.ids))
}

// once reports whether something happens for the first time.
func (w *world) once(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	first := !w.done[what]
	w.done[what] = true
	return first
}

// run carries the plan out and returns what must not be and was.
func (w *world) run() []string {
	parent := w.newID()
	w.session(parent, w.plan.rounds)
	if boundaries := w.boundaries(parent); len(w.plan.fork) > 0 && len(boundaries) > 0 && len(w.bad) == 0 {
		at := boundaries[min(w.plan.forkAt, len(boundaries)-1)]
		w.begin(w.newID())
		w.box.add(&events.Input{ID: w.newID(), Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: parent, Seq: at}, Options: events.Options{System: "You are a fork."}}, 0)
		w.rounds(w.plan.fork)
	}
	pass(mostLeft)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.bad) > 0 {
		w.bad = append(w.bad, w.story())
	}
	return w.bad
}

func (w *world) session(id events.ID, rounds [][]deed) {
	w.begin(id)
	w.rounds(rounds)
}

func (w *world) begin(id events.ID) {
	w.id, w.box, w.effects, w.checked = id, &inbox{}, make(map[string]int), 0
	if _, err := w.logs.Create(w.ctx, id); err != nil {
		w.violate("%v", err)
	}
}

// rounds has the session come to rest again and again, and checks it each time.
func (w *world) rounds(rounds [][]deed) {
	for i, deeds := range rounds {
		w.do(deeds)
		for lives, rested := 0, false; !rested; lives++ {
			var known int
			known, rested = w.live()
			w.settle() // what happens late is for the next worker
			rested = rested && len(w.box.all()) == known
			if len(w.bad) > 0 {
				return
			}
			if lives > mostLives {
				w.violate("round %d: not at rest after %d workers", i+1, lives)
				return
			}
		}
		before := w.last()
		if _, rested := w.live(); !rested || w.last() != before {
			w.violate("round %d: at rest, and a new worker appends %d events (at rest again: %t)", i+1, w.last()-before, rested)
		}
		w.check()
		if len(w.bad) > 0 {
			return
		}
	}
}

// settle waits until no request is served and no tool runs: either may have workers come and go.
func (w *world) settle() {
	w.serving.Wait()
	for pass(settleTime); w.running.Load() > 0; {
		pass(pace)
	}
	w.serving.Wait()
}

func (w *world) last() uint64 {
	log, err := w.logs.Open(w.ctx, w.id)
	if err != nil {
		w.violate("%v", err)
		return 0
	}
	last, err := log.Last(w.ctx)
	if err != nil {
		w.violate("%v", err)
	}
	return last
}

// life is one worker's time with the session.
type life struct {
	cancel context.CancelFunc
	killed atomic.Bool // nothing of it is stored any more
	over   atomic.Bool // killed or stopped
	shared atomic.Bool // another worker had the session at the same time
}

// live gives the session to a new worker and reports whether that came to rest, and how many inputs there were then.
func (w *world) live() (known int, rested bool) {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	me := &life{cancel: cancel}
	w.enter(me)
	defer w.leave(me)
	log, err := w.logs.Open(w.ctx, w.id)
	if err != nil {
		w.violate("%v", err)
		return 0, true
	}
	cfg := w.cfg
	cfg.Instance = w.newID()
	q := w.box.subscribe()
	defer w.box.leave(q)
	l, err := openLoop(ctx, &cfg, w.id, &lease{Log: log, w: w, life: me}, q)
	for err == nil {
		if err = l.rest(ctx); err != nil {
			break
		}
		pass(settleTime) // everybody else waits as well
		if known := len(w.box.all()); len(q.arrived) == 0 {
			return known, true
		}
	}
	switch {
	case me.over.Load() && (errors.Is(err, errKilled) || errors.Is(err, context.Canceled)):
	case errors.Is(err, errOutage):
	case me.shared.Load() && errors.Is(err, eventlog.ErrLostOwnership):
	default:
		w.violate("a worker ended (killed or stopped %t, sharing the session %t): %v", me.over.Load(), me.shared.Load(), err)
	}
	return 0, false
}

// enter and leave keep the list of the workers that have the session.
func (w *world) enter(me *life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.alive {
		other.shared.Store(true)
		me.shared.Store(true)
	}
	w.alive = append(w.alive, me)
}

func (w *world) leave(me *life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alive = slices.DeleteFunc(w.alive, func(other *life) bool { return other == me })
}

// owner returns the worker that has come last, nil when the session is at rest.
func (w *world) owner() *life {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.alive); n > 0 {
		return w.alive[n-1]
	}
	return nil
}

// do does deeds, one after another.
//
//nolint:contextcheck,nolintlint // whoever is called back in the middle of something has a context that ends with it
func (w *world) do(deeds []deed) {
	for _, d := range deeds {
		now := w.owner()
		switch d.kind {
		case deedInput:
			w.send(d)
		case deedRepeat:
			w.box.repeat(d.which, w.last())
		case deedKill, deedStop:
			if now != nil {
				now.over.Store(true)
				now.killed.Store(d.kind == deedKill)
				now.cancel()
			}
		case deedOutage:
			w.outages.Store(1)
		case deedTakeover:
			if now != nil {
				w.live()
			}
		}
	}
}

// send sends an input.
func (w *world) send(d deed) {
	id := w.newID()
	in := &events.Input{ID: id, Kind: d.input}
	text := fmt.Sprintf("%s (%s)", d.text, strings.TrimLeft(string(id), "0"))
	switch d.input {
	case events.InputPrompt, events.InputSteer, events.InputInject:
		in.Open = d.input == events.InputPrompt
		switch d.text {
		case "long":
			text += strings.Repeat(" 0123456789", 60)
		case "longer":
			text += strings.Repeat(" 0123456789abcde", 300)
		}
		in.Content = []events.Block{events.Text(text)}
		switch d.text {
		case textImage:
			data, block := picture()
			in.Content, in.Attachments = append(in.Content, block), [][]byte{data}
		case textRefused:
			in.Content = append(in.Content, events.Block{Type: events.BlockText, Object: objects.Ref{
				Digest: objects.Sum([]byte("x")), Bytes: 1, MediaType: events.TextMediaType,
			}})
		}
	case events.InputCancel:
		in.Cause, in.KeepQueue = text, d.keep
	case events.InputConfigure:
		in.Options = options(d.text, text)
	case events.InputClose:
		in.Reason = text
	default: // nothing more to say
	}
	payload, err := events.EncodeInput(in)
	if err == nil {
		_, err = events.DecodeInput(payload)
	}
	if err != nil {
		w.violate("an input that no client can send: %v", err)
	}
	w.box.add(in, w.last())
}

func options(what, text string) events.Options {
	switch what {
	case "system":
		return events.Options{System: "You are " + text + strings.Repeat(" very", 300)}
	case "effort":
		return events.Options{ReasoningEffort: "low"}
	case "steps":
		return events.Options{MaxSteps: 2}
	case "nowhere":
		return events.Options{Provider: "nowhere", Model: "model"}
	default:
		return events.Options{Provider: provider.KindDeepSeek, Model: "model"}
	}
}

func picture() ([]byte, events.Block) {
	const width, height = 3, 2
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		panic(err) // nothing that it could fail at
	}
	ref := objects.Ref{Digest: objects.Sum(b.Bytes()), Bytes: int64(b.Len()), MediaType: images.PNG}
	return b.Bytes(), events.Block{Type: events.BlockImage, Object: ref, Width: width, Height: height}
}

// inbox is a session's inbox, which every worker sees whole.
type inbox struct {
	mu     sync.Mutex
	inputs []*input
	behind []uint64 // the log's last event when each came
	queues []*inboxQueue
}

// inboxQueue is one worker's view of it.
type inboxQueue struct {
	box     *inbox
	arrived chan struct{}
}

func (b *inbox) add(in *events.Input, last uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const gap = 3 // other sessions' inputs stand between
	b.inputs = append(b.inputs, &input{Input: *in, seq: uint64(gap*len(b.inputs) + 1)})
	b.behind = append(b.behind, last)
	for _, q := range b.queues {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	}
}

func (b *inbox) repeat(which int, last uint64) {
	b.mu.Lock()
	n := len(b.inputs)
	var in events.Input
	if n > 0 {
		in = b.inputs[which%n].Input
	}
	b.mu.Unlock()
	if n > 0 {
		b.add(&in, last)
	}
}

func (b *inbox) subscribe() *inboxQueue {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := &inboxQueue{box: b, arrived: make(chan struct{}, 1)}
	b.queues = append(b.queues, q)
	return q
}

func (b *inbox) leave(q *inboxQueue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queues = slices.DeleteFunc(b.queues, func(other *inboxQueue) bool { return other == q })
}

func (b *inbox) all() []*input {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.inputs)
}

// Next and Arrived implement queue.
func (q *inboxQueue) Next(ctx context.Context, after uint64) (events.Input, uint64, error) {
	if err := ctx.Err(); err != nil {
		return events.Input{}, 0, err
	}
	all := q.box.all()
	if i, _ := slices.BinarySearchFunc(all, after+1, func(in *input, seq uint64) int { return cmp.Compare(in.seq, seq) }); i < len(all) {
		return all[i].Input, all[i].seq, nil
	}
	return events.Input{}, 0, nil
}

func (q *inboxQueue) Arrived() <-chan struct{} { return q.arrived }

func (q *inboxQueue) Again(d time.Duration) {
	time.AfterFunc(d, func() {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	})
}

// lease is the log as one worker has it.
type lease struct {
	eventlog.Log
	w    *world
	life *life
}

func (l *lease) Append(ctx context.Context, e *events.Event, payload []byte) error {
	w := l.w
	w.mu.Lock()
	w.appends++
	n := w.appends
	w.mu.Unlock()
	if e.Seq > mostEvents {
		l.life.over.Store(true)
		l.life.killed.Store(true)
		w.violate("event %d of a session that should have come to rest", e.Seq)
	}
	w.appending(n, false)
	err := l.dead()
	if err == nil {
		err = l.Log.Append(ctx, e, payload)
	}
	if err == nil {
		w.appending(n, true)
		err = l.dead()
	}
	return err
}

func (l *lease) dead() error {
	if l.life.killed.Load() {
		return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, errKilled)
	}
	return nil
}

// appending does what the plan has for that moment.
func (w *world) appending(n int, stored bool) {
	for i, m := range w.plan.appends {
		if m.append == n && m.stored == stored && w.once(fmt.Sprint("append ", i)) {
			w.do(m.deeds)
		}
	}
}

// flakyStore is the object store as workers have it.
type flakyStore struct {
	objects.Store
	w *world
}

var errOutage = errors.New("the object store does not answer")

func (s *flakyStore) outage() error {
	if s.w.outages.CompareAndSwap(1, 0) {
		return fmt.Errorf("%w: %w", objects.ErrUnavailable, errOutage)
	}
	return nil
}

// Put implements [objects.Store].
func (s *flakyStore) Put(ctx context.Context, ref objects.Ref, data []byte) error {
	if err := s.outage(); err != nil {
		return err
	}
	return s.Store.Put(ctx, ref, data)
}

// Get implements [objects.Store].
func (s *flakyStore) Get(ctx context.Context, d objects.Digest) ([]byte, error) {
	if err := s.outage(); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, d)
}
