package verify_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// forge puts a record behind whatever the session has on its subject of verdicts.
func (b *bench) forge(id events.ID, payload []byte) {
	b.t.Helper()
	if _, err := b.client.Verdicts().Add(b.t.Context(), id, fmt.Sprintf("forged.%x", events.HashPayload(payload)), payload); err != nil {
		b.t.Fatal(err)
	}
}

// counterfeit returns a verdict on an event of the session, as a key that nobody knows signs it, changed afterwards.
func counterfeit(t *testing.T, id events.ID, change func(*audit.Verdict)) []byte {
	t.Helper()
	v := audit.Verdict{Kind: audit.KindHead, Session: id, Seq: 1 << 40, Event: foldtest.ID(1, 1), Chain: events.HashPayload([]byte("x")), Result: audit.Match, Time: 1}
	if err := newKey(t).Sign(&v); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&v)
	}
	payload, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// TestForgedVerdictHidesNoCall: a record that is no verdict to be believed, on the subject of a session without a log, does
// not keep calls that name that session from being reported.
func TestForgedVerdictHidesNoCall(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	cfg := w.config()
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry, cfg.Trusted = registry, []string{newKey(t).Public()}
	_, kill := b.start(cfg)
	defer kill()
	records := map[string]func(id events.ID) []byte{
		"garbage":            func(events.ID) []byte { return []byte("forged") },
		"a key not trusted":  func(id events.ID) []byte { return counterfeit(t, id, nil) },
		"another session":    func(events.ID) []byte { return counterfeit(t, foldtest.ID(9, 9), nil) },
		"a broken signature": func(id events.ID) []byte { return counterfeit(t, id, func(v *audit.Verdict) { v.Seq++ }) },
		"another's name": func(id events.ID) []byte {
			return counterfeit(t, id, func(v *audit.Verdict) { v.Verifier = b.key.Public() })
		},
	}
	n := uint64(0)
	for name, record := range records {
		n++
		id := foldtest.ID(7, n)
		b.forge(id, record(id))
		w.saw(id, 7, digestOf("a call"), nil)
		b.until(name, func() bool { return b.strays(id) == "7 mismatch unlogged" })
	}
	b.until("sessions that are shown as not to be believed", func() bool {
		return value(t, registry, "refold_verifier_unbelieved_sessions", "") == float64(len(records))
	})
}

// TestCallsOfASessionThatIsGone: what was looked at while there was a log is left to the finding that it is gone. Every other
// call that names the session is reported, also when somebody has put a record there that is no verdict.
func TestCallsOfASessionThatIsGone(t *testing.T) {
	for _, forge := range []bool{false, true} {
		b := newBench(t)
		w := b.witness()
		s := newSession(2)
		b.putObjects(s)
		w.saw(s.id, 0, digestOf("a file"), func(r *audit.Receipt) { r.Target = "/v1/files" })
		w.write(s, 1000)
		v, kill := b.start(w.config())
		b.until("verdicts", func() bool { return w.settledAll(s) })
		b.sweeps(v, 3)
		if forge {
			b.forge(s.id, []byte("forged"))
		}
		b.deleteStream(s.id)
		calls := audittest.Of("", s.log).Calls()
		last := calls[len(calls)-1].Seq
		w.saw(s.id, 9999, digestOf("a new call"), nil)
		w.saw(s.id, last, digestOf("another one in an old one's name"), nil)
		w.saw(s.id, 0, digestOf("one without an event"), nil)
		want := []string{"1 mismatch unlogged", "9999 mismatch unlogged", fmt.Sprintf("%d mismatch unlogged", last)}
		slices.Sort(want)
		found := func() bool {
			got := strings.Split(b.strays(s.id), ", ")
			slices.Sort(got)
			return slices.Equal(got, want)
		}
		b.until("the calls", found)
		kill()
		cfg := w.config() // which looks at all receipts anew
		registry := prometheus.NewPedanticRegistry()
		cfg.Registry = registry
		v, kill = b.start(cfg)
		b.sweeps(v, 6)
		kill()
		if !found() {
			t.Errorf("with a forged record %t: strays %s", forge, b.strays(s.id))
		}
	}
}

// inTheWay are records that let nothing be stored about a session, as when a message's ID was used before.
type inTheWay struct {
	verify.Records
	session events.ID
	on      atomic.Bool
	tries   atomic.Int64
}

func (i *inTheWay) Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (uint64, error) {
	if i.on.Load() && session == i.session {
		i.tries.Add(1)
		return 0, &jetstream.ConflictError{Session: session, ID: id}
	}
	return i.Records.Append(ctx, session, id, payload, after)
}

// TestStrayInTheWay: where a finding cannot be published the others are, and it is as soon as it can be.
func TestStrayInTheWay(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	cfg := w.config()
	strays := &inTheWay{Records: cfg.Witness.Strays, session: audit.NoSession} // the first one that is looked at
	strays.on.Store(true)
	cfg.Witness.Strays = strays
	other := foldtest.ID(5, 5)
	w.saw("", 0, digestOf("no session"), nil)
	w.saw(other, 7, digestOf("a call"), nil)
	v, kill := b.start(cfg)
	defer kill()
	b.until("the other finding", func() bool { return b.strays(other) == "7 mismatch unlogged" })
	b.until("another try in a later look", func() bool { return strays.tries.Load() > 4 })
	b.sweeps(v, 4)
	if err := v.Health(); err != nil && strings.Contains(err.Error(), "receipts") {
		t.Errorf("one record makes the verifier sick: %v", err)
	}
	strays.on.Store(false)
	b.until("the finding", func() bool { return b.strays(audit.NoSession) == "1 mismatch unlogged" })
}

// TestStrayIDIsTaken: nobody can use the ID of a stray verdict before it is published.
func TestStrayIDIsTaken(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	id := foldtest.ID(5, 5)
	place := w.saw(id, 7, digestOf("a call"), nil)
	for i, taken := range []string{
		fmt.Sprintf("%s.%d.stray", id, place), fmt.Sprintf("%s.%d.stray.%s", id, place, b.key.Public()),
	} {
		if _, err := b.client.Verdicts().Add(t.Context(), foldtest.ID(6, uint64(i)), taken, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	_, kill := b.start(w.config())
	defer kill()
	b.until("the finding", func() bool { return b.strays(id) == "7 mismatch unlogged" })
}

// TestRepeatedIsFound: two receipts of one call, in every order of their bodies, before and after the call's end.
func TestRepeatedIsFound(t *testing.T) {
	for _, ended := range []bool{false, true} {
		for _, other := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
			b := newBench(t)
			w := b.witness()
			s := newSession(1)
			b.putObjects(s)
			call := audittest.Of("", s.log).Calls()[1]
			w.write(s, int(call.Seq)-1)
			b.write(s, 1)
			for _, other := range other {
				body := call.Body.(*events.LLMStream).Body
				if other {
					body = digestOf("another")
				}
				w.saw(s.id, call.Seq, body, nil)
			}
			if ended {
				w.write(s, 1000)
			}
			v, kill := b.start(w.config())
			want := fmt.Sprintf("%d mismatch repeated", call.Seq)
			b.until("the repetition", func() bool { return strings.Contains(b.strays(s.id), want) })
			w.write(s, 1000)
			b.until("all verdicts", func() bool { return w.settledAll(s) })
			b.sweeps(v, 5)
			kill()
			if got := b.strays(s.id); strings.Count(got, "repeated") != 1 {
				t.Errorf("ended %t, other bodies %v: strays %s", ended, other, got)
			}
		}
	}
}

// inOrder records whose records are read, in which order.
type inOrder struct {
	verify.Records
	mu   sync.Mutex
	read []events.ID
}

func (o *inOrder) Read(ctx context.Context, session events.ID, from uint64) iter.Seq2[jetstream.Record, error] {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read = append(o.read, session)
	return o.Records.Read(ctx, session, from)
}

// TestReceiptsAtStart: after a start the calls without a session are looked at first, and then all sessions once.
func TestReceiptsAtStart(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	want := []events.ID{audit.NoSession}
	for n := range uint64(250) {
		id := foldtest.ID(5, n+1)
		want = append(want, id)
		w.saw(id, 7, events.BodyDigest{SHA256: events.HashPayload(nil)}, func(r *audit.Receipt) { r.Method = "GET" })
	}
	w.saw("", 0, events.BodyDigest{SHA256: events.HashPayload(nil)}, func(r *audit.Receipt) { r.Method = "GET" })
	slices.Sort(want)
	cfg := w.config()
	receipts := &inOrder{Records: cfg.Witness.Receipts}
	cfg.Witness.Receipts = receipts
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	v, kill := b.start(cfg)
	defer kill()
	b.until("a complete look", func() bool { return value(t, registry, "refold_verifier_receipts_look_timestamp_seconds", "") > 0 })
	b.until("all were looked at", func() bool { return value(t, registry, "refold_verifier_unread_sessions", "") == 0 })
	b.sweeps(v, 3)
	receipts.mu.Lock()
	defer receipts.mu.Unlock()
	if !slices.Equal(receipts.read, want) {
		t.Errorf("read %d sessions, want %d: %s", len(receipts.read), len(want), receipts.read)
	}
}

// TestManyReceipts: receipts of what does not exist, more than are held at once, hide neither each other nor what is honest.
func TestManyReceipts(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s := newSession(1)
	b.putObjects(s)
	const hostile = 1100
	for n := range uint64(hostile) {
		w.saw(s.id, 10_000+n, digestOf("no event"), nil)
	}
	w.write(s, 1000)
	_, kill := b.start(w.config())
	defer kill()
	b.until("all verdicts", func() bool { return w.settledAll(s) })
	for v := range strings.SplitSeq(b.wires(s.id), ", ") {
		if !strings.HasSuffix(v, " match") {
			t.Errorf("a call: %s", v)
		}
	}
	b.until("all findings", func() bool {
		counts, err := b.client.StrayVerdicts().Counts(t.Context())
		return err == nil && counts[s.id] == hostile
	})
}

// hanging are records that do not answer as long as they are told not to.
type hanging struct {
	verify.Records
	hang atomic.Bool
}

func (h *hanging) Counts(ctx context.Context) (map[events.ID]uint64, error) {
	if h.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Records.Counts(ctx)
}

// TestHealthOfLooks: looks that fail or hang show.
func TestHealthOfLooks(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	sick := func(v *verify.Verifier, with string) func() bool {
		return func() bool { err := v.Health(); return err != nil && strings.Contains(err.Error(), with) }
	}
	cfg := w.config()
	receipts := &hanging{Records: cfg.Witness.Receipts}
	cfg.Witness.Receipts = receipts
	v, kill := b.start(cfg)
	b.until("a first look", func() bool { return v.Health() == nil })
	receipts.hang.Store(true)
	b.until("a look at the receipts that hangs", sick(v, "receipts"))
	kill()

	cfg = w.config()
	var gone atomic.Bool
	cfg.Witness.Receipts = &awayRecords{cfg.Witness.Receipts, &gone}
	gone.Store(true)
	v, kill = b.start(cfg)
	b.until("looks at the receipts that fail", sick(v, "receipts"))
	gone.Store(false)
	b.until("health", func() bool { return v.Health() == nil })
	kill()

	cfg = w.config()
	verdicts := &hanging{Records: cfg.Verdicts}
	verdicts.hang.Store(true)
	cfg.Verdicts = verdicts
	v, kill = b.start(cfg)
	b.until("a look for sessions that are gone that hangs", sick(v, "gone"))
	kill()
	if err := v.Health(); errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
