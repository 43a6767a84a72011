package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// hole is what was seen of a log that states a last event which is not there.
type hole struct {
	looks int
	swept time.Time // the sweep behind which that was seen last
}

// endsEarly takes the news whether a session's log, as it was just read, ends before the newest signed event. That is not
// believed at once: a new leader may still be applying what its predecessor acknowledged.
func (v *Verifier) endsEarly(ctx context.Context, session events.ID, early bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.holes, session)
	if !early {
		delete(v.early, session)
		return
	}
	if _, ok := v.early[session]; !ok {
		v.early[session] = 0
		v.cfg.Log.InfoContext(ctx, "a log ends before what was signed, it is looked at again", slog.String("session", string(session)))
	}
}

// believe returns nil when a log that cannot be read on is at fault. Otherwise it is read again: it ends before what was
// handled, which [Verifier.lookAtEarly] looks after, or its last event may still come.
func (h *handler) believe(ctx context.Context, cause error) error {
	gap, ok := errors.AsType[*eventlog.GapError](cause)
	if !ok || gap.Got != 0 {
		return nil
	}
	if gap.Want <= h.checker.Seq() {
		return fmt.Errorf("%w: event %d was handled: %w", follow.ErrReopen, h.checker.Seq(), cause)
	}
	log, err := h.verifier.cfg.Store.Open(ctx, h.session)
	if err == nil {
		err = current(ctx, log)
	}
	if err != nil {
		return err
	}
	if !h.verifier.believesHole(h.session) {
		return fmt.Errorf("%w: looked at again: %w", eventlog.ErrUnavailable, cause)
	}
	return nil
}

// believesHole counts that the last event of a session's log was not there, at most once for each sweep, and reports whether
// that was seen often enough.
func (v *Verifier) believesHole(session events.ID) bool {
	swept := v.follower.Status().Swept // not under the lock: the follower calls handlers under its own
	v.mu.Lock()
	defer v.mu.Unlock()
	seen, ok := v.holes[session]
	if !ok || swept.After(seen.swept) {
		seen = hole{looks: seen.looks + 1, swept: swept}
		v.holes[session] = seen
	}
	return seen.looks >= absent
}

// lookAtAllEarly looks once more at the sessions whose logs end before what was signed. It is called behind each sweep.
func (v *Verifier) lookAtAllEarly(ctx context.Context) error {
	v.mu.Lock()
	sessions := make([]events.ID, 0, len(v.early))
	for id := range v.early {
		sessions = append(sessions, id)
	}
	v.mu.Unlock()
	slices.Sort(sessions)
	var first error
	for _, id := range sessions {
		looks, err := v.lookAtEarly(ctx, id)
		if err != nil && first == nil {
			first = fmt.Errorf("session %s: %w", id, err)
		}
		v.mu.Lock()
		if looks < 0 {
			delete(v.early, id)
		} else if _, ok := v.early[id]; ok {
			v.early[id] = looks
		}
		v.mu.Unlock()
	}
	return first
}

// lookAtEarly looks once more at a session whose log ended before the newest signed event, and publishes that when it was
// seen in so many looks in a row. It returns how many those are, a negative number when there is nothing more to look for.
func (v *Verifier) lookAtEarly(ctx context.Context, id events.ID) (looks int, err error) {
	const settled = -1
	p, err := v.newest(ctx, id)
	switch {
	case errors.Is(err, follow.ErrFinal): // who opens the session says so
		return settled, nil
	case err != nil:
		return 0, err
	case p.place == 0 || p.verdict.Result == audit.BrokenChain: // it was reported
		return settled, nil
	}
	log, err := v.cfg.Store.Open(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) { // that is looked after elsewhere
		return settled, nil
	}
	if err == nil {
		err = current(ctx, log)
	}
	if err != nil {
		return 0, err
	}
	last, err := log.Last(ctx)
	if err != nil {
		return 0, err
	}
	if last >= p.verdict.Seq {
		v.follower.Notify(id, last)
		return settled, nil
	}
	v.mu.Lock()
	looks = v.early[id] + 1
	v.mu.Unlock()
	if looks < absent {
		return looks, nil
	}
	h := &handler{verifier: v, session: id, published: p, baseline: p}
	h.unsent = h.changed(fmt.Sprintf("the log ends at event %d, but event %d was signed", last, p.verdict.Seq))
	if err := h.flush(ctx); err != nil {
		return looks - 1, err
	}
	return settled, nil
}
