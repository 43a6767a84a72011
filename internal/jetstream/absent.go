package jetstream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Absent returns nil when there is no such session: it has no log here and, where WITNESS is a mirror, none at the origin
// either, which may have one that is not mirrored yet. Otherwise the error wraps [eventlog.ErrUnavailable]: nothing is
// known, or there is one.
func (l *Logs) Absent(ctx context.Context, id events.ID) error {
	c, stream := l.client, SessionStream(id)
	witness, err := c.info(ctx, c.prefix, WitnessStream)
	if err != nil {
		return notCurrent(WitnessStream, "cannot be looked at", err)
	}
	prefixes := []string{c.prefix}
	if m := witness.Config.Mirror; m != nil && m.External != nil {
		prefixes = append(prefixes, strings.TrimSuffix(m.External.API, ".")+".")
	}
	for _, prefix := range prefixes {
		_, err := c.info(ctx, prefix, stream)
		if err == nil {
			return fmt.Errorf("%w: session %s has a log under %s", eventlog.ErrUnavailable, id, prefix)
		}
		if !errors.Is(mapped(err), eventlog.ErrNotFound) {
			return notCurrent(stream, "cannot be looked at under "+prefix, err)
		}
	}
	return nil
}
