package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/dumb"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestGone deletes the stream of a session that has verdicts. That is published once, however often verifiers start, and
// nothing is said of the other session. A session that comes back is not believed any more.
func TestGone(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	kept, deleted := newSession(1), newSession(2)
	for _, s := range []*session{kept, deleted} {
		b.putObjects(s)
		w.write(s, 1000)
	}
	v, kill := b.start(w.config())
	for _, s := range []*session{kept, deleted} {
		b.until("verdicts", func() bool { return w.settledAll(s) })
	}
	b.sweeps(v, 2)
	before := b.verdicts(deleted.id)
	b.deleteStream(deleted.id)
	b.until("the finding", func() bool { return len(b.verdicts(deleted.id)) > len(before) })
	b.sweeps(v, 4)
	kill()
	for range 2 {
		cfg := w.config()
		cfg.Key = newKey(t)
		v, kill := b.start(cfg)
		b.sweeps(v, 6)
		kill()
	}
	got := b.verdicts(deleted.id)
	if len(got) != len(before)+1 {
		t.Fatalf("%d verdicts, want one more than %d", len(got), len(before))
	}
	last := got[len(before)]
	if last.Kind != audit.KindLog || last.Result != audit.BrokenChain || last.Rule != audit.RuleGone || last.Seq != before[len(before)-1].Seq {
		t.Errorf("found %s", &last)
	}
	b.wantEach(kept)
	if got := b.strays(deleted.id); got != "" {
		t.Errorf("strays of a session that is gone: %s", got)
	}
}

// partial is a store whose listing does not answer, or leaves sessions out, or says of all that they are not there.
type partial struct {
	eventlog.Store
	fail, empty, unlisted, closed atomic.Bool
}

func (p *partial) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		if p.fail.Load() {
			yield(eventlog.Info{}, eventlog.ErrUnavailable)
			return
		}
		for info, err := range p.Store.Sessions(ctx) {
			switch {
			case p.empty.Load():
				return
			case p.unlisted.Load():
				info, err = eventlog.Info{ID: info.ID}, eventlog.ErrUnavailable
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

func (p *partial) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	if p.closed.Load() {
		return nil, eventlog.ErrUnavailable
	}
	return p.Store.Open(ctx, id)
}

// TestNotGone: whatever a listing leaves out or does not answer is no ground for an alarm.
func TestNotGone(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	b.write(s, 1000)
	cfg := b.config()
	cfg.Hints = nil
	store := &partial{Store: b.client.Logs()}
	cfg.Store = store
	var out bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
	v, kill := b.start(cfg)
	b.until("verdicts", func() bool { return b.complete(s) })
	store.empty.Store(true)
	b.sweeps(v, 6)
	store.closed.Store(true)
	b.sweeps(v, 6)
	store.empty.Store(false)
	store.closed.Store(false)
	store.unlisted.Store(true)
	b.until("a sweep that is not complete", func() bool { return v.Status().SweepErr != nil })
	store.unlisted.Store(false)
	b.sweeps(v, 1)
	store.fail.Store(true)
	b.until("a sweep that fails", func() bool { return v.Status().SweepErr != nil })
	store.fail.Store(false)
	b.sweeps(v, 5)
	kill()
	b.wantEach(s)
	if strings.Contains(out.String(), "not a match") {
		t.Errorf("said %s", out.String())
	}
}

// TestParentDoesNotAnswer: a fork whose parent's log gives no answer waits, is counted, and is checked when there is one.
func TestParentDoesNotAnswer(t *testing.T) {
	b := newBench(t)
	parent, fork := audittest.Forked()
	f := &session{id: fork.State.ID(), log: fork}
	b.putObjects(f)
	b.write(&session{id: parent.State.ID(), log: parent}, 1000)
	store := &silentParent{Store: b.client.Logs(), parent: parent.State.ID()}
	store.silent.Store(true)
	cfg := b.config()
	cfg.Store = store
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	_, kill := b.start(cfg)
	defer kill()
	b.write(f, 1000)
	b.until("a fork that cannot be checked, tried several times", func() bool {
		return value(t, registry, "refold_verifier_could_not_check_total", "parent") > 5 && value(t, registry, "refold_verifier_could_not_check", "") == 1
	})
	if got := b.verdicts(f.id); len(got) != 0 {
		t.Errorf("published %v", got)
	}
	store.silent.Store(false)
	b.until("verdicts", func() bool { return b.complete(f) })
	b.wantEach(f)
	b.until("nothing waits", func() bool { return value(t, registry, "refold_verifier_could_not_check", "") == 0 })
}

// silentParent is a store that does not answer about one session while that is only looked at as a parent: it is not listed.
type silentParent struct {
	eventlog.Store
	parent events.ID
	silent atomic.Bool
}

func (s *silentParent) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	if id == s.parent && s.silent.Load() {
		return nil, eventlog.ErrUnavailable
	}
	return s.Store.Open(ctx, id)
}

func (s *silentParent) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		for info, err := range s.Store.Sessions(ctx) {
			if info.ID != s.parent && !yield(info, err) {
				return
			}
		}
	}
}

// TestShadow folds every request a second time: an honest session has nothing to say, and a second fold that shows something
// else is reported once.
func TestShadow(t *testing.T) {
	for name, change := range map[string]func(r *dumb.Request){
		"agree":           nil,
		"another header":  func(r *dumb.Request) { r.Header.System += "?" },
		"one more":        func(r *dumb.Request) { r.Messages = append(r.Messages, r.Messages[0]) },
		"another message": func(r *dumb.Request) { r.Messages[0].Content = append(r.Messages[0].Content, events.Text("?")) },
		"another object":  func(r *dumb.Request) { r.Objects = append(r.Objects, objects.Ref{}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := &session{id: audittest.Whole().State.ID(), log: audittest.Whole()}
			b.putObjects(s)
			cfg := b.config()
			cfg.ShadowDumb = true
			registry := prometheus.NewPedanticRegistry()
			cfg.Registry = registry
			v, err := verify.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			v.SetSecondFold(func(log []events.Event, stream *events.LLMStream) (dumb.Request, error) {
				r, err := dumb.RequestOf(log, stream)
				if change != nil && stream.Attempt == 1 && len(r.Messages) > 1 {
					change(&r)
				}
				return r, err
			})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- v.Run(ctx) }()
			for s.next < len(s.log.Events) {
				b.write(s, 15)
				b.until("verdicts", func() bool { return b.complete(s) && v.Status().Lag == 0 })
			}
			if change == nil {
				b.until("a second fold", func() bool { return value(t, registry, "refold_verifier_shadow_requests_total", "match") >= 6 })
			} else {
				b.until("a second fold that differs", func() bool {
					return value(t, registry, "refold_verifier_shadow_requests_total", "invalid-log") >= 1 && b.ruled(s, audit.RuleShadow) == 1
				})
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			want := 1
			if change == nil {
				want = 0
			}
			if got := b.ruled(s, audit.RuleShadow); got != want {
				t.Errorf("%d verdicts, want %d: %s", got, want, fmt.Sprint(b.verdicts(s.id)))
			}
		})
	}
}

// ruled returns how many verdicts on the session have the rule.
func (b *bench) ruled(s *session, rule string) (n int) {
	for _, v := range b.verdicts(s.id) {
		if v.Rule == rule {
			n++
			if v.Kind != audit.KindLog || v.Result != audit.InvalidLog || v.Chain == (events.Hash{}) {
				b.t.Errorf("found %s", &v)
			}
		}
	}
	return n
}

// TestGoneElsewhere: a session of another partition is left alone.
func TestGoneElsewhere(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	b.write(s, 1000)
	_, kill := b.start(b.config())
	b.until("verdicts", func() bool { return b.complete(s) })
	kill()
	b.deleteStream(s.id)
	cfg := b.config()
	cfg.Partition = func(events.ID) bool { return false }
	cfg.Sweep = 10 * time.Millisecond
	v, kill := b.start(cfg)
	b.sweeps(v, 8)
	kill()
	b.wantEach(s)
}
