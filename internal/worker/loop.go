package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// loop owns one session. It is used by one goroutine at a time. After an error the loop is dropped: what it holds is a
// fold and what follows from it, and the log is still there. What it keeps beside the fold may be lost at any moment.
type loop struct {
	cfg    *Config
	log    *slog.Logger
	id     events.ID
	writer *eventlog.Writer
	state  *fold.State

	queue   queue
	seen    uint64   // the inbox was looked at up to here
	stale   bool     // it is to be looked at before the next decision
	pending []*input // seen and not used, in the order of the inbox
	backlog backlog  // the same, counted

	mine     bool // claimed, and what a dead worker left open is closed
	builder  codec.Builder
	policy   provider.RetryPolicy // of the last prepared call,
	prepared bool                 // if there was one
	view     view

	refusal *events.Failure // why the step gets no model call; lost in a crash, like the attempt to make one
	goesOn  bool            // the turn goes on behind its last step
	asked   bool            // the pre-step extensions were asked about the next, or the open, step
	entered bool            // everything that belongs to this step's beginning has entered
	added   []addition      // texts of extensions that enter in this step
	section int             // the context section that is asked next in this step
	upTo    uint64          // inputs up to this place of the inbox belong to this step, 0: to be decided

	noPrune bool            // the store had no room for a shortened result: no more of them in this turn
	region  *compact.Region // what the open compaction is to summarise, nil: to be decided again
}

// addition is text that an extension adds.
type addition struct {
	plugin string
	texts  []string
}

// openLoop folds the session's whole log.
func openLoop(ctx context.Context, cfg *Config, id events.ID, log eventlog.Log, q queue) (*loop, error) {
	l := &loop{cfg: cfg, id: id, state: fold.New(id), queue: q, stale: true, log: cfg.Log.With(slog.String("session", string(id)))}
	var decoder events.Decoder
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			return nil, fmt.Errorf("fold session %s: %w", id, err)
		}
		e, err := m.Take(&decoder)
		if err != nil {
			return nil, fmt.Errorf("fold session %s: %w", id, err)
		}
		if err := l.fold(&e); err != nil {
			return nil, err
		}
	}
	l.writer = eventlog.NewWriter(foldedLog{log}, id, l.state.Seq(), l.state.Head(), cfg.Now, cfg.NewID)
	// The fold takes an event before the log does: what is stored cannot be taken back. If the log then does not
	// take it, the fold is ahead and the loop is dropped, even if the log's word is final: see foldedLog.
	l.writer.SetCheck(func(e *events.Event, payload []byte) error {
		if len(payload) > cfg.MaxEventBytes {
			return fmt.Errorf("%w: %d bytes, at most %d", eventlog.ErrTooLarge, len(payload), cfg.MaxEventBytes)
		}
		return l.fold(e)
	})
	return l, nil
}

// fold folds an event, and keeps up with it what decisions need to know beside the fold.
func (l *loop) fold(e *events.Event) error {
	if err := l.state.Apply(e); err != nil {
		return err
	}
	return l.view.observe(e)
}

// append stores an event and folds it. The error wraps eventlog.ErrTooLarge when nothing was folded or stored.
func (l *loop) append(ctx context.Context, body events.Body, opts ...eventlog.AppendOption) (uint64, error) {
	e, err := l.writer.Append(ctx, body, opts...)
	if err != nil {
		return 0, err
	}
	l.cfg.metrics.observe(body)
	return e.Seq, nil
}

func (l *loop) put(ctx context.Context, body events.Body, opts ...eventlog.AppendOption) error {
	_, err := l.append(ctx, body, opts...)
	return err
}

func appended() eventlog.AppendOption { return eventlog.WithSurface(events.AppendOp()) }

// run does what the fold and the inbox call for, one event after another, until the session is at rest. rested is told
// each time that what inputs had started is finished.
func (l *loop) run(ctx context.Context, rested func()) error {
	l.stale = true
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.attend(ctx); err != nil {
			return err
		}
		rest, err := l.next(ctx)
		if err != nil {
			return err
		}
		if l.state.AtBoundary() {
			rested()
		}
		if rest {
			return nil
		}
	}
}

// next does one thing; rest reports that there was nothing to do.
func (l *loop) next(ctx context.Context) (rest bool, err error) {
	_, _, seeding := l.state.Seeding()
	idle := l.state.AtBoundary() && !seeding && l.first((*input).wakes) == nil
	if l.state.Closed() || idle {
		return true, nil
	}
	if !l.mine {
		return l.own(ctx)
	}
	if done, err := l.settleOne(ctx); done || err != nil {
		return false, err
	}
	turn, turnOpen := l.state.Turn()
	step, stepOpen := l.state.Step()
	compaction, compacting := l.state.Compaction()
	switch {
	case compacting:
		return false, l.compact(ctx, &compaction)
	case !turnOpen:
		l.stale = true
		return l.betweenTurns(ctx, turn)
	case !stepOpen:
		return false, l.betweenSteps(ctx, turn, step)
	case l.state.Answered():
		l.stale = true // what came during the answer joins the next step
		if pending := l.state.PendingTools(); len(pending) > 0 {
			return false, l.runTools(ctx, turn, step, pending)
		}
		return false, l.endStep(ctx, turn, step)
	}
	return false, l.inStep(ctx, turn, step)
}

// own makes the session this worker's, one event at a time: the session is created, filled when it is a fork, claimed,
// and what a dead worker left open is closed. rest reports that no input opens the session.
func (l *loop) own(ctx context.Context) (rest bool, err error) {
	if l.state.Seq() == 0 {
		in := l.first(func(p *input) bool { return p.Open && p.refusal == nil })
		if in == nil {
			return true, nil
		}
		return false, l.create(ctx, in)
	}
	if from, to, open := l.state.Seeding(); open {
		return false, l.seed(ctx, from, to)
	}
	if last, seq := l.state.Claim(); seq == 0 || last.Instance != l.cfg.Instance {
		return false, l.claim(ctx, seq)
	}
	if in := l.cancelling(); in != nil { // before what it stops is repaired, or even repeated
		return false, l.cancel(ctx, in)
	}
	if err := l.recover(ctx); err != nil {
		return false, err
	}
	l.mine = true
	return false, nil
}

// create makes the session that in opens.
func (l *loop) create(ctx context.Context, in *input) error {
	if in.Kind == events.InputFork {
		err := l.createFork(ctx, in)
		if errors.Is(err, errFork) {
			l.log.ErrorContext(ctx, "input refused", slog.Uint64("input", in.seq), slog.String("id", string(in.ID)), slog.Any("reason", err))
			in.refusal, err = err, nil
		}
		return err
	}
	options, err := l.externalise(ctx, in.Options, in.inline)
	full := errors.Is(err, objects.ErrFull)
	if full { // what goes wrong for want of room then stands in the log, where who sent it looks
		options, err = in.Options, nil
	}
	if err == nil {
		err = l.put(ctx, &events.SessionCreated{Session: l.id, Options: options, Labels: in.Labels, Cwd: in.Cwd})
	}
	if f, final := refusal(err); final { // there is no log to say it in
		l.log.ErrorContext(ctx, "input refused", slog.Uint64("input", in.seq), slog.String("id", string(in.ID)), slog.Bool("store_full", full), slog.Any("reason", err))
		in.refusal, err = fmt.Errorf("%w: %s", errRefused, f.Message), nil
	}
	return err
}

// claim makes this worker's instance the session's owner; last is the sequence of the claim before, 0 for none.
func (l *loop) claim(ctx context.Context, last uint64) error {
	reason := events.ClaimResumed
	switch {
	case last == 0:
		reason = events.ClaimCreated
	case !l.state.AtBoundary():
		reason = events.ClaimTakeover
	}
	return l.put(ctx, &events.LoopClaimed{Worker: l.cfg.Name, Instance: l.cfg.Instance, Reason: reason})
}

// betweenTurns uses the first input that asks for something; rest reports that there is none.
func (l *loop) betweenTurns(ctx context.Context, last int64) (rest bool, err error) {
	if in := l.first(l.opened); in != nil { // whatever came before it
		return false, l.configure(ctx, in)
	}
	in := l.first((*input).wakes)
	if in == nil {
		return true, nil
	}
	switch in.Kind {
	case events.InputPrompt, events.InputSteer:
		l.refusal, l.goesOn, l.asked, l.entered, l.section, l.upTo, l.added = nil, true, false, false, 0, 0, nil
		l.noPrune = false
		return false, l.put(ctx, &events.TurnStart{Turn: last + 1})
	case events.InputConfigure:
		return false, l.configure(ctx, in)
	case events.InputFork:
		return false, l.drop(ctx, in, "the session exists")
	case events.InputCompact:
		err = l.startCompaction(ctx, events.CompactionCommand, nil, in.claim())
	case events.InputClose:
		if other := l.first(func(p *input) bool { return p != in }); other != nil {
			return false, l.drop(ctx, other, "the session was closed")
		}
		err = l.put(ctx, &events.SessionClosed{Reason: in.Reason, Claim: in.claim()})
	case events.InputCancel, events.InputInject: // never come here
		return false, fmt.Errorf("session %s: input %d of kind %q has no handler", l.id, in.seq, in.Kind)
	}
	if err == nil {
		l.taken(in)
	}
	return false, err
}

// opened reports whether the input is the fork that made the session, and its options are still to be recorded.
func (l *loop) opened(in *input) bool {
	created, _ := l.state.Created()
	const none = 1 // no input has a place below
	return in.Kind == events.InputFork && in.Parent.ID == created.Parent.ID && !l.state.PassedOver(none, false)
}

func (l *loop) configure(ctx context.Context, in *input) error {
	options, err := l.externalise(ctx, in.Options, in.inline)
	if err == nil {
		err = l.put(ctx, &events.SessionConfigured{Options: options, Claim: in.claim()})
	}
	if f, final := refusal(err); final {
		return l.dropUnkept(ctx, in, f)
	}
	if err != nil {
		return err
	}
	l.taken(in)
	return nil
}

// dropUnkept drops an input whose content the log or the object store does not take.
func (l *loop) dropUnkept(ctx context.Context, in *input, f events.Failure) error {
	l.log.ErrorContext(ctx, "an input cannot be kept", slog.Uint64("input", in.seq), slog.String("id", string(in.ID)), slog.String("reason", f.Message))
	return l.drop(ctx, in, clipText("it cannot be kept: "+f.Message))
}

// betweenSteps ends the turn or prepares and starts its next step.
func (l *loop) betweenSteps(ctx context.Context, turn, step int64) error {
	if c, cancelled := l.state.Cancelled(); cancelled {
		return l.put(ctx, &events.TurnEnd{Turn: turn, Kind: events.TurnAborted, Cause: c.Cause})
	}
	if step > 0 && !l.goesOn {
		end, err := l.turnOver(ctx, turn, step)
		if errors.Is(err, errCancelled) {
			return nil
		}
		if err != nil {
			return err
		}
		if end != nil {
			return l.put(ctx, end)
		}
		l.goesOn = true
		return nil // what came while extensions were asked is settled first
	}
	seen := l.seen
	batch := l.batch(step == 0, seen)
	if step == 0 && len(batch) == 0 { // a dead worker had begun a turn for an input that is gone
		return l.put(ctx, &events.TurnEnd{Turn: turn, Kind: events.TurnInterrupted})
	}
	if done, err := l.relieve(ctx, batch); done || err != nil {
		return err
	}
	if !l.asked {
		cause, err := l.preStep(ctx, turn, step+1, batch)
		switch {
		case errors.Is(err, errCancelled):
			return nil
		case cause != "":
			return l.block(ctx, turn, batch, cause)
		case err != nil: // the inputs enter, and then the turn ends with what is wrong
			if err := l.refuse(err); err != nil {
				return err
			}
		}
		l.asked = true
	}
	l.entered, l.section, l.upTo = false, 0, seen
	return l.put(ctx, &events.StepStart{Turn: turn, Step: step + 1})
}

// endStep ends the open step and forgets what belonged to it alone.
func (l *loop) endStep(ctx context.Context, turn, step int64) error {
	if err := l.put(ctx, &events.StepEnd{Turn: turn, Step: step}); err != nil {
		return err
	}
	l.goesOn, l.asked, l.entered, l.section, l.upTo, l.added = false, false, false, 0, 0, nil
	return nil
}

// block ends the turn because an extension rejected its next step.
func (l *loop) block(ctx context.Context, turn int64, batch []*input, cause string) error {
	for _, in := range batch {
		if err := l.drop(ctx, in, cause); err != nil {
			return err
		}
	}
	return l.put(ctx, &events.TurnEnd{Turn: turn, Kind: events.TurnBlocked, Cause: cause})
}

// turnOver returns the event that ends the turn after its last step, nil when the turn goes on.
func (l *loop) turnOver(ctx context.Context, turn, step int64) (*events.TurnEnd, error) {
	finish, called, failure := l.state.Outcome()
	end := &events.TurnEnd{Turn: turn}
	switch {
	case l.refusal != nil: // it came behind the last failure
		end.Kind, end.Failure = events.TurnError, *l.refusal
	case failure.Code != "":
		end.Kind, end.Failure = events.TurnError, failure
	case finish.Kind == "": // the step ended before its call, and why died with the worker
		end.Kind = events.TurnInterrupted
	case finish.Kind == events.FinishMaxTokens:
		end.Kind = events.TurnMaxTokens
	case finish.Kind == events.FinishAborted:
		end.Kind, end.Cause = events.TurnAborted, "cancelled"
	case called > 0, l.first(func(p *input) bool { return p.Kind == events.InputSteer }) != nil:
		end = nil
	default:
		more, err := l.turnStopping(ctx, turn, step)
		failed, final := refusal(err)
		switch {
		case errors.Is(err, errCancelled):
			return nil, err
		case final:
			end.Kind, end.Failure = events.TurnError, failed
		case err != nil:
			return nil, err
		case more:
			end = nil
		default:
			end.Kind = events.TurnCompleted
		}
	}
	if most := l.maxSteps(); end == nil && step >= most {
		end = &events.TurnEnd{Turn: turn, Kind: events.TurnBlocked, Cause: fmt.Sprintf("the turn has used its %d steps", most)}
	}
	return end, nil
}

// maxSteps returns how many steps a turn may have.
func (l *loop) maxSteps() int64 {
	if most := l.cfg.Defaults.Merge(l.state.Options()).MaxSteps; most > 0 {
		return most
	}
	return l.cfg.MaxSteps
}

// recover closes what a worker left open that died in the middle of something. Each repair is an event, so it is done
// once.
func (l *loop) recover(ctx context.Context) error {
	if stream, _, answer, _, open := l.state.OpenCall(); open {
		_, cancelled := l.state.Cancelled()
		var err error
		switch {
		case answer.Finished:
			err = l.answer(ctx, &stream)
		case cancelled:
			err = l.abort(ctx)
		default:
			err = l.fail(ctx, events.Failure{
				Code: events.FailureInterrupted, Message: "the worker that made this call stopped before its answer was complete",
			})
		}
		if err != nil {
			return err
		}
	}
	turn, _ := l.state.Turn()
	step, open := l.state.Step()
	if !open {
		return nil
	}
	for _, p := range l.state.PendingTools() {
		if err := l.recoverTool(ctx, turn, step, p); err != nil {
			return err
		}
	}
	return nil
}

// fail ends the open model call with a failure.
func (l *loop) fail(ctx context.Context, f events.Failure) error {
	s, _, answer, _, open := l.state.OpenCall()
	if !open {
		return errors.New("no model call is open")
	}
	return l.put(ctx, &events.LLMFailed{
		Turn: s.Turn, Step: s.Step, Attempt: s.Attempt, Failure: clipFailure(f), Usage: answer.Usage, UsageReported: answer.UsageReported,
	})
}
