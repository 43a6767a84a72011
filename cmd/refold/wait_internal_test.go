package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// mine is the input that the tests wait for, and others are inputs that have its place or its id alone.
var (
	mine   = events.Claim{InboxSeq: 7, InputID: "01M8PG4VB622RY2RMXB3YG5CRA"}
	others = []events.Claim{{InboxSeq: 7, InputID: "01M8PG4VB622RY2RMXB3YG5CRB"}, {InboxSeq: 8, InputID: mine.InputID}, {}}
)

func said(c events.Claim, delivery events.Delivery) events.Body {
	return &events.UserMessage{InboxSeq: c.InboxSeq, Delivery: delivery, Message: events.Message{ID: string(c.InputID)}}
}

func answered(text string) events.Body {
	return &events.AssistantMessage{Message: events.Message{Content: []events.Block{events.Text(text)}}}
}

func ended(turn int64, kind events.TurnEndKind, cause string) events.Body {
	return &events.TurnEnd{Turn: turn, Kind: kind, Cause: cause}
}

// watch gives a waiter the events one by one. It returns how many it took until it was done, 0 when it is not, what was
// said and how a compaction ended.
func watch(t *testing.T, kind events.InputKind, bodies []events.Body) (taken int, said []string, err error) {
	t.Helper()
	w := waiter{
		session: "01M8PG4VB622RY2RMXB3YG5CRZ", claim: mine, kind: kind,
		say:     func(text string) error { said = append(said, text); return nil },
		outcome: func(o events.CompactionOutcome) error { said = append(said, string(o)); return nil },
	}
	for i, b := range bodies {
		done, err := w.observe(&events.Event{Seq: uint64(i + 1), Body: b})
		if done || err != nil {
			return i + 1, said, err
		}
	}
	return 0, said, nil
}

func TestWaiter(t *testing.T) {
	t.Parallel()
	start := func(id string, c events.Claim) events.Body {
		return &events.CompactionStart{CompactionID: id, Claim: c}
	}
	end := func(id string, o events.CompactionOutcome, why string) events.Body {
		return &events.CompactionEnd{CompactionID: id, Outcome: o, Error: why}
	}
	for _, tt := range []struct {
		name   string
		kind   events.InputKind
		events []events.Body
		taken  int // 0: it goes on waiting
		said   []string
		err    string // part of it
	}{
		{"prompt", events.InputPrompt, []events.Body{
			said(mine, ""), answered("a"), answered(""), answered("b"), ended(1, events.TurnCompleted, ""), answered("c"),
		}, 5, []string{"a", "b"}, ""},
		{"prompt behind another", events.InputPrompt, []events.Body{
			answered("x"), ended(1, events.TurnError, ""), said(mine, ""), answered("a"), ended(2, events.TurnCompleted, ""),
		}, 5, []string{"a"}, ""},
		{"prompt that fails", events.InputPrompt, []events.Body{
			said(mine, ""), &events.TurnEnd{Turn: 3, Kind: events.TurnError, Failure: events.Failure{Code: events.FailureServer, Message: "down"}},
		}, 2, nil, "turn 3 failed: SERVER: down"},
		{"prompt that is cancelled", events.InputPrompt, []events.Body{said(mine, ""), ended(3, events.TurnAborted, "why")}, 2, nil, "turn 3 was cancelled: why"},
		{"prompt that is stopped", events.InputPrompt, []events.Body{said(mine, ""), ended(3, events.TurnBlocked, "why")}, 2, nil, "turn 3 was stopped: why"},
		{"prompt cut short", events.InputPrompt, []events.Body{said(mine, ""), answered("a"), ended(3, events.TurnMaxTokens, "")}, 3, []string{"a"}, "limit of tokens"},
		{"prompt given up", events.InputPrompt, []events.Body{said(mine, ""), ended(3, events.TurnInterrupted, "")}, 2, nil, "given up"},
		{"prompt that is dropped", events.InputPrompt, []events.Body{&events.InputDropped{Claim: mine, Cause: "too late"}}, 1, nil, "input 7 was refused: too late"},
		{"closed before", events.InputPrompt, []events.Body{&events.SessionClosed{Claim: events.Claim{InboxSeq: 3, InputID: mine.InputID}}}, 1, nil, "was closed before input 7"},
		{"steer", events.InputSteer, []events.Body{ended(1, events.TurnCompleted, ""), said(mine, events.DeliverySteer), answered("a")}, 2, nil, ""},
		{"inject", events.InputInject, []events.Body{answered("a"), said(mine, events.DeliveryInject)}, 2, nil, ""},
		{"inject that is dropped", events.InputInject, []events.Body{&events.InputDropped{Claim: mine, Cause: "cancelled"}}, 1, nil, "refused: cancelled"},
		{"configure", events.InputConfigure, []events.Body{answered("a"), &events.SessionConfigured{Claim: mine}}, 2, nil, ""},
		{"fork", events.InputFork, []events.Body{
			said(events.Claim{InboxSeq: 2, InputID: mine.InputID}, ""), ended(1, events.TurnCompleted, ""), &events.SessionConfigured{Claim: mine},
		}, 3, nil, ""},
		{"close", events.InputClose, []events.Body{&events.SessionClosed{Claim: mine}}, 1, nil, ""},
		{"cancel at rest", events.InputCancel, []events.Body{&events.TurnCancelled{Claim: mine}}, 1, nil, ""},
		{"cancel in a turn", events.InputCancel, []events.Body{
			&events.TurnCancelled{Turn: 2, Claim: mine}, answered("half"), ended(2, events.TurnAborted, "why"), ended(3, events.TurnCompleted, ""),
		}, 3, nil, ""},
		{"compact", events.InputCompact, []events.Body{
			start("a", events.Claim{}), end("a", events.CompactionFailed, "x"), start("b", mine), end("a", events.CompactionFailed, "x"), end("b", events.CompactionCompleted, ""),
		}, 5, []string{"completed"}, ""},
		{"compact without progress", events.InputCompact, []events.Body{start("b", mine), end("b", events.CompactionNoProgress, "nothing there")}, 2, []string{"no-progress"}, "no-progress: nothing there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			taken, said, err := watch(t, tt.kind, tt.events)
			if taken != tt.taken || !slices.Equal(said, tt.said) {
				t.Errorf("%d events, %q said, want %d and %q", taken, said, tt.taken, tt.said)
			}
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
		})
	}
}

// TestClaims shows that every event that claims an input is one that is waited for, and that one of another input is not.
func TestClaims(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind events.InputKind
		body func(events.Claim) events.Body
	}{
		{events.InputSteer, func(c events.Claim) events.Body { return said(c, events.DeliverySteer) }},
		{events.InputConfigure, func(c events.Claim) events.Body { return &events.SessionConfigured{Claim: c} }},
		{events.InputCancel, func(c events.Claim) events.Body { return &events.TurnCancelled{Claim: c} }},
		{events.InputSteer, func(c events.Claim) events.Body { return &events.InputDropped{Claim: c} }},
	} {
		for _, c := range others {
			if taken, _, err := watch(t, tt.kind, []events.Body{tt.body(c)}); taken != 0 || err != nil {
				t.Errorf("%T of %v is taken for that of %v: %v", tt.body(c), c, mine, err)
			}
		}
		if taken, _, _ := watch(t, tt.kind, []events.Body{tt.body(mine)}); taken != 1 {
			t.Errorf("%T is not found", tt.body(mine))
		}
	}
}
