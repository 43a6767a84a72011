package project

import (
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// handler projects one session.
type handler struct {
	p  *Projector
	id events.ID

	// session is nil while nothing behind the position needs it: a session at rest is not folded at a restart.
	session  *Session
	position uint64  // the sequence of the newest record
	place    uint64  // that record's place in the stream
	owed     *Record // made and not yet known to be stored
}

var _ follow.Handler = (*handler)(nil)

// Apply implements [follow.Handler].
func (h *handler) Apply(ctx context.Context, m eventlog.Message) error {
	if h.session == nil {
		if !recorded(m.Type) {
			return nil
		}
		if err := h.refold(ctx, m.Seq); err != nil {
			return err
		}
	}
	if m.Seq > h.session.Seq() { // else the event was applied before and its record could not be published
		if err := h.fold(ctx, &m, new(events.Decoder)); err != nil {
			return err
		}
	}
	return h.publish(ctx)
}

// recorded reports whether an event of the type may call for a record: it ends a step, or an auxiliary call.
func recorded(t events.Type) bool {
	return t == events.TypeStepEnd || t == events.TypeLLMFailed || t == events.TypeCompactionSummary || t == events.TypeSessionTitle
}

// CaughtUp implements [follow.Handler].
func (*handler) CaughtUp(context.Context) error { return nil }

// Broken implements [follow.Handler]: the follower reports it, and steps behind the gap have no meaning.
func (*handler) Broken(context.Context, uint64, error) error { return nil }

// refold brings a new session up to the event before end, without publishing.
func (h *handler) refold(ctx context.Context, end uint64) error {
	log, err := h.p.cfg.Store.Open(ctx, h.id)
	if err != nil {
		return err
	}
	h.session = NewSession(h.id, Options{TTL: h.p.cfg.TTL})
	var decoder events.Decoder
	for m, err := range log.Read(ctx, 1) {
		if err == nil && m.Seq >= end {
			return nil
		}
		if err == nil {
			err = h.fold(ctx, &m, &decoder)
		}
		if err != nil {
			h.session, h.owed = nil, nil
			return fmt.Errorf("refold: %w", err)
		}
	}
	return nil
}

// fold takes the message and applies its event; a record behind the position is owed.
func (h *handler) fold(ctx context.Context, m *eventlog.Message, d *events.Decoder) error {
	e, err := m.Take(d)
	if err != nil {
		return fmt.Errorf("%w: session %s: %w", follow.ErrFinal, h.id, err)
	}
	r, err := h.apply(ctx, &e)
	if err != nil {
		return err
	}
	if r == nil || r.Seq <= h.position {
		return nil
	}
	r.Projector = h.p.cfg.Instance
	h.owed = r
	return nil
}

// apply applies an event, with the objects that it needs.
func (h *handler) apply(ctx context.Context, e *events.Event) (*Record, error) {
	set := new(objects.Set)
	if stream, ok := e.Body.(*events.LLMStream); ok {
		if why, err := h.fetch(ctx, set, h.session.Needed(stream)); err != nil {
			return nil, err
		} else if why != Built {
			return final(h.session.ApplyUnbuilt(e, why))
		}
	}
	r, err := h.session.Apply(e, set)
	if !errors.Is(err, codec.ErrMissingObject) {
		return final(r, err)
	}
	why, err := h.fetch(ctx, set, h.session.Objects()) // the prefix broke: both bodies are built anew
	switch {
	case err != nil:
		return nil, err
	case why != Built:
		return final(h.session.ApplyUnbuilt(e, why))
	}
	r, err = h.session.Apply(e, set)
	if errors.Is(err, codec.ErrMissingObject) { // the request needs an object that its messages do not name
		return final(h.session.ApplyUnbuilt(e, UnbuiltMissing))
	}
	return final(r, err)
}

// final marks the errors of the fold: trying again does not help.
func final(r *Record, err error) (*Record, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", follow.ErrFinal, err)
	}
	return r, nil
}

// fetch adds objects to the set. why says what is wrong with one that can never be had; an error means that the store
// could not tell.
func (h *handler) fetch(ctx context.Context, set *objects.Set, refs []objects.Ref) (why Unbuilt, err error) {
	for _, ref := range refs {
		if _, ok := set.Bytes(ref.Digest); ok {
			continue
		}
		data, err := objects.Get(ctx, h.p.cfg.Objects, ref)
		if err == nil {
			err = set.Add(ref, data)
		}
		switch {
		case err == nil:
		case errors.Is(err, objects.ErrNotFound):
			return UnbuiltMissing, nil
		case errors.Is(err, objects.ErrCorrupt), errors.Is(err, objects.ErrInvalidRef), errors.Is(err, objects.ErrTooLarge):
			return UnbuiltCorrupt, nil
		default:
			return "", fmt.Errorf("session %s: %w", h.id, err)
		}
	}
	return Built, nil
}

// publish stores the record that is owed, unless somebody else has, and counts it if it was this projector's.
//
// The record names the projector, so that of two that publish the same step one is told that it lost, and an append
// whose answer was lost is recognised as one's own.
func (h *handler) publish(ctx context.Context) error {
	r := h.owed
	if r == nil {
		return nil
	}
	payload, err := Encode(r)
	if err != nil {
		return fmt.Errorf("%w: %w", follow.ErrFinal, err)
	}
	for {
		place, err := h.p.cfg.Steps.Append(ctx, h.id, r.ID(), payload, h.place)
		if err == nil {
			h.position, h.place, h.owed = r.Seq, place, nil
			h.p.metrics.Observe(r)
			return nil
		}
		if !errors.Is(err, jetstream.ErrConflict) {
			return err
		}
		position, place, err := h.p.last(ctx, h.id)
		if err != nil {
			return err
		}
		if position >= r.Seq {
			h.position, h.place, h.owed = position, place, nil
			h.p.metrics.lost.Inc()
			return nil
		}
		if place <= h.place {
			return fmt.Errorf("session %s: step at event %d: %w: its record was refused, and none stands in its way", h.id, r.Seq, eventlog.ErrUnavailable)
		}
		h.place = place
	}
}
