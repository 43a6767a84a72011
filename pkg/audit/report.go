package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// LogCheck is a check of one whole log. Session, Messages and Objects are required.
type LogCheck struct {
	Session  events.ID
	Messages iter.Seq2[eventlog.Message, error] // from the first on, in order; errors as of [eventlog.Log.Read]
	// Last is the last sequence that the log itself states. A log that ends before is broken.
	Last    uint64
	Objects Objects
	// Parents is as in [CheckerConfig].
	Parents Parents
	// Prior holds all that was signed about the session before. The log must still be what was signed, and what was found must be
	// what the check finds.
	Prior []Verdict
	// PriorPartial says that Prior is not all that was signed about requests: it is no finding that one is without a verdict.
	PriorPartial bool
	// Verified says that the caller has looked at the signatures of Prior and Receipts, and left out those that do not hold.
	Verified bool
	// Trusted holds the public keys of the verifiers whose verdicts count, of whom one must have signed something. Empty: those of
	// every verifier count, and none needs to be there.
	Trusted []string
	// Receipts holds what witnesses have signed about the session's calls, in any order. What counts of it is compared with
	// the log.
	Receipts []PlacedReceipt
	// Witnesses holds the public keys of the witnesses whose receipts count, and has every answered call need one. Empty: the
	// receipts of every witness count, and none is needed.
	Witnesses []string
	// Cold builds every request from its first byte; see [CheckerConfig].
	Cold bool
	// Actual is as in [CheckerConfig].
	Actual func(ctx context.Context, seq uint64) (body []byte, ok bool)
	// Withheld is as in [CheckerConfig].
	Withheld *Withheld
}

// Report is the outcome of a [LogCheck].
type Report struct {
	Session events.ID
	Last    uint64 // the last event read
	// Verdicts are unsigned: every request, head and call, every finding about the log, in the order they were made; then what the
	// comparison with signed verdicts gave, with the findings that are taken over from them. Of what was signed, and of receipts,
	// no more than [MaxListed] are listed of one result and rule.
	Verdicts  []Verdict
	Requests  int
	Matches   int           // of the requests
	Calls     int           // wire verdicts
	Passed    int           // of them those that match
	Confirmed int           // signed verdicts whose payload the log holds, and of which nothing else was found
	Ignored   int           // signed verdicts of verifiers that are not trusted
	Unheard   int           // receipts of witnesses that are not trusted
	Lineage   Lineage       // how a fork stands to its parent
	Parent    events.Parent // what the first event says of the parent; zero when Lineage is none
	Silent    []string      // trusted keys that signed nothing about the session, in the order of LogCheck.Trusted
}

// AllMatch reports whether every request and every call matches and nothing else was found.
func (r *Report) AllMatch() bool {
	return !slices.ContainsFunc(r.Verdicts, func(v Verdict) bool { return v.Result != Match })
}

// CheckLog checks a whole log. What could not be checked is in the report; the error is ctx's alone.
func CheckLog(ctx context.Context, check LogCheck) (*Report, error) {
	w := &walk{
		check:  &check,
		report: &Report{Session: check.Session},
		checker: NewChecker(CheckerConfig{
			Session: check.Session, Objects: check.Objects, Parents: check.Parents, Cold: check.Cold, Actual: check.Actual, Withheld: check.Withheld,
		}),
	}
	w.sortPrior()
	w.sortReceipts()
	for m, err := range check.Messages {
		if err != nil {
			w.unreadable(err)
			break
		}
		if err := w.message(ctx, m); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("check session %s: %w", check.Session, ctx.Err())
	}
	w.end()
	w.strays()
	w.compareSigned()
	w.report.Verdicts = append(w.report.Verdicts, w.listed.Rest(Verdict{Session: check.Session, Seq: w.report.Last})...)
	if w.report.Lineage = w.checker.Lineage(); w.report.Lineage != LineageNone {
		w.report.Parent = w.checker.fork.parent
	}
	return w.report, nil
}

// walk is a check in progress.
type walk struct {
	check   *LogCheck
	report  *Report
	checker *Checker
	stopped bool // the log could not be read to its end

	signed    []*signedVerdict    // those that count
	prior     []*signedVerdict    // of them those whose payload is still to be compared, by sequence
	strangers map[uint64]struct{} // requests on which somebody has signed who is not trusted
	forged    map[uint64]struct{} // requests with a verdict whose signature does not hold

	witnessed bool                       // calls are compared with receipts
	receipts  []PlacedReceipt            // those that count, of requests, by place
	ofCall    map[uint64][]PlacedReceipt // the same, by the sequence that they name
	placed    map[uint64]PlacedReceipt   // those that count, of answers too, by place
	permitted map[uint64]*Call           // the session's own calls so far, by sequence
	compared  map[uint64]struct{}        // those that have a wire verdict

	listed Listing // of records about what was signed
}

func (w *walk) add(v Verdict) {
	w.report.Verdicts = append(w.report.Verdicts, v)
	switch v.Kind {
	case KindRequest:
		w.report.Requests++
		if v.Result == Match {
			w.report.Matches++
		}
		w.permit(&v)
	case KindWire:
		w.report.Calls++
		if v.Result == Match {
			w.report.Passed++
		}
	case KindHead, KindLog, KindStray:
	}
}

func (w *walk) log(seq uint64, result Result, rule, reason string) {
	if !w.listed.Add(result, rule) {
		return
	}
	w.add(Verdict{
		Kind: KindLog, Session: w.check.Session, Seq: seq, Result: result, Rule: rule, Reason: clean(reason, maxReason),
	})
}

func (w *walk) message(ctx context.Context, m eventlog.Message) error {
	w.report.Last = max(w.report.Last, m.Seq)
	w.compare(&m)
	v, err := w.checker.Apply(ctx, m)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("check session %s: %w", w.check.Session, ctx.Err())
	case err != nil:
		w.add(w.checker.giveUp(err))
	case v != nil:
		w.add(*v)
	}
	for _, v := range w.checker.Unchecked() {
		w.add(v)
	}
	w.settle(w.checker.Settled())
	return nil
}

// compare holds the message against what was signed about it.
func (w *walk) compare(m *eventlog.Message) {
	for len(w.prior) > 0 && w.prior[0].Seq < m.Seq {
		w.gone(w.prior[0])
		w.prior = w.prior[1:]
	}
	if len(w.prior) == 0 || w.prior[0].Seq != m.Seq {
		return
	}
	hash := w.check.Withheld.hash(m)
	for ; len(w.prior) > 0 && w.prior[0].Seq == m.Seq; w.prior = w.prior[1:] {
		p := w.prior[0]
		if m.ID.Valid() {
			p.stored = m.ID
		}
		if p.held = hash == p.Chain; !p.held {
			p.gone = true
			w.log(m.Seq, BrokenChain, RuleSigned, fmt.Sprintf("its payload hashes to %s, but %s was signed by %s", hash, p.Chain, p.Verifier))
		}
	}
}

func (w *walk) gone(p *signedVerdict) {
	p.gone = true
	w.log(p.Seq, BrokenChain, RuleSigned, fmt.Sprintf("event %d is missing, but %s was signed by %s", p.Seq, p.Chain, p.Verifier))
}

// unreadable ends the check where the log gives no more messages.
func (w *walk) unreadable(err error) {
	w.stopped = true
	seq := w.report.Last + 1
	if errors.Is(err, eventlog.ErrGap) || errors.Is(err, eventlog.ErrCorrupt) {
		if v := w.checker.Gap(seq, err); v != nil {
			w.add(*v)
		}
		return
	}
	w.log(seq, CouldNotCheck, "", err.Error())
}

// end compares the end of the log with what the log states and with what was signed.
func (w *walk) end() {
	if w.stopped {
		return
	}
	for i := range w.prior {
		w.gone(w.prior[i])
	}
	if w.report.Last < w.check.Last {
		w.log(w.report.Last+1, BrokenChain, RuleSequence, fmt.Sprintf("the log ends at event %d and states that it has %d", w.report.Last, w.check.Last))
	}
}

// giveUp returns what could not be checked, a request or a fork's lineage, as a verdict and goes on without it.
func (c *Checker) giveUp(cause error) Verdict {
	var v Verdict
	if c.waiting != nil {
		v = c.waiting.verdict
	} else {
		v = c.fork.verdict
		v.Rule, c.lineage = RuleLineage, LineageUnknown
	}
	v.Result, v.Reason = CouldNotCheck, clean(cause.Error(), maxReason)
	c.waiting, c.asking = nil, false
	return v
}
