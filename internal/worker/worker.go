package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Worker takes inputs from the inbox and runs the sessions that they belong to.
type Worker struct {
	cfg      Config
	client   *jetstream.Client
	logs     eventlog.Store
	idle     time.Duration
	keep     time.Duration
	patience time.Duration // with an owner that does not answer
	m        *Metrics

	mu       sync.Mutex
	sessions map[events.ID]*session
	since    map[events.ID]time.Time // instances that do not answer, and since when
	running  *errgroup.Group
}

// Service is what a worker needs beside the loop's own configuration.
type Service struct {
	Client  *jetstream.Client
	Logs    eventlog.Store // the sessions' logs; nil: the client's
	Idle    time.Duration  // a session at rest is kept in memory this long; 0: 1 min
	AckWait time.Duration  // the client's; 0: 30 s
	Metrics *Metrics
}

// New returns a worker. It does nothing before Run.
func New(cfg Config, s Service) (*Worker, error) {
	if s.Client == nil || s.Metrics == nil {
		return nil, errors.New("worker: a client and metrics are required")
	}
	if s.Logs == nil {
		s.Logs = s.Client.Logs()
	}
	setDefault(&s.Idle, time.Minute)
	setDefault(&s.AckWait, 30*time.Second)
	if most := int(s.Client.MaxPayload()) - headerRoom; cfg.MaxEventBytes == 0 || cfg.MaxEventBytes > most {
		cfg.MaxEventBytes = most
	}
	setDefault(&cfg.InlineMax, defaultInlineMax)
	cfg.InlineMax = min(max(cfg.InlineMax, 1), cfg.MaxEventBytes/inlineShare)
	cfg.metrics = s.Metrics
	if cfg.Sessions == nil {
		cfg.Sessions = s.Logs
	}
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Worker{
		cfg: cfg, client: s.Client, logs: s.Logs, idle: s.Idle, keep: s.AckWait / 3, patience: s.AckWait, m: s.Metrics, sessions: make(map[events.ID]*session), since: make(map[events.ID]time.Time),
	}, nil
}

// Run works until ctx ends or the inbox is lost, and returns when everything that it started has stopped. Sessions are
// left as they are: their logs say where the next worker goes on. After ctx ended the error is nil.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("worker %s: %w", w.cfg.Name, err)
	}
	return nil
}

func (w *Worker) run(ctx context.Context) error {
	deliveries, err := w.client.Inbox().Subscribe(ctx, 1)
	if err != nil {
		return err
	}
	defer deliveries.Stop()
	group, ctx := errgroup.WithContext(ctx)
	w.running = group
	present := make(chan struct{}) // who owns a session must be there to be asked
	group.Go(func() error {
		return w.client.Presence().Serve(ctx, w.cfg.Instance, func() { close(present) }, w.asked)
	})
	group.Go(func() error {
		select {
		case <-present:
		case <-ctx.Done():
			return ctx.Err()
		}
		for {
			d, err := deliveries.Receive(ctx)
			if err != nil {
				return err
			}
			w.wake(ctx, d.Session, d)
		}
	})
	return group.Wait()
}

// wake hands a delivery, nil for none, to the session's goroutine and starts it when there is none.
func (w *Worker) wake(ctx context.Context, id events.ID, d *jetstream.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sessions[id]
	if !ok {
		s = newSession(w, id)
		w.sessions[id] = s
		w.m.active.Inc()
		w.running.Go(func() error {
			s.run(ctx)
			return nil
		})
	}
	s.give(d)
}

// retire forgets the session unless something was handed to it in the meantime.
func (w *Worker) retire(s *session, force bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !force && s.pending() {
		return false
	}
	delete(w.sessions, s.id)
	w.m.active.Dec()
	return true
}

// silent notes that an instance did not answer, and reports whether it has not for as long as an input may stay without a
// sign of life.
func (w *Worker) silent(instance events.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.cfg.Now()
	first, ok := w.since[instance]
	if !ok {
		w.since[instance] = now
	}
	return ok && now.Sub(first) >= w.patience
}

func (w *Worker) heard(instance events.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, instance)
}

// question is what workers ask each other about inputs that one of them was handed and the other's session they are. It
// wakes the owner.
type question struct {
	Session events.ID `json:"session"`
	Seqs    []uint64  `json:"seqs,omitempty"` // at most mostAsked
}

// answer is what the owner says. It sees to the inputs that are not named.
type answer struct {
	Done []uint64 `json:"done,omitempty"` // these were used, and what they started is finished
	Bad  bool     `json:"bad,omitempty"`  // the question was not understood
}

const mostAsked = 256

// asked answers another worker.
func (w *Worker) asked(ctx context.Context, raw []byte) []byte {
	var a answer
	q, err := parseQuestion(raw)
	if err != nil {
		w.cfg.Log.WarnContext(ctx, "a worker's question was not understood", slog.Any("error", err))
		a.Bad = true
	} else {
		a.Done = w.finished(q)
	}
	if !a.Bad && (len(a.Done) == 0 || len(a.Done) < len(q.Seqs)) {
		w.wake(ctx, q.Session, nil)
	}
	told, err := json.Marshal(a)
	if err != nil {
		w.cfg.Log.ErrorContext(ctx, "a worker's question was not answered", slog.Any("error", err))
	}
	return told
}

// finished returns which of the inputs asked about are finished with.
func (w *Worker) finished(q question) (done []uint64) {
	w.mu.Lock()
	s, ok := w.sessions[q.Session]
	w.mu.Unlock()
	if !ok {
		return nil
	}
	for _, seq := range q.Seqs {
		if s.finished(seq) {
			done = append(done, seq)
		}
	}
	return done
}
