package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// run runs a service and returns a function that ends it.
func run(t *testing.T, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- service(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// patience is how long the last verifier may take.
const patience = time.Minute

// await waits until the worker has answered and every session's newest verdict is about its last event that calls for one.
func (l *load) await() {
	l.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	until := func(what string, holds func() bool) {
		for !holds() {
			select {
			case <-tick.C:
			case <-deadline:
				l.t.Fatalf("not in time: %s", what)
			}
		}
	}
	for _, id := range l.all {
		until("verdicts on session "+string(id), func() bool { return l.judged(id) })
	}
	until("verdicts on all receipts that nothing permits", l.reported)
}

func (l *load) judged(id events.ID) bool {
	l.t.Helper()
	var due uint64
	turns := 0
	messages := l.messages(id)
	for _, m := range messages {
		if audittest.KindOf(m.Type) != "" {
			due = m.Seq
		}
		if m.Type == events.TypeTurnEnd {
			turns++
		}
	}
	for _, spoken := range l.spoken {
		if id == spoken && turns < l.sent {
			return false
		}
	}
	last, err := l.client.Verdicts().Last(l.t.Context(), id)
	if err != nil {
		return false
	}
	v, err := audit.DecodeVerdict(last.Payload)
	return err == nil && v.Seq >= due && l.compared(id, messages)
}

// messages returns the session's log as the server has it, nothing when there is none yet.
func (l *load) messages(id events.ID) (all []eventlog.Message) {
	l.t.Helper()
	log, err := l.client.Logs().Open(l.t.Context(), id)
	if err != nil {
		return nil
	}
	for m, err := range log.Read(l.t.Context(), 1) {
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// counts is what was found in the end.
type counts struct{ sessions, events, requests, heads, calls, answered, strays int }

// check compares all verdicts with all logs: one for each event that calls for one, all of them matches, in order, and
// nothing else.
func (l *load) check() (total counts) {
	l.t.Helper()
	verdicts := make(map[events.ID][]audit.Verdict)
	var place uint64
	for r, err := range l.client.Verdicts().Read(l.t.Context(), "", 1) {
		if err != nil {
			l.t.Fatal(err)
		}
		if r.Seq <= place {
			l.t.Errorf("place %d comes behind %d", r.Seq, place)
		}
		place = r.Seq
		v, err := decoded(&r)
		if err != nil {
			l.t.Fatalf("place %d: %v", r.Seq, err)
		}
		verdicts[r.Session] = append(verdicts[r.Session], v)
	}
	for _, id := range l.all {
		total.sessions++
		left := verdicts[id]
		delete(verdicts, id)
		for _, m := range l.messages(id) {
			total.events++
			kind := audittest.KindOf(m.Type)
			switch kind {
			case audit.KindRequest:
				total.requests++
			case audit.KindHead:
				total.heads++
			default:
				continue
			}
			if len(left) == 0 {
				l.t.Errorf("session %s: no verdict on event %d", id, m.Seq)
				continue
			}
			v := &left[0]
			if left = left[1:]; v.Seq != m.Seq || v.Kind != kind || v.Result != audit.Match || v.Chain != events.HashPayload(m.Payload) || v.Event != m.ID {
				l.t.Errorf("session %s: event %d: %s", id, m.Seq, v)
			}
		}
		for i := range left {
			l.t.Errorf("session %s: one verdict too many: %s", id, &left[i])
		}
	}
	if len(verdicts) > 0 {
		l.t.Errorf("verdicts on %d sessions that there are not", len(verdicts))
	}
	l.checkWitness(&total)
	return total
}

func decoded(r *jetstream.Record) (audit.Verdict, error) {
	v, err := audit.DecodeVerdict(r.Payload)
	if err != nil {
		return v, err
	}
	return v, v.Verify()
}
