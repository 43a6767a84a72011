package witness

import (
	"context"
	"errors"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Logs reads what sessions' logs hold: [jetstream.Logs]. It is safe for concurrent use.
type Logs interface {
	// At returns one event as whoever knows for certain has it. The error wraps [eventlog.ErrNotFound] when there is no such
	// session, or no such event.
	At(ctx context.Context, session events.ID, seq uint64) (eventlog.Message, error)
}

// unrecordedError means that no log permits a request with this body.
type unrecordedError struct{ reason string }

func (e *unrecordedError) Error() string { return e.reason }

// recorded returns nil when a log permits the request of the receipt, or the request needs no permission: what a verifier would
// report as a stray receipt does not pass. Any error but an [*unrecordedError] says that the log could not be read.
func (w *Witness) recorded(ctx context.Context, r *audit.Receipt) error {
	if w.cfg.Record == nil || r.Body.Bytes == 0 {
		return nil
	}
	var first, m eventlog.Message
	known, err := false, error(nil)
	if r.Session != "" {
		first, known, err = w.event(ctx, r.Session, 1)
	}
	var call *audit.Call
	if err == nil && known && r.Seq > audit.CopiedBy(&first) {
		var there bool
		if m, there, err = w.event(ctx, r.Session, r.Seq); there {
			call = audit.PermittedBy(r.Session, &m)
		}
	}
	if err != nil {
		return err
	}
	p := audit.PlacedReceipt{Receipt: *r}
	found := audit.Stray(&p, known, call, 0)
	if found == nil && call != nil {
		found = audit.Late(&p, call)
	}
	if found != nil {
		return &unrecordedError{found.Reason}
	}
	return nil
}

// event returns an event of a log; there is false when the log does not hold it.
func (w *Witness) event(ctx context.Context, session events.ID, seq uint64) (m eventlog.Message, there bool, err error) {
	m, err = w.cfg.Record.At(ctx, session, seq)
	if errors.Is(err, eventlog.ErrNotFound) {
		return m, false, nil
	}
	return m, err == nil, err
}
