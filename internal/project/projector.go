package project

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Records is where records are published: the part of [jetstream.Records] that a projector uses.
type Records interface {
	// Append stores a session's record behind the one at the place after, or fails with a [jetstream.ConflictError].
	Append(ctx context.Context, session events.ID, id string, payload []byte, after uint64) (uint64, error)
	// Last returns the session's last record, or an error that wraps [eventlog.ErrNotFound].
	Last(ctx context.Context, session events.ID) (jetstream.Record, error)
}

// Config says what is projected and where to. Store, Steps, Objects, Instance and Registry are required.
type Config struct {
	Store   eventlog.Store
	Steps   Records
	Objects objects.Store
	// Hints tells when sessions have grown. Nil: there are only sweeps.
	Hints *jetstream.Hints
	// Instance names this run of the projector; no two may share it.
	Instance events.ID
	// Registry gets the metrics.
	Registry prometheus.Registerer

	// TTL is how long a provider is taken to keep a prefix that nobody uses. 0: [DefaultTTL].
	TTL time.Duration
	// MaxModels bounds the models that get a label of their own. 0: [DefaultMaxModels].
	MaxModels int
	// Sweep, Workers and MaxSessions are those of [follow.Config].
	Sweep       time.Duration
	Workers     int
	MaxSessions int

	// Log receives what nobody can be told. Nil: nobody.
	Log *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Store == nil || c.Steps == nil || c.Objects == nil || c.Registry == nil:
		return errors.New("projector: Store, Steps, Objects and Registry are required")
	case !c.Instance.Valid():
		return fmt.Errorf("projector: instance %q is no ULID", c.Instance)
	case c.TTL < 0 || c.MaxModels < 0:
		return fmt.Errorf("projector: TTL %v, %d models: want none negative", c.TTL, c.MaxModels)
	}
	return nil
}

// Projector publishes a record of every finished step and every auxiliary call of every session, each once however many
// projectors run, and counts those that it published itself. Make it with [New] and run it once.
type Projector struct {
	cfg      Config
	metrics  *Metrics
	follower *follow.Follower
}

// New returns a projector and registers its metrics. The error says what in cfg is wrong.
func New(cfg Config) (*Projector, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Projector{cfg: cfg}
	fc := follow.Config{
		Store: cfg.Store, Open: p.open, Position: p.position,
		Sweep: cfg.Sweep, Workers: cfg.Workers, MaxSessions: cfg.MaxSessions, Log: cfg.Log,
	}
	if cfg.Hints != nil {
		fc.Hints = p.hints
	}
	var err error
	if p.follower, err = follow.New(fc); err != nil {
		return nil, fmt.Errorf("projector: %w", err)
	}
	if p.metrics, err = NewMetrics(cfg.Registry, cfg.MaxModels); err != nil {
		return nil, err
	}
	return p, p.gauges()
}

// gauges registers how the projector stands.
func (p *Projector) gauges() error {
	for _, g := range []struct {
		name, help string
		value      func(follow.Status) float64
	}{
		{"refold_projector_sessions", "Sessions known.", func(s follow.Status) float64 { return float64(s.Sessions) }},
		{"refold_projector_sessions_behind", "Sessions with events not looked at.", func(s follow.Status) float64 { return float64(s.Behind) }},
		{"refold_projector_sessions_failed", "Sessions given up because their log is invalid.", func(s follow.Status) float64 { return float64(s.Failed) }},
		{"refold_projector_lag_events", "Events not looked at.", func(s follow.Status) float64 { return float64(s.Lag) }},
	} {
		err := p.cfg.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: g.name, Help: g.help},
			func() float64 { return g.value(p.Status()) }))
		if err != nil {
			return fmt.Errorf("projector metrics: %w", err)
		}
	}
	return nil
}

// Run projects until ctx ends and returns nil then, after everything that was under way has ended.
//
// It may be ended at any point, by force too: a step whose record was not stored is found again by the next run, and one
// whose record was is passed over.
func (p *Projector) Run(ctx context.Context) error {
	if err := p.follower.Run(ctx); err != nil {
		return fmt.Errorf("projector: %w", err)
	}
	return nil
}

// Status returns how the projector stands, for a health check.
func (p *Projector) Status() follow.Status { return p.follower.Status() }

// Notify tells the projector that the session's log has reached last. It may be wrong.
func (p *Projector) Notify(session events.ID, last uint64) { p.follower.Notify(session, last) }

// hints passes on that there may be something to record.
func (p *Projector) hints(ctx context.Context, notify func(events.ID, uint64)) error {
	sub, err := p.cfg.Hints.Subscribe(ctx)
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		hint, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if recorded(hint.Type) {
			notify(hint.Session, hint.Seq)
		}
	}
}

// last returns the session's newest record and its place in the stream, zeros when there is none.
func (p *Projector) last(ctx context.Context, session events.ID) (seq, place uint64, err error) {
	stored, err := p.cfg.Steps.Last(ctx, session)
	if errors.Is(err, eventlog.ErrNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	r, err := Decode(stored.Payload)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: session %s: record %d: %w", follow.ErrFinal, session, stored.Seq, err)
	}
	if r.Session != session {
		return 0, 0, fmt.Errorf("%w: session %s: record %d: %w: it is of session %s", follow.ErrFinal, session, stored.Seq, ErrInvalid, r.Session)
	}
	return r.Seq, stored.Seq, nil
}

func (p *Projector) position(ctx context.Context, session events.ID) (uint64, error) {
	seq, _, err := p.last(ctx, session)
	return seq, err
}

// open returns a handler that goes on behind the session's newest record.
func (p *Projector) open(ctx context.Context, session events.ID, last uint64) (follow.Handler, uint64, error) {
	position, place, err := p.last(ctx, session)
	if err != nil {
		return nil, 0, err
	}
	if last < position {
		return nil, 0, fmt.Errorf("%w: session %s: the log ends at event %d, but what ended at event %d was recorded: the log was cut or replaced",
			follow.ErrFinal, session, last, position)
	}
	h := &handler{p: p, id: session, position: position, place: place}
	if position == 0 {
		h.session = NewSession(session, Options{TTL: p.cfg.TTL})
	}
	return h, position + 1, nil
}
