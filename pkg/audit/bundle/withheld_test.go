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
		k.manifest.Withheld = audit.Withholding{}
	})
}
