package main

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

func digestOf(s string) events.BodyDigest {
	return events.BodyDigest{Bytes: int64(len(s)), SHA256: events.HashPayload([]byte(s))}
}

func TestDigests(t *testing.T) {
	a, b, c := digestOf("a"), digestOf("bb"), digestOf("ccc")
	for want, v := range map[string]audit.Verdict{
		"recorded = rebuilt = wire, receipt 7":                                            {Result: audit.Match, Recorded: a, Rebuilt: a, Wire: a, Receipt: 7},
		"recorded = wire, receipt 7":                                                      {Result: audit.Match, Recorded: a, Wire: a, Receipt: 7},
		"recorded = rebuilt ca978112ca1b/1, wire 3b64db95cb55/2, receipt 7":               {Result: audit.Mismatch, Recorded: a, Rebuilt: a, Wire: b, Receipt: 7},
		"recorded ca978112ca1b/1, rebuilt 3b64db95cb55/2, wire 64daa44ad493/3, receipt 7": {Result: audit.Mismatch, Recorded: a, Rebuilt: b, Wire: c, Receipt: 7},
		"recorded = rebuilt ca978112ca1b/1":                                               {Result: audit.Mismatch, Recorded: a, Rebuilt: a},
		"wire 3b64db95cb55/2, receipt 7":                                                  {Result: audit.Mismatch, Wire: b, Receipt: 7},
		"recorded ca978112ca1b/1, rebuilt 3b64db95cb55/2, wire ca978112ca1b/1, receipt 7": {Result: audit.Mismatch, Recorded: a, Rebuilt: b, Wire: a, Receipt: 7},
	} {
		if got := digests(&v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := detail(&audit.Verdict{Kind: audit.KindRequest, Reason: "r", Recorded: a}); got != "r" {
		t.Errorf("a request: %q", got)
	}
	if got := detail(&audit.Verdict{Kind: audit.KindStray, Rule: "unlogged", Reason: "r", Wire: b, Receipt: 1, Result: audit.Mismatch}); got != "unlogged: r (wire 3b64db95cb55/2, receipt 1)" {
		t.Errorf("a stray: %q", got)
	}
}

func TestConclusionOfCalls(t *testing.T) {
	for _, kind := range []audit.Kind{audit.KindWire, audit.KindStray} {
		r := &audit.Report{Requests: 1, Matches: 1, Verdicts: []audit.Verdict{{Kind: kind, Result: audit.Mismatch, Rule: audit.RuleWire}}}
		if got := conclusion(r); !strings.Contains(got, "what passed the witness") {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

// growing is a log that has grown since it was first looked at.
type growing struct {
	eventlog.Log
	last    uint64
	current error
}

func (g *growing) Last(context.Context) (uint64, error) { return g.last, nil }
func (g *growing) Current(context.Context) error        { return g.current }

func numbered(n uint64) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for seq := uint64(1); seq <= n; seq++ {
			if !yield(eventlog.Message{Seq: seq}, nil) {
				return
			}
		}
	}
}

// TestSnapshot: what came while receipts were read is left for the next check; what is about events that do not exist is not.
func TestSnapshot(t *testing.T) {
	check := audit.LogCheck{Last: 5, Messages: numbered(9)}
	for _, seq := range []uint64{0, 3, 5, 6, 8, 9, 77} {
		check.Receipts = append(check.Receipts, audit.PlacedReceipt{Place: seq, Receipt: audit.Receipt{Seq: seq}})
		check.Prior = append(check.Prior, audit.Verdict{Seq: seq})
	}
	if err := snapshot(t.Context(), &growing{last: 8}, &check); err != nil {
		t.Fatal(err)
	}
	var receipts, prior, messages []uint64
	for _, p := range check.Receipts {
		receipts = append(receipts, p.Receipt.Seq)
	}
	for _, v := range check.Prior {
		prior = append(prior, v.Seq)
	}
	for m, err := range check.Messages {
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m.Seq)
	}
	if want := []uint64{0, 3, 5, 9, 77}; !slices.Equal(receipts, want) || !slices.Equal(prior, want) {
		t.Errorf("receipts %d, verdicts %d, want %d", receipts, prior, want)
	}
	if !slices.Equal(messages, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("messages %d", messages)
	}
	behind := errors.New("behind")
	if err := snapshot(t.Context(), &growing{current: behind}, &check); !errors.Is(err, behind) {
		t.Errorf("a mirror that is behind: %v", err)
	}
}
