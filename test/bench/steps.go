package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

const (
	stepsGoal   = 1.3
	stepSamples = 8 // steps in a row behind one history
	stepRounds  = 3 // times bench.rounds
)

// even is a session of equal steps.
type even struct {
	*foldtest.Log

	ends []int // after how many events each step's llm/stream stands, itself included
}

// newEven returns a session of steps up to n events and some more.
func newEven(n int) (*even, error) {
	body, failed, err := bodies()
	if err != nil {
		return nil, err
	}
	s := begin(body)
	for after := 0; after < stepSamples+2; {
		if s.Len() >= uint64(n) {
			after++
		}
		s.step()
	}
	return s, *failed
}

// begin returns a session that stands before its first step's model call.
func begin(body foldtest.BodyFunc) *even {
	s := &even{Log: foldtest.New()}
	s.Body = body
	s.Begin()
	s.TurnStart()
	s.StepStart()
	s.User("Read everything.")
	s.Header(foldtest.Header())
	return s
}

// step appends a model call with its tool call, and the start of the next step.
func (s *even) step() {
	s.ends = append(s.ends, int(s.Stream()))
	const token = " and so on"
	texts := make([]string, 16)
	for i := range texts {
		texts[i] = token
	}
	id := "call_" + strconv.Itoa(1_000_000+len(s.ends))
	for _, run := range [][]events.Chunk{
		foldtest.ReasoningBlock(0, texts...), foldtest.TextBlock(1, texts...), foldtest.CallBlock(2, id, "read", `{"path":`, `"a/b.go"}`),
		{foldtest.FinishChunk(events.FinishToolCalls)},
	} {
		s.Chunks(run...)
	}
	s.Answer()
	s.ToolCall()
	s.ToolResult(events.Text("package b\n\nfunc B() error {\n\treturn nil\n}\n"))
	s.StepEnd()
	s.StepStart()
}

// steps measures what one step costs behind histories of different lengths.
func (b *bench) steps(ctx context.Context) error {
	histories := []int{100, 1_000, 10_000}
	prepared, verified := make([][]time.Duration, len(histories)), make([][]time.Duration, len(histories))
	sessions := make([]*even, len(histories))
	for i, n := range histories {
		var err error
		if sessions[i], err = newEven(n); err != nil {
			return err
		}
	}
	for range stepRounds * b.rounds {
		for i, n := range histories {
			if err := sessions[i].prepare(n, &prepared[i]); err != nil {
				return fmt.Errorf("prepare steps behind %d events: %w", n, err)
			}
			if err := sessions[i].verify(ctx, n, &verified[i]); err != nil {
				return fmt.Errorf("verify steps behind %d events: %w", n, err)
			}
		}
	}
	b.title("One step of %d events, by the events of history (median of %d; behind 100 = 1x)", sessions[0].ends[1]-sessions[0].ends[0], len(prepared[0]))
	for _, m := range []struct {
		what string
		took [][]time.Duration
	}{{"prepare: apply, request, build", prepared}, {"verify: hash, decode, apply, build", verified}} {
		first := median(m.took[0])
		for i, n := range histories {
			d := median(m.took[i])
			b.line(fmt.Sprintf("%s, %d", m.what, n), "%9v %s", d, most(float64(d)/float64(first), stepsGoal))
		}
	}
	return nil
}

// from returns the index of the first step whose request stands behind n events.
func (s *even) from(n int) int {
	i := 0
	for s.ends[i] <= n {
		i++
	}
	return i
}

// prepare takes the times in which a worker folds what a step has appended and builds the next request.
func (s *even) prepare(n int, took *[]time.Duration) error {
	state := fold.New(s.State.ID())
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		return err
	}
	at, first := 0, s.from(n)
	for i, end := range s.ends[:first+1+stepSamples] {
		if i == first+1 { // the request before this one made room in the builder
			runtime.GC()
		}
		d, err := timed(func() error {
			for ; at < end-1; at++ { // up to, and without, the llm/stream
				if err := state.Apply(&s.Events[at]); err != nil {
					return err
				}
			}
			request, err := state.Request()
			if err != nil {
				return err
			}
			body, err := builder.Build(&request, s.Objects)
			if want := s.Events[end-1].Body.(*events.LLMStream).Body; err == nil && body.Digest() != want {
				err = fmt.Errorf("the body of event %d is another", end)
			}
			return err
		})
		if err != nil {
			return err
		}
		if i > first {
			*took = append(*took, d)
		}
	}
	return nil
}

// verify takes the times in which a verifier checks a step.
func (s *even) verify(ctx context.Context, n int, took *[]time.Duration) error {
	c := audit.NewChecker(audit.CheckerConfig{Session: s.State.ID(), Objects: audit.FromStore(objects.NewMemory())})
	at, first := 0, s.from(n)
	for i, end := range s.ends[:first+1+stepSamples] {
		if i == first+1 {
			runtime.GC()
		}
		d, err := timed(func() error {
			for ; at < end; at++ {
				e := &s.Events[at]
				m := eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: s.Payloads[at]}
				if err := apply(ctx, c, m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if i > first {
			*took = append(*took, d)
		}
	}
	return nil
}
