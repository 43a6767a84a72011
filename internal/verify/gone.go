package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// absent is behind how many complete sweeps in a row a session's log must be missing before that is believed.
const absent = 3

// absences looks for sessions that have signed verdicts and no log any more. It belongs to one goroutine.
type absences struct {
	verifier *Verifier
	swept    time.Time            // the sweep behind which it looked last
	seen     map[events.ID]int    // behind how many sweeps in a row a session was missing
	settled  map[events.ID]string // sessions about which there is nothing more to say, and why
}

func newAbsences(v *Verifier) *absences {
	return &absences{verifier: v, seen: make(map[events.ID]int), settled: make(map[events.ID]string)}
}

// run looks behind every complete sweep until ctx ends.
func (a *absences) run(ctx context.Context) {
	for follow.Wait(ctx, a.verifier.cfg.Sweep) {
		if err := a.look(ctx); err != nil && ctx.Err() == nil {
			a.verifier.cfg.Log.WarnContext(ctx, "look for sessions that are gone not complete, it is made again", slog.Any("error", err))
		}
	}
}

// look compares the sessions that have verdicts with those that the last sweep has seen. A sweep that was not complete is
// no ground for anything.
func (a *absences) look(ctx context.Context) error {
	v := a.verifier
	st := v.follower.Status()
	complete := st.SweepErr == nil && st.Swept.After(a.swept)
	if !complete {
		v.absenceLooks.end(v.cfg.Clock(), false) // that the sweeps fail is told elsewhere
		return nil
	}
	a.swept = st.Swept
	first := v.lookAtAllEarly(ctx)
	counts, err := v.cfg.Verdicts.Counts(ctx)
	if err != nil {
		return err
	}
	for id := range counts { // in any order: no two sessions have to do with each other
		if v.cfg.Partition != nil && !v.cfg.Partition(id) {
			continue
		}
		if v.follower.Knows(id) {
			delete(a.seen, id)
			delete(a.settled, id)
			continue
		}
		if _, ok := a.settled[id]; ok {
			continue
		}
		if err := a.missing(ctx, id); err != nil && first == nil {
			first = err
		}
	}
	unbelieved := int64(0)
	for _, why := range a.settled {
		if why == notBelieved {
			unbelieved++
		}
	}
	v.unbelieved.Store(unbelieved)
	v.absenceLooks.end(v.cfg.Clock(), first == nil)
	return first
}

// notBelieved is why nobody looks again at a session whose newest verdict does not count.
const notBelieved = "its newest verdict is not to be believed"

// missing looks at a session that the sweep has not seen. Its stream's leader, or the cluster's when there is none, must say
// that there is no such stream, and so must the origin of a mirror; no answer is none.
func (a *absences) missing(ctx context.Context, id events.ID) error {
	_, err := a.verifier.cfg.Store.Open(ctx, id)
	if !errors.Is(err, eventlog.ErrNotFound) {
		delete(a.seen, id)
		return err
	}
	if err := a.verifier.absent(ctx, id); err != nil {
		delete(a.seen, id)
		return fmt.Errorf("session %s: %w", id, err)
	}
	return a.sighted(ctx, id)
}

// absent returns nil when a session that has no log here has none elsewhere either, of which a mirror here would lack it.
func (v *Verifier) absent(ctx context.Context, id events.ID) error {
	if s, ok := v.cfg.Store.(interface {
		Absent(ctx context.Context, session events.ID) error
	}); ok {
		return s.Absent(ctx, id)
	}
	return nil
}

// sighted counts that a session was missing once more.
func (a *absences) sighted(ctx context.Context, id events.ID) error {
	if a.seen[id]++; a.seen[id] < absent {
		return nil
	}
	why, err := a.verifier.publishGone(ctx, id)
	if why != "" {
		delete(a.seen, id)
		a.settled[id] = why
	}
	return err
}

// publishGone publishes once that a session is gone, at its newest signed event. It returns why nobody needs to look again,
// empty when somebody does.
func (v *Verifier) publishGone(ctx context.Context, id events.ID) (why string, err error) {
	p, err := v.newest(ctx, id)
	switch {
	case errors.Is(err, follow.ErrFinal):
		return notBelieved, err
	case err != nil:
		return "", err
	case p.place == 0:
		return "", nil
	case p.verdict.Rule == audit.RuleGone:
		return "it was reported", nil
	}
	found := &audit.Verdict{
		Kind: audit.KindLog, Session: id, Seq: p.verdict.Seq, Result: audit.BrokenChain, Rule: audit.RuleGone,
		Reason: audit.Reason(fmt.Sprintf("the session's log is not there any more: event %d of it was signed by %s", p.verdict.Seq, p.verdict.Verifier)),
	}
	_, err = v.publish(ctx, v.cfg.Verdicts, fmt.Sprintf("%s.%d.%s", id, found.Seq, audit.RuleGone), found, p.place)
	if errors.Is(err, jetstream.ErrConflict) { // another verifier was faster: the next look tells
		return "", nil
	}
	if err != nil {
		return "", err
	}
	v.metrics.verdicts.WithLabelValues(string(found.Result)).Inc()
	v.cfg.Log.ErrorContext(ctx, "not a match", slog.String("session", string(id)), slog.String("verdict", found.String()))
	return "it was reported", nil
}
