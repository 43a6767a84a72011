package audit_test

import (
	"bytes"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// withholdings are the types that stand for all others, each alone.
func withholdings(t *testing.T) []audit.Withholding {
	t.Helper()
	var all []audit.Withholding
	for _, name := range []events.Type{events.TypeUserMessage, events.TypeToolResult, events.TypeRequestHeader, events.TypeAssistantMessage} {
		w, err := audit.NewWithholding([]events.Type{name})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

// TestRemarks: what a provider, a worker or an extension says about content may quote it, and goes with it.
func TestRemarks(t *testing.T) {
	const secret = "the prompt \"my password is 1234\" is too long"
	failure := events.Failure{Message: secret, Code: events.FailureServer, Status: 400}
	for name, body := range map[string]events.Body{
		"a failed call":        &events.LLMFailed{Attempt: 1, Failure: failure},
		"a retry":              &events.LLMRetry{RetryID: "r", Retry: 1, Failure: failure},
		"a failed turn":        &events.TurnEnd{Turn: 1, Kind: events.TurnError, Failure: failure},
		"a blocked turn":       &events.TurnEnd{Turn: 1, Kind: events.TurnBlocked, Cause: secret},
		"a failed compaction":  &events.CompactionEnd{CompactionID: "c", Outcome: events.CompactionFailed, Error: secret},
		"a question":           &events.ApprovalAsked{ApprovalID: "a", CallID: "c", Question: secret},
		"an input not taken":   &events.InputDropped{Claim: events.Claim{InboxSeq: 1, InputID: foldtest.ID(1, 1)}, Kind: events.InputPrompt, Cause: secret},
		"a failed call, terse": &events.LLMFailed{Attempt: 1, Failure: events.Failure{Code: events.FailureServer}},
	} {
		e := events.Event{Seq: 2, ID: foldtest.ID(1, 2), Body: body}
		payload, err := events.Encode(&e)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m := eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: payload}
		says := bytes.Contains(payload, []byte("password"))
		for _, w := range withholdings(t) {
			out, c, ok, err := w.Withhold(&m)
			if err != nil || ok != says || c.Opaque {
				t.Errorf("%s without %v: withheld %t, %v", name, w.Types(), ok, err)
			}
			if bytes.Contains(out.Payload, []byte("password")) {
				t.Errorf("%s without %v: %s", name, w.Types(), out.Payload)
			}
			if !ok {
				continue
			}
			if got, err := w.Event(&out, &c); err != nil || !got.Withheld() {
				t.Errorf("%s without %v: %v", name, w.Types(), err)
			}
			if _, err := w.Event(&m, &c); err == nil {
				t.Errorf("%s without %v: content beside the commitment is taken", name, w.Types())
			}
		}
		if out, _, ok, err := (audit.Withholding{}).Withhold(&m); err != nil || ok || !bytes.Equal(out.Payload, payload) {
			t.Errorf("%s: nothing is to be withheld, and something is: %v", name, err)
		}
	}
}

// TestWithholdLeavesMessage: who decoded the message ahead still has its content, and who gets what stands for it has none.
func TestWithholdLeavesMessage(t *testing.T) {
	for _, l := range []*foldtest.Log{audittest.Whole(), audittest.Sample(foldtest.SessionID)} {
		s := audittest.Of("", l)
		for _, w := range withholdings(t) {
			for i := range s.Messages {
				m := s.Messages[i]
				if _, err := m.Decode(new(events.Decoder)); err != nil {
					t.Fatal(err)
				}
				out, c, ok, err := w.Withhold(&m)
				if err != nil {
					t.Fatal(err)
				}
				e, err := m.Event()
				if err != nil {
					t.Fatal(err)
				}
				if again, err := events.Encode(&e); err != nil || !bytes.Equal(again, s.Messages[i].Payload) || !bytes.Equal(m.Payload, again) {
					t.Errorf("event %d without %v: the message has changed: %s, %v", m.Seq, w.Types(), again, err)
				}
				if !ok || c.Opaque {
					continue
				}
				left, err := out.Event()
				if err != nil {
					t.Fatal(err)
				}
				if again, err := events.Encode(&left); err != nil || !bytes.Equal(again, out.Payload) {
					t.Errorf("event %d without %v: what stands for it says %s, %v", m.Seq, w.Types(), again, err)
				}
			}
		}
	}
}
