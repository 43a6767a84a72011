package verify

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
)

// coldEvents bounds the logs of which a cold check builds every request from its first byte: that takes a time that grows with
// their square. In a longer one each is built on from the one before.
const coldEvents = 2000

// checkCold checks the session anew from its first event with nothing that is known of it.
func (h *handler) checkCold(ctx context.Context) error {
	log, err := h.verifier.cfg.Store.Open(ctx, h.session)
	if err != nil {
		return fmt.Errorf("cold check: %w", err)
	}
	receipts, matched, err := h.coldCalls(ctx)
	if err != nil {
		return fmt.Errorf("cold check: %w", err)
	}
	check := audit.LogCheck{
		Session: h.session, Messages: eventlog.UpTo(log.Read(ctx, 1), h.checker.Seq()), Last: h.checker.Seq(),
		Objects: audit.FromStore(h.verifier.cfg.Objects), Cold: h.checker.Seq() <= coldEvents, Receipts: receipts, Verified: true,
	}
	newest := &h.published.verdict // another verifier's may be further on
	if newest.Seq <= h.checker.Seq() {
		check.Prior, check.PriorPartial = []audit.Verdict{*newest}, true
	}
	report, err := audit.CheckLog(ctx, check)
	if err != nil {
		return fmt.Errorf("cold check: %w", err)
	}
	report.Verdicts = slices.DeleteFunc(report.Verdicts, func(v audit.Verdict) bool { // what has no verdict yet is looked at elsewhere
		_, ok := matched[v.Seq]
		return v.Kind == audit.KindStray || v.Kind == audit.KindWire && !ok
	})
	worst := audit.Match
	var reason string
	for i := range report.Verdicts {
		v := &report.Verdicts[i]
		if v.Result != audit.Match && (worst == audit.Match || worst == audit.CouldNotCheck) {
			worst, reason = v.Result, v.String()
		}
	}
	var found *audit.Verdict
	if worst != audit.Match && worst != audit.CouldNotCheck {
		if found, err = h.notSaid(ctx, report.Verdicts); err != nil {
			return err
		}
	}
	h.cold = false
	h.verifier.metrics.cold.WithLabelValues(string(worst)).Inc()
	if worst == audit.CouldNotCheck { // another turn end will be drawn
		h.verifier.cfg.Log.WarnContext(ctx, "a cold check was not possible", slog.String("session", string(h.session)), slog.String("reason", reason))
	}
	if found == nil {
		return nil
	}
	h.unsent = &audit.Verdict{
		Kind: audit.KindLog, Session: h.session, Seq: newest.Seq, Event: newest.Event, Chain: newest.Chain,
		Result: found.Result, Rule: audit.RuleCold, Reason: audit.Reason(found.String()),
	}
	h.unsentSeq = h.checker.Seq()
	return h.flush(ctx)
}

// coldCalls returns the first receipt of each call up to the last event that was applied, and the calls of which a verdict says
// that what passed matches: of those a cold check says it when that is not so. There are none without a witness.
func (h *handler) coldCalls(ctx context.Context) (receipts []audit.PlacedReceipt, matched map[uint64]struct{}, err error) {
	v := h.verifier
	if !v.cfg.Witness.on() {
		return nil, nil, nil
	}
	matched = make(map[uint64]struct{})
	for record, err := range v.cfg.Witness.Wires.Read(ctx, h.session, 1) {
		if err != nil {
			return nil, nil, fmt.Errorf("read the verdicts on calls: %w", err)
		}
		if old, err := v.believed(&record); err == nil && old.Result == audit.Match {
			matched[old.Seq] = struct{}{}
		}
	}
	seen := make(map[uint64]struct{})
	for record, err := range v.cfg.Witness.Receipts.Read(ctx, h.session, 1) {
		if err != nil {
			return nil, nil, fmt.Errorf("read the receipts: %w", err)
		}
		r, err := v.receiptOf(ctx, &record)
		if err != nil || r.Kind != audit.ReceiptRequest || r.Body.Bytes == 0 || r.Seq == 0 || r.Seq > h.checker.Seq() {
			continue
		}
		if _, ok := seen[r.Seq]; !ok {
			seen[r.Seq] = struct{}{}
			receipts = append(receipts, audit.PlacedReceipt{Place: record.Seq, Receipt: r})
		}
	}
	return receipts, matched, nil
}

// said is what a verdict says, for a comparison with another one.
type said struct {
	seq    uint64
	result audit.Result
	rule   string
}

// notSaid returns the first finding of a cold check that no verdict on the session says, nil when there is none: what was
// found before is nothing that only a cold check finds, nor is what an earlier one has found.
func (h *handler) notSaid(ctx context.Context, verdicts []audit.Verdict) (*audit.Verdict, error) {
	known, reasons := make(map[said]struct{}), make(map[string]struct{})
	for v, err := range h.verifier.verdicts(ctx, h.session) {
		if err != nil {
			return nil, fmt.Errorf("cold check: %w", err)
		}
		known[said{v.Seq, v.Result, v.Rule}] = struct{}{}
		if v.Rule == audit.RuleCold {
			reasons[v.Reason] = struct{}{}
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		_, found := known[said{v.Seq, v.Result, v.Rule}]
		_, again := reasons[audit.Reason(v.String())]
		if v.Result != audit.Match && v.Result != audit.CouldNotCheck && !found && !again {
			return v, nil
		}
	}
	return nil, nil
}
