package project

import (
	"slices"
	"time"
)

// Cause says why the prompt cache gave a step less than it would give to an unbroken, warm prefix.
type Cause string

// The causes, in the order of precedence: of several that apply, the first is the step's. What the loop did goes before
// what the provider did, and what breaks the prompt earlier goes before what breaks it later.
//
// Those up to CauseImages are facts of the log: the prefix broke there, whatever the provider reported. From
// CauseUnreported on the prefix is unbroken and the provider's figures decide, except that CauseFork applies to both.
const (
	CauseFirstRequest Cause = "first-request" // no request of this session was served before
	CauseFork         Cause = "fork"          // a fork's first request broke its parent's prefix, or got less than it holds
	CauseResumeDrift  Cause = "resume-drift"  // a loop instance's first request has another model, system prompt or tools
	CauseModel        Cause = "model"         // provider or model changed
	CauseSystem       Cause = "system"        // the system prompt changed
	CauseTools        Cause = "tools"         // the tools changed, in number, order or any byte
	CauseCompaction   Cause = "compaction"    // messages that had been sent were replaced by a summary
	CausePrune        Cause = "prune"         // a tool result that had been sent was shortened
	CauseImages       Cause = "images"        // images that had been sent are shown in another way
	CauseUnreported   Cause = "unreported"    // the provider gave no cache figures, or no answer
	CauseNone         Cause = "none"          // the cache gave what could be expected
	CauseConfig       Cause = "config"        // it gave less, and the configuration or the codec had changed
	CauseExpired      Cause = "expired"       // it gave less, and the request before is longer ago than the TTL
	CauseProviderMiss Cause = "provider-miss" // it gave less, and nothing else explains it
)

// Causes returns all causes in the order of precedence.
func Causes() []Cause {
	return []Cause{
		CauseFirstRequest, CauseFork, CauseResumeDrift, CauseModel, CauseSystem, CauseTools, CauseCompaction, CausePrune,
		CauseImages, CauseUnreported, CauseNone, CauseConfig, CauseExpired, CauseProviderMiss,
	}
}

func (c Cause) valid() bool { return slices.Contains(Causes(), c) }

// stronger returns the one that goes before the other; the empty cause goes behind all.
func stronger(a, b Cause) Cause {
	for _, c := range Causes() {
		if a == c || b == c {
			return c
		}
	}
	return ""
}

// cacheUnit is the granularity of the provider's cache, in tokens: DeepSeek stores full units of 64 tokens.
//
// A warm, unbroken prefix gives all full units of the request before. One unit less is still what can be expected: the
// last one may span the end of the prompt, where the template differs once an answer follows.
const cacheUnit = 64

// DefaultTTL is how long a provider is taken to keep an unused prefix. DeepSeek says "a few hours to a few days".
const DefaultTTL = 2 * time.Hour
