package project_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/project"
)

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := project.NewMetrics(reg, 2)
	if err != nil {
		t.Fatal(err)
	}
	r := sample()
	r.Model = "deepseek-chat"
	m.Observe(&r)
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"refold_steps_total", []string{"provider=deepseek", "model=deepseek-chat", "cause=tools"}, 1},
		{"refold_tokens_total", []string{"kind=input_uncached"}, 320}, // the failed attempt's ten included
		{"refold_tokens_total", []string{"kind=cache_read"}, 1920},
		{"refold_tokens_total", []string{"kind=cache_write_5m"}, 5},
		{"refold_tokens_total", []string{"kind=cache_write_1h"}, 6},
		{"refold_tokens_total", []string{"kind=output"}, 200},
		{"refold_tokens_total", []string{"kind=reasoning"}, 120},
		{"refold_cache_expected_bytes_total", nil, 9240},
		{"refold_request_bytes_total", nil, 18240},
		{"refold_cache_hit_ratio", nil, 1},
		{"refold_time_to_first_chunk_seconds", nil, 1},
		{"refold_step_duration_seconds", nil, 1},
		{"refold_call_failures_total", []string{"code=TRANSPORT"}, 1},
		{"refold_step_failures_total", nil, 0},
		{"refold_requests_unbuilt_total", []string{"reason=predecessor"}, 1},
	} {
		if got := value(t, reg, tt.name, tt.labels...); got != tt.want {
			t.Errorf("%s%v is %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	if _, err := project.NewMetrics(reg, 0); err == nil {
		t.Error("the same metrics twice in one registry")
	}
}

// TestMetricLabels: what providers and models are called does not decide how many series there are, nor break them.
func TestMetricLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := project.NewMetrics(reg, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		r := sample()
		r.Model = project.Text(fmt.Sprintf("model-%d", i))
		m.Observe(&r)
		r.Model, r.Provider = project.Text(strings.Repeat("x", 1000)), ""
		m.Observe(&r)
		r.Model = "\xed\xa0\xbd"
		m.Observe(&r)
	}
	for label, want := range map[string]float64{"model-0": 1, "model-1": 1, "model-2": 0, "other": 198, "\uFFFD": 100} {
		if got := value(t, reg, "refold_steps_total", "model="+label); got != want {
			t.Errorf("model %s: %v steps, want %v", label, got, want)
		}
	}
	if got := value(t, reg, "refold_steps_total"); got != 300 {
		t.Errorf("%v steps, want 300", got)
	}
	if got := value(t, reg, "refold_steps_total", "provider=unknown"); got != 200 {
		t.Errorf("%v steps without a provider, want 200", got)
	}
}

// TestExemplars: a series leads to the session.
func TestExemplars(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := project.NewMetrics(reg, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := sample()
	m.Observe(&r)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "refold_steps_total" {
			continue
		}
		got := map[string]string{}
		for _, l := range f.GetMetric()[0].GetCounter().GetExemplar().GetLabel() {
			got[l.GetName()] = l.GetValue()
		}
		if got["session"] != string(r.Session) || got["turn"] != "2" || got["step"] != "1" {
			t.Errorf("exemplar %v", got)
		}
		return
	}
	t.Error("no steps")
}
