package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	lostDelay  = 200 * time.Millisecond // an input comes back soon after its session was lost: the owner answers for it
	mineDelay  = 2 * time.Second        // an input of another worker's session is looked at again after this
	retryDelay = 5 * time.Second        // an input whose session could not be worked on
	restDelay  = 10 * time.Minute       // an input that waits for the session's next turn
)

var errElsewhere = errors.New("a living worker owns the session")

func parseQuestion(raw []byte) (question, error) {
	var q question
	const most = 256 + 21*mostAsked // 20 digits and a comma each
	if len(raw) > most {
		return q, fmt.Errorf("%d bytes, at most %d", len(raw), most)
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return q, err
	}
	_, err := events.ParseID(string(q.Session))
	return q, err
}

// session is a session that this worker works on, and the inputs that it was handed for it.
type session struct {
	w    *Worker
	id   events.ID
	log  *slog.Logger
	wake chan struct{} // holds a token when something was handed over

	mu   sync.Mutex
	held []*jetstream.Delivery // not acknowledged yet
	done uint64                // inputs up to this place were used, and what they started is finished,
	rest map[uint64]struct{}   // except for these, which wait
	most int                   // bytes of an event, where less fits than the server says; 0: no more is known
}

// Next, Arrived and Again make a session the queue of its loop.
func (s *session) Next(ctx context.Context, after uint64) (events.Input, uint64, error) {
	q, _, err := s.w.client.Inbox().Next(ctx, s.id, after)
	return q.Input, q.Seq, err
}

func (s *session) Arrived() <-chan struct{} { return s.wake }

func (s *session) Again(d time.Duration) { time.AfterFunc(d, func() { s.give(nil) }) }

func newSession(w *Worker, id events.ID) *session {
	return &session{w: w, id: id, log: w.cfg.Log.With(slog.String("session", string(id))), wake: make(chan struct{}, 1)}
}

func (s *session) give(d *jetstream.Delivery) {
	s.mu.Lock()
	if d != nil {
		s.held = append(s.held, d)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) pending() bool { return len(s.wake) > 0 }

func (s *session) finished(seq uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, waits := s.rest[seq]
	return seq <= s.done && !waits
}

// run works on the session until it has been at rest for a while, is lost, or ctx ends.
func (s *session) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { s.keepAlive(ctx) })
	err := s.work(ctx)
	stopping := ctx.Err() != nil // whatever the error says: one of a canceled call of somebody else's is none of ours
	cancel()
	keeper.Wait()
	delay := retryDelay
	switch {
	case err == nil: // retired already
		delay = restDelay
	case errors.Is(err, errElsewhere):
		delay = mineDelay
	case errors.Is(err, eventlog.ErrLostOwnership):
		s.w.m.lost.Inc()
		s.log.WarnContext(ctx, "session lost to another worker", slog.Any("error", err))
		delay = lostDelay
	case stopping:
		delay = lostDelay
	default:
		s.log.ErrorContext(ctx, "session put aside", slog.Any("error", err))
	}
	if err != nil {
		s.w.retire(s, true)
	}
	s.giveBack(delay)
}

// keepAlive keeps the held inputs from being delivered to somebody else while this worker lives.
func (s *session) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(s.w.keep)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.mu.Lock()
			for _, d := range s.held {
				if err := d.InProgress(); err != nil {
					s.log.WarnContext(ctx, "an input may be delivered again", slog.Any("error", err))
				}
			}
			s.mu.Unlock()
		}
	}
}

// later makes an input that keeps coming back come less often.
func later(delay time.Duration, deliveries uint64) time.Duration {
	const often, longest = 8, time.Hour
	for ; deliveries > often && delay < longest; deliveries -= often {
		delay *= 2
	}
	return min(delay, longest)
}

func (s *session) giveBack(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.held {
		delay := delay
		if d.Input.Kind == events.InputInject { // it waits for others
			delay = max(delay, time.Minute)
		}
		if err := d.NakWithDelay(later(delay, d.Deliveries)); err != nil {
			s.log.Warn("an input comes back only after its acknowledgement time", slog.Any("error", err))
		}
	}
	s.held = nil
}

// work opens the session and uses its inputs in the order of the inbox.
func (s *session) work(ctx context.Context) error {
	var l *loop
	for {
		if l == nil {
			var err error
			if l, err = s.open(ctx); err != nil {
				return err
			}
		}
		if l != nil {
			err := l.run(ctx, func() { s.finish(ctx, l) })
			if outgrown, ok := errors.AsType[*outgrownError](err); ok && ctx.Err() == nil && s.shrink(outgrown) {
				s.log.WarnContext(ctx, "less fits into the session's log than before", slog.Any("error", err), slog.Int("limit", s.most))
				l = nil
				continue
			}
			if err != nil {
				return err
			}
			s.finish(ctx, l)
		}
		idle := time.NewTimer(s.w.idle)
		select {
		case <-s.wake:
			idle.Stop()
		case <-ctx.Done():
			idle.Stop()
			return ctx.Err()
		case <-idle.C:
			if s.w.retire(s, false) {
				return nil
			}
		}
	}
}

// latest is a log that finds its last event of a type without being read.
type latest interface {
	LastOf(ctx context.Context, t events.Type) (m eventlog.Message, ok bool, err error)
}

// open returns the loop of the session, nil when there is no such session and no input that opens one. The whole log is
// read only when no other worker has the session.
func (s *session) open(ctx context.Context) (*loop, error) {
	log, err := s.w.logs.Open(ctx, s.id)
	if errors.Is(err, eventlog.ErrNotFound) {
		log, err = s.make(ctx)
	}
	if err != nil || log == nil {
		return nil, err
	}
	gone, err := s.askLast(ctx, log)
	if err != nil {
		return nil, err
	}
	l, err := openLoop(ctx, s.limits(), s.id, log, s)
	if err != nil {
		return nil, err
	}
	if claim, seq := l.state.Claim(); seq > 0 && claim.Instance != s.w.cfg.Instance && claim.Instance != gone {
		if err := s.askOwner(ctx, claim); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// askLast asks whoever made the log's last claim, and returns the instance when it is gone. In a fork that has none of its
// own yet that is a claim of the parent's: its worker is as good as another.
func (s *session) askLast(ctx context.Context, log eventlog.Log) (gone events.ID, err error) {
	finder, ok := log.(latest)
	if !ok {
		return "", nil
	}
	m, ok, err := finder.LastOf(ctx, events.TypeLoopClaimed)
	if err != nil || !ok {
		return "", err
	}
	e, err := m.Event()
	if err != nil {
		return "", fmt.Errorf("session %s: %w", s.id, err)
	}
	claim, ok := e.Body.(*events.LoopClaimed)
	if !ok || claim.Instance == s.w.cfg.Instance {
		return "", nil
	}
	return claim.Instance, s.askOwner(ctx, *claim)
}

// make makes the session's log when an input opens it, and refuses the inputs otherwise.
func (s *session) make(ctx context.Context) (eventlog.Log, error) {
	var after uint64
	for {
		in, seq, err := s.Next(ctx, after)
		if err != nil {
			return nil, err
		}
		if seq == 0 {
			s.settle(ctx, func(d *jetstream.Delivery) bool { return d.Seq <= after }, func(d *jetstream.Delivery) error {
				s.log.ErrorContext(ctx, "input refused: there is no such session", slog.Uint64("input", d.Seq), slog.String("id", string(d.Input.ID)))
				return d.Term("unknown session")
			})
			return nil, nil //nolint:nilnil // no session to work on is no failure
		}
		if in.Open {
			switch err := s.opens(ctx, &input{Input: in, seq: seq}); {
			case err == nil:
				return s.w.logs.Create(ctx, s.id)
			case !errors.Is(err, errRefused) && !errors.Is(err, errFork):
				return nil, err
			default:
				s.log.ErrorContext(ctx, "input refused", slog.Uint64("input", seq), slog.String("id", string(in.ID)), slog.Any("reason", err))
			}
		}
		after = seq
	}
}

// opens returns why an input cannot open the session.
func (s *session) opens(ctx context.Context, in *input) error {
	cfg := s.limits()
	if _, err := cfg.admit(in); err != nil {
		return err
	}
	if in.Kind != events.InputFork {
		return nil
	}
	_, err := (&loop{cfg: cfg, id: s.id}).forkCreated(ctx, in)
	return err
}

// askOwner returns nil when the owner is gone, or has been silent for the time after which inputs are handed on. A living
// one is told of the inputs held here, all in one question; those that it has finished with are acknowledged for it.
func (s *session) askOwner(ctx context.Context, owner events.LoopClaimed) error {
	s.mu.Lock()
	var seqs []uint64
	for _, d := range s.held {
		seqs = append(seqs, d.Seq)
	}
	s.mu.Unlock()
	seqs = seqs[:min(len(seqs), mostAsked)] // of the others it is asked when they come again
	raw, err := json.Marshal(question{Session: s.id, Seqs: seqs})
	if err != nil {
		return err
	}
	told, err := s.w.client.Presence().Ask(ctx, owner.Instance, raw)
	switch {
	case errors.Is(err, jetstream.ErrNoResponders):
		return nil
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		if s.w.silent(owner.Instance) {
			s.log.WarnContext(ctx, "the session's owner does not answer; taking the session", slog.String("owner", owner.Worker), slog.Any("error", err))
			return nil // should it come back, the fence stops it
		}
		return fmt.Errorf("session %s: %w, or seems to: %s (%s) does not answer: %w", s.id, errElsewhere, owner.Worker, owner.Instance, err)
	}
	var a answer
	if err := json.Unmarshal(told, &a); err != nil {
		s.log.WarnContext(ctx, "a worker's answer was not understood", slog.String("owner", owner.Worker), slog.Any("error", err))
	}
	s.settle(ctx, func(d *jetstream.Delivery) bool { return slices.Contains(a.Done, d.Seq) }, func(d *jetstream.Delivery) error { return d.Ack(ctx) })
	s.w.heard(owner.Instance)
	return fmt.Errorf("session %s: %w: %s (%s)", s.id, errElsewhere, owner.Worker, owner.Instance)
}

// finish acknowledges the inputs that were used, or can never be, when what they started is finished.
func (s *session) finish(ctx context.Context, l *loop) {
	over := l.state.Closed() || l.state.Seq() == 0 // nothing that waits will ever be used
	s.mu.Lock()
	s.done, s.rest = l.seen, make(map[uint64]struct{})
	for _, p := range l.pending {
		if !over {
			s.rest[p.seq] = struct{}{}
		}
	}
	s.mu.Unlock()
	s.settle(ctx, func(d *jetstream.Delivery) bool { return s.finished(d.Seq) }, func(d *jetstream.Delivery) error {
		if over && l.waiting(d.Seq) {
			s.log.ErrorContext(ctx, "input refused: the session is closed", slog.Uint64("input", d.Seq), slog.String("id", string(d.Input.ID)))
			return d.Term("session closed")
		}
		return d.Ack(ctx)
	})
}

// settle ends the held inputs that are due. One that cannot be told now comes again and is recognised then.
func (s *session) settle(ctx context.Context, due func(*jetstream.Delivery) bool, end func(*jetstream.Delivery) error) {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	ended := make(map[*jetstream.Delivery]struct{})
	for _, d := range held {
		if !due(d) {
			continue
		}
		ended[d] = struct{}{}
		if err := end(d); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "an input may be delivered again", slog.Any("error", err))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.DeleteFunc(slices.Clone(s.held), func(d *jetstream.Delivery) bool {
		_, over := ended[d]
		return over
	})
}
