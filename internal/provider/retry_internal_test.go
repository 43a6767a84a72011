package provider

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
)

// allFailureCodes are the codes that a model call may fail with.
func allFailureCodes() []events.FailureCode {
	return []events.FailureCode{
		events.FailureRateLimit, events.FailureServer, events.FailureTimeout, events.FailureTransport, events.FailureStreamClosed,
		events.FailureEmpty, events.FailureContextWindow, events.FailureQuota, events.FailureCredential, events.FailureInvalid,
		events.FailureMalformed, events.FailureContentFilter, events.FailureNoAdapter, events.FailurePrepared, events.FailureCancelled,
		events.FailureInterrupted,
	}
}

func TestRetry(t *testing.T) {
	normal := []events.FailureCode{
		events.FailureRateLimit, events.FailureServer, events.FailureTimeout, events.FailureTransport, events.FailureEmpty, events.FailureInterrupted,
	}
	never := []events.FailureCode{
		events.FailureCancelled, events.FailurePrepared, events.FailureNoAdapter, events.FailureContextWindow,
	}
	alike := []events.FailureCode{events.FailureInvalid, events.FailureMalformed, events.FailureCredential, events.FailureContentFilter}
	codes := append(allFailureCodes(), "SOMETHING_NEW")
	for _, code := range codes {
		f := events.Failure{Code: code}
		always, bounded := !slices.Contains(never, code), slices.Contains(alike, code)
		for _, tt := range []struct {
			policy  RetryPolicy
			attempt int64
			want    bool
		}{
			{RetryPolicy{}, 1, slices.Contains(normal, code)},
			{RetryPolicy{}, 3, slices.Contains(normal, code)},
			{RetryPolicy{}, 4, false},
			{RetryPolicy{MaxAttempts: 1}, 1, false},
			{RetryPolicy{Mode: RetryNormal, MaxAttempts: 2}, 1, slices.Contains(normal, code)},
			{RetryPolicy{Mode: RetryNormal, MaxAttempts: 2}, 2, false},
			{RetryPolicy{Mode: RetryAlways}, 1, always},
			{RetryPolicy{Mode: RetryAlways}, 3, always},
			{RetryPolicy{Mode: RetryAlways}, 4, always && !bounded},
			{RetryPolicy{Mode: RetryAlways}, math.MaxInt64, always && !bounded},
		} {
			if got := Retry(tt.policy, f, tt.attempt); got != tt.want {
				t.Errorf("%q, %s, attempt %d: %v", tt.policy, code, tt.attempt, got)
			}
		}
		if n := (RetryPolicy{Mode: RetryAlways}).MaxRetries(code); (n == 0) == bounded || n != 0 && n != 3 {
			t.Errorf("%s: %d retries", code, n)
		}
	}
}

// TestRetryAsked gives up when the provider wants to be left alone for too long, unless the mode is always.
func TestRetryAsked(t *testing.T) {
	hour := time.Hour.Milliseconds()
	for _, tt := range []struct {
		policy RetryPolicy
		asked  int64
		want   bool
	}{
		{RetryPolicy{}, 60_000, true},
		{RetryPolicy{}, hour, true},
		{RetryPolicy{}, hour + 1, false},
		{RetryPolicy{}, math.MaxInt64, false},
		{RetryPolicy{Max: 2 * time.Hour}, 2 * hour, true},
		{RetryPolicy{Max: 2 * time.Hour}, 2*hour + 1, false},
		{RetryPolicy{Mode: RetryAlways}, math.MaxInt64, true},
	} {
		if got := Retry(tt.policy, events.Failure{Code: events.FailureRateLimit, RetryAfterMs: tt.asked}, 1); got != tt.want {
			t.Errorf("%q, asked for %d ms: %v", tt.policy, tt.asked, got)
		}
	}
}

func TestDelay(t *testing.T) {
	const ms = time.Millisecond
	p := RetryPolicy{Base: 100 * ms, Max: time.Second}
	after := func(n int64) events.Failure { return events.Failure{RetryAfterMs: n} }
	tests := []struct {
		name    string
		policy  RetryPolicy
		retry   int64
		failure events.Failure
		jitter  float64
		want    time.Duration
	}{
		{"first", p, 1, after(0), 0, 100 * ms},
		{"second", p, 2, after(0), 0, 200 * ms},
		{"fourth", p, 4, after(0), 0, 800 * ms},
		{"fifth, at the most", p, 5, after(0), 0, time.Second},
		{"the last one that there is", p, math.MaxInt64, after(0), 0, time.Second},
		{"none before it", p, 0, after(0), 0, 100 * ms},
		{"jitter", p, 1, after(0), 0.5, 75 * ms},
		{"jitter at the most", p, 9, after(0), 0.5, 750 * ms},
		{"all jitter", p, 1, after(0), 1, 50 * ms},
		{"no number", p, 1, after(0), math.NaN(), 100 * ms},
		{"asked for less", p, 1, after(99), 0, 100 * ms},
		{"asked for more", p, 1, after(101), 0, 101 * ms},
		{"asked for more than the jitter leaves", p, 1, after(90), 0.5, 90 * ms},
		{"asked for more than our own most", p, 1, after(60_000), 0, time.Minute},
		{"asked for an hour", p, 1, after(3_600_000), 0, time.Hour},
		{"asked for too much", p, 1, after(3_600_001), 0, time.Hour},
		{"asked for more than there is", p, 1, after(math.MaxInt64), 0, time.Hour},
		{"asked for less than a long most", RetryPolicy{Base: 100 * ms, Max: 3 * time.Hour}, 1, after(7_200_000), 0, 2 * time.Hour},
		{"asked for less than nothing", p, 1, after(math.MinInt64), 0, 100 * ms},
		{"default", RetryPolicy{}, 1, after(0), 0, 500 * ms},
		{"default, at the most", RetryPolicy{}, 99, after(0), 0, 30 * time.Second},
		{"base alone, above the default's most", RetryPolicy{Base: time.Hour}, 1, after(0), 0, 30 * time.Second},
		{"the longest there is", RetryPolicy{Base: math.MaxInt64 - 1, Max: math.MaxInt64}, 2, after(math.MaxInt64), 0, math.MaxInt64},
		{"half of the longest there is", RetryPolicy{Base: math.MaxInt64, Max: math.MaxInt64}, 1, after(0), 1, 1 << 62},
		{"part of a millisecond", RetryPolicy{Base: 1, Max: 1500 * time.Microsecond}, 1, after(2), 0, 2 * ms},
	}
	for _, tt := range tests {
		if got := Delay(tt.policy, tt.retry, tt.failure, tt.jitter); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// drawPolicy draws a valid policy.
func drawPolicy(t *rapid.T) RetryPolicy {
	p := RetryPolicy{Mode: rapid.SampledFrom([]RetryMode{"", RetryNormal, RetryAlways}).Draw(t, "mode")}
	p.Max = time.Duration(rapid.Int64Min(0).Draw(t, "max"))
	most := p.Max
	if most == 0 {
		most = math.MaxInt64
	}
	p.Base = time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, "base"))
	if p.Mode != RetryAlways {
		p.MaxAttempts = rapid.Int64Min(0).Draw(t, "attempts")
	}
	return p
}

// TestDelayProperties: whatever the input, a delay is within its bounds, no shorter than the one before it, and at
// least what the provider asks for as far as the policy permits.
func TestDelayProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		whole := p.Or(DefaultRetryPolicy())
		retry := rapid.Int64Range(1, math.MaxInt64-1).Draw(t, "retry")
		f := events.Failure{RetryAfterMs: rapid.Int64().Draw(t, "asked")}
		jitter := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "jitter")
		d := Delay(p, retry, f, jitter)
		most := whole.Max
		if f.RetryAfterMs > 0 {
			most = max(most, time.Hour)
		}
		switch {
		case d < 0 || d > most:
			t.Fatalf("%v is not in [0,%v]", d, most)
		case d < min(whole.Base, whole.Max)/2:
			t.Fatalf("%v is less than half of %v", d, whole.Base)
		case Delay(p, retry+1, f, 0) < Delay(p, retry, f, 0):
			t.Fatalf("%v, then %v", Delay(p, retry, f, 0), Delay(p, retry+1, f, 0))
		case Delay(p, retry, f, 0) < d:
			t.Fatalf("jitter made %v of %v", d, Delay(p, retry, f, 0))
		case f.RetryAfterMs > 0 && d < most && d.Milliseconds() < f.RetryAfterMs:
			t.Fatalf("%v, although %d ms were asked for", d, f.RetryAfterMs)
		}
	})
}

// TestRetryEnds: the normal policy gives up in the end, at the same attempt for all failures that it retries.
func TestRetryEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := RetryPolicy{MaxAttempts: rapid.Int64Range(1, 50).Draw(t, "attempts")}
		f := events.Failure{Code: rapid.SampledFrom(allFailureCodes()).Draw(t, "code")}
		n := int64(1)
		for Retry(p, f, n) {
			n++
		}
		want := int64(1)
		if f.Code.Retryable() {
			want = p.MaxAttempts
		}
		if n != want || p.MaxRetries(f.Code) != p.MaxAttempts-1 {
			t.Fatalf("%d attempts, want %d; %d retries", n, want, p.MaxRetries(f.Code))
		}
	})
}

func TestRetryPolicyText(t *testing.T) {
	tests := []struct {
		text string
		want RetryPolicy
	}{
		{"", RetryPolicy{}},
		{"normal", RetryPolicy{Mode: RetryNormal}},
		{"always", RetryPolicy{Mode: RetryAlways}},
		{"normal,attempts=4,base=500ms,max=30s", DefaultRetryPolicy()},
		{"always,base=1s,max=1m0s", RetryPolicy{Mode: RetryAlways, Base: time.Second, Max: time.Minute}},
		{"attempts=1", RetryPolicy{MaxAttempts: 1}},
	}
	for _, tt := range tests {
		got, err := ParseRetryPolicy(tt.text)
		if err != nil || got != tt.want || got.String() != tt.text {
			t.Errorf("%q: %+v, %v, %q", tt.text, got, err, got)
		}
	}
	if got, err := ParseRetryPolicy("max=2s,normal"); err != nil || got != (RetryPolicy{Mode: RetryNormal, Max: 2 * time.Second}) {
		t.Errorf("another order: %+v, %v", got, err)
	}
	for _, text := range []string{
		",", "normal,", "sometimes", "Normal", "normal,always", "attempts=0", "attempts=-1", "attempts=x", "attempts=9223372036854775808",
		"base=5", "base=-1s", "base=2s,max=1s", "always,attempts=3", "tries=3", "mode=normal=x", "base=1s,base=1s", " normal", "base=",
	} {
		if got, err := ParseRetryPolicy(text); !errors.Is(err, ErrRetryPolicy) || got != (RetryPolicy{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		got, err := ParseRetryPolicy(p.String())
		if err != nil || got != p {
			t.Fatalf("%+v, %v", got, err)
		}
	})
}

func TestRetryPolicyOr(t *testing.T) {
	d := DefaultRetryPolicy()
	always := RetryPolicy{Mode: RetryAlways}
	for _, tt := range []struct{ p, other, want RetryPolicy }{
		{RetryPolicy{}, d, d},
		{d, RetryPolicy{Mode: RetryAlways, Base: 1, Max: 1}, d},
		{always, d, RetryPolicy{Mode: RetryAlways, Base: d.Base, Max: d.Max}},
		{RetryPolicy{MaxAttempts: 3}, always, always},
		{RetryPolicy{MaxAttempts: 3}, d, RetryPolicy{Mode: RetryNormal, MaxAttempts: 3, Base: d.Base, Max: d.Max}},
	} {
		if got := tt.p.Or(tt.other); got != tt.want {
			t.Errorf("%+v or %+v: %+v", tt.p, tt.other, got)
		}
	}
	if server := events.FailureServer; always.MaxRetries(server) != 0 || (RetryPolicy{}).MaxRetries(server) != 3 {
		t.Errorf("%d, %d", always.MaxRetries(server), (RetryPolicy{}).MaxRetries(server))
	}
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		whole := p.Or(DefaultRetryPolicy())
		if whole.Or(drawPolicy(t)) != whole {
			t.Fatalf("%+v is not whole", whole)
		}
	})
}
