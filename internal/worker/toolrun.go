package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// runTools runs the next calls: one exclusive call, or as many parallel ones as stand next to each other. All calls of
// a group are recorded before the first of them starts; their results follow in model order.
func (l *loop) runTools(ctx context.Context, turn, step int64, pending []fold.PendingTool) error {
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
	results := make([]tools.Result, len(group))
	var pool errgroup.Group
	pool.SetLimit(l.cfg.ToolPool)
	for i, p := range group {
		pool.Go(func() error {
			results[i] = l.runTool(ctx, p)
			return nil
		})
	}
	_ = pool.Wait() // no function of the pool fails
	if err := ctx.Err(); err != nil {
		return err // what came back may be the tools' word on being cancelled
	}
	for i, p := range group {
		if err := l.result(ctx, turn, step, p, seqs[i], results[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *loop) parallel(p fold.PendingTool) bool {
	t, ok := l.cfg.Tools.Lookup(p.Name)
	return ok && t.Safety().Parallel
}

// runTool runs one call. A tool that panics has failed, and so has one that outlives its time.
func (l *loop) runTool(ctx context.Context, p fold.PendingTool) (r tools.Result) {
	t, ok := l.cfg.Tools.Lookup(p.Name)
	if !ok {
		return tools.Failed(events.ToolUnknown, "there is no tool %q", clipText(p.Name))
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.ToolTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			l.log.ErrorContext(ctx, "a tool panicked", slog.String("tool", p.Name), slog.Any("panic", v))
			r = tools.Failed(events.ToolFailed, "the tool crashed: %v", v)
		}
	}()
	r = t.Run(ctx, p.Arguments)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.Error.Code != "" {
		return tools.Failed(events.ToolFailed, "the tool gave no answer within %v", l.cfg.ToolTimeout)
	}
	return r
}

// result appends a tool's result; callSeq is the event of its tool/call, 0 when there is none.
func (l *loop) result(ctx context.Context, turn, step int64, p fold.PendingTool, callSeq uint64, r tools.Result) error {
	block, err := l.textBlock(ctx, events.Text(events.TextFromBytes(r.Output)), l.cfg.InlineMax)
	if errors.Is(err, objects.ErrFull) || errors.Is(err, objects.ErrTooLarge) {
		r = tools.Failed(events.ToolFailed, "the tool's output of %d bytes could not be kept: %v", len(r.Output), err)
		block, err = events.Text(events.TextFromBytes(r.Output)), nil
	}
	if err != nil {
		return err
	}
	body := &events.ToolResult{
		Turn: turn, Step: step,
		Message: events.Message{
			ID: string(l.cfg.NewID()), Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: p.ID},
			Content: []events.Block{{
				Type: events.BlockToolResult, ToolCallID: p.ID, IsError: r.Error.Code != "", Content: []events.Block{block},
			}},
		},
		Error: events.ToolError{Code: r.Error.Code, Message: clipText(r.Error.Message)},
	}
	opts := []eventlog.AppendOption{appended()}
	if callSeq > 0 {
		opts = append(opts, eventlog.WithSources(callSeq))
	}
	return l.put(ctx, body, opts...)
}

// recoverTool answers a call that a dead worker left without a result. A call that was never recorded did not start. Of
// a recorded one nobody knows, unless running it again changes nothing: then it is run.
func (l *loop) recoverTool(ctx context.Context, turn, step int64, p fold.PendingTool) error {
	if p.CallSeq == 0 {
		return l.result(ctx, turn, step, p, 0, tools.Failed(events.ToolNotStarted, "the call of %s was interrupted before it started; nothing happened", clipText(p.Name)))
	}
	r := tools.Failed(events.ToolOutcomeUnknown, "the call of %s was interrupted; whether it took effect is unknown", clipText(p.Name))
	if t, ok := l.cfg.Tools.Lookup(p.Name); ok && t.Safety().ReadOnly {
		r = l.runTool(ctx, p)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("repeat tool call %q: %w", p.ID, err)
		}
	}
	return l.result(ctx, turn, step, p, p.CallSeq, r)
}
