package eventstest

import (
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// InputKinds returns every kind of input, in the order of its documentation.
func InputKinds() []events.InputKind {
	return []events.InputKind{
		events.InputPrompt, events.InputSteer, events.InputInject, events.InputCancel, events.InputCompact,
		events.InputConfigure, events.InputClose, events.InputFork,
	}
}

// Input generates a valid input of any kind.
func Input() *rapid.Generator[events.Input] {
	return rapid.Custom(func(t *rapid.T) events.Input {
		return InputOf(rapid.SampledFrom(InputKinds()).Draw(t, "kind")).Draw(t, "input")
	})
}

// InputOf generates a valid input of one kind.
func InputOf(kind events.InputKind) *rapid.Generator[events.Input] {
	return rapid.Custom(func(t *rapid.T) events.Input {
		in := events.Input{
			ID: ID().Draw(t, "id"), Time: Count().Draw(t, "time"), Kind: kind,
			Open: kind == events.InputFork || rapid.Bool().Draw(t, "open"),
		}
		switch kind {
		case events.InputPrompt:
			in.Content, in.Attachments = shown(t)
			opening(t, &in)
		case events.InputSteer, events.InputInject:
			in.Content, in.Attachments = shown(t)
		case events.InputCancel:
			in.Cause, in.KeepQueue = Text().Draw(t, "cause"), rapid.Bool().Draw(t, "keepQueue")
		case events.InputCompact:
		case events.InputConfigure:
			in.Options = Options().Draw(t, "options")
		case events.InputClose:
			in.Reason = Text().Draw(t, "reason")
		case events.InputFork:
			in.Parent = events.ForkPoint{ID: ID().Draw(t, "parent"), Seq: maybe(t, Seq(), "parent seq")}
			opening(t, &in)
		}
		return in
	})
}

// opening draws what an input says of the session that it opens.
func opening(t *rapid.T, in *events.Input) {
	in.Options = Options().Draw(t, "options")
	in.Labels = Labels().Draw(t, "labels")
	in.Cwd = maybe(t, Text(), "cwd")
}

// shown draws content for the model, and the bytes of its images.
func shown(t *rapid.T) ([]events.Block, [][]byte) {
	content := some(t, Block(events.BlockText, events.BlockImage), 1, 4, "content")
	var attachments [][]byte
	for i := range content {
		if content[i].Type != events.BlockImage {
			continue
		}
		data := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "attachment")
		content[i].Object.Digest, content[i].Object.Bytes = objects.Sum(data), int64(len(data))
		attachments = append(attachments, data)
	}
	return content, attachments
}
