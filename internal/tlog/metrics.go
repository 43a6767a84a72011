package tlog

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	size        prometheus.Gauge
	failed      prometheus.Gauge
	checkpoints prometheus.Counter
	errors      prometheus.Counter
	rechecks    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		size: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "refold_log_size", Help: "Leaves of the transparency log at its newest checkpoint.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "refold_log_failed", Help: "1 when the transparency log has stopped for good, because the verdicts or its files are not what was signed.",
		}),
		checkpoints: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "refold_log_checkpoints_total", Help: "Checkpoints of the transparency log that were signed.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "refold_log_errors_total", Help: "Attempts to bring the transparency log forward that failed and are made again.",
		}),
		rechecks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "refold_log_rechecked_total", Help: "Stored verdicts that were compared with the transparency log again.",
		}),
	}
	for _, c := range []prometheus.Collector{m.size, m.failed, m.checkpoints, m.errors, m.rechecks} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
