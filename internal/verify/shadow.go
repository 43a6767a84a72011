package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/dumb"
)

const (
	// shadowEvents bounds the logs that are folded a second time: that takes a time that grows with their square.
	shadowEvents = 2000
	// shadowRequests bounds how many requests of a turn are.
	shadowRequests = 16
)

// secondFold returns the request of the llm/stream that stands behind log.
type secondFold func(log []events.Event, stream *events.LLMStream) (dumb.Request, error)

// checkShadow folds the requests behind the sequence h.shadowed a second time and reports a difference between what both
// folds show, once about a session.
func (h *handler) checkShadow(ctx context.Context) error {
	last := h.checker.Seq()
	if broken, ok := h.checker.Broken(); ok { // behind that both folds refuse everything
		last = min(last, broken.Seq-1)
	}
	if last > shadowEvents {
		h.shadow = false
		return nil
	}
	seq, difference, err := h.compareFolds(ctx, last)
	if err != nil {
		return fmt.Errorf("second fold: %w", err)
	}
	if difference == "" {
		h.shadow, h.shadowed = false, last
		return nil
	}
	h.verifier.metrics.shadow.WithLabelValues(string(audit.InvalidLog)).Inc()
	h.verifier.cfg.Log.ErrorContext(ctx, "two folds disagree", slog.String("session", string(h.session)),
		slog.Uint64("event", seq), slog.String("difference", difference))
	known, err := h.verifier.reported(ctx, h.session, audit.RuleShadow)
	if err != nil {
		return err
	}
	h.shadow, h.shadowed = false, last
	if known {
		return nil
	}
	newest := &h.published.verdict
	h.unsent = &audit.Verdict{
		Kind: audit.KindLog, Session: h.session, Seq: newest.Seq, Event: newest.Event, Chain: newest.Chain,
		Result: audit.InvalidLog, Rule: audit.RuleShadow, Reason: audit.Reason(fmt.Sprintf("request of event %d: %s", seq, difference)),
	}
	h.unsentSeq = h.checker.Seq()
	return h.flush(ctx)
}

// compareFolds reads the log up to last and compares the newest requests behind the sequence h.shadowed. It returns the first
// one that differs, and in what; empty when none does. A log that is not valid is not compared: the fold refuses it.
func (h *handler) compareFolds(ctx context.Context, last uint64) (seq uint64, difference string, err error) {
	log, err := h.verifier.cfg.Store.Open(ctx, h.session)
	if err != nil {
		return 0, "", err
	}
	var list []events.Event
	var requests []int
	for m, err := range eventlog.UpTo(log.Read(ctx, 1), last) {
		if errors.Is(err, eventlog.ErrGap) || errors.Is(err, eventlog.ErrCorrupt) {
			return 0, "", nil
		}
		if err != nil {
			return 0, "", err
		}
		e, err := m.Event()
		if err != nil {
			return 0, "", nil // it has its verdict
		}
		if _, ok := e.Body.(*events.LLMStream); ok && m.Seq > h.shadowed {
			requests = append(requests, len(list))
		}
		list = append(list, e)
	}
	if len(requests) > shadowRequests {
		requests = requests[len(requests)-shadowRequests:]
	}
	state := fold.New(h.session)
	for i := range list {
		if len(requests) > 0 && requests[0] == i {
			requests = requests[1:]
			stream, ok := list[i].Body.(*events.LLMStream)
			if !ok {
				continue
			}
			difference := h.compareRequest(state, list[:i], stream)
			if difference != "" && state.Apply(&list[i]) != nil { // the first fold refuses the event: that has its verdict
				return 0, "", nil
			}
			if difference != "" {
				return list[i].Seq, difference, nil
			}
			h.verifier.metrics.shadow.WithLabelValues(string(audit.Match)).Inc()
		}
		if state.Apply(&list[i]) != nil {
			return 0, "", nil
		}
	}
	return 0, "", nil
}

// compareRequest words in what the two folds of log differ, empty for nothing.
func (h *handler) compareRequest(state *fold.State, log []events.Event, stream *events.LLMStream) string {
	second, refusal := h.verifier.second(log, stream)
	first, err := state.RequestOf(stream)
	switch {
	case err != nil && refusal != nil: // they agree
		return ""
	case refusal != nil:
		return "the second fold refuses it: " + refusal.Error()
	case err != nil:
		return "the first fold refuses it: " + err.Error()
	}
	messages := make([]events.Message, 0, len(second.Messages))
	for _, m := range first.Messages.All() {
		messages = append(messages, m)
	}
	if last := len(messages) - 1; stream.Auxiliary != nil && last >= 0 { // the directive's id and source mean nothing
		messages[last].ID, messages[last].Source = "", events.Source{}
	}
	switch {
	case !first.Header.Equal(&second.Header):
		return "the headers differ"
	case len(messages) != len(second.Messages):
		return fmt.Sprintf("%d messages, and %d", len(messages), len(second.Messages))
	}
	for i := range messages {
		if !sameMessage(messages[i], second.Messages[i]) {
			return fmt.Sprintf("message %d differs", i)
		}
	}
	if !slices.Equal(state.ObjectsOf(stream), second.Objects) {
		return "the objects that came into use differ"
	}
	return ""
}

// sameMessage compares all that messages hold. An empty list is as good as none.
func sameMessage(a, b events.Message) bool {
	blocks := slices.EqualFunc(a.Content, b.Content, sameBlock)
	a.Content, b.Content = nil, nil
	return blocks && reflect.DeepEqual(a, b)
}

func sameBlock(a, b events.Block) bool {
	blocks := slices.EqualFunc(a.Content, b.Content, sameBlock)
	a.Content, b.Content = nil, nil
	return blocks && reflect.DeepEqual(a, b)
}
