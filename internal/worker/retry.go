package worker

import (
	"context"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/events"
)

// retryPolicy returns the policy of the route that was used last, by whichever worker, completed by the worker's own. A
// summary is tried for as under the normal one in every mode: the conversation can go on without it.
func (l *loop) retryPolicy(ctx context.Context) provider.RetryPolicy {
	header, _ := l.state.Header()
	if adapter, _, ok := l.cfg.Routes.Lookup(header.Config.Provider); ok && !l.prepared {
		if p, err := adapter.Prepare(ctx, header.Config); err == nil {
			l.policy, l.prepared = p.RetryPolicy(), true
		}
	}
	policy := l.policy.Or(l.cfg.Retry)
	if _, open := l.state.Compaction(); open {
		policy.Mode = provider.RetryNormal
	}
	return policy.Or(provider.DefaultRetryPolicy())
}

func (l *loop) retries(ctx context.Context, failure events.Failure, attempt int64) bool {
	return provider.Retry(l.retryPolicy(ctx), failure, attempt)
}

// tryAgain asks the extensions, and then the policy, whether another attempt follows.
func (l *loop) tryAgain(ctx context.Context, turn, step, attempt int64, failure events.Failure) (bool, error) {
	if failure.Code == events.FailureCancelled {
		return false, nil
	}
	for _, x := range l.cfg.Extensions.RequestError {
		at := l.point(turn, step)
		advice, err := ask(ctx, l, func(ctx context.Context) (Advice, error) { return x.RequestError(ctx, at, attempt, failure) })
		switch {
		case err != nil:
			return false, extensionError(x, err)
		case advice == AdviceRetry:
			return true, nil
		case advice == AdviceStop:
			return false, nil
		}
	}
	return l.retries(ctx, failure, attempt), nil
}

// scheduleRetry records that another attempt follows and when, and waits for it.
func (l *loop) scheduleRetry(ctx context.Context, turn, step, attempt int64, failure events.Failure) error {
	policy := l.retryPolicy(ctx)
	delay := provider.Delay(policy, attempt, failure, l.cfg.Jitter())
	retry := events.LLMRetry{
		Turn: turn, Step: step, RetryID: string(l.cfg.NewID()), Retry: attempt, MaxRetries: policy.MaxRetries(failure.Code),
		DelayMs: delay.Milliseconds(), Failure: failure,
	}
	if err := l.put(ctx, &retry); err != nil {
		return err
	}
	_, at, _ := l.state.PendingRetry()
	return l.waitRetry(ctx, retry, at)
}

// waitRetry waits for what is left of a retry's delay, which was scheduled at the time at in Unix milliseconds, and
// records that it is over. A cancel ends the waiting.
func (l *loop) waitRetry(ctx context.Context, retry events.LLMRetry, at int64) error {
	delay := time.Duration(min(retry.DelayMs, maxDelay.Milliseconds())) * time.Millisecond
	left := time.UnixMilli(at).Add(delay).Sub(l.cfg.Now())
	timer := time.NewTimer(min(left, delay)) // the clock of the worker before may have been ahead
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.queue.Arrived():
			if stop, err := l.cancelArrived(ctx); stop || err != nil {
				return err
			}
		case <-timer.C:
			return l.put(ctx, &events.LLMRetryStarted{Turn: retry.Turn, Step: retry.Step, RetryID: retry.RetryID, Retry: retry.Retry})
		}
	}
}

// maxDelay bounds what a log can make a worker wait.
const maxDelay = 24 * time.Hour
