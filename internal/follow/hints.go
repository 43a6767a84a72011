package follow

import (
	"context"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/events"
)

// Hints returns the [Config.Hints] that listens to the server's hints about the sessions of some partitions, of all
// when none is named.
func Hints(hints *jetstream.Hints, partitions ...int) func(ctx context.Context, notify func(events.ID, uint64)) error {
	return func(ctx context.Context, notify func(events.ID, uint64)) error {
		sub, err := hints.Subscribe(ctx, partitions...)
		if err != nil {
			return err
		}
		defer sub.Close()
		for {
			h, err := sub.Next(ctx)
			if err != nil {
				return err
			}
			notify(h.Session, h.Seq)
		}
	}
}
