package dsh_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/internal/faults"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

func still() time.Time { return time.UnixMilli(1796046772653) }

const enough = 1 << 20

// translated is a log with a long text, so that there are objects.
func translated(t testing.TB, text string) *dsh.Session {
	t.Helper()
	l := open(text + strings.Repeat("x", 5000))
	l.reply("first")
	l.stepEnd()
	l.turnEnd(`{"kind":"completed"}`)
	s, err := (&dsh.Config{InlineMax: 1000}).Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Objects) == 0 {
		t.Fatal("no objects")
	}
	return s
}

// stored returns the payloads of a session.
func stored(t testing.TB, store eventlog.Store, id events.ID) [][]byte {
	t.Helper()
	log, err := store.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for m, err := range log.Read(t.Context(), 1) {
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Event(); err != nil {
			t.Fatal(err)
		}
		out = append(out, m.Payload)
	}
	return out
}

// TestImport stores a log once, however often it is imported, and refuses another one.
func TestImport(t *testing.T) {
	t.Parallel()
	s := translated(t, "one")
	store, held := eventlog.NewMemory(still), objects.NewMemory()
	to := dsh.Target{Logs: store, Objects: held, MaxEventBytes: enough}
	n := uint64(len(s.Events))
	for i, want := range []dsh.Imported{{Stored: n}, {Found: n}, {Found: n}} {
		got, err := s.Import(t.Context(), to)
		if err != nil || got != want {
			t.Fatalf("import %d: %+v, %v; want %+v", i+1, got, err, want)
		}
	}
	if !slices.EqualFunc(stored(t, store, s.ID), s.Payloads, bytes.Equal) {
		t.Error("other payloads are stored")
	}
	for _, o := range s.Objects {
		if _, err := objects.Get(t.Context(), held, o.Ref); err != nil {
			t.Error(err)
		}
	}
	other := translated(t, "two")
	if other.ID != s.ID {
		t.Fatalf("sessions %s and %s", other.ID, s.ID)
	}
	if got, err := other.Import(t.Context(), to); !errors.Is(err, dsh.ErrOtherLog) || got.Stored != 0 {
		t.Errorf("another file: %+v, %v", got, err)
	}
	if !slices.EqualFunc(stored(t, store, s.ID), s.Payloads, bytes.Equal) {
		t.Error("another file has changed the session")
	}

	// The session goes on.
	log, err := store.Open(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	last := &s.Events[n-1]
	hash, _ := last.Hash()
	w := eventlog.NewWriter(log, s.ID, n, hash, still, func() events.ID { return "01M8PBNPDDBXV0WEYPCXQ8RF99" })
	if _, err := w.Append(t.Context(), &events.LoopClaimed{Worker: "w", Instance: "01M8PBNPDDBXV0WEYPCXQ8RF99", Reason: events.ClaimResumed}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Import(t.Context(), to); err != nil || got != (dsh.Imported{Found: n, Beyond: 1}) {
		t.Errorf("a session that has gone on: %+v, %v", got, err)
	}
}

// TestImportFaults fails every append in turn, in each way; the next import completes what the first one began.
func TestImportFaults(t *testing.T) {
	t.Parallel()
	s := translated(t, "one")
	for name, fault := range map[string]faults.Fault{
		"refused":              faults.FailBefore(eventlog.ErrFull),
		"lost":                 faults.Lost(),
		"stored, answer lost":  faults.FailAfterPersist(),
		"stored twice, silent": faults.Duplicate(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := uint64(1); at <= uint64(len(s.Events)); at++ {
				store := eventlog.NewMemory(still)
				faulty := faults.NewStore(store, func(_ events.ID, op faults.Op, seq uint64) faults.Fault {
					if op == faults.Append && seq == at {
						return fault
					}
					return faults.Fault{}
				})
				to := dsh.Target{Logs: faulty, Objects: objects.NewMemory(), MaxEventBytes: enough}
				_, err := s.Import(t.Context(), to)
				if (err == nil) != fault.Twice {
					t.Fatalf("append %d: %v", at, err)
				}
				to.Logs = store
				got, err := s.Import(t.Context(), to)
				if err != nil || got.Found+got.Stored != uint64(len(s.Events)) || got.Found < at-1 {
					t.Fatalf("append %d, second import: %+v, %v", at, got, err)
				}
				if !slices.EqualFunc(stored(t, store, s.ID), s.Payloads, bytes.Equal) {
					t.Fatalf("append %d: other payloads are stored", at)
				}
			}
		})
	}
}

// full is a store without room.
type full struct{ objects.Store }

func (full) Put(context.Context, objects.Ref, []byte) error { return objects.ErrFull }

// TestImportRefused writes no event of a log that would not fit, or whose objects are not stored.
func TestImportRefused(t *testing.T) {
	t.Parallel()
	s := translated(t, "one")
	missing := *s
	missing.Missing = []objects.Ref{s.Objects[0].Ref}
	for name, c := range map[string]struct {
		s    *dsh.Session
		to   dsh.Target
		want error
	}{
		"too large":  {s, dsh.Target{Objects: objects.NewMemory(), MaxEventBytes: 300}, dsh.ErrNoFit},
		"missing":    {&missing, dsh.Target{Objects: objects.NewMemory(), MaxEventBytes: enough}, dsh.ErrNoFit},
		"no room":    {s, dsh.Target{Objects: full{objects.NewMemory()}, MaxEventBytes: enough}, objects.ErrFull},
		"taken over": {s, dsh.Target{Objects: objects.NewMemory(), MaxEventBytes: enough}, dsh.ErrOtherLog},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := eventlog.NewMemory(still)
			c.to.Logs = store
			if errors.Is(c.want, dsh.ErrOtherLog) {
				lost := &eventlog.LostError{Session: s.ID, Seq: 3}
				c.to.Logs = faults.NewStore(store, func(_ events.ID, op faults.Op, seq uint64) faults.Fault {
					if op == faults.Append && seq == 3 {
						return faults.Fault{Before: lost}
					}
					return faults.Fault{}
				})
			}
			if got, err := c.s.Import(t.Context(), c.to); !errors.Is(err, c.want) || got.Stored > 2 {
				t.Errorf("%+v, %v", got, err)
			}
			if _, err := store.Open(t.Context(), s.ID); !errors.Is(c.want, dsh.ErrOtherLog) && !errors.Is(err, eventlog.ErrNotFound) {
				t.Errorf("the session exists: %v", err)
			}
		})
	}
}

// TestImportSession gives the session another id; everything else is told alike.
func TestImportSession(t *testing.T) {
	t.Parallel()
	l, want := shapeFork()
	s, err := (&dsh.Config{Session: "01M8PBNPDDBXV0WEYPCXQ8RF99"}).Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	if s.ID != "01M8PBNPDDBXV0WEYPCXQ8RF99" {
		t.Errorf("session %s", s.ID)
	}
	check(t, s, want)
	for i := range s.Events {
		if m, ok := s.Events[i].Body.(*events.UserMessage); ok && m.InboxSeq != 0 {
			t.Errorf("event %d claims an input", i+1)
		}
	}
}

// TestChangedBy names the reference system for what changed between two headers of a process, and for nothing else.
func TestChangedBy(t *testing.T) {
	t.Parallel()
	l, _ := shapeSwitch()
	l.stepEnd()
	l.stepStart()
	header := `{"header":{"config":{"provider":"other","model":"x","reasoningEffort":"off","temperature":0.5,"stop":["."]},"system":"More."},"reason":%q}`
	l.row("request/header", fmt.Sprintf(header, "change"), "")
	l.reply("third")
	l.stepEnd()
	l.stepStart()
	l.row("request/header", fmt.Sprintf(strings.Replace(header, `"x"`, `"y"`, 1), "resume"), "") // another process's own choice
	l.reply("fourth")
	s, err := dsh.Translate(strings.NewReader(l.text()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range s.Events {
		if b, ok := s.Events[i].Body.(*events.RequestHeader); ok {
			got = append(got, fmt.Sprint(b.Reason, b.ChangedBy))
		}
	}
	want := []string{"initial[]", "change[{dsh [provider model reasoningEffort maxTokens temperature stop]}]", "change[]", "resume[]"}
	if !slices.Equal(got, want) {
		t.Errorf("headers %q, want %q", got, want)
	}
}

// TestOpenEnds shows what is open where a log ends, for whoever goes on.
func TestOpenEnds(t *testing.T) {
	t.Parallel()
	end := func(l *record) *fold.State {
		s, err := dsh.Translate(strings.NewReader(l.text()))
		if err != nil {
			t.Fatal(err)
		}
		state := fold.New(s.ID)
		for i := range s.Events {
			if err := state.Apply(&s.Events[i]); err != nil {
				t.Fatal(err)
			}
		}
		return state
	}
	l := open("one")
	l.say(0, "text", "half an ans")
	if _, _, answer, chunks, ok := end(l).OpenCall(); !ok || len(chunks) != 2 || fmt.Sprint(answer.Content()) == "[]" {
		t.Errorf("a stream that was cut: open %t, %d chunk events", ok, len(chunks))
	}
	l, _ = callThree()
	l.toolCall("c2") // the first may have begun too
	var begun []bool
	for _, p := range end(l).PendingTools() {
		begun = append(begun, p.CallSeq > 0)
	}
	if !slices.Equal(begun, []bool{true, true, false}) {
		t.Errorf("tools that may have begun: %v", begun)
	}
	l = open("one")
	l.finish(`{"kind":"error","failure":{"message":"x","code":"SERVER"}}`)
	l.row("llm/retry", "{"+l.place()+`,"retryId":"r","retry":1,"delayMs":50,"failure":{"message":"x","code":"SERVER"}}`, "")
	if r, at, ok := end(l).PendingRetry(); !ok || r.RetryID != "r" || r.DelayMs != 50 || at == 0 {
		t.Errorf("a delay: %+v at %d, %t", r, at, ok)
	}
}
