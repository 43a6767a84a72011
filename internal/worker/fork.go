package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// errFork says why a session cannot be forked as asked. It is for good.
var errFork = errors.New("no such fork")

// createFork creates the session as a fork. The copied events follow one by one: see seed.
func (l *loop) createFork(ctx context.Context, in *input) error {
	created, err := l.forkCreated(ctx, in)
	if err != nil {
		return err
	}
	return l.put(ctx, created)
}

// forkCreated returns the first event of the fork. The error wraps errFork when there can be none: much of it is the
// parent's, so that the input alone does not say whether it fits.
func (l *loop) forkCreated(ctx context.Context, in *input) (*events.SessionCreated, error) {
	parent, point, err := l.forkPoint(ctx, in.Parent)
	if err != nil {
		return nil, err
	}
	old, _ := parent.Created()
	created := &events.SessionCreated{
		Session: l.id, Labels: in.Labels, Preset: old.Preset, Cwd: cmp.Or(in.Cwd, old.Cwd), Options: old.Options,
		Parent: point, SeedLength: point.Seq - 1, DelegationDepth: old.DelegationDepth,
	}
	if size := encodedBytes(created, events.SurfaceOp{}); size > l.cfg.MaxEventBytes {
		return nil, fmt.Errorf("%w: with what session %s was made with, its first event takes %d bytes, at most %d fit", errFork, in.Parent.ID, size, l.cfg.MaxEventBytes)
	}
	return created, nil
}

// unusable reports whether a parent's log will never be read: it fails the same way each time. What only a newer program
// understands is left to one.
func unusable(err error) bool {
	return errors.Is(err, fold.ErrInvalidLog) || errors.Is(err, events.ErrInvalid) || errors.Is(err, events.ErrSyntax) || errors.Is(err, eventlog.ErrCorrupt)
}

// forkPoint reads the parent's log and finds where the fork starts. The error wraps errFork when there is no such place.
func (l *loop) forkPoint(ctx context.Context, at events.ForkPoint) (*fold.State, events.Parent, error) {
	var point events.Parent
	log, err := l.parent(ctx, at.ID)
	if err != nil {
		return nil, point, err
	}
	state := fold.New(at.ID)
	var decoder events.Decoder
	point.ID = at.ID
	boundary := false
	for m, err := range log.Read(ctx, 1) {
		var e events.Event
		if err == nil {
			e, err = m.Take(&decoder)
		}
		if err == nil {
			err = state.Apply(&e)
		}
		if err != nil && unusable(err) {
			return nil, point, fmt.Errorf("%w: session %s: %w", errFork, at.ID, err)
		}
		if err != nil {
			return nil, point, fmt.Errorf("fork session %s: %w", at.ID, err)
		}
		if state.Seq() == 1 {
			point.First = state.Head()
		}
		boundary = state.AtBoundary() && !state.Closed()
		if boundary && (at.Seq == 0 || at.Seq == state.Seq()) {
			point.Seq, point.Chain = state.Seq(), state.Head()
		}
		if at.Seq != 0 && at.Seq == state.Seq() {
			break
		}
	}
	switch {
	case point.Seq == 0 && at.Seq > state.Seq():
		return nil, point, fmt.Errorf("%w: session %s has %d events, not %d", errFork, at.ID, state.Seq(), at.Seq)
	case point.Seq == 0:
		return nil, point, fmt.Errorf("%w: something is open at event %d of session %s: choose an event with which a turn ends, or none", errFork, at.Seq, at.ID)
	}
	return state, point, nil
}

// parent opens the log of a fork's parent.
func (l *loop) parent(ctx context.Context, id events.ID) (eventlog.Log, error) {
	if l.cfg.Sessions == nil {
		return nil, fmt.Errorf("%w: this worker cannot read other sessions", errFork)
	}
	if id == l.id {
		return nil, fmt.Errorf("%w: a session is no fork of itself", errFork)
	}
	log, err := l.cfg.Sessions.Open(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		return nil, fmt.Errorf("%w: there is no session %s: %w", errFork, id, err)
	}
	return log, err
}

// seed copies the events [from,to] of the parent, and ends the seed.
func (l *loop) seed(ctx context.Context, from, to uint64) error {
	created, _ := l.state.Created()
	if from <= to {
		log, err := l.parent(ctx, created.Parent.ID)
		if err != nil {
			return fmt.Errorf("session %s: %w", l.id, err)
		}
		for m, err := range log.Read(ctx, from) {
			if err != nil {
				return fmt.Errorf("fork session %s: %w", created.Parent.ID, err)
			}
			e, err := m.Event()
			if err != nil {
				return fmt.Errorf("fork session %s: %w", created.Parent.ID, err)
			}
			if err := l.copyEvent(ctx, &e); err != nil {
				return err
			}
			if e.Seq == to {
				break
			}
		}
	}
	if _, _, open := l.state.Seeding(); !open {
		return nil
	}
	return l.put(ctx, &events.SessionEndSeed{})
}

func (l *loop) copyEvent(ctx context.Context, e *events.Event) error {
	opts := []eventlog.AppendOption{eventlog.WithIdentity(e.ID, e.Time), eventlog.WithSurface(e.Surface), eventlog.WithSources(e.Sources...)}
	if e.Ignorable {
		opts = append(opts, eventlog.WithIgnorable())
	}
	_, err := l.writer.Append(ctx, e.Body, opts...)
	return err
}
