package audit_test

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// saw stores the receipt of a request, as a witness does before the provider has it all. odd says that nothing permits it.
func (l *load) saw(session events.ID, seq uint64, body events.BodyDigest, odd string) error {
	r := audit.Receipt{
		Kind: audit.ReceiptRequest, Call: newID(), Session: session, Seq: seq, Method: "POST", Target: "/v1/chat/completions", Body: body,
		Time: time.Now().UnixMilli(),
	}
	if err := l.witness.SignReceipt(&r); err != nil {
		return err
	}
	payload, err := r.Encode()
	if err != nil {
		return err
	}
	place, err := l.client.Receipts().Add(l.t.Context(), max(session, audit.NoSession), string(r.Call)+".request", payload)
	if err == nil && odd != "" {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.odd[place] = odd
	}
	return err
}

// pass stores what a witness sees of the session's event that was appended last: the call that it permits, and now and then
// something that nothing permits.
func (l *load) pass(g *growing, e *events.Event) error {
	b, ok := e.Body.(*events.LLMStream)
	if !ok || e.Seq <= g.copied() {
		return nil
	}
	if err := l.saw(g.id, e.Seq, b.Body, ""); err != nil {
		return err
	}
	g.calls++
	switch {
	case g.calls%5 == 0 && b.Body.Bytes > 0:
		return l.saw(g.id, e.Seq, b.Body, audit.RuleRepeated)
	case g.calls%7 == 0:
		return l.saw(g.id, 1<<40+e.Seq, nobodys(), audit.RuleUnlogged)
	case g.calls%11 == 0:
		return l.saw("", 0, nobodys(), audit.RuleUnlogged)
	}
	return nil
}

// nobodys is the digest of a body that no log records.
func nobodys() events.BodyDigest {
	return events.BodyDigest{Bytes: 7, SHA256: events.HashPayload([]byte("nobodys"))}
}

// copied returns the sequence of the last event that the session has from its parent.
func (g *growing) copied() uint64 {
	if b, ok := g.session.Events[0].Body.(*events.SessionCreated); ok && b.SeedLength > 0 {
		return b.SeedLength + 1
	}
	return 0
}

// stand stands a witness before a provider and returns its address.
func (l *load) stand(provider string) string {
	l.t.Helper()
	w, err := witness.New(witness.Config{
		Upstream: provider, Key: l.witness, Requests: l.client.Receipts(), Answers: l.client.AnswerReceipts(), NewID: newID,
		Registry: prometheus.NewRegistry(),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(w.Close)
	web := httptest.NewServer(w)
	l.t.Cleanup(web.Close)
	return web.URL
}

// settled returns the sequences of the session's own calls whose end the log shows, in order, and how many of these were
// answered.
func (l *load) settled(messages []eventlog.Message) (calls []uint64, answered int) {
	l.t.Helper()
	var copied, open uint64
	var purpose events.Purpose
	for i := range messages {
		e, err := messages[i].Event()
		if err != nil {
			l.t.Fatal(err)
		}
		failed := false
		switch b := e.Body.(type) {
		case *events.SessionCreated:
			if b.SeedLength > 0 {
				copied = b.SeedLength + 1
			}
			continue
		case *events.LLMStream:
			if open, purpose = e.Seq, b.Purpose; e.Seq <= copied {
				open = 0
			}
			continue
		case *events.LLMFailed:
			failed = true
		case *events.AssistantChunk, *events.AssistantMessage, *events.CompactionSummary:
		case *events.SessionTitle:
			if purpose != events.PurposeTitle {
				continue
			}
		default:
			continue
		}
		if open > 0 {
			calls = append(calls, open)
			if !failed {
				answered++
			}
		}
		open = 0
	}
	return calls, answered
}

// compared reports whether the session's last call that has ended has its wire verdict.
func (l *load) compared(id events.ID, messages []eventlog.Message) bool {
	calls, _ := l.settled(messages)
	if len(calls) == 0 {
		return true
	}
	last, err := l.client.WireVerdicts().Last(l.t.Context(), id)
	if err != nil {
		return false
	}
	v, err := decoded(&last)
	return err == nil && v.Seq >= calls[len(calls)-1]
}

// reported reports whether there are as many stray verdicts as receipts that nothing permits.
func (l *load) reported() bool {
	l.t.Helper()
	counts, err := l.client.StrayVerdicts().Counts(l.t.Context())
	n := uint64(0)
	for _, of := range counts {
		n += of
	}
	return err == nil && n >= uint64(len(l.odd))
}

// checkWitness compares all verdicts on calls and receipts with all logs: one on each call that has ended, all matches, in
// order; one on each receipt that nothing permits; and nothing else.
func (l *load) checkWitness(total *counts) {
	l.t.Helper()
	wires := l.bySession(l.client.WireVerdicts())
	for _, id := range l.all {
		calls, answered := l.settled(l.messages(id))
		total.answered += answered
		total.calls += len(calls)
		var got []uint64
		for _, v := range wires[id] {
			got = append(got, v.Seq)
			if v.Kind != audit.KindWire || v.Result != audit.Match || v.Wire != v.Recorded || v.Receipt == 0 {
				l.t.Errorf("session %s: %s", id, &v)
			}
		}
		delete(wires, id)
		if !slices.Equal(got, calls) {
			l.t.Errorf("session %s: wire verdicts on events %d, want %d", id, got, calls)
		}
	}
	if len(wires) > 0 {
		l.t.Errorf("wire verdicts on %d sessions that there are not", len(wires))
	}
	seen := make(map[uint64]bool)
	for id, verdicts := range l.bySession(l.client.StrayVerdicts()) {
		for _, v := range verdicts {
			total.strays++
			if v.Kind != audit.KindStray || v.Session != id || seen[v.Receipt] || v.Rule != l.odd[v.Receipt] {
				l.t.Errorf("session %s: the receipt at place %d is %q: %s", id, v.Receipt, l.odd[v.Receipt], &v)
			}
			seen[v.Receipt] = true
		}
	}
	if len(seen) != len(l.odd) {
		l.t.Errorf("%d receipts are stray, want %d", len(seen), len(l.odd))
	}
}

// bySession returns all verdicts of a kind, by session, in order.
func (l *load) bySession(records *jetstream.Records) map[events.ID][]audit.Verdict {
	l.t.Helper()
	out := make(map[events.ID][]audit.Verdict)
	for r, err := range records.Read(l.t.Context(), "", 1) {
		if err != nil {
			l.t.Fatal(err)
		}
		v, err := decoded(&r)
		if err == nil && v.Session != r.Session {
			err = fmt.Errorf("it is about session %s", v.Session)
		}
		if err != nil {
			l.t.Fatalf("place %d: %v", r.Seq, err)
		}
		out[r.Session] = append(out[r.Session], v)
	}
	return out
}
