package worker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// input is what a client asked for, and where it stands in the inbox.
type input struct {
	events.Input
	seq     uint64
	bytes   int   // of memory, about
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
	// Again puts a token there after d.
	Again(d time.Duration)
}

// What a session keeps of its inbox in memory. Injects have bounds of their own: at rest nothing uses them, and they must
// not keep what does from being seen. A single input may be larger.
const (
	maxWaiting      = 1024
	maxWaitingBytes = 48 * mib
	maxInjects      = 1024
	maxInjectBytes  = 16 * mib
)

// backlog is what is known of a loop's waiting inputs beside the list of them.
type backlog struct {
	ids             map[events.ID]struct{}
	injects, others lane
	full            bool   // the inbox holds more than is kept
	scanned         uint64 // behind the place up to which the inbox was looked at, only what is urgent was kept up to here
}

// lane counts inputs that wait, and their bytes.
type lane struct{ n, bytes int }

func (w *lane) add(n, bytes int) { w.n, w.bytes = w.n+n, w.bytes+bytes }

func (w *lane) holds(bytes, most, mostBytes int) bool {
	return w.n < most && (w.bytes == 0 || w.bytes+bytes <= mostBytes)
}

func (b *backlog) lane(in *input) *lane {
	if in.Kind == events.InputInject {
		return &b.injects
	}
	return &b.others
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

// look takes over what came into the inbox since the last time. When too much waits the rest stays there until some of
// it is used; what cannot wait that long is found all the same.
func (l *loop) look(ctx context.Context) error {
	if _, _, seeding := l.state.Seeding(); seeding { // what is claimed so far was so in the parent's inbox
		l.stale = true
		return nil
	}
	l.stale = true // unless it is looked at to its end
	l.backlog.full = false
	for {
		after := l.seen
		if l.backlog.full {
			after = max(after, l.backlog.scanned)
		}
		in, seq, err := l.queue.Next(ctx, after)
		if err != nil {
			return err
		}
		if seq == 0 {
			l.stale = false
			return nil
		}
		p := &input{Input: in, seq: seq, bytes: inputBytes(&in)}
		if !l.backlog.full && !l.room(p) {
			l.backlog.full = true
			l.backlog.scanned = max(l.backlog.scanned, l.seen)
			continue // from where it was left
		}
		if !l.backlog.full {
			l.seen = seq
			l.takeOver(p)
			continue
		}
		l.backlog.scanned = seq
		if l.urgent(p) {
			p.bytes = 0 // it must not keep out those before it
			l.takeOver(p)
		}
	}
}

// room reports whether the input can be kept. Nothing of one for a closed session is, and injects never wait in the inbox.
func (l *loop) room(in *input) bool {
	return in.Kind == events.InputInject || l.state.Closed() || l.backlog.others.holds(in.bytes, maxWaiting, maxWaitingBytes)
}

// urgent reports whether the input counts whatever comes before it: a cancel, or what makes the session.
func (l *loop) urgent(in *input) bool {
	makes := in.Open && l.state.Seq() == 0 && l.first(func(p *input) bool { return p.Open && p.refusal == nil }) == nil
	return in.Kind == events.InputCancel || makes
}

// takeOver keeps an input of the inbox, unless it was used or waits already.
func (l *loop) takeOver(p *input) {
	if _, waits := l.backlog.ids[p.ID]; waits || l.state.Claimed(p.claim()) {
		return // it was sent again, or looked at before
	}
	p.inline, p.refusal = l.cfg.admit(p)
	switch {
	case p.refusal != nil:
	case p.Kind != events.InputCancel && l.state.PassedOver(p.seq, p.nextStep()):
		p.refusal = fmt.Errorf("%w: later inputs of its kind were used before it could be seen", errRefused)
	case p.Kind == events.InputInject && !l.backlog.injects.holds(p.bytes, maxInjects, maxInjectBytes):
		p.refusal = fmt.Errorf("%w: %d injects may wait, of %d bytes together; with this one there were more", errRefused, maxInjects, maxInjectBytes)
	}
	if p.refusal != nil || l.state.Closed() { // what it says is needed no more
		p.Input, p.bytes = events.Input{ID: p.ID, Kind: p.Kind}, 0
	}
	if l.backlog.ids == nil {
		l.backlog.ids = make(map[events.ID]struct{})
	}
	l.backlog.ids[p.ID] = struct{}{}
	l.backlog.lane(p).add(1, p.bytes)
	at, _ := l.place(p.seq)
	l.pending = slices.Insert(l.pending, at, p)
}

// place returns where the input with that place in the inbox is, or would be, among those that wait.
func (l *loop) place(seq uint64) (at int, waits bool) {
	return slices.BinarySearchFunc(l.pending, seq, func(p *input, seq uint64) int { return cmp.Compare(p.seq, seq) })
}

// inputBytes returns about how much memory an input takes.
func inputBytes(in *events.Input) int {
	const fixed, each = 512, 128
	n := fixed + len(in.Cwd) + len(in.Cause) + len(in.Reason) + len(in.Options.System)
	for i := range in.Content {
		n += each + len(in.Content[i].Text)
	}
	for _, data := range in.Attachments {
		n += len(data)
	}
	for _, list := range [...][]string{in.Options.Stop, in.Options.Tools} {
		for _, s := range list {
			n += each + len(s)
		}
	}
	for i := range in.Labels {
		n += each + len(in.Labels[i].Name) + len(in.Labels[i].Value)
	}
	return n
}

// taken removes an input that the log has claimed from those that wait.
func (l *loop) taken(in *input) {
	l.pending = slices.DeleteFunc(l.pending, func(p *input) bool { return p == in })
	delete(l.backlog.ids, in.ID)
	l.backlog.lane(in).add(-1, -in.bytes)
	if l.backlog.full { // there is room for what was left in the inbox
		l.stale = true
	}
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
	_, waits := l.place(seq)
	return waits
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
	err := l.put(ctx, &events.TurnCancelled{Turn: turn, Cause: clipText(in.Cause), KeepQueue: in.KeepQueue, Claim: in.claim()})
	if err != nil {
		return err
	}
	l.taken(in)
	return nil
}

const (
	lookTimeout = 5 * time.Second // of a look into the inbox while something runs
	lookAgain   = time.Second     // after one that failed
)

// cancelArrived looks into the inbox and records a cancel that came; stop reports whether there was one. An inbox that does
// not answer is no reason to give up what runs: it is looked at again soon.
func (l *loop) cancelArrived(ctx context.Context) (stop bool, err error) {
	limited, cancel := context.WithTimeout(ctx, lookTimeout)
	err = l.look(limited)
	cancel()
	if ended := ctx.Err(); ended != nil {
		return false, ended
	}
	if err != nil {
		l.log.WarnContext(ctx, "the inbox cannot be looked at; a cancel may wait there", slog.Any("error", err))
		l.queue.Again(lookAgain)
	}
	in := l.cancelling() // one may have come before the inbox fell silent
	if in == nil {
		return false, nil
	}
	return true, l.cancel(ctx, in)
}
