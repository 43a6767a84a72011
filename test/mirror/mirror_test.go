package mirror_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/mirror"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/test/fleet"
)

// system is a fleet with an auditor's accounts beside it.
type system struct {
	*fleet.Fleet
	t                           *testing.T
	operator, client, reader    *jetstream.Client // the fleet's
	auditor, mirrors, auditRead *jetstream.Client // the auditor's
}

func newSystem(t *testing.T, edit func(string) string) *system {
	t.Helper()
	f := fleet.Start(t, edit)
	s := &system{
		Fleet: f, t: t, operator: f.As("operator"), client: f.As("client"), reader: f.As("reader"),
		auditor: f.As("auditor"), mirrors: f.As("audit-mirror"), auditRead: f.As("audit-reader"),
	}
	f.MakeStreams()
	if err := s.auditor.EnsureStreams(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Fatal(err)
	}
	return s
}

// withoutHints leaves the auditor's import of the fleet's hints out of the configuration.
func withoutHints(text string) string {
	const line = `{ stream: { account: FLEET, subject: "hint.>" } }`
	before, mirrors, ok := strings.Cut(text, "\n  AUDIT_MIRROR {\n")
	if !ok || strings.Count(mirrors, line) != 1 {
		panic("the configuration does not import hints")
	}
	return before + "\n  AUDIT_MIRROR {\n" + strings.Replace(mirrors, line, "", 1)
}

// origin is what the example configuration calls the fleet's accounts in the auditor's.
func origin() jetstream.Origin { return jetstream.Origin{API: "fleet.api", Deliver: "fleet.deliver"} }

// mirror runs a mirror as refold mirror does.
func (s *system) mirror(o jetstream.Origin, hints bool) (m *mirror.Mirror, stop func()) {
	s.t.Helper()
	m, err := program.NewMirror(s.mirrors, &program.MirrorFlags{Origin: o, Sweep: 50 * time.Millisecond, Hints: hints},
		prometheus.NewPedanticRegistry(), s.Log())
	if err != nil {
		s.t.Fatal(err)
	}
	return m, s.Start(m)
}

// large is a system prompt that is kept as an object.
func large(what string) string { return strings.Repeat(what+" ", 4_000) }

// stream gives the account of a user raw access to its streams.
func (s *system) streams(user string) natsjs.JetStream {
	s.t.Helper()
	conn := s.Dial(user)
	s.t.Cleanup(conn.Close)
	js, err := natsjs.New(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// session runs a session of two turns, whose system prompt is an object, and returns the end of the second.
func (s *system) session(id events.ID) (end uint64) {
	s.t.Helper()
	s.Prompt(s.client, id, "one", &events.Options{System: large(string(id))})
	s.Turn(s.reader, id, 1)
	s.Prompt(s.client, id, "two", nil)
	return s.Turn(s.reader, id, 2)
}

// wantMatch checks a session from the auditor's copies and wants everything in order.
func (s *system) wantMatch(id events.ID) {
	s.t.Helper()
	if r := s.Check(s.auditRead, id); !r.AllMatch() || r.Requests != 2 || r.Confirmed == 0 {
		s.t.Errorf("session %s, checked from the mirrors: %d of %d match, %d confirmed: %v", id, r.Matches, r.Requests, r.Confirmed, r.Verdicts)
	}
}

func (s *system) untilFound(m *mirror.Mirror, stream string, f mirror.Finding) {
	s.t.Helper()
	s.Until(stream+" found "+string(f), func() bool { return m.Status().Found[stream] == f })
}

// TestAuditor has sessions run in one account, and audited in another that hears of new ones by hints, or only by sweeps.
func TestAuditor(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edit  func(string) string
		hints bool
	}{{"hints", nil, true}, {"no hints from the fleet", withoutHints, true}, {"sweeps only", withoutHints, false}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSystem(t, tt.edit)
			url, key := s.Witness()
			s.Work(url)
			m, stop := s.mirror(origin(), tt.hints)
			s.Verify("audit-verifier", program.VerifierFlags{ColdShare: 1, Witnesses: []string{key}})
			ids := []events.ID{program.NewID(), program.NewID(), program.NewID()}
			for _, id := range ids {
				s.Verified(s.auditRead, id, s.session(id))
				s.wantMatch(id)
			}
			s.wantWitnessed(ids)
			s.wantListed(ids)
			s.Until("mirrors in step", func() bool {
				st := m.Status()
				return st.Streams == len(ids)+2 && st.Behind == 0 && st.Err == nil && m.Health() == nil
			})
			stop()
			again, _ := s.mirror(origin(), tt.hints) // it finds everything in place
			s.Until("a sweep after the restart", func() bool { return !again.Status().Swept.IsZero() })
			if st := again.Status(); st.Streams != len(ids)+2 || len(st.Found) > 0 {
				t.Errorf("after a restart: %+v", st)
			}
		})
	}
}

// wantWitnessed wants one verdict on each of two calls of the sessions, all of them a match, and none on a receipt.
func (s *system) wantWitnessed(ids []events.ID) {
	s.t.Helper()
	for _, id := range ids {
		var list []audit.Verdict
		s.Until("verdicts on calls", func() bool {
			list = nil
			for r, err := range s.auditRead.WireVerdicts().Read(s.t.Context(), id, 1) {
				if err != nil {
					s.t.Fatal(err)
				}
				v, err := audit.DecodeVerdict(r.Payload)
				if err != nil {
					s.t.Fatal(err)
				}
				list = append(list, v)
			}
			return len(list) >= 2
		})
		for _, v := range list {
			if v.Result != audit.Match {
				s.t.Errorf("%s", v.String())
			}
		}
		if _, err := s.auditRead.StrayVerdicts().Last(s.t.Context(), id); len(list) != 2 || !errors.Is(err, eventlog.ErrNotFound) {
			s.t.Errorf("session %s: %d verdicts on 2 calls; on a receipt: %v", id, len(list), err)
		}
	}
}

func (s *system) wantListed(ids []events.ID) {
	s.t.Helper()
	var listed []events.ID
	for info, err := range s.auditRead.Logs().Sessions(s.t.Context()) {
		if err != nil {
			s.t.Fatal(err)
		}
		listed = append(listed, info.ID)
	}
	if !slices.Equal(listed, ids) {
		s.t.Errorf("listed from the mirrors: %v, want %v", listed, ids)
	}
}

// TestHintsOfMirrors shows that a mirror says itself when it has grown.
func TestHintsOfMirrors(t *testing.T) {
	s := newSystem(t, withoutHints)
	s.Work(s.Provider)
	s.mirror(origin(), false)
	id := program.NewID()
	sub, err := s.As("audit-verifier").Hints().Subscribe(t.Context(), jetstream.Partition(id))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	end := s.session(id)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		h, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if h.Session == id && h.Seq == end {
			break
		}
	}
	if last := s.last(id); last < end {
		t.Errorf("the hint of event %d came when the mirror ended at %d", end, last)
	}
}

func (s *system) last(id events.ID) uint64 {
	s.t.Helper()
	log, err := s.auditRead.Logs().Open(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	last, err := log.Last(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return last
}

// TestOperatorsChanges has the fleet's operator delete one session and rewrite another. The auditor keeps both as they were,
// and hears of it.
func TestOperatorsChanges(t *testing.T) {
	s := newSystem(t, nil)
	stopWorker := s.Work(s.Provider)
	m, _ := s.mirror(origin(), true)
	s.Verify("audit-verifier", program.VerifierFlags{})
	deleted, rewritten := program.NewID(), program.NewID()
	for _, id := range []events.ID{deleted, rewritten} {
		s.Verified(s.auditRead, id, s.session(id))
	}
	stopWorker()
	before, copied := s.Events(s.reader, rewritten), s.Events(s.auditRead, rewritten)
	fleetStreams := s.streams("operator")
	for _, id := range []events.ID{deleted, rewritten} {
		if err := fleetStreams.DeleteStream(t.Context(), jetstream.SessionStream(id)); err != nil {
			t.Fatal(err)
		}
	}
	s.untilFound(m, jetstream.SessionStream(deleted), mirror.Lost)
	s.rewrite(rewritten, before)
	s.untilFound(m, jetstream.SessionStream(rewritten), mirror.Replaced)

	s.wantMatch(deleted)
	s.wantMatch(rewritten)
	if got := s.Events(s.auditRead, rewritten); !reflect.DeepEqual(got, copied) {
		t.Error("the copy of the rewritten session has changed")
	}
	// What comes next joins the other history, and does not fit.
	last := &before[len(before)-1]
	next := events.Event{Seq: last.Seq + 1, ID: program.NewID(), Time: last.Time + 1, Body: &events.SessionClosed{Reason: "x"}}
	s.store(rewritten, s.Events(s.reader, rewritten), next)
	s.Until("a verdict on what does not fit", func() bool {
		list := s.Verdicts(s.auditRead, rewritten)
		return list[len(list)-1].Result == audit.BrokenChain
	})
	if st := m.Status(); st.Findings[mirror.Lost] != 1 || st.Findings[mirror.Replaced] != 1 {
		t.Errorf("%+v", st)
	}
}

// rewrite puts a log in the place of a session's that differs in the time of its second event, and fits together. A server
// that has just deleted the stream may know its first event still: then it is made again.
func (s *system) rewrite(id events.ID, list []events.Event) {
	s.t.Helper()
	for {
		if _, err := s.streams("operator").CreateStream(s.t.Context(), s.operator.SessionConfig(id)); err != nil {
			s.t.Fatal(err)
		}
		if s.store(id, nil, list[0]) {
			break
		}
		if err := s.streams("operator").DeleteStream(s.t.Context(), jetstream.SessionStream(id)); err != nil {
			s.t.Fatal(err)
		}
	}
	stored := list[:1:1]
	for _, e := range list[1:] {
		if e.Seq == 2 {
			e.Time++
		}
		s.store(id, stored, e)
		stored = s.Events(s.reader, id)
	}
}

// store publishes an event behind those that are stored, as a worker may, and reports whether the server took it.
func (s *system) store(id events.ID, stored []events.Event, e events.Event) bool {
	s.t.Helper()
	if len(stored) > 0 {
		e.Prev, _ = stored[len(stored)-1].Hash()
	}
	payload, err := events.Encode(&e)
	if err != nil {
		s.t.Fatal(err)
	}
	ack, err := s.streams("worker").PublishMsg(s.t.Context(), &nats.Msg{
		Subject: jetstream.SessionSubject(id, e.Type()), Header: nats.Header{"Nats-Msg-Id": {string(e.ID)}}, Data: payload,
	})
	return err == nil && !ack.Duplicate && ack.Sequence == e.Seq
}

// stalled makes a mirror of a stream that nothing arrives in.
func (s *system) stalled(name string) {
	s.t.Helper()
	nowhere, err := s.mirrors.Mirrors(jetstream.Origin{API: origin().API, Deliver: "nowhere.deliver"})
	if err != nil {
		s.t.Fatal(err)
	}
	there, err := nowhere.LookThere(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := nowhere.Make(s.t.Context(), there); err != nil {
		s.t.Fatal(err)
	}
}

// TestLaggingObjects has the objects stay behind the sessions: nothing is concluded from that.
func TestLaggingObjects(t *testing.T) {
	s := newSystem(t, nil)
	s.Work(s.Provider)
	s.stalled(jetstream.ObjectsStream)
	m, _ := s.mirror(origin(), true)
	v, _ := s.Verify("audit-verifier", program.VerifierFlags{})
	id := program.NewID()
	end := s.session(id)
	ref := objects.Ref{}
	for _, e := range s.Events(s.reader, id) {
		if b, ok := e.Body.(*events.LLMStream); ok && len(b.Objects) > 0 {
			ref = b.Objects[0]
		}
	}
	if ref.Bytes == 0 {
		t.Fatal("the session has no object")
	}
	s.Until("the verifier waits", func() bool { return v.Status().Retrying == 1 })
	if list := s.Verdicts(s.auditRead, id); len(list) > 0 {
		t.Errorf("while the objects are behind: %v", list)
	}
	if _, err := s.auditRead.Objects().Get(t.Context(), ref.Digest); !errors.Is(err, objects.ErrUnavailable) || errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if m.Status().Lag == 0 {
		t.Error("no lag is reported")
	}
	if err := s.streams("auditor").DeleteStream(t.Context(), jetstream.ObjectsStream); err != nil {
		t.Fatal(err)
	}
	s.Verified(s.auditRead, id, end) // the mirror is made anew, and rightly
	s.wantMatch(id)
	if _, err := s.auditRead.Objects().Get(t.Context(), objects.Sum([]byte("never"))); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get what does not exist: %v", err)
	}
}

// TestMissingObject deletes an object before it is mirrored: that is a finding.
func TestMissingObject(t *testing.T) {
	s := newSystem(t, nil)
	stop := s.Work(s.Provider)
	id := program.NewID()
	end := s.session(id)
	stop()
	stream, err := s.streams("operator").Stream(t.Context(), jetstream.ObjectsStream)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range stream.CachedInfo().State.LastSeq {
		if err := stream.DeleteMsg(t.Context(), seq+1); err != nil {
			t.Fatal(err)
		}
	}
	s.mirror(origin(), true)
	s.Verify("audit-verifier", program.VerifierFlags{})
	s.Until("verdicts", func() bool {
		list := s.Verdicts(s.auditRead, id)
		return len(list) > 0 && list[len(list)-1].Seq == end
	})
	for _, v := range s.Verdicts(s.auditRead, id) {
		if v.Kind == audit.KindRequest && v.Result != audit.MissingObject {
			t.Errorf("%s", v.String())
		}
	}
}

// TestLaggingRecords shows how a program that looks for a receipt, or at a fork's parent, learns that it may still come.
func TestLaggingRecords(t *testing.T) {
	s := newSystem(t, nil)
	s.Work(s.Provider)
	id := program.NewID()
	end := s.session(id)
	if _, err := s.As("witness").Receipts().Add(t.Context(), id, "one", []byte("receipt")); err != nil {
		t.Fatal(err)
	}
	parents := audit.FromLogs(s.auditRead.Logs())
	s.stalled(jetstream.WitnessStream)
	if err := s.auditRead.Logs().Absent(t.Context(), id); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("a session that has no mirror yet: %v", err)
	}
	if err := s.auditRead.Logs().Absent(t.Context(), program.NewID()); err != nil {
		t.Errorf("a session that does not exist: %v", err)
	}
	s.stalled(jetstream.SessionStream(id))
	if err := s.auditRead.Receipts().Current(t.Context()); !errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("receipts: %v", err)
	}
	if _, err := parents(t.Context(), id, end); !errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, audit.ErrNoEvent) {
		t.Errorf("parent: %v", err)
	}
	auditor := s.streams("auditor")
	for _, name := range []string{jetstream.WitnessStream, jetstream.SessionStream(id)} {
		if err := auditor.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	s.mirror(origin(), true)
	s.Until("the mirrors", func() bool { return s.auditRead.Receipts().Current(t.Context()) == nil })
	if r, err := s.auditRead.Receipts().Last(t.Context(), id); err != nil || string(r.Payload) != "receipt" {
		t.Errorf("receipt: %v", err)
	}
	s.Until("the parent", func() bool { _, err := parents(t.Context(), id, end); return err == nil })
	if _, err := parents(t.Context(), id, end+1); !errors.Is(err, audit.ErrNoEvent) {
		t.Errorf("an event that does not exist: %v", err)
	}
	if err := s.reader.Receipts().Current(t.Context()); err != nil {
		t.Errorf("of the stream itself: %v", err)
	}
}

// TestLargeStreams mirrors more at once than a server sends without being told that it has arrived.
func TestLargeStreams(t *testing.T) {
	const messages = 300
	s := newSystem(t, nil)
	large := make([]byte, 100_000)
	for user, subject := range map[string]string{"witness": "witness." + string(program.NewID()) + ".request", "worker": "object.x.0"} {
		js := s.streams(user)
		for range messages {
			if _, err := js.PublishAsync(subject, large); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-t.Context().Done():
			t.Fatal("no acknowledgements")
		}
	}
	s.mirror(origin(), true)
	here, err := s.mirrors.Mirrors(origin())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{jetstream.WitnessStream, jetstream.ObjectsStream} {
		s.Until("a complete mirror of "+name, func() bool {
			state, err := here.LookHere(t.Context(), name)
			return err == nil && state.Last == messages
		})
	}
}

// TestForeign leaves a stream alone that stands where a mirror should.
func TestForeign(t *testing.T) {
	s := newSystem(t, nil)
	id := program.NewID()
	if _, err := s.streams("auditor").CreateStream(t.Context(), natsjs.StreamConfig{Name: jetstream.SessionStream(id)}); err != nil {
		t.Fatal(err)
	}
	m, _ := s.mirror(origin(), true)
	s.untilFound(m, jetstream.SessionStream(id), mirror.Foreign)
}

// TestWrongPrefix says what is wrong when the other account is not there.
func TestWrongPrefix(t *testing.T) {
	s := newSystem(t, nil)
	m, _ := s.mirror(jetstream.Origin{API: "other.api", Deliver: "other.deliver"}, true)
	s.Until("an unhealthy mirror", func() bool { return m.Status().Err != nil })
	err := m.Health()
	if !errors.Is(err, eventlog.ErrPermission) || !strings.Contains(err.Error(), "other.api.STREAM.LIST") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	m, err = program.NewMirror(s.auditor, &program.MirrorFlags{Origin: jetstream.Origin{API: "$JS.API", Deliver: "x"}, Sweep: time.Second},
		prometheus.NewPedanticRegistry(), s.Log())
	if !errors.Is(err, events.ErrInvalid) {
		t.Errorf("the account's own API: %v, %v", m, err)
	}
}

// TestNothingToTouch shows that the auditor's account cannot change the fleet's, whoever asks.
func TestNothingToTouch(t *testing.T) {
	s := newSystem(t, nil)
	stop := s.Work(s.Provider)
	id := program.NewID()
	s.session(id)
	stop()
	before := s.Events(s.reader, id)
	for _, user := range []string{"auditor", "audit-mirror", "audit-verifier", "audit-reader"} {
		conn := s.Dial(user, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		for _, subject := range []string{
			"session." + string(id) + ".session.closed", "inbox." + string(id), "object.x.0", "witness." + string(id) + ".request",
			"fleet.api.STREAM.DELETE.SESSION_" + string(id), "fleet.api.STREAM.PURGE.OBJECTS", "fleet.api.STREAM.UPDATE.OBJECTS",
			"fleet.api.STREAM.CREATE.OTHER", "fleet.api.STREAM.MSG.DELETE.OBJECTS", "fleet.api.CONSUMER.DELETE.INBOX.workers",
			"fleet.api.CONSUMER.MSG.NEXT.INBOX.workers",
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if msg, err := conn.RequestWithContext(ctx, subject, []byte("{}")); err == nil {
				t.Errorf("%s: %s was answered: %s", user, subject, msg.Data)
			}
			cancel()
		}
		conn.Close()
	}
	// A mirror says where the fleet's server delivers: in the middle of the session.
	evil, err := s.mirrors.Mirrors(jetstream.Origin{API: origin().API, Deliver: "session." + string(id)})
	if err != nil {
		t.Fatal(err)
	}
	there, err := evil.LookThere(t.Context(), jetstream.ObjectsStream)
	if err != nil || there.Last == 0 {
		t.Fatalf("%d objects, %v", there.Last, err)
	}
	if err := evil.Make(t.Context(), there); err != nil {
		t.Fatal(err)
	}
	if err := s.streams("auditor").DeleteStream(t.Context(), jetstream.ObjectsStream); err != nil {
		t.Fatal(err)
	}
	s.mirror(origin(), true)
	s.Until("an honest mirror", func() bool {
		state, err := evil.LookHere(t.Context(), jetstream.ObjectsStream)
		return err == nil && state.Last == there.Last
	})
	if after := s.Events(s.reader, id); !reflect.DeepEqual(before, after) {
		t.Error("the session has changed")
	}
}
