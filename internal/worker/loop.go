package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// input is what a client asked for, and where it stands in the inbox.
type input struct {
	events.Input
	seq    uint64
	inline int // texts longer than this become objects: set by run
}

// loop owns one session. It is used by one goroutine at a time. After an error that is not about a single input the
// loop is dropped: what it holds is a fold, and the log is still there.
type loop struct {
	cfg    *Config
	log    *slog.Logger
	id     events.ID
	writer *eventlog.Writer
	state  *fold.State

	builder codec.Builder
	refusal *events.Failure // why the open step gets no model call; lost in a crash, like the attempt to make one
}

// openLoop folds the session's whole log.
func openLoop(ctx context.Context, cfg *Config, id events.ID, log eventlog.Log) (*loop, error) {
	state := fold.New(id)
	var decoder events.Decoder
	for m, err := range log.Read(ctx, 1) {
		if err != nil {
			return nil, fmt.Errorf("fold session %s: %w", id, err)
		}
		e, err := m.Take(&decoder)
		if err != nil {
			return nil, fmt.Errorf("fold session %s: %w", id, err)
		}
		if err := state.Apply(&e); err != nil {
			return nil, err
		}
	}
	l := &loop{
		cfg: cfg, id: id, state: state, log: cfg.Log.With(slog.String("session", string(id))),
		writer: eventlog.NewWriter(log, id, state.Seq(), state.Head(), cfg.Now, cfg.NewID),
	}
	// The fold takes an event before the log does: what is stored cannot be taken back. If the log then does not
	// take it, the fold is ahead and the loop is dropped.
	l.writer.SetCheck(func(e *events.Event, payload []byte) error {
		if len(payload) > cfg.MaxEventBytes {
			return fmt.Errorf("%w: %d bytes, at most %d", eventlog.ErrTooLarge, len(payload), cfg.MaxEventBytes)
		}
		return state.Apply(e)
	})
	return l, nil
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

// create makes the session that in opens, unless it exists.
func (l *loop) create(ctx context.Context, in *input) error {
	if l.state.Seq() > 0 {
		return nil
	}
	created := &events.SessionCreated{Session: l.id}
	if in != nil {
		options, err := l.externalise(ctx, in.Options, in.inline)
		if err != nil {
			return err
		}
		created.Options, created.Labels, created.Cwd = options, in.Labels, in.Cwd
	}
	return l.put(ctx, created)
}

// claim makes this worker's instance the session's owner, unless it is.
func (l *loop) claim(ctx context.Context) error {
	last, seq := l.state.Claim()
	if seq > 0 && last.Instance == l.cfg.Instance {
		return nil
	}
	reason := events.ClaimResumed
	switch _, open := l.state.Turn(); {
	case seq == 0:
		reason = events.ClaimCreated
	case open:
		reason = events.ClaimTakeover
	}
	return l.put(ctx, &events.LoopClaimed{Worker: l.cfg.Name, Instance: l.cfg.Instance, Reason: reason})
}

// run uses one input and returns when the session is at rest again. An input that the log has claimed before is not
// used again; what it started is finished. A nil input only finishes. The error wraps errRefused when nothing was done
// because the input can never be used.
func (l *loop) run(ctx context.Context, in *input) error {
	if in != nil {
		inline, err := l.cfg.admit(in)
		if err != nil {
			return fmt.Errorf("session %s: input %d: %w", l.id, in.seq, err)
		}
		in.inline = inline
	}
	if err := l.create(ctx, in); err != nil {
		return err
	}
	if l.state.Closed() {
		return nil
	}
	if err := l.claim(ctx); err != nil {
		return err
	}
	if err := l.recover(ctx); err != nil {
		return err
	}
	if in != nil && in.seq <= l.state.Input() {
		in = nil
	}
	if in != nil && in.Kind != events.InputPrompt {
		if err := l.advance(ctx, nil); err != nil {
			return err
		}
		return l.control(ctx, in)
	}
	return l.advance(ctx, in)
}

// control uses an input that opens no turn.
func (l *loop) control(ctx context.Context, in *input) error {
	switch in.Kind {
	case events.InputConfigure:
		options, err := l.externalise(ctx, in.Options, in.inline)
		if err != nil {
			return err
		}
		return l.put(ctx, &events.SessionConfigured{Options: options, InboxSeq: in.seq})
	case events.InputClose:
		return l.put(ctx, &events.SessionClosed{Reason: in.Reason, InboxSeq: in.seq})
	case events.InputPrompt: // see run
	}
	return fmt.Errorf("session %s: input %d of kind %q has no handler", l.id, in.seq, in.Kind)
}

// advance does what the fold calls for, one event after another, until the session is at rest.
func (l *loop) advance(ctx context.Context, in *input) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		rest, err := l.next(ctx, in)
		if err != nil || rest {
			return err
		}
	}
}

// next does one thing; rest reports that there was nothing to do.
func (l *loop) next(ctx context.Context, in *input) (rest bool, err error) {
	turn, turnOpen := l.state.Turn()
	step, stepOpen := l.state.Step()
	switch {
	case !turnOpen && (in == nil || in.seq <= l.state.Input()):
		return true, nil
	case !turnOpen:
		return false, l.put(ctx, &events.TurnStart{Turn: turn + 1})
	case !stepOpen:
		if end := l.turnOver(turn, step); end != nil {
			l.refusal = nil
			return false, l.put(ctx, end)
		}
		return false, l.put(ctx, &events.StepStart{Turn: turn, Step: step + 1})
	case l.state.Answered():
		if pending := l.state.PendingTools(); len(pending) > 0 {
			return false, l.runTools(ctx, turn, step, pending)
		}
		return false, l.put(ctx, &events.StepEnd{Turn: turn, Step: step})
	case l.state.Entered() == 0 && in != nil && in.seq > l.state.Input():
		return false, l.enter(ctx, in)
	}
	return false, l.nextCall(ctx, turn, step)
}

// nextCall makes the open step's next model call, or ends the step when there will be none.
func (l *loop) nextCall(ctx context.Context, turn, step int64) error {
	_, _, failure := l.state.Outcome()
	attempt := l.state.Attempt()
	switch {
	case l.refusal != nil, l.state.Entered() == 0,
		failure.Code != "" && (!failure.Code.Retryable() || attempt >= int64(l.cfg.MaxAttempts)):
		return l.put(ctx, &events.StepEnd{Turn: turn, Step: step})
	case failure.Code != "" && failure.Code != events.FailureInterrupted:
		if err := l.backOff(ctx, turn, step, failure); err != nil {
			return err
		}
	}
	return l.call(ctx, turn, step)
}

// turnOver returns the event that ends the turn after its last step, nil when the turn goes on.
func (l *loop) turnOver(turn, step int64) *events.TurnEnd {
	if step == 0 {
		return nil
	}
	finish, called, failure := l.state.Outcome()
	end := &events.TurnEnd{Turn: turn}
	switch {
	case failure.Code != "":
		end.Kind, end.Failure = events.TurnError, failure
	case l.refusal != nil:
		end.Kind, end.Failure = events.TurnError, *l.refusal
	case finish.Kind == "": // the step ended before its call, and why died with the worker
		end.Kind = events.TurnInterrupted
	case finish.Kind == events.FinishMaxTokens:
		end.Kind = events.TurnMaxTokens
	case finish.Kind == events.FinishAborted:
		end.Kind, end.Cause = events.TurnAborted, "cancelled"
	case called == 0:
		end.Kind = events.TurnCompleted
	case step >= l.cfg.MaxSteps:
		end.Kind, end.Cause = events.TurnBlocked, fmt.Sprintf("the turn has used its %d steps", l.cfg.MaxSteps)
	default:
		return nil
	}
	return end
}

// enter claims a prompt: the claim is the message.
func (l *loop) enter(ctx context.Context, in *input) error {
	content := make([]events.Block, len(in.Content))
	for i, b := range in.Content {
		var err error
		if content[i], err = l.textBlock(ctx, b, in.inline); err != nil {
			return err
		}
	}
	m := events.Message{ID: string(in.ID), Role: events.RoleUser, Content: content, Source: events.Source{Kind: events.SourceUser}}
	return l.put(ctx, &events.UserMessage{Message: m, InboxSeq: in.seq}, appended())
}

// recover closes what a worker left open that died in the middle of something. Each repair is an event, so it is done
// once.
func (l *loop) recover(ctx context.Context) error {
	if stream, _, answer, _, open := l.state.OpenCall(); open {
		if answer.Finished {
			if err := l.answer(ctx, stream.Turn, stream.Step); err != nil {
				return err
			}
		} else if err := l.fail(ctx, events.Failure{
			Code: events.FailureInterrupted, Message: "the worker that made this call stopped before its answer was complete",
		}); err != nil {
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
	f.Message = clipText(f.Message)
	return l.put(ctx, &events.LLMFailed{
		Turn: s.Turn, Step: s.Step, Attempt: s.Attempt, Failure: f, Usage: answer.Usage, UsageReported: answer.UsageReported,
	})
}

// clipText bounds a message of unknown origin and makes it well-formed.
func clipText(s string) string {
	const most = 4 * kib
	if len(s) > most {
		s = s[:most]
	}
	return events.TextFromBytes([]byte(s))
}
