package provider

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrRetryPolicy means that a retry policy, or the text of one, cannot be used. The configuration is to be corrected.
var ErrRetryPolicy = errors.New("invalid retry policy")

// RetryMode says which failures another attempt is made after.
type RetryMode string

// The retry modes. The empty one counts as [RetryNormal].
const (
	RetryNormal RetryMode = "normal" // those that may go away by themselves, a bounded number of times
	RetryAlways RetryMode = "always" // all that another attempt can make good at all, without bound where time may help
)

// RetryPolicy says after which failures, how often and after which delays a model call is tried again. A zero field
// is undecided: [RetryPolicy.Or] decides it, and where nobody does, [DefaultRetryPolicy] counts.
type RetryPolicy struct {
	Mode        RetryMode
	MaxAttempts int64         // attempts in all, the first one included; only with RetryNormal
	Base        time.Duration // the delay before the first retry; each further one doubles it
	Max         time.Duration // no delay of our own is longer; one that the provider asks for may be, see [MaxAsked]
}

// MaxAsked is the longest delay that a provider may ask for and get, or a policy's Max where that is longer. Whoever asks
// for more gets no further attempt under [RetryNormal], and one after this time under [RetryAlways].
const MaxAsked = time.Hour

// longestAsked returns the longest delay that the provider gets; p is whole.
func (p RetryPolicy) longestAsked() time.Duration { return max(p.Max, MaxAsked) }

// DefaultRetryPolicy returns what counts for a field that nobody decides: normal, 4 attempts, 500 ms up to 30 s.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{Mode: RetryNormal, MaxAttempts: 4, Base: 500 * time.Millisecond, Max: 30 * time.Second}
}

// Or returns the policy with the fields that it leaves undecided taken from other. The result of two valid policies
// may have a Base above its Max: its delays are all Max then.
func (p RetryPolicy) Or(other RetryPolicy) RetryPolicy {
	p.Mode = defaultTo(p.Mode, other.Mode)
	p.Base = defaultTo(p.Base, other.Base)
	p.Max = defaultTo(p.Max, other.Max)
	if p.Mode == RetryAlways {
		p.MaxAttempts = 0
	} else {
		p.MaxAttempts = defaultTo(p.MaxAttempts, other.MaxAttempts)
	}
	return p
}

// MaxRetries returns how many attempts may follow the first one when they fail with a code, 0 when there is no bound.
func (p RetryPolicy) MaxRetries(code events.FailureCode) int64 {
	return max(p.Or(DefaultRetryPolicy()).attempts(code)-1, 0)
}

// attempts returns how many attempts in all end with a code, 0 when there is no bound; p is whole.
func (p RetryPolicy) attempts(code events.FailureCode) int64 {
	if p.Mode == RetryAlways && repeats(code) {
		return DefaultRetryPolicy().MaxAttempts
	}
	return p.MaxAttempts
}

// repeats reports whether the same request will most likely fail in the same way, whenever it is made, and costs
// something each time.
func repeats(code events.FailureCode) bool {
	switch code {
	case events.FailureInvalid, events.FailureMalformed, events.FailureCredential, events.FailureContentFilter:
		return true
	default:
		return false
	}
}

// Validate returns an error that wraps [ErrRetryPolicy] when a field cannot be used. The zero policy is valid.
func (p RetryPolicy) Validate() error {
	switch {
	case p.Mode != "" && p.Mode != RetryNormal && p.Mode != RetryAlways:
		return fmt.Errorf("%w: mode %q: want %s or %s", ErrRetryPolicy, p.Mode, RetryNormal, RetryAlways)
	case p.MaxAttempts < 0 || p.Base < 0 || p.Max < 0:
		return fmt.Errorf("%w: a number of attempts or a delay is negative", ErrRetryPolicy)
	case p.Mode == RetryAlways && p.MaxAttempts != 0:
		return fmt.Errorf("%w: mode %s has no bound: leave attempts out", ErrRetryPolicy, RetryAlways)
	case p.Max != 0 && p.Base > p.Max:
		return fmt.Errorf("%w: base %v is above max %v", ErrRetryPolicy, p.Base, p.Max)
	}
	return nil
}

// String returns the policy as [ParseRetryPolicy] reads it: its mode, and the fields that are decided, such as
// normal,attempts=4,base=500ms,max=30s. The zero policy is the empty string.
func (p RetryPolicy) String() string {
	var parts []string
	if p.Mode != "" {
		parts = append(parts, string(p.Mode))
	}
	if p.MaxAttempts != 0 {
		parts = append(parts, "attempts="+strconv.FormatInt(p.MaxAttempts, 10))
	}
	if p.Base != 0 {
		parts = append(parts, "base="+p.Base.String())
	}
	if p.Max != 0 {
		parts = append(parts, "max="+p.Max.String())
	}
	return strings.Join(parts, ",")
}

// ParseRetryPolicy reads a policy: a mode and attempts=N, base=DURATION, max=DURATION, all of them optional, in any
// order, separated by commas. Errors wrap [ErrRetryPolicy].
func ParseRetryPolicy(s string) (RetryPolicy, error) {
	var p RetryPolicy
	if s == "" {
		return p, nil
	}
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(s, ",") {
		name, value, given := strings.Cut(part, "=")
		if !given {
			name, value = "mode", part
		}
		if seen[name] {
			return RetryPolicy{}, fmt.Errorf("%w: %s is given twice", ErrRetryPolicy, name)
		}
		seen[name] = true
		var err error
		switch name {
		case "mode":
			p.Mode = RetryMode(value)
			if value == "" {
				err = errors.New("an empty part")
			}
		case "attempts":
			p.MaxAttempts, err = strconv.ParseInt(value, 10, 64)
			if err == nil && p.MaxAttempts == 0 {
				err = errors.New("no attempt at all")
			}
		case "base":
			p.Base, err = time.ParseDuration(value)
		case "max":
			p.Max, err = time.ParseDuration(value)
		default:
			err = errors.New("want normal or always, attempts=N, base=DURATION, max=DURATION")
		}
		if err != nil {
			return RetryPolicy{}, fmt.Errorf("%w: %q: %w", ErrRetryPolicy, part, err)
		}
	}
	if err := p.Validate(); err != nil {
		return RetryPolicy{}, err
	}
	return p, nil
}

// Retry reports whether another attempt follows the failed one, which was the attempt-th, from 1.
//
// No policy repeats a call that was cancelled, misused or has no adapter, nor a request that the context window is too
// small for: that one has to become another request first. Even [RetryAlways] makes only as many attempts as
// [DefaultRetryPolicy] when the same request fails alike whenever it is made: INVALID_REQUEST, MALFORMED_RESPONSE,
// INVALID_CREDENTIAL and CONTENT_FILTER. QUOTA is not among them: it ends with a payment or a new month.
func Retry(policy RetryPolicy, failure events.Failure, attempt int64) bool {
	policy = policy.Or(DefaultRetryPolicy())
	if policy.Mode != RetryAlways {
		return failure.Code.Retryable() && attempt < policy.MaxAttempts && failure.RetryAfterMs <= policy.longestAsked().Milliseconds()
	}
	switch failure.Code {
	case events.FailureCancelled, events.FailurePrepared, events.FailureNoAdapter, events.FailureContextWindow:
		return false
	default:
		most := policy.attempts(failure.Code)
		return most == 0 || attempt < most
	}
}

// Delay returns how long to wait before a retry, the first one being 1: the policy's Base, doubled with each retry up to
// Max, less up to half of it as jitter says, or what the provider asks for if that is longer, up to [MaxAsked] or Max.
// jitter is in [0,1); 0 takes nothing off.
func Delay(policy RetryPolicy, retry int64, failure events.Failure, jitter float64) time.Duration {
	policy = policy.Or(DefaultRetryPolicy())
	delay := min(policy.Base, policy.Max)
	for ; retry > 1 && delay < policy.Max; retry-- {
		if delay > policy.Max/2 {
			delay = policy.Max
			break
		}
		delay *= 2
	}
	if half := delay / 2; jitter > 0 { // no NaN
		delay -= min(half, time.Duration(float64(half)*min(jitter, 1)))
	}
	switch asked := failure.RetryAfterMs; {
	case asked <= 0:
		return delay
	case asked > policy.longestAsked().Milliseconds():
		return policy.longestAsked()
	default:
		return max(delay, time.Duration(asked)*time.Millisecond)
	}
}
