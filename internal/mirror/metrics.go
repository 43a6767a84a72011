package mirror

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	made prometheus.Counter
}

// newMetrics registers the metrics. Those of the newest sweep are taken from the mirror when they are asked for.
func newMetrics(reg prometheus.Registerer, m *Mirror) (*metrics, error) {
	out := &metrics{made: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "refold_mirror_made_total", Help: "Mirrors that were made.",
	})}
	gauge := func(name, help string, value func(Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(m.Status()) })
	}
	all := []prometheus.Collector{
		out.made,
		gauge("refold_mirror_streams", "Mirrors in this account.", func(s Status) float64 { return float64(s.Streams) }),
		gauge("refold_mirror_behind_streams", "Mirrors that lack messages of the stream that they mirror.", func(s Status) float64 { return float64(s.Behind) }),
		gauge("refold_mirror_lag_messages", "Messages that mirrors lack.", func(s Status) float64 { return float64(s.Lag) }),
		gauge("refold_mirror_swept_timestamp_seconds", "When the last complete sweep ended, in Unix time.", func(s Status) float64 {
			if s.Swept.IsZero() {
				return 0
			}
			return float64(s.Swept.UnixMilli()) / 1000
		}),
	}
	for _, f := range findings() {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "refold_mirror_findings", Help: "Streams with something wrong, by what it is.", ConstLabels: prometheus.Labels{"finding": string(f)},
		}, func() float64 { return float64(m.Status().Findings[f]) }))
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return out, nil
}
