package compact

import (
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// Region is a run of surface nodes to be summarised.
type Region struct {
	Lo, Hi int           // positions [Lo,Hi)
	Events events.Region // the sequences of the first and the last node
	Tokens int64         // what its nodes are worth
	Fresh  int64         // what those of them are worth that are no earlier summaries
}

// Bounds limit a region.
type Bounds struct {
	Retain   int64  // what stays behind the region has at least this many tokens
	KeepFrom uint64 // the sequence of a node that stays, with all behind it; 0, or not on the surface: none
	Limit    int64  // the region has at most this many tokens; 0: any number
}

// Plan returns the older part of the history to summarise: the region from the surface's first node to the last
// possible one. tokens are the nodes' worths, as [Meter.Tokens] returns them. The region
//
//   - leaves at least b.Retain tokens behind it, the node b.KeepFrom and all behind that;
//   - holds every tool call with its result, or neither, and no tool result stands directly behind it;
//   - is worth at most b.Limit, and more than the frame that a summary needs;
//   - holds at least one message besides an earlier summary: to summarise only that again gets nowhere.
//
// ok is false when there is none. Retain, KeepFrom and Limit zero give the longest region of all, up to the whole
// surface.
func Plan(nodes []Node, tokens []int64, b Bounds) (r Region, ok bool) {
	stop := len(nodes)
	if k := indexOf(nodes, b.KeepFrom); k >= 0 {
		stop = k
	}
	return plan(nodes, tokens, 0, stop, b)
}

// PlanTurn returns the region to summarise in the open turn, behind the message b.KeepFrom, which stays: an
// agent that works long on one prompt fills the window with one turn. Apart from where it starts, and that it may
// reach behind b.KeepFrom, the region has all that [Plan] promises. Without that message on the surface ok is false.
func PlanTurn(nodes []Node, tokens []int64, b Bounds) (r Region, ok bool) {
	k := indexOf(nodes, b.KeepFrom)
	if k < 0 {
		return r, false
	}
	return plan(nodes, tokens, k+1, len(nodes), b)
}

func indexOf(nodes []Node, seq uint64) int {
	if seq == 0 {
		return -1
	}
	return slices.IndexFunc(nodes, func(n Node) bool { return n.Seq == seq })
}

// plan returns the longest region that starts at lo and ends at or before stop.
func plan(nodes []Node, tokens []int64, lo, stop int, b Bounds) (r Region, ok bool) {
	stop = min(stop, tailStart(tokens, b.Retain))
	var (
		open  []string // calls without their results
		sum   int64
		fresh int64 // of sum, without earlier summaries
		frame = FrameTokens()
	)
	for hi := lo + 1; hi <= stop; hi++ {
		n := &nodes[hi-1]
		sum += tokens[hi-1]
		if b.Limit > 0 && sum > b.Limit {
			break
		}
		var paired bool
		if open, paired = pair(open, n.Message); !paired {
			break // a result without its call: no region may hold it
		}
		if !n.summary() {
			fresh += tokens[hi-1]
		}
		if fresh > 0 && len(open) == 0 && sum > frame && (hi == len(nodes) || !nodes[hi].holds(events.BlockToolResult)) {
			r = Region{Lo: lo, Hi: hi, Events: events.Region{Start: nodes[lo].Seq, End: n.Seq}, Tokens: sum, Fresh: fresh}
			ok = true
		}
	}
	return r, ok
}

// pair adds the calls of a message to those that are open and removes those that it answers; ok is false when it
// answers one that is not open.
func pair(open []string, m *events.Message) (still []string, ok bool) {
	if m == nil {
		return open, true
	}
	for i := range m.Content {
		switch c := &m.Content[i]; c.Type {
		case events.BlockToolCall:
			open = append(open, c.ID)
		case events.BlockToolResult:
			k := slices.Index(open, c.ToolCallID)
			if k < 0 {
				return open, false
			}
			open = slices.Delete(open, k, k+1)
		default: // nothing to pair
		}
	}
	return open, true
}

// tailStart returns the position of the first node of the shortest tail worth at least retain tokens: 0 when all
// nodes together are worth less, len(tokens) when retain is 0.
func tailStart(tokens []int64, retain int64) int {
	i := len(tokens)
	for sum := int64(0); sum < retain && i > 0; {
		i--
		sum += tokens[i]
	}
	return i
}
