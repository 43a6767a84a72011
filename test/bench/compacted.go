package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

const (
	compactedEvery  = 500 // events
	compactedRetain = 20  // nodes that stay as they are: answers and results in turn
)

// newCompacted returns a session of equal steps whose history is compacted again and again, up to n events and two
// compactions further, and after how many steps the compactions stand that follow n.
func newCompacted(n int) (s *even, cycles []int, err error) {
	body, failed, err := bodies()
	if err != nil {
		return nil, nil, err
	}
	s = begin(body)
	for last := uint64(0); len(cycles) < 2; {
		s.step()
		if s.Len()-last < compactedEvery {
			continue
		}
		last = s.Len()
		nodes := s.State.Nodes()
		s.Compact(nodes[0], nodes[len(nodes)-1-compactedRetain], "Everything was read, and more is to be read.")
		if s.Len() >= uint64(n) {
			cycles = append(cycles, len(s.ends))
		}
	}
	return s, cycles, *failed
}

// compacted measures what a step costs in a session that is compacted every 500 events, short and long.
func (b *bench) compacted(context.Context) error {
	histories := []int{1_000, 10_000}
	took := make([][]time.Duration, len(histories))
	sessions, cycles := make([]*even, len(histories)), make([][]int, len(histories))
	for i, n := range histories {
		var err error
		if sessions[i], cycles[i], err = newCompacted(n); err != nil {
			return err
		}
	}
	for range b.rounds {
		for i, n := range histories {
			d, err := sessions[i].cycle(cycles[i][0], cycles[i][1])
			if err != nil {
				return fmt.Errorf("prepare steps behind %d events: %w", n, err)
			}
			took[i] = append(took[i], d)
		}
	}
	b.title("One step with a compaction every %d events (mean of a cycle of %d, median of %d; behind 1000 = 1x)", compactedEvery, cycles[0][1]-cycles[0][0], b.rounds)
	first := median(took[0])
	for i, n := range histories {
		d := median(took[i])
		b.line(fmt.Sprintf("fold, meter, request and body, behind %d", n), "%9v %s", d, most(float64(d)/float64(first), stepsGoal))
	}
	return nil
}

// cycle takes the mean time in which a worker prepares the requests of the steps [from,to).
func (s *even) cycle(from, to int) (time.Duration, error) {
	state := fold.New(s.State.ID())
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		return 0, err
	}
	var meter compact.Meter
	at := 0
	prepare := func(ends []int) error {
		for _, end := range ends {
			for ; at < end-1; at++ { // up to, and without, the llm/stream
				if err := state.Apply(&s.Events[at]); err != nil {
					return err
				}
				if err := meter.Observe(&s.Events[at]); err != nil {
					return err
				}
			}
			request, err := state.Request()
			if err != nil {
				return err
			}
			body, err := builder.Build(&request, s.Objects)
			if err != nil {
				return err
			}
			if want := s.Events[end-1].Body.(*events.LLMStream).Body; body.Digest() != want {
				return fmt.Errorf("the body of event %d is another", end)
			}
		}
		return nil
	}
	if err := prepare(s.ends[:from]); err != nil {
		return 0, err
	}
	runtime.GC()
	d, err := timed(func() error { return prepare(s.ends[from:to]) })
	return d / time.Duration(to-from), err
}
