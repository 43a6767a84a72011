package verify

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// metrics are what a verifier counts.
type metrics struct {
	verdicts *prometheus.CounterVec
	witness  *prometheus.CounterVec
	ignored  *prometheus.CounterVec
	uploads  prometheus.Counter
	retries  *prometheus.CounterVec
	cold     *prometheus.CounterVec
	shadow   *prometheus.CounterVec
	seconds  prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer, v *Verifier) (*metrics, error) {
	m := &metrics{
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_verdicts_total",
			Help: "Verdicts that this verifier has published on requests and on whole logs, by result.",
		}, []string{"result"}),
		witness: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_witness_verdicts_total",
			Help: "Verdicts that this verifier has published on calls (wire) and on receipts (stray), by result and rule.",
		}, []string{"kind", "result", "rule"}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_receipts_ignored_total",
			Help: "Receipts that were read and not believed: of another key, with a wrong signature, or no receipts at all.",
		}, []string{"reason"}),
		uploads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "refold_verifier_uploads_total",
			Help: "Receipts of uploads of files that name a session. What they hold is compared with nothing.",
		}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_could_not_check_total",
			Help: "Attempts at a check that gave no answer and are made again, by what did not answer.",
		}, []string{"cause"}),
		shadow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_shadow_requests_total",
			Help: "Requests that were folded a second time, the slow way, by whether both folds show the same.",
		}, []string{"result"}),
		cold: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refold_verifier_cold_checks_total",
			Help: "Checks of whole sessions from their first event on, by their worst result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "refold_verifier_request_seconds",
			Help:    "Time to fold, rebuild and compare one request, objects included.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 4, 10),
		}),
	}
	for _, r := range audit.Results() {
		m.cold.WithLabelValues(string(r))
		if r != audit.CouldNotCheck { // it is never published
			m.verdicts.WithLabelValues(string(r))
		}
	}
	m.witness.WithLabelValues(string(audit.KindWire), string(audit.Match), "")
	for _, rule := range []string{audit.RuleWire, audit.RuleUnwitnessed} {
		m.witness.WithLabelValues(string(audit.KindWire), string(audit.Mismatch), rule)
	}
	for _, rule := range []string{audit.RuleWire, audit.RuleUnlogged, audit.RuleRepeated} {
		m.witness.WithLabelValues(string(audit.KindStray), string(audit.Mismatch), rule)
	}
	for _, why := range []string{ignoredMalformed, ignoredUntrusted, ignoredSignature} {
		m.ignored.WithLabelValues(why)
	}
	for _, cause := range []string{causeObjects, causeParent, causeWitness} {
		m.retries.WithLabelValues(cause)
	}
	for _, result := range []audit.Result{audit.Match, audit.InvalidLog} {
		m.shadow.WithLabelValues(string(result))
	}
	var errs []error
	for _, c := range append(
		gauges(v), m.verdicts, m.witness, m.ignored, m.uploads, m.retries, m.cold, m.shadow, m.seconds,
	) {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
}

// gauges return what a verifier shows of its state.
func gauges(v *Verifier) []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	return []prometheus.Collector{
		gauge("refold_verifier_sessions", "Sessions that this verifier knows.",
			func() float64 { return float64(v.Status().Sessions) }),
		gauge("refold_verifier_lag_events", "Events that this verifier knows of and has not checked yet.",
			func() float64 { return float64(v.Status().Lag) }),
		gauge("refold_verifier_due_sessions", "Sessions at rest whose log is still to be compared with what was signed.",
			func() float64 { return float64(v.Status().Due) }),
		gauge("refold_verifier_failed_sessions", "Sessions left alone after an error that trying again does not cure.",
			func() float64 { return float64(v.Status().Failed) }),
		gauge("refold_verifier_retrying_sessions", "Sessions that wait after an error of any kind and are tried again.",
			func() float64 { return float64(v.Status().Retrying) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "refold_verifier_lost_sessions_total",
			Help: "Sessions whose logs were gone before this verifier had checked them to their ends.",
		}, func() float64 { return float64(v.Status().Lost) }),
		gauge("refold_verifier_could_not_check", "Sessions whose next request cannot be checked now; they are tried again.",
			func() float64 { return float64(v.waiting()) }),
		gauge("refold_verifier_unread_sessions", "Sessions whose receipts from before the start are still to be looked at.",
			func() float64 { return float64(v.unread.Load()) }),
		gauge("refold_verifier_unbelieved_sessions", "Sessions without a log whose newest verdict is not to be believed.",
			func() float64 { return float64(v.unbelieved.Load()) }),
		gauge("refold_verifier_receipts_look_timestamp_seconds", "When a look at the receipts was complete last, in Unix time.", v.receiptLooks.seconds),
		gauge("refold_verifier_absences_look_timestamp_seconds", "When a look for sessions that are gone was complete last, in Unix time.", v.absenceLooks.seconds),
	}
}

// Why a receipt was not believed.
const (
	ignoredMalformed = "malformed"
	ignoredUntrusted = "untrusted"
	ignoredSignature = "signature"
)

// What did not answer.
const (
	causeObjects = "objects"
	causeParent  = "parent"
	causeWitness = "witness"
)

// countWitness counts a published verdict on a call or a receipt.
func (m *metrics) countWitness(v *audit.Verdict) {
	m.witness.WithLabelValues(string(v.Kind), string(v.Result), v.Rule).Inc()
}

// observe returns a function that records how long a request took.
func (m *metrics) observe(clock func() time.Time, t events.Type) func() {
	if t != events.TypeLLMStream {
		return func() {}
	}
	start := clock()
	return func() { m.seconds.Observe(clock().Sub(start).Seconds()) }
}
