package witness

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of calls, as the metric's label has them.
const (
	outcomeAnswered    = "answered"    // the answer passed to its end
	outcomeBroken      = "broken"      // the upstream's answer ended early
	outcomeLeft        = "left"        // the client went away before the answer's end
	outcomeAborted     = "aborted"     // the request's body never came to its end
	outcomeRefused     = "refused"     // the receipt could not be stored
	outcomeUnrecorded  = "unrecorded"  // no log permits the request
	outcomeUnreachable = "unreachable" // the upstream could not be reached, or gave no answer
	outcomeEarly       = "early"       // the upstream answered without taking the whole request, and that was not passed on
	outcomeBusy        = "busy"        // there were too many calls under way
	outcomeUnsupported = "unsupported" // a request that is no call
)

// metrics are what a witness counts. Labels are bounded: sessions and paths never appear in them.
type metrics struct {
	requests *prometheus.CounterVec
	receipts *prometheus.CounterVec
	seconds  prometheus.Histogram
	inflight prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refold_witness_requests_total", Help: "Requests, by what became of them."}, []string{"outcome"}),
		receipts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refold_witness_receipts_total", Help: "Receipts, by kind and by whether they are known to be stored."}, []string{"kind", "stored"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "refold_witness_receipt_seconds", Help: "Time that requests waited for their receipt to be stored, or not.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 17), // to 16 s
		}),
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "refold_witness_inflight", Help: "Calls under way."}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.receipts, m.seconds, m.inflight} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) receipt(kind string, err error) {
	stored := "yes"
	if err != nil {
		stored = "no"
	}
	m.receipts.WithLabelValues(kind, stored).Inc()
}

func (m *metrics) waited(d time.Duration) { m.seconds.Observe(d.Seconds()) }
