package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Config says what is mirrored. Mirrors and Registry are required.
type Config struct {
	Mirrors  *jetstream.Mirrors
	Registry prometheus.Registerer

	// Hints calls notify for sessions that have grown, until ctx ends; those of which there is no mirror get one at once
	// instead of at the next sweep. They may be lost, doubled or wrong. When it returns before, it is called again after a
	// wait. Nil: there are only sweeps.
	Hints func(ctx context.Context, notify func(session events.ID, last uint64)) error
	// Sweep is the time between two looks at all streams. 0: 10 s.
	Sweep time.Duration
	// Log receives what was found. Nil: nobody.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	if c.Sweep == 0 {
		c.Sweep = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	switch {
	case c.Mirrors == nil || c.Registry == nil:
		return errors.New("mirror: Mirrors and Registry are required")
	case c.Sweep < 0:
		return fmt.Errorf("mirror: sweep %v: want a positive time", c.Sweep)
	}
	return nil
}

// Finding is what is wrong with a stream. Empty: nothing.
type Finding string

// The findings. The mirror stays as it is in each of these cases: what was copied before is not lost.
const (
	// Lost: the origin has no such stream any more.
	Lost Finding = "lost"
	// Replaced: the origin has another stream by that name. What comes from it joins what was copied before, if at all.
	Replaced Finding = "replaced"
	// Shorter: the origin's stream ends before the mirror.
	Shorter Finding = "shorter"
	// Foreign: the stream in this account is no mirror, and none can be made under its name.
	Foreign Finding = "foreign"
)

// findings returns all findings, in the order in which they are reported.
func findings() []Finding { return []Finding{Lost, Replaced, Shorter, Foreign} }

// Status is what the newest sweep found.
type Status struct {
	Streams  int                // mirrors here
	Behind   int                // those that lack messages
	Lag      uint64             // the messages that they lack
	Findings map[Finding]int    // how many streams have each
	Found    map[string]Finding // by the name of the stream
	// Swept is when the last complete sweep ended, zero before the first.
	Swept time.Time
	// Err is why the newest sweep was not complete, nil when it was.
	Err error
}

// Mirror is the service. Several may run at once.
type Mirror struct {
	cfg     Config
	metrics *metrics
	started time.Time
	news    chan events.ID // sessions that are not known

	mu     sync.Mutex
	known  map[string]bool // streams that have a mirror here, or something in its place
	status Status
}

// newsBuffer is how many new sessions may wait; the others are found by the next sweep.
const newsBuffer = 1024

// New returns a mirror and registers its metrics. The error says what in cfg is wrong.
func New(cfg Config) (*Mirror, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Mirror{cfg: cfg, started: time.Now(), news: make(chan events.ID, newsBuffer), known: make(map[string]bool)}
	var err error
	if m.metrics, err = newMetrics(cfg.Registry, m); err != nil {
		return nil, fmt.Errorf("mirror: register metrics: %w", err)
	}
	return m, nil
}

// Status returns what the newest sweep found.
func (m *Mirror) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// overdue is how many times the time between sweeps may pass without a complete one.
const overdue = 3

// Health returns why the mirror does not do its work, nil when it does. That a stream is lost at the origin is no reason.
func (m *Mirror) Health() error {
	st := m.Status()
	if st.Err != nil {
		return fmt.Errorf("the newest sweep was not complete: %w", st.Err)
	}
	since := st.Swept
	if since.IsZero() {
		since = m.started
	}
	if age := time.Since(since); age > overdue*m.cfg.Sweep {
		return fmt.Errorf("no complete sweep for %v, they are due every %v", age.Round(time.Second), m.cfg.Sweep)
	}
	return nil
}

// Run mirrors until ctx ends, which is no error.
func (m *Mirror) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if m.cfg.Hints != nil {
		group.Go(func() error { m.hear(ctx); return nil })
	}
	group.Go(func() error { m.work(ctx); return nil })
	return group.Wait()
}

// work sweeps again and again, and makes mirrors of new sessions in between.
func (m *Mirror) work(ctx context.Context) {
	m.sweep(ctx)
	timer := time.NewTimer(m.cfg.Sweep)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-m.news:
			if err := m.add(ctx, jetstream.SessionStream(id)); err != nil && ctx.Err() == nil && !errors.Is(err, eventlog.ErrNotFound) {
				m.cfg.Log.WarnContext(ctx, "a new session is mirrored at the next sweep", slog.String("session", string(id)), slog.Any("error", err))
			}
		case <-timer.C:
			m.sweep(ctx)
			timer.Reset(m.cfg.Sweep)
		}
	}
}

// hear listens to hints.
func (m *Mirror) hear(ctx context.Context) {
	for {
		err := m.cfg.Hints(ctx, m.notify)
		if ctx.Err() != nil {
			return
		}
		m.cfg.Log.WarnContext(ctx, "hints ended, new sessions are found by sweeps meanwhile", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.cfg.Sweep):
		}
	}
}

func (m *Mirror) notify(id events.ID, _ uint64) {
	if !id.Valid() {
		return
	}
	m.mu.Lock()
	known := m.known[jetstream.SessionStream(id)]
	m.mu.Unlock()
	if known {
		return
	}
	select {
	case m.news <- id:
	default:
	}
}

// add makes the mirror of one stream, unless it is known.
func (m *Mirror) add(ctx context.Context, name string) error {
	m.mu.Lock()
	known := m.known[name]
	m.mu.Unlock()
	if known {
		return nil
	}
	there, err := m.cfg.Mirrors.LookThere(ctx, name)
	if err != nil {
		return err
	}
	return m.make(ctx, there)
}

func (m *Mirror) make(ctx context.Context, there jetstream.StreamState) error {
	if err := m.cfg.Mirrors.Make(ctx, there); err != nil {
		return err
	}
	m.metrics.made.Inc()
	m.cfg.Log.InfoContext(ctx, "mirror made", slog.String("stream", there.Name))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[there.Name] = true
	return nil
}

// sweep compares all streams here with those at the origin.
func (m *Mirror) sweep(ctx context.Context) {
	s := sweep{mirror: m, before: m.Status().Found, status: Status{Findings: make(map[Finding]int), Found: make(map[string]Finding)}}
	err := s.run(ctx)
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil { // what was found before stands until it is looked at again
		m.status.Err = err
		m.cfg.Log.WarnContext(ctx, "sweep not complete", slog.Any("error", err))
		return
	}
	s.status.Swept = time.Now()
	m.status = s.status
}

// sweep is a look at all streams.
type sweep struct {
	mirror *Mirror
	before map[string]Finding // of the last complete one
	status Status
	failed error // the first mirror that could not be made
}

func (s *sweep) run(ctx context.Context) error {
	here, err := s.here(ctx)
	if err != nil {
		return err
	}
	there, err := s.there(ctx)
	if err != nil {
		return err
	}
	for len(here)+len(there) > 0 { // both are in the order of the names
		switch {
		case len(here) == 0 || len(there) > 0 && there[0].Name < here[0].Name:
			if err := s.fresh(ctx, there[0]); err != nil {
				return err
			}
			there = there[1:]
		case len(there) == 0 || here[0].Name < there[0].Name:
			if err := s.gone(ctx, here[0]); err != nil {
				return err
			}
			here = here[1:]
		default:
			s.both(ctx, here[0], there[0])
			here, there = here[1:], there[1:]
		}
	}
	return s.failed
}

// here returns the streams in this account. They are looked at before those at the origin, so that a mirror that grows
// meanwhile does not look longer than what it mirrors.
func (s *sweep) here(ctx context.Context) ([]jetstream.StreamState, error) {
	list, err := collect(s.mirror.cfg.Mirrors.Here(ctx))
	if err != nil {
		return nil, err
	}
	for _, name := range jetstream.MirroredStreams() {
		state, err := s.mirror.cfg.Mirrors.LookHere(ctx, name)
		switch {
		case errors.Is(err, eventlog.ErrNotFound):
		case err != nil:
			return nil, err
		default:
			list = append(list, state)
		}
	}
	sortByName(list)
	s.mirror.mu.Lock()
	defer s.mirror.mu.Unlock()
	for i := range list {
		s.mirror.known[list[i].Name] = true
	}
	return list, nil
}

// there returns the streams at the origin.
func (s *sweep) there(ctx context.Context) ([]jetstream.StreamState, error) {
	list, err := collect(s.mirror.cfg.Mirrors.There(ctx))
	if err != nil {
		return nil, err
	}
	for _, name := range jetstream.MirroredStreams() {
		state, err := s.mirror.cfg.Mirrors.LookThere(ctx, name)
		switch {
		case errors.Is(err, eventlog.ErrNotFound): // such as WITNESS, where there is no witness
		case err != nil:
			return nil, err
		default:
			list = append(list, state)
		}
	}
	sortByName(list)
	return list, nil
}

// fresh makes the mirror of a stream that has none. An error ends the sweep: no other could be made either.
func (s *sweep) fresh(ctx context.Context, there jetstream.StreamState) error {
	if there.Unknown { // its age must be known
		return nil
	}
	err := s.mirror.make(ctx, there)
	switch {
	case err == nil:
		s.status.Streams++
		s.behind(there.Last)
	case errors.Is(err, eventlog.ErrPermission), errors.Is(err, eventlog.ErrFull), ctx.Err() != nil:
		return err
	case s.failed == nil:
		s.failed = err
	}
	return nil
}

// gone looks at a stream that the origin did not list.
func (s *sweep) gone(ctx context.Context, here jetstream.StreamState) error {
	if !here.Mirror && !here.Unknown { // made by somebody in this account
		s.find(ctx, here.Name, Foreign, "")
		return nil
	}
	s.status.Streams++
	if s.before[here.Name] != Lost {
		there, err := s.mirror.cfg.Mirrors.LookThere(ctx, here.Name)
		if err == nil { // it was made a moment ago
			s.status.Streams--
			s.both(ctx, here, there)
			return nil
		}
		if !errors.Is(err, eventlog.ErrNotFound) {
			return err
		}
	}
	s.find(ctx, here.Name, Lost, fmt.Sprintf("the mirror has %d messages", here.Last))
	return nil
}

// both compares a mirror with what it mirrors.
func (s *sweep) both(ctx context.Context, here, there jetstream.StreamState) {
	switch {
	case here.Unknown || there.Unknown:
		s.status.Streams++
		return
	case !here.Mirror:
		s.find(ctx, here.Name, Foreign, "")
		return
	}
	s.status.Streams++
	switch {
	case !here.Origin.IsZero() && !here.Origin.Equal(there.Created):
		s.find(ctx, here.Name, Replaced, fmt.Sprintf("it was made at %s, the mirrored one at %s",
			there.Created.Format(time.RFC3339Nano), here.Origin.Format(time.RFC3339Nano)))
	case there.Last < here.Last:
		s.find(ctx, here.Name, Shorter, fmt.Sprintf("it ends at %d, the mirror at %d", there.Last, here.Last))
	default:
		s.behind(there.Last - here.Last)
	}
	if here.Problem != "" {
		s.mirror.cfg.Log.WarnContext(ctx, "a mirror does not follow", slog.String("stream", here.Name), slog.String("problem", here.Problem))
	}
}

func (s *sweep) behind(n uint64) {
	if n > 0 {
		s.status.Behind++
		s.status.Lag += n
	}
}

// find records what is wrong with a stream, and tells of it when it is new.
func (s *sweep) find(ctx context.Context, name string, f Finding, detail string) {
	s.status.Findings[f]++
	s.status.Found[name] = f
	if s.before[name] != f {
		s.mirror.cfg.Log.ErrorContext(ctx, "a stream at the origin is not what was mirrored",
			slog.String("stream", name), slog.String("finding", string(f)), slog.String("detail", detail))
	}
}

func collect(streams func(yield func(jetstream.StreamState, error) bool)) (list []jetstream.StreamState, err error) {
	for s, err := range streams {
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func sortByName(list []jetstream.StreamState) {
	slices.SortFunc(list, func(a, b jetstream.StreamState) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
}
