package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// handler checks one session and publishes what it finds.
type handler struct {
	verifier  *Verifier
	session   events.ID
	checker   *audit.Checker
	baseline  position // what was published before: the fold must come to it again
	published position // what is published now, by anybody
	calls     *calls   // compares calls with their receipts; nil when there is no witness

	marks map[uint64]events.Hash // the hashes that were signed, by the sequences of their events
	broke *audit.Verdict         // an event that had been checked breaks the log; whether that is known is not asked yet

	unsent    *audit.Verdict // found and not published yet
	unsentSeq uint64         // the message that it was found at
	seated    *audit.Verdict // what is to be published for it behind the place seat
	seat      uint64
	cold      bool   // a cold check is due
	look      bool   // a look at a fork's parent is due
	shadow    bool   // a comparison with the second fold is due
	shadowed  uint64 // the sequence up to which requests were compared with it, or were published before
}

// Apply implements [follow.Handler].
func (h *handler) Apply(ctx context.Context, m eventlog.Message) error {
	if h.calls != nil && h.calls.due != nil { // from a call that failed
		if err := h.settle(ctx); err != nil || h.calls.dueSeq == m.Seq {
			return err
		}
	}
	if h.unsent != nil { // likewise
		if err := h.flush(ctx); err != nil || h.unsentSeq == m.Seq {
			return err
		}
	}
	verdict, err := h.check(ctx, m)
	h.waits(errors.Is(err, audit.ErrCouldNotCheck), causeOf(&m))
	if err != nil {
		return err
	}
	if h.calls != nil {
		h.calls.see(&m)
	}
	h.unsent, h.unsentSeq = verdict, m.Seq
	if call := h.checker.Settled(); call != nil && h.calls != nil { // no such message calls for a verdict of its own
		h.calls.take(call, m.Seq, &h.baseline.verdict)
		if err := h.settle(ctx); err != nil {
			return err
		}
	}
	return h.flush(ctx)
}

// causeOf returns what did not answer when the message could not be checked.
func causeOf(m *eventlog.Message) string {
	if m.Type == events.TypeSessionCreated {
		return causeParent
	}
	return causeObjects
}

// settle compares the call that is due with its receipt. All verdicts behind its end wait for that.
func (h *handler) settle(ctx context.Context) error {
	err := h.calls.settle(ctx)
	h.waits(errors.Is(err, audit.ErrCouldNotCheck), causeWitness)
	return err
}

// waits records whether the session waits for something that gives no answer, and counts the attempt.
func (h *handler) waits(waits bool, cause string) {
	h.verifier.waitsFor(h, waits)
	if waits {
		h.verifier.metrics.retries.WithLabelValues(cause).Inc()
	}
}

// check checks the message and compares the fold with what was signed before.
func (h *handler) check(ctx context.Context, m eventlog.Message) (*audit.Verdict, error) {
	defer h.verifier.metrics.observe(h.verifier.cfg.Clock, m.Type)()
	if h.broke != nil { // from a call that failed
		return h.breaks(ctx)
	}
	_, wasBroken := h.checker.Broken()
	verdict, err := h.checker.Apply(ctx, m)
	if err != nil {
		return nil, err
	}
	if m.Seq == 1 {
		h.tellUnknown(ctx)
	}
	if m.Seq > h.baseline.verdict.Seq {
		return verdict, nil
	}
	broken, isBroken := h.checker.Broken()
	if isBroken && !wasBroken {
		h.broke = &broken
		return h.breaks(ctx)
	}
	if isBroken && broken.Result == audit.BrokenChain {
		return nil, nil
	}
	if want, ok := h.marks[m.Seq]; ok {
		if hash := events.HashPayload(m.Payload); hash != want {
			return h.breakWith(fmt.Sprintf("the payload of event %d hashes to %s, but %s was signed", m.Seq, hash, want)), nil
		}
	}
	if isBroken {
		return nil, nil
	}
	return verdict, nil
}

// breaks decides about an event at fault up to the newest signed one: the same fault was published, or the log is another.
func (h *handler) breaks(ctx context.Context) (*audit.Verdict, error) {
	known, err := h.verifier.said(ctx, h.broke)
	if err != nil {
		return nil, err
	}
	broken := h.broke
	h.broke = nil
	if known {
		return nil, nil
	}
	return h.breakWith(fmt.Sprintf("event %d, which had been checked, breaks the log now: %s", broken.Seq, broken.Reason)), nil
}

// breakWith has the log taken for broken, since it is not any more what was signed, and returns the verdict that says so.
func (h *handler) breakWith(reason string) *audit.Verdict {
	changed := h.changed(reason)
	h.checker.Break(*changed)
	return changed
}

// changed returns the verdict that a log is not any more what was signed. It stands at the newest signed event.
func (h *handler) changed(reason string) *audit.Verdict {
	return &audit.Verdict{
		Kind: audit.KindLog, Session: h.session, Seq: h.baseline.verdict.Seq, Result: audit.BrokenChain, Rule: audit.RuleSigned,
		Reason: audit.Reason(reason),
	}
}

// CaughtUp implements [follow.Handler].
func (h *handler) CaughtUp(ctx context.Context) error {
	if h.calls != nil {
		if err := h.settle(ctx); err != nil {
			return err
		}
	}
	if err := h.flush(ctx); err != nil {
		return err
	}
	h.verifier.endsEarly(ctx, h.session, h.shorter())
	if h.look {
		if err := h.lookAtParent(ctx); err != nil {
			return err
		}
	}
	if h.shadow {
		if err := h.checkShadow(ctx); err != nil {
			return err
		}
	}
	if !h.cold {
		return nil
	}
	return h.checkCold(ctx)
}

// lookAtParent compares a fork with its parent again and reports a difference, once, at the newest verdict.
func (h *handler) lookAtParent(ctx context.Context) error {
	before := h.checker.Lineage()
	found, err := h.checker.LookAtParent(ctx)
	h.waits(errors.Is(err, audit.ErrCouldNotCheck), causeParent)
	if err != nil {
		return err
	}
	if before != audit.LineageUnknown {
		h.tellUnknown(ctx)
	}
	newest := &h.published.verdict
	if found != nil && newest.Result != audit.BrokenChain {
		known, err := h.verifier.reported(ctx, h.session, audit.RuleLineage)
		if err != nil {
			return err
		}
		if !known {
			if newest.Seq > 0 {
				found.Seq, found.Event, found.Chain = newest.Seq, newest.Event, newest.Chain
			}
			h.unsent, h.unsentSeq = found, h.checker.Seq()
		}
	}
	h.look = false
	return h.flush(ctx)
}

// tellUnknown tells of a fork that cannot be compared with its parent.
func (h *handler) tellUnknown(ctx context.Context) {
	if h.checker.Lineage() == audit.LineageUnknown {
		h.verifier.cfg.Log.WarnContext(ctx, "a fork's parent is not there to compare with", slog.String("session", string(h.session)))
	}
}

// shorter reports whether the log ends before what was signed.
func (h *handler) shorter() bool {
	_, broken := h.checker.Broken()
	return !broken && h.checker.Seq() < h.baseline.verdict.Seq
}

// Broken implements [follow.Handler].
func (h *handler) Broken(ctx context.Context, seq uint64, cause error) error {
	if err := h.flush(ctx); err != nil {
		return err
	}
	if _, broken := h.checker.Broken(); !broken {
		if err := h.believe(ctx, cause); err != nil {
			return err
		}
	}
	switch verdict := h.checker.Gap(seq, cause); {
	case verdict == nil:
	case seq <= h.baseline.verdict.Seq:
		h.unsent = h.changed(verdict.Reason)
	default:
		h.unsent = verdict
	}
	h.unsentSeq = h.checker.Seq()
	return h.flush(ctx)
}

// Close is called when the handler is dropped.
func (h *handler) Close() { h.verifier.waitsFor(h, false) }

// flush publishes what is not published yet. A match that another verifier has published, or has gone past, is done, and so
// is a finding that a verdict on the session says.
func (h *handler) flush(ctx context.Context) error {
	for h.unsent != nil {
		found, err := h.place(ctx)
		if err != nil {
			return err
		}
		if found == nil {
			h.unsent, h.seated = nil, nil
			return nil
		}
		err = h.publish(ctx, found)
		if errors.Is(err, jetstream.ErrConflict) {
			if err = h.catchUp(ctx, found); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		h.unsent, h.seated = nil, nil
		h.report(ctx, found)
	}
	return nil
}

// place returns what is to be published behind the newest verdict for what was found: that itself, or, when the newest one
// stands there already, a verdict on the log at the event of the newest. It is nil when nothing is. It may be called again
// with the same outcome, until another verdict is the newest.
func (h *handler) place(ctx context.Context) (*audit.Verdict, error) {
	if h.seated != nil && h.seat == h.published.place {
		return h.seated, nil
	}
	found, newest := h.unsent, &h.published.verdict
	switch {
	case h.published.before(found.Seq, found.Kind):
	case found.Result == audit.Match, found.Rule == audit.RuleEarlier: // the break itself is what was found
		return nil, nil
	case newest.Result == audit.BrokenChain: // it must stay the newest, and nothing is worse
		h.tellBehindBreak(ctx, found)
		return nil, nil
	default:
		known, err := h.verifier.said(ctx, found)
		if err != nil || known {
			return nil, err
		}
		found = moved(found, newest)
	}
	h.seated, h.seat = found, h.published.place
	return found, nil
}

// publish signs the verdict, once, and appends it. Of verdicts on the log there may be several at one event, so that their
// IDs hold the rule and the place behind which they stand.
func (h *handler) publish(ctx context.Context, found *audit.Verdict) error {
	id := fmt.Sprintf("%s.%d.%s", found.Session, found.Seq, found.Kind)
	if found.Kind == audit.KindLog {
		id = fmt.Sprintf("%s.%s.%d", id, found.Rule, h.published.place)
	}
	place, err := h.verifier.publish(ctx, h.verifier.cfg.Verdicts, id, found, h.published.place)
	if err != nil {
		return err
	}
	h.published = position{place: place, verdict: *found}
	return nil
}

// catchUp takes over what another verifier has published.
func (h *handler) catchUp(ctx context.Context, found *audit.Verdict) error {
	p, err := h.verifier.newest(ctx, h.session)
	if err != nil {
		return err
	}
	if p.place == h.published.place {
		return fmt.Errorf("%w: publish verdict: another one stands in the way and is not the newest", eventlog.ErrUnavailable)
	}
	h.published = p
	other := &p.verdict
	if other.Seq == found.Seq && other.Kind == found.Kind && (other.Result != found.Result || other.Chain != found.Chain) {
		h.verifier.cfg.Log.ErrorContext(ctx, "verifiers disagree", slog.String("session", string(h.session)),
			slog.String("ours", found.String()), slog.String("theirs", other.String()), slog.String("verifier", other.Verifier))
	}
	if other.Result == audit.BrokenChain && other.Kind == audit.KindLog && found.Result != audit.BrokenChain {
		h.tellBehindBreak(ctx, found)
		return fmt.Errorf("%w: another verifier has found that the log is broken", follow.ErrReopen)
	}
	return nil
}

// tellBehindBreak tells of what was found in a log that another verdict calls broken: that one stays the newest.
func (h *handler) tellBehindBreak(ctx context.Context, found *audit.Verdict) {
	if found.Result != audit.Match && found.Result != audit.BrokenChain {
		h.verifier.cfg.Log.ErrorContext(ctx, "not a match, and not published: the log is known to be broken",
			slog.String("session", string(h.session)), slog.String("verdict", found.String()))
	}
}

// report tells of a verdict that was published.
func (h *handler) report(ctx context.Context, found *audit.Verdict) {
	if found.Kind == audit.KindHead {
		h.shadow = h.verifier.cfg.ShadowDumb
		h.cold = h.cold || h.verifier.cfg.Random() < h.verifier.cfg.ColdShare
		h.look = h.look || h.cold || h.checker.Lineage() == audit.LineageUnknown // the parent's log may have come
		return
	}
	h.verifier.metrics.verdicts.WithLabelValues(string(found.Result)).Inc()
	if found.Result != audit.Match {
		h.verifier.cfg.Log.ErrorContext(ctx, "not a match", slog.String("session", string(h.session)), slog.String("verdict", found.String()))
	}
}
