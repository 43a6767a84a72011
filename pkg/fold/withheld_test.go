package fold_test

import (
	"fmt"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// refold folds the events of the log again, changed; those for which change returns true stand without their content.
func refold(t *testing.T, l *foldtest.Log, change func(e *events.Event) (withheld bool)) error {
	t.Helper()
	s := fold.New(l.State.ID())
	var prev events.Hash
	for _, payload := range l.Payloads {
		e, err := events.Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		e.Prev = prev
		if change(&e) {
			e.StandFor(events.HashPayload(payload))
		} else if _, err := events.Encode(&e); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(&e); err != nil {
			return err
		}
		prev, _ = e.Hash()
	}
	return nil
}

// TestWithheldPrompt: a text of the form of a commitment is one only where the event that has it is without its content.
func TestWithheldPrompt(t *testing.T) {
	const text = "You are a careful assistant."
	marker := events.WithheldText(text)
	type side struct {
		text     string
		object   bool
		withheld bool
	}
	says := func(s side) string { // what the stored event says
		if s.withheld && s.text == marker {
			return text
		}
		return s.text
	}
	sides := []side{{text, false, false}, {marker, false, false}, {marker, false, true}, {text, true, false}, {text, true, true}, {events.WithheldText(marker), false, true}}
	put := func(s side, inline *string, object *objects.Ref) bool {
		*inline, *object = s.text, objects.Ref{}
		if s.object {
			*inline, *object = "", objects.Ref{Digest: objects.Sum([]byte(s.text)), Bytes: int64(len(s.text)), MediaType: events.TextMediaType}
		}
		return s.withheld
	}
	for _, later := range []bool{false, true} { // the options come with session/configured
		for _, options := range sides {
			for _, header := range sides {
				for _, other := range []bool{false, true} { // some other event is without its content
					want := says(options) == says(header) || options.text == events.WithheldText(marker) && says(header) == marker ||
						header.text == events.WithheldText(marker) && says(options) == marker
					t.Run(fmt.Sprintf("%v/%v/%v/%v", later, options, header, other), func(t *testing.T) {
						l := foldtest.New()
						l.Created(events.Options{System: text})
						l.Claimed(events.ClaimCreated)
						if later {
							l.Configured(events.Options{System: text})
						}
						l.TurnStart()
						l.StepStart()
						l.User("hello")
						l.Header(foldtest.Header())
						err := refold(t, l, func(e *events.Event) bool {
							switch b := e.Body.(type) {
							case *events.SessionCreated:
								if !later {
									return put(options, &b.Options.System, &b.Options.SystemObject)
								}
							case *events.SessionConfigured:
								return put(options, &b.Options.System, &b.Options.SystemObject)
							case *events.RequestHeader:
								return put(header, &b.Header.System, &b.Header.SystemObject)
							case *events.UserMessage:
								return other
							}
							return false
						})
						if want && err != nil || !want && !broke(err, fold.RuleConfig) {
							t.Errorf("same: %t, got %v", want, err)
						}
					})
				}
			}
		}
	}
}
