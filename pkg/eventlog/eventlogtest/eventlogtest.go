// Package eventlogtest is the conformance suite of [eventlog.Store]: every store of this module passes it, and a store
// written elsewhere should.
package eventlogtest

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Open returns the store under test. Each call may return the same store or a new view of the same storage; several
// views stand for several processes. It registers with t.Cleanup what must be cleaned up.
type Open func(t testing.TB) eventlog.Store

// Run runs the suite. A store that other tests share is fine: the suite makes sessions of its own.
func Run(t *testing.T, open Open) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, s *suite)
	}{
		{"Create", testCreate},
		{"CreateConcurrently", testCreateConcurrently},
		{"Open", testOpen},
		{"BadIDs", testBadIDs},
		{"AppendAndRead", testAppendAndRead},
		{"ReadRanges", testReadRanges},
		{"ReadStopsEarly", testReadStopsEarly},
		{"ReadEndsWhereItStarted", testReadEnd},
		{"PayloadsAreTheReceivers", testOwnership},
		{"Resend", testResend},
		{"ResendAfterOthers", testResendAfterOthers},
		{"SameIDOtherPayload", testOtherPayload},
		{"PlaceTaken", testPlaceTaken},
		{"PlaceBeyondTheEnd", testGap},
		{"SequenceZero", testSequenceZero},
		{"ConcurrentWritersOfOnePlace", testRace},
		{"Cancelled", testCancelled},
		{"Sessions", testSessions},
		{"SessionsWhileTheyCome", testSessionsChanging},
		{"LargePayload", testLarge},
		{"Writer", testWriter},
		{"WriterSurvivesRefusals", testWriterRefusals},
		{"WriterConcurrently", testWriterConcurrently},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, &suite{store: open(t), open: open}) })
	}
	RunTakeovers(t, open)
}

type suite struct {
	store eventlog.Store
	open  Open
}

// IDs returns a function that makes IDs which, most likely, nobody else has. It is safe for concurrent use.
func IDs() func() events.ID {
	var n atomic.Uint64
	n.Store(rand.Uint64N(1 << 63))
	return func() events.ID { return formatID(n.Add(1)) }
}

// formatID spells n in Crockford's base 32.
func formatID(n uint64) events.ID {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	id := []byte("00000000000000000000000000")
	for i := len(id) - 1; n > 0; i-- {
		id[i] = digits[n%32]
		n /= 32
	}
	return events.ID(id)
}

// freshSession returns the ID of a session that the suite has not used yet.
func freshSession() events.ID { return IDs()() }

// clock is a clock that a test may share.
func clock() time.Time { return time.UnixMilli(1_700_000_000_000) }

// create returns the log of a new session.
func (s *suite) create(t testing.TB) (events.ID, eventlog.Log) {
	t.Helper()
	id := freshSession()
	log, err := s.store.Create(t.Context(), id)
	if err != nil {
		t.Fatalf("create session: %v", err)
	}
	return id, log
}

// body returns the n-th body of a well-formed sequence of events.
func body(n uint64) events.Body {
	if n == 1 {
		return &events.SessionCreated{}
	}
	if n%2 == 0 {
		return &events.TurnStart{Turn: int64(n / 2)}
	}
	return &events.StepStart{Turn: int64(n / 2), Step: 1}
}

// event returns an event for a place, and its payload.
func event(t testing.TB, seq uint64, prev events.Hash, id events.ID, b events.Body) (*events.Event, []byte) {
	t.Helper()
	e := &events.Event{Seq: seq, ID: id, Time: clock().UnixMilli(), Prev: prev, Body: b}
	_, e.Ignorable = b.(*events.SessionTitle)
	payload, err := events.Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	return e, payload
}

// chain returns the n first events of a log, and their payloads.
func chain(t testing.TB, n uint64, ids func() events.ID) ([]*events.Event, [][]byte) {
	t.Helper()
	var (
		list     []*events.Event
		payloads [][]byte
		prev     events.Hash
	)
	for seq := uint64(1); seq <= n; seq++ {
		e, payload := event(t, seq, prev, ids(), body(seq))
		list, payloads = append(list, e), append(payloads, payload)
		prev = events.HashPayload(payload)
	}
	return list, payloads
}

// fill appends n events and returns them.
func fill(t testing.TB, log eventlog.Log, n uint64) ([]*events.Event, [][]byte) {
	t.Helper()
	list, payloads := chain(t, n, IDs())
	for i, e := range list {
		if err := log.Append(t.Context(), e, payloads[i]); err != nil {
			t.Fatalf("append event %d: %v", e.Seq, err)
		}
	}
	return list, payloads
}

// Verify reads the whole log and checks that it is what a log must be: no gap, every payload a canonical event that
// agrees with its message, an unbroken hash chain, and every ID once. It returns the events.
func Verify(t testing.TB, log eventlog.Log) []events.Event {
	t.Helper()
	var (
		list []events.Event
		prev events.Hash
	)
	seen := make(map[events.ID]uint64)
	for m, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if want := uint64(len(list) + 1); m.Seq != want {
			t.Fatalf("message %d came where message %d should", m.Seq, want)
		}
		e, err := m.Event()
		if err != nil {
			t.Fatal(err)
		}
		if e.Prev != prev {
			t.Fatalf("event %d does not follow event %d: the chain is broken", m.Seq, m.Seq-1)
		}
		if first, again := seen[e.ID]; again {
			t.Fatalf("event %s stands at %d and at %d", e.ID, first, e.Seq)
		}
		if m.Stored.IsZero() {
			t.Errorf("message %d was stored at no time", m.Seq)
		}
		seen[e.ID] = e.Seq
		prev = events.HashPayload(m.Payload)
		list = append(list, e)
	}
	return list
}
