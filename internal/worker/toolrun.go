package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// answered is a tool's result with what extensions added to it.
type answered struct {
	tools.Result
	contexts []events.AddedContext
}

// runTools runs the next calls: one exclusive call, or as many parallel ones as stand next to each other. All calls of
// a group are recorded before the first of them starts; their results follow in model order. In a cancelled turn no
// call starts any more.
func (l *loop) runTools(ctx context.Context, turn, step int64, pending []fold.PendingTool) error {
	if _, cancelled := l.state.Cancelled(); cancelled {
		return l.result(ctx, turn, step, pending[0], 0, answered{Result: notBegun(pending[0].Name)})
	}
	group := pending[:1]
	for len(group) < len(pending) && l.parallel(group[0]) && l.parallel(pending[len(group)]) {
		group = pending[:len(group)+1]
	}
	seqs := make([]uint64, len(group))
	for i, p := range group {
		seq, err := l.append(ctx, &events.ToolCall{Turn: turn, Step: step, CallID: p.ID, Name: p.Name, Arguments: p.Arguments})
		if err != nil {
			return err
		}
		seqs[i] = seq
	}
	results, err := l.runGroup(ctx, l.point(turn, step), group)
	if err != nil {
		return err
	}
	for i, p := range group {
		if err := l.result(ctx, turn, step, p, seqs[i], results[i]); err != nil {
			return err
		}
	}
	return nil
}

// runGroup runs recorded calls beside each other and returns when all of them have ended. A cancel that comes meanwhile
// is recorded before the tools are told to stop.
func (l *loop) runGroup(ctx context.Context, at Point, group []fold.PendingTool) ([]answered, error) {
	results := make([]answered, len(group))
	err := l.watched(ctx, func(ctx context.Context) error {
		var pool errgroup.Group
		pool.SetLimit(l.cfg.ToolPool)
		for i, p := range group {
			pool.Go(func() error {
				results[i] = l.runTool(ctx, at, p)
				return nil
			})
		}
		return pool.Wait() // no function of the pool fails
	})
	if ended := ctx.Err(); ended != nil {
		return nil, ended // what came back may be the tools' word on being stopped
	}
	if errors.Is(err, errCancelled) {
		err = nil
	}
	return results, err
}

// watched runs f beside the inbox. When a cancel comes it is recorded, and then f is told to stop; the error is
// errCancelled once f has returned. f appends nothing.
func (l *loop) watched(ctx context.Context, f func(context.Context) error) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- f(running) }()
	var stopped error
	for {
		select {
		case err := <-done:
			if stopped != nil {
				err = stopped
			}
			return err
		case <-l.queue.Arrived():
			if stopped != nil && !errors.Is(stopped, errCancelled) {
				continue // the loop is dropped
			}
			cancelled, err := l.cancelArrived(ctx)
			switch {
			case err != nil:
				stopped = err
			case cancelled:
				stopped = errCancelled
			}
			if stopped != nil {
				stop(errCancelled)
			}
		}
	}
}

func (l *loop) parallel(p fold.PendingTool) bool {
	t, ok := l.cfg.Tools.Lookup(p.Name)
	return ok && t.Safety().Parallel
}

// runTool runs one call between the extensions.
func (l *loop) runTool(ctx context.Context, at Point, p fold.PendingTool) (out answered) {
	if stoppedBy(ctx) {
		out.Result = notBegun(p.Name)
		return out
	}
	call := Invocation{CallID: p.ID, Tool: p.Name, Arguments: p.Arguments}
	hooks := l.cfg.Extensions.Tools
	var early *tools.Result
	for _, x := range hooks {
		r, err := detached(ctx, l.cfg, func(ctx context.Context) (*tools.Result, error) { return x.BeforeTool(ctx, at, call) })
		if err != nil && stoppedBy(ctx) {
			out.Result = notBegun(p.Name)
			return out
		}
		if err != nil {
			out.Result = l.extensionFailed(x, err)
			return out
		}
		if early = r; early != nil {
			break
		}
	}
	if early != nil {
		out.Result = *early
	} else {
		out.Result = l.execute(ctx, p)
	}
	for _, x := range hooks {
		type after struct {
			result tools.Result
			text   string
		}
		given := out.Result
		given.Output, given.Images = slices.Clone(given.Output), slices.Clone(given.Images) // its own, if it is left to itself
		r, err := detached(ctx, l.cfg, func(ctx context.Context) (after, error) {
			result, text, err := x.AfterTool(ctx, at, call, given)
			return after{result, text}, err
		})
		if err != nil && stoppedBy(ctx) { // what the tool has done counts
			return out
		}
		if err != nil {
			out.Result = l.extensionFailed(x, err)
			return out
		}
		out.Result = r.result
		if r.text != "" {
			text, _ := tools.Limit([]byte(r.text), l.cfg.InlineMax)
			out.contexts = append(out.contexts, events.AddedContext{Plugin: x.Name(), Text: text})
		}
	}
	return out
}

// stoppedBy reports whether ctx ended because the turn was cancelled.
func stoppedBy(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errCancelled) }

// notBegun is the result of a call that a cancel kept from starting.
func notBegun(name string) tools.Result {
	return tools.Failed(events.ToolNotStarted, "the turn was cancelled before the call of %s started; nothing happened", clipText(name))
}

// guarded turns a panic into an error.
func guarded[T any](f func() (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it crashed: %v", p)
		}
	}()
	return f()
}

func (l *loop) extensionFailed(x Named, err error) tools.Result {
	l.log.Error("an extension failed", slog.String("extension", x.Name()), slog.Any("error", err))
	return tools.Failed(events.ToolErrorCode(events.FailureExtension), "extension %s: %s", x.Name(), clipText(err.Error()))
}

// execute runs the tool itself. One that panics has failed, and so has one that outlives its time; when it does not even
// stop then, it is left to itself, and its place is free.
func (l *loop) execute(ctx context.Context, p fold.PendingTool) tools.Result {
	t, ok := l.cfg.Tools.Lookup(p.Name)
	if !ok {
		return tools.Failed(events.ToolUnknown, "there is no tool %q", clipText(p.Name))
	}
	if refused, ok := l.cfg.Tools.Check(p.Name, p.Arguments); !ok {
		return refused
	}
	patience := l.cfg.ToolTimeout
	if own := t.Safety().Timeout; own > 0 {
		patience = own
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := detached(limited, l.cfg, func(ctx context.Context) (tools.Result, error) { return t.Run(ctx, p.Arguments), nil })
	switch {
	case errors.Is(err, errDeaf):
		l.log.ErrorContext(ctx, "a tool does not stop and is left to itself", slog.String("tool", p.Name))
		if stoppedBy(ctx) {
			return tools.Failed(events.ToolCancelled, "the turn was cancelled while the tool ran; it did not stop, so it may still be running, and what it has done stays done")
		}
		return tools.Failed(events.ToolTimeout, "the tool gave no answer within %v; it did not stop either, so it may still be running", patience.Round(time.Millisecond))
	case err != nil:
		l.log.ErrorContext(ctx, "a tool panicked", slog.String("tool", p.Name), slog.Any("error", err))
		return tools.Failed(events.ToolFailed, "the tool failed: %s", clipText(err.Error()))
	case r.Error.Code == "":
		return r
	case stoppedBy(ctx):
		return tools.Failed(events.ToolCancelled, "the turn was cancelled while the tool ran; what it had done by then stays done. It said: %s", clipText(r.Error.Message))
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		return tools.Failed(events.ToolTimeout, "the tool gave no answer within %v", patience.Round(time.Millisecond))
	}
	return r
}

// result appends a tool's result; callSeq is the event of its tool/call, 0 when there is none.
func (l *loop) result(ctx context.Context, turn, step int64, p fold.PendingTool, callSeq uint64, r answered) error {
	most := l.cfg.ToolOutput
	if t, ok := l.cfg.Tools.Lookup(p.Name); ok && t.Safety().MaxOutput > 0 {
		most = t.Safety().MaxOutput
	}
	text, _ := tools.Limit(r.Output, most)
	block, err := l.textBlock(ctx, events.Text(text), l.cfg.InlineMax)
	if errors.Is(err, objects.ErrFull) || errors.Is(err, objects.ErrTooLarge) {
		r.Result = tools.Failed(events.ToolFailed, "the tool's output of %d bytes could not be kept: %s", len(r.Output), clipText(err.Error()))
		block, err = events.Text(events.TextFromBytes(r.Output)), nil
	}
	if err != nil {
		return err
	}
	content := []events.Block{block}
	for _, image := range r.Images {
		b, err := l.toolImage(ctx, image)
		if err != nil {
			return err
		}
		content = append(content, b)
	}
	const message = kib // it fits beside a text that is not outside, also when the result is shortened later
	body := &events.ToolResult{
		Turn: turn, Step: step,
		Message: events.Message{
			ID: string(l.cfg.NewID()), Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: p.ID},
			Content: []events.Block{{
				Type: events.BlockToolResult, ToolCallID: p.ID, IsError: r.Error.Code != "", Content: content,
			}},
		},
		Error: events.ToolError{Code: r.Error.Code, Message: clipTo(r.Error.Message, message)},
		Meta:  r.Meta, Contexts: r.contexts,
	}
	opts := []eventlog.AppendOption{appended()}
	if callSeq > 0 {
		opts = append(opts, eventlog.WithSources(callSeq))
	}
	err = l.put(ctx, body, opts...)
	if errors.Is(err, eventlog.ErrTooLarge) || errors.Is(err, events.ErrInvalid) { // what programs and extensions added
		l.log.ErrorContext(ctx, "a tool's result was cut down", slog.String("tool", p.Name), slog.Any("error", err))
		body.Meta, body.Contexts, body.Message.Content[0].Content = "", nil, content[:1]
		err = l.put(ctx, body, opts...)
	}
	if errors.Is(err, events.ErrInvalid) { // not even a code of ours
		body.Error.Code, body.Message.Content[0].IsError = events.ToolFailed, true
		err = l.put(ctx, body, opts...)
	}
	return err
}

// recoverTool answers a call that a dead worker left without a result. A call that was never recorded did not start. Of
// a recorded one nobody knows, unless running it again changes nothing: then it is run.
func (l *loop) recoverTool(ctx context.Context, turn, step int64, p fold.PendingTool) error {
	if p.CallSeq == 0 {
		r := tools.Failed(events.ToolNotStarted, "the call of %s was interrupted before it started; nothing happened", clipText(p.Name))
		return l.result(ctx, turn, step, p, 0, answered{Result: r})
	}
	r := answered{Result: tools.Failed(events.ToolOutcomeUnknown, "the call of %s was interrupted; whether it took effect is unknown", clipText(p.Name))}
	_, cancelled := l.state.Cancelled()
	if t, ok := l.cfg.Tools.Lookup(p.Name); ok && t.Safety().ReadOnly && !cancelled {
		results, err := l.runGroup(ctx, l.point(turn, step), []fold.PendingTool{p})
		if err != nil {
			return fmt.Errorf("repeat tool call %q: %w", p.ID, err)
		}
		r = results[0]
	}
	return l.result(ctx, turn, step, p, p.CallSeq, r)
}
