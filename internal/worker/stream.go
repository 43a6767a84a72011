package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// received is one thing that came from the provider.
type received struct {
	chunk events.Chunk
	err   error
}

// stream sends the call and appends what comes back until the call has its end in the log.
func (l *loop) stream(ctx context.Context, prepared *provider.Prepared, call provider.Call) error {
	err := l.receive(ctx, prepared, call)
	var failed *provider.Error
	switch {
	case err == nil:
		stream, _, _, _, _ := l.state.OpenCall()
		err = l.answer(ctx, &stream)
	case errors.Is(err, errCancelled):
		return l.abort(ctx)
	case ctx.Err() != nil:
		return ctx.Err() // the worker stops or has lost the session: whoever goes on ends the call
	case errors.As(err, &failed):
		return l.fail(ctx, failed.Failure)
	}
	if unfit(err) {
		return l.fail(ctx, events.Failure{Code: events.FailureMalformed, Message: "the answer does not fit into the log: " + err.Error()})
	}
	return err
}

// unfit reports whether an event was refused, and nothing stored, for what the provider put into it.
func unfit(err error) bool {
	return errors.Is(err, eventlog.ErrTooLarge) || errors.Is(err, events.ErrInvalid)
}

// errCancelled says that a cancel was recorded while a call or tools were running.
var errCancelled = errors.New("cancelled")

// receive appends the chunks of the answer, packed into runs. A cancel that comes meanwhile is recorded before the call
// is given up.
func (l *loop) receive(ctx context.Context, prepared *provider.Prepared, call provider.Call) error {
	ctx, cancel := context.WithCancel(ctx)
	const buffered = 32
	incoming := make(chan received, buffered)
	go func() {
		defer close(incoming)
		for c, err := range prepared.Dispatch(ctx, call) {
			select {
			case incoming <- received{c, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range incoming { // until the sender is gone
		}
	}()

	run := &chunkRun{loop: l, call: call}
	total := 0
	timer := time.NewTimer(l.cfg.ChunkInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			if err := run.flush(ctx); err != nil {
				return err
			}
		case <-l.queue.Arrived():
			stop, err := l.cancelArrived(ctx)
			if err != nil {
				return err
			}
			if stop {
				return errors.Join(run.flush(ctx), errCancelled)
			}
		case r, ok := <-incoming:
			if !ok {
				return &provider.Error{Failure: events.Failure{Code: events.FailureStreamClosed, Message: "the answer ended without a finish"}}
			}
			if r.err != nil {
				return errors.Join(run.flush(ctx), r.err)
			}
			if run.empty() {
				timer.Reset(l.cfg.ChunkInterval)
			}
			run.add(r.chunk)
			if total += textBytes(&r.chunk); total > l.cfg.MaxEventBytes {
				return &provider.Error{Failure: events.Failure{
					Code: events.FailureMalformed, Message: fmt.Sprintf("the answer is longer than the %d bytes that an event holds", l.cfg.MaxEventBytes),
				}}
			}
			if r.chunk.Type == events.ChunkFinish {
				return run.flush(ctx)
			}
			if run.bytes >= min(chunkRunBytes, l.cfg.MaxEventBytes/inlineShare) {
				if err := run.flush(ctx); err != nil {
					return err
				}
			}
		}
	}
}

func textBytes(c *events.Chunk) (n int) {
	for _, t := range c.Texts {
		n += len(t)
	}
	return n
}

// chunkRun gathers chunks until they are appended as one event.
type chunkRun struct {
	loop   *loop
	call   provider.Call
	chunks []events.Chunk
	bytes  int
}

func (r *chunkRun) empty() bool { return len(r.chunks) == 0 }

func (r *chunkRun) add(c events.Chunk) {
	r.chunks = events.AppendChunk(r.chunks, c)
	r.bytes += textBytes(&c)
	live, err := events.EncodeLive(&events.AssistantChunk{
		Turn: r.call.Turn, Step: r.call.Step, Attempt: r.call.Attempt, Chunks: []events.Chunk{c},
	})
	if err != nil {
		r.loop.log.Debug("a chunk is not shown live", slog.Any("error", err))
		return
	}
	r.loop.cfg.Live(r.loop.id, live)
}

func (r *chunkRun) flush(ctx context.Context) error {
	if r.empty() {
		return nil
	}
	body := &events.AssistantChunk{Turn: r.call.Turn, Step: r.call.Step, Attempt: r.call.Attempt, Chunks: r.chunks}
	r.chunks, r.bytes = nil, 0
	return r.loop.put(ctx, body)
}

// answer ends the open call, whose answer is complete: with the assistant message, or the summary, that its chunks add up
// to.
func (l *loop) answer(ctx context.Context, stream *events.LLMStream) error {
	_, _, a, chunks, open := l.state.OpenCall()
	if !open {
		return errors.New("no model call is open")
	}
	var err error
	switch stream.Purpose {
	case events.PurposeLoop:
		header, _ := l.state.Header()
		err = l.put(ctx, &events.AssistantMessage{
			Turn: stream.Turn, Step: stream.Step,
			Message: events.Message{
				ID: string(l.cfg.NewID()), Role: events.RoleAssistant, Content: a.Content(),
				Source: events.Source{Kind: events.SourceModel, Provider: header.Config.Provider, Model: header.Config.Model},
			},
			Usage: a.Usage, UsageReported: a.UsageReported, Finish: a.Finish, Interrupted: a.Finish.Kind == events.FinishAborted,
		}, appended(), eventlog.WithSources(chunks...))
	case events.PurposeCompaction:
		return l.summary(ctx, stream, &a, chunks)
	case events.PurposeTitle:
		return l.fail(ctx, events.Failure{Code: events.FailureInvalid, Message: "nobody here asks for titles"})
	}
	if unfit(err) {
		return l.fail(ctx, events.Failure{Code: events.FailureMalformed, Message: "the answer does not fit into the log: " + err.Error()})
	}
	return err
}

// abort ends the open call because it was cancelled. What is worth keeping of an answer of the loop is kept.
func (l *loop) abort(ctx context.Context) error {
	stream, _, a, _, open := l.state.OpenCall()
	if !open {
		return errors.New("no model call is open")
	}
	cancelled := events.Failure{Code: events.FailureCancelled, Message: "cancelled"}
	if stream.Purpose != events.PurposeLoop {
		return l.fail(ctx, cancelled)
	}
	if !a.Finished {
		finish := events.Chunk{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishAborted}}
		if err := a.Add(&finish); err != nil {
			return err
		}
		if len(a.Content()) == 0 {
			return l.fail(ctx, cancelled)
		}
		err := l.put(ctx, &events.AssistantChunk{Turn: stream.Turn, Step: stream.Step, Attempt: stream.Attempt, Chunks: []events.Chunk{finish}})
		if err != nil {
			return err
		}
	}
	return l.answer(ctx, &stream)
}
