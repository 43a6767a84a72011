package audittest

import (
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// Calls returns the llm/stream events that are the session's own: what a fork copied are its parent's calls.
func (s *Session) Calls() []events.Event {
	var copied uint64
	if b, ok := s.Events[0].Body.(*events.SessionCreated); ok && b.SeedLength > 0 {
		copied = b.SeedLength + 1
	}
	return slices.DeleteFunc(slices.Clone(s.Events), func(e events.Event) bool {
		return e.Type() != events.TypeLLMStream || e.Seq <= copied
	})
}

// Answered reports whether the log shows that something came of the call's answer.
func (s *Session) Answered(call uint64) bool {
	for _, e := range s.Events[call:] {
		switch e.Body.(type) {
		case *events.AssistantChunk, *events.AssistantMessage, *events.CompactionSummary:
			return true
		case *events.LLMFailed, *events.LLMStream:
			return false
		}
	}
	return false
}

// Receipt returns the unsigned receipt of a request as a witness writes it: of the session's event seq, with that body.
func (s *Session) Receipt(seq uint64, body events.BodyDigest) audit.Receipt {
	return audit.Receipt{
		Kind: audit.ReceiptRequest, Call: foldtest.ID(1_733_000_000_000, seq), Session: s.ID, Seq: seq, Method: "POST", Target: "/v1/chat/completions",
		Body: body, Time: 1_733_000_000_000,
	}
}

// Receipts returns what a witness with the key signs about the session when every call passes it: of each call the request
// and the answer, and between them an upload and a request without a body. The places count from 1 with a gap for what
// passes of other sessions.
func (s *Session) Receipts(key *audit.Key) []audit.PlacedReceipt {
	var out []audit.PlacedReceipt
	place := uint64(1)
	sign := func(r audit.Receipt) {
		if err := key.SignReceipt(&r); err != nil {
			panic(err)
		}
		out = append(out, audit.PlacedReceipt{Place: place, Receipt: r})
		place += 2
	}
	body := events.BodyDigest{Bytes: 5, SHA256: events.HashPayload([]byte("bytes"))}
	for i, e := range s.Calls() {
		r := s.Receipt(e.Seq, e.Body.(*events.LLMStream).Body)
		switch i % 3 {
		case 0:
			upload := s.Receipt(0, body)
			upload.Target = "/v1/files"
			sign(upload)
		case 1:
			look := s.Receipt(0, events.BodyDigest{SHA256: events.HashPayload(nil)})
			look.Method, look.Target = "GET", "/v1/models"
			sign(look)
		}
		sign(r)
		r.Kind, r.Status, r.Complete, r.Body = audit.ReceiptAnswer, 200, true, body
		sign(r)
	}
	return out
}
