package worker_test

import (
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/worker"
)

func TestCwdSection(t *testing.T) {
	t.Parallel()
	s := worker.CwdSection()
	for cwd, want := range map[string]string{
		"":                   "",
		"/srv/caf\u00e9":     "The working directory is /srv/caf\u00e9",
		"/srv/\xed\xb3\xbf/": "The working directory is /srv/\xed\xb3\xbf/", // a byte that is no text stays what it is
	} {
		if got, err := s.Text(t.Context(), worker.Point{Cwd: cwd}); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", cwd, got, err, want)
		}
	}
	if s.Name() != "cwd" {
		t.Errorf("the name is %q", s.Name())
	}
}

// TestDateSection lets hours pass: the text changes at midnight in UTC, wherever the worker is, and at no other time.
func TestDateSection(t *testing.T) {
	t.Parallel()
	now := time.Date(2027, 2, 28, 0, 0, 0, 0, time.UTC)
	s := worker.DateSection(func() time.Time { return now.In(time.FixedZone("east", 13*60*60)) })
	for _, step := range []struct {
		later time.Duration
		want  string
	}{
		{0, "Today is Sunday, 2027-02-28 (UTC)."},
		{12 * time.Hour, "Today is Sunday, 2027-02-28 (UTC)."},
		{12*time.Hour - time.Nanosecond, "Today is Sunday, 2027-02-28 (UTC)."},
		{time.Nanosecond, "Today is Monday, 2027-03-01 (UTC)."},
	} {
		now = now.Add(step.later)
		if got, err := s.Text(t.Context(), worker.Point{}); err != nil || got != step.want {
			t.Errorf("at %v: %q, %v, want %q", now, got, err, step.want)
		}
	}
	if s.Name() != "date" {
		t.Errorf("the name is %q", s.Name())
	}
}
