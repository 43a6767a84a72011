package project_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// runningBody is realBody at a cost that does not grow with the log.
func runningBody() foldtest.BodyFunc {
	b, err := codec.New(codec.DeepSeekChat1, codec.Options{DigestOnly: true})
	if err != nil {
		panic(err)
	}
	return func(req *fold.Request, src objects.Source) (string, events.BodyDigest) {
		body, err := b.Build(req, src)
		if err != nil {
			panic(err)
		}
		return codec.DeepSeekChat1, body.Digest()
	}
}

// BenchmarkStep is the cost of decoding and projecting one step, from step/start to its record, behind a history of so
// many events. The step is the same each time; events before and behind it are not counted.
func BenchmarkStep(b *testing.B) {
	for _, history := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("history=%d", history), func(b *testing.B) {
			s := &script{Log: foldtest.SessionLog(history, runningBody()), header: foldtest.Header()}
			for settle(s); int(s.Len()) < history; {
				settle(s)
			}
			const steps = 500
			s.TurnStart()
			start := int(s.Len())
			for range steps {
				s.StepStart()
				s.User("What is in the file?")
				s.Reply(events.FinishStop, foldtest.TextBlock(0, "A file."), []events.Chunk{foldtest.UsageChunk(usage(100, 640))})
				s.StepEnd()
			}
			b.ReportAllocs()
			var p *project.Session
			next := len(s.Payloads)
			for b.Loop() {
				if next == len(s.Payloads) {
					b.StopTimer()
					p, next = project.NewSession(s.State.ID(), project.Options{}), 0
					for ; next < start; next++ {
						apply(b, p, s.Payloads[next])
					}
					runtime.GC() // what building the history left behind is not the step's
					b.StartTimer()
				}
				for {
					r := apply(b, p, s.Payloads[next])
					next++
					if r != nil {
						break
					}
				}
			}
		})
	}
}

// settle ends what is open, so that a turn can start.
func settle(s *script) {
	if _, _, _, _, open := s.State.OpenCall(); open {
		s.Failed(events.FailureInterrupted)
	}
	for range s.State.PendingTools() {
		s.ToolError(events.ToolNotStarted)
	}
	if _, open := s.State.Step(); open {
		s.StepEnd()
	}
	if _, open := s.State.Turn(); open {
		s.TurnEnd(events.TurnInterrupted)
	}
	s.Title("settled")
}

func apply(b *testing.B, p *project.Session, payload []byte) *project.Record {
	b.Helper()
	e, err := events.Decode(payload)
	if err != nil {
		b.Fatal(err)
	}
	r, err := p.Apply(&e, nothing{})
	if err != nil {
		b.Fatal(err)
	}
	return r
}
