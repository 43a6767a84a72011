package verify_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestForkBitByBit checks a fork while it is written, with verifiers that come and go: every request and head, those of the
// copies too, gets one verdict, and nothing is said of the parent.
func TestForkBitByBit(t *testing.T) {
	b := newBench(t)
	parent, fork := audittest.Forked()
	p, f := &session{id: parent.State.ID(), log: parent}, &session{id: fork.State.ID(), log: fork}
	b.putObjects(f)
	b.write(p, 1000)
	for more := true; more; {
		_, kill := b.start(b.config())
		more = b.write(f, 17)
		if lastDue(f) > 0 {
			b.until("verdicts on what was written", func() bool { return b.complete(f) })
		}
		kill()
	}
	b.wantEach(f)
	b.until("verdicts on the parent", func() bool {
		_, kill := b.start(b.config())
		defer kill()
		return b.complete(p)
	})
	b.wantEach(p)
}

// TestParentComesLater runs a verifier over a fork whose parent's log is not there yet. When it has come, the fork's next
// turn, or the next verifier, looks at it, and what is wrong with it is said once.
func TestParentComesLater(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*foldtest.Log) *foldtest.Log
		restart bool
		broken  bool
	}{
		"as forked":                  {change: func(l *foldtest.Log) *foldtest.Log { return l }},
		"another":                    {change: func(l *foldtest.Log) *foldtest.Log { return later(t, l, true) }, broken: true},
		"shorter":                    {change: func(l *foldtest.Log) *foldtest.Log { return l.Prefix(len(l.Events) - 1) }, broken: true},
		"as forked, another process": {change: func(l *foldtest.Log) *foldtest.Log { return l }, restart: true},
		"another, another process":   {change: func(l *foldtest.Log) *foldtest.Log { return later(t, l, true) }, restart: true, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			parent, fork := audittest.Forked()
			f := &session{id: fork.State.ID(), log: fork}
			b.putObjects(f)
			store := eventlog.NewMemory(time.Now)
			var out bytes.Buffer
			start := func() (*verify.Verifier, func()) {
				cfg := b.config()
				cfg.Store, cfg.Hints, cfg.AuditAtStart = store, nil, true
				cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
				return b.start(cfg)
			}
			write(t, store, f)
			v, kill := start()
			b.until("verdicts", func() bool { return b.complete(f) && audited(v) })
			if tt.restart {
				kill()
			}
			b.wantEach(f)
			write(t, store, &session{id: parent.State.ID(), log: tt.change(parent)})
			signed := len(b.verdicts(f.id))
			if tt.restart {
				v, kill = start()
			} else {
				fork.Turn("one", "more")
				write(t, store, f)
			}
			b.until("a look", func() bool { return b.complete(f) && audited(v) })
			if tt.broken {
				b.until("a verdict on the fork", func() bool {
					got := b.verdicts(f.id)
					return got[len(got)-1].Rule == audit.RuleLineage
				})
			}
			kill()
			found, rest := 0, 0
			for i, got := range b.verdicts(f.id) {
				if got.Rule == "" {
					continue
				}
				found++
				hash, _ := fork.Events[got.Seq-1].Hash()
				if got.Kind != audit.KindLog || got.Result != audit.InvalidLog || got.Rule != audit.RuleLineage ||
					got.Seq != lastDue(f) || got.Chain != hash || i < signed {
					t.Errorf("found %s", &got)
				}
			}
			if found != map[bool]int{true: 1}[tt.broken] {
				t.Errorf("found %d faults", found)
			}
			if n := bytes.Count(out.Bytes(), []byte("not there to compare with")); n != 1 {
				t.Errorf("told %d times:\n%s", n, &out)
			}
			for range 2 { // nothing is said again
				fork.Turn("and", "on")
				write(t, store, f)
				v, kill = start()
				b.until("verdicts", func() bool { return b.complete(f) && audited(v) })
				kill()
			}
			for _, got := range b.verdicts(f.id) {
				if got.Rule != "" {
					rest++
				}
			}
			if rest != found {
				t.Errorf("found %d faults in the end, %d before", rest, found)
			}
		})
	}
}

// write appends what a memory store does not hold of the session yet.
func write(t *testing.T, store eventlog.Store, s *session) {
	t.Helper()
	log, err := store.Create(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	for ; s.next < len(s.log.Events); s.next++ {
		if err := log.Append(t.Context(), &s.log.Events[s.next], s.log.Payloads[s.next]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForkOfAnotherLog runs a verifier over a fork whose parent's log is not any more what it was: that is found once, and
// the fork's own requests are judged all the same.
func TestForkOfAnotherLog(t *testing.T) {
	b := newBench(t)
	parent, fork := audittest.Forked()
	for _, ref := range audittest.Of("", fork).Refs {
		data, _ := fork.Objects.Bytes(ref.Digest)
		if _, err := objects.Put(t.Context(), b.client.Objects(), ref.MediaType, data); err != nil {
			t.Fatal(err)
		}
	}
	store := rewrite(t, parent.State.ID(), later(t, parent, true))
	log, err := store.Create(t.Context(), fork.State.ID())
	if err != nil {
		t.Fatal(err)
	}
	for i := range fork.Events {
		if err := log.Append(t.Context(), &fork.Events[i], fork.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a verifier that starts again does not report it again
		cfg := b.config()
		cfg.Hints, cfg.Store = nil, store
		v, kill := b.start(cfg)
		b.until("all verdicts", func() bool { return audited(v) })
		kill()
	}
	verdicts := b.verdicts(fork.State.ID())
	if first := verdicts[0]; first.Kind != audit.KindLog || first.Result != audit.InvalidLog || first.Rule != audit.RuleLineage || first.Seq != 1 {
		t.Errorf("%s", &first)
	}
	requests := 0
	for _, v := range verdicts[1:] {
		if v.Kind == audit.KindRequest {
			requests++
		}
		if v.Result != audit.Match {
			t.Errorf("%s", &v)
		}
	}
	if requests != 7 {
		t.Errorf("%d requests", requests)
	}
}
