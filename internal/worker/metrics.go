package worker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/pkg/events"
)

// Metrics are what a worker counts. Labels are bounded: sessions never appear in them.
type Metrics struct {
	active prometheus.Gauge
	lost   prometheus.Counter
	inputs *prometheus.CounterVec
	calls  *prometheus.CounterVec
	tools  *prometheus.CounterVec
	deaf   prometheus.Gauge
}

// NewMetrics registers the metrics with reg. The error is the registry's.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "refold_worker_sessions", Help: "Sessions that the worker holds in memory."}),
		lost:   prometheus.NewCounter(prometheus.CounterOpts{Name: "refold_worker_sessions_lost_total", Help: "Sessions that another worker took while this one worked on them."}),
		inputs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refold_worker_inputs_total", Help: "Inputs used, by kind."}, []string{"kind"}),
		calls:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refold_worker_model_calls_total", Help: "Model calls, by outcome: the kind of the finish or the failure's code."}, []string{"outcome"}),
		tools:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refold_worker_tool_calls_total", Help: "Tool calls, by outcome: ok or the error's code."}, []string{"outcome"}),
		deaf:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "refold_worker_abandoned", Help: "Tools and extensions that run although they were told to stop, and nobody waits for."}),
	}
	for _, c := range []prometheus.Collector{m.active, m.lost, m.inputs, m.calls, m.tools, m.deaf} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// input counts an input that was used, or dropped.
func (m *Metrics) input(kind events.InputKind) {
	if m != nil {
		m.inputs.WithLabelValues(string(kind)).Inc()
	}
}

// abandon counts what was left to itself, and with -1 what has ended at last.
func (m *Metrics) abandon(n float64) {
	if m != nil {
		m.deaf.Add(n)
	}
}

// observe counts an event that was stored.
func (m *Metrics) observe(body events.Body) {
	if m == nil {
		return
	}
	switch b := body.(type) {
	case *events.AssistantMessage:
		m.calls.WithLabelValues(string(b.Finish.Kind)).Inc()
	case *events.LLMFailed:
		m.calls.WithLabelValues(string(b.Failure.Code)).Inc()
	case *events.ToolResult:
		outcome := "ok"
		if b.Error.Code != "" {
			outcome = string(b.Error.Code)
		}
		m.tools.WithLabelValues(outcome).Inc()
	}
}
