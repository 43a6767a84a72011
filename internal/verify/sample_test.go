package verify_test

import (
	"context"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deepseek returns a function that gives the bodies of one log's requests, in order.
func deepseek() foldtest.BodyFunc {
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		panic(err)
	}
	return func(request *fold.Request, source objects.Source) (string, events.BodyDigest) {
		body, err := builder.Build(request, source)
		if err != nil {
			panic(err)
		}
		return builder.Codec(), body.Digest()
	}
}

// sample returns a log with objects, tool calls, a retry, a changed header, a pruned result and a takeover in the middle
// of an answer.
func sample() *foldtest.Log { return sampleOf(foldtest.SessionID) }

func sampleOf(id events.ID) *foldtest.Log {
	l := &foldtest.Log{State: fold.New(id), Objects: new(objects.Set)}
	l.Body = deepseek()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(events.Text("Look at "), l.TextObject("a large \u2028 prompt \U0001F680 "+strings.Repeat("text ", 40)))
	h := foldtest.Header()
	h.System, h.SystemObject = "", l.Object([]byte("You are a careful assistant with a long prompt."), events.TextMediaType)
	tools, err := events.AppendTools(nil, h.Tools)
	if err != nil {
		panic(err)
	}
	h.Tools, h.ToolsObject = nil, l.Object(tools, events.ToolsMediaType)
	l.Header(h)
	l.Context(65536)
	l.Stream()
	l.Failed(events.FailureServer)
	l.Retry()
	l.Reply(events.FinishToolCalls, foldtest.ReasoningBlock(0, "Let me", " look."),
		foldtest.CallBlock(1, "call_1", "list", `{"path":`, `"."}`), foldtest.CallBlock(2, "call_2", "read", `{"path":"go.mod"}`))
	l.ToolCall()
	l.ToolCall()
	l.ToolResult(l.TextObject("a\nb\n" + strings.Repeat("c", 200)))
	pruned := l.ToolResult(events.Text("module m"))
	l.StepEnd()
	l.StepStart()
	l.Stream()
	l.Chunks(foldtest.TextBlock(0, "Half an ans")...)
	l.Claimed(events.ClaimTakeover)
	l.Failed(events.FailureInterrupted)
	l.Header(h)
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "Done", "."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.Title("a look around")
	l.TurnStart()
	l.StepStart()
	l.User("Now think harder.")
	l.Prune(pruned, events.Text("(pruned)"))
	h.Config.ReasoningEffort = "high"
	l.Header(h)
	l.Reply(events.FinishStop, foldtest.ReasoningBlock(0, "Hm."), foldtest.TextBlock(1, "Thought."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	return l
}

// recording is a log with its objects.
type recording struct {
	name     string
	session  events.ID
	messages []eventlog.Message
	refs     []objects.Ref
	source   objects.Source
}

func recordingOf(name string, session events.ID, list []events.Event, payloads [][]byte, source objects.Source) recording {
	r := recording{name: name, session: session, source: source}
	for i := range list {
		e := &list[i]
		r.messages = append(r.messages, eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: payloads[i]})
		if b, ok := e.Body.(*events.LLMStream); ok {
			r.refs = append(r.refs, b.Objects...)
		}
	}
	return r
}

func recordLog(name string, l *foldtest.Log) recording {
	return recordingOf(name, l.State.ID(), l.Events, l.Payloads, l.Objects)
}

// corpus returns the translated logs of the reference system: those of REFOLD_CORPUS, or beside the checkout.
func corpus(t *testing.T) []recording {
	t.Helper()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "session.jsonl"))
	if err != nil || len(files) == 0 {
		t.Logf("the recorded scenarios are not in %s: set REFOLD_CORPUS to their folder", dir)
		return nil
	}
	var out []recording
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		var cfg dsh.Config
		if uploads := filepath.Join(filepath.Dir(file), "files-api"); isDir(uploads) {
			cfg.Uploads = os.DirFS(uploads)
		}
		s, err := cfg.Translate(f)
		f.Close() //nolint:errcheck // only read
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		set := new(objects.Set)
		for _, o := range s.Objects {
			if err := set.Add(o.Ref, o.Data); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		out = append(out, recordingOf(name, s.ID, s.Events, s.Payloads, set))
	}
	return out
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// store is an object store over a recording in which single objects can be damaged.
type store struct {
	source  objects.Source
	missing map[objects.Digest]bool
	altered map[objects.Digest][]byte
	fail    error
}

func (s *store) Put(context.Context, objects.Ref, []byte) error { return objects.ErrUnavailable }

func (s *store) Get(_ context.Context, d objects.Digest) ([]byte, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	if b, ok := s.altered[d]; ok {
		return slices.Clone(b), nil
	}
	b, ok := s.source.Bytes(d)
	if !ok || s.missing[d] {
		return nil, objects.ErrNotFound
	}
	return slices.Clone(b), nil
}

func (s *store) Has(_ context.Context, d objects.Digest) (bool, error) {
	_, ok := s.source.Bytes(d)
	return ok, nil
}

func sequence(messages []eventlog.Message) iter.Seq2[eventlog.Message, error] {
	return func(yield func(eventlog.Message, error) bool) {
		for _, m := range messages {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// check checks messages in the place of the recording's.
func (r *recording) check(t *testing.T, messages []eventlog.Message, change func(*audit.LogCheck)) *audit.Report {
	t.Helper()
	c := audit.LogCheck{
		Session: r.session, Messages: sequence(messages), Last: uint64(len(messages)),
		Objects: audit.FromStore(&store{source: r.source}),
	}
	if change != nil {
		change(&c)
	}
	report, err := audit.CheckLog(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// signed returns what a verifier signs about the recording.
func (r *recording) signed(t *testing.T, key *audit.Key) []audit.Verdict {
	t.Helper()
	report := r.check(t, r.messages, nil)
	if !report.AllMatch() {
		t.Fatalf("%s: the untouched log: %v", r.name, report.Verdicts)
	}
	for i := range report.Verdicts {
		if err := key.Sign(&report.Verdicts[i]); err != nil {
			t.Fatal(err)
		}
	}
	return report.Verdicts
}

func newKey(t testing.TB) *audit.Key {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
