package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// errNoAnswer: a request's time was over.
	errNoAnswer = errors.New("no answer in time")
	// errDisconnected: the connection was lost while a request waited.
	errDisconnected = errors.New("connection lost")
)

// refusedError says that the server refused a subject. It comes apart from the request that it belongs to.
type refusedError struct {
	subject   string
	subscribe bool
}

func (e *refusedError) Error() string {
	what := "publish to"
	if e.subscribe {
		what = "subscribe to"
	}
	return fmt.Sprintf("these credentials may not %s %q: grant it or use others", what, e.subject)
}

// waiting holds the requests that wait for an answer, so that they can be told why none will come.
type waiting struct {
	mu      sync.Mutex
	next    uint64
	waiters map[uint64]waiter
	dead    error // why no request can be answered any more
}

type waiter struct {
	subject string
	cancel  context.CancelCauseFunc
}

func newWaiting() *waiting { return &waiting{waiters: make(map[uint64]waiter)} }

func (w *waiting) add(subject string, cancel context.CancelCauseFunc) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	w.waiters[w.next] = waiter{subject, cancel}
	if w.dead != nil {
		cancel(w.dead)
	}
	return w.next
}

func (w *waiting) remove(n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, n)
}

// fail ends the requests on subject, or all of them when it is empty.
func (w *waiting) fail(subject string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.waiters {
		if subject == "" || x.subject == subject {
			x.cancel(err)
		}
	}
}

// die ends all requests, also later ones.
func (w *waiting) die(err error) {
	w.mu.Lock()
	w.dead = err
	w.mu.Unlock()
	w.fail("", err)
}

// watch returns a context for one request on subject: it also ends when the request's time is over, the connection is
// lost, or the server refuses the subject. Its cause says which; see cause.
func (c *Client) watch(ctx context.Context, subject string) (context.Context, func()) {
	timed, stop := context.WithTimeoutCause(ctx, c.cfg.RequestTimeout, errNoAnswer)
	watched, cancel := context.WithCancelCause(timed)
	n := c.waiting.add(subject, cancel)
	return watched, func() {
		c.waiting.remove(n)
		cancel(nil)
		stop()
	}
}

// watchOne is watch for the request of a function that needs no deadline in its context: it costs less.
func (c *Client) watchOne(ctx context.Context, subject string) (context.Context, func()) {
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.cfg.RequestTimeout, func() { cancel(errNoAnswer) })
	n := c.waiting.add(subject, cancel)
	return watched, func() {
		timer.Stop()
		c.waiting.remove(n)
		cancel(nil)
	}
}

// cause returns why a request made with a context of watch failed: what ended the context, if that was it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return context.Cause(ctx)
	}
	return err
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
