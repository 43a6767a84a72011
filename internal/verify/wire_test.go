package verify_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// witness writes receipts as a witness does.
type witness struct {
	*bench
	key  *audit.Key
	made uint64
}

func (b *bench) witness() *witness { return &witness{bench: b, key: newKey(b.t)} }

// config returns the configuration of a verifier that believes the witness.
func (w *witness) config() verify.Config {
	cfg := w.bench.config()
	cfg.Witness = verify.Witness{
		Keys: []string{w.key.Public()}, Receipts: w.client.Receipts(), Wires: w.client.WireVerdicts(), Strays: w.client.StrayVerdicts(),
	}
	return cfg
}

// saw stores a receipt of a request, as change makes it, and returns its place.
func (w *witness) saw(id events.ID, seq uint64, body events.BodyDigest, change func(*audit.Receipt)) uint64 {
	w.t.Helper()
	w.made++
	r := audit.Receipt{
		Kind: audit.ReceiptRequest, Call: foldtest.ID(1_733_000_000_000, w.made), Session: id, Seq: seq, Method: "POST",
		Target: "/v1/chat/completions", Body: body, Time: 1_733_000_000_000,
	}
	if change != nil {
		change(&r)
	}
	if len(r.Signature) == 0 {
		if err := w.key.SignReceipt(&r); err != nil {
			w.t.Fatal(err)
		}
	}
	payload, err := r.Encode()
	if err != nil {
		w.t.Fatal(err)
	}
	if id = r.Session; id == "" {
		id = audit.NoSession
	}
	place, err := w.client.Receipts().Add(w.t.Context(), id, fmt.Sprintf("%s.request.%d", r.Call, w.made), payload)
	if err != nil {
		w.t.Fatal(err)
	}
	return place
}

// write appends up to n of the session's events, each call with its receipt.
func (w *witness) write(s *session, n int) bool {
	w.t.Helper()
	calls := audittest.Of("", s.log).Calls()
	for ; n > 0 && s.next < len(s.log.Events); n-- {
		w.bench.write(s, 1)
		e := &s.log.Events[s.next-1]
		if slices.ContainsFunc(calls, func(c events.Event) bool { return c.Seq == e.Seq }) {
			w.saw(s.id, e.Seq, e.Body.(*events.LLMStream).Body, nil)
		}
	}
	return s.next < len(s.log.Events)
}

func digestOf(s string) events.BodyDigest {
	return events.BodyDigest{Bytes: int64(len(s)), SHA256: events.HashPayload([]byte(s))}
}

// stored returns the verdicts of a kind about a session, with their places.
func (b *bench) stored(records *jetstream.Records, id events.ID) (out []audit.Verdict, places []uint64) {
	b.t.Helper()
	for record, err := range records.Read(b.t.Context(), id, 1) {
		if err != nil {
			b.t.Fatal(err)
		}
		v, err := audit.DecodeVerdict(record.Payload)
		if err == nil {
			err = v.Verify()
		}
		if err != nil {
			b.t.Fatal(err)
		}
		if want := fmt.Sprintf("%s.%d.%s", v.Session, v.Seq, v.Kind); v.Kind == audit.KindWire && record.ID != want {
			b.t.Errorf("a wire verdict has the ID %q, want %q", record.ID, want)
		}
		out, places = append(out, v), append(places, record.Seq)
	}
	return out, places
}

func (b *bench) wires(id events.ID) string  { return b.listed(b.client.WireVerdicts(), id) }
func (b *bench) strays(id events.ID) string { return b.listed(b.client.StrayVerdicts(), id) }

func (b *bench) listed(records *jetstream.Records, id events.ID) string {
	b.t.Helper()
	var out []string
	verdicts, _ := b.stored(records, id)
	for _, v := range verdicts {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%d %s %s", v.Seq, v.Result, v.Rule)))
	}
	return strings.Join(out, ", ")
}

// wantCalls checks that every call of what was written and has ended has exactly one wire verdict, a match, in order, and
// that the head of each turn stands behind those of its calls.
func (w *witness) wantCalls(s *session) {
	w.t.Helper()
	verdicts, places := w.stored(w.client.WireVerdicts(), s.id)
	var want []uint64
	for _, e := range audittest.Of("", s.log).Calls() {
		want = append(want, e.Seq)
	}
	var got []uint64
	for _, v := range verdicts {
		got = append(got, v.Seq)
		if v.Result != audit.Match || v.Wire != v.Recorded || v.Receipt == 0 || v.Kind != audit.KindWire || v.Event == "" {
			w.t.Errorf("session %s: %s", s.id, &v)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("session %s: wire verdicts on %d, want %d", s.id, got, want)
	}
	heads, headPlaces := w.stored(w.client.Verdicts(), s.id)
	for i, head := range heads {
		for j, v := range verdicts {
			if head.Kind == audit.KindHead && v.Seq < head.Seq && places[j] > headPlaces[i] {
				w.t.Errorf("session %s: the head of event %d stands before the call of event %d", s.id, head.Seq, v.Seq)
			}
		}
	}
	if got := w.strays(s.id); got != "" {
		w.t.Errorf("session %s: strays %s", s.id, got)
	}
}

// settledAll reports whether all that the session calls for is published.
func (w *witness) settledAll(s *session) bool {
	calls := audittest.Of("", s.log).Calls()
	newest, err := w.client.WireVerdicts().Last(w.t.Context(), s.id)
	if err != nil {
		return false
	}
	v, err := audit.DecodeVerdict(newest.Payload)
	return err == nil && v.Seq == calls[len(calls)-1].Seq && w.complete(s)
}

// TestWitnessedUnderLoad runs two verifiers over sessions of every kind, and kills them at random while the sessions grow.
func TestWitnessedUnderLoad(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	var sessions []*session
	for n := range uint64(8) {
		sessions = append(sessions, newSession(n))
	}
	parent, fork := audittest.Forked()
	sessions = append(sessions, &session{id: parent.State.ID(), log: parent}, &session{id: fork.State.ID(), log: fork})
	for _, s := range sessions {
		b.putObjects(s)
	}
	w.write(sessions[8], 1000) // before it is forked
	other := newKey(t)
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i := range uint64(2) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(i, 7))
			for {
				cfg := w.config()
				if i == 1 {
					cfg.Key, cfg.MaxSessions, cfg.Workers = other, 3, 2
				}
				_, kill := b.start(cfg)
				select {
				case <-stop:
					kill()
					return
				case <-time.After(time.Duration(5+random.IntN(80)) * time.Millisecond):
					kill()
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(3, 3))
	for open := len(sessions) - 1; open > 0; {
		s := sessions[random.IntN(len(sessions))]
		if s.next < len(s.log.Events) && !w.write(s, 1+random.IntN(6)) {
			open--
		}
	}
	close(stop)
	running.Wait()
	v, kill := b.start(w.config())
	defer kill()
	for _, s := range sessions {
		b.until("verdicts of session "+string(s.id), func() bool { return w.settledAll(s) })
	}
	b.sweeps(v, 4)
	for _, s := range sessions {
		b.wantEach(s)
		w.wantCalls(s)
	}
}

// sweeps waits until so many more sweeps are over.
func (b *bench) sweeps(v *verify.Verifier, n int) {
	b.t.Helper()
	for range n {
		last := v.Status().Swept
		b.until("a sweep", func() bool { return v.Status().Swept.After(last) })
	}
}

// TestStopsAnywhere writes a session event by event and stops the verifier behind each: nothing is missed, nothing twice.
func TestStopsAnywhere(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := &session{id: audittest.Whole().State.ID(), log: audittest.Whole()}
	b.putObjects(s)
	for more := true; more; {
		more = w.write(s, 3)
		cfg := w.config()
		cfg.Recheck = time.Hour
		v, kill := b.start(cfg)
		b.until("the end of the log", func() bool { st := v.Status(); return st.Lag == 0 && st.Sessions == 1 && !st.Swept.IsZero() })
		kill()
	}
	_, kill := b.start(w.config())
	defer kill()
	b.until("all verdicts", func() bool { return w.settledAll(s) })
	b.wantEach(s)
	w.wantCalls(s)
}

// TestWhatPassedDiffers has a worker that sends another body, one that goes around the witness, and receipts that nothing
// permits. Every finding is published once, however often verifiers start.
func TestWhatPassedDiffers(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	var calls []events.Event
	for s.next < len(s.log.Events) {
		b.write(s, 1)
		e := s.log.Events[s.next-1]
		stream, ok := e.Body.(*events.LLMStream)
		if !ok {
			continue
		}
		calls = append(calls, e)
		switch len(calls) {
		case 1, 2: // the first one fails
			w.saw(s.id, e.Seq, stream.Body, nil)
		case 3:
			w.saw(s.id, e.Seq, digestOf("another body"), nil)
		case 4: // around the witness
		case 5:
			w.saw(s.id, e.Seq, stream.Body, nil)
			w.saw(s.id, e.Seq, stream.Body, nil)
		}
	}
	unknown := foldtest.ID(5, 5)
	w.saw("", 0, digestOf("no session"), nil)
	w.saw("", 0, events.BodyDigest{SHA256: events.HashPayload(nil)}, func(r *audit.Receipt) { r.Method = "GET" })
	w.saw(unknown, 7, digestOf("no such session"), nil)
	w.saw(s.id, 2, digestOf("no call"), nil)
	w.saw(s.id, 9999, digestOf("no event"), nil)
	w.saw(s.id, 0, digestOf("a file"), func(r *audit.Receipt) { r.Target = "/v1/files" })
	w.saw(s.id, 0, digestOf("no event named"), nil)
	w.saw(unknown, 0, digestOf("a file"), func(r *audit.Receipt) { r.Target = "/v1/files" })
	w.saw(s.id, 9998, digestOf("somebody else's"), func(r *audit.Receipt) {
		if err := newKey(t).SignReceipt(r); err != nil {
			t.Fatal(err)
		}
	})
	w.saw(s.id, 9997, digestOf("forged"), func(r *audit.Receipt) { r.Witness, r.Signature = w.key.Public(), make([]byte, 64) })
	if _, err := b.client.Receipts().Add(t.Context(), s.id, "garbage", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	wires := fmt.Sprintf("%d match, %d match, %d mismatch wire, %d mismatch unwitnessed, %d match",
		calls[0].Seq, calls[1].Seq, calls[2].Seq, calls[3].Seq, calls[4].Seq)
	strays := fmt.Sprintf("1 mismatch unlogged, 1 mismatch unlogged, 1 mismatch unlogged, 1 mismatch unlogged, 2 mismatch unlogged, %d mismatch repeated, 9999 mismatch unlogged", calls[4].Seq)
	sorted := func(list string) string {
		items := strings.Split(list, ", ")
		slices.Sort(items)
		return strings.Join(items, ", ")
	}
	w.saw(s.id, 0, digestOf("no file"), func(r *audit.Receipt) { r.Target = "/v1/files?purpose=vision" })
	w.saw(s.id, 0, digestOf("no file"), func(r *audit.Receipt) { r.Target = "/v1/files/" })
	w.saw(s.id, 0, digestOf("no file"), func(r *audit.Receipt) { r.Target, r.Method = "/v1/files", "PUT" })
	for start := range 3 {
		cfg := w.config()
		registry := prometheus.NewPedanticRegistry()
		cfg.Registry = registry
		if start == 2 {
			cfg.Key, cfg.AuditAtStart = newKey(t), true
		}
		v, kill := b.start(cfg)
		b.until("all findings", func() bool {
			return b.wires(s.id) == wires && sorted(b.strays(s.id)) == strays && b.strays(unknown) == "7 mismatch unlogged, 1 mismatch unlogged"
		})
		b.until("the call without a session", func() bool { return b.strays(audit.NoSession) == "1 mismatch unlogged" })
		b.sweeps(v, 4)
		if got := b.wires(s.id); got != wires {
			t.Errorf("start %d: wire verdicts %s", start, got)
		}
		if got := b.strays(s.id); sorted(got) != strays {
			t.Errorf("start %d: stray verdicts %s", start, got)
		}
		if n := value(t, registry, "refold_verifier_uploads_total", ""); n != 1 {
			t.Errorf("start %d: %v uploads", start, n)
		}
		for _, reason := range []string{"malformed", "signature", "untrusted"} {
			b.until("receipts that are ignored as "+reason, func() bool {
				return value(t, registry, "refold_verifier_receipts_ignored_total", reason) >= 1
			})
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("metrics: %v %v", problems, err)
		}
		kill()
	}
	b.wantEach(s)
	verdicts, _ := b.stored(b.client.StrayVerdicts(), audit.NoSession)
	if v := verdicts[0]; v.Wire != digestOf("no session") || v.Receipt == 0 || !strings.Contains(v.Reason, "POST /v1/chat/completions") {
		t.Errorf("%+v", v)
	}
}

// TestLateReceipt: a call that the log gave up passes the witness afterwards, with another body.
func TestLateReceipt(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	call := audittest.Of("", s.log).Calls()[0]
	b.write(s, int(call.Seq)+1) // it has failed
	v, kill := b.start(w.config())
	defer kill()
	b.until("the end of the log", func() bool { return v.Status().Lag == 0 && b.complete(s) })
	w.saw(s.id, call.Seq, digestOf("late"), nil)
	b.until("the finding", func() bool { return b.strays(s.id) == fmt.Sprintf("%d mismatch wire", call.Seq) })
	if got := b.wires(s.id); got != "" {
		t.Errorf("wire verdicts %s", got)
	}
}

// TestReceiptsOutOfOrder: the receipt of a call may stand before that of an earlier one, which a verifier that starts in
// between must not take for absent.
func TestReceiptsOutOfOrder(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	calls := audittest.Of("", s.log).Calls()
	for _, call := range slices.Backward(calls) {
		w.saw(s.id, call.Seq, call.Body.(*events.LLMStream).Body, nil)
	}
	for more := true; more; {
		more = b.write(s, 1)
		v, kill := b.start(w.config())
		b.until("the end of the log", func() bool { st := v.Status(); return st.Lag == 0 && st.Sessions == 1 && !st.Swept.IsZero() })
		kill()
	}
	_, kill := b.start(w.config())
	defer kill()
	b.until("all verdicts", func() bool { return b.complete(s) })
	if got := b.wires(s.id); got == "" || strings.Contains(got, "mismatch") {
		t.Errorf("wire verdicts %s", got)
	}
}

// TestWitnessFromNowOn: what was checked before there was a witness needs none; what comes then does.
func TestWitnessFromNowOn(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	calls := audittest.Of("", s.log).Calls()
	end := slices.IndexFunc(s.log.Events, func(e events.Event) bool { return e.Type() == events.TypeTurnEnd }) + 1
	b.write(s, end)
	_, kill := b.start(b.config())
	b.until("verdicts without a witness", func() bool { return b.complete(s) })
	kill()
	_, kill = b.start(w.config())
	defer kill()
	w.write(s, 1000)
	last := calls[len(calls)-1].Seq
	b.until("a verdict on the last call", func() bool { return b.wires(s.id) == fmt.Sprintf("%d match", last) && b.complete(s) })
	b.wantEach(s)
}

// awayRecords are records that may not answer.
type awayRecords struct {
	verify.Records
	gone *atomic.Bool
}

var errAway = errors.New("away")

func (a *awayRecords) Read(ctx context.Context, session events.ID, from uint64) iter.Seq2[jetstream.Record, error] {
	if a.gone.Load() {
		return func(yield func(jetstream.Record, error) bool) { yield(jetstream.Record{}, errAway) }
	}
	return a.Records.Read(ctx, session, from)
}

func (a *awayRecords) Counts(ctx context.Context) (map[events.ID]uint64, error) {
	if a.gone.Load() {
		return nil, errAway
	}
	return a.Records.Counts(ctx)
}

// TestWitnessComesBack: receipts that cannot be read are no finding. The call waits, and with it everything behind its end.
func TestWitnessComesBack(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	cfg := w.config()
	var gone atomic.Bool
	gone.Store(true)
	cfg.Witness.Receipts = &awayRecords{cfg.Witness.Receipts, &gone}
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	_, kill := b.start(cfg)
	defer kill()
	w.write(s, 1000)
	b.until("a call that cannot be checked, tried several times", func() bool {
		return value(t, registry, "refold_verifier_could_not_check", "") == 1 && value(t, registry, "refold_verifier_could_not_check_total", "witness") > 5
	})
	if got := b.verdicts(s.id); len(got) != 1 || b.wires(s.id) != "" { // the request's own
		t.Errorf("published %v, %s", got, b.wires(s.id))
	}
	gone.Store(false)
	b.until("all verdicts", func() bool { return w.settledAll(s) })
	b.wantEach(s)
	w.wantCalls(s)
	b.until("nothing waits", func() bool { return value(t, registry, "refold_verifier_could_not_check", "") == 0 })
}

// TestWitnessConfig: a verifier that is given a witness needs its streams.
func TestWitnessConfig(t *testing.T) {
	b := newBench(t)
	cfg := b.witness().config()
	cfg.Witness.Strays = nil
	if _, err := verify.New(cfg); err == nil {
		t.Error("a witness without a place for strays is accepted")
	}
}

// TestAccusedOnce: what passed for a call differs from what the log recorded, and it is a receipt that says so before the log
// shows the end of the call, or after the log has shown that the call failed. Whoever folds the log again then, in whatever
// state it is, accuses nobody of it a second time, and neither does a check of the whole session.
func TestAccusedOnce(t *testing.T) {
	failed := func(e *events.Event) bool { return e.Type() == events.TypeLLMFailed }
	for name, tt := range map[string]struct {
		before func(e *events.Event) bool // the receipt comes before this event
		more   int                        // events that the log has then, from that one on
	}{
		"the call goes on":                {failed, 0},
		"it has failed":                   {failed, 1},
		"another attempt goes on":         {failed, 4},
		"another attempt has its verdict": {failed, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			w := b.witness()
			s := newSession(1)
			b.putObjects(s)
			end := slices.IndexFunc(s.log.Events, func(e events.Event) bool { return tt.before(&e) })
			b.write(s, end)
			call := s.log.Events[slices.IndexFunc(s.log.Events, func(e events.Event) bool { return e.Type() == events.TypeLLMStream })]
			for n := tt.more; n > 0 && s.next < len(s.log.Events); n-- {
				w.writeAfter(s, call.Seq)
			}
			v, kill := b.start(w.config())
			b.until("the end of the log", func() bool { return v.Status().Lag == 0 && b.complete(s) })
			place := w.saw(s.id, call.Seq, digestOf("another body"), nil)
			found := func() (list []audit.Verdict) {
				for _, records := range []*jetstream.Records{b.client.WireVerdicts(), b.client.StrayVerdicts()} {
					verdicts, _ := b.stored(records, s.id)
					for _, v := range verdicts {
						if v.Result != audit.Match {
							list = append(list, v)
						}
					}
				}
				return list
			}
			b.until("the finding", func() bool { return len(found()) > 0 })
			kill()
			for more := true; more; {
				more = w.writeAfter(s, call.Seq)
				cfg := w.config()
				cfg.AuditAtStart = true
				v, kill := b.start(cfg)
				b.until("the end of the log", func() bool { return audited(v) && b.complete(s) })
				b.sweeps(v, 1)
				kill()
			}
			if got := found(); len(got) != 1 || got[0].Receipt != place || got[0].Seq != call.Seq || got[0].Rule != audit.RuleWire {
				t.Errorf("found %v", got)
			}
			b.wantEach(s)
			if got := w.checked(s); len(got) != 1 || got[0].Receipt != place {
				t.Errorf("a check of the whole session finds %v", got)
			}
		})
	}
}

// checked checks the whole session against everything that was signed, and returns what is found.
func (w *witness) checked(s *session) (found []audit.Verdict) {
	w.t.Helper()
	check := audittest.Of("", s.log).LogCheck()
	for _, records := range []*jetstream.Records{w.client.Verdicts(), w.client.WireVerdicts(), w.client.StrayVerdicts()} {
		verdicts, _ := w.stored(records, s.id)
		check.Prior = append(check.Prior, verdicts...)
	}
	for record, err := range w.client.Receipts().Read(w.t.Context(), s.id, 1) {
		if err != nil {
			w.t.Fatal(err)
		}
		r, err := audit.DecodeReceipt(record.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		check.Receipts = append(check.Receipts, audit.PlacedReceipt{Place: record.Seq, Receipt: r})
	}
	check.Witnesses = []string{w.key.Public()}
	report, err := audit.CheckLog(w.t.Context(), check)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range report.Verdicts {
		if v.Result != audit.Match {
			found = append(found, v)
		}
	}
	return found
}

// writeAfter appends the session's next event, and the receipt of each call behind the event seq.
func (w *witness) writeAfter(s *session, seq uint64) (more bool) {
	w.t.Helper()
	if s.next >= len(s.log.Events) {
		return false
	}
	if s.log.Events[s.next].Seq > seq {
		return w.write(s, 1)
	}
	return w.bench.write(s, 1)
}
