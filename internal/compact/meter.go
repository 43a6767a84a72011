package compact

import (
	"errors"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// Plugin is the name under which compaction adds its messages.
const Plugin = "compact"

// Node is an event on the surface.
type Node struct {
	Seq     uint64          // the event's sequence
	Message *events.Message // what it shows the model, nil when it shows nothing; never changed in place
	Pruned  bool            // it is a tool result that was shortened already
}

// NodeOf returns the node that an event puts on the surface; ok is false when it puts none there.
func NodeOf(e *events.Event) (n Node, ok bool) {
	if e.Surface.Kind == events.SurfaceNone {
		return n, false
	}
	n.Seq = e.Seq
	if m, shown := fold.MessageOf(e); shown {
		n.Message = &m
	}
	_, result := e.Body.(*events.ToolResult)
	n.Pruned = result && e.Surface.Kind == events.SurfaceReplace
	return n, true
}

// summary reports whether the node is the summary of a compaction.
func (n *Node) summary() bool {
	return n.Message != nil && n.Message.Source.Kind == events.SourcePlugin && n.Message.Source.CompactionID != ""
}

// holds reports whether the node's message has a block of the type.
func (n *Node) holds(t events.BlockType) bool {
	return n.Message != nil && slices.ContainsFunc(n.Message.Content, func(b events.Block) bool { return b.Type == t })
}

// Bounds of what a provider may report and be believed.
const (
	maxReported   = 1 << 50 // no count of a call is larger
	maxUnderstate = 32      // the input is at least this part of what is estimated: 128 ASCII characters per token
	maxOverstate  = 16      // and the total at most this many times as much,
	overstateFree = 1 << 16 // plus what a provider may add that nobody sees
)

// maxRate is how many reported tokens one estimated token stands for at most: what is above comes from something that
// the provider adds to every request.
const maxRate = 2

// Anchor is what is known of a request that a provider counted.
type Anchor struct {
	Seq       uint64 // the node of its answer
	Reported  int64  // tokens of the request and the answer, as the provider counted them
	Estimated int64  // the same by this package's rules; above 0
}

// Meter estimates how many tokens the next request takes. It anchors on the last usage that a provider reported and
// estimates only the difference between the request then and now: nodes appended, nodes replaced (the new ones less
// the old ones), another header. What the request has grown by is added as estimated. What it has shrunk by is taken
// off at the rate at which the provider counted, at most two tokens for one estimated, so that a tokeniser that counts
// more or less than the estimate does not distort what remains. So the estimate is what was reported as long as
// nothing changes, is never negative, and follows every change in its direction. Without an anchor all is estimated.
//
// Each call takes time for what it adds, not for the history, except that [Meter.Replace], [Meter.Tokens] and
// [Meter.Nodes] go over the surface.
//
// The zero value is the meter of an empty log. It is not safe for concurrent use.
type Meter struct {
	nodes  []Node
	tokens []int64 // of the nodes, estimated
	now    int64   // the header's and theirs together
	header int64

	anchor Anchor // Estimated is 0 when there is none
}

// NewMeter returns a meter of the nodes, which are copied, the header, nil if there is none, and the anchor, zero if
// there is none.
func NewMeter(nodes []Node, h *events.Header, a Anchor) *Meter {
	m := &Meter{anchor: a}
	m.SetHeader(h)
	for _, n := range nodes {
		m.Append(n)
	}
	return m
}

// Append puts a node at the end of the surface.
func (m *Meter) Append(n Node) {
	t := MessageTokens(n.Message)
	m.nodes, m.tokens = append(m.nodes, n), append(m.tokens, t)
	m.now += t
}

// Replace puts a node in the place of the nodes at [lo,hi), which MUST be a run of at least one.
func (m *Meter) Replace(lo, hi int, n Node) {
	t := MessageTokens(n.Message)
	m.now += t - m.sum(lo, hi)
	m.nodes = slices.Replace(m.nodes, lo, hi, n)
	m.tokens = slices.Replace(m.tokens, lo, hi, t)
}

// sum returns the estimated tokens of the nodes [lo,hi).
func (m *Meter) sum(lo, hi int) int64 {
	var n int64
	for _, t := range m.tokens[lo:hi] {
		n += t
	}
	return n
}

// SetHeader tells the meter which header the next request has; nil: none.
func (m *Meter) SetHeader(h *events.Header) {
	t := HeaderTokens(h)
	m.now += t - m.header
	m.header = t
}

// Anchor tells the meter what a provider reported for the call whose answer is the last node, with the sequence seq.
// It returns false, and keeps the anchor it had, when it does not believe the report:
//
//   - seq is not the last node's;
//   - the report was clamped, is negative or has a count above 2^50;
//   - it has no input, or less than one part in 32 of what is estimated for the input;
//   - its total is more than 16 times the estimate and 65,536 tokens above that.
//
// What is between is believed: tokenisers differ, and providers add prompts of their own. An answer that shows the
// model nothing adds nothing to the next request, and its output is left out.
func (m *Meter) Anchor(u events.Usage, seq uint64) bool {
	last := len(m.nodes) - 1
	if last < 0 || m.nodes[last].Seq != seq || u.Clamped {
		return false
	}
	for _, n := range [...]int64{u.InputTokens, u.CacheReadTokens, u.CacheWriteTokens, u.CacheWrite1hTokens, u.OutputTokens} {
		if n < 0 || n > maxReported {
			return false
		}
	}
	input := u.TotalInput()
	reported := input
	if m.nodes[last].Message != nil {
		reported += u.OutputTokens
	}
	if input == 0 || m.now == 0 || input < (m.now-m.tokens[last])/maxUnderstate ||
		reported/maxOverstate > m.now+overstateFree/maxOverstate {
		return false
	}
	m.anchor = Anchor{Seq: seq, Reported: reported, Estimated: m.now}
	return true
}

// Anchored returns the anchor in force, zero when there is none.
func (m *Meter) Anchored() Anchor { return m.anchor }

// Estimate returns the tokens of the next request's input: header and history, without room for the answer.
func (m *Meter) Estimate() int64 { return m.estimate(m.now) }

// estimate returns what a request takes whose parts are estimated at now together.
func (m *Meter) estimate(now int64) int64 {
	a := m.anchor
	switch {
	case a.Estimated == 0:
		return now
	case now >= a.Estimated:
		return a.Reported + now - a.Estimated
	default:
		return m.added() + share(min(a.Reported, maxRate*a.Estimated), now, a.Estimated)
	}
}

// added returns what the provider adds to every request.
func (m *Meter) added() int64 { return max(m.anchor.Reported-maxRate*m.anchor.Estimated, 0) }

// replaced returns the estimate of a request in which a message of t estimated tokens stands in the place of the nodes
// [lo,hi).
func (m *Meter) replaced(lo, hi int, t int64) int64 { return m.estimate(m.now - m.sum(lo, hi) + t) }

// worth returns what a part of the request takes that is estimated at t tokens: that many, or more when the provider
// counts more, up to twice as many.
func (m *Meter) worth(t int64) int64 {
	a := m.anchor
	switch {
	case a.Reported <= a.Estimated:
		return t
	case m.added() > 0:
		return maxRate * t
	default: // t is at most 2^40, the reported total below 2^53
		return t + share(t, a.Reported-a.Estimated, a.Estimated)
	}
}

// fixed returns what every request takes without any message.
func (m *Meter) fixed() int64 { return m.added() + m.worth(m.header) }

// Nodes returns the surface, in order. It is a copy.
func (m *Meter) Nodes() []Node { return slices.Clone(m.nodes) }

// Tokens returns what each node takes, in surface order: as estimated or, when the provider counted more, up to twice
// that. A node that shows something has at least one.
func (m *Meter) Tokens() []int64 {
	out := make([]int64, len(m.tokens))
	for i, t := range m.tokens {
		out[i] = m.worth(t)
	}
	return out
}

// ErrSurface is wrapped by the error of [Meter.Observe] for an event that replaces what is not on the surface. A fold
// refuses such an event: ask it first.
var ErrSurface = errors.New("compact: no such run of surface nodes")

// Observe takes the next event of the log. Events that change neither surface nor header are passed over.
func (m *Meter) Observe(e *events.Event) error {
	if h, ok := e.Body.(*events.RequestHeader); ok {
		m.SetHeader(&h.Header)
	}
	n, ok := NodeOf(e)
	if !ok {
		return nil
	}
	if e.Surface.Kind == events.SurfaceReplace {
		lo, hi := m.index(e.Surface.Region.Start), m.index(e.Surface.Region.End)
		if lo < 0 || hi < lo {
			return fmt.Errorf("event %d replaces %d..%d: %w", e.Seq, e.Surface.Region.Start, e.Surface.Region.End, ErrSurface)
		}
		m.Replace(lo, hi+1, n)
		return nil
	}
	m.Append(n)
	if a, ok := e.Body.(*events.AssistantMessage); ok && a.UsageReported {
		m.Anchor(a.Usage, e.Seq)
	}
	return nil
}

// index returns the position of the node with the sequence, or -1.
func (m *Meter) index(seq uint64) int {
	return slices.IndexFunc(m.nodes, func(n Node) bool { return n.Seq == seq })
}
