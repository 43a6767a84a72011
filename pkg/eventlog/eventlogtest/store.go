package eventlogtest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func testCreate(t *testing.T, s *suite) {
	id, log := s.create(t)
	if last, err := log.Last(t.Context()); err != nil || last != 0 {
		t.Fatalf("a new log: Last() = %d, %v", last, err)
	}
	fill(t, log, 3)
	again, err := s.store.Create(t.Context(), id)
	if err != nil {
		t.Fatalf("create again: %v", err)
	}
	if got := Verify(t, again); len(got) != 3 {
		t.Fatalf("the log created again has %d events, want 3", len(got))
	}
}

func testCreateConcurrently(t *testing.T, s *suite) {
	id := freshSession()
	logs := make([]eventlog.Log, 4)
	var wg sync.WaitGroup
	for i := range logs {
		store := s.open(t)
		wg.Go(func() {
			log, err := store.Create(t.Context(), id)
			if err != nil {
				t.Errorf("create: %v", err)
			}
			logs[i] = log
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	fill(t, logs[0], 2)
	for _, log := range logs {
		if got := Verify(t, log); len(got) != 2 {
			t.Errorf("one of the logs has %d events, want 2", len(got))
		}
	}
}

func testOpen(t *testing.T, s *suite) {
	if _, err := s.store.Open(t.Context(), freshSession()); !errors.Is(err, eventlog.ErrNotFound) {
		t.Fatalf("open a session that does not exist: %v, want ErrNotFound", err)
	}
	id, log := s.create(t)
	fill(t, log, 4)
	other, err := s.open(t).Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if got := Verify(t, other); len(got) != 4 {
		t.Fatalf("the opened log has %d events, want 4", len(got))
	}
}

func testBadIDs(t *testing.T, s *suite) {
	for _, id := range []events.ID{"", "x", "*", ">", "01ARZ3NDEKTSV4RRFFQ69G5FA", "01arz3ndektsv4rrffq69g5fav", "81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5.AV"} {
		if _, err := s.store.Create(t.Context(), id); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("create %q: %v, want ErrInvalid", id, err)
		}
		if _, err := s.store.Open(t.Context(), id); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("open %q: %v, want ErrInvalid", id, err)
		}
	}
}

// list returns the infos of all sessions and checks their order.
func (s *suite) list(t *testing.T) map[events.ID]eventlog.Info {
	t.Helper()
	all := make(map[events.ID]eventlog.Info)
	var before events.ID
	for info, err := range s.store.Sessions(t.Context()) {
		if err != nil {
			t.Fatalf("list sessions: %v", err)
		}
		if info.ID <= before {
			t.Errorf("session %s came after session %s", info.ID, before)
		}
		before = info.ID
		all[info.ID] = info
	}
	return all
}

func testSessions(t *testing.T, s *suite) {
	want := make(map[events.ID]uint64)
	for n := range uint64(5) {
		id, log := s.create(t)
		fill(t, log, n)
		want[id] = n
	}
	got := s.list(t)
	for id, n := range want {
		info, ok := got[id]
		if !ok {
			t.Fatalf("session %s is not listed", id)
		}
		if info.Last != n || info.Messages != n || (n > 0) != (info.Bytes > 0) || (n > 0) == info.LastTime.IsZero() {
			t.Errorf("session with %d events: %+v", n, info)
		}
	}
}

func testSessionsChanging(t *testing.T, s *suite) {
	var there []events.ID
	for range 10 {
		id, _ := s.create(t)
		there = append(there, id)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 10 {
			if _, err := s.store.Create(t.Context(), freshSession()); err != nil {
				t.Errorf("create: %v", err)
			}
		}
	})
	for range 3 {
		got := make(map[events.ID]eventlog.Info)
		for info, err := range s.store.Sessions(t.Context()) {
			switch {
			case err == nil:
				got[info.ID] = info
			case info.ID == "":
				t.Fatalf("list sessions: %v", err)
			case !errors.Is(err, eventlog.ErrUnavailable): // one that is being made need not answer yet
				t.Errorf("session %s: %v", info.ID, err)
			}
		}
		if missing := slices.DeleteFunc(slices.Clone(there), func(id events.ID) bool { _, ok := got[id]; return ok }); len(missing) > 0 {
			t.Errorf("sessions that were there all the time are not listed: %v", missing)
		}
	}
	wg.Wait()
}
