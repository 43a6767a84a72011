package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// errDeaf says that something did not return although its ctx had ended. It may run for ever.
var errDeaf = errors.New("it does not stop")

// detached runs f, which others wrote, and returns what it returned. When f has not returned within the grace after ctx
// ended, it is left to itself: the error is errDeaf, and what it returns later is dropped. So f shares nothing with its
// caller that either of them changes. A panic is an error.
func detached[T any](ctx context.Context, cfg *Config, f func(context.Context) (T, error)) (T, error) {
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	var over atomic.Bool // it has returned, or was left to itself, whichever came first
	go func() {
		v, err := guarded(func() (T, error) { return f(ctx) })
		done <- outcome{v, err}
		if over.Swap(true) {
			cfg.metrics.abandon(-1)
		}
	}()
	select {
	case o := <-done:
		return o.v, o.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(cfg.ToolGrace)
	defer grace.Stop()
	select {
	case o := <-done:
		return o.v, o.err
	case <-grace.C:
	}
	if !over.Swap(true) {
		cfg.metrics.abandon(1)
		var none T
		return none, errDeaf
	}
	o := <-done // at the last moment
	return o.v, o.err
}
