package verify

import (
	"context"
	"errors"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// maxTail is how many events behind a session's newest verdict are looked at after a start. A session with more is folded.
const maxTail = 64

// atRest implements [follow.Config.AtRest]: a session is at rest when its newest verdict is to be believed, the log still
// holds the event that it is about, and behind that stand only events that call for no verdict, each linked to the one
// before. That costs one read of the log, however long it is. Whether the rest of the log is what was signed, and keeps
// to the rules, is left to the fold that Config.Recheck brings.
func (v *Verifier) atRest(ctx context.Context, session events.ID, log eventlog.Log, last uint64) (position uint64, rest bool, err error) {
	p, err := v.newest(ctx, session)
	if err != nil {
		return 0, false, err
	}
	if p.place == 0 {
		return 0, last == 0, nil
	}
	signed := &p.verdict
	switch {
	case signed.Result == audit.BrokenChain: // it stays broken: there is nothing left to compare
		return signed.Seq, last == signed.Seq, nil
	case signed.Chain == events.Hash{}, last < signed.Seq, last-signed.Seq > maxTail:
		return signed.Seq, false, nil
	case last > signed.Seq && (v.cfg.Recheck == 0 || signed.Result == audit.InvalidLog): // nobody would fold the rest
		return signed.Seq, false, nil
	}
	owes := false
	if last > signed.Seq {
		if owes, err = v.owesWire(ctx, session, signed); err != nil {
			return signed.Seq, false, err
		}
	}
	t := tail{next: signed.Seq}
	for m, err := range log.Read(ctx, signed.Seq) {
		switch {
		case errors.Is(err, eventlog.ErrGap), errors.Is(err, eventlog.ErrCorrupt):
			return signed.Seq, false, nil
		case err != nil:
			return 0, false, err
		case m.Seq > last: // it has grown meanwhile, which is noticed as always
			return signed.Seq, !owes, nil
		case !t.fits(&m, signed):
			return signed.Seq, false, nil
		}
	}
	if owes && t.failed { // without a receipt nothing is said about the call
		owes = v.mayHavePassed(ctx, session, signed.Seq)
	}
	return signed.Seq, t.next == last+1 && !owes, nil
}

// tail is the end of a log, from the newest signed event on.
type tail struct {
	next   uint64
	chain  events.Hash // of the event before
	ended  bool        // the signed event's call, if that is a request
	failed bool        // it has ended before anything of an answer came
}

// fits reports whether the next message is the signed event, or one behind it that calls for no verdict.
func (t *tail) fits(m *eventlog.Message, signed *audit.Verdict) bool {
	if m.Seq != t.next {
		return false
	}
	t.next++
	hash := events.HashPayload(m.Payload)
	defer func() { t.chain = hash }()
	if m.Seq == signed.Seq {
		if hash != signed.Chain || m.ID != signed.Event {
			return false
		}
		_, err := m.Event()
		return err == nil || signed.Result == audit.InvalidLog // that it is no event is what was signed
	}
	if m.Type == events.TypeLLMStream || m.Type == events.TypeTurnEnd || m.Type == events.TypeSessionClosed {
		return false
	}
	switch m.Type {
	case events.TypeLLMFailed:
		t.failed, t.ended = !t.ended, true
	case events.TypeAssistantChunk, events.TypeAssistantMessage, events.TypeCompactionSummary, events.TypeSessionTitle:
		t.ended = true
	default: // it says nothing of the call
	}
	e, err := m.Event()
	return err == nil && e.Prev == t.chain
}
