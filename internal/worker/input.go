package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// input is what a client asked for, and where it stands in the inbox.
type input struct {
	events.Input
	seq     uint64
	inline  int   // texts longer than this become objects
	refusal error // why it can never be used, nil when it can
}

func (in *input) claim() events.Claim { return events.Claim{InboxSeq: in.seq, InputID: in.ID} }

// nextStep reports whether the input joins the next step, whatever stands before it.
func (in *input) nextStep() bool {
	return in.Kind == events.InputSteer || in.Kind == events.InputInject
}

// droppable reports whether a cancel behind the input drops it.
func (in *input) droppable() bool {
	return in.nextStep() || in.Kind == events.InputPrompt || in.Kind == events.InputCompact
}

// wakes reports whether the input makes a session at rest do something.
func (in *input) wakes() bool { return in.Kind != events.InputInject || in.refusal != nil }

// queue is a session's part of the inbox.
type queue interface {
	// Next returns the session's first input behind the place after; seq is 0 when there is none.
	Next(ctx context.Context, after uint64) (in events.Input, seq uint64, err error)
	// Arrived holds a token when something may have come.
	Arrived() <-chan struct{}
}

// attend looks into the inbox when something may have come there.
func (l *loop) attend(ctx context.Context) error {
	select {
	case <-l.queue.Arrived():
	default:
		if !l.stale {
			return nil
		}
	}
	return l.look(ctx)
}

// look takes over what came into the inbox since the last time.
func (l *loop) look(ctx context.Context) error {
	if _, _, seeding := l.state.Seeding(); seeding { // what is claimed so far was so in the parent's inbox
		l.stale = true
		return nil
	}
	l.stale = false
	for {
		in, seq, err := l.queue.Next(ctx, l.seen)
		if err != nil || seq == 0 {
			return err
		}
		l.seen = seq
		p := &input{Input: in, seq: seq}
		sent := func(other *input) bool { return other.ID == in.ID } // again, while it still waits
		if l.state.Claimed(p.claim()) || l.first(sent) != nil {
			continue
		}
		p.inline, p.refusal = l.cfg.admit(p)
		if p.refusal == nil && in.Kind != events.InputCancel && l.state.PassedOver(seq, p.nextStep()) {
			p.refusal = fmt.Errorf("%w: later inputs of its kind were used before it could be seen", errRefused)
		}
		l.pending = append(l.pending, p)
	}
}

// taken removes an input that the log has claimed from those that wait.
func (l *loop) taken(in *input) {
	l.pending = slices.DeleteFunc(l.pending, func(p *input) bool { return p == in })
	l.cfg.metrics.input(in.Kind)
}

// first returns the first input that waits and of which ok holds, nil when there is none.
func (l *loop) first(ok func(*input) bool) *input {
	if i := slices.IndexFunc(l.pending, ok); i >= 0 {
		return l.pending[i]
	}
	return nil
}

// waiting reports whether the input at that place of the inbox was seen and not used yet.
func (l *loop) waiting(seq uint64) bool {
	return l.first(func(p *input) bool { return p.seq == seq }) != nil
}

// batch returns the inputs that the next step claims, in order: all that join the next step, and in a turn's first step
// its prompt, unless something else is to be done before it. Those behind the place upTo wait for another step: they came
// when this one was decided.
func (l *loop) batch(firstStep bool, upTo uint64) []*input {
	var out []*input
	for _, p := range l.pending {
		if p.nextStep() && p.seq <= upTo {
			out = append(out, p)
		}
	}
	if firstStep && !l.state.Prompted() {
		next := l.first(func(p *input) bool { return !p.nextStep() })
		if next != nil && next.Kind == events.InputPrompt && next.seq <= upTo {
			out = append(out, next)
		}
	}
	return out
}

// settleOne records an input that is not for the model's eyes, or not any more: a cancel, one that can never be used, one
// that a cancel dropped. done reports that there was one.
func (l *loop) settleOne(ctx context.Context) (done bool, err error) {
	if in := l.cancelling(); in != nil {
		return true, l.cancel(ctx, in)
	}
	if in := l.first(func(p *input) bool { return p.refusal != nil }); in != nil {
		l.log.ErrorContext(ctx, "input refused", slog.Uint64("input", in.seq), slog.String("id", string(in.ID)), slog.Any("reason", in.refusal))
		return true, l.drop(ctx, in, clipText(in.refusal.Error()))
	}
	if in := l.first(func(p *input) bool { return l.state.PassedOver(p.seq, p.nextStep()) }); in != nil {
		return true, l.drop(ctx, in, "later inputs were used before it")
	}
	floor := l.state.Floor()
	if in := l.first(func(p *input) bool { return p.droppable() && p.seq < floor }); in != nil {
		return true, l.drop(ctx, in, "cancelled before it was used")
	}
	return false, nil
}

func (l *loop) drop(ctx context.Context, in *input, cause string) error {
	if err := l.put(ctx, &events.InputDropped{Claim: in.claim(), Kind: in.Kind, Cause: cause}); err != nil {
		return err
	}
	l.taken(in)
	return nil
}

// cancelling returns the first cancel that waits, nil when there is none.
func (l *loop) cancelling() *input {
	return l.first(func(p *input) bool { return p.Kind == events.InputCancel && p.refusal == nil })
}

// cancel records a cancel. What is stopped for it is stopped afterwards.
func (l *loop) cancel(ctx context.Context, in *input) error {
	var turn int64
	if n, open := l.state.Turn(); open {
		turn = n
	}
	err := l.put(ctx, &events.TurnCancelled{Turn: turn, Cause: in.Cause, KeepQueue: in.KeepQueue, Claim: in.claim()})
	if err != nil {
		return err
	}
	l.taken(in)
	return nil
}

// cancelArrived looks into the inbox and records a cancel that came; stop reports whether there was one.
func (l *loop) cancelArrived(ctx context.Context) (stop bool, err error) {
	if err := l.look(ctx); err != nil {
		return false, err
	}
	in := l.cancelling()
	if in == nil {
		return false, nil
	}
	return true, l.cancel(ctx, in)
}
