package verify_test

import (
	"bytes"
	"context"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// replaceable is a store that can be replaced by another one.
type replaceable struct {
	now atomic.Pointer[eventlog.Store]
}

func (r *replaceable) set(s eventlog.Store) { r.now.Store(&s) }

func (r *replaceable) Create(ctx context.Context, id events.ID) (eventlog.Log, error) {
	return (*r.now.Load()).Create(ctx, id)
}

func (r *replaceable) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	return (*r.now.Load()).Open(ctx, id)
}

func (r *replaceable) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return (*r.now.Load()).Sessions(ctx)
}

// later returns a log whose third event happened a millisecond later. Relinked, the events behind it fit; otherwise they
// are unchanged, and with them the last one.
func later(t *testing.T, l *foldtest.Log, relink bool) *foldtest.Log {
	t.Helper()
	messages := audittest.Of("", l).Messages
	e, err := events.Decode(messages[2].Payload)
	if err != nil {
		t.Fatal(err)
	}
	e.Time++
	if messages[2].Payload, err = events.Encode(&e); err != nil {
		t.Fatal(err)
	}
	if relink {
		messages = audittest.Relink(messages, 2)
	}
	changed := &foldtest.Log{State: l.State, Objects: l.Objects}
	for _, msg := range messages {
		e, err := events.Decode(msg.Payload)
		if err != nil {
			t.Fatal(err)
		}
		changed.Events, changed.Payloads = append(changed.Events, e), append(changed.Payloads, msg.Payload)
	}
	return changed
}

// flipped returns a log in which one bit of the third payload is another.
func flipped(l *foldtest.Log) *foldtest.Log {
	changed := &foldtest.Log{State: l.State, Objects: l.Objects, Events: l.Events, Payloads: slices.Clone(l.Payloads)}
	changed.Payloads[2] = bytes.Clone(changed.Payloads[2])
	changed.Payloads[2][len(changed.Payloads[2])/2] ^= 1
	return changed
}

// audited reports whether the verifier has swept and looked at everything that it knew.
func audited(v *verify.Verifier) bool {
	st := v.Status()
	return !st.Swept.IsZero() && st.Due == 0 && st.Lag == 0 && st.Retrying == 0
}

// TestChangedAtRest changes a session that is at rest: it has as many events as before.
func TestChangedAtRest(t *testing.T) {
	for name, change := range map[string]func(*foldtest.Log) *foldtest.Log{
		"one event":          func(l *foldtest.Log) *foldtest.Log { return later(t, l, false) },
		"rewritten to fit":   func(l *foldtest.Log) *foldtest.Log { return later(t, l, true) },
		"one bit":            flipped,
		"cut off at its end": func(l *foldtest.Log) *foldtest.Log { return l.Prefix(len(l.Events) - 1) },
	} {
		for _, restart := range []bool{true, false} {
			t.Run(map[bool]string{true: "after a restart/", false: "while it runs/"}[restart]+name, func(t *testing.T) {
				b := newBench(t)
				s := newSession(1)
				s.log = s.log.Prefix(int(lastDue(&session{log: s.log, next: len(s.log.Events)}))) // it ends with a verdict
				b.putObjects(s)
				b.write(s, 1000)
				store := new(replaceable)
				store.set(b.client.Logs())
				cfg := b.config()
				cfg.Store, cfg.Hints, cfg.Recheck = store, nil, time.Millisecond
				v, kill := b.start(cfg)
				b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
				b.wantEach(s)
				signed := b.verdicts(s.id)
				if restart {
					kill()
				}
				store.set(rewrite(t, s.id, change(s.log)))
				var out bytes.Buffer
				for range 2 { // the second one finds it reported
					if restart {
						cfg = b.config()
						cfg.Store, cfg.Hints, cfg.AuditAtStart = store, nil, true
						cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
						v, kill = b.start(cfg)
					}
					b.until("a verdict on the log", func() bool { return len(b.verdicts(s.id)) > len(signed) })
					swept := v.Status().Swept
					b.until("more sweeps", func() bool { return audited(v) && v.Status().Swept.Sub(swept) > 5*cfg.Sweep })
					if restart {
						kill()
					}
				}
				if !restart {
					kill()
				}
				got := b.verdicts(s.id)
				if len(got) != len(signed)+1 {
					t.Fatalf("%d verdicts, want one more than %d", len(got), len(signed))
				}
				last := got[len(got)-1]
				if last.Kind != audit.KindLog || last.Result != audit.BrokenChain || last.Rule != audit.RuleSigned || last.Seq != signed[len(signed)-1].Seq {
					t.Errorf("found %s", &last)
				}
				// what was found, and by each of the two processes, if it looks once more, that the log cannot be read on
				if n := bytes.Count(out.Bytes(), []byte("\n")); restart && n > 3 {
					t.Errorf("%d lines in the log:\n%s", n, &out)
				}
			})
		}
	}
}

// TestStreamMadeAgain deletes a session's stream and makes it again with another event in it.
func TestStreamMadeAgain(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	b.write(s, 1000)
	v, kill := b.start(b.config())
	b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
	kill()
	signed := len(b.verdicts(s.id))
	b.deleteStream(s.id)
	forged := &session{id: s.id, log: later(t, s.log, false)}
	b.write(forged, 1000)
	cfg := b.config()
	cfg.AuditAtStart = true // the last event is the same
	_, kill = b.start(cfg)
	defer kill()
	b.until("a verdict on the log", func() bool { return len(b.verdicts(s.id)) > signed })
	got := b.verdicts(s.id)
	if last := got[len(got)-1]; last.Kind != audit.KindLog || last.Result != audit.BrokenChain || last.Rule != audit.RuleSigned {
		t.Errorf("found %s", &last)
	}
}

// deleteStream deletes the session's stream, which no program of ours does.
func (b *bench) deleteStream(id events.ID) {
	b.t.Helper()
	b.deleteNamed(jetstream.SessionStream(id))
}

// deleteNamed deletes any stream as an operator may.
func (b *bench) deleteNamed(stream string) {
	b.t.Helper()
	conn, err := nats.Connect("", nats.InProcessServer(b.server.InProcess()))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := js.DeleteStream(b.t.Context(), stream); err != nil {
		b.t.Fatal(err)
	}
}

// TestHonestAtRest looks at honest sessions again and again. Nothing is published, and nothing is wrong.
func TestHonestAtRest(t *testing.T) {
	b := newBench(t)
	var sessions []*session
	for n := range uint64(5) {
		s := newSession(n)
		b.putObjects(s)
		b.write(s, len(s.log.Events)-int(n)) // some end behind their newest verdict
		sessions = append(sessions, s)
	}
	all := func() bool {
		for _, s := range sessions {
			if !b.complete(s) {
				return false
			}
		}
		return true
	}
	v, kill := b.start(b.config())
	b.until("verdicts", func() bool { return all() && audited(v) })
	kill()
	var out bytes.Buffer
	cfg := b.config()
	counted := &counting{Store: cfg.Store}
	cfg.Store, cfg.Recheck, cfg.Sweep, cfg.MaxSessions, cfg.Workers = counted, time.Millisecond, 5*time.Millisecond, 3, 2
	cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	v, kill = b.start(cfg)
	b.until("many looks", func() bool { return counted.opened.Load() > 100 })
	kill()
	if st := v.Status(); st.Failed != 0 || st.Lag != 0 || st.Retrying != 0 {
		t.Errorf("status %+v", st)
	}
	for _, s := range sessions {
		b.wantEach(s)
	}
	if n := value(t, registry, "refold_verifier_verdicts_total", "match"); n != 0 {
		t.Errorf("published %v", n)
	}
	if out.Len() > 0 {
		t.Errorf("said:\n%s", &out)
	}
}

// counting counts how often logs are opened.
type counting struct {
	eventlog.Store
	opened atomic.Int64
}

func (c *counting) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	c.opened.Add(1)
	return c.Store.Open(ctx, id)
}

// TestFlippedOnDisk changes a byte of a session's stream in the files of a server that is down.
func TestFlippedOnDisk(t *testing.T) {
	dir := t.TempDir()
	b := benchAt(t, dir)
	s := newSession(1)
	b.putObjects(s)
	b.write(s, 1000)
	v, kill := b.start(b.config())
	b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
	kill()
	signed := len(b.verdicts(s.id))
	b.client.Close()
	b.server.Shutdown()
	flipOnDisk(t, dir, s.log.Payloads[2])

	b = benchAt(t, dir)
	cfg := b.config()
	cfg.AuditAtStart = true
	_, kill = b.start(cfg)
	defer kill()
	b.until("a verdict on the log", func() bool { return len(b.verdicts(s.id)) > signed })
	got := b.verdicts(s.id)
	if last := got[len(got)-1]; last.Kind != audit.KindLog || last.Result != audit.BrokenChain || last.Rule != audit.RuleSigned {
		t.Errorf("found %s", &last)
	}
}

// flipOnDisk changes a bit of the payload, which stands in one file below dir.
func flipOnDisk(t *testing.T, dir string, payload []byte) {
	t.Helper()
	found := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := bytes.Index(data, payload)
		if at < 0 {
			return nil
		}
		found++
		data[at+len(payload)/2] ^= 1
		return os.WriteFile(path, data, 0o600)
	})
	if err != nil || found != 1 {
		t.Fatalf("the payload stands in %d files: %v", found, err)
	}
}
