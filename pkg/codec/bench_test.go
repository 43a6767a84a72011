package codec_test

import (
	"strconv"
	"testing"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// growing is a session that grows by steps of one size.
type growing struct{ *foldtest.Log }

// grown returns a session whose requests show n messages.
func grown(n int) growing {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.User("Read everything.")
	l.Header(foldtest.Header())
	g := growing{l}
	for messages := 1; messages < n; messages += 2 {
		g.step()
	}
	return g
}

// step appends an answer of a few hundred bytes with a call, and its result.
func (g growing) step() {
	id := "call_" + strconv.FormatUint(g.Len(), 10)
	g.Reply(events.FinishToolCalls,
		foldtest.ReasoningBlock(0, "The next file may hold what was asked for, so it is read as well."),
		foldtest.CallBlock(1, id, "read", `{"path":"internal/some/package/file.go"}`))
	g.ToolCall()
	g.ToolResult(events.Text("package some\n\n// Run does what its name says.\nfunc Run(ctx context.Context) error {\n\treturn nil\n}\n"))
	g.StepEnd()
	g.StepStart()
}

func (g growing) request(b *testing.B) fold.Request {
	b.Helper()
	r, err := g.State.Request()
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkBuild is the cost of one step's body, two new messages, behind a history: it does not depend on its length.
func BenchmarkBuild(b *testing.B) {
	for _, digestOnly := range []bool{false, true} {
		for _, messages := range []int{100, 1_000, 10_000} {
			name := "whole"
			if digestOnly {
				name = "digest"
			}
			b.Run(name+"/"+strconv.Itoa(messages), func(b *testing.B) {
				g := grown(messages)
				steps := []fold.Request{g.request(b)}
				for range messages / 5 {
					g.step()
					steps = append(steps, g.request(b))
				}
				builder := newBuilder(b, codec.Options{DigestOnly: digestOnly})
				b.ReportAllocs()
				for next := len(steps); b.Loop(); next++ {
					if next >= len(steps) { // begin again behind the history
						b.StopTimer()
						builder = newBuilder(b, codec.Options{DigestOnly: digestOnly})
						build(b, builder, &steps[0], g.Objects)
						build(b, builder, &steps[1], g.Objects) // makes room for more
						next = 2
						b.StartTimer()
					}
					build(b, builder, &steps[next], g.Objects)
				}
			})
		}
	}
}

// BenchmarkRebuild is the cost of a body from its first byte.
func BenchmarkRebuild(b *testing.B) {
	for _, messages := range []int{100, 1_000, 10_000} {
		b.Run(strconv.Itoa(messages), func(b *testing.B) {
			g := grown(messages)
			r := g.request(b)
			for b.Loop() {
				body := build(b, newBuilder(b, codec.Options{DigestOnly: true}), &r, g.Objects)
				b.SetBytes(body.Digest().Bytes)
			}
		})
	}
}
