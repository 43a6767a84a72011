package worker

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

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
