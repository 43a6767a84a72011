package eventlogtest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func testAppendAndRead(t *testing.T, s *suite) {
	_, log := s.create(t)
	want, payloads := fill(t, log, 50)
	got := Verify(t, log)
	if len(got) != len(want) {
		t.Fatalf("read %d events, appended %d", len(got), len(want))
	}
	i := 0
	for m, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if m.ID != want[i].ID || m.Type != want[i].Type() || !bytes.Equal(m.Payload, payloads[i]) {
			t.Fatalf("message %d is %s %s %q, appended was %s %s %q", m.Seq, m.Type, m.ID, m.Payload, want[i].Type(), want[i].ID, payloads[i])
		}
		i++
	}
	if last, err := log.Last(t.Context()); err != nil || last != 50 {
		t.Fatalf("Last() = %d, %v, want 50", last, err)
	}
}

func testReadRanges(t *testing.T, s *suite) {
	_, log := s.create(t)
	if got := Verify(t, log); len(got) != 0 {
		t.Fatalf("an empty log has %d events", len(got))
	}
	fill(t, log, 10)
	for _, tt := range []struct {
		from, first uint64
		n           int
		gap         bool
	}{{0, 1, 10, false}, {1, 1, 10, false}, {4, 4, 7, false}, {10, 10, 1, false}, {11, 0, 0, false}, {12, 0, 0, true}, {1 << 62, 0, 0, true}} {
		var (
			got []uint64
			err error
		)
		for m, e := range log.Read(t.Context(), tt.from) {
			if err = e; err != nil {
				break
			}
			got = append(got, m.Seq)
		}
		if errors.Is(err, eventlog.ErrGap) != tt.gap || err != nil && !tt.gap {
			t.Errorf("from %d: error = %v, want a gap: %t", tt.from, err, tt.gap)
		}
		if len(got) != tt.n || tt.n > 0 && (got[0] != tt.first || got[len(got)-1] != 10) {
			t.Errorf("from %d: read %v", tt.from, got)
		}
	}
}

func testReadStopsEarly(t *testing.T, s *suite) {
	_, log := s.create(t)
	fill(t, log, 20)
	for range 3 {
		n := 0
		for _, err := range log.Read(t.Context(), 1) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 5 {
				break
			}
		}
	}
	if got := Verify(t, log); len(got) != 20 {
		t.Fatalf("%d events after readers that stopped early", len(got))
	}
}

func testReadEnd(t *testing.T, s *suite) {
	_, log := s.create(t)
	list, payloads := chain(t, 6, IDs())
	for i := range 3 {
		if err := log.Append(t.Context(), list[i], payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	read := 0
	for _, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if read++; read <= 3 { // grow the log while it is read
			if err := log.Append(t.Context(), list[2+read], payloads[2+read]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if read != 3 {
		t.Fatalf("read %d messages, the log had 3 when the iteration started", read)
	}
}

func testOwnership(t *testing.T, s *suite) {
	_, log := s.create(t)
	e, payload := event(t, 1, events.Hash{}, IDs()(), body(1))
	want := bytes.Clone(payload)
	if err := log.Append(t.Context(), e, payload); err != nil {
		t.Fatal(err)
	}
	clear(payload)
	for range 2 {
		for m, err := range log.Read(t.Context(), 1) {
			if err != nil || !bytes.Equal(m.Payload, want) {
				t.Fatalf("payload %q, %v, want %q", m.Payload, err, want)
			}
			clear(m.Payload)
		}
	}
}

func testResend(t *testing.T, s *suite) {
	_, log := s.create(t)
	list, payloads := chain(t, 3, IDs())
	for i, e := range list {
		for range 3 {
			if err := log.Append(t.Context(), e, payloads[i]); err != nil {
				t.Fatalf("append event %d again: %v", e.Seq, err)
			}
		}
	}
	if got := Verify(t, log); len(got) != 3 {
		t.Fatalf("%d events, appended 3", len(got))
	}
}

func testResendAfterOthers(t *testing.T, s *suite) {
	_, log := s.create(t)
	list, payloads := fill(t, log, 10)
	for i, e := range list {
		if err := log.Append(t.Context(), e, payloads[i]); err != nil {
			t.Fatalf("append event %d again, later: %v", e.Seq, err)
		}
	}
	if got := Verify(t, log); len(got) != 10 {
		t.Fatalf("%d events, appended 10", len(got))
	}
}

func testOtherPayload(t *testing.T, s *suite) {
	_, log := s.create(t)
	id := IDs()()
	e, payload := event(t, 1, events.Hash{}, id, body(1))
	if err := log.Append(t.Context(), e, payload); err != nil {
		t.Fatal(err)
	}
	other, otherPayload := event(t, 1, events.Hash{}, id, &events.SessionCreated{Preset: "other"})
	err := log.Append(t.Context(), other, otherPayload)
	if !errors.Is(err, eventlog.ErrCorrupt) {
		t.Fatalf("another payload under the same ID: %v, want ErrCorrupt", err)
	}
}

func testPlaceTaken(t *testing.T, s *suite) {
	session, log := s.create(t)
	list, payloads := fill(t, log, 5)
	for _, seq := range []uint64{1, 3, 5} {
		e, payload := event(t, seq, events.Hash{}, IDs()(), body(seq))
		err := log.Append(t.Context(), e, payload)
		var lost *eventlog.LostError
		if !errors.Is(err, eventlog.ErrLostOwnership) || !errors.As(err, &lost) {
			t.Fatalf("a taken place: %v, want a LostError", err)
		}
		want := eventlog.LostError{Session: session, Seq: seq, Other: list[seq-1].ID, Type: list[seq-1].Type()}
		if *lost != want {
			t.Errorf("lost to %+v, want %+v", *lost, want)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	}
	if got := Verify(t, log); len(got) != len(payloads) {
		t.Fatalf("%d events, appended %d", len(got), len(payloads))
	}
}

func testGap(t *testing.T, s *suite) {
	_, log := s.create(t)
	for _, filled := range []uint64{0, 3} {
		if filled > 0 {
			fill(t, log, filled)
		}
		e, payload := event(t, filled+2, events.Hash{}, IDs()(), body(filled+2))
		err := log.Append(t.Context(), e, payload)
		var gap *eventlog.GapError
		if !errors.Is(err, eventlog.ErrGap) || !errors.As(err, &gap) || gap.Want != filled+1 {
			t.Fatalf("append beyond the end of %d: %v, want a GapError", filled, err)
		}
	}
	if got := Verify(t, log); len(got) != 3 {
		t.Fatalf("%d events, appended 3", len(got))
	}
}

func testSequenceZero(t *testing.T, s *suite) {
	_, log := s.create(t)
	e, payload := event(t, 1, events.Hash{}, IDs()(), body(1))
	e.Seq = 0
	if err := log.Append(t.Context(), e, payload); !errors.Is(err, events.ErrInvalid) {
		t.Fatalf("sequence 0: %v, want ErrInvalid", err)
	}
}

func testRace(t *testing.T, s *suite) {
	id, log := s.create(t)
	const writers, rounds = 4, 10
	var prev events.Hash
	for seq := uint64(1); seq <= rounds; seq++ {
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			won  int
			hash events.Hash
		)
		for range writers {
			other, err := s.open(t).Open(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			e, payload := event(t, seq, prev, IDs()(), body(seq))
			wg.Go(func() {
				err := other.Append(t.Context(), e, payload)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won++
					hash = events.HashPayload(payload)
				case !errors.Is(err, eventlog.ErrLostOwnership):
					t.Errorf("event %d: %v, want success or ErrLostOwnership", seq, err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Fatalf("%d of %d writers won event %d", won, writers, seq)
		}
		prev = hash
	}
	if got := Verify(t, log); len(got) != rounds {
		t.Fatalf("%d events, want %d", len(got), rounds)
	}
}

func testCancelled(t *testing.T, s *suite) {
	id, log := s.create(t)
	e, payload := event(t, 1, events.Hash{}, IDs()(), body(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := log.Append(ctx, e, payload); !errors.Is(err, context.Canceled) {
		t.Errorf("Append: %v", err)
	}
	if _, err := s.store.Create(ctx, freshSession()); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
	if _, err := s.store.Open(ctx, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v", err)
	}
	if _, err := log.Last(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Last: %v", err)
	}
	fill(t, log, 3)
	var last error
	for _, err := range log.Read(ctx, 1) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("Read: %v", last)
	}
	for _, err := range s.store.Sessions(ctx) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("Sessions: %v", last)
	}
	if got := Verify(t, log); len(got) != 3 {
		t.Fatalf("%d events, want 3", len(got))
	}
}

func testLarge(t *testing.T, s *suite) {
	_, log := s.create(t)
	text := strings.Repeat("0123456789abcdef", 32<<10) // 512 KiB
	var prev events.Hash
	for seq := uint64(1); seq <= 20; seq++ {
		b := body(seq)
		if seq > 1 {
			b = &events.SessionTitle{Title: text}
		}
		e, payload := event(t, seq, prev, IDs()(), b)
		if err := log.Append(t.Context(), e, payload); err != nil {
			t.Fatal(err)
		}
		prev = events.HashPayload(payload)
	}
	if got := Verify(t, log); len(got) != 20 {
		t.Fatalf("%d events, want 20", len(got))
	}
}
