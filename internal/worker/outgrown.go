package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// outgrownError says that the log does not take an event that the loop has folded already: less fits into it than the
// loop believes. The loop is of no use any more; another one with a lower limit goes on. It does not wrap
// eventlog.ErrTooLarge, which says that nothing was folded.
type outgrownError struct {
	bytes int // of the event
	cause string
}

func (e *outgrownError) Error() string {
	return fmt.Sprintf("an event of %d bytes does not fit into the log any more: %s", e.bytes, e.cause)
}

// foldedLog is a log that is given only what was folded before.
type foldedLog struct{ eventlog.Log }

func (f foldedLog) Append(ctx context.Context, e *events.Event, payload []byte) error {
	err := f.Log.Append(ctx, e, payload)
	if errors.Is(err, eventlog.ErrTooLarge) && !errors.Is(err, eventlog.ErrUnavailable) {
		return &outgrownError{bytes: len(payload), cause: err.Error()}
	}
	return err
}

// headerRoom is what NATS counts into a message beside its payload, in bytes.
const headerRoom = 16 * kib

// limit lowers the sizes of events to what fits into the log.
func (c *Config) limit(most int) {
	if c.MaxEventBytes > most {
		c.MaxEventBytes = max(most, minEventBytes)
	}
	c.InlineMax = min(c.InlineMax, c.MaxEventBytes/inlineShare)
}

// shrink lowers the limit of the session's events after one of them did not fit; ok is false when that cannot help.
func (s *session) shrink(e *outgrownError) (ok bool) {
	s.most = min(s.limits().MaxEventBytes, e.bytes-1)
	if int(s.w.client.MaxPayload())-headerRoom >= e.bytes { // something else than the server's limit: it does not say where
		s.most = e.bytes / 2
	}
	return s.most >= minEventBytes
}

// limits returns the worker's configuration with what fits into the session's log now.
func (s *session) limits() *Config {
	cfg := s.w.cfg
	cfg.limit(int(s.w.client.MaxPayload()) - headerRoom)
	if s.most > 0 {
		cfg.limit(s.most)
	}
	return &cfg
}
