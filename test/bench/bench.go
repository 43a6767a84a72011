package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/events"
)

// bench holds what the measurements share.
type bench struct {
	out    io.Writer
	events int // of the generated session
	rounds int

	dir     string // removed at the end
	session *session
	server  *embedded.Server
}

// run takes all measurements.
func (b *bench) run(ctx context.Context) (err error) {
	if b.dir, err = os.MkdirTemp("", "refold-bench-"); err != nil {
		return fmt.Errorf("make a directory for the streams: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.restart(); err != nil {
		return err
	}
	defer func() { b.server.Shutdown() }()
	if b.session, err = newSession(b.events); err != nil {
		return err
	}
	for _, measure := range []func(context.Context) error{b.append, b.fold, b.delay, b.tracked, b.steps, b.compacted, b.objects} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// restart stops the server if there is one, and starts one over the same streams, whose caches are empty.
func (b *bench) restart() (err error) {
	if b.server != nil {
		b.server.Shutdown()
	}
	b.server, err = embedded.Start(embedded.Options{StoreDir: b.dir, Port: -1})
	return err
}

// connect connects in process, or over loopback TCP. The caller closes the client.
func (b *bench) connect(ctx context.Context, tcp bool) (*jetstream.Client, error) {
	cfg := jetstream.Config{InProcess: b.server}
	if tcp {
		cfg = jetstream.Config{URL: b.server.ClientURL()}
	}
	return jetstream.Connect(ctx, cfg)
}

func newID() events.ID { return events.ID(ulid.Make().String()) }

// title prints the heading of a measurement.
func (b *bench) title(format string, args ...any) {
	_, _ = fmt.Fprintf(b.out, "\n"+format+"\n", args...)
}

// line prints one figure.
func (b *bench) line(what, format string, args ...any) {
	_, _ = fmt.Fprintf(b.out, "  %-44s %s\n", what, fmt.Sprintf(format, args...))
}

// most and perSecond say whether a figure reached its goal.
func most(figure, goal float64) string {
	return fmt.Sprintf("%6.2fx   goal: at most %.2fx, %s", figure, goal, reached(figure <= goal))
}

func perSecond(figure float64) string {
	return fmt.Sprintf("%9.0f/s   goal: %d/s, %s", figure, foldGoal, reached(figure >= foldGoal))
}

func reached(yes bool) string {
	if yes {
		return "reached"
	}
	return "NOT REACHED"
}

// median returns the middle one of the values, which it sorts.
func median[T float64 | time.Duration](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

// timed returns how long do takes.
func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}
