package verify_test

import (
	"bytes"
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// ended returns a session whose log ends with an event that has a verdict, of which all are published.
func (b *bench) ended() *session {
	b.t.Helper()
	s := newSession(1)
	s.log = s.log.Prefix(int(lastDue(&session{log: s.log, next: len(s.log.Events)})))
	b.putObjects(s)
	b.write(s, 1000)
	v, kill := b.start(b.config())
	b.until("verdicts", func() bool { return b.complete(s) && audited(v) })
	kill()
	return s
}

// publish stores a verdict behind the newest one of its session, as another verifier does.
func (b *bench) publish(key *audit.Key, v audit.Verdict) {
	b.t.Helper()
	last, err := b.client.Verdicts().Last(b.t.Context(), v.Session)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := key.Sign(&v); err != nil {
		b.t.Fatal(err)
	}
	payload, err := v.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.Verdicts().Append(b.t.Context(), v.Session, string(payload[len(payload)-40:]), payload, last.Seq); err != nil {
		b.t.Fatal(err)
	}
}

// TestChangedBehindAFinding rewrites logs whose newest verdict is one on the log already.
func TestChangedBehindAFinding(t *testing.T) {
	for rule, result := range map[string]audit.Result{
		audit.RuleCold: audit.MissingObject, audit.RuleShadow: audit.InvalidLog, audit.RuleLineage: audit.InvalidLog,
	} {
		t.Run(rule, func(t *testing.T) {
			b := newBench(t)
			s := b.ended()
			before := b.verdicts(s.id)
			newest := before[len(before)-1]
			b.publish(b.key, audit.Verdict{
				Kind: audit.KindLog, Session: s.id, Seq: newest.Seq, Event: newest.Event, Chain: newest.Chain, Result: result, Rule: rule, Reason: "found",
			})
			for range 2 { // once
				cfg := b.config()
				cfg.Store, cfg.Hints, cfg.AuditAtStart = rewrite(t, s.id, later(t, s.log, true)), nil, true
				v, kill := b.start(cfg)
				b.until("the finding", func() bool { return len(b.verdicts(s.id)) > len(before)+1 })
				b.sweeps(v, 2)
				kill()
			}
			got := b.verdicts(s.id)[len(before)+1:]
			if len(got) != 1 || got[0].Rule != audit.RuleSigned || got[0].Result != audit.BrokenChain || got[0].Seq != newest.Seq {
				t.Errorf("found %v", got)
			}
		})
	}
}

// meddling does something right before the first verdict is appended.
type meddling struct {
	verify.Records
	once sync.Once
	do   func()
}

func (m *meddling) Append(ctx context.Context, id events.ID, record string, payload []byte, after uint64) (uint64, error) {
	m.once.Do(m.do)
	return m.Records.Append(ctx, id, record, payload, after)
}

// TestAnotherVerifierIsFurther has another verifier, which sees nothing wrong, publish behind an event at which this one finds
// something: that is published all the same, behind what the other one has said, and once.
func TestAnotherVerifierIsFurther(t *testing.T) {
	for name, tt := range map[string]struct {
		changed bool // the log is another at the next start; otherwise a request does not match
		result  audit.Result
		rule    string
	}{
		"the log is another": {changed: true, result: audit.BrokenChain, rule: audit.RuleSigned},
		"a mismatch":         {result: audit.Mismatch},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			var s *session
			if tt.changed {
				s = b.ended()
			} else {
				s = mismatching()
				b.write(s, 1000)
				first := verdictAt(s, 1)
				b.publishFirst(newKey(t), first)
			}
			other, last := newKey(t), lastDue(s)
			ahead := verdictAt(s, last)
			cfg := b.config()
			cfg.Hints = nil
			if tt.changed {
				cfg.Store, cfg.AuditAtStart = rewrite(t, s.id, later(t, s.log, true)), true
				ahead.Seq += 3
			}
			cfg.Verdicts = &meddling{Records: b.client.Verdicts(), do: func() { b.publish(other, ahead) }}
			v, kill := b.start(cfg)
			found := func(v audit.Verdict) bool {
				return v.Verifier == b.key.Public() && v.Rule == tt.rule && v.Result == tt.result
			}
			b.until("the finding", func() bool { return slices.ContainsFunc(b.verdicts(s.id), found) })
			b.sweeps(v, 2)
			kill()
			got := b.verdicts(s.id)
			var seqs []uint64
			n := 0
			for _, v := range got {
				seqs = append(seqs, v.Seq)
				if v.Result != audit.Match {
					n++
				}
			}
			if mine := got[len(got)-1]; n != 1 || !slices.IsSorted(seqs) || !found(mine) || mine.Kind != audit.KindLog || mine.Seq != ahead.Seq {
				t.Errorf("found %v", got)
			}
		})
	}
}

// mismatching returns a session whose first request does not match.
func mismatching() *session {
	l := foldtest.New()
	body, requests := audittest.Bodies(), 0
	l.Body = func(r *fold.Request, source objects.Source) (string, events.BodyDigest) {
		codec, digest := body(r, source)
		if requests++; requests == 1 {
			digest.SHA256[0] ^= 1
		}
		return codec, digest
	}
	l.Begin()
	l.Turn("a", "b")
	return &session{id: l.State.ID(), log: l}
}

// verdictAt returns a head on an event of the session, without a signature.
func verdictAt(s *session, seq uint64) audit.Verdict {
	e := &s.log.Events[seq-1]
	hash, _ := e.Hash()
	return audit.Verdict{Kind: audit.KindHead, Session: s.id, Seq: seq, Event: e.ID, Chain: hash, Result: audit.Match}
}

// publishFirst stores the first verdict of a session.
func (b *bench) publishFirst(key *audit.Key, v audit.Verdict) {
	b.t.Helper()
	if err := key.Sign(&v); err != nil {
		b.t.Fatal(err)
	}
	payload, err := v.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.Verdicts().Append(b.t.Context(), v.Session, "first", payload, 0); err != nil {
		b.t.Fatal(err)
	}
}

// extended returns a copy of the log with the event behind it, whatever the fold says of it.
func extended(t *testing.T, l *foldtest.Log, body events.Body) *foldtest.Log {
	t.Helper()
	last := len(l.Events) - 1
	prev, _ := l.Events[last].Hash()
	e := events.Event{
		Seq: uint64(last) + 2, ID: foldtest.ID(1_700_000_009_999, uint64(last)), Time: l.Events[last].Time + 1, Prev: prev, Body: body,
	}
	_, e.Ignorable = body.(*events.SessionTitle)
	payload, err := events.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	if e, err = events.Decode(payload); err != nil {
		t.Fatal(err)
	}
	return &foldtest.Log{
		State: l.State, Objects: l.Objects,
		Events: append(slices.Clone(l.Events), e), Payloads: append(slices.Clone(l.Payloads), payload),
	}
}

// misplaced returns the body of a request that no log permits behind the end of a turn.
func misplaced(l *foldtest.Log) *events.LLMStream {
	var stream events.LLMStream
	for i := range l.Events {
		if b, ok := l.Events[i].Body.(*events.LLMStream); ok {
			stream = *b
		}
	}
	stream.Objects = nil
	return &stream
}

// TestChangedBehindABreak rewrites logs that are known to be invalid. As they are they give no further verdict.
func TestChangedBehindABreak(t *testing.T) {
	for name, tt := range map[string]struct {
		garbage bool // the event that breaks the log is none, and says nothing of the one before
		later   bool // there is a request behind it
	}{
		"a request": {}, "and another behind it": {later: true}, "no event": {garbage: true}, "no event, and a request behind it": {garbage: true, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := newSession(1)
			s.log = s.log.Prefix(int(lastDue(&session{log: s.log, next: len(s.log.Events)})))
			b.putObjects(s)
			stream, title := misplaced(s.log), &events.SessionTitle{Title: "x"}
			broken := func(l *foldtest.Log) *foldtest.Log {
				if l = extended(t, l, stream); tt.garbage {
					l.Payloads[len(l.Payloads)-1] = []byte(`{"not":"an event"}`)
				}
				if tt.later {
					l = extended(t, extended(t, l, title), stream)
				}
				return l
			}
			honest, forged := broken(s.log), broken(later(t, s.log, true))
			s.log, s.next = honest, len(honest.Events)
			newest := func() audit.Verdict { n := b.verdicts(s.id); return n[len(n)-1] }
			run := func(l *foldtest.Log, until func() bool) {
				cfg := b.config()
				cfg.Store, cfg.Hints, cfg.AuditAtStart = rewrite(t, s.id, l), nil, true
				v, kill := b.start(cfg)
				b.until("verdicts", until)
				b.sweeps(v, 3)
				kill()
			}
			run(honest, func() bool {
				return len(b.verdicts(s.id)) > 0 && newest().Result == audit.InvalidLog && newest().Seq == s.log.Len()
			})
			signed := len(b.verdicts(s.id))
			run(honest, func() bool { return true })
			if n := b.verdicts(s.id)[signed:]; len(n) != 0 {
				t.Fatalf("said of the same log: %v", n)
			}
			for range 2 {
				run(forged, func() bool { return len(b.verdicts(s.id)) > signed })
			}
			if got := b.verdicts(s.id)[signed:]; len(got) != 1 || got[0].Rule != audit.RuleSigned || got[0].Result != audit.BrokenChain {
				t.Errorf("found %v", got)
			}
		})
	}
}

// behind is a store whose logs lack their last events, as at a leader that is still applying them, or in a mirror.
type behind struct {
	eventlog.Store
	lacks  atomic.Int64
	mirror bool // it says that it is behind
	stated bool // it states its last events all the same
	looks  atomic.Int64
}

type behindLog struct {
	eventlog.Log
	store *behind
}

func (b *behind) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	log, err := b.Store.Open(ctx, id)
	return &behindLog{log, b}, err
}

func (b *behind) Sessions(ctx context.Context) iter.Seq2[eventlog.Info, error] {
	return func(yield func(eventlog.Info, error) bool) {
		for info, err := range b.Store.Sessions(ctx) {
			info.Messages -= uint64(b.lacks.Load())
			if !b.stated {
				info.Last = info.Messages
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

func (l *behindLog) Current(context.Context) error {
	if l.store.looks.Add(1); l.store.mirror && l.store.lacks.Load() > 0 {
		return eventlog.ErrUnavailable
	}
	return nil
}

func (l *behindLog) Last(ctx context.Context) (uint64, error) {
	if l.store.stated {
		return l.Log.Last(ctx)
	}
	return l.held(ctx)
}

func (l *behindLog) held(ctx context.Context) (uint64, error) {
	last, err := l.Log.Last(ctx)
	return last - uint64(l.store.lacks.Load()), err
}

func (l *behindLog) Read(ctx context.Context, from uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		last, err := l.held(ctx)
		if err == nil && from > last+1 {
			err = &eventlog.GapError{Want: last + 1}
		}
		if err != nil {
			yield(eventlog.Message{}, err)
			return
		}
		for m, err := range l.Log.Read(ctx, from) {
			if err == nil && m.Seq > last {
				break
			}
			if !yield(m, err) {
				return
			}
		}
		if stated, err := l.Last(ctx); err == nil && stated > last {
			yield(eventlog.Message{}, &eventlog.GapError{Want: last + 1})
		}
	}
}

// TestBehind shows a verifier, while it runs or when it starts, a log that lacks its end for a time. That is no finding, and
// when it stays so it is one, but for a mirror that says of itself that it is behind.
func TestBehind(t *testing.T) {
	for name, tt := range map[string]struct{ restart, mirror, stays, grows, stated bool }{
		"at the start": {restart: true}, "while it runs": {}, "and grows": {grows: true},
		"for good, at the start": {restart: true, stays: true}, "for good, while it runs": {stays: true},
		"stated": {restart: true, stated: true}, "stated, for good": {restart: true, stated: true, stays: true},
		"a mirror, at the start": {restart: true, mirror: true, stays: true}, "a mirror, while it runs": {mirror: true, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.ended()
			store := &behind{Store: b.client.Logs(), mirror: tt.mirror, stated: tt.stated}
			cfg := b.config()
			cfg.Store, cfg.Recheck = store, time.Hour
			if tt.restart {
				store.lacks.Store(1)
			}
			cfg.AuditAtStart = true
			v, kill := b.start(cfg)
			b.sweeps(v, 1)
			signed := len(b.verdicts(s.id))
			store.lacks.Store(1)
			if tt.grows { // a hint comes before the event is there
				more := extended(t, s.log, &events.SessionTitle{Title: "x"})
				b.write(&session{id: s.id, log: more, next: s.next}, 1)
				store.lacks.Store(2)
			}
			b.until("a look", func() bool { return store.looks.Load() > 0 })
			switch {
			case tt.stays && tt.mirror:
				b.sweeps(v, 8)
			case tt.stays:
				b.until("the finding", func() bool { return len(b.verdicts(s.id)) > signed })
			}
			store.lacks.Store(0)
			b.sweeps(v, 5)
			b.until("nothing waits", func() bool { st := v.Status(); return st.Lag == 0 && st.Retrying == 0 })
			kill()
			got := b.verdicts(s.id)[signed:]
			if want := tt.stays && !tt.mirror; want != (len(got) == 1 && got[0].Rule == audit.RuleSigned) || len(got) > 1 {
				t.Errorf("found %v", got)
			}
		})
	}
}

// TestShadowOfAnInvalidRequest has a turn end, an auxiliary request that the fold refuses and one more event in one visit: the
// second fold refuses it as well, which is no difference.
func TestShadowOfAnInvalidRequest(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	s.log = s.log.Prefix(int(lastDue(&session{log: s.log, next: len(s.log.Events)})))
	b.putObjects(s)
	stream := misplaced(s.log)
	stream.Purpose = events.PurposeCompaction
	stream.Auxiliary = &events.Auxiliary{
		Config: events.Config{Provider: "deepseek", Model: "m"}, Region: events.Region{Start: 999, End: 999}, Directive: []events.Block{events.Text("x")},
	}
	s.log = extended(t, s.log, stream)
	at := s.log.Len()
	s.log = extended(t, s.log, &events.SessionTitle{Title: "x"})
	b.write(s, 1000)
	cfg := b.config()
	cfg.ShadowDumb = true
	v, kill := b.start(cfg)
	b.until("verdicts", func() bool { n := b.verdicts(s.id); return len(n) > 0 && n[len(n)-1].Seq >= at })
	b.sweeps(v, 3)
	kill()
	n := 0
	for _, got := range b.verdicts(s.id) {
		if got.Result != audit.Match {
			n++
		}
		if got.Rule == audit.RuleShadow {
			t.Errorf("found %s", &got)
		}
	}
	if n != 1 {
		t.Errorf("%d findings", n)
	}
}

// elsewhere is a store that knows whether a session without a log has one at the origin of a mirror.
type elsewhere struct {
	eventlog.Store
	asked atomic.Int64
}

func (e *elsewhere) Absent(context.Context, events.ID) error {
	e.asked.Add(1)
	return eventlog.ErrUnavailable
}

// TestNotGoneElsewhere: a session that a mirror has lost is there as long as its origin has it, or does not answer.
func TestNotGoneElsewhere(t *testing.T) {
	b := newBench(t)
	s := b.ended()
	b.deleteStream(s.id)
	cfg := b.config()
	store := &elsewhere{Store: b.client.Logs()}
	cfg.Store = store
	v, kill := b.start(cfg)
	b.until("many looks", func() bool { return store.asked.Load() > 6 })
	b.sweeps(v, 1)
	kill()
	b.wantEach(s)
}

// TestRollOut gives a verifier a witness when calls have been made without one. Those were permitted before the first receipt
// of all and owe none; a later one does.
func TestRollOut(t *testing.T) {
	b := newBench(t)
	w := b.witness()
	s, other := newSession(1), newSession(2)
	calls := audittest.Of("", s.log).Calls()
	b.putObjects(s)
	last := calls[len(calls)-1].Seq
	b.write(s, int(calls[1].Seq)) // one call has ended, one is under way
	place := w.saw(other.id, 1, digestOf("another session's"), nil)
	b.write(s, int(last)-s.next-1)
	b.write(s, 1000)
	_, kill := b.start(w.config())
	b.until("verdicts", func() bool { return b.complete(s) })
	kill()
	wires, _ := b.stored(b.client.WireVerdicts(), s.id)
	var got []uint64
	for _, v := range wires {
		got = append(got, v.Seq)
		if v.Rule != audit.RuleUnwitnessed {
			t.Errorf("%s", &v)
		}
	}
	var want []uint64
	for _, c := range calls[2:] {
		want = append(want, c.Seq)
	}
	if !slices.Equal(got, want) || place != 1 {
		t.Errorf("unwitnessed: %d, want %d", got, want)
	}
}

// TestStrangers: without a list of keys everybody's verdicts count, and a verifier says whose it meets.
func TestStrangers(t *testing.T) {
	b := newBench(t)
	s := b.ended()
	first := b.key.Public()
	for _, trusted := range [][]string{nil, {first}} {
		var out bytes.Buffer
		cfg := b.config()
		cfg.Key, cfg.Trusted = newKey(t), trusted
		cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
		v, kill := b.start(cfg)
		b.until("a look at the session", func() bool { return audited(v) })
		b.sweeps(v, 2)
		kill()
		want := 1
		if trusted != nil {
			want = 0
		}
		if n := strings.Count(out.String(), first); n != want {
			t.Errorf("trusted %v: said %d times, want %d:\n%s", trusted, n, want, &out)
		}
	}
	b.wantEach(s)
}
