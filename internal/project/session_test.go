package project_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// realBody gives bodies of the DeepSeek codec.
func realBody(req *fold.Request, src objects.Source) (string, events.BodyDigest) {
	body := fullBody(req, src)
	return codec.DeepSeekChat1, body.Digest()
}

// fullBody builds a body from nothing.
func fullBody(req *fold.Request, src objects.Source) codec.Body {
	b, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		panic(err)
	}
	body, err := b.Build(req, src)
	if err != nil {
		panic(err)
	}
	return body
}

// script writes a log by hand.
type script struct {
	*foldtest.Log

	header events.Header
}

func newScript() *script {
	s := &script{Log: foldtest.New(), header: foldtest.Header()}
	s.Body = realBody
	s.header.System = strings.Repeat("Be careful. ", 200)
	return s
}

// usage is a usage with cache figures.
func usage(uncached, read int64) events.Usage {
	return events.Usage{InputTokens: uncached, CacheReported: true, CacheReadTokens: read, OutputTokens: 10}
}

// ask opens a turn and a step with a prompt.
func (s *script) ask() {
	s.TurnStart()
	s.StepStart()
	s.User("What is in the file " + strings.Repeat("x", 100) + "?")
}

// reply answers the open step with text.
func (s *script) reply(u events.Usage) {
	s.Header(s.header)
	s.Reply(events.FinishStop, foldtest.TextBlock(0, "A file."), []events.Chunk{foldtest.UsageChunk(u)})
}

// fail makes an attempt that fails with chunks, usage or nothing before.
func (s *script) fail(code events.FailureCode, chunks ...events.Chunk) {
	s.Header(s.header)
	s.Stream()
	if len(chunks) > 0 {
		s.Chunks(chunks...)
	}
	s.Failed(code)
}

func (s *script) end() {
	s.StepEnd()
	s.TurnEnd(events.TurnCompleted)
}

// turn is a whole turn with an answer of text.
func (s *script) turn(u events.Usage) {
	s.ask()
	s.reply(u)
	s.end()
}

// tool is a whole turn of two steps, the first with a tool call; it returns the result's sequence.
func (s *script) tool(id string, first, second events.Usage) uint64 {
	s.ask()
	s.Header(s.header)
	s.Reply(events.FinishToolCalls, foldtest.CallBlock(0, id, "read", `{"path":"a"}`), []events.Chunk{foldtest.UsageChunk(first)})
	s.ToolCall()
	result := s.ToolResult(events.Text(strings.Repeat("line\n", 100)))
	s.StepEnd()
	s.StepStart()
	s.reply(second)
	s.end()
	return result
}

// records projects a log.
func records(t testing.TB, l *foldtest.Log, o project.Options) []project.Record {
	t.Helper()
	s := project.NewSession(l.State.ID(), o)
	var out []project.Record
	for i := range l.Payloads {
		e, err := events.Decode(l.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Apply(&e, l.Objects)
		if err != nil {
			t.Fatal(err)
		}
		if r == nil {
			continue
		}
		if _, err := project.Encode(r); err != nil {
			t.Fatal(err)
		}
		out = append(out, *r)
	}
	return out
}

func causes(rs []project.Record) []project.Cause {
	out := make([]project.Cause, len(rs))
	for i := range rs {
		out[i] = rs[i].Cause
	}
	return out
}

func TestCauses(t *testing.T) {
	const (
		first = project.CauseFirstRequest
		none  = project.CauseNone
	)
	short := project.Options{TTL: time.Millisecond} // events are 17 ms apart
	tests := []struct {
		name  string
		opts  project.Options
		build func(s *script)
		want  []project.Cause
	}{
		{"warm", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(100, 640))
			s.turn(usage(160, 640)) // 740 tokens before: 704 expected, one unit less is fine
		}, []project.Cause{first, none, none}},
		{"two units less", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(250, 575))
		}, []project.Cause{first, project.CauseProviderMiss}},
		{"too short for the cache", project.Options{}, func(s *script) {
			s.turn(usage(60, 0))
			s.turn(usage(90, 0))
		}, []project.Cause{first, none}},
		{"miss", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseProviderMiss}},
		{"expired", short, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseExpired}},
		{"long ago, but still there", short, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(100, 640))
		}, []project.Cause{first, none}},
		{"no figures", project.Options{}, func(s *script) {
			s.turn(events.Usage{InputTokens: 700, OutputTokens: 3})
			s.turn(events.Usage{InputTokens: 740, OutputTokens: 3})
		}, []project.Cause{first, project.CauseUnreported}},
		{"model", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.Config.Model = "deepseek-reasoner"
			s.turn(usage(740, 0))
			s.turn(usage(100, 704))
		}, []project.Cause{first, project.CauseModel, none}},
		{"provider", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.Config.Provider = "elsewhere"
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseModel}},
		{"config that costs nothing", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.Config.Temperature = "0.5"
			s.turn(usage(100, 640))
		}, []project.Cause{first, none}},
		{"config that costs", short, func(s *script) {
			s.turn(usage(700, 0))
			s.header.Config.ReasoningEffort = "high"
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseConfig}},
		{"system", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.System += "It is 12:00:01."
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseSystem}},
		{"system moved to an object", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.SystemObject = s.Object([]byte(s.header.System), events.TextMediaType)
			s.header.System = ""
			s.turn(usage(100, 640))
		}, []project.Cause{first, none}},
		{"tools in another order", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.Tools = []events.Tool{s.header.Tools[1], s.header.Tools[0]}
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseTools}},
		{"a byte of a tool's description, and the system prompt", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.System += "!"
			s.header.Tools = append([]events.Tool(nil), s.header.Tools...)
			s.header.Tools[0].Description += "!"
			s.turn(usage(740, 0))
		}, []project.Cause{first, project.CauseSystem}},
		{"compaction", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.turn(usage(100, 640))
			nodes := s.State.Nodes()
			s.Replace(nodes[0], nodes[1], "Summary: a file.")
			s.turn(usage(400, 192))
			s.turn(usage(100, 576))
		}, []project.Cause{first, none, project.CauseCompaction, none}},
		{"prune", project.Options{}, func(s *script) {
			result := s.tool("call-1", usage(700, 0), usage(200, 640))
			s.Prune(result, events.Text("[pruned]"))
			s.turn(usage(300, 640))
		}, []project.Cause{first, none, project.CausePrune}},
		{"a result pruned before it was sent", project.Options{}, func(s *script) {
			s.ask()
			s.Header(s.header)
			s.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c", "read", "{}"), []events.Chunk{foldtest.UsageChunk(usage(700, 0))})
			s.ToolCall()
			result := s.ToolResult(events.Text(strings.Repeat("line\n", 100)))
			s.StepEnd()
			s.Prune(result, events.Text("[pruned]"))
			s.StepStart()
			s.reply(usage(100, 640))
			s.end()
		}, []project.Cause{first, none}},
		{"resume with the same header", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.Claimed(events.ClaimResumed)
			s.turn(usage(100, 640))
		}, []project.Cause{first, none}},
		{"resume drift", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.Claimed(events.ClaimResumed)
			s.header.Tools = s.header.Tools[:1]
			s.turn(usage(740, 0))
			s.header.Tools = nil
			s.turn(usage(780, 0))
		}, []project.Cause{first, project.CauseResumeDrift, project.CauseTools}},
		{"a first request that failed unread", project.Options{}, func(s *script) {
			s.ask()
			s.fail(events.FailureServer)
			s.Retry()
			s.reply(usage(700, 0))
			s.end()
		}, []project.Cause{first}},
		{"a break that nobody read counts for the next", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.System += "!"
			s.ask()
			s.fail(events.FailureRateLimit)
			s.end()
			s.turn(usage(740, 0))
			s.turn(usage(100, 704))
		}, []project.Cause{first, project.CauseSystem, project.CauseSystem, none}},
		{"a break that was read counts once", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.header.System += "!"
			s.ask()
			s.fail(events.FailureTransport, foldtest.TextBlock(0, "A")[0])
			s.Retry()
			s.reply(usage(100, 640))
			s.end()
		}, []project.Cause{first, none}},
		{"a failure without a break", project.Options{}, func(s *script) {
			s.turn(usage(700, 0))
			s.ask()
			s.fail(events.FailureServer)
			s.end()
		}, []project.Cause{first, project.CauseUnreported}},
		{"a step without a call", project.Options{}, func(s *script) {
			s.ask()
			s.end()
			s.turn(usage(700, 0))
		}, []project.Cause{none, first}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript()
			s.Begin()
			tt.build(s)
			if diff := cmp.Diff(tt.want, causes(records(t, s.Log, tt.opts))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestForkCauses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*events.Header)
		usage  events.Usage
		want   project.Cause
	}{
		"shared":      {func(*events.Header) {}, usage(100, 640), project.CauseNone},
		"not shared":  {func(*events.Header) {}, usage(740, 0), project.CauseFork},
		"other tools": {func(h *events.Header) { h.Tools = nil }, usage(640, 0), project.CauseFork},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript()
			s.Begin()
			s.turn(usage(500, 0))
			s.turn(usage(200, 500))
			f := &script{Log: s.Fork(int(s.Len())), header: s.header}
			tt.change(&f.header)
			f.Claimed(events.ClaimResumed)
			f.turn(tt.usage)
			f.turn(usage(100, 704))
			rs := records(t, f.Log, project.Options{TTL: time.Millisecond})
			if diff := cmp.Diff([]project.Cause{tt.want, project.CauseNone}, causes(rs)); diff != "" {
				t.Errorf("the seed's steps are the parent's: %s", diff)
			}
		})
	}
}

// TestToolsTemplateOrder: the bodies have all messages in common, the cache can reuse none of them.
func TestToolsTemplateOrder(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(5000, 0))
	s.ask()
	s.header.Tools = s.header.Tools[:1]
	s.reply(usage(5100, 0))
	s.end()
	a := records(t, s.Log, project.Options{})[1].Last()
	head := int64(strings.Index(string(bodies(t, s.Log)[1]), `{"role":"user"`) - len(","))
	if a.Limit != project.LimitTemplateOrder || a.Reusable != (project.Extent{Bytes: head}) {
		t.Errorf("reusable %+v (%s), want the %d bytes up to the end of the system prompt", a.Reusable, a.Limit, head)
	}
	if a.Prefix.Messages != 1 || a.Prefix.Bytes <= head {
		t.Errorf("prefix %+v", a.Prefix)
	}
}

func TestRetryRepeatsTheWhole(t *testing.T) {
	s := newScript()
	s.Begin()
	s.turn(usage(700, 0))
	s.ask()
	s.fail(events.FailureServer)
	s.Retry()
	s.reply(usage(100, 640))
	s.end()
	as := records(t, s.Log, project.Options{})[1].Attempts
	if len(as) != 2 || as[1].Prefix != (project.Extent{Bytes: as[1].Bytes, Messages: 3}) || as[1].Reusable != as[1].Prefix {
		t.Errorf("attempts %+v", as)
	}
	if as[0].Failure != events.FailureServer || as[0].FirstChunkMs != nil || as[1].FirstChunkMs == nil || *as[1].FirstChunkMs != 17 {
		t.Errorf("attempts %+v", as)
	}
	if as[0].Prefix.Messages != 1 || as[0].Prefix.Bytes >= as[0].Bytes || as[1].DurationMs != 34 {
		t.Errorf("attempts %+v", as)
	}
}

// bodies returns the bodies of all requests of a log, each built from nothing.
func bodies(t testing.TB, l *foldtest.Log) [][]byte {
	t.Helper()
	state := fold.New(l.State.ID())
	var out [][]byte
	for i := range l.Payloads {
		e, err := events.Decode(l.Payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		if b, ok := e.Body.(*events.LLMStream); ok {
			req, err := state.RequestOf(b)
			if err != nil {
				t.Fatal(err)
			}
			body := fullBody(&req, l.Objects)
			out = append(out, body.Bytes())
		}
		if err := state.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// nothing is a source without objects.
type nothing struct{}

func (nothing) Bytes(objects.Digest) ([]byte, bool) { return nil, false }
