package bundle_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// withholdable are the types that stand for all others.
func withholdable() []events.Type {
	return []events.Type{events.TypeUserMessage, events.TypeToolResult, events.TypeRequestHeader, events.TypeAssistantMessage}
}

// withheld packs the session without some content.
func (k *kit) withheld(t testing.TB, types ...events.Type) []byte {
	t.Helper()
	w, err := audit.NewWithholding(types)
	if err != nil {
		t.Fatal(err)
	}
	k.manifest.Withheld = w
	defer func() { k.manifest.Withheld = audit.Withholding{} }()
	return k.pack(t)
}

// onlyUnchecked returns what a report holds beside matches and what could not be checked because it is withheld.
func onlyUnchecked(r *bundle.Report) string {
	var b strings.Builder
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		if v.Result == audit.Match || v.Result == audit.CouldNotCheck && v.Rule == audit.RuleWithheld {
			continue
		}
		fmt.Fprintf(&b, "%s\n", v)
	}
	return b.String()
}

func TestWithheld(t *testing.T) {
	for _, k := range samples(t) {
		for _, types := range [][]events.Type{
			{events.TypeUserMessage},
			{events.TypeToolResult},
			{events.TypeRequestHeader},
			{events.TypeAssistantMessage},
			{events.TypeSessionTitle},
			{events.TypeUserMessage, events.TypeToolResult, events.TypeRequestHeader, events.TypeToolCall},
		} {
			packed := k.withheld(t, types...)
			report := audited(t, packed, k.trust())
			if got := onlyUnchecked(report); got != "" {
				t.Errorf("%s without %v: %s", k.Name, types, got)
			}
			if report.AllMatch() && report.Withheld > 0 && report.Unchecked == 0 && types[0] == events.TypeRequestHeader {
				t.Errorf("%s without %v: all match", k.Name, types)
			}
			if report.Matches+report.Unchecked != report.Requests || report.Confirmed != len(k.verdicts) {
				t.Errorf("%s without %v: %d match, %d unchecked of %d; %d of %d verdicts confirmed",
					k.Name, types, report.Matches, report.Unchecked, report.Requests, report.Confirmed, len(k.verdicts))
			}
			if report.Passed+report.Unchecked < report.Calls || report.Receipts != len(k.receipts) {
				t.Errorf("%s without %v: %d calls passed of %d", k.Name, types, report.Passed, report.Calls)
			}
			k.leaks(t, packed, types)
			if got, want := recorded(report), k.exportersWord(t, types); !slices.Equal(got, want) {
				t.Errorf("%s without %v: records about events %v, want %v", k.Name, types, got, want)
			}
		}
	}
}

// recorded are the events about which the log has a record that their content is withheld.
func recorded(r *bundle.Report) []uint64 {
	var seqs []uint64
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Kind == audit.KindLog && v.Rule == audit.RuleWithheld && v.Result == audit.CouldNotCheck {
			seqs = append(seqs, v.Seq)
		}
	}
	return seqs
}

// exportersWord are the events of which an auditor has the exporter's word alone: those with their structure, and the first
// with its envelope.
func (k *kit) exportersWord(t testing.TB, types []events.Type) []uint64 {
	t.Helper()
	w, err := audit.NewWithholding(types)
	if err != nil {
		t.Fatal(err)
	}
	var seqs []uint64
	opaque := false
	for i := range k.Messages {
		_, c, ok, err := w.Withhold(&k.Messages[i])
		if err != nil {
			t.Fatal(err)
		}
		if ok && (!c.Opaque || !opaque) {
			seqs = append(seqs, k.Messages[i].Seq)
		}
		opaque = opaque || ok && c.Opaque
	}
	return seqs
}

// disguise puts another event in the place of some, as if it were theirs without its content.
func (k *kit) disguise(t *testing.T, packed []byte, from, to uint64, body func() events.Body) []byte {
	t.Helper()
	for seq := from; seq <= to; seq++ {
		m := &k.Messages[seq-1]
		e, err := m.Event()
		if err != nil {
			t.Fatal(err)
		}
		fake := events.Event{Seq: e.Seq, ID: e.ID, Time: e.Time, Prev: e.Prev, Body: body()}
		payload, err := events.Encode(&fake)
		if err != nil {
			t.Fatal(err)
		}
		packed = edit(t, split(t, packed), fmt.Sprintf("log/%020d", seq), "", func(string) string {
			return fmt.Sprintf("withheld structure %s %d\nsession.%s.%s\n%s\n%s",
				events.HashPayload(m.Payload), len(m.Payload), k.ID, fake.Type().Subject(), m.ID, payload)
		})
	}
	return packed
}

// drop takes out what was signed about some events, and leaves no trace of it.
func (k *kit) drop(t *testing.T, from, to uint64) {
	t.Helper()
	k.verdicts = slices.DeleteFunc(k.verdicts, func(r bundle.Record) bool {
		v, err := audit.DecodeVerdict(r.Payload)
		return err != nil || from <= v.Seq && v.Seq <= to
	})
	k.receipts = slices.DeleteFunc(k.receipts, func(r bundle.Record) bool {
		v, err := audit.DecodeReceipt(r.Payload)
		return err != nil || from <= v.Seq && v.Seq <= to
	})
	k.seeLog(t)
}

// titleCall returns the events of the title's call, the first and the last.
func (k *kit) titleCall(t *testing.T) (from, to uint64) {
	t.Helper()
	for i := range k.Events {
		switch b := k.Events[i].Body.(type) {
		case *events.LLMStream:
			if b.Purpose == events.PurposeTitle {
				from = k.Events[i].Seq
			}
		case *events.SessionTitle:
			to = k.Events[i].Seq
		}
	}
	if from == 0 || to < from {
		t.Fatal("no title's call")
	}
	return from, to
}

// TestDisguised passes off a model call as events without their content: that nothing was found is then never all there is.
func TestDisguised(t *testing.T) {
	header := []events.Type{events.TypeRequestHeader}
	for name, body := range map[string]func() events.Body{
		"configured": func() events.Body {
			return &events.SessionConfigured{Options: events.Options{System: events.WithheldText(foldtest.Header().System)}}
		},
		"asked": func() events.Body {
			return &events.ApprovalAsked{ApprovalID: "a", CallID: "c", Question: events.WithheldText("may it?")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, audittest.Of("whole", audittest.Whole()))
			from, to := k.titleCall(t)

			report := audited(t, k.disguise(t, k.withheld(t, header...), from, to, body), k.trust())
			var said, seen bool
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				said = said || v.Seq == from && v.Rule == audit.RuleVerdict && v.Result == audit.Mismatch
				seen = seen || v.Seq == from && v.Rule == audit.RuleUnlogged && v.Result == audit.Mismatch
			}
			if !said || !seen {
				t.Errorf("with all that was signed about it: %s", findings(report))
			}

			k.drop(t, from, to)
			report = audited(t, k.disguise(t, k.withheld(t, header...), from, to, body), k.trust())
			if got := onlyUnchecked(report); got != "" || report.AllMatch() {
				t.Errorf("all match: %t\n%s", report.AllMatch(), got)
			}
			for seq := from; seq <= to; seq++ {
				if !slices.Contains(recorded(report), seq) {
					t.Errorf("no record about event %d: %s", seq, findings(report))
				}
			}

			whole := split(t, k.pack(t)) // all but the disguised ones, and with the manifest of the others
			whole[0] = split(t, k.withheld(t, header...))[0]
			report = audited(t, k.disguise(t, join(whole), from, to, body), k.trust())
			found := slices.IndexFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Result == audit.InvalidLog && v.Rule == audit.RulePayload })
			if found < 0 {
				t.Errorf("headers that are there though they are said to be withheld: %s", findings(report))
			}
		})
	}
}

// TestDisguisedAsOther shows that a type of which no content is withheld is no disguise.
func TestDisguisedAsOther(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	from, _ := k.titleCall(t)
	for name, body := range map[string]events.Body{
		"context": &events.RequestContext{Provider: "p", Model: "m"},
		"start":   &events.TurnStart{Turn: 2},
		"closed":  &events.SessionClosed{Reason: events.WithheldText("done")},
		"failed":  &events.LLMFailed{Attempt: 1, Failure: events.Failure{Code: events.FailureServer}},
		"stream":  k.Events[from-1].Body,
	} {
		packed := k.disguise(t, k.withheld(t, events.TypeRequestHeader), from, from, func() events.Body { return body })
		report := audited(t, packed, bundle.Options{})
		found := slices.IndexFunc(report.Verdicts, func(v audit.Verdict) bool {
			return v.Seq == from && v.Result == audit.InvalidLog && v.Rule == audit.RulePayload
		})
		if found < 0 {
			t.Errorf("%s: %s", name, findings(report))
		}
	}
}

// TestDisguisedSession passes one session's log off as another's: its first event is without its content.
func TestDisguisedSession(t *testing.T) {
	l := foldtest.New()
	l.Body = audittest.Bodies()
	l.Created(events.Options{System: "You are a careful assistant."})
	l.Claimed(events.ClaimCreated)
	l.Turn("hello", "there")
	k := newKit(t, audittest.Of("told", l))
	k.verdicts, k.receipts, k.point, k.proofs = nil, nil, nil, nil
	const other = "01JDXAMP1E0000000000000XYZ"
	files := split(t, k.withheld(t, events.TypeRequestHeader))
	for i := range files {
		files[i].content = bytes.ReplaceAll(files[i].content, []byte(k.ID), []byte(other))
	}
	report := audited(t, join(files), bundle.Options{})
	if report.Session != other || report.AllMatch() || report.Matches > 0 || report.Requests != 1 || !slices.Contains(recorded(report), 1) {
		t.Errorf("session %s, %d of %d match: %s", report.Session, report.Matches, report.Requests, findings(report))
	}
	if report.Lineage != audit.LineageNone || report.Parent != (events.Parent{}) {
		t.Errorf("lineage %q, parent %+v", report.Lineage, report.Parent)
	}
}

// TestWithheldFork: the head that a verifier signed where nothing ends is contradicted in a fork without content as in any other
// log.
func TestWithheldFork(t *testing.T) {
	_, fork := audittest.Forked()
	k := newKit(t, audittest.Of("fork", fork))
	last := k.Messages[len(k.Messages)-2]
	v := audit.Verdict{Kind: audit.KindHead, Session: k.ID, Seq: last.Seq, Event: last.ID, Chain: events.HashPayload(last.Payload), Result: audit.Match}
	if err := k.verifier.Sign(&v); err != nil {
		t.Fatal(err)
	}
	k.verdicts = append(k.verdicts, bundle.Record{Place: k.verdicts[len(k.verdicts)-1].Place + 1, Payload: encode(t, &v)})
	k.seeLog(t)
	for _, types := range [][]events.Type{nil, {events.TypeUserMessage}, {events.TypeToolResult}} {
		report := audited(t, k.withheld(t, types...), k.trust())
		if !slices.ContainsFunc(report.Verdicts, func(v audit.Verdict) bool { return v.Seq == last.Seq && v.Rule == audit.RuleVerdict }) {
			t.Errorf("without %v: %s", types, findings(report))
		}
	}
}

// TestWithheldLineage: a parent that an event without its content names is no lineage.
func TestWithheldLineage(t *testing.T) {
	parent := foldtest.New()
	parent.Body = audittest.Bodies()
	parent.Created(events.Options{System: "You are another assistant."})
	parent.Claimed(events.ClaimCreated)
	parent.Turn("hello", "there")
	fork := parent.OpenFork(int(parent.Len()), events.Options{})
	fork.Turn("hello", "fork")
	k := newKit(t, audittest.Of("fork", fork))
	for _, tt := range []struct {
		types   []events.Type
		lineage audit.Lineage
		parent  uint64
	}{
		{nil, audit.LineageUnknown, parent.Len()},
		{[]events.Type{events.TypeUserMessage}, audit.LineageUnknown, parent.Len()},
		{[]events.Type{events.TypeRequestHeader}, audit.LineageNone, 0},
	} {
		report := audited(t, k.withheld(t, tt.types...), k.trust())
		if got := onlyUnchecked(report); got != "" || report.Lineage != tt.lineage || report.Parent.Seq != tt.parent {
			t.Errorf("without %v: lineage %q, parent %+v\n%s", tt.types, report.Lineage, report.Parent, got)
		}
		if got, want := recorded(report), k.exportersWord(t, tt.types); !slices.Equal(got, want) {
			t.Errorf("without %v: records about events %v, want %v", tt.types, got, want)
		}
	}
}

// leaks looks for the texts that are withheld.
func (k *kit) leaks(t testing.TB, packed []byte, types []events.Type) {
	t.Helper()
	for i := range k.Events {
		var content []events.Block
		switch b := k.Events[i].Body.(type) {
		case *events.UserMessage:
			if slices.Contains(types, events.TypeUserMessage) && b.Message.Source.CompactionID == "" {
				content = b.Message.Content
			}
		case *events.ToolResult:
			if slices.Contains(types, events.TypeToolResult) {
				content = b.Message.Content[0].Content
			}
		case *events.AssistantMessage:
			if slices.Contains(types, events.TypeAssistantMessage) {
				content = b.Message.Content
			}
		case *events.LLMFailed:
			content = []events.Block{events.Text(b.Failure.Message)}
		case *events.LLMRetry:
			content = []events.Block{events.Text(b.Failure.Message)}
		case *events.CompactionEnd:
			content = []events.Block{events.Text(b.Error)}
		}
		for _, b := range content {
			const telling = 12 // shorter texts stand elsewhere too
			if quoted := events.AppendQuote(nil, b.Text); len(b.Text) >= telling && bytes.Contains(packed, quoted[1:len(quoted)-1]) {
				t.Errorf("%s without %v: event %d still says %q", k.Name, types, k.Events[i].Seq, b.Text)
			}
			if data, ok := k.Source.Bytes(b.Object.Digest); ok && !k.named(b.Object.Digest, types) && len(data) >= telling && bytes.Contains(packed, data) {
				t.Errorf("%s without %v: the object of event %d is there", k.Name, types, k.Events[i].Seq)
			}
		}
	}
}

// named reports whether an event that is not withheld names the object too.
func (k *kit) named(d objects.Digest, types []events.Type) bool {
	for i := range k.Events {
		var m *events.Message
		switch b := k.Events[i].Body.(type) {
		case *events.UserMessage:
			m = &b.Message
		case *events.ToolResult:
			m = &b.Message
		default:
			continue
		}
		if slices.ContainsFunc(m.Refs(nil), func(r objects.Ref) bool { return r.Digest == d }) && !slices.Contains(types, k.Events[i].Type()) {
			return true
		}
	}
	return false
}

// TestWithheldGenerated withholds anything from any log: what is there is still as it should.
func TestWithheldGenerated(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := foldtest.GenerateLog(rt, foldtest.Options{Body: audittest.Bodies(), Images: true, Forks: true})
		types := rapid.SliceOfNDistinct(rapid.SampledFrom(withholdable()), 1, 4, rapid.ID).Draw(rt, "withheld")
		k := newKit(t, audittest.Of("generated", l))
		packed := k.withheld(t, types...)
		report := audited(t, packed, k.trust())
		if got := onlyUnchecked(report); got != "" {
			rt.Fatalf("without %v: %s", types, got)
		}
		if report.Matches+report.Unchecked != report.Requests || report.Confirmed != len(k.verdicts) {
			rt.Fatalf("without %v: %d match, %d unchecked of %d; %d of %d verdicts confirmed",
				types, report.Matches, report.Unchecked, report.Requests, report.Confirmed, len(k.verdicts))
		}
		if got, want := recorded(report), k.exportersWord(t, types); !slices.Equal(got, want) || report.AllMatch() && report.Withheld > 0 {
			rt.Fatalf("without %v: records about events %v, want %v", types, got, want)
		}
		k.manifest.Withheld = audit.Withholding{}
	})
}
