package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// deafQueue is an inbox that does not answer the next few times.
type deafQueue struct {
	*memoryQueue
	deaf   atomic.Int32
	failed chan struct{} // holds a token after it did not answer
	waits  chan time.Duration
}

func newDeafQueue(q *memoryQueue) *deafQueue {
	return &deafQueue{memoryQueue: q, failed: make(chan struct{}, 1), waits: make(chan time.Duration, 8)}
}

func (q *deafQueue) Next(ctx context.Context, after uint64) (events.Input, uint64, error) {
	if q.deaf.Add(-1) >= 0 {
		select {
		case q.failed <- struct{}{}:
		default:
		}
		return events.Input{}, 0, fmt.Errorf("next input: %w", eventlog.ErrUnavailable)
	}
	return q.memoryQueue.Next(ctx, after)
}

// Again does not wait.
func (q *deafQueue) Again(d time.Duration) {
	q.waits <- d
	q.poke()
}

func (q *memoryQueue) poke() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

// TestDeafInbox keeps what a tool has done although the inbox did not answer while it ran, and finds the cancel that came
// meanwhile.
func TestDeafInbox(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		r := newRig(t, chatty())
		k := r.talk()
		q := newDeafQueue(k.q)
		var runs int
		r.use(
			&fake{name: "a", run: func(ctx context.Context, _ string) tools.Result {
				runs++
				q.deaf.Store(1)
				if cancelled {
					k.cancel(false)
				} else {
					q.poke()
				}
				<-q.failed
				if cancelled {
					<-ctx.Done()
				}
				return output("A")
			}},
			&fake{name: "b", run: func(context.Context, string) tools.Result { return output("B") }},
			&fake{name: "c", run: func(context.Context, string) tools.Result { return output("C") }},
		)
		k.prompt("work")
		l, err := openLoop(t.Context(), &r.cfg, k.id, k.log, q)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.rest(t.Context()); err != nil {
			t.Fatalf("cancelled %t: the loop was dropped: %v", cancelled, err)
		}
		if d := <-q.waits; d != time.Second || runs != 1 {
			t.Errorf("cancelled %t: looked again after %v, %d runs", cancelled, d, runs)
		}
		list, _ := k.all()
		got := strings.Join(trace(list), "; ")
		if want := "tool a; "; !strings.Contains(got, want) || !strings.Contains(got, "result a") {
			t.Errorf("cancelled %t: %s", cancelled, got)
		}
		if end := map[bool]string{false: "turn end completed", true: "turn end aborted user"}[cancelled]; !strings.HasSuffix(got, end) {
			t.Errorf("cancelled %t: %s", cancelled, got)
		}
	}
}

// TestAgain puts the token there when the time is over.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigless(t)
		s := newSession(&Worker{cfg: r}, newID())
		s.Again(time.Second)
		pass(time.Second - 1)
		synctest.Wait()
		if s.pending() {
			t.Error("the token came too early")
		}
		pass(time.Nanosecond)
		synctest.Wait()
		if !s.pending() {
			t.Error("the token did not come")
		}
	})
}

// newRigless returns a configuration that touches nothing outside.
func newRigless(t *testing.T) Config {
	t.Helper()
	set, err := tools.NewSet()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "w", Instance: newID(), Tools: set, Objects: objects.NewMemory(), NewID: newID}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func textInput(seq uint64, kind events.InputKind, bytes int) *input {
	return &input{seq: seq, Input: events.Input{ID: newID(), Kind: kind, Open: kind == events.InputPrompt, Content: []events.Block{events.Text(strings.Repeat("x", bytes))}}}
}

// TestBacklogBound keeps a part of what waits, and sees a cancel behind it all the same. It needs no log: nothing is used.
func TestBacklogBound(t *testing.T) {
	for _, tt := range []struct {
		name  string
		n     int
		bytes int
		kept  int
	}{
		{"many", 3 * maxWaiting, 1, maxWaiting},
		{"large", 100, mib, 47}, // each with some bytes around it
		{"few", 7, 1, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := newQueue()
			l := backlogLoop(t, q)
			l.cfg.MaxEventBytes = 8 * mib
			for i := range tt.n {
				q.inputs = append(q.inputs, textInput(uint64(i+1), events.InputPrompt, tt.bytes))
			}
			last := uint64(tt.n + 1)
			q.inputs = append(q.inputs, &input{seq: last, Input: events.Input{ID: newID(), Kind: events.InputCancel, KeepQueue: true}})
			for range 2 { // the second look finds the same
				if err := l.look(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(l.pending) != tt.kept+1 || l.stale {
					t.Fatalf("%d of %d wait, want %d and the cancel; stale %t", len(l.pending), tt.n, tt.kept, l.stale)
				}
				if in := l.cancelling(); in == nil || in.seq != last {
					t.Fatalf("the cancel was not seen: %+v", in)
				}
				if full := tt.kept < tt.n; full && l.seen != uint64(tt.kept) {
					t.Errorf("seen up to %d, kept %d", l.seen, tt.kept)
				}
			}
			for i := range tt.n { // as they are used the others follow, in order
				in := l.pending[0]
				if in.seq != uint64(i+1) {
					t.Fatalf("input %d comes at place %d", in.seq, i+1)
				}
				l.taken(in)
				if l.stale {
					if err := l.look(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(l.pending) != 1 || l.seen != last {
				t.Errorf("%d wait, seen up to %d", len(l.pending), l.seen)
			}
		})
	}
}

func backlogLoop(t *testing.T, q queue) *loop {
	t.Helper()
	cfg := newRigless(t)
	id := newID()
	log, err := eventlog.NewMemory(time.Now).Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLoop(t.Context(), &cfg, id, log, q)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestOpenerBehindBacklog finds the input that makes the session behind more than is kept.
func TestOpenerBehindBacklog(t *testing.T) {
	q := newQueue()
	for i := range 2 * maxWaiting {
		in := textInput(uint64(i+1), events.InputPrompt, 1)
		in.Open = false
		q.inputs = append(q.inputs, in)
	}
	opener := prompt(2*maxWaiting+1, "open")
	q.inputs = append(q.inputs, opener)
	l := backlogLoop(t, q)
	if err := l.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if in := l.first(func(p *input) bool { return p.Open }); in == nil || in.seq != opener.seq {
		t.Errorf("the opener was not seen: %+v", in)
	}
}

// TestInjectsAtRest drops those that are too many, with a cause, and sees the prompt behind them.
func TestInjectsAtRest(t *testing.T) {
	const extra = 3
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	for range maxInjects + extra {
		k.say(events.InputInject, "note")
	}
	k.rest()
	list, _ := k.all()
	var causes []string
	for _, e := range list {
		if b, ok := e.Body.(*events.InputDropped); ok {
			causes = append(causes, fmt.Sprint(b.Kind, " ", b.Claim.InboxSeq))
			if !strings.Contains(b.Cause, "1024 injects may wait") {
				t.Errorf("dropped because %s", b.Cause)
			}
		}
	}
	var want []string
	for i := range extra {
		want = append(want, fmt.Sprint("inject ", 2+maxInjects+i))
	}
	if diff := cmp.Diff(want, causes); diff != "" {
		t.Error(diff)
	}
	if n := len(k.l.pending); n != maxInjects {
		t.Errorf("%d wait", n)
	}
	k.prompt("two")
	k.rest()
	if n := len(k.l.pending); n != 0 {
		t.Errorf("%d wait behind the turn", n)
	}
}

// TestDecodingTakesTurns decodes few images at a time.
func TestDecodingTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newRigless(t)
		for range mostDecoding {
			cfg.decoding <- struct{}{}
		}
		done := make(chan error, 1)
		go func() {
			_, err := cfg.inspect([]byte("no image"))
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it did not wait for its turn: %v", err)
		default:
		}
		<-cfg.decoding
		if err := <-done; !errors.Is(err, images.ErrMediaType) {
			t.Errorf("error %v, want that it is no image", err)
		}
	})
}
