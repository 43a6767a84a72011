package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// call prepares, records and makes one model call.
func (l *loop) call(ctx context.Context, turn, step int64) error {
	prepared, err := l.prepare(ctx)
	if err != nil {
		return l.refuse(err)
	}
	if err := l.recordHeader(ctx, prepared); err != nil {
		return l.refuse(err)
	}
	req, err := l.state.Request()
	if err != nil {
		return err
	}
	body, err := l.build(ctx, prepared.Codec(), &req)
	if err != nil {
		return l.refuse(err)
	}
	attempt := l.state.Attempt() + 1
	seq, err := l.append(ctx, &events.LLMStream{
		Turn: turn, Step: step, Attempt: attempt, Purpose: events.PurposeLoop, Header: req.HeaderSeq, Surface: req.Surface,
		Codec: l.builder.Codec(), Body: body.Digest(), Objects: l.state.NewObjects(),
	})
	if err != nil {
		return err
	}
	call := provider.Call{
		Config: prepared.Config(), Session: l.id, Seq: seq, Turn: turn, Step: step, Attempt: attempt,
		Body: body.Reader, Bytes: body.Digest().Bytes, SHA256: body.Digest().SHA256,
	}
	return l.stream(ctx, prepared, call)
}

// refuse remembers why the step gets no model call, when that is for good; other errors are returned.
func (l *loop) refuse(err error) error {
	var failed *provider.Error
	switch {
	case errors.As(err, &failed):
		l.refusal = &failed.Failure
	case errors.Is(err, eventlog.ErrTooLarge), errors.Is(err, objects.ErrFull), errors.Is(err, objects.ErrTooLarge),
		errors.Is(err, objects.ErrNotFound), errors.Is(err, objects.ErrCorrupt),
		errors.Is(err, codec.ErrUnsupported), errors.Is(err, codec.ErrCorruptObject), errors.Is(err, codec.ErrUnknownCodec):
		l.refusal = &events.Failure{Code: events.FailureInvalid, Message: err.Error()}
	default:
		return err
	}
	l.refusal.Message = clipText(l.refusal.Message)
	l.log.Warn("no model call", slog.String("code", string(l.refusal.Code)), slog.String("reason", l.refusal.Message))
	return nil
}

// prepare binds the next call's configuration to its adapter.
func (l *loop) prepare(ctx context.Context) (*provider.Prepared, error) {
	seed := l.state.ConfigSeed(l.cfg.Defaults)
	if seed.Provider == "" || seed.Model == "" {
		return nil, &provider.Error{Failure: events.Failure{
			Code: events.FailureNoAdapter,
			Message: "no provider or no model: choose them for the session (refold session new --provider --model) " +
				"or give the worker defaults (loop-worker --provider --model)",
		}}
	}
	adapter, ok := l.cfg.Adapters[seed.Provider]
	if !ok {
		return nil, &provider.Error{Failure: events.Failure{
			Code:    events.FailureNoAdapter,
			Message: fmt.Sprintf("this worker has no provider %q: start a worker that has it, or choose another for the session", seed.Provider),
		}}
	}
	return adapter.Prepare(ctx, seed)
}

// recordHeader appends the header and the context that the next request owes.
func (l *loop) recordHeader(ctx context.Context, prepared *provider.Prepared) error {
	options, err := l.externalise(ctx, l.cfg.Defaults.Merge(l.state.Options()), l.cfg.InlineMax)
	if err != nil {
		return err
	}
	h := events.Header{
		Config: prepared.Config(), AdapterDefaults: prepared.Defaults(), System: options.System, SystemObject: options.SystemObject,
	}
	schemas := l.cfg.Tools.Schemas(options.Tools)
	raw, err := events.AppendTools(nil, schemas)
	if err != nil {
		return err
	}
	if len(raw) <= l.cfg.InlineMax {
		h.Tools = schemas
	} else if h.ToolsObject, err = objects.Put(ctx, l.cfg.Objects, events.ToolsMediaType, raw); err != nil {
		return err
	}
	if reason, owed := l.state.HeaderOwed(&h); owed {
		if err := l.put(ctx, &events.RequestHeader{Header: h, Reason: reason}); err != nil {
			return err
		}
	}
	c := events.RequestContext{Provider: h.Config.Provider, Model: h.Config.Model, ContextWindow: prepared.ContextWindow()}
	if last, seq := l.state.Context(); seq > 0 && last == c {
		return nil
	}
	return l.put(ctx, &c)
}

// build returns the exact body, fetching the objects that it needs.
func (l *loop) build(ctx context.Context, name string, req *fold.Request) (codec.Body, error) {
	if l.builder == nil || l.builder.Codec() != name {
		b, err := codec.New(name, codec.Options{})
		if err != nil {
			return codec.Body{}, err
		}
		l.builder = b
	}
	return replay.Build(ctx, l.builder, req, l.cfg.Objects, l.state.NewObjects())
}

// backOff waits before another attempt, on the record.
func (l *loop) backOff(ctx context.Context, turn, step int64, failure events.Failure) error {
	retry := l.state.Attempt()
	delay := min(l.cfg.RetryBase<<min(retry-1, 20), l.cfg.RetryMax)
	delay -= time.Duration(float64(delay) / 2 * l.cfg.Jitter())
	if asked := time.Duration(failure.RetryAfterMs) * time.Millisecond; asked > delay {
		delay = min(asked, l.cfg.RetryMax)
	}
	id := string(l.cfg.NewID())
	err := l.put(ctx, &events.LLMRetry{
		Turn: turn, Step: step, RetryID: id, Retry: retry, MaxRetries: int64(l.cfg.MaxAttempts - 1),
		DelayMs: delay.Milliseconds(), Failure: failure,
	})
	if err != nil {
		return err
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return l.put(ctx, &events.LLMRetryStarted{Turn: turn, Step: step, RetryID: id, Retry: retry})
}

// externalise moves a system prompt longer than inline into the object store.
func (l *loop) externalise(ctx context.Context, o events.Options, inline int) (events.Options, error) {
	if len(o.System) <= inline {
		return o, nil
	}
	ref, err := objects.Put(ctx, l.cfg.Objects, events.TextMediaType, []byte(o.System))
	o.System, o.SystemObject = "", ref
	return o, err
}

// textBlock moves a text longer than inline into the object store.
func (l *loop) textBlock(ctx context.Context, b events.Block, inline int) (events.Block, error) {
	if b.Type != events.BlockText || len(b.Text) <= inline {
		return b, nil
	}
	ref, err := objects.Put(ctx, l.cfg.Objects, events.TextMediaType, []byte(b.Text))
	b.Text, b.Object = "", ref
	return b, err
}
