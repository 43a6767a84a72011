package project_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestAccounting holds the faults that such counts have had elsewhere.
func TestAccounting(t *testing.T) {
	full := events.Usage{
		InputTokens: 100, CacheReported: true, CacheReadTokens: 640, CacheWriteTokens: 50, CacheWrite1hTokens: 7,
		OutputTokens: 30, ReasoningTokens: 20,
	}
	want := &project.Usage{
		InputUncached: 100, CacheRead: 640, CacheWrite5m: 50, CacheWrite1h: 7, Output: 30, Reasoning: 20, CacheReported: true,
	}
	text := foldtest.TextBlock(0, "A")
	step := func(build func(*script)) project.Record {
		s := newScript()
		s.Begin()
		s.ask()
		build(s)
		s.end()
		return records(t, s.Log, project.Options{})[0]
	}
	answer := func(chunks ...events.Chunk) func(*script) {
		return func(s *script) {
			s.Header(s.header)
			s.Reply(events.FinishStop, text, chunks)
		}
	}
	t.Run("the counts are disjoint and kept apart", func(t *testing.T) {
		r := step(answer(foldtest.UsageChunk(full)))
		if diff := cmp.Diff(want, r.Usage); diff != "" {
			t.Error(diff)
		}
		if n := r.Usage.TotalInput(); n != 797 {
			t.Errorf("%d input tokens", n)
		}
		if ratio, ok := r.HitRatio(); !ok || ratio != 640.0/797 {
			t.Errorf("hit ratio %v, %t", ratio, ok)
		}
	})
	t.Run("a later figure replaces, it does not add", func(t *testing.T) {
		early := full
		early.OutputTokens, early.ReasoningTokens = 1, 0
		r := step(answer(foldtest.UsageChunk(early), foldtest.UsageChunk(full)))
		if diff := cmp.Diff(want, r.Usage); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("no usage at all", func(t *testing.T) {
		r := step(answer())
		if _, ok := r.HitRatio(); ok || r.Usage != nil || r.Cause != project.CauseFirstRequest {
			t.Errorf("%+v", r)
		}
	})
	t.Run("zero input", func(t *testing.T) {
		r := step(answer(foldtest.UsageChunk(events.Usage{CacheReported: true})))
		if _, ok := r.HitRatio(); ok || r.Usage == nil {
			t.Errorf("%+v", r)
		}
	})
	t.Run("clamped figures are marked", func(t *testing.T) {
		r := step(answer(foldtest.UsageChunk(events.Usage{InputTokens: 5, Clamped: true})))
		if !r.Usage.Clamped || r.Usage.CacheReported {
			t.Errorf("%+v", r.Usage)
		}
	})
	t.Run("a failed attempt that cost something", func(t *testing.T) {
		r := step(func(s *script) {
			s.fail(events.FailureTransport, append(text, foldtest.UsageChunk(full))...)
			s.Retry()
			s.fail(events.FailureServer)
			s.Retry()
			s.reply(usage(3, 700))
		})
		var got []*project.Usage
		for _, a := range r.Attempts {
			got = append(got, a.Usage)
		}
		if diff := cmp.Diff([]*project.Usage{want, nil, nil}, got); diff != "" {
			t.Error(diff)
		}
		if r.Usage.TotalInput() != 703 || r.Failure != "" || r.Finish != events.FinishStop || r.ExpectedTokens != 768 || r.Cause != project.CauseProviderMiss {
			t.Errorf("%+v", r)
		}
	})
	t.Run("the failure's own figure replaces the chunk's", func(t *testing.T) {
		r := step(func(s *script) {
			s.Header(s.header)
			s.Stream()
			s.Chunks(foldtest.UsageChunk(usage(1, 2)))
			s.Append(&events.LLMFailed{
				Turn: 1, Step: 1, Attempt: 1, Failure: events.Failure{Message: "no", Code: events.FailureServer}, Usage: full, UsageReported: true,
			})
		})
		if diff := cmp.Diff(want, r.Attempts[0].Usage); diff != "" {
			t.Error(diff)
		}
		if r.Usage != nil || r.Failure != events.FailureServer {
			t.Errorf("%+v", r)
		}
	})
	t.Run("calls that were dropped are not counted", func(t *testing.T) {
		r := step(func(s *script) {
			s.Header(s.header)
			s.Reply(events.FinishMaxTokens, text, foldtest.CallBlock(1, "c", "read", `{"pa`))
		})
		if r.ToolCalls != 0 || r.Finish != events.FinishMaxTokens {
			t.Errorf("%+v", r)
		}
	})
}

// TestGeneratedLogs checks records against a second, dumb reading of the log.
func TestGeneratedLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := foldtest.GenerateLog(t, foldtest.Options{Body: realBody})
		checkLog(t, l)
	})
}

// checker is what rapid and testing have in common here.
type checker interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

func checkLog(t checker, l *foldtest.Log) {
	t.Helper()
	s := project.NewSession(l.State.ID(), project.Options{})
	state := fold.New(l.State.ID())
	var got []project.Record
	var want, sum project.Usage // of all answers: the loop's and the auxiliary calls'
	var ends, calls int
	var aux *events.LLMStream // the open auxiliary call
	var auxUsage *project.Usage
	own := uint64(0) // what comes behind this is the session's own
	var previous, body codec.Body
	prefixes := map[uint64]int64{}
	for i := range l.Payloads {
		e, err := events.Decode(l.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		switch b := e.Body.(type) {
		case *events.SessionCreated:
			own = b.SeedLength + 1
		case *events.LLMStream:
			if aux, auxUsage = b, nil; b.Auxiliary != nil {
				break
			}
			aux = nil
			req, err := state.Request()
			if err != nil {
				t.Fatal(err)
			}
			previous, body = body, fullBody(&req, l.Objects)
			if calls > 0 {
				prefixes[e.Seq] = codec.CommonPrefix(&previous, &body)
			} else {
				prefixes[e.Seq] = 0
			}
			calls++
		case *events.AssistantMessage:
			addUsage(&want, project.UsageOf(b.Usage, b.UsageReported))
		case *events.AssistantChunk:
			for i := range b.Chunks {
				if c := &b.Chunks[i]; c.Type == events.ChunkUsage {
					auxUsage = project.UsageOf(c.Usage, true)
				}
			}
		case *events.LLMFailed, *events.SessionTitle, *events.CompactionSummary:
			if aux == nil || e.Type() == events.TypeSessionTitle && aux.Purpose != events.PurposeTitle {
				break
			}
			if ends++; e.Type() != events.TypeLLMFailed {
				addUsage(&want, auxUsage)
			}
			aux = nil
		case *events.StepEnd:
			ends++
		}
		copied, err := events.Decode(l.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := state.Apply(&copied); err != nil {
			t.Fatal(err)
		}
		r, err := s.Apply(&e, l.Objects)
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			got = append(got, *r)
		}
		if e.Seq == own { // what was copied costs the parent
			ends, want = 0, project.Usage{}
		}
	}
	if len(got) != ends {
		t.Errorf("%d records of %d steps and auxiliary calls", len(got), ends)
	}
	for i := range got {
		r := &got[i]
		addUsage(&sum, r.Usage)
		b, err := project.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := project.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*r, again); diff != "" {
			t.Errorf("%s", diff)
		}
		for _, a := range r.Attempts {
			if a.Unbuilt != project.Built {
				t.Errorf("request of event %d: %s", a.Stream, a.Unbuilt)
			}
			if r.Purpose == "" && a.Prefix.Bytes != prefixes[a.Stream] {
				t.Errorf("request of event %d: prefix of %d bytes, want %d", a.Stream, a.Prefix.Bytes, prefixes[a.Stream])
			}
		}
	}
	if sum != want {
		t.Errorf("sum of the records %+v, of the log's messages %+v", sum, want)
	}
}

func addUsage(sum, u *project.Usage) {
	if u == nil {
		return
	}
	sum.InputUncached += u.InputUncached
	sum.CacheRead += u.CacheRead
	sum.CacheWrite5m += u.CacheWrite5m
	sum.CacheWrite1h += u.CacheWrite1h
	sum.Output += u.Output
	sum.Reasoning += u.Reasoning
}

// TestObjects: an llm/stream lists what an unbroken request needs; a broken one asks for everything again, and nothing
// is lost by trying without.
func TestObjects(t *testing.T) {
	s := newScript()
	s.Begin()
	s.TurnStart()
	s.StepStart()
	s.UserBlocks(s.TextObject("a large text"))
	s.reply(usage(700, 0))
	s.end()
	s.turn(usage(100, 640))
	s.header.System += "!"
	s.turn(usage(740, 0))
	p := project.NewSession(s.State.ID(), project.Options{})
	var missing []uint64
	var got []project.Record
	for i := range s.Payloads {
		e, err := events.Decode(s.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Apply(&e, nothing{})
		if errors.Is(err, codec.ErrMissingObject) {
			missing = append(missing, e.Seq)
			if refs := p.Objects(); len(refs) == 0 || refs[0].Bytes != 12 {
				t.Errorf("objects %v", refs)
			}
			r, err = p.Apply(&e, s.Objects)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r != nil {
			got = append(got, *r)
		}
	}
	if len(missing) != 2 {
		t.Errorf("objects were needed at events %v; want the first request and the one with another system prompt", missing)
	}
	if diff := cmp.Diff(records(t, s.Log, project.Options{}), got); diff != "" {
		t.Error(diff)
	}
}

// TestUnbuilt: what cannot be rebuilt is said to be so, and the log's own facts still give the cause.
func TestUnbuilt(t *testing.T) {
	s := newScript()
	s.Body = foldtest.NoBody
	s.Begin()
	s.turn(usage(700, 0))
	s.Body = realBody
	s.turn(usage(100, 640))
	s.header.System += "!"
	s.Body = func(*fold.Request, objects.Source) (string, events.BodyDigest) {
		return codec.DeepSeekChat1, events.BodyDigest{Bytes: 7}
	}
	s.turn(usage(740, 0))
	s.Body = realBody
	s.turn(usage(100, 704))
	s.turn(usage(100, 768))
	rs := records(t, s.Log, project.Options{})
	var got []project.Unbuilt
	for i := range rs {
		got = append(got, rs[i].Last().Unbuilt)
	}
	want := []project.Unbuilt{project.UnbuiltCodec, project.UnbuiltPredecessor, project.UnbuiltMismatch, project.UnbuiltPredecessor, project.Built}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]project.Cause{project.CauseFirstRequest, project.CauseNone, project.CauseSystem, project.CauseNone, project.CauseNone}, causes(rs)); diff != "" {
		t.Error(diff)
	}
}

// TestManyAttempts: a step that was tried without end still fits into a record.
func TestManyAttempts(t *testing.T) {
	s := newScript()
	s.Begin()
	s.ask()
	for range project.MaxAttempts + 5 {
		s.fail(events.FailureServer)
		s.Retry()
	}
	s.reply(usage(700, 0))
	s.end()
	r := records(t, s.Log, project.Options{})[0]
	if len(r.Attempts) != project.MaxAttempts || r.Omitted != 6 || r.Last().Failure != "" || r.Attempts[0].Stream > r.Attempts[1].Stream-10 {
		t.Errorf("%d attempts, %d omitted, last %+v", len(r.Attempts), r.Omitted, r.Last())
	}
}
