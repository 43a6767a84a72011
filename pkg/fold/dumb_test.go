package fold_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/dumb"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// checker is what the comparisons need of a test.
type checker interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// TestDumb compares the fold with the dumb one at every prefix, and the request of every model call.
func TestDumb(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, everything())
		s := stateOf(log)
		for i := range log {
			request, err := requestBefore(s, &log[i])
			if err != nil {
				t.Fatal(err)
			}
			compareRequest(t, log[:i], &log[i], request)
			apply(t, s, log[i:i+1])
			compareDumb(t, log[:i+1], s)
		}
	})
}

// compareDumb compares what the state says of the log with what the dumb fold says.
func compareDumb(t checker, log []events.Event, s *fold.State) {
	t.Helper()
	want, err := dumb.Fold(log)
	if err != nil {
		t.Fatal(err)
	}
	got := dumb.View{
		Nodes: s.Nodes(), Surface: s.Position(), Messages: listOf(s.Messages()), NewObjects: s.NewObjects(),
		Images: want.Images, ImagesOver: s.Images().Generation(), Inputs: want.Inputs,
		Sections: want.Sections,
	}
	got.Header, got.HeaderSeq = s.Header()
	got.Turn, _ = s.Turn()
	got.Step, _ = s.Step()
	for _, o := range s.Owed() {
		got.Owed = append(got.Owed, dumb.Owed{AddedContext: o.AddedContext, Result: o.Result})
	}
	if d := diff(want, got); d != "" {
		t.Fatalf("after event %d (-dumb +fold):\n%s", len(log), d)
	}
	for _, image := range want.Images {
		if shown, ok := s.Images().Shown(image.Image); !ok || shown != image {
			t.Fatalf("after event %d: image %s is shown as %+v, want %+v", len(log), image.Image, shown, image)
		}
	}
	compareSections(t, log, want.Sections, s)
	compareInputs(t, len(log), want.Inputs, s)
	request, err := s.Request()
	if (err == nil) != (want.HeaderSeq > 0) {
		t.Fatalf("after event %d: Request: %v", len(log), err)
	}
	if err != nil {
		return
	}
	if d := diff(want.Messages, listOf(request.Messages)); d != "" || request.HeaderSeq != want.HeaderSeq ||
		request.Surface != want.Surface || !request.Header.Equal(&want.Header) {
		t.Fatalf("after event %d, request (-dumb +fold):\n%s", len(log), d)
	}
}

// compareSections asks for every context that the log names.
func compareSections(t checker, log []events.Event, want []events.Message, s *fold.State) {
	t.Helper()
	for i := range log {
		b, ok := log[i].Body.(*events.UserMessage)
		if !ok || b.Message.Source.Kind != events.SourceContext {
			continue
		}
		name := b.Message.Source.Plugin
		got, ok := s.RetainedContext(name)
		k := slices.IndexFunc(want, func(m events.Message) bool { return m.Source.Plugin == name })
		if ok != (k >= 0) {
			t.Fatalf("after event %d: context %q is retained: %t", len(log), name, ok)
		}
		if ok && diff(want[k], got) != "" {
			t.Fatalf("after event %d: context %q is %+v, want %+v", len(log), name, got, want[k])
		}
	}
}

func compareInputs(t checker, n int, want dumb.Inputs, s *fold.State) {
	t.Helper()
	highest := max(want.Turn, want.Step, want.Floor)
	for _, c := range want.Claims {
		if !s.Claimed(events.Claim{InboxSeq: c.InboxSeq}) || !s.Claimed(events.Claim{InputID: c.InputID}) {
			t.Fatalf("after event %d: input %d (%s) is not claimed", n, c.InboxSeq, c.InputID)
		}
		highest = max(highest, c.InboxSeq)
	}
	if s.Floor() != want.Floor {
		t.Fatalf("after event %d: floor %d, want %d", n, s.Floor(), want.Floor)
	}
	for _, seq := range []uint64{1, want.Turn, want.Turn + 1, want.Step, want.Step + 1, highest, highest + 1} {
		if seq == 0 {
			continue
		}
		claimed := slices.ContainsFunc(want.Claims, func(c events.Claim) bool { return c.InboxSeq == seq })
		if s.Claimed(events.Claim{InboxSeq: seq}) != claimed || s.PassedOver(seq, false) != (seq <= want.Turn) || s.PassedOver(seq, true) != (seq <= want.Step) {
			t.Fatalf("after event %d: input %d: claimed %t, passed over %t, %t; want %+v", n, seq,
				s.Claimed(events.Claim{InboxSeq: seq}), s.PassedOver(seq, false), s.PassedOver(seq, true), want)
		}
	}
}

// calledFor is what a state says of the model call that stands next.
type calledFor struct {
	request fold.Request
	objects []objects.Ref
}

// requestBefore returns what the state says of the call that e permits, nothing when e is no llm/stream.
func requestBefore(s *fold.State, e *events.Event) (calledFor, error) {
	b, ok := e.Body.(*events.LLMStream)
	if !ok {
		return calledFor{}, nil
	}
	r, err := s.RequestOf(b)
	return calledFor{r, s.ObjectsOf(b)}, err
}

// compareRequest compares the request of the model call that e permits behind log.
func compareRequest(t checker, log []events.Event, e *events.Event, c calledFor) {
	t.Helper()
	b, ok := e.Body.(*events.LLMStream)
	if !ok {
		return
	}
	want, err := dumb.RequestOf(log, b)
	if err != nil {
		t.Fatal(err)
	}
	messages := listOf(c.request.Messages)
	if last := len(messages) - 1; b.Auxiliary != nil && last >= 0 {
		messages[last].ID, messages[last].Source = "", events.Source{}
	}
	if d := diff(want, dumb.Request{Header: c.request.Header, Messages: messages, Objects: c.objects}); d != "" {
		t.Fatalf("request of event %d (-dumb +fold):\n%s", e.Seq, d)
	}
}

// TestSettled loses the worker behind every event of a log, and cancels there: whatever is open, the next worker can
// close it, go on with another turn and close the session.
func TestSettled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, foldtest.Options{MaxTurns: 1, Images: true, Forks: true})
		for n := 1; n <= len(l.Events); n++ {
			for _, cancel := range []bool{false, true} {
				p := l.Prefix(n)
				_, _, seeding := p.State.Seeding()
				if seeding || p.State.Closed() {
					continue
				}
				p.Claimed(events.ClaimTakeover)
				if cancel {
					p.Cancel("user", false)
				}
				p.Settle()
				if !p.State.AtBoundary() {
					t.Fatalf("after event %d (cancelled: %t) it settled, but not at a boundary", n, cancel)
				}
				if r, _, ok := p.State.PendingRetry(); ok {
					t.Fatalf("after event %d (cancelled: %t): retry %+v is still scheduled", n, cancel, r)
				}
				p.Turn("go", "on")
				p.Closed("done")
			}
		}
	})
}
