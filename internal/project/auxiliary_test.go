package project_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// title is a call for a title that costs u.
func (s *script) title(u events.Usage) {
	s.Header(s.header)
	s.AuxStream(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	s.Chunks(append(foldtest.TextBlock(0, "A file"), foldtest.UsageChunk(u), foldtest.FinishChunk(events.FinishStop))...)
	s.TitleOfCall("A file")
}

// compact replaces the first n nodes by a summary; its first call fails, its second costs u.
func (s *script) compact(n int, u events.Usage) {
	nodes := s.State.Nodes()
	region := events.Region{Start: nodes[0], End: nodes[n-1]}
	s.CompactionStart(events.CompactionPressure)
	s.Header(s.header)
	s.AuxStream(events.PurposeCompaction, region, events.Text("Summarise this."))
	s.Chunks(foldtest.UsageChunk(usage(5, 0)))
	s.Failed(events.FailureServer)
	s.Retry()
	s.AuxStream(events.PurposeCompaction, region, events.Text("Summarise this."))
	s.Chunks(append(foldtest.TextBlock(0, "A file."), foldtest.UsageChunk(u), foldtest.FinishChunk(events.FinishStop))...)
	s.SummaryOfCall()
	s.PutSummary()
	s.CompactionEnd(events.CompactionCompleted)
}

// loop returns the records of steps.
func loop(rs []project.Record) (out []project.Record) {
	for _, r := range rs {
		if r.Purpose == "" {
			out = append(out, r)
		}
	}
	return out
}

func TestAuxiliaryRecords(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	s.title(usage(30, 0))
	s.turn(usage(100, 640))
	s.TurnStart()
	s.compact(2, usage(300, 640))
	s.StepStart()
	s.User("And now?")
	s.reply(usage(400, 192))
	s.end()
	var got []project.Record
	for _, r := range records(t, s.Log, project.Options{}) {
		if r.Purpose != "" {
			got = append(got, r)
		}
	}
	ms := int64(17)
	aux := func(r project.Record) project.Record {
		stream := s.Events[r.Attempts[0].Stream-1].Body.(*events.LLMStream)
		r.V, r.Session, r.Provider, r.Model, r.Codec = project.Version, foldtest.SessionID, "deepseek", "deepseek-chat", codec.DeepSeekChat1
		r.Time = s.Events[r.Seq-1].Time
		r.Attempts[0].Bytes, r.Attempts[0].FirstChunkMs, r.Attempts[0].DurationMs = stream.Body.Bytes, &ms, r.DurationMs
		return r
	}
	var at []uint64 // of the auxiliary calls
	for i := range s.Events {
		if b, ok := s.Events[i].Body.(*events.LLMStream); ok && b.Auxiliary != nil {
			at = append(at, uint64(i+1))
		}
	}
	want := []project.Record{
		aux(project.Record{
			Purpose: events.PurposeTitle, Seq: at[0] + 2, DurationMs: 34, Finish: events.FinishStop,
			Usage: project.UsageOf(usage(30, 0), true), Attempts: []project.Attempt{{Stream: at[0], Messages: 1}},
		}),
		aux(project.Record{
			Purpose: events.PurposeCompaction, Turn: 3, Seq: at[1] + 2, DurationMs: 34, Failure: events.FailureServer,
			Attempts: []project.Attempt{{Stream: at[1], Messages: 3, Failure: events.FailureServer, Usage: project.UsageOf(usage(5, 0), true)}},
		}),
		aux(project.Record{
			Purpose: events.PurposeCompaction, Turn: 3, Seq: at[2] + 2, DurationMs: 34, Finish: events.FinishStop,
			Usage: project.UsageOf(usage(300, 640), true), Attempts: []project.Attempt{{Stream: at[2], Messages: 3}},
		}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAuxiliaryCallsDisturbNothing compares the records of the steps with and without auxiliary calls between them.
func TestAuxiliaryCallsDisturbNothing(t *testing.T) {
	build := func(title bool) []project.Record {
		s := newScript()
		s.Begin()
		for i := range int64(4) {
			s.ask()
			s.reply(usage(100, 640*i))
			if s.StepEnd(); title {
				s.title(usage(10_000, 0))
			} else {
				s.Title("A file")
			}
			s.TurnEnd(events.TurnCompleted)
		}
		return loop(records(t, s.Log, project.Options{}))
	}
	with, without := build(true), build(false)
	for _, rs := range [][]project.Record{with, without} {
		for i := range rs { // events are 17 ms apart, so more of them take longer
			rs[i].Seq, rs[i].Time, rs[i].GapMs, rs[i].Attempts[0].Stream = 0, 0, 0, 0
		}
	}
	if diff := cmp.Diff(without, with); diff != "" {
		t.Error(diff)
	}
}

func TestCausesOfTheWholeLoop(t *testing.T) {
	const (
		first = project.CauseFirstRequest
		none  = project.CauseNone
	)
	image := func(s *script) events.Block { return s.ImageBlock([]byte("an image"), 4, 3) }
	for name, tt := range map[string]struct {
		build func(s *script)
		want  []project.Cause
	}{
		"compaction with a call": {func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(100, 640))
			s.compact(2, usage(300, 640))
			s.turn(usage(400, 192))
			s.turn(usage(100, 576))
		}, []project.Cause{first, none, project.CauseCompaction, none}},
		"compaction, then a title's call": {func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(100, 640))
			s.compact(2, usage(300, 640))
			s.title(usage(30, 0))
			s.turn(usage(400, 192))
		}, []project.Cause{first, none, project.CauseCompaction}},
		"compaction that put nothing in place": {func(s *script) {
			s.turn(usage(700, 0))
			s.CompactionStart(events.CompactionPressure)
			s.Header(s.header)
			nodes := s.State.Nodes()
			s.AuxStream(events.PurposeCompaction, events.Region{Start: nodes[0], End: nodes[1]}, events.Text("Summarise this."))
			s.Failed(events.FailureServer)
			s.CompactionEnd(events.CompactionFailed)
			s.turn(usage(100, 640))
		}, []project.Cause{first, none}},
		"prune, then compaction": {func(s *script) {
			result := s.tool("call-1", usage(700, 0), usage(200, 640))
			s.turn(usage(100, 768))
			s.Prune(result, events.Text("[pruned]"))
			s.compact(4, usage(300, 640))
			s.turn(usage(400, 192))
		}, []project.Cause{first, none, none, project.CauseCompaction}},
		"resume drift behind a title's call": {func(s *script) {
			s.turn(usage(700, 0))
			s.Claimed(events.ClaimResumed)
			s.header.Tools = s.header.Tools[:1]
			s.title(usage(30, 0))
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseResumeDrift}},
		"an image": {func(s *script) {
			s.turn(usage(700, 0))
			s.TurnStart()
			s.StepStart()
			s.UserBlocks(image(s))
			s.Images(foldtest.Placeholder(image(s).Object.Digest, "[image]"))
			s.reply(usage(100, 640))
			s.end()
		}, []project.Cause{first, none}},
		"an image shown in another way": {func(s *script) {
			s.TurnStart()
			s.StepStart()
			s.UserBlocks(image(s))
			s.Images(foldtest.Placeholder(image(s).Object.Digest, "[image]"))
			s.reply(usage(700, 0))
			s.end()
			s.ask()
			s.Images(foldtest.Inline(image(s).Object.Digest, "", s.Object([]byte("smaller"), "image/png")))
			s.reply(usage(740, 0))
			s.end()
			s.turn(usage(100, 704))
		}, []project.Cause{first, project.CauseImages, none}},
		"an image shown in another way to another model": {func(s *script) {
			s.TurnStart()
			s.StepStart()
			s.UserBlocks(image(s))
			s.Images(foldtest.Placeholder(image(s).Object.Digest, "[image]"))
			s.reply(usage(700, 0))
			s.end()
			s.header.Config.Model = "deepseek-vision"
			s.ask()
			s.Header(s.header)
			s.Images(foldtest.File(image(s).Object.Digest, "file-1"))
			s.reply(usage(740, 0))
			s.end()
		}, []project.Cause{first, project.CauseModel}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript()
			s.Begin()
			if tt.build(s); t.Failed() {
				return
			}
			rs := loop(records(t, s.Log, project.Options{}))
			if diff := cmp.Diff(tt.want, causes(rs)); diff != "" {
				t.Error(diff)
			}
			for i := range rs {
				if a := rs[i].Last(); a.Unbuilt != project.Built {
					t.Errorf("step %d: %s", i+1, a.Unbuilt)
				}
			}
		})
	}
}

// TestCancelled: what a cancelled turn cost counts.
func TestCancelled(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	cut := func(finish func()) {
		s.ask()
		s.Header(s.header)
		s.Stream()
		turn, _ := s.State.Turn()
		s.Append(&events.TurnCancelled{Turn: turn, Cause: "user"})
		finish()
		s.StepEnd()
		s.TurnEnd(events.TurnAborted)
	}
	cut(func() {
		s.Chunks(append(foldtest.TextBlock(0, "Half"), foldtest.UsageChunk(usage(100, 640)), foldtest.FinishChunk(events.FinishAborted))...)
		s.Answer()
	})
	cut(func() { s.Failed(events.FailureCancelled) })
	s.turn(usage(160, 704))
	rs := records(t, s.Log, project.Options{})
	want := []project.Cause{project.CauseFirstRequest, project.CauseNone, project.CauseUnreported, project.CauseNone}
	if diff := cmp.Diff(want, causes(rs)); diff != "" {
		t.Error(diff)
	}
	if r := rs[1]; r.Finish != events.FinishAborted || r.Usage.TotalInput() != 740 || r.Failure != "" {
		t.Errorf("cut in the middle of its answer: %+v", r)
	}
	if r := rs[2]; r.Finish != "" || r.Usage != nil || r.Failure != events.FailureCancelled || len(r.Attempts) != 1 {
		t.Errorf("cut before its answer: %+v", r)
	}
}

// TestForkWithAuxiliaryCall: the first request of a fork is its first of the loop.
func TestForkWithAuxiliaryCall(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(500, 0))
	s.title(usage(30, 0))
	s.turn(usage(200, 500))
	f := &script{Log: s.OpenFork(int(s.Len()), events.Options{}), header: s.header}
	f.title(usage(40, 0))
	f.header.Tools = nil
	f.turn(usage(640, 0))
	rs := records(t, f.Log, project.Options{})
	if len(rs) != 2 || rs[0].Purpose != events.PurposeTitle || rs[0].Usage.InputUncached != 40 || rs[1].Cause != project.CauseFork {
		t.Errorf("%+v", rs)
	}
}

func TestAuxiliaryRecordRules(t *testing.T) {
	aux := func() project.Record {
		r := sample()
		r.Purpose, r.Turn, r.Step, r.Cause, r.ExpectedTokens, r.GapMs, r.ToolCalls = events.PurposeTitle, 0, 0, "", 0, 0, 0
		a := r.Attempts[1]
		a.Prefix, a.Reusable, a.Unbuilt = project.Extent{}, project.Extent{}, project.Built
		r.Attempts = []project.Attempt{a}
		return r
	}
	good := aux()
	b, err := project.Encode(&good)
	if err != nil {
		t.Fatal(err)
	}
	again, err := project.Decode(b)
	if diff := cmp.Diff(good, again); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for name, change := range map[string]func(r *project.Record){
		"of a step":             func(r *project.Record) { r.Purpose = "" },
		"the loop's":            func(r *project.Record) { r.Purpose = events.PurposeLoop },
		"another purpose":       func(r *project.Record) { r.Purpose = "moon" },
		"a step without a turn": func(r *project.Record) { r.Step = 1 },
		"no attempt":            func(r *project.Record) { r.Attempts = nil },
		"two attempts":          func(r *project.Record) { r.Attempts = append(sample().Attempts[:1:1], r.Attempts...) },
		"a cause":               func(r *project.Record) { r.Cause = project.CauseNone },
		"tokens expected":       func(r *project.Record) { r.ExpectedTokens = 1 },
		"a gap":                 func(r *project.Record) { r.GapMs = 1 },
		"tool calls":            func(r *project.Record) { r.ToolCalls = 1 },
		"a prefix":              func(r *project.Record) { r.Attempts[0].Prefix.Bytes = 1 },
		"unbuilt":               func(r *project.Record) { r.Attempts[0].Unbuilt = project.UnbuiltMissing },
	} {
		bad := aux()
		change(&bad)
		if _, err := project.Encode(&bad); !errors.Is(err, project.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAuxiliaryMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := project.NewMetrics(reg, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	s.turn(usage(100, 640))
	s.title(usage(30, 0))
	s.compact(2, usage(300, 640))
	rs := records(t, s.Log, project.Options{})
	for i := range rs {
		m.Observe(&rs[i])
	}
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"refold_steps_total", nil, 2},
		{"refold_cache_hit_ratio", nil, 2},
		{"refold_step_duration_seconds", nil, 2},
		{"refold_time_to_first_chunk_seconds", nil, 2},
		{"refold_request_bytes_total", nil, float64(rs[0].Attempts[0].Bytes + rs[1].Attempts[0].Bytes)},
		{"refold_auxiliary_calls_total", []string{"model=deepseek-chat", "purpose=title"}, 1},
		{"refold_auxiliary_calls_total", []string{"purpose=compaction", "provider=deepseek"}, 2},
		{"refold_tokens_total", []string{"kind=input_uncached", "purpose=loop"}, 800},
		{"refold_tokens_total", []string{"kind=input_uncached", "purpose=title"}, 30},
		{"refold_tokens_total", []string{"kind=input_uncached", "purpose=compaction"}, 305}, // the failed call's five included
		{"refold_tokens_total", []string{"kind=cache_read", "purpose=compaction"}, 640},
		{"refold_call_failures_total", []string{"code=SERVER"}, 1},
		{"refold_step_failures_total", nil, 0},
	} {
		if got := value(t, reg, tt.name, tt.labels...); got != tt.want {
			t.Errorf("%s%v is %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
}

// TestAuxiliaryObjects: no object of an auxiliary call or of an image that is not shown is asked for.
func TestAuxiliaryObjects(t *testing.T) {
	s := newScript()
	s.Begin()
	s.TurnStart()
	s.StepStart()
	image, sent := s.ImageBlock([]byte("an image"), 4, 3), s.Object([]byte("smaller"), "image/png")
	s.UserBlocks(s.TextObject("large"), image)
	s.Header(s.header)
	s.Images(foldtest.Inline(image.Object.Digest, "", sent))
	large := objects.Sum([]byte("large"))
	b := s.StreamBody()
	p := project.NewSession(s.State.ID(), project.Options{})
	for i := range s.Payloads {
		e, err := events.Decode(s.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Apply(&e, nothing{}); err != nil {
			t.Fatal(err)
		}
	}
	var got []objects.Digest
	for _, ref := range p.Needed(b) {
		got = append(got, ref.Digest)
	}
	if diff := cmp.Diff([]objects.Digest{large, sent.Digest}, got); diff != "" {
		t.Error(diff)
	}
	if refs := p.Needed(s.AuxBody(events.PurposeTitle, events.Region{}, s.TextObject("directive"))); len(refs) != 0 {
		t.Errorf("of an auxiliary call: %v", refs)
	}
}

// TestProjectorRecordsTrailingCall: a title's call behind the last step is recorded, by a projector that starts later too.
func TestProjectorRecordsTrailingCall(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	before := int(s.Len())
	s.title(usage(30, 0))
	w := newWorld(t, s.Log)
	w.grow(before)
	stop := w.start(w.config())
	w.await(1)
	stop()
	w.grow(len(s.Events))
	cfg := w.config()
	stop = w.start(cfg)
	w.await(2)
	stop()
	w.check()
	if got := value(t, cfg.Registry.(*prometheus.Registry), "refold_tokens_total", "purpose=title", "kind=input_uncached"); got != 30 {
		t.Errorf("%v tokens counted", got)
	}
}
