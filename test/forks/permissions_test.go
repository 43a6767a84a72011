package forks_test

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// documented returns the permissions that docs/format/streams.md grants, by the name of the row.
func documented(t *testing.T) map[string]*server.Permissions {
	t.Helper()
	page, err := os.ReadFile("../../docs/format/streams.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## Permissions\n")
	if !ok {
		t.Fatal("the page has no permissions")
	}
	rows := make(map[string]*server.Permissions)
	quoted, as := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`as a ([a-z]+)`)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.Contains(line, "---") || strings.Contains(line, "| who |") {
			continue
		}
		var publish []string
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			publish = append(publish, m[1])
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			publish = append(publish, "$JS.API."+m[1])
		}
		subscribe := []string{"_INBOX_" + strings.TrimSpace(cells[1]) + ".>"}
		for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
			subscribe = append(subscribe, m[1])
		}
		if m := as.FindStringSubmatch(cells[3]); m != nil {
			publish = append(publish, rows[m[1]].Publish.Allow...)
		}
		p := &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: publish, Deny: []string{}},
			Subscribe: &server.SubjectPermission{Allow: subscribe},
		}
		if len(publish) == 0 {
			p.Publish.Deny = []string{">"}
		}
		rows[strings.TrimSpace(cells[1])] = p
	}
	return rows
}

// TestPermissions forks a session while every program has the permissions that the page grants it, and no others.
func TestPermissions(t *testing.T) {
	users := documented(t)
	s := newSystemWith(t, users)
	client, worker, verifier, projector, reader := s.as("client"), s.as("worker"), s.as("verifier"), s.as("projector"), s.as("reader")
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
