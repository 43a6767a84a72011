package fold_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/dumb"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// view is everything that a state says, as values.
type view struct {
	Seq            uint64
	Head           events.Hash
	Created        events.SessionCreated
	Closed         bool
	Title          string
	Claim          events.LoopClaimed
	ClaimSeq       uint64
	Inputs         []string
	Floor          uint64
	Prompted       bool
	Cancelled      events.TurnCancelled
	Owed           []fold.OwedContext
	Sections       []events.Message
	Compaction     fold.Compaction
	TitleAttempt   int64
	Retry          events.LLMRetry
	RetryTime      int64
	Usage          events.Usage
	UsageSeq       uint64
	LastRequest    events.SurfacePosition
	Boundary       bool
	Seeding        [2]uint64
	Images         []events.ImageShown
	ImagesOver     int64
	Options        events.Options
	Seed           events.Config
	Header         events.Header
	HeaderSeq      uint64
	Context        events.RequestContext
	ContextSeq     uint64
	Turn, Step     int64
	TurnOpen       bool
	StepOpen       bool
	Attempt        int64
	Answered       bool
	Finish         events.Finish
	Calls          int
	Failure        events.Failure
	Entered        int64
	Call           events.LLMStream
	CallSeq        uint64
	CallContent    []events.Block
	CallUsage      events.Usage
	CallChunks     []uint64
	Tools          []fold.PendingTool
	Position       events.SurfacePosition
	Nodes          []uint64
	Messages       []events.Message
	NewObjects     []objects.Ref
	RequestHeader  events.Header
	RequestSurface events.SurfacePosition
}

func viewOf(s *fold.State) view {
	v := view{
		Seq: s.Seq(), Head: s.Head(), Closed: s.Closed(), Title: s.Title(), Inputs: inputsOf(s), Floor: s.Floor(), Options: s.Options(),
		Seed: s.ConfigSeed(events.Options{Provider: "p", Model: "m"}), Attempt: s.Attempt(), Answered: s.Answered(), Entered: s.Entered(),
		Tools: s.PendingTools(), Position: s.Position(), Nodes: s.Nodes(), Messages: listOf(s.Messages()), NewObjects: s.NewObjects(),
		Prompted: s.Prompted(), Owed: s.Owed(), TitleAttempt: s.TitleAttempt(), Boundary: s.AtBoundary(), ImagesOver: s.Images().Generation(),
	}
	v.Cancelled, _ = s.Cancelled()
	for _, name := range []string{"time", "files"} {
		if m, ok := s.RetainedContext(name); ok {
			v.Sections = append(v.Sections, m)
		}
	}
	v.Compaction, _ = s.Compaction()
	v.Retry, v.RetryTime, _ = s.PendingRetry()
	v.Usage, v.UsageSeq = s.Usage()
	v.LastRequest, _ = s.LastRequest()
	v.Seeding[0], v.Seeding[1], _ = s.Seeding()
	for _, m := range v.Messages {
		for _, b := range m.Content {
			for _, c := range append(slices.Clone(b.Content), b) {
				if shown, ok := s.Images().Shown(c.Object.Digest); ok {
					v.Images = append(v.Images, shown)
				}
			}
		}
	}
	v.Created, _ = s.Created()
	v.Finish, v.Calls, v.Failure = s.Outcome()
	v.Claim, v.ClaimSeq = s.Claim()
	v.Header, v.HeaderSeq = s.Header()
	v.Context, v.ContextSeq = s.Context()
	v.Turn, v.TurnOpen = s.Turn()
	v.Step, v.StepOpen = s.Step()
	if stream, seq, answer, chunks, ok := s.OpenCall(); ok {
		v.Call, v.CallSeq, v.CallChunks = stream, seq, chunks
		v.CallContent, v.CallUsage = answer.Content(), answer.Usage
	}
	if r, err := s.Request(); err == nil {
		v.RequestHeader, v.RequestSurface = r.Header, r.Surface
	}
	return v
}

// inputsOf says of the first places of the inbox what the state says of them.
func inputsOf(s *fold.State) []string {
	var out []string
	for seq := uint64(1); seq < 40; seq++ {
		claim := foldtest.ClaimAt(seq)
		place, id := events.Claim{InboxSeq: seq}, events.Claim{InputID: claim.InputID}
		out = append(out, fmt.Sprintf("%d: claimed %t, place %t, id %t; passed over as a turn's %t, as a step's %t",
			seq, s.Claimed(claim), s.Claimed(place), s.Claimed(id), s.PassedOver(seq, false), s.PassedOver(seq, true)))
	}
	return out
}

// everything is what the properties are checked on.
func everything() foldtest.Options { return foldtest.Options{Images: true, Forks: true} }

// stateOf returns an empty state for the log.
func stateOf(log []events.Event) *fold.State {
	return fold.New(log[0].Body.(*events.SessionCreated).Session)
}

func listOf(m fold.Messages) []events.Message {
	var out []events.Message
	for _, message := range m.All() {
		out = append(out, message)
	}
	return out
}

// diff is cmp.Diff with a short way for what is equal, which nearly everything is.
func diff[T any](want, got T) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

func apply(t interface {
	Helper()
	Fatal(args ...any)
}, s *fold.State, log []events.Event,
) {
	t.Helper()
	for i := range log {
		if err := s.Apply(&log[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPrefixes folds a log event by event and asks everything at every prefix: whatever pieces a log is folded in, and
// whoever asks in between, the state is that of the whole.
func TestPrefixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, everything())
		asked := stateOf(log)
		for i := range log {
			apply(t, asked, log[i:i+1])
			got := viewOf(asked)
			whole := stateOf(log)
			apply(t, whole, log[:i+1])
			if d := diff(viewOf(whole), got); d != "" {
				t.Fatalf("after event %d (-whole +asked in between):\n%s", i+1, d)
			}
		}
	})
}

// TestDumbAnswer compares the answers of every model call with those of the dumb fold.
func TestDumbAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, everything())
		s := stateOf(log)
		var chunks []events.Chunk
		for i := range log {
			apply(t, s, log[i:i+1])
			switch b := log[i].Body.(type) {
			case *events.LLMStream:
				chunks = nil
			case *events.AssistantChunk:
				chunks = append(chunks, b.Chunks...)
			case *events.AssistantMessage:
				if d := diff(dumb.Answer(chunks), b.Message.Content); d != "" {
					t.Fatalf("event %d (-dumb +logged):\n%s", i+1, d)
				}
			case *events.CompactionSummary:
				texts := slices.DeleteFunc(dumb.Answer(chunks), func(b events.Block) bool { return b.Type != events.BlockText })
				if d := diff(texts, b.Summary); d != "" && len(log[i].Sources) > 0 {
					t.Fatalf("event %d (-dumb +logged):\n%s", i+1, d)
				}
			}
			if _, _, answer, _, ok := s.OpenCall(); ok {
				if d := diff(dumb.Answer(chunks), answer.Content()); d != "" {
					t.Fatalf("after event %d (-dumb +fold):\n%s", i+1, d)
				}
			}
		}
	})
}

// TestStored folds what was stored: encoding and decoding change nothing.
func TestStored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, everything())
		s := stateOf(l.Events)
		for i, payload := range l.Payloads {
			e, err := events.Decode(payload)
			if err != nil {
				t.Fatal(err)
			}
			again, err := events.Encode(&e)
			if err != nil || !slices.Equal(again, payload) {
				t.Fatalf("event %d changed (%v):\n%s\n%s", i+1, err, payload, again)
			}
			if err := s.Apply(&e); err != nil {
				t.Fatal(err)
			}
		}
		if d := diff(viewOf(l.State), viewOf(s)); d != "" {
			t.Fatalf("(-made +stored):\n%s", d)
		}
	})
}

// TestHistoryIsSafe changes everything that a state hands out, at every prefix; the state must not notice. It is
// compared with one that shares no memory with it.
func TestHistoryIsSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, foldtest.Options{MaxTurns: 2, Images: true, Forks: true})
		s, clean := stateOf(l.Events), stateOf(l.Events)
		for i, payload := range l.Payloads {
			apply(t, s, l.Events[i:i+1])
			e, err := events.Decode(payload)
			if err != nil {
				t.Fatal(err)
			}
			if err := clean.Apply(&e); err != nil {
				t.Fatal(err)
			}
			spoil(s)
			if m, ok := fold.MessageOf(&l.Events[i]); ok {
				spoilMessage(&m)
			}
			if d := diff(viewOf(clean), viewOf(s)); d != "" {
				t.Fatalf("after event %d (-clean +after what was handed out was changed):\n%s", i+1, d)
			}
		}
	})
}

func spoil(s *fold.State) {
	spoilMessages := func(m fold.Messages) {
		for i := range m.Len() {
			message := m.At(i)
			spoilMessage(&message)
		}
		for _, message := range m.All() {
			spoilMessage(&message)
		}
	}
	spoilMessages(s.Messages())
	if r, err := s.Request(); err == nil {
		spoilMessages(r.Messages)
		spoilHeader(&r.Header)
	}
	if nodes := s.Nodes(); len(nodes) > 0 {
		title := events.LLMStream{Auxiliary: &events.Auxiliary{
			Config: foldtest.AuxConfig(), Region: events.Region{Start: nodes[0], End: nodes[len(nodes)-1]},
			Directive: []events.Block{events.Text("Name this.")},
		}}
		clear(s.ObjectsOf(&title))
		if r, err := s.RequestOf(&title); err == nil {
			spoilMessages(r.Messages)
			spoilHeader(&r.Header)
		}
	}
	h, _ := s.Header()
	spoilHeader(&h)
	created, _ := s.Created()
	clear(created.Labels)
	for _, o := range []events.Options{created.Options, s.Options()} {
		clear(o.Stop)
		clear(o.Tools)
	}
	clear(s.ConfigSeed(events.Options{}).Stop)
	clear(s.Nodes())
	clear(s.NewObjects())
	clear(s.PendingTools())
	clear(s.Owed())
	if c, ok := s.Compaction(); ok {
		clear(c.Summary.Shadowed)
		clear(c.Summary.Summary)
	}
	for _, name := range []string{"time", "files"} {
		if m, ok := s.RetainedContext(name); ok {
			spoilMessage(&m)
		}
	}
	if stream, _, answer, chunks, ok := s.OpenCall(); ok {
		clear(stream.Objects)
		if a := stream.Auxiliary; a != nil {
			clear(a.Directive)
			clear(a.Config.Stop)
			*a = events.Auxiliary{}
		}
		clear(chunks)
		clear(answer.Content())
		// What is added to the copy must not reach the call. The errors do not matter: it may be finished.
		_ = answer.Add(&events.Chunk{Type: events.ChunkTextDelta, Texts: []string{"spoiled"}})
		_ = answer.Add(&events.Chunk{Type: events.ChunkBlockEnd})
		_ = answer.Add(&events.Chunk{Type: events.ChunkUsage, Usage: events.Usage{OutputTokens: 1 << 20}})
		_ = answer.Add(&events.Chunk{Type: events.ChunkFinish, Finish: events.Finish{Kind: events.FinishAborted}})
	}
}

func spoilMessage(m *events.Message) {
	for i := range m.Content {
		clear(m.Content[i].Content)
	}
	clear(m.Content)
	*m = events.Message{}
}

func spoilHeader(h *events.Header) {
	clear(h.Tools)
	clear(h.Config.Stop)
	*h = events.Header{}
}

// TestMessagesStay takes the messages at every prefix and looks at them again when the log has gone on.
func TestMessagesStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := foldtest.Generate(t, everything())
		s := stateOf(log)
		type taken struct {
			value fold.Messages
			list  []events.Message
			at    events.SurfacePosition
		}
		var all []taken
		for i := range log {
			apply(t, s, log[i:i+1])
			all = append(all, taken{s.Messages(), listOf(s.Messages()), s.Position()})
		}
		last := all[len(all)-1]
		for i, m := range all {
			if d := diff(m.list, listOf(m.value)); d != "" {
				t.Fatalf("those after event %d changed (-then +now):\n%s", i+1, d)
			}
			if m.at.Generation == last.at.Generation && !last.value.Extends(m.value) {
				t.Errorf("the last messages do not extend those after event %d", i+1)
			}
			if len(m.list) > 0 && m.at.Generation != last.at.Generation && last.value.Extends(m.value) {
				t.Errorf("the last messages extend those after event %d, of another generation", i+1)
			}
			if m.value.Extends(last.value) && len(m.list) < len(last.list) {
				t.Errorf("those after event %d extend longer ones", i+1)
			}
			from := m.value.Len() / 2
			for k, message := range m.value.From(from) {
				if d := diff(m.list[k], message); d != "" || k < from {
					t.Fatalf("From(%d) yields at %d:\n%s", from, k, d)
				}
			}
		}
	})
}

func TestMessagesStopEarly(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	l.Turn("a", "b")
	n := 0
	for range l.State.Messages().All() {
		n++
		break
	}
	if n != 1 {
		t.Errorf("the loop ran %d times, want 1", n)
	}
}

// TestMessageOf shows which events show the model a message.
func TestMessageOf(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.User("hello")
	l.Header(foldtest.Header())
	empty := l.Reply(events.FinishMaxTokens, foldtest.CallBlock(0, "call-1", "read", `{"pa`))
	l.StepEnd()
	l.StepStart()
	full := l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call-1", "read", `{}`))
	l.ToolCall()
	result := l.ToolResult(events.Text("out"))
	want := map[uint64]bool{5: true, full: true, result: true}
	for i := range l.Events {
		m, ok := fold.MessageOf(&l.Events[i])
		if ok != want[uint64(i+1)] {
			t.Errorf("MessageOf(event %d, %s) = %v, %t", i+1, l.Events[i].Type(), m, ok)
		}
	}
	if nodes := l.State.Nodes(); !slices.Equal(nodes, []uint64{5, empty, full, result}) {
		t.Errorf("nodes %v", nodes)
	}
	if n := l.State.Messages().Len(); n != 3 {
		t.Errorf("%d messages, want 3: the empty answer stands on the surface and shows nothing", n)
	}
}
