package audit

import (
	"context"
	"fmt"
	"testing"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestManyImages checks a conversation whose images are larger in all than what a checker keeps, with a prefix that breaks
// at each step, and wants a checker to keep no more than it may.
func TestManyImages(t *testing.T) {
	const images, each = 12, 1 << 20
	l := foldtest.New()
	l.Body = func(request *fold.Request, src objects.Source) (string, events.BodyDigest) {
		builder, err := codec.New(codec.DeepSeekChat1, codec.Options{DigestOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		body, err := builder.Build(request, src)
		if err != nil {
			t.Fatal(err)
		}
		return builder.Codec(), body.Digest()
	}
	l.Begin()
	l.TurnStart()
	l.StepStart()
	blocks := []events.Block{events.Text("look")}
	var shown []events.ImageShown
	for n := range images {
		data := make([]byte, each)
		copy(data, fmt.Sprint(n))
		block := l.ImageBlock(data, 1, 1)
		blocks, shown = append(blocks, block), append(shown, foldtest.Inline(block.Object.Digest, "", block.Object))
	}
	l.UserBlocks(blocks...)
	l.Header(foldtest.Header())
	l.Images(shown...)
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "Nice."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.TurnStart()
	l.StepStart()
	l.User("again")
	h := foldtest.Header()
	h.System = "Another one."
	l.Header(h)
	l.Stream()
	for _, cold := range []bool{false, true} {
		var c *Checker
		asked := 0
		c = NewChecker(CheckerConfig{Session: l.State.ID(), Cold: cold, Objects: func(_ context.Context, ref objects.Ref) ([]byte, error) {
			asked++
			if c.heldBytes > heldBytes || int64(c.held.Len()) != c.heldBytes/each {
				t.Errorf("cold %t: keeps %d objects of %d bytes", cold, c.held.Len(), c.heldBytes)
			}
			data, ok := l.Objects.Bytes(ref.Digest)
			if !ok {
				return nil, objects.ErrNotFound
			}
			return data, nil
		}})
		matches := 0
		for i := range l.Events {
			e := &l.Events[i]
			v, err := c.Apply(t.Context(), eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: l.Payloads[i]})
			if err != nil {
				t.Fatal(err)
			}
			if v != nil && v.Kind == KindRequest {
				if v.Result != Match {
					t.Errorf("cold %t: %s", cold, v)
				}
				matches++
			}
		}
		if matches != 2 || asked < 2*images || asked > 4*images {
			t.Errorf("cold %t: %d requests, objects asked for %d times", cold, matches, asked)
		}
	}
}
