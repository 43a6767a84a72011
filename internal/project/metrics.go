package project

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/pkg/events"
)

// Metrics counts records. Its labels are bounded: providers, models and failure codes beyond a limit are counted as
// "other". Sessions are no labels: exemplars name them, and the STEPS records hold the details. Everything starts at
// zero with the process; the records are the durable truth.
type Metrics struct {
	steps     *prometheus.CounterVec
	tokens    *prometheus.CounterVec
	expected  *prometheus.CounterVec
	request   *prometheus.CounterVec
	ratio     *prometheus.HistogramVec
	first     *prometheus.HistogramVec
	duration  *prometheus.HistogramVec
	failed    *prometheus.CounterVec
	calls     *prometheus.CounterVec
	unbuilt   *prometheus.CounterVec
	auxiliary *prometheus.CounterVec
	lost      prometheus.Counter

	providers, models, codes names
}

const (
	labelProvider = "provider"
	labelModel    = "model"
	labelCause    = "cause"
	labelKind     = "kind"
	labelCode     = "code"
	labelReason   = "reason"
	labelPurpose  = "purpose"

	labelOther   = "other"
	labelUnknown = "unknown"

	// DefaultMaxModels is how many models get a label of their own.
	DefaultMaxModels = 64

	maxProviders  = 16
	maxCodes      = 32
	maxLabelBytes = 128
)

// NewMetrics makes the metrics and registers them with reg. maxModels bounds how many models, in the order in which they
// come, get a label of their own; 0: [DefaultMaxModels]. The error is the registry's: something of the same name is
// registered.
func NewMetrics(reg prometheus.Registerer, maxModels int) (*Metrics, error) {
	if maxModels == 0 {
		maxModels = DefaultMaxModels
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			[]string{labelProvider, labelModel})
	}
	seconds := []float64{0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300}
	m := &Metrics{
		steps: counter("refold_steps_total", "Finished steps, by what became of the prompt cache.",
			labelProvider, labelModel, labelCause),
		tokens: counter("refold_tokens_total", "Tokens that providers reported, failed calls included. The input kinds are disjoint; reasoning is part of output.",
			labelProvider, labelModel, labelPurpose, labelKind),
		expected: counter("refold_cache_expected_bytes_total", "Bytes of request bodies that a prefix cache could have reused.",
			labelProvider, labelModel),
		request: counter("refold_request_bytes_total", "Bytes of request bodies.", labelProvider, labelModel),
		ratio: histogram("refold_cache_hit_ratio", "Share of a step's input tokens that came from the prompt cache.",
			[]float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1}),
		first:    histogram("refold_time_to_first_chunk_seconds", "Time from the permission of a call to its first logged chunk.", seconds),
		duration: histogram("refold_step_duration_seconds", "Time from the start of a step to its end, tools included.", seconds),
		failed:   counter("refold_step_failures_total", "Steps without an answer, by the code of their last failure.", labelCode),
		calls:    counter("refold_call_failures_total", "Failed model calls, those that were tried again included.", labelCode),
		unbuilt:  counter("refold_requests_unbuilt_total", "Requests whose body could not be rebuilt or compared.", labelReason),
		auxiliary: counter("refold_auxiliary_calls_total", "Model calls beside the conversation, failed ones included.",
			labelProvider, labelModel, labelPurpose),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "refold_projector_records_of_others_total", Help: "Records that another projector had published first.",
		}),
		providers: names{max: maxProviders}, models: names{max: maxModels}, codes: names{max: maxCodes},
	}
	for _, c := range []prometheus.Collector{
		m.steps, m.tokens, m.expected, m.request, m.ratio, m.first, m.duration, m.failed, m.calls, m.unbuilt, m.auxiliary, m.lost,
	} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("projector metrics: %w", err)
		}
	}
	return m, nil
}

// Observe counts a record that was published. It is safe for concurrent use.
func (m *Metrics) Observe(r *Record) {
	provider, model := m.providers.label(string(r.Provider)), m.models.label(string(r.Model))
	where := prometheus.Labels{
		"session": string(r.Session), "turn": strconv.FormatInt(r.Turn, 10), "step": strconv.FormatInt(r.Step, 10),
	}
	if r.Purpose != "" {
		m.observeAuxiliary(r, provider, model, where)
		return
	}
	add(m.steps.WithLabelValues(provider, model, string(r.Cause)), 1, where)
	observe(m.duration.WithLabelValues(provider, model), seconds(r.DurationMs), where)
	if ratio, ok := r.HitRatio(); ok {
		observe(m.ratio.WithLabelValues(provider, model), ratio, where)
	}
	purpose := string(events.PurposeLoop)
	m.usage(provider, model, purpose, r.Usage, where)
	for i := range r.Attempts {
		a := &r.Attempts[i]
		m.usage(provider, model, purpose, a.Usage, where)
		add(m.expected.WithLabelValues(provider, model), float64(a.Reusable.Bytes), where)
		add(m.request.WithLabelValues(provider, model), float64(a.Bytes), where)
		if a.FirstChunkMs != nil {
			observe(m.first.WithLabelValues(provider, model), seconds(*a.FirstChunkMs), where)
		}
		if a.Failure != "" {
			add(m.calls.WithLabelValues(m.codes.label(string(a.Failure))), 1, where)
		}
		if a.Unbuilt != Built {
			add(m.unbuilt.WithLabelValues(string(a.Unbuilt)), 1, where)
		}
	}
	if r.Failure != "" {
		add(m.failed.WithLabelValues(m.codes.label(string(r.Failure))), 1, where)
	}
}

// observeAuxiliary counts an auxiliary call: what it cost and whether it failed, nothing that says something about steps.
// Its purpose is one of a few that a record may have.
func (m *Metrics) observeAuxiliary(r *Record, provider, model string, where prometheus.Labels) {
	purpose := string(r.Purpose)
	add(m.auxiliary.WithLabelValues(provider, model, purpose), 1, where)
	m.usage(provider, model, purpose, r.Usage, where)
	for i := range r.Attempts {
		m.usage(provider, model, purpose, r.Attempts[i].Usage, where)
	}
	if r.Failure != "" {
		add(m.calls.WithLabelValues(m.codes.label(string(r.Failure))), 1, where)
	}
}

func (m *Metrics) usage(provider, model, purpose string, u *Usage, where prometheus.Labels) {
	if u == nil {
		return
	}
	for _, k := range [...]struct {
		kind string
		n    int64
	}{
		{"input_uncached", u.InputUncached},
		{"cache_read", u.CacheRead},
		{"cache_write_5m", u.CacheWrite5m},
		{"cache_write_1h", u.CacheWrite1h},
		{"output", u.Output},
		{"reasoning", u.Reasoning},
	} {
		if k.n > 0 {
			add(m.tokens.WithLabelValues(provider, model, purpose, k.kind), float64(k.n), where)
		}
	}
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// add adds to a counter of client_golang, which takes exemplars.
func add(c prometheus.Counter, v float64, where prometheus.Labels) {
	if e, ok := c.(prometheus.ExemplarAdder); ok {
		e.AddWithExemplar(v, where)
		return
	}
	c.Add(v)
}

// observe is add for a histogram.
func observe(o prometheus.Observer, v float64, where prometheus.Labels) {
	if e, ok := o.(prometheus.ExemplarObserver); ok {
		e.ObserveWithExemplar(v, where)
		return
	}
	o.Observe(v)
}

// names gives label values to the first max names that come.
type names struct {
	max int

	mu   sync.Mutex
	seen map[string]struct{}
}

// label returns the name as a label value.
func (n *names) label(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	switch {
	case name == "":
		return labelUnknown
	case len(name) > maxLabelBytes:
		return labelOther
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.seen[name]; ok {
		return name
	}
	if len(n.seen) >= n.max {
		return labelOther
	}
	if n.seen == nil {
		n.seen = make(map[string]struct{})
	}
	n.seen[name] = struct{}{}
	return name
}
