package compact

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// Why history cannot, or need not, be made smaller. A [Decision]'s Why and the error of [Check] wrap one of them.
var (
	// ErrTooMany: the turn has had as many summaries as the policy allows.
	ErrTooMany = errors.New("compact: too many compactions in one turn")
	// ErrNoRegion: no part of the history can be summarised: too little is older than what is retained, or no
	// balanced part of it fits into a request.
	ErrNoRegion = errors.New("compact: nothing to summarise")
	// ErrFloor: what would remain (system prompt, tools, retained messages, the summary's frame) or what must go with
	// a request for a summary (system prompt, tools, directive) is too large itself.
	ErrFloor = errors.New("compact: what must remain is too large")
	// ErrNoProgress: a summary was not smaller than what it was to replace, or a compaction left everything as it was.
	ErrNoProgress = errors.New("compact: no progress")
)

// Situation is what a decision depends on besides the surface.
type Situation struct {
	// Reason says why the question comes up: pressure before every step, command between turns, overflow after the
	// provider refused a request. Empty: pressure.
	Reason events.CompactionReason
	// Window is the size of the model's context window in tokens. 0 or less: unknown, and there is no pressure.
	Window int64
	// KeepFrom is the sequence of the open turn's last prompt, which stays. 0: no turn is open, or its prompt is not
	// on the surface yet.
	KeepFrom uint64
	// Pending is what the messages are estimated to take that enter with the next step and are not on the surface yet
	// (see [MessageTokens]).
	Pending int64
	// Done is how many summaries were tried in the open turn, whatever became of them.
	Done int
	// Stalled is the sequence of the end of the turn's last compaction when that left the surface as it was: failed,
	// interrupted, no progress. Otherwise 0.
	Stalled uint64
	// Pruned says, after an overflow, that results were shortened since the provider refused the request.
	Pruned bool
}

// Kind is what to do.
type Kind uint8

// The kinds of decisions. After [KindSummarise] Done is one higher, whatever became of the summary. When it has taken
// the region's place the question is one of pressure again, also after an overflow: the request is another one. When
// it has not, the reason stays and Stalled is set.
const (
	KindNone       Kind = iota // send the request as it is
	KindPrune                  // shorten the results in Prunes, then ask again for the same reason
	KindSummarise              // summarise Region, then ask again: see below
	KindImpossible             // the request cannot be made to fit: end the turn, or refuse the command, with Why
)

// String returns the kind's name.
func (k Kind) String() string {
	names := [...]string{KindNone: "none", KindPrune: "prune", KindSummarise: "summarise", KindImpossible: "impossible"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Decision is the answer of [Decide].
type Decision struct {
	Kind   Kind
	Region Region   // summarise
	Prunes []Pruned // prune: at least one
	// Why is set for impossible, and for none when the request is large and goes out as it is nevertheless. It wraps
	// one of the sentinels of this package and its text is for the user.
	Why error
}

// headroomParts says what a compaction under pressure is worth: it must be expected to bring the request to at least
// this part below the threshold, or the next step would be under pressure again.
const headroomParts = 8

// Decide says what to do before the next request. p MUST be valid. The error is the [Pruner]'s.
//
// Under pressure nothing happens below the threshold. From there on results that are older than the retained tail are
// shortened first; then the older part of the history is summarised ([Plan]) or, when that is not enough, the older
// part of the open turn ([PlanTurn]), provided that either brings the request clearly below the threshold. It is
// expected to become as small as what remains, the frame, and the summaries that the region holds. When no summary
// would do, the request goes out as it is as long as it leaves an answer its room. When it does not, even a summary
// that only makes it fit will do, then shortening results in the retained tail too; only a request larger than the
// window is impossible.
//
// After an overflow the estimate is known to be too low, or the window smaller than said, so the same is done for a
// request that must become smaller than the refused one; when nothing makes it smaller it is impossible, so that it
// is not sent again as it was. A command has neither threshold nor guards, prunes nothing, and summarises what there is.
func Decide(p Policy, m *Meter, s Situation, with Pruner) (Decision, error) {
	d := decider{policy: p.withDefaults(), meter: m, Situation: s, estimate: m.Estimate() + s.Pending}
	d.bounds()
	if !d.command() && d.estimate < d.trigger {
		return Decision{}, nil
	}
	d.nodes, d.tokens = m.nodes, m.Tokens()
	if !d.command() {
		if prunes, err := d.prunes(tailStart(d.tokens, d.retain), with); err != nil || len(prunes) > 0 {
			return Decision{Kind: KindPrune, Prunes: prunes}, err
		}
	}
	r, why := d.region()
	switch {
	case why == nil:
		return Decision{Kind: KindSummarise, Region: r}, nil
	case d.command():
		return Decision{Kind: KindImpossible, Why: why}, nil
	case d.hard():
		if prunes, err := d.prunes(len(d.nodes), with); err != nil || len(prunes) > 0 {
			return Decision{Kind: KindPrune, Prunes: prunes}, err
		}
	}
	if d.overflow() && d.Pruned || !d.overflow() && d.estimate <= d.Window {
		return Decision{Why: why}, nil
	}
	return Decision{Kind: KindImpossible, Why: why}, nil
}

// decider holds what the parts of one decision share.
type decider struct {
	Situation
	policy Policy
	meter  *Meter
	nodes  []Node
	tokens []int64

	estimate int64
	trigger  int64 // pressure begins here
	usable   int64 // the largest request that will do
	retain   int64
}

func (d *decider) command() bool  { return d.Reason == events.CompactionCommand }
func (d *decider) overflow() bool { return d.Reason == events.CompactionOverflow }

// hard reports whether the request cannot stay as it is.
func (d *decider) hard() bool { return d.overflow() || !d.command() && d.estimate > d.usable }

// bounds sets trigger, usable and retain.
func (d *decider) bounds() {
	d.trigger, d.usable = math.MaxInt64, math.MaxInt64
	base := d.estimate
	if d.Window > 0 {
		d.trigger, d.usable = d.policy.trigger(d.Window), d.policy.usable(d.Window)
		if base = min(base, d.Window); !d.command() && !d.overflow() {
			base = d.Window
		}
	}
	if d.overflow() { // a smaller request than the refused one
		d.usable = min(d.usable, max(d.estimate-1, 0))
		d.trigger = min(d.trigger, d.usable)
	}
	d.retain = part(base, d.policy.Retain)
}

func (d *decider) prunes(before int, with Pruner) ([]Pruned, error) {
	return Prune(d.nodes, before, d.policy, with)
}

// candidate is a region that may be summarised.
type candidate struct {
	plan      func([]Node, []int64, Bounds) (Region, bool)
	floor     int64 // the estimate without the region, with a summary's frame
	summaries int64 // what the region's earlier summaries are worth
}

// region chooses what to summarise. why says why nothing can be.
func (d *decider) region() (r Region, why error) {
	if err := d.guard(); err != nil {
		return r, err
	}
	limit := int64(0)
	if d.usable < math.MaxInt64 {
		fixed := d.meter.fixed() + DirectiveTokens()
		if limit = d.usable - fixed; limit <= 0 {
			return r, fmt.Errorf("%w: system prompt, tools and directive take about %d tokens, a request has %d", ErrFloor, fixed, d.usable)
		}
	}
	b := Bounds{Retain: d.retain, KeepFrom: d.KeepFrom}
	c, err := d.choose(b)
	if err != nil {
		return r, err
	}
	b.Limit = limit
	r, ok := c.plan(d.nodes, d.tokens, b)
	if !ok {
		return r, fmt.Errorf("%w: no balanced part of the history fits into the %d tokens that a request for a summary has", ErrNoRegion, limit)
	}
	return r, nil
}

// guard refuses to go on summarising in a turn in which that leads nowhere.
func (d *decider) guard() error {
	if d.command() {
		return nil
	}
	if d.Done >= d.policy.MaxPerTurn {
		return fmt.Errorf("%w: %d", ErrTooMany, d.Done)
	}
	grown := slices.ContainsFunc(d.nodes, func(n Node) bool { return n.Seq > d.Stalled })
	if d.Stalled != 0 && (!d.hard() || !grown) {
		return fmt.Errorf("%w: the compaction that ended in event %d left the history as it was", ErrNoProgress, d.Stalled)
	}
	return nil
}

// choose returns the plan to follow, judged without regard to how much of it fits into one request: the older history
// if that is enough, else the one that leaves less.
func (d *decider) choose(b Bounds) (candidate, error) {
	var list []candidate
	together := d.estimate // what remains when all candidates have been summarised
	for _, plan := range []func([]Node, []int64, Bounds) (Region, bool){Plan, PlanTurn} {
		r, ok := plan(d.nodes, d.tokens, b)
		if !ok {
			continue
		}
		c := candidate{plan: plan, floor: d.meter.replaced(r.Lo, r.Hi, FrameTokens()) + d.Pending, summaries: r.Tokens - r.Fresh}
		list = append(list, c)
		together += c.floor - d.estimate
		if d.command() {
			return c, nil
		}
	}
	if len(list) == 0 {
		return candidate{}, fmt.Errorf("%w: about %d tokens in %d messages, %d of them retained", ErrNoRegion, d.estimate, len(d.nodes), d.retain)
	}
	goal, expected := d.trigger-d.trigger/headroomParts, together
	for _, c := range list {
		if c.floor+c.summaries <= goal {
			return c, nil
		}
		expected += c.summaries
	}
	if d.hard() {
		goal, expected = d.usable, together
	}
	if expected > goal {
		return candidate{}, fmt.Errorf("%w: about %d of %d tokens would remain, %d are allowed", ErrFloor, expected, d.estimate, goal)
	}
	return slices.MinFunc(list, func(x, y candidate) int { return cmp.Compare(x.floor, y.floor) }), nil
}

// Check compares a region with the message of the given content, as [Frame] returns it, that is to take its place. It
// returns what the next request is estimated to take before and after. The error wraps [ErrNoProgress] when it would
// not become smaller: the compaction then ends without a replacement.
func Check(m *Meter, r Region, content []events.Block) (before, after int64, err error) {
	before = m.Estimate()
	after = m.replaced(r.Lo, r.Hi, capped(messageTokens+blocksTokens(content)))
	if after >= before {
		err = fmt.Errorf("%w: with the summary the request would take about %d tokens, without it %d", ErrNoProgress, after, before)
	}
	return before, after, err
}
