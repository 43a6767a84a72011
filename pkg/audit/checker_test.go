package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// applyAll gives all messages to the checker and returns its verdicts.
func applyAll(t *testing.T, c *audit.Checker, messages []eventlog.Message) []audit.Verdict {
	t.Helper()
	var out []audit.Verdict
	for _, m := range messages {
		v, err := c.Apply(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		if v != nil {
			out = append(out, *v)
		}
	}
	return out
}

func results(verdicts []audit.Verdict) string {
	var b strings.Builder
	for _, v := range verdicts {
		fmt.Fprintf(&b, "%d %s %s %s\n", v.Seq, v.Kind, v.Result, v.Rule)
	}
	return b.String()
}

func TestVerdictsOfAWholeLog(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	for _, cold := range []bool{false, true} {
		c := audit.NewChecker(audit.CheckerConfig{Session: r.ID, Objects: audit.FromStore(r.Store()), Cold: cold})
		var want strings.Builder
		for _, m := range r.Messages {
			if kind := audittest.KindOf(m.Type); kind != "" {
				fmt.Fprintf(&want, "%d %s match \n", m.Seq, kind)
			}
		}
		if got := results(applyAll(t, c, r.Messages)); got != want.String() {
			t.Errorf("cold %t: got\n%swant\n%s", cold, got, want.String())
		}
		if c.Seq() != uint64(len(r.Messages)) || c.Chain() != events.HashPayload(r.Messages[len(r.Messages)-1].Payload) {
			t.Errorf("cold %t: stands at %d, %s", cold, c.Seq(), c.Chain())
		}
	}
}

// TestQuiet starts to judge in the middle: the result is that of the whole, wherever that is.
func TestQuiet(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	objects := audit.FromStore(r.Store())
	whole := applyAll(t, audit.NewChecker(audit.CheckerConfig{Session: r.ID, Objects: objects}), r.Messages)
	for quiet := range uint64(len(r.Messages) + 1) {
		got := applyAll(t, audit.NewChecker(audit.CheckerConfig{Session: r.ID, Objects: objects, Quiet: quiet}), r.Messages)
		var want []audit.Verdict
		for _, v := range whole {
			if v.Seq > quiet {
				want = append(want, v)
			}
		}
		if results(got) != results(want) {
			t.Errorf("quiet up to %d: got\n%swant\n%s", quiet, results(got), results(want))
		}
	}
}

// lying returns a log whose n-th request, from 1, records another body than the log gives.
func lying(n int, codecName string, alter func(body []byte) []byte) (l *foldtest.Log, sent []byte) {
	l = foldtest.New()
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		panic(err)
	}
	l.Body = func(request *fold.Request, source objects.Source) (string, events.BodyDigest) {
		body, err := builder.Build(request, source)
		if err != nil {
			panic(err)
		}
		if n--; n != 0 {
			return builder.Codec(), body.Digest()
		}
		sent = alter(body.Bytes())
		return codecName, events.BodyDigest{Bytes: int64(len(sent)), SHA256: events.HashPayload(sent)}
	}
	l.Begin()
	l.Turn("hello", "world")
	l.Turn("again", "sure")
	l.Turn("bye", "bye")
	return l, sent
}

func requestResults(report *audit.Report) string {
	var out []string
	for _, v := range report.Verdicts {
		if v.Kind == audit.KindRequest {
			out = append(out, string(v.Result))
		}
	}
	return strings.Join(out, " ")
}

func TestMismatch(t *testing.T) {
	same := func(b []byte) []byte { return b }
	change := func(b []byte) []byte { return []byte(strings.Replace(string(b), "hello", "hellO", 1)) }
	for name, tt := range map[string]struct {
		codec   string
		alter   func([]byte) []byte
		want    string
		located bool
	}{
		"one byte":      {codec.DeepSeekChat1, change, "match mismatch match", true},
		"cut":           {codec.DeepSeekChat1, func(b []byte) []byte { return b[:len(b)-3] }, "match mismatch match", true},
		"unknown codec": {"deepseek-chat/99", same, "match unknown-codec match", false},
		"odd codec":     {"\x1b[31m\xed\xa0\x80\n", same, "match unknown-codec match", false},
	} {
		t.Run(name, func(t *testing.T) {
			l, sent := lying(2, tt.codec, tt.alter)
			r := audittest.Of("", l)
			bodies := func(context.Context, uint64) ([]byte, bool) { return sent, true }
			report := check(t, r, r.Messages, func(c *audit.LogCheck) { c.Actual = bodies })
			if got := requestResults(report); got != tt.want || report.AllMatch() || report.Requests != 3 || report.Matches != 2 {
				t.Fatalf("got %s, want %s", got, tt.want)
			}
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				if _, err := v.Encode(); err != nil {
					t.Errorf("%s: %v", v, err)
				}
				if v.Result == audit.Mismatch && (v.Located != tt.located || name == "one byte" && v.Pointer != "/messages/1/content") {
					t.Errorf("located at %d, %q", v.Offset, v.Pointer)
				}
			}
			other := func(context.Context, uint64) ([]byte, bool) { return []byte("something else"), true }
			for _, v := range check(t, r, r.Messages, func(c *audit.LogCheck) { c.Actual = other }).Verdicts {
				if v.Located {
					t.Errorf("located with a body that was not sent: %s", &v)
				}
			}
		})
	}
}

// TestObjectsComeBack shows that a missing object fails only the requests that need it, and that no answer is no finding.
func TestObjectsComeBack(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	s := &audittest.Store{Source: r.Source, Missing: map[objects.Digest]bool{}}
	c := audit.NewChecker(audit.CheckerConfig{Session: r.ID, Objects: audit.FromStore(s)})
	var got []string
	s.Fail = objects.ErrUnavailable
	for _, m := range r.Messages {
		v, err := c.Apply(t.Context(), m)
		if s.Fail != nil && m.Type == events.TypeLLMStream {
			for range 3 {
				if v != nil || !errors.Is(err, audit.ErrCouldNotCheck) || !errors.Is(err, objects.ErrUnavailable) {
					t.Fatalf("no answer: %v, %v", v, err)
				}
				v, err = c.Apply(t.Context(), m)
			}
			s.Fail = nil
			s.Missing[r.Refs[0].Digest] = true
			v, err = c.Apply(t.Context(), m)
		}
		if err != nil {
			t.Fatal(err)
		}
		if v != nil && v.Kind == audit.KindRequest {
			got = append(got, string(v.Result))
			if len(got) == 2 {
				clear(s.Missing)
			}
		}
	}
	if g, want := strings.Join(got, " "), "missing-object missing-object match match match"; g != want {
		t.Errorf("got %s, want %s", g, want)
	}
}

func TestBehindABreak(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	streams := 0
	for _, m := range r.Messages[6:] {
		if m.Type == events.TypeLLMStream {
			streams++
		}
	}
	messages := slices.Concat(r.Messages[:5], r.Messages[6:])
	report := check(t, r, messages, func(c *audit.LogCheck) { c.Last = uint64(len(r.Messages)) })
	if report.Requests != streams || report.Matches != 0 {
		t.Errorf("%d requests, %d matches, want %d and none", report.Requests, report.Matches, streams)
	}
	for _, v := range report.Verdicts {
		if v.Result != audit.BrokenChain || v.Rule != audit.RuleSequence && v.Rule != audit.RuleEarlier {
			t.Errorf("%s", &v)
		}
	}
}

// TestRules shows which fault gives which result and rule.
func TestRules(t *testing.T) {
	whole := audittest.Of("", audittest.Sample(foldtest.SessionID))
	n := len(whole.Messages)
	for name, tt := range map[string]struct {
		change func(m *eventlog.Message)
		result audit.Result
		rule   string
	}{
		"a hole":          {func(m *eventlog.Message) { m.Seq++ }, audit.BrokenChain, audit.RuleSequence},
		"another ID":      {func(m *eventlog.Message) { m.ID = foldtest.ID(1, 1) }, audit.BrokenChain, audit.RuleMessage},
		"another type":    {func(m *eventlog.Message) { m.Type = "turn/start" }, audit.BrokenChain, audit.RuleMessage},
		"garbage":         {func(m *eventlog.Message) { m.Payload = []byte("\x00\x1b[2J\xff") }, audit.InvalidLog, audit.RulePayload},
		"an empty one":    {func(m *eventlog.Message) { m.Payload = nil }, audit.InvalidLog, audit.RulePayload},
		"another version": {replace(`{"v":1`, `{"v":2`), audit.InvalidLog, audit.RuleVersion},
		"another link":    {replace(`"prev":"`, `"prev":"0`), audit.InvalidLog, audit.RulePayload},
	} {
		messages := audittest.Of("", audittest.Sample(foldtest.SessionID)).Messages
		tt.change(&messages[n-1])
		report := check(t, whole, messages, nil)
		last := report.Verdicts[len(report.Verdicts)-1]
		if last.Result != tt.result || last.Rule != tt.rule || last.Kind != audit.KindLog {
			t.Errorf("%s: %s", name, &last)
		}
		if err := newKey(t).Sign(&last); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func replace(old, with string) func(m *eventlog.Message) {
	return func(m *eventlog.Message) { m.Payload = []byte(strings.Replace(string(m.Payload), old, with, 1)) }
}

// TestAnotherSession shows a log in the place of another session's.
func TestAnotherSession(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.ID(1, 1)))
	r.ID = foldtest.SessionID
	report := check(t, r, r.Messages, nil)
	if first := report.Verdicts[0]; report.Matches != 0 || first.Result != audit.InvalidLog || first.Rule != string(fold.RuleFirst) {
		t.Errorf("%s", &first)
	}
}

func TestPriorVerdicts(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	key, other := newKey(t), newKey(t)
	signed := r.Sign(t.Context(), key)
	good := check(t, r, r.Messages, func(c *audit.LogCheck) { c.Prior, c.Trusted = signed, []string{key.Public()} })
	if !good.AllMatch() || good.Confirmed != len(signed) || good.Ignored != 0 || len(good.Silent) != 0 {
		t.Errorf("%+v", good)
	}
	ignored := check(t, r, r.Messages, func(c *audit.LogCheck) { c.Prior, c.Trusted = signed, []string{other.Public()} })
	if n := len(ignored.Verdicts); ignored.Verdicts[n-1].Result != audit.CouldNotCheck || ignored.Verdicts[n-1].Rule != audit.RuleSilent ||
		ignored.Matches != ignored.Requests || n != len(good.Verdicts)+1 || ignored.Confirmed != 0 || ignored.Ignored != len(signed) || !slices.Equal(ignored.Silent, []string{other.Public()}) {
		t.Errorf("%+v", ignored)
	}
	signed[0].Chain[0] ^= 1
	if check(t, r, r.Messages, func(c *audit.LogCheck) { c.Prior = signed }).AllMatch() {
		t.Error("a verdict with a wrong signature is not noticed")
	}
}

// TestUnreadableLogs shows that a log that does not answer is not a broken one.
func TestUnreadableLogs(t *testing.T) {
	r := audittest.Of("", audittest.Sample(foldtest.SessionID))
	signed := r.Sign(t.Context(), newKey(t))
	for _, tt := range []struct {
		err  error
		want audit.Result
	}{
		{eventlog.ErrUnavailable, audit.CouldNotCheck},
		{eventlog.ErrPermission, audit.CouldNotCheck},
		{&eventlog.GapError{Session: r.ID, Want: 11, Got: 12}, audit.BrokenChain},
		{eventlog.ErrCorrupt, audit.BrokenChain},
	} {
		report := check(t, r, nil, func(c *audit.LogCheck) {
			c.Prior, c.Last = signed, uint64(len(r.Messages))
			c.Messages = func(yield func(eventlog.Message, error) bool) {
				for _, m := range r.Messages[:10] {
					if !yield(m, nil) {
						return
					}
				}
				yield(eventlog.Message{}, tt.err)
			}
		})
		last := report.Verdicts[len(report.Verdicts)-1]
		if last.Seq != 11 || last.Result != tt.want || last.Kind != audit.KindLog {
			t.Errorf("%v: %s", tt.err, &last)
		}
		for _, v := range report.Verdicts {
			if v.Result != audit.Match && v.Result != tt.want {
				t.Errorf("%v: %s", tt.err, &v)
			}
		}
	}
}

// TestGeneratedLogs checks random valid logs, warm and cold, and started anywhere.
func TestGeneratedLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := foldtest.GenerateLog(rt, foldtest.Options{Body: audittest.Bodies()})
		r := audittest.Of("", l)
		for _, cold := range []bool{false, true} {
			report, err := audit.CheckLog(context.Background(), audit.LogCheck{
				Session: r.ID, Messages: audittest.Sequence(r.Messages), Last: uint64(len(r.Messages)), Cold: cold,
				Objects: audit.FromStore(r.Store()),
			})
			if err != nil || !report.AllMatch() {
				rt.Fatalf("cold %t: %v %v", cold, err, report.Verdicts)
			}
		}
	})
}

// TestReasons shows that any error text can stand in a verdict.
func TestReasons(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(rt, "text"))
		c := audit.NewChecker(audit.CheckerConfig{Session: foldtest.SessionID})
		v := c.Gap(3, fmt.Errorf("%s: %w", text, eventlog.ErrGap))
		b, err := v.Encode()
		if err != nil || !utf8.Valid(b) {
			rt.Fatalf("%q: %v", b, err)
		}
		if _, err := audit.DecodeVerdict(b); err != nil {
			rt.Fatal(err)
		}
	})
}

// check checks messages in the place of the session's.
func check(t *testing.T, s *audittest.Session, messages []eventlog.Message, change func(*audit.LogCheck)) *audit.Report {
	t.Helper()
	c := s.LogCheck()
	c.Messages, c.Last = audittest.Sequence(messages), uint64(len(messages))
	if change != nil {
		change(&c)
	}
	report, err := audit.CheckLog(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}
