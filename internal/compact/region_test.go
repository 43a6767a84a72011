package compact_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
)

func TestPlan(t *testing.T) {
	big := words(196) // 200 tokens with what stands around them
	talk := []compact.Node{user(1, big), assistant(2, big), user(3, big), assistant(4, big), user(5, big)}
	tools := []compact.Node{
		user(1, big), assistant(2, big, "x", "y"), output(3, "x", big), output(4, "y", big), assistant(5, big), user(6, big),
	}
	tests := []struct {
		name   string
		nodes  []compact.Node
		bounds compact.Bounds
		want   events.Region // zero: none
	}{
		{"nothing", nil, compact.Bounds{}, events.Region{}},
		{"everything", talk, compact.Bounds{}, events.Region{Start: 1, End: 5}},
		{"a tail of one node", talk, compact.Bounds{Retain: 1}, events.Region{Start: 1, End: 4}},
		{"a tail of exactly one node", talk, compact.Bounds{Retain: 200}, events.Region{Start: 1, End: 4}},
		{"a tail of a little more", talk, compact.Bounds{Retain: 201}, events.Region{Start: 1, End: 3}},
		{"all is tail", talk, compact.Bounds{Retain: 1000}, events.Region{}},
		{"more than all is tail", talk, compact.Bounds{Retain: 5000}, events.Region{}},
		{"the prompt stays", talk, compact.Bounds{KeepFrom: 3}, events.Region{Start: 1, End: 2}},
		{"the prompt is the first node", talk, compact.Bounds{KeepFrom: 1}, events.Region{}},
		{"a prompt that is not there", talk, compact.Bounds{KeepFrom: 9}, events.Region{Start: 1, End: 5}},
		{"as much as fits", talk, compact.Bounds{Limit: 599}, events.Region{Start: 1, End: 2}},
		{"exactly what fits", talk, compact.Bounds{Limit: 600}, events.Region{Start: 1, End: 3}},
		{"nothing fits", talk, compact.Bounds{Limit: 199}, events.Region{}},
		{"not between call and result", tools, compact.Bounds{Retain: 400}, events.Region{Start: 1, End: 4}},
		{"not between two results", tools, compact.Bounds{Retain: 420}, events.Region{Start: 1, End: 1}},
		{"a limit inside the calls", tools, compact.Bounds{Limit: 650}, events.Region{Start: 1, End: 1}},
		{"a call without its result", []compact.Node{user(1, big), assistant(2, big, "x"), user(3, big)}, compact.Bounds{}, events.Region{Start: 1, End: 1}},
		{"a result without its call", []compact.Node{user(1, big), assistant(2, big), output(3, "x", big), user(4, big)}, compact.Bounds{}, events.Region{Start: 1, End: 1}},
		{"only the earlier summary", []compact.Node{summary(1, big), user(2, big)}, compact.Bounds{Retain: 1}, events.Region{}},
		{"the earlier summary and more", []compact.Node{summary(1, big), user(2, big), user(3, big)}, compact.Bounds{Retain: 1}, events.Region{Start: 1, End: 2}},
		{"the earlier summary and a node without a message", []compact.Node{summary(1, big), {Seq: 2}, user(3, big)}, compact.Bounds{Retain: 1}, events.Region{}},
		{"less than a frame", []compact.Node{user(1, "hi"), user(2, big)}, compact.Bounds{Retain: 1}, events.Region{}},
		{"an order that is not the log's", []compact.Node{summary(9, big), user(4, big), user(5, big)}, compact.Bounds{Retain: 1}, events.Region{Start: 9, End: 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := compact.Plan(tt.nodes, surface(tt.nodes...).Tokens(), tt.bounds)
			if ok != (tt.want != events.Region{}) || r.Events != tt.want {
				t.Errorf("got %+v (%v), want %+v", r.Events, ok, tt.want)
			}
		})
	}
}

func TestPlanTurn(t *testing.T) {
	big := words(196)
	nodes := []compact.Node{
		user(1, big), user(2, big), assistant(3, big, "x"), output(4, "x", big), assistant(5, big, "x"), output(6, "x", big),
	}
	tests := []struct {
		name   string
		bounds compact.Bounds
		want   events.Region
	}{
		{"behind the prompt", compact.Bounds{KeepFrom: 2, Retain: 1}, events.Region{Start: 3, End: 4}},
		{"no prompt", compact.Bounds{Retain: 1}, events.Region{}},
		{"the prompt is gone", compact.Bounds{KeepFrom: 9, Retain: 1}, events.Region{}},
		{"all is tail", compact.Bounds{KeepFrom: 2, Retain: 600}, events.Region{}},
		{"nothing behind the prompt", compact.Bounds{KeepFrom: 6}, events.Region{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := compact.PlanTurn(nodes, surface(nodes...).Tokens(), tt.bounds)
			if ok != (tt.want != events.Region{}) || r.Events != tt.want {
				t.Errorf("got %+v (%v), want %+v", r.Events, ok, tt.want)
			}
		})
	}
}

// TestPlanReference: the region that the reference system chose in its scenario of automatic compaction, where it
// retains a tenth of a window of 1,500 tokens.
func TestPlanReference(t *testing.T) {
	q, a := words(39)[:155], words(73) // prompts of 155 characters, answers of 292
	nodes := []compact.Node{user(4, q), assistant(14, a), user(21, q), assistant(29, a), user(36, q), assistant(44, a)}
	r, ok := compact.Plan(nodes, surface(nodes...).Tokens(), compact.Bounds{Retain: 150})
	if want := (events.Region{Start: 4, End: 21}); !ok || r.Events != want {
		t.Errorf("got %+v (%v), want %+v", r.Events, ok, want)
	}
}

// TestPlanProperty: a region has all that is promised, and no longer one has.
func TestPlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, prompts := drawNodes(t, 0)
		tokens := surface(nodes...).Tokens()
		var total int64
		for _, n := range tokens {
			total += n
		}
		b := compact.Bounds{Retain: rapid.Int64Range(0, total+1).Draw(t, "retain")}
		if rapid.Bool().Draw(t, "limited") {
			b.Limit = rapid.Int64Range(1, total+1).Draw(t, "limit")
		}
		if len(prompts) > 0 && rapid.Bool().Draw(t, "keep") {
			b.KeepFrom = rapid.SampledFrom(prompts).Draw(t, "keepFrom")
		}
		inTurn := b.KeepFrom != 0 && rapid.Bool().Draw(t, "in the turn")
		lo, stop := 0, len(nodes)
		for i, n := range nodes {
			switch {
			case n.Seq != b.KeepFrom:
			case inTurn:
				lo = i + 1
			default:
				stop = i
			}
		}
		good := func(hi int) bool {
			var in, behind int64
			fresh := false
			for i := range nodes {
				switch {
				case i >= hi:
					behind += tokens[i]
				case i >= lo:
					in += tokens[i]
					fresh = fresh || nodes[i].Message != nil && !isSummary(nodes[i])
				}
			}
			return hi > lo && behind >= b.Retain && (b.Limit == 0 || in <= b.Limit) && in > compact.FrameTokens() && fresh &&
				balanced(nodes[lo:hi]) && (hi == len(nodes) || !isResult(nodes[hi]))
		}
		want := 0
		for hi := lo + 1; hi <= stop; hi++ {
			if good(hi) {
				want = hi
			}
		}
		plan := compact.Plan
		if inTurn {
			plan = compact.PlanTurn
		}
		r, ok := plan(nodes, tokens, b)
		if ok != (want > 0) || ok && (r.Lo != lo || r.Hi != want) {
			t.Fatalf("got [%d,%d) (%v), want [%d,%d)", r.Lo, r.Hi, ok, lo, want)
		}
		if ok && (r.Events.Start != nodes[lo].Seq || r.Events.End != nodes[want-1].Seq) {
			t.Fatalf("got %+v", r.Events)
		}
	})
}
