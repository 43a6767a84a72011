package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// fork begins a session that forks k at an event, 0 for the last boundary.
func (k *talk) fork(seq uint64, options events.Options) *talk {
	f := k.talkIn(k.logs)
	f.tell(events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: k.id, Seq: seq}, Options: options})
	return f
}

// texts returns what the model sees.
func (k *talk) texts() (out []string) {
	_, s := k.all()
	for _, m := range s.Messages().All() {
		for _, b := range m.Content {
			out = append(out, fmt.Sprint(m.Role, " ", b.Text))
		}
	}
	return out
}

func TestFork(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	_, s := k.all()
	first := s.Seq()
	k.prompt("two")
	k.rest()

	early := k.fork(first, events.Options{ReasoningEffort: "low"})
	early.prompt("instead")
	early.rest()
	if diff := cmp.Diff([]string{"user one", "assistant Fine.", "user instead", "assistant Fine."}, early.texts()); diff != "" {
		t.Error(diff)
	}
	list, s := early.all()
	if created, _ := s.Created(); created.SeedLength != first-1 || created.Parent.ID != k.id || created.Parent.Seq != first {
		t.Errorf("created %+v", created)
	}
	early.want(append(trace(list[:first]), "session/end-seed", "configured", "turn 2", "step 1", "prompt instead", "header resume low",
		"call loop 1", "answer stop Fine.", "step end", "turn end completed")...)

	late := k.fork(0, events.Options{})
	late.rest()
	again := late.fork(0, events.Options{})
	again.prompt("three")
	again.rest()
	want := []string{"user one", "assistant Fine.", "user two", "assistant Fine.", "user three", "assistant Fine."}
	if diff := cmp.Diff(want, again.texts()); diff != "" {
		t.Error(diff)
	}
}

// TestForkRefused makes no session when there is no such place.
func TestForkRefused(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	missing := k.talkIn(k.logs)
	missing.id, missing.t = newID(), k.t
	for name, f := range map[string]*talk{
		"inside a turn": k.fork(4, events.Options{}), "behind the end": k.fork(1000, events.Options{}), "missing": missing.fork(0, events.Options{}),
	} {
		f.prompt("go")
		f.q.inputs[1].Open = false
		f.rest()
		if list, _ := f.all(); len(list) != 0 {
			t.Errorf("%s: %d events", name, len(list))
		}
	}
}

// TestForkUnusable refuses for good what can never be made: a fork whose first event is too large with what it takes from
// its parent, and one of a log that does not fold. A parent that cannot be read now is another matter.
func TestForkUnusable(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	r.cfg.MaxEventBytes = minEventBytes
	names := make([]string, 200)
	for i := range names {
		names[i] = fmt.Sprintf("%0100d", i)
	}
	k.tell(events.Input{Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text("one")}, Options: events.Options{Tools: names[:140]}})
	k.rest()
	damaged := newID()
	log, err := k.logs.Create(t.Context(), damaged)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := eventlog.NewWriter(log, damaged, 0, events.Hash{}, time.Now, newID).Append(t.Context(), &events.TurnStart{Turn: 1}); err != nil {
		t.Fatal(err)
	}
	labels := []events.Label{{Name: "a", Value: strings.Repeat("x", 20_000)}}
	client := serve(t)
	for _, tt := range []struct {
		name string
		in   input
		logs eventlog.Store
		want error
	}{
		{"too large", input{Input: events.Input{Parent: events.ForkPoint{ID: k.id}, Labels: labels}}, k.logs, errFork},
		{"fits", input{Input: events.Input{Parent: events.ForkPoint{ID: k.id}}}, k.logs, nil},
		{"damaged", input{Input: events.Input{Parent: events.ForkPoint{ID: damaged}}}, k.logs, errFork},
		{"unreadable", input{Input: events.Input{Parent: events.ForkPoint{ID: k.id}}}, silentStore{k.logs}, eventlog.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := r.cfg
			cfg.Sessions = tt.logs
			tt.in.Kind, tt.in.Open, tt.in.ID, tt.in.seq = events.InputFork, true, newID(), 1
			s := newSession(&Worker{cfg: cfg, client: client}, newID())
			if err := s.opens(t.Context(), &tt.in); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if errors.Is(tt.want, eventlog.ErrUnavailable) {
				return
			}
			f := k.talkIn(k.logs) // whose stream was made already
			f.tell(tt.in.Input)
			f.rest()
			if list, _ := f.all(); (len(list) == 0) != (tt.want != nil) {
				t.Errorf("%d events", len(list))
			}
		})
	}
}

// silentStore is a store whose logs cannot be read.
type silentStore struct{ eventlog.Store }

func (silentStore) Open(context.Context, events.ID) (eventlog.Log, error) {
	return nil, eventlog.ErrUnavailable
}

// serve returns a client of a server of its own.
func serve(t *testing.T) *jetstream.Client {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	c, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestForkTwice drops a second fork of a session that exists.
func TestForkTwice(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	f := k.fork(0, events.Options{})
	f.prompt("two")
	f.tell(events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: k.id}})
	f.rest()
	k.tell(events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: f.id}})
	k.rest()
	list, _ := f.all()
	got := trace(list)
	if got[len(got)-1] != "dropped fork 3" {
		t.Errorf("the fork ends with %q", got[len(got)-1])
	}
	list, _ = k.all()
	if got = trace(list); got[len(got)-1] != "dropped fork 2" {
		t.Errorf("the parent ends with %q", got[len(got)-1])
	}
}

// TestForkCrash kills the worker at each copied event.
func TestForkCrash(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	whole := k.fork(0, events.Options{})
	whole.prompt("two")
	whole.rest()
	list, _ := whole.all()
	for at := uint64(1); at <= uint64(len(list)); at++ {
		f := k.fork(0, events.Options{})
		f.prompt("two")
		f.crash(int(at), func(events.Body) bool { return true })
		f.rest()
		if diff := cmp.Diff(whole.texts(), f.texts()); diff != "" {
			t.Errorf("event %d: %s", at, diff)
		}
	}
}

// TestForkBehindOthers opens a fork by an input that others came before: they were for no session, and the fork's options
// count.
func TestForkBehindOthers(t *testing.T) {
	r := newRig(t, chatty())
	k := r.talk()
	k.prompt("one")
	k.rest()
	f := k.talkIn(k.logs)
	f.tell(events.Input{Kind: events.InputConfigure, Options: events.Options{ReasoningEffort: "max"}})
	f.tell(events.Input{Kind: events.InputPrompt, Content: []events.Block{events.Text("too early")}})
	f.tell(events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: k.id}, Options: events.Options{ReasoningEffort: "low"}})
	f.prompt("two")
	f.rest()
	want := []string{"user one", "assistant Fine.", "user two", "assistant Fine."}
	if diff := cmp.Diff(want, f.texts()); diff != "" {
		t.Error(diff)
	}
	_, s := f.all()
	if h, _ := s.Header(); h.Config.ReasoningEffort != "low" {
		t.Errorf("the header is %+v", h.Config)
	}
}
