package compact

import (
	"errors"
	"fmt"
)

// ErrPolicy is wrapped by the error of [Policy.Validate].
var ErrPolicy = errors.New("compact: the policy does not make sense")

// The values that stand for zero fields of a [Policy].
const (
	DefaultThreshold  = 0.8
	DefaultRetain     = 0.1
	DefaultPruneChars = 4000
	DefaultPruneHead  = 1000
	DefaultPruneTail  = 500
	DefaultMaxPerTurn = 8

	reserveParts = 8 // the default reserve is this part of the window,
	maxReserve   = 16384
)

// Policy says when and how history is made smaller. The zero value is a sensible policy.
type Policy struct {
	// Threshold is the part of the window, in (0,1], from which on history is made smaller. 0: 0.8. The threshold
	// is never above what the reserve leaves.
	Threshold float64
	// Retain is the part of the window, in (0,1) and below Threshold, that stays as it is at the end of history.
	// When the window is unknown, and on command, it is a part of the request where that is smaller. 0: 0.1.
	Retain float64
	// Reserve is how many tokens of the window are kept for an answer, the summary's included. 0: one eighth of the
	// window, at most 16,384.
	Reserve int64
	// PruneChars is how many characters (code points) the text of a tool result may have before it is shortened.
	// 0: 4,000. Negative: results are never shortened.
	PruneChars int
	// PruneHead and PruneTail are how many grapheme clusters stay at the two ends of a shortened result; together fewer than
	// PruneChars. Both 0: 1,000 and 500, scaled down to a quarter and an eighth of PruneChars where that is less.
	PruneHead int
	PruneTail int
	// MaxPerTurn is how many summaries are tried in one turn, successful or not. 0: 8.
	MaxPerTurn int
}

// Validate reports what of the policy makes no sense. The error wraps [ErrPolicy].
func (p Policy) Validate() error {
	d := p.withDefaults()
	switch {
	case !(d.Threshold > 0 && d.Threshold <= 1):
		return fmt.Errorf("%w: a threshold of %v of the window", ErrPolicy, p.Threshold)
	case !(d.Retain > 0 && d.Retain < d.Threshold):
		return fmt.Errorf("%w: %v of the window retained at a threshold of %v", ErrPolicy, d.Retain, d.Threshold)
	case p.Reserve < 0:
		return fmt.Errorf("%w: %d tokens reserved", ErrPolicy, p.Reserve)
	case p.PruneHead < 0 || p.PruneTail < 0:
		return fmt.Errorf("%w: results pruned to %d and %d characters", ErrPolicy, p.PruneHead, p.PruneTail)
	case d.PruneChars >= 0 && (d.PruneHead >= d.PruneChars || d.PruneTail >= d.PruneChars-d.PruneHead):
		return fmt.Errorf("%w: results above %d characters pruned to %d and %d", ErrPolicy, d.PruneChars, d.PruneHead, d.PruneTail)
	case p.MaxPerTurn < 0:
		return fmt.Errorf("%w: %d compactions per turn", ErrPolicy, p.MaxPerTurn)
	}
	return nil
}

func (p Policy) withDefaults() Policy {
	if p.Threshold == 0 {
		p.Threshold = DefaultThreshold
	}
	if p.Retain == 0 {
		p.Retain = min(DefaultRetain, p.Threshold/2)
	}
	if p.PruneChars == 0 {
		p.PruneChars = DefaultPruneChars
	}
	if p.PruneHead == 0 && p.PruneTail == 0 && p.PruneChars > 0 {
		p.PruneHead = min(DefaultPruneHead, p.PruneChars/4)
		p.PruneTail = min(DefaultPruneTail, p.PruneChars/8)
	}
	if p.MaxPerTurn == 0 {
		p.MaxPerTurn = DefaultMaxPerTurn
	}
	return p
}

// Reserved returns how many tokens of the window are kept for an answer: fewer than the window has.
func (p Policy) Reserved(window int64) int64 {
	reserve := p.Reserve
	if reserve == 0 {
		reserve = min(window/reserveParts, maxReserve)
	}
	return max(min(reserve, window-1), 0)
}

// usable returns how large a request may be so that the answer has its room; the window MUST be known.
func (p Policy) usable(window int64) int64 { return window - p.Reserved(window) }

// trigger returns the size of a request from which on history is made smaller; the window MUST be known.
func (p Policy) trigger(window int64) int64 {
	return max(min(part(window, p.Threshold), p.usable(window)), 1)
}

// part returns the part f in [0,1] of n tokens, rounded down.
func part(n int64, f float64) int64 { return min(max(int64(float64(n)*f), 0), n) }
