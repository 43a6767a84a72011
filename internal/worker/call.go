package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// call prepares, records and makes the open step's next model call.
func (l *loop) call(ctx context.Context, turn, step int64) error {
	_, prepared, err := l.header(ctx, turn, step)
	if err != nil {
		return l.refuse(err)
	}
	if err := l.showImages(ctx, prepared); err != nil {
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
	err = l.dispatch(ctx, prepared, body, &events.LLMStream{
		Turn: turn, Step: step, Attempt: l.state.Attempt() + 1, Purpose: events.PurposeLoop, Header: req.HeaderSeq, Surface: req.Surface,
		Codec: prepared.Codec(), Body: body.Digest(), Objects: l.state.NewObjects(),
	})
	if err != nil {
		return l.refuse(err)
	}
	return nil
}

// dispatch records a call and makes it. What goes wrong with the call itself stands in the log and is no error.
func (l *loop) dispatch(ctx context.Context, prepared *provider.Prepared, body codec.Body, stream *events.LLMStream) error {
	seq, err := l.append(ctx, stream)
	if err != nil {
		return err
	}
	return l.stream(ctx, prepared, provider.Call{
		Config: prepared.Config(), Session: l.id, Seq: seq, Turn: stream.Turn, Step: stream.Step, Attempt: stream.Attempt,
		Body: body.Reader, Bytes: body.Digest().Bytes, SHA256: body.Digest().SHA256,
	})
}

// extensionError is the failure of an extension.
func extensionError(x Named, err error) error {
	return &provider.Error{
		Failure: events.Failure{Code: events.FailureExtension, Message: fmt.Sprintf("extension %s: %v", x.Name(), err)}, Err: err,
	}
}

// refuse remembers why the step gets no model call, when that is for good; other errors are returned. There is nothing to
// remember of a cancel: the log has it.
func (l *loop) refuse(err error) error {
	if errors.Is(err, errCancelled) {
		return nil
	}
	f, ok := refusal(err)
	if !ok {
		return err
	}
	l.refusal = &f
	l.log.Warn("no model call", slog.String("code", string(f.Code)), slog.String("reason", f.Message))
	return nil
}

// refusal returns the failure that an error of making a call is; ok is false when trying again may help.
func refusal(err error) (f events.Failure, ok bool) {
	switch {
	case err == nil, errors.Is(err, errStopping):
		return f, false
	case errors.As(err, new(*provider.Error)),
		errors.Is(err, eventlog.ErrTooLarge), errors.Is(err, events.ErrInvalid), errors.Is(err, objects.ErrFull), errors.Is(err, objects.ErrTooLarge),
		errors.Is(err, objects.ErrNotFound), errors.Is(err, objects.ErrCorrupt),
		errors.Is(err, codec.ErrUnsupported), errors.Is(err, codec.ErrUnshownImage), errors.Is(err, codec.ErrCorruptObject), errors.Is(err, codec.ErrUnknownCodec):
		return failureOf(err), true
	}
	return f, false
}

// errStopping says that something failed while the worker was stopping, or had lost the session. What it says of itself
// does not count: it may be the end of its ctx, and whoever goes on asks again.
var errStopping = errors.New("the worker stops")

// ask calls an extension beside the inbox. One that panics has failed. The error wraps errStopping when ctx has ended.
func ask[T any](ctx context.Context, l *loop, f func(context.Context) (T, error)) (v T, err error) {
	err = l.watched(ctx, func(ctx context.Context) error {
		var err error
		v, err = detached(ctx, l.cfg, f)
		return err
	})
	if ended := ctx.Err(); err != nil && ended != nil {
		err = fmt.Errorf("%w: %w", errStopping, ended)
	}
	return v, err
}

// header binds the next call of the loop to an adapter, which it returns too, and records the header and the context that
// it owes. A route that nobody serves fails as a call would: what was wanted stands in the log.
func (l *loop) header(ctx context.Context, turn, step int64) (provider.Adapter, *provider.Prepared, error) {
	proposed, changes, err := l.propose(ctx, turn, step)
	if err != nil {
		return nil, nil, err
	}
	if proposed.Provider == "" || proposed.Model == "" {
		return nil, nil, &provider.Error{Failure: events.Failure{
			Code: events.FailureNoAdapter,
			Message: "no provider or no model: choose them for the session (refold session new --provider --model, refold session configure) " +
				"or give the worker defaults (loop-worker --provider --model)",
		}}
	}
	adapter, _, ok := l.cfg.Routes.Lookup(proposed.Provider)
	if !ok {
		if err := l.recordHeader(ctx, &events.RequestHeader{Header: events.Header{Config: proposed}, ChangedBy: changes}, 0); err != nil {
			return nil, nil, err
		}
		return nil, nil, &provider.Error{Failure: events.Failure{
			Code:    events.FailureNoAdapter,
			Message: fmt.Sprintf("this worker has no provider %q: start a worker that has it, or choose another for the session", proposed.Provider),
		}}
	}
	prepared, err := adapter.Prepare(ctx, proposed)
	if ended := ctx.Err(); err != nil && ended != nil {
		return nil, nil, fmt.Errorf("%w: %w", errStopping, ended)
	}
	if err == nil {
		err = onlyFilledIn(proposed, prepared)
	}
	if err != nil {
		return nil, nil, err
	}
	l.policy, l.prepared = prepared.RetryPolicy(), true
	h := events.Header{Config: prepared.Config(), AdapterDefaults: prepared.Defaults()}
	return adapter, prepared, l.recordHeader(ctx, &events.RequestHeader{Header: h, ChangedBy: changes}, prepared.ContextWindow())
}

// propose asks the extensions about the configuration that the log gives, and returns theirs and who changed what.
func (l *loop) propose(ctx context.Context, turn, step int64) (proposed events.Config, changes []events.ConfigChange, err error) {
	proposed = l.state.ConfigSeed(l.cfg.Defaults)
	for _, x := range l.cfg.Extensions.CallConfig {
		seed := proposed
		seed.Stop = append([]string(nil), proposed.Stop...)
		at := l.point(turn, step)
		next, err := ask(ctx, l, func(ctx context.Context) (events.Config, error) { return x.CallConfig(ctx, at, seed) })
		if err != nil {
			return proposed, nil, extensionError(x, err)
		}
		if fields := proposed.Diff(next); len(fields) > 0 {
			changes = append(changes, events.ConfigChange{Extension: x.Name(), Fields: fields})
		}
		proposed = next
	}
	return proposed, changes, nil
}

// onlyFilledIn refuses a call of an adapter that changed what was proposed to it: the log would not say who did.
func onlyFilledIn(proposed events.Config, prepared *provider.Prepared) error {
	c, filled := prepared.Config(), prepared.Defaults()
	if filled.ReasoningEffort && proposed.ReasoningEffort == "" {
		c.ReasoningEffort = ""
	}
	if filled.MaxTokens && proposed.MaxTokens == 0 {
		c.MaxTokens = 0
	}
	if fields := proposed.Diff(c); len(fields) > 0 {
		return &provider.Error{Failure: events.Failure{
			Code:    events.FailurePrepared,
			Message: fmt.Sprintf("the adapter of provider %q has changed %s of the configuration, which it may only fill in", proposed.Provider, fields[0]),
		}}
	}
	return nil
}

// recordHeader completes the header and appends it and the request's context when they are owed.
func (l *loop) recordHeader(ctx context.Context, b *events.RequestHeader, window int64) error {
	h := &b.Header
	options, err := l.externalise(ctx, l.cfg.Defaults.Merge(l.state.Options()), l.cfg.InlineMax)
	if err != nil {
		return err
	}
	h.System, h.SystemObject = options.System, options.SystemObject
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
	reason, owed := l.state.HeaderOwed(h)
	if owed {
		b.Reason = reason
		if err := l.put(ctx, b); err != nil {
			return err
		}
	}
	c := events.RequestContext{Provider: h.Config.Provider, Model: h.Config.Model, ContextWindow: window}
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
