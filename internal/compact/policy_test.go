package compact_test

import (
	"errors"
	"math"
	"testing"

	"github.com/refold-dev/refold/internal/compact"
)

func TestPolicyValidate(t *testing.T) {
	tests := []struct {
		name   string
		policy compact.Policy
		valid  bool
	}{
		{"zero", compact.Policy{}, true},
		{"all of the window", compact.Policy{Threshold: 1}, true},
		{"a low threshold", compact.Policy{Threshold: 0.05}, true},
		{"short results", compact.Policy{PruneChars: 1}, true},
		{"no pruning", compact.Policy{PruneChars: -1, PruneHead: 5000}, true},
		{"a head alone", compact.Policy{PruneHead: 3999}, true},
		{"more than the window", compact.Policy{Threshold: 1.01}, false},
		{"negative threshold", compact.Policy{Threshold: -0.1}, false},
		{"no number", compact.Policy{Threshold: math.NaN()}, false},
		{"retain no number", compact.Policy{Retain: math.NaN()}, false},
		{"retain all", compact.Policy{Threshold: 0.5, Retain: 0.5}, false},
		{"retain less than nothing", compact.Policy{Retain: -0.1}, false},
		{"negative reserve", compact.Policy{Reserve: -1}, false},
		{"head as long as the limit", compact.Policy{PruneHead: 4000}, false},
		{"head and tail as long as the limit", compact.Policy{PruneChars: 100, PruneHead: 60, PruneTail: 40}, false},
		{"head and tail beyond all bounds", compact.Policy{PruneChars: math.MaxInt, PruneHead: math.MaxInt - 1, PruneTail: math.MaxInt}, false},
		{"negative head", compact.Policy{PruneHead: -1, PruneTail: 5}, false},
		{"negative count", compact.Policy{MaxPerTurn: -1}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.policy.Validate()
			if (err == nil) != tt.valid || err != nil && !errors.Is(err, compact.ErrPolicy) {
				t.Errorf("valid = %v: %v", tt.valid, err)
			}
		})
	}
}

func TestReserved(t *testing.T) {
	tests := []struct {
		name                  string
		reserve, window, want int64
	}{
		{"an eighth", 0, 64_000, 8_000},
		{"at most", 0, 1_000_000, 16_384},
		{"as said", 32_000, 65_536, 32_000},
		{"more than the window", 100_000, 65_536, 65_535},
		{"a tiny window", 0, 1, 0},
		{"no window", 500, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := (compact.Policy{Reserve: tt.reserve}).Reserved(tt.window); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
