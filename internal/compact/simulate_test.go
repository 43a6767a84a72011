package compact_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
)

// simulator drives the policy as a worker does, against a model and a provider that the test chooses.
type simulator struct {
	policy compact.Policy
	window int64 // what the worker believes; 0: unknown
	meter  compact.Meter
	seq    uint64

	summarise func(region []compact.Node, tokens int64) (size int, ok bool) // the summary's tokens, or a failed call
	accepts   func(estimate int64) bool                                     // the provider's opinion of a request

	prompt  uint64 // of the open turn
	done    int
	stalled uint64

	compactions, prunes, refusals int      // of the turn
	refused                       []uint64 // the nodes of the request that was refused last
	failure                       error
}

func (s *simulator) next() uint64 { s.seq++; return s.seq }

func (s *simulator) say(text string) {
	s.prompt, s.done, s.stalled = s.next(), 0, 0
	s.compactions, s.prunes, s.refusals, s.refused, s.failure = 0, 0, 0, nil, nil
	s.meter.Append(user(s.prompt, text))
}

// ready makes the next request fit and returns whether it may be sent.
func (s *simulator) ready(reason events.CompactionReason) (bool, error) {
	pruned := false
	for range 10_000 {
		d, err := compact.Decide(s.policy, &s.meter, compact.Situation{
			Reason: reason, Window: s.window, KeepFrom: s.prompt, Done: s.done, Stalled: s.stalled, Pruned: pruned,
		}, shorten())
		if err != nil {
			return false, err
		}
		switch d.Kind {
		case compact.KindNone:
			return true, nil
		case compact.KindImpossible:
			s.failure = d.Why
			return false, nil
		case compact.KindPrune:
			before := s.meter.Estimate()
			for _, p := range d.Prunes {
				old := s.meter.Nodes()[p.Index]
				n := result(s.next(), old.Message.Source.CallID, p.Content...)
				n.Pruned = true
				s.meter.Replace(p.Index, p.Index+1, n)
				s.prunes++
			}
			if after := s.meter.Estimate(); after > before {
				return false, fmt.Errorf("pruning went from %d to %d", before, after)
			}
			pruned = true
		case compact.KindSummarise:
			if err := s.compact(d.Region); err != nil {
				return false, err
			}
			if reason == events.CompactionOverflow && s.stalled == 0 {
				reason = events.CompactionPressure // the request is smaller than the refused one
			}
		}
	}
	return false, errors.New("the loop does not end")
}

func (s *simulator) compact(r compact.Region) error {
	nodes := s.meter.Nodes()
	run := nodes[r.Lo:r.Hi]
	if !balanced(run) || r.Hi < len(nodes) && isResult(nodes[r.Hi]) {
		return fmt.Errorf("region [%d,%d) is not balanced", r.Lo, r.Hi)
	}
	for _, n := range run {
		if n.Seq == s.prompt {
			return errors.New("the open turn's prompt is in the region")
		}
	}
	s.compactions++
	s.done++
	size, ok := s.summarise(run, r.Tokens)
	if !ok {
		s.stalled = s.next()
		return nil
	}
	content, blank := compact.Frame([]events.Block{events.Text(words(size))})
	if blank != nil {
		s.stalled = s.next()
		return nil //nolint:nilerr // that is how a compaction may end
	}
	before, _, larger := compact.Check(&s.meter, r, content)
	if larger != nil {
		s.stalled = s.next()
		return nil //nolint:nilerr // that is how a compaction may end
	}
	s.meter.Replace(r.Lo, r.Hi, summary(s.next(), words(size)))
	s.stalled = 0
	if after := s.meter.Estimate(); after >= before {
		return fmt.Errorf("an accepted summary went from %d to %d", before, after)
	}
	return nil
}

// send makes the request fit and sends it until the provider takes it, or it cannot be made to fit.
func (s *simulator) send() (bool, error) {
	reason := events.CompactionPressure
	for range 10_000 {
		if ok, err := s.ready(reason); !ok || err != nil {
			return false, err
		}
		if s.accepts(s.meter.Estimate()) {
			return true, nil
		}
		var now []uint64
		for _, n := range s.meter.Nodes() {
			now = append(now, n.Seq)
		}
		if fmt.Sprint(now) == fmt.Sprint(s.refused) {
			return false, errors.New("a refused request was sent again")
		}
		s.refused = now
		s.refusals++
		reason = events.CompactionOverflow
	}
	return false, errors.New("the provider is asked for ever")
}

// step sends a request and, when it was taken, records an answer with a call and its result.
func (s *simulator) step(answer, out int) (bool, error) {
	ok, err := s.send()
	if !ok || err != nil {
		return ok, err
	}
	s.meter.Append(assistant(s.next(), words(answer), "c"))
	s.meter.Append(output(s.next(), "c", words(out)))
	return true, nil
}

func always(int64) bool { return true }

// TestDeathSpiral is the kind of claude-code#24179: summaries that hardly shrink anything, so that the next step is
// under pressure again, in a turn that goes on for ever.
func TestDeathSpiral(t *testing.T) {
	s := &simulator{window: 10_000, accepts: always, summarise: func(_ []compact.Node, tokens int64) (int, bool) {
		return int(tokens - compact.FrameTokens() - 1), true
	}}
	s.policy.PruneChars = -1
	s.say(words(100))
	steps := 0
	for ; steps < 1000; steps++ {
		if ok, err := s.step(50, 100); err != nil {
			t.Fatal(err)
		} else if !ok {
			break
		}
	}
	if s.compactions == 0 || s.compactions > compact.DefaultMaxPerTurn {
		t.Errorf("%d compactions in one turn of %d steps", s.compactions, steps)
	}
	if s.failure == nil {
		t.Error("the turn went on in a full window")
	}
}

// TestLongTurn: a turn that works long on one prompt goes on, and compacts about once per filled window.
func TestLongTurn(t *testing.T) {
	s := &simulator{window: 10_000, accepts: always, summarise: func([]compact.Node, int64) (int, bool) { return 300, true }}
	s.policy.PruneChars = -1
	s.say(words(100))
	for range 200 {
		if ok, err := s.step(50, 150); !ok || err != nil {
			t.Fatalf("it ended: %v, %v", s.failure, err)
		}
	}
	if s.compactions < 5 || s.compactions > compact.DefaultMaxPerTurn {
		t.Errorf("%d compactions for five windows", s.compactions)
	}
}

// TestFloorAboveUsable is the kind of opencode#48828: system prompt and tools alone are beyond the threshold, and
// every step would compact.
func TestFloorAboveUsable(t *testing.T) {
	s := &simulator{window: 65_536, accepts: always, summarise: func([]compact.Node, int64) (int, bool) { return 300, true }}
	s.policy = compact.Policy{Reserve: 32_000} // leaves 33,536
	s.meter.SetHeader(header(words(43_000)))
	s.say(words(100))
	steps := 0
	for ; steps < 1000; steps++ {
		if ok, err := s.step(50, 150); err != nil {
			t.Fatal(err)
		} else if !ok {
			break
		}
	}
	if s.compactions != 0 {
		t.Errorf("%d compactions that could not help", s.compactions)
	}
	if steps < 50 || !errors.Is(s.failure, compact.ErrFloor) {
		t.Errorf("it ended after %d steps: %v", steps, s.failure)
	}
}

// TestRefusedForEver is the kind of pydantic-ai#7157: a request that is too large stays too large, whatever the
// summaries do, and is not tried again and again.
func TestRefusedForEver(t *testing.T) {
	for _, window := range []int64{0, 10_000} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			s := &simulator{window: window, accepts: func(int64) bool { return false }}
			s.summarise = func(_ []compact.Node, tokens int64) (int, bool) { return int(tokens / 2), true }
			for range 20 {
				s.meter.Append(user(s.next(), words(200)))
				s.meter.Append(assistant(s.next(), words(200)))
			}
			s.say(words(100))
			ok, err := s.send()
			if ok || err != nil || s.failure == nil {
				t.Fatalf("sent: %v, failure %v: %v", ok, s.failure, err)
			}
			if s.refusals == 0 || s.refusals > compact.DefaultMaxPerTurn+1 {
				t.Errorf("the provider refused %d requests", s.refusals)
			}
		})
	}
}

// TestSmallerModel: after a change to a model with a smaller window the history is larger than a request for its
// summary may be, and is summarised piece by piece.
func TestSmallerModel(t *testing.T) {
	s := &simulator{window: 10_000, accepts: always}
	largest := int64(0)
	s.summarise = func(_ []compact.Node, tokens int64) (int, bool) {
		largest = max(largest, tokens)
		return 200, true
	}
	for range 50 {
		s.meter.Append(user(s.next(), words(250)))
		s.meter.Append(assistant(s.next(), words(250)))
	}
	s.say(words(100))
	if ok, err := s.send(); !ok || err != nil {
		t.Fatalf("it ended: %v, %v", s.failure, err)
	}
	if got := s.meter.Estimate(); got > 8_000 {
		t.Errorf("%d tokens are left", got)
	}
	if most := int64(8_750) - compact.DirectiveTokens(); s.compactions < 2 || largest > most {
		t.Errorf("%d compactions, the largest of %d tokens; a request has %d", s.compactions, largest, most)
	}
}

// TestLoopsEnd: whatever the policy, the window, the sizes of messages and summaries and the provider's opinion, a
// turn has at most the allowed number of compactions, every replacement makes the request smaller, every region is
// balanced, no refused request is sent again, and every loop ends.
func TestLoopsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &simulator{
			policy: compact.Policy{
				Threshold:  rapid.Float64Range(0.2, 1).Draw(t, "threshold"),
				Retain:     rapid.Float64Range(0, 0.19).Draw(t, "retain"),
				Reserve:    rapid.Int64Range(0, 3000).Draw(t, "reserve"),
				MaxPerTurn: rapid.IntRange(0, 5).Draw(t, "max"),
				PruneChars: rapid.SampledFrom([]int{-1, 0, 200}).Draw(t, "pruneChars"),
			},
			window: rapid.SampledFrom([]int64{0, 1, 500, 2000, 10_000, 50_000}).Draw(t, "window"),
		}
		if err := s.policy.Validate(); err != nil {
			t.Fatal(err)
		}
		s.summarise = func(_ []compact.Node, tokens int64) (int, bool) {
			return rapid.IntRange(0, int(tokens)+100).Draw(t, "summary"), rapid.IntRange(0, 4).Draw(t, "fails") > 0
		}
		truth := rapid.Int64Range(0, 60_000).Draw(t, "real window")
		s.accepts = func(estimate int64) bool { return estimate <= truth }
		s.meter.SetHeader(header(words(rapid.IntRange(0, 3000).Draw(t, "header"))))
		nodes, _ := drawNodes(t, 0)
		for _, n := range nodes {
			if balanced(nodes) { // a log between two turns
				s.meter.Append(n)
				s.seq = n.Seq
			}
		}
		size := rapid.IntRange(0, 3000)
		most := s.policy.MaxPerTurn
		if most == 0 {
			most = compact.DefaultMaxPerTurn
		}
		for range rapid.IntRange(1, 4).Draw(t, "turns") {
			s.say(words(size.Draw(t, "prompt")))
			for range rapid.IntRange(1, 12).Draw(t, "steps") {
				ok, err := s.step(size.Draw(t, "answer"), size.Draw(t, "output"))
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if rapid.Bool().Draw(t, "reported") {
					nodes := s.meter.Nodes()
					s.meter.Append(assistant(s.next(), "ok"))
					s.meter.Anchor(events.Usage{InputTokens: rapid.Int64Range(0, 20_000).Draw(t, "usage")}, s.seq)
					if got := s.meter.Nodes(); len(got) != len(nodes)+1 {
						t.Fatal("the anchor changed the surface")
					}
				}
			}
			if s.compactions > most {
				t.Fatalf("%d compactions in one turn, %d are allowed", s.compactions, most)
			}
		}
	})
}
