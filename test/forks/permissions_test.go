package forks_test

import (
	"errors"
	"testing"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/fleet"
)

// TestPermissions forks a session while every program has the account and the permissions of the example configuration.
func TestPermissions(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	s := system{t: t, server: f.Server, url: f.Provider, key: newKey(t)}
	as := func(user string) *system {
		other := s
		other.client = f.As(user)
		return &other
	}
	client, worker, verifier, projector, reader := as("client"), as("worker"), as("verifier"), as("projector"), as("reader")
	for _, needs := range []struct {
		service *system
		streams []string
	}{
		{worker, []string{jetstream.InboxStream, jetstream.ObjectsStream}},
		{verifier, []string{jetstream.VerdictsStream}},
		{projector, []string{jetstream.StepsStream}},
	} {
		if err := needs.service.client.EnsureStreams(t.Context(), needs.streams...); err != nil {
			t.Error(err)
		}
	}
	worker.work()
	defer verifier.verifier()()
	defer projector.projector()()
	parent, fork := newID(), newID()
	client.prompt(parent, true, "one")
	reader.turns(parent, 1)
	client.send(fork, events.Input{Kind: events.InputFork, Open: true, Parent: events.ForkPoint{ID: parent}})
	client.prompt(fork, false, "two")
	reader.turns(fork, 2)
	reader.untilVerified(parent)
	reader.untilVerified(fork)
	if r := reader.check(fork); !r.AllMatch() || r.Requests != 2 || r.Lineage != audit.LineageConfirmed {
		t.Errorf("lineage %q: %v", r.Lineage, r.Verdicts)
	}
	if got := reader.causes(fork, 1); len(got) != 1 {
		t.Errorf("%v", got)
	}
	if _, err := client.client.Logs().Open(t.Context(), fork); !errors.Is(err, eventlog.ErrPermission) {
		t.Errorf("a client reads: %v", err)
	}
	list := reader.events(fork)
	last := &list[len(list)-1]
	next := events.Event{Seq: last.Seq + 1, ID: newID(), Time: last.Time, Body: &events.SessionClosed{Reason: "x"}}
	next.Prev, _ = last.Hash()
	payload, err := events.Encode(&next)
	if err != nil {
		t.Fatal(err)
	}
	for name, other := range map[string]*system{"verifier": verifier, "projector": projector, "reader": reader} {
		log, err := other.client.Logs().Open(t.Context(), fork)
		if err != nil {
			t.Fatal(err)
		}
		if err := log.Append(t.Context(), &next, payload); !errors.Is(err, eventlog.ErrPermission) {
			t.Errorf("a %s writes: %v", name, err)
		}
		if _, _, err := other.client.Inbox().Publish(t.Context(), fork, &events.Input{ID: newID(), Kind: events.InputCompact}); !errors.Is(err, eventlog.ErrPermission) {
			t.Errorf("a %s sends an input: %v", name, err)
		}
	}
}
