package verify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/dumb"
	"github.com/refold-dev/refold/pkg/objects"
)

// Records is where verdicts are kept: [jetstream.Records].
type Records interface {
	Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (seq uint64, err error)
	Last(ctx context.Context, session events.ID) (jetstream.Record, error)
	Read(ctx context.Context, session events.ID, from uint64) iter.Seq2[jetstream.Record, error]
	Counts(ctx context.Context) (map[events.ID]uint64, error)
}

// Config says what a verifier checks and where its verdicts go. Store, Objects, Verdicts, Key and Registry are required.
type Config struct {
	Store    eventlog.Store
	Objects  objects.Store
	Verdicts Records
	Witness  Witness
	Key      *audit.Key
	Registry prometheus.Registerer

	// Trusted holds the public keys of the other verifiers whose verdicts are taken for done. A session whose newest
	// verdict is of anybody else is left alone, loudly. Empty: every verdict with a valid signature counts, so that the
	// permission to write verdicts is all that protects them.
	Trusted []string

	// Hints and Partition are as in [follow.Config]; [follow.Hints] listens to the server's.
	Hints     func(ctx context.Context, notify func(session events.ID, last uint64)) error
	Partition func(session events.ID) bool
	// Alive returns why the server cannot be reached, nil when it can. Nil: only sweeps tell.
	Alive func() error

	// ColdShare is the share, in [0,1], of turn ends at which the whole session is checked anew from its first event.
	ColdShare float64
	// Recheck is the time after which, on the average, the log of a session at rest is folded anew and compared with what
	// was signed; the first time within so much time of the start. 0: never, but see AuditAtStart.
	Recheck time.Duration
	// AuditAtStart has that done about all sessions right after the start. Otherwise only the newest verdict of a session
	// at rest is compared with its log then.
	AuditAtStart bool
	// ShadowDumb has the requests of each turn folded a second time by package dumb when the turn has ended, and what both
	// folds show compared. The second fold is slow: of a turn at most the last 16 requests are folded, of a session no further
	// than its first 2,000 events.
	ShadowDumb bool
	// Sweep, Workers, MaxSessions, RetryMin and RetryMax are as in [follow.Config].
	Sweep              time.Duration
	Workers            int
	MaxSessions        int
	RetryMin, RetryMax time.Duration

	// Clock gives the verdicts' times. Nil: the system's.
	Clock func() time.Time
	// Random gives numbers in [0,1) that decide about cold checks. Nil: the system's.
	Random func() float64
	// Log receives what was found and what went wrong. Nil: nobody.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Sweep == 0 {
		c.Sweep = 30 * time.Second
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	switch {
	case c.Store == nil || c.Objects == nil || c.Verdicts == nil || c.Key == nil || c.Registry == nil:
		return errors.New("verifier: Store, Objects, Verdicts, Key and Registry are required")
	case !(c.ColdShare >= 0 && c.ColdShare <= 1):
		return fmt.Errorf("verifier: cold share %v, want 0 to 1", c.ColdShare)
	}
	return c.Witness.validate()
}

// Verifier is the service that checks all sessions and publishes signed verdicts. Any number may run at once.
type Verifier struct {
	cfg      Config
	follower *follow.Follower
	metrics  *metrics
	started  time.Time

	mu        sync.Mutex
	unchecked map[*handler]struct{} // those that wait for objects, a parent or receipts
	early     map[events.ID]int     // sessions whose logs end before what was signed, and in how many looks that was seen
	holes     map[events.ID]hole    // sessions whose logs state a last event that is not there

	strangers strangers

	accusing sync.Mutex // held while it is looked whether a receipt is accused already, and while that is published

	receiptLooks, absenceLooks looks
	unread                     atomic.Int64 // sessions whose receipts from before the start were not looked at
	unbelieved                 atomic.Int64 // sessions without a log whose newest verdict is not to be believed

	second secondFold // dumb.RequestOf, but in tests
}

// New returns a verifier and registers its metrics. The error says what in cfg is wrong.
func New(cfg Config) (*Verifier, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	v := &Verifier{
		cfg: cfg, started: cfg.Clock(), second: dumb.RequestOf,
		unchecked: make(map[*handler]struct{}), early: make(map[events.ID]int), holes: make(map[events.ID]hole),
	}
	var err error
	v.follower, err = follow.New(follow.Config{
		Store: cfg.Store, Open: v.open, Position: v.position, AtRest: v.atRest, Hints: cfg.Hints, Partition: cfg.Partition,
		Audit: cfg.AuditAtStart, Recheck: cfg.Recheck, Sweep: cfg.Sweep, Workers: cfg.Workers, MaxSessions: cfg.MaxSessions,
		RetryMin: cfg.RetryMin, RetryMax: cfg.RetryMax, Log: cfg.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("verifier: %w", err)
	}
	if v.metrics, err = newMetrics(cfg.Registry, v); err != nil {
		return nil, fmt.Errorf("verifier: register metrics: %w", err)
	}
	return v, nil
}

// Run checks until ctx ends, which is no error. Whatever it had not published by then is checked again by the next run.
func (v *Verifier) Run(ctx context.Context) error {
	v.cfg.Log.InfoContext(ctx, "verdicts are signed with this key", slog.String("verifier", v.cfg.Key.Public()))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return v.follower.Run(ctx) })
	group.Go(func() error { newAbsences(v).run(ctx); return nil })
	if v.cfg.Witness.on() {
		group.Go(func() error { newStrays(v).run(ctx); return nil })
	}
	return group.Wait()
}

// Status returns how far the verifier is.
func (v *Verifier) Status() follow.Status { return v.follower.Status() }

const (
	// overdue is how many times the time between sweeps may pass without a complete one.
	overdue = 3
	// overdueLooks is the same of looks for receipts without a call, and for sessions that are gone.
	overdueLooks = 10
)

// Health returns why the verifier does not do its work, nil when it does: the server is away, or sweeps or looks are overdue.
// A look that fails about single sessions is none of this: anybody who may write a record could bring that about.
func (v *Verifier) Health() error {
	if v.cfg.Alive != nil {
		if err := v.cfg.Alive(); err != nil {
			return err
		}
	}
	st := v.follower.Status()
	if st.SweepErr != nil {
		return fmt.Errorf("the newest sweep was not complete: %w", st.SweepErr)
	}
	since := st.Swept
	if since.IsZero() {
		since = v.started
	}
	now := v.cfg.Clock()
	if age := now.Sub(since); age > overdue*v.cfg.Sweep {
		return fmt.Errorf("no complete sweep for %v, they are due every %v", age.Round(time.Second), v.cfg.Sweep)
	}
	if age := v.absenceLooks.since(now, v.started); age > overdueLooks*v.cfg.Sweep {
		return fmt.Errorf("no look for sessions that are gone for %v, they are due every %v", age.Round(time.Second), v.cfg.Sweep)
	}
	if age := v.receiptLooks.since(now, v.started); v.cfg.Witness.on() && age > overdueLooks*v.cfg.Sweep {
		return fmt.Errorf("no look at the receipts for %v, they are due every %v", age.Round(time.Second), v.cfg.Sweep)
	}
	return nil
}

// position is what was published last about a session.
type position struct {
	place   uint64 // of the record, 0 when there is none
	verdict audit.Verdict
}

// before reports whether a verdict on seq of the kind comes behind what was published. About one event there is a
// request or head verdict first and then one about the log.
func (p *position) before(seq uint64, kind audit.Kind) bool {
	return seq > p.verdict.Seq || seq == p.verdict.Seq && kind == audit.KindLog && p.verdict.Kind != audit.KindLog
}

// newest reads a session's newest verdict on a request, a head or the log. One that cannot be believed is a final error.
func (v *Verifier) newest(ctx context.Context, session events.ID) (position, error) {
	return v.newestOf(ctx, v.cfg.Verdicts, session)
}

// newestOf reads a session's newest verdict of those that records holds, as [Verifier.newest] does.
func (v *Verifier) newestOf(ctx context.Context, records Records, session events.ID) (position, error) {
	record, err := records.Last(ctx, session)
	if errors.Is(err, eventlog.ErrNotFound) {
		return position{}, nil
	}
	if err != nil {
		return position{}, fmt.Errorf("read the newest verdict: %w", err)
	}
	verdict, err := v.believed(&record)
	if err != nil {
		return position{}, fmt.Errorf("%w: session %s: record %d is not to be believed: %w", follow.ErrFinal, session, record.Seq, err)
	}
	return position{place: record.Seq, verdict: verdict}, nil
}

// trusts reports whether the verdicts of a verifier count. Its signature was checked.
func (v *Verifier) trusts(public string) bool {
	if public == v.cfg.Key.Public() || slices.Contains(v.cfg.Trusted, public) {
		return true
	}
	if len(v.cfg.Trusted) > 0 {
		return false
	}
	if v.strangers.add(public) {
		v.cfg.Log.Warn("no verifier's key is trusted (--trust), so that anybody's verdicts count: here are some of another key",
			slog.String("verifier", public))
	}
	return true
}

// strangers are the keys of other verifiers that were met. Only the first few are kept.
type strangers struct {
	mu   sync.Mutex
	keys []string
}

// maxStrangers bounds how many are told of.
const maxStrangers = 8

// add reports whether the key is to be told of: it was not met before.
func (s *strangers) add(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == maxStrangers || slices.Contains(s.keys, key) {
		return false
	}
	s.keys = append(s.keys, key)
	return true
}

func (v *Verifier) position(ctx context.Context, session events.ID) (uint64, error) {
	p, err := v.newest(ctx, session)
	return p.verdict.Seq, err
}

func (v *Verifier) open(ctx context.Context, session events.ID, _ uint64) (follow.Handler, uint64, error) {
	p, err := v.newest(ctx, session)
	if err != nil {
		return nil, 0, err
	}
	h := &handler{
		verifier: v, session: session, published: p, baseline: p, shadowed: p.verdict.Seq,
		checker: audit.NewChecker(audit.CheckerConfig{
			Session: session, Objects: audit.FromStore(v.cfg.Objects), Parents: audit.FromLogs(v.cfg.Store), Quiet: p.verdict.Seq,
		}),
	}
	if h.calls, err = v.openCalls(ctx, session); err != nil {
		return nil, 0, err
	}
	if h.marks, err = v.marksOf(ctx, session, &p.verdict); err != nil {
		return nil, 0, err
	}
	h.look = p.verdict.Seq > 0 // otherwise the first event calls for it
	from := uint64(1)
	if p.verdict.Result == audit.BrokenChain { // nothing before it can heal the log
		h.checker.Break(p.verdict)
		from = p.verdict.Seq + 1
	}
	return h, from, nil
}

// waitsFor records whether a handler waits for something that cannot be checked now.
func (v *Verifier) waitsFor(h *handler, waits bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if waits {
		v.unchecked[h] = struct{}{}
	} else {
		delete(v.unchecked, h)
	}
}

func (v *Verifier) waiting() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.unchecked)
}
