package audit

import (
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// PermittedBy returns the call that a message of a log permits, nil when it is no llm/stream event. One that a fork has copied
// permits none either: see [CopiedBy].
func PermittedBy(session events.ID, m *eventlog.Message) *Call {
	if m.Type != events.TypeLLMStream {
		return nil
	}
	v := Verdict{Session: session, Seq: m.Seq, Chain: events.HashPayload(m.Payload)}
	if m.ID.Valid() {
		v.Event = m.ID
	}
	if e, err := m.Event(); err == nil {
		if b, ok := e.Body.(*events.LLMStream); ok {
			v.Turn, v.Step, v.Attempt, v.Recorded = b.Turn, b.Step, b.Attempt, b.Body
		}
	}
	return CallOf(&v)
}

// CopiedBy returns the sequence of the last event that a fork has copied, 0 for a session that is none. first is the log's first
// message; a log that is broken from there on has copied nothing.
func CopiedBy(first *eventlog.Message) uint64 {
	e, err := first.Event()
	if err != nil {
		return 0
	}
	if b, ok := e.Body.(*events.SessionCreated); ok && b.SeedLength > 0 {
		return b.SeedLength + 1
	}
	return 0
}
