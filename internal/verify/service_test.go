package verify_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// bench is a server with streams and a client.
type bench struct {
	t      testing.TB
	server *embedded.Server
	client *jetstream.Client
	key    *audit.Key
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return benchAt(t, t.TempDir())
}

// benchAt returns a server that keeps its files in dir.
func benchAt(t testing.TB, dir string) *bench {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server.InProcess()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, server: server, client: client, key: newKey(t)}
}

func (b *bench) config() verify.Config {
	return verify.Config{
		Store: b.client.Logs(), Objects: b.client.Objects(), Verdicts: b.client.Verdicts(), Key: b.key,
		Registry: prometheus.NewPedanticRegistry(), Hints: follow.Hints(b.client.Hints()), Alive: b.client.Healthy,
		Sweep: 50 * time.Millisecond, RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond,
	}
}

// start runs a verifier and returns a function that kills it.
func (b *bench) start(cfg verify.Config) (*verify.Verifier, func()) {
	b.t.Helper()
	v, err := verify.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	return v, func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
	}
}

// session is a log that is written to the server bit by bit.
type session struct {
	id   events.ID
	log  *foldtest.Log
	next int
}

func newSession(n uint64) *session {
	id := foldtest.ID(1_700_000_000_000, n)
	return &session{id: id, log: audittest.Sample(id)}
}

// putObjects stores the session's objects.
func (b *bench) putObjects(s *session) {
	b.t.Helper()
	r := audittest.Of("", s.log)
	for _, ref := range r.Refs {
		data, _ := r.Source.Bytes(ref.Digest)
		if _, err := objects.Put(b.t.Context(), b.client.Objects(), ref.MediaType, data); err != nil {
			b.t.Fatal(err)
		}
	}
}

// write appends up to n of the session's events and reports whether there are more.
func (b *bench) write(s *session, n int) bool {
	b.t.Helper()
	log, err := b.client.Logs().Create(b.t.Context(), s.id)
	if err != nil {
		b.t.Fatal(err)
	}
	for ; n > 0 && s.next < len(s.log.Events); n-- {
		if err := log.Append(b.t.Context(), &s.log.Events[s.next], s.log.Payloads[s.next]); err != nil {
			b.t.Fatal(err)
		}
		s.next++
	}
	return s.next < len(s.log.Events)
}

func (b *bench) verdicts(id events.ID) []audit.Verdict {
	b.t.Helper()
	var out []audit.Verdict
	for record, err := range b.client.Verdicts().Read(b.t.Context(), id, 1) {
		if err != nil {
			b.t.Fatal(err)
		}
		v, err := audit.DecodeVerdict(record.Payload)
		if err == nil {
			err = v.Verify()
		}
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// until waits for a condition.
func (b *bench) until(what string, holds func() bool) {
	b.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			b.t.Fatalf("not in time: %s", what)
		}
	}
}

// complete reports whether the newest verdict is on the last written event that calls for one.
func (b *bench) complete(s *session) bool {
	last, err := b.client.Verdicts().Last(b.t.Context(), s.id)
	if err != nil {
		return false
	}
	v, err := audit.DecodeVerdict(last.Payload)
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Seq >= lastDue(s)
}

// kindOf returns the kind of the verdict that an event of the type calls for, if any.
func lastDue(s *session) uint64 {
	for i := s.next - 1; i >= 0; i-- {
		if audittest.KindOf(s.log.Events[i].Type()) != "" {
			return uint64(i + 1)
		}
	}
	return 0
}

// wantEach checks that there is exactly one verdict for each request and each turn end, in order, all of them matches.
func (b *bench) wantEach(s *session) {
	b.t.Helper()
	verdicts := b.verdicts(s.id)
	for i := range s.next {
		e := &s.log.Events[i]
		kind := audittest.KindOf(e.Type())
		if kind == "" {
			continue
		}
		if len(verdicts) == 0 {
			b.t.Fatalf("session %s: no verdict on event %d", s.id, e.Seq)
		}
		v := verdicts[0]
		hash, _ := e.Hash()
		if v.Seq != e.Seq || v.Kind != kind || v.Result != audit.Match || v.Chain != hash || v.Event != e.ID {
			b.t.Errorf("session %s: on event %d (%s) stands %s", s.id, e.Seq, e.Type(), &v)
		}
		verdicts = verdicts[1:]
	}
	for i := range verdicts {
		b.t.Errorf("session %s: one verdict too many: %s", s.id, &verdicts[i])
	}
}

// TestVerifiersUnderLoad runs two verifiers over all sessions and kills them at random while sessions grow.
func TestVerifiersUnderLoad(t *testing.T) {
	b := newBench(t)
	var sessions []*session
	for n := range uint64(12) {
		s := newSession(n)
		b.putObjects(s)
		sessions = append(sessions, s)
	}
	random := rand.New(rand.NewPCG(1, 1))
	other := newKey(t)
	configs := [2]func() verify.Config{
		func() verify.Config {
			cfg := b.config()
			cfg.MaxSessions, cfg.Workers = 4, 2 // most states are dropped and folded again
			cfg.ColdShare = 0.3
			return cfg
		},
		func() verify.Config {
			cfg := b.config()
			cfg.Key = other
			return cfg
		},
	}
	var running sync.WaitGroup
	stop := make(chan struct{})
	for i, config := range configs {
		seed := uint64(i)
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, 2))
			for {
				_, kill := b.start(config())
				select {
				case <-stop:
					kill()
					return
				case <-time.After(time.Duration(1+random.IntN(60)) * time.Millisecond):
					kill()
				}
			}
		})
	}
	for open := len(sessions); open > 0; {
		s := sessions[random.IntN(len(sessions))]
		more := s.next < len(s.log.Events)
		if more && !b.write(s, 1+random.IntN(6)) {
			open--
		}
	}
	close(stop)
	running.Wait()
	_, kill := b.start(b.config())
	defer kill()
	for _, s := range sessions {
		b.until("verdicts of session "+string(s.id), func() bool { return b.complete(s) })
		b.wantEach(s)
	}
}

// TestDroppedHints shows that sweeps find what no hint has told, also after a restart.
func TestDroppedHints(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	cfg := b.config()
	cfg.Hints = nil
	_, kill := b.start(cfg)
	b.write(s, 20)
	b.until("verdicts without hints", func() bool { return b.complete(s) })
	kill()
	b.write(s, 1000)
	cfg = b.config()
	cfg.Hints = nil
	_, kill = b.start(cfg)
	defer kill()
	b.until("verdicts after a restart", func() bool { return b.complete(s) })
	b.wantEach(s)
}

// away is an object store that can be away.
type away struct {
	objects.Store
	gone atomic.Bool
}

func (a *away) Get(ctx context.Context, d objects.Digest) ([]byte, error) {
	if a.gone.Load() {
		return nil, objects.ErrUnavailable
	}
	return a.Store.Get(ctx, d)
}

func TestObjectStoreComesBack(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	cfg := b.config()
	store := &away{Store: b.client.Objects()}
	store.gone.Store(true)
	cfg.Objects = store
	cfg.ColdShare = 1
	registry := prometheus.NewPedanticRegistry()
	cfg.Registry = registry
	_, kill := b.start(cfg)
	defer kill()
	b.write(s, 1000)
	b.until("a request that cannot be checked", func() bool { return value(t, registry, "refold_verifier_could_not_check", "") == 1 })
	if got := b.verdicts(s.id); len(got) != 0 {
		t.Errorf("published %v", got)
	}
	store.gone.Store(false)
	b.until("verdicts", func() bool { return b.complete(s) })
	b.wantEach(s)
	b.until("metrics", func() bool {
		return value(t, registry, "refold_verifier_could_not_check", "") == 0 && value(t, registry, "refold_verifier_lag_events", "") == 0
	})
	if n := value(t, registry, "refold_verifier_verdicts_total", "match"); n != 5 {
		t.Errorf("%v matches", n)
	}
	b.until("cold checks", func() bool { return value(t, registry, "refold_verifier_cold_checks_total", "match") >= 1 })
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}

// value returns a metric's value.
func value(t *testing.T, registry prometheus.Gatherer, name, result string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() != result {
				continue
			}
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

// forged is a store whose logs are not the ones that were written.
type forged struct {
	*eventlog.Memory
}

// rewrite puts a log of the payloads given into a memory store.
func rewrite(t *testing.T, id events.ID, log *foldtest.Log) *forged {
	t.Helper()
	f := &forged{eventlog.NewMemory(time.Now)}
	target, err := f.Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for i := range log.Events {
		if err := target.Append(t.Context(), &log.Events[i], log.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestChangedLogs shows a restarted verifier logs that are not what was signed.
func TestChangedLogs(t *testing.T) {
	for name, change := range map[string]func(*foldtest.Log) *foldtest.Log{
		"cut off": func(l *foldtest.Log) *foldtest.Log { return l.Prefix(len(l.Events) - 4) },
		"rewritten to fit": func(l *foldtest.Log) *foldtest.Log {
			changed := later(t, l, true)
			longer := changed.Prefix(len(changed.Events))
			longer.Body = nil
			longer.TurnStart()
			return longer
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := newSession(1)
			b.putObjects(s)
			b.write(s, 1000)
			_, kill := b.start(b.config())
			b.until("verdicts", func() bool { return b.complete(s) })
			kill()
			signed := b.verdicts(s.id)
			for range 2 { // the second restart finds it reported
				cfg := b.config()
				cfg.Hints = nil
				cfg.Store = rewrite(t, s.id, change(s.log))
				v, kill := b.start(cfg)
				b.until("a verdict on the log", func() bool { return len(b.verdicts(s.id)) > len(signed) })
				b.until("a whole sweep", func() bool { return v.Status().Lag == 0 && !v.Status().Swept.IsZero() })
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
			// A later request gets the same result, from a verifier that starts anew as well.
			if name == "cut off" {
				return
			}
			longer := change(s.log)
			longer.Body = nil
			longer.StepStart()
			longer.User("more")
			longer.Stream()
			cfg := b.config()
			cfg.Hints = nil
			cfg.Store = rewrite(t, s.id, longer)
			_, kill = b.start(cfg)
			defer kill()
			b.until("a verdict on the later request", func() bool { return len(b.verdicts(s.id)) > len(got) })
			after := b.verdicts(s.id)
			if last := after[len(after)-1]; last.Kind != audit.KindRequest || last.Result != audit.BrokenChain || last.Rule != audit.RuleEarlier || last.Seq != longer.Len() {
				t.Errorf("found %s", &last)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	b := newBench(t)
	v, kill := b.start(b.config())
	defer kill()
	b.until("the first sweep", func() bool { return !v.Status().Swept.IsZero() })
	if err := v.Health(); err != nil {
		t.Errorf("healthy: %v", err)
	}
	b.server.Shutdown()
	b.until("ill health", func() bool { return v.Health() != nil })

	cfg := b.config()
	now := time.Now()
	cfg.Clock = func() time.Time { return now }
	cfg.Alive = nil
	idle, err := verify.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Health(); err != nil {
		t.Errorf("just made: %v", err)
	}
	now = now.Add(time.Second)
	if idle.Health() == nil {
		t.Error("healthy without any sweep")
	}
}

// TestUntrusted shows that nothing is built on the verdict of somebody else.
func TestUntrusted(t *testing.T) {
	b := newBench(t)
	s := newSession(1)
	b.putObjects(s)
	b.write(s, 1000)
	_, kill := b.start(b.config())
	b.until("verdicts", func() bool { return b.complete(s) })
	kill()
	cfg := b.config()
	cfg.Key = newKey(t)
	cfg.Trusted = []string{cfg.Key.Public()}
	v, kill := b.start(cfg)
	defer kill()
	b.until("a session that is left alone", func() bool { return v.Status().Failed == 1 })
	b.wantEach(s)
}

func TestServiceConfig(t *testing.T) {
	if _, err := verify.New(verify.Config{}); err == nil {
		t.Error("an empty config is accepted")
	}
	b := newBench(t)
	cfg := b.config()
	cfg.ColdShare = 2
	if _, err := verify.New(cfg); err == nil {
		t.Error("a cold share of 2 is accepted")
	}
	cfg = b.config()
	if _, err := verify.New(cfg); err != nil {
		t.Error(err)
	}
	var taken prometheus.AlreadyRegisteredError
	if _, err := verify.New(cfg); !errors.As(err, &taken) {
		t.Errorf("registered twice: %v", err)
	}
}

// TestStreamIsMissing deletes a shared stream before a session comes. That a verdict or a receipt cannot be stored or read is no
// finding, is told as long as it lasts, and keeps nothing from being checked when the stream is there again.
func TestStreamIsMissing(t *testing.T) {
	for _, stream := range []string{jetstream.VerdictsStream, jetstream.WitnessStream} {
		t.Run(stream, func(t *testing.T) {
			b := newBench(t)
			w := b.witness()
			s := newSession(1)
			b.putObjects(s)
			cfg := w.config()
			registry := prometheus.NewPedanticRegistry()
			cfg.Registry = registry
			v, kill := b.start(cfg)
			defer kill()
			b.sweeps(v, 1)
			b.deleteNamed(stream)
			b.write(s, 1000)
			b.until("a session that is tried again", func() bool {
				return value(t, registry, "refold_verifier_retrying_sessions", "") == 1 && value(t, registry, "refold_verifier_lag_events", "") > 0
			})
			b.sweeps(v, 3)
			if st := v.Status(); st.Sessions != 1 || st.Lag == 0 || st.Retrying != 1 || st.Failed != 0 || st.Lost != 0 {
				t.Errorf("status %+v", st)
			}
			if err := b.client.EnsureStreams(t.Context(), stream); err != nil {
				t.Fatal(err)
			}
			for _, e := range audittest.Of("", s.log).Calls() {
				w.saw(s.id, e.Seq, e.Body.(*events.LLMStream).Body, nil)
			}
			b.until("all verdicts", func() bool { return b.complete(s) && v.Status().Retrying == 0 })
			b.wantEach(s)
		})
	}
}
