package verify_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// losing is an object store that loses everything when it is told to.
type losing struct {
	objects.Store
	lost atomic.Bool
}

func (l *losing) Get(ctx context.Context, d objects.Digest) ([]byte, error) {
	if l.lost.Load() {
		return nil, objects.ErrNotFound
	}
	return l.Store.Get(ctx, d)
}

// TestColdFinding loses objects when the requests that needed them have been checked. A cold check of the session finds it at
// the end of the next turn.
func TestColdFinding(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	cfg := b.config()
	store := &losing{Store: b.client.Objects()}
	cfg.Objects, cfg.ColdShare = store, 1
	_, kill := b.start(cfg)
	defer kill()
	firstTurn := slices.IndexFunc(s.log.Events, func(e events.Event) bool { return e.Type() == events.TypeTurnEnd })
	b.write(s, firstTurn+1)
	b.until("verdicts on the first turn", func() bool { return b.complete(s) })
	store.lost.Store(true)
	b.write(s, 1000)
	b.until("a cold finding", func() bool {
		return slices.ContainsFunc(b.verdicts(s.id), func(v audit.Verdict) bool { return v.Rule == audit.RuleCold })
	})
	for _, v := range b.verdicts(s.id) {
		if v.Rule == audit.RuleCold && (v.Kind != audit.KindLog || v.Result != audit.MissingObject) {
			t.Errorf("found %s", &v)
		}
	}
}

// TestColdSaysNothingTwice checks a session cold at the end of each of its turns, with a request in the first that does not
// match: that has its verdict, and a cold check finds nothing beside it.
func TestColdSaysNothingTwice(t *testing.T) {
	b := newBench(t)
	l := foldtest.New()
	body, requests := audittest.Bodies(), 0
	l.Body = func(r *fold.Request, source objects.Source) (string, events.BodyDigest) {
		codec, digest := body(r, source)
		if requests++; requests == 1 {
			digest.SHA256[0] ^= 1
		}
		return codec, digest
	}
	l.Begin()
	s := &session{id: l.State.ID(), log: l}
	cfg := b.config()
	cfg.ColdShare = 1
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	_, kill := b.start(cfg)
	for turn := range 4 {
		l.Turn("a", "b")
		b.write(s, 1000)
		b.until("a cold check", func() bool {
			return value(t, registry, "refold_verifier_cold_checks_total", "mismatch") >= float64(turn+1)
		})
	}
	kill()
	findings := 0
	for _, v := range b.verdicts(s.id) {
		if v.Result == audit.Match {
			continue
		}
		if findings++; v.Kind != audit.KindRequest || v.Result != audit.Mismatch {
			t.Errorf("found %s", &v)
		}
	}
	if findings != 1 {
		t.Errorf("%d findings", findings)
	}
}

// TestColdCalls: another verifier, whose verdicts count, has signed of each call that what passed the witness matches. Of one it
// does not: a cold check says so once, however often it is made, and says nothing of the calls that were never compared.
func TestColdCalls(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	calls := audittest.Of("", s.log).Calls()
	liar := newKey(t)
	after := uint64(0)
	for i, e := range calls {
		stream := e.Body.(*events.LLMStream)
		body := stream.Body
		if i == 1 {
			body = digestOf("another body")
		}
		place := w.saw(s.id, e.Seq, body, nil)
		hash, _ := e.Hash()
		said := audit.Verdict{
			Kind: audit.KindWire, Session: s.id, Seq: e.Seq, Event: e.ID, Chain: hash, Turn: stream.Turn, Step: stream.Step, Attempt: stream.Attempt,
			Result: audit.Match, Recorded: stream.Body, Rebuilt: stream.Body, Wire: stream.Body, Receipt: place, Time: 1,
		}
		if err := liar.Sign(&said); err != nil {
			t.Fatal(err)
		}
		payload, err := said.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if after, err = b.client.WireVerdicts().Append(t.Context(), s.id, fmt.Sprintf("%s.%d.wire", s.id, e.Seq), payload, after); err != nil {
			t.Fatal(err)
		}
	}
	b.write(s, 1000)
	cfg := w.config()
	cfg.ColdShare, cfg.Trusted = 1, []string{liar.Public()}
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	_, kill := b.start(cfg)
	b.until("a cold finding", func() bool {
		return slices.ContainsFunc(b.verdicts(s.id), func(v audit.Verdict) bool { return v.Rule == audit.RuleCold })
	})
	s.log.Turn("one", "more")
	b.write(s, 1000)
	b.until("another cold check", func() bool { return value(t, registry, "refold_verifier_cold_checks_total", "mismatch") >= 2 })
	kill()
	found := 0
	for _, v := range b.verdicts(s.id) {
		if v.Result == audit.Match {
			continue
		}
		if found++; v.Rule != audit.RuleCold || v.Result != audit.Mismatch || !strings.Contains(v.Reason, fmt.Sprintf("event %d: wire mismatch", calls[1].Seq)) {
			t.Errorf("found %s", &v)
		}
	}
	if found != 1 {
		t.Errorf("%d findings", found)
	}
}
