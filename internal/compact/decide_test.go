package compact_test

import (
	"errors"
	"testing"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// talk returns n turns of a prompt and an answer, 500 tokens together, and the sequence of the last node.
func talk(n int) (nodes []compact.Node, last uint64) {
	for range n {
		nodes = append(nodes, user(last+1, words(246)), assistant(last+2, words(246)))
		last += 2
	}
	return nodes, last
}

// work returns a prompt and n steps of 500 tokens each that answer it, and the sequence of the last node.
func work(n int) (nodes []compact.Node, last uint64) {
	nodes, last = []compact.Node{user(1, words(246))}, 1
	for range n {
		nodes = append(nodes, assistant(last+1, "", "c"), output(last+2, "c", words(472)))
		last += 2
	}
	return nodes, last
}

func TestDecide(t *testing.T) {
	// The window of 10,000 has a threshold of 8,000 and leaves 8,750 to a request.
	const window = 10_000
	region := func(start, end uint64) events.Region { return events.Region{Start: start, End: end} }
	build := func(f func(int) ([]compact.Node, uint64), n int) *compact.Meter {
		nodes, _ := f(n)
		return compact.NewMeter(nodes, header(words(96)), compact.Anchor{})
	}
	tests := []struct {
		name      string
		meter     *compact.Meter
		situation compact.Situation
		kind      compact.Kind
		region    events.Region
		why       error
	}{
		{"empty", new(compact.Meter), compact.Situation{Window: window}, compact.KindNone, region(0, 0), nil},
		{"below the threshold", build(talk, 15), compact.Situation{Window: window}, compact.KindNone, region(0, 0), nil},
		{"at the threshold", build(talk, 16), compact.Situation{Window: window}, compact.KindSummarise, region(1, 28), nil},
		{"the prompt to come counts", build(talk, 15), compact.Situation{Window: window, Pending: 1000}, compact.KindSummarise, region(1, 26), nil},
		{"beyond the window", build(talk, 25), compact.Situation{Window: window}, compact.KindSummarise, region(1, 33), nil},
		{"an unknown window", build(talk, 1000), compact.Situation{}, compact.KindNone, region(0, 0), nil},
		{"a negative window", build(talk, 1000), compact.Situation{Window: -1}, compact.KindNone, region(0, 0), nil},
		{"a tiny window", build(talk, 16), compact.Situation{Window: 1}, compact.KindImpossible, region(0, 0), compact.ErrFloor},
		{"the older turns are enough", build(talk, 16), compact.Situation{Window: window, KeepFrom: 29}, compact.KindSummarise, region(1, 28), nil},
		{"one long turn", build(work, 16), compact.Situation{Window: window, KeepFrom: 1}, compact.KindSummarise, region(2, 29), nil},
		{"a command", build(talk, 2), compact.Situation{Reason: events.CompactionCommand, Window: window}, compact.KindSummarise, region(1, 3), nil},
		{"a command with an unknown window", build(talk, 2), compact.Situation{Reason: events.CompactionCommand}, compact.KindSummarise, region(1, 3), nil},
		{"a command counts for itself", build(talk, 2), compact.Situation{Reason: events.CompactionCommand, Window: window, Done: 99}, compact.KindSummarise, region(1, 3), nil},
		{"a command without a history", new(compact.Meter), compact.Situation{Reason: events.CompactionCommand, Window: window}, compact.KindImpossible, region(0, 0), compact.ErrNoRegion},
		{"an overflow in an unknown window", build(talk, 10), compact.Situation{Reason: events.CompactionOverflow}, compact.KindSummarise, region(1, 17), nil},
		{"an overflow far below the window", build(talk, 10), compact.Situation{Reason: events.CompactionOverflow, Window: 1 << 20}, compact.KindSummarise, region(1, 17), nil},
		{"an overflow without a history", build(talk, 0), compact.Situation{Reason: events.CompactionOverflow}, compact.KindImpossible, region(0, 0), compact.ErrFloor},
		{"an overflow of one message", surface(user(1, words(20_000))), compact.Situation{Reason: events.CompactionOverflow}, compact.KindImpossible, region(0, 0), compact.ErrNoRegion},
		{"an overflow that pruning may have ended", surface(user(1, words(20_000))), compact.Situation{Reason: events.CompactionOverflow, Pruned: true}, compact.KindNone, region(0, 0), compact.ErrNoRegion},
		{"too many, but it still fits", build(talk, 19), compact.Situation{Window: window, Done: 8}, compact.KindNone, region(0, 0), compact.ErrTooMany},
		{"too many, and it does not fit", build(talk, 20), compact.Situation{Window: window, Done: 8}, compact.KindImpossible, region(0, 0), compact.ErrTooMany},
		{"stalled, but it still fits", build(talk, 16), compact.Situation{Window: window, Done: 1, Stalled: 30}, compact.KindNone, region(0, 0), compact.ErrNoProgress},
		{"stalled, it does not fit, but it has grown", build(talk, 20), compact.Situation{Window: window, Done: 1, Stalled: 30}, compact.KindSummarise, region(1, 33), nil},
		{"stalled, and nothing changed", build(talk, 20), compact.Situation{Window: window, Done: 1, Stalled: 41}, compact.KindImpossible, region(0, 0), compact.ErrNoProgress},
		{"stalled after an overflow", build(talk, 10), compact.Situation{Reason: events.CompactionOverflow, Done: 1, Stalled: 21}, compact.KindImpossible, region(0, 0), compact.ErrNoProgress},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := compact.Decide(compact.Policy{}, tt.meter, tt.situation, shorten())
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != tt.kind || got.Region.Events != tt.region || !errors.Is(got.Why, tt.why) || tt.why == nil && got.Why != nil {
				t.Errorf("%s of %+v: %v; want %s of %+v: %v", got.Kind, got.Region.Events, got.Why, tt.kind, tt.region, tt.why)
			}
		})
	}
}

// TestDecideWorth: a summary is asked for when it is worth its price, whatever it takes when the request does not fit.
func TestDecideWorth(t *testing.T) {
	const window = 10_000                          // threshold 8,000, clearly below that is 7,000, and 8,750 fit
	notes := func(old, fresh int) *compact.Meter { // an earlier summary, what came since, and the retained tail
		return surface(summary(9, words(old-int(compact.FrameTokens()))), user(10, words(fresh-4)), assistant(11, words(996)))
	}
	prompt := surface( // 1,000 tokens of older turns, a large prompt, 1,200 in the turn, and the retained tail
		user(1, words(496)), assistant(2, words(496)), user(3, words(5396)), assistant(4, words(1196)), assistant(5, words(996)),
	)
	tests := []struct {
		name      string
		policy    compact.Policy
		meter     *compact.Meter
		situation compact.Situation
		kind      compact.Kind
		region    events.Region
		why       error
	}{
		{"much is new", compact.Policy{}, notes(3000, 4000), compact.Situation{}, compact.KindSummarise, events.Region{Start: 9, End: 10}, nil},
		{"most is in the summary already", compact.Policy{}, notes(6100, 1000), compact.Situation{}, compact.KindNone, events.Region{}, compact.ErrFloor},
		{"the same, but it does not fit", compact.Policy{}, notes(7700, 600), compact.Situation{}, compact.KindSummarise, events.Region{Start: 9, End: 10}, nil},
		{"a large reserve", compact.Policy{Reserve: 5000}, notes(1000, 3000), compact.Situation{}, compact.KindSummarise, events.Region{Start: 9, End: 10}, nil},
		{"two regions together, the larger one first", compact.Policy{}, prompt, compact.Situation{KeepFrom: 3}, compact.KindSummarise, events.Region{Start: 4, End: 4}, nil},
		{"two regions, the older is enough", compact.Policy{Threshold: 0.8, Reserve: 100}, surface(
			user(1, words(1496)), assistant(2, words(496)), user(3, words(2396)), assistant(4, words(2696)), assistant(5, words(996)),
		), compact.Situation{KeepFrom: 3}, compact.KindSummarise, events.Region{Start: 1, End: 2}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.situation.Window = window
			got, err := compact.Decide(tt.policy, tt.meter, tt.situation, shorten())
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != tt.kind || got.Region.Events != tt.region || !errors.Is(got.Why, tt.why) || tt.why == nil && got.Why != nil {
				t.Errorf("%s of %+v: %v; want %s of %+v: %v", got.Kind, got.Region.Events, got.Why, tt.kind, tt.region, tt.why)
			}
		})
	}
}

// TestDecidePrunesFirst: old results are shortened before anything is summarised; those in the retained tail only
// when nothing else makes the request fit.
func TestDecidePrunesFirst(t *testing.T) {
	const window = 10_000
	policy := compact.Policy{PruneChars: 1000, PruneHead: 100, PruneTail: 50}
	results := surface(
		user(1, words(100)), assistant(2, "", "a", "b"), output(3, "a", words(3000)), output(4, "b", words(3000)),
		assistant(5, words(2000)),
	)
	d, err := compact.Decide(policy, results, compact.Situation{Window: window}, shorten())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind != compact.KindPrune || len(d.Prunes) != 2 || d.Prunes[0].Seq != 3 || d.Prunes[1].Seq != 4 {
		t.Errorf("got %s of %+v (%v)", d.Kind, d.Prunes, d.Why)
	}

	// The same, but the results are the last thing that happened.
	recent := []compact.Node{
		user(1, words(100)), assistant(2, "", "a", "b"), output(3, "a", words(3000)), output(4, "b", words(6000)),
	}
	d, err = compact.Decide(policy, surface(recent...), compact.Situation{Window: window, KeepFrom: 1}, shorten())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind != compact.KindPrune || len(d.Prunes) != 1 || d.Prunes[0].Seq != 3 {
		t.Errorf("older results: got %s of %+v (%v)", d.Kind, d.Prunes, d.Why)
	}
	recent[2].Pruned = true
	d, err = compact.Decide(policy, surface(recent...), compact.Situation{Window: window, KeepFrom: 1}, shorten())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind != compact.KindPrune || len(d.Prunes) != 1 || d.Prunes[0].Seq != 4 {
		t.Errorf("the retained result: got %s of %+v (%v)", d.Kind, d.Prunes, d.Why)
	}

	d, err = compact.Decide(policy, results, compact.Situation{Reason: events.CompactionCommand, Window: window}, shorten())
	if err != nil {
		t.Fatal(err)
	}
	if d.Kind != compact.KindSummarise {
		t.Errorf("a command: got %s (%v)", d.Kind, d.Why)
	}
}

func TestDecideReportsPruner(t *testing.T) {
	broken := errors.New("unreachable")
	with := shorten()
	with.Load = func(objects.Ref) (string, error) { return "", broken }
	large := result(2, "a", events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: 60_000}})
	m := surface(assistant(1, "", "a"), large, user(3, words(4000)))
	if d, err := compact.Decide(compact.Policy{}, m, compact.Situation{Window: 10_000}, with); !errors.Is(err, broken) {
		t.Errorf("got %s, %v", d.Kind, err)
	}
}

func TestCheck(t *testing.T) {
	nodes, _ := talk(4)
	tests := []struct {
		name  string
		size  int // tokens of the summary
		makes bool
	}{
		{"much smaller", 100, true},
		{"one token smaller", 1000 - 1 - int(compact.FrameTokens()), true},
		{"as large", 1000 - int(compact.FrameTokens()), false},
		{"larger", 2000, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := surface(nodes...)
			s := summary(99, words(tt.size))
			before, after, err := compact.Check(m, compact.Region{Lo: 0, Hi: 4}, s.Message.Content)
			if (err == nil) != tt.makes || err != nil && !errors.Is(err, compact.ErrNoProgress) {
				t.Errorf("got %v", err)
			}
			if before != m.Estimate() {
				t.Errorf("before is %d, the estimate %d", before, m.Estimate())
			}
			m.Replace(0, 4, s)
			if after != m.Estimate() {
				t.Errorf("after is %d, the estimate %d", after, m.Estimate())
			}
		})
	}
}
