package audit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// TestWholeLog checks a log with auxiliary calls and images, warm, cold, and started anywhere.
func TestWholeLog(t *testing.T) {
	r := audittest.Of("", audittest.Whole())
	for _, cold := range []bool{false, true} {
		report := check(t, r, r.Messages, func(c *audit.LogCheck) { c.Cold = cold })
		if !report.AllMatch() || report.Requests != 6 || report.Lineage != audit.LineageNone {
			t.Errorf("cold %t: %d requests, %v", cold, report.Requests, report.Verdicts)
		}
	}
	all := applyAll(t, audit.NewChecker(audit.CheckerConfig{Session: r.ID, Objects: audit.FromStore(r.Store())}), r.Messages)
	for quiet := range uint64(len(r.Messages)) {
		cfg := audit.CheckerConfig{Session: r.ID, Objects: audit.FromStore(r.Store()), Quiet: quiet}
		want := slices.Clone(all)
		want = slices.DeleteFunc(want, func(v audit.Verdict) bool { return v.Seq <= quiet })
		if got := results(applyAll(t, audit.NewChecker(cfg), r.Messages)); got != results(want) {
			t.Errorf("quiet up to %d: got\n%swant\n%s", quiet, got, results(want))
		}
	}
}

// TestAuxiliaryRequestThatDiffers records another directive than the one that was sent.
func TestAuxiliaryRequestThatDiffers(t *testing.T) {
	l := foldtest.New()
	l.Body = audittest.Bodies()
	l.Begin()
	l.Turn("hello", "world")
	other := l.AuxBody(events.PurposeTitle, events.Region{}, events.Text("Name it."))
	b := l.AuxBody(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	b.Body = other.Body
	l.Append(b)
	l.Failed(events.FailureServer)
	l.Turn("again", "sure")
	r := audittest.Of("", l)
	if got := requestResults(check(t, r, r.Messages, nil)); got != "match mismatch match" {
		t.Errorf("got %s", got)
	}
}

// TestImagesAreChecked damages the image as it came and the one that was sent: both belong to the request.
func TestImagesAreChecked(t *testing.T) {
	r := audittest.Of("", audittest.Whole())
	for name, data := range map[string]string{"as it came": "a large image", "as it was sent": "a small image"} {
		digest := objects.Sum([]byte(data))
		for want, s := range map[string]*audittest.Store{
			"missing-object": {Missing: map[objects.Digest]bool{digest: true}},
			"corrupt-object": {Altered: map[objects.Digest][]byte{digest: []byte("another image")}},
		} {
			s.Source = r.Source
			got := requestResults(check(t, r, r.Messages, func(c *audit.LogCheck) { c.Objects = audit.FromStore(s) }))
			if first, _, _ := strings.Cut(got, " "); first != want || strings.Contains(got, "mismatch") {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

// TestUnshownImage is a log that calls for a request with an image and does not say how to show it.
func TestUnshownImage(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(l.ImageBlock([]byte("an image"), 1, 1))
	l.Header(foldtest.Header())
	b := audittest.Bodies()
	l.Body = func(r *fold.Request, _ objects.Source) (string, events.BodyDigest) {
		empty := fold.Request{Header: r.Header}
		return b(&empty, l.Objects)
	}
	l.Stream()
	r := audittest.Of("", l)
	v := check(t, r, r.Messages, nil).Verdicts[0]
	if v.Result != audit.InvalidLog || v.Rule != audit.RuleCodec {
		t.Errorf("%s", &v)
	}
}

// TestFork checks a fork of a log with everything: what was copied is judged like what is its own.
func TestFork(t *testing.T) {
	parent, f := audittest.Forked()
	r := audittest.Of("", f)
	hash := parent.State.Head()
	for name, tt := range map[string]struct {
		parents audit.Parents
		lineage audit.Lineage
		want    string // result of the verdict about the first event, empty for none
	}{
		"not looked at": {nil, audit.LineageNone, ""},
		"confirmed":     {func(context.Context, events.ID, uint64) (events.Hash, error) { return hash, nil }, audit.LineageConfirmed, ""},
		"another event": {func(context.Context, events.ID, uint64) (events.Hash, error) { return events.Hash{1}, nil }, audit.LineageBroken, "invalid-log"},
		"cut off":       {noParent(audit.ErrNoEvent), audit.LineageBroken, "invalid-log"},
		"gone":          {noParent(eventlog.ErrNotFound), audit.LineageUnknown, ""},
		"not ours":      {noParent(eventlog.ErrPermission), audit.LineageUnknown, ""},
		"no answer":     {noParent(eventlog.ErrUnavailable), audit.LineageUnknown, "could-not-check"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked events.ID
			var at uint64
			report := check(t, r, r.Messages, func(c *audit.LogCheck) {
				if tt.parents == nil {
					return
				}
				c.Parents = func(ctx context.Context, session events.ID, seq uint64) (events.Hash, error) {
					asked, at = session, seq
					return tt.parents(ctx, session, seq)
				}
			})
			if tt.parents != nil && (asked != parent.State.ID() || at != parent.Len()) {
				t.Errorf("asked for event %d of session %s", at, asked)
			}
			if report.Lineage != tt.lineage || report.Requests != 7 || report.Matches != 7 {
				t.Errorf("lineage %q, %d of %d requests match", report.Lineage, report.Matches, report.Requests)
			}
			if report.AllMatch() != (tt.want == "") {
				t.Errorf("%v", report.Verdicts)
			}
			if first := report.Verdicts[0]; tt.want != "" {
				if string(first.Result) != tt.want || first.Kind != audit.KindLog || first.Seq != 1 || first.Rule != audit.RuleLineage {
					t.Errorf("%s", &first)
				}
				if err := newKey(t).Sign(&first); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func noParent(err error) audit.Parents {
	return func(context.Context, events.ID, uint64) (events.Hash, error) { return events.Hash{}, err }
}

// TestParentAnswersLater applies the first event of a fork again until its parent's log gives an answer.
func TestParentAnswersLater(t *testing.T) {
	parent := audittest.Whole()
	r := audittest.Of("", parent.OpenFork(int(parent.Len()), events.Options{}))
	tries := 0
	c := audit.NewChecker(audit.CheckerConfig{
		Session: r.ID, Objects: audit.FromStore(r.Store()),
		Parents: func(context.Context, events.ID, uint64) (events.Hash, error) {
			if tries++; tries < 3 {
				return events.Hash{}, eventlog.ErrUnavailable
			}
			return parent.State.Head(), nil
		},
	})
	for range 2 {
		if v, err := c.Apply(t.Context(), r.Messages[0]); v != nil || !errors.Is(err, audit.ErrCouldNotCheck) || !errors.Is(err, eventlog.ErrUnavailable) {
			t.Fatalf("no answer: %v, %v", v, err)
		}
	}
	if v, err := c.Apply(t.Context(), r.Messages[0]); v != nil || err != nil || c.Lineage() != audit.LineageConfirmed || c.Seq() != 1 {
		t.Fatalf("%v, %v, lineage %q at %d", v, err, c.Lineage(), c.Seq())
	}
	applyAll(t, c, r.Messages[1:])
}

// TestFromLogs looks at logs in a store.
func TestFromLogs(t *testing.T) {
	s := eventlog.NewMemory(time.Now)
	l := audittest.Whole()
	log, err := s.Create(t.Context(), l.State.ID())
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Events {
		if err := log.Append(t.Context(), &l.Events[i], l.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	parents := audit.FromLogs(s)
	for i, payload := range l.Payloads {
		hash, err := parents(t.Context(), l.State.ID(), uint64(i+1))
		if err != nil || hash != events.HashPayload(payload) {
			t.Fatalf("event %d: %s, %v", i+1, hash, err)
		}
	}
	for _, seq := range []uint64{l.Len() + 1, l.Len() + 2} {
		if _, err := parents(t.Context(), l.State.ID(), seq); !errors.Is(err, audit.ErrNoEvent) {
			t.Errorf("event %d: %v", seq, err)
		}
	}
	if _, err := parents(t.Context(), foldtest.ID(1, 1), 1); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("no such session: %v", err)
	}
}
