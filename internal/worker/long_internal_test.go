package worker

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

const (
	longEvents = 10_000 // of the session
	longCycle  = 500    // about so many events lie between two compactions
	longWindow = 7_000  // tokens: what these many events fill, less the threshold
	longSteps  = 6      // tool calls of a turn
)

// longAdapter is a provider that costs next to nothing: it calls a tool a few times in each turn, answers, and gives
// summaries.
type longAdapter struct{ steps int }

// Prepare implements [provider.Adapter].
func (a *longAdapter) Prepare(_ context.Context, c events.Config) (*provider.Prepared, error) {
	return provider.NewPrepared(provider.Spec{Config: c, Codec: "deepseek-chat/1", ContextWindow: longWindow}, a.stream), nil
}

func (a *longAdapter) stream(_ context.Context, call provider.Call) iter.Seq2[events.Chunk, error] {
	const bytesPerToken = 4
	usage := events.Usage{InputTokens: call.Bytes / bytesPerToken, OutputTokens: 40}
	text := func(s string) []events.Chunk {
		return []events.Chunk{
			{Type: events.ChunkBlockStart, BlockType: events.BlockText},
			{Type: events.ChunkTextDelta, Texts: []string{s}},
			{Type: events.ChunkBlockEnd},
		}
	}
	finish := events.FinishStop
	chunks := text(strings.Repeat("and so on ", 16))
	switch {
	case call.Config.MaxTokens > 0: // only a call for a summary has a bound
		chunks = text("All of it, in short.")
	case a.steps < longSteps:
		a.steps++
		finish = events.FinishToolCalls
		const index = 1
		chunks = append(chunks, events.Chunk{Type: events.ChunkBlockStart, Index: index, BlockType: events.BlockToolCall},
			events.Chunk{Type: events.ChunkToolCallDelta, Index: index, ID: fmt.Sprintf("call_%d", call.Seq), Name: "mark", Texts: []string{"{}"}},
			events.Chunk{Type: events.ChunkBlockEnd, Index: index})
	default:
		a.steps = 0
	}
	chunks = append(chunks, events.Chunk{Type: events.ChunkUsage, Usage: usage}, events.Chunk{Type: events.ChunkFinish, Finish: events.Finish{Kind: finish}})
	return func(yield func(events.Chunk, error) bool) {
		for _, c := range chunks {
			if !yield(c, nil) {
				return
			}
		}
	}
}

// sink is a log that keeps nothing, so that what the loop keeps can be told.
type sink struct {
	last      uint64
	keep      []eventlog.Message // nil: nothing is kept
	keeping   bool
	summaries int
	largest   int64 // of them, since it was set to 0
}

func (s *sink) Append(_ context.Context, e *events.Event, payload []byte) error {
	s.last = e.Seq
	switch b := e.Body.(type) {
	case *events.CompactionEnd:
		if b.Outcome == events.CompactionCompleted {
			s.summaries++
		}
	case *events.LLMStream:
		s.largest = max(s.largest, b.Body.Bytes)
	}
	if s.keeping {
		s.keep = append(s.keep, eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: slices.Clone(payload)})
	}
	return nil
}

func (s *sink) Read(_ context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for _, m := range s.keep[min(int(from)-1, len(s.keep)):] {
			m.Payload = slices.Clone(m.Payload)
			if !yield(m, nil) {
				return
			}
		}
	}
}

func (s *sink) Last(context.Context) (uint64, error) { return s.last, nil }

// longQueue gives one prompt after another and keeps none.
type longQueue struct {
	next    *input
	arrived chan struct{}
}

func (q *longQueue) Next(_ context.Context, after uint64) (events.Input, uint64, error) {
	if q.next == nil || q.next.seq <= after {
		return events.Input{}, 0, nil
	}
	return q.next.Input, q.next.seq, nil
}

func (q *longQueue) Arrived() <-chan struct{} { return q.arrived }

func (q *longQueue) Again(d time.Duration) {
	time.AfterFunc(d, func() {
		select {
		case q.arrived <- struct{}{}:
		default:
		}
	})
}

// long is a session that goes on and on.
type long struct {
	tb    testing.TB
	cfg   Config
	log   *sink
	queue *longQueue
	loop  *loop
	turns uint64
}

func newLong(tb testing.TB, log *sink) *long {
	tb.Helper()
	set, err := tools.NewSet(&mark{})
	if err != nil {
		tb.Fatal(err)
	}
	l := &long{tb: tb, log: log, queue: &longQueue{arrived: make(chan struct{}, 1)}}
	l.cfg = Config{
		Name: "w", Instance: newID(), Tools: set, Objects: objects.NewMemory(), NewID: newID,
		Routes:   provider.NewRoutes(map[string]provider.Adapter{"long": &longAdapter{}}),
		Defaults: events.Options{Provider: "long", Model: "long", System: "You are terse."}, ChunkInterval: time.Hour,
	}
	if err := l.cfg.complete(); err != nil {
		tb.Fatal(err)
	}
	return l
}

// open opens the session, of which the log has what it has kept.
func (l *long) open(id events.ID) {
	l.tb.Helper()
	var err error
	if l.loop, err = openLoop(l.tb.Context(), &l.cfg, id, l.log, l.queue); err != nil {
		l.tb.Fatal(err)
	}
}

// turn has the session answer another prompt.
func (l *long) turn() {
	l.tb.Helper()
	l.turns++
	l.queue.next = prompt(l.turns, "Go on, please.")
	l.queue.arrived <- struct{}{}
	if err := l.loop.rest(l.tb.Context()); err != nil {
		l.tb.Fatal(err)
	}
}

// held is what the loop holds, in numbers.
type held struct{ nodes, metered, shown, pending, images, owed int }

func (l *long) held() held {
	return held{
		len(l.loop.state.Nodes()), len(l.loop.view.meter.Nodes()), l.loop.state.Messages().Len(), len(l.loop.pending),
		len(l.loop.view.images), len(l.loop.state.Owed()),
	}
}

func (h held) most(o held) held {
	return held{
		max(h.nodes, o.nodes), max(h.metered, o.metered), max(h.shown, o.shown), max(h.pending, o.pending),
		max(h.images, o.images), max(h.owed, o.owed),
	}
}

// stretch is what a stretch of the session took.
type stretch struct {
	events, steps  uint64
	bytes, mallocs uint64 // allocated, per event
	body           int64  // the largest request
	held           held
	heap           uint64 // in use at its end
	took           time.Duration
}

// to goes on to the event, and a little further to the end of the turn.
func (l *long) to(event uint64) (s stretch) {
	from := l.log.last
	l.log.largest = 0
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start, turns := time.Now(), l.turns
	for l.log.last < event {
		l.turn()
		s.held = s.held.most(l.held())
	}
	s.took = time.Since(start)
	runtime.ReadMemStats(&after)
	s.events, s.steps = l.log.last-from, (l.turns-turns)*(longSteps+1)
	s.bytes, s.mallocs = (after.TotalAlloc-before.TotalAlloc)/s.events, (after.Mallocs-before.Mallocs)/s.events
	s.body = l.log.largest
	runtime.GC()
	runtime.ReadMemStats(&after)
	s.heap = after.HeapAlloc
	return s
}

// TestLongSession compares the second thousand events of a session with the tenth: with a compaction every 500 events
// what the loop holds and what a step costs stay the same. Times are for whoever reads them.
func TestLongSession(t *testing.T) {
	const thousand = 1_000
	l := newLong(t, new(sink))
	l.open(newID())
	l.to(thousand)
	early := l.to(2 * thousand)
	l.to(longEvents - thousand)
	late := l.to(longEvents)
	for _, s := range []struct {
		name string
		stretch
	}{{"early", early}, {"late", late}} {
		t.Logf("%s: %d events, %v a step, %d B and %d allocations an event, requests up to %d B, heap %d KiB, held at most %+v",
			s.name, s.events, (s.took / time.Duration(s.steps)).Round(time.Microsecond), s.bytes, s.mallocs, s.body, s.heap/kib, s.held)
	}
	t.Logf("%d compactions, %d turns, %d events", l.log.summaries, l.turns, l.log.last)
	if most, least := l.log.last/(longCycle*3/4), l.log.last/(longCycle*3/2); uint64(l.log.summaries) > most || uint64(l.log.summaries) < least {
		t.Fatalf("%d compactions in %d events: that is not one in about %d", l.log.summaries, l.log.last, longCycle)
	}
	atMost := func(what string, late, early, slack uint64) {
		t.Helper()
		if late > early+early/2+slack {
			t.Errorf("%s: %d late, %d early", what, late, early)
		}
	}
	atMost("bytes allocated per event", late.bytes, early.bytes, 0)
	atMost("allocations per event", late.mallocs, early.mallocs, 0)
	atMost("largest request", uint64(late.body), uint64(early.body), 0)
	const claimed = 512 // bytes that an input may leave behind for ever
	atMost("heap in use", late.heap, early.heap, l.turns*claimed)
	most := early.held
	if got := late.held; got.nodes > most.nodes*3/2 || got.metered > most.metered*3/2 || got.shown > most.shown*3/2 || got.pending > 0 || got.images > 0 || got.owed > 0 {
		t.Errorf("held late %+v, early %+v", got, most)
	}
	if n := cap(l.loop.pending); n > 64 {
		t.Errorf("room for %d pending inputs, and one came at a time", n)
	}
}

// BenchmarkStepCompacted measures the steps of whole cycles of compaction, each time behind the same events.
func BenchmarkStepCompacted(b *testing.B) {
	for _, n := range []uint64{1_000, longEvents} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			log := &sink{keeping: true}
			l := newLong(b, log)
			id := newID()
			l.open(id)
			l.to(n)
			kept, turns := len(log.keep), l.turns
			steps := 0
			for b.Loop() {
				b.StopTimer()
				log.keep, log.last, l.turns = log.keep[:kept], uint64(kept), turns
				l.open(id)
				l.turn() // the first one claims, and makes a body anew
				before := l.turns
				b.StartTimer()
				for end := log.last + longCycle; log.last < end; {
					l.turn()
				}
				steps += int(l.turns-before) * (longSteps + 1)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(steps), "ns/step")
		})
	}
}
