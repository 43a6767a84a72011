package verify_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// whole returns a log with images in every form, a title's call, a compaction whose first call fails, and a turn that is
// cancelled.
func whole() *foldtest.Log {
	l := foldtest.New()
	l.Body = deepseek()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	big, shot := l.ImageBlock([]byte("a large image"), 1600, 1200), l.ImageBlock([]byte("a screen shot"), 40, 30)
	l.UserBlocks(events.Text("What is this?"), big)
	l.Header(foldtest.Header())
	l.Images(foldtest.Inline(big.Object.Digest, "Image 1", l.Object([]byte("a small image"), "image/png")))
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "call_1", "read", `{"path":"shot.png"}`))
	l.ToolCall()
	l.ToolResult(events.Text("shot:"), shot)
	l.StepEnd()
	l.StepStart()
	l.Images(foldtest.File(shot.Object.Digest, "file-1"))
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "A dog."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	l.AuxStream(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	l.Chunks(append(foldtest.TextBlock(0, "Dogs"), foldtest.FinishChunk(events.FinishStop))...)
	l.TitleOfCall("Dogs")
	nodes := l.State.Nodes()
	region := events.Region{Start: nodes[0], End: nodes[len(nodes)-1]}
	directive := []events.Block{events.Text("Summarise this: "), l.TextObject("all of it")}
	l.CompactionStart(events.CompactionCommand)
	l.AuxStream(events.PurposeCompaction, region, directive...)
	l.Failed(events.FailureServer)
	l.Retry()
	l.AuxStream(events.PurposeCompaction, region, directive...)
	l.Chunks(append(foldtest.TextBlock(0, "There was a dog."), foldtest.FinishChunk(events.FinishStop))...)
	l.SummaryOfCall()
	l.PutSummary()
	l.CompactionEnd(events.CompactionCompleted)
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(events.Text("And this?"), shot)
	l.Images(foldtest.Placeholder(shot.Object.Digest, "[no image]"))
	l.Stream()
	l.Chunks(append(foldtest.TextBlock(0, "Half"), foldtest.FinishChunk(events.FinishAborted))...)
	l.Append(&events.TurnCancelled{Turn: 2, Cause: "user"})
	l.Answer()
	l.StepEnd()
	l.TurnEnd(events.TurnAborted)
	return l
}

// TestWholeLog checks a log with auxiliary calls and images, warm, cold, and started anywhere.
func TestWholeLog(t *testing.T) {
	r := recordLog("", whole())
	for _, cold := range []bool{false, true} {
		report := r.check(t, r.messages, func(c *audit.LogCheck) { c.Cold = cold })
		if !report.AllMatch() || report.Requests != 6 || report.Lineage != audit.LineageNone {
			t.Errorf("cold %t: %d requests, %v", cold, report.Requests, report.Verdicts)
		}
	}
	all := applyAll(t, audit.NewChecker(audit.CheckerConfig{Session: r.session, Objects: audit.FromStore(&store{source: r.source})}), r.messages)
	for quiet := range uint64(len(r.messages)) {
		cfg := audit.CheckerConfig{Session: r.session, Objects: audit.FromStore(&store{source: r.source}), Quiet: quiet}
		want := slices.Clone(all)
		want = slices.DeleteFunc(want, func(v audit.Verdict) bool { return v.Seq <= quiet })
		if got := results(applyAll(t, audit.NewChecker(cfg), r.messages)); got != results(want) {
			t.Errorf("quiet up to %d: got\n%swant\n%s", quiet, got, results(want))
		}
	}
}

// TestAuxiliaryRequestThatDiffers records another directive than the one that was sent.
func TestAuxiliaryRequestThatDiffers(t *testing.T) {
	l := foldtest.New()
	l.Body = deepseek()
	l.Begin()
	l.Turn("hello", "world")
	other := l.AuxBody(events.PurposeTitle, events.Region{}, events.Text("Name it."))
	b := l.AuxBody(events.PurposeTitle, events.Region{}, events.Text("Name this."))
	b.Body = other.Body
	l.Append(b)
	l.Failed(events.FailureServer)
	l.Turn("again", "sure")
	r := recordLog("", l)
	if got := requestResults(r.check(t, r.messages, nil)); got != "match mismatch match" {
		t.Errorf("got %s", got)
	}
}

// TestImagesAreChecked damages the image as it came and the one that was sent: both belong to the request.
func TestImagesAreChecked(t *testing.T) {
	r := recordLog("", whole())
	for name, data := range map[string]string{"as it came": "a large image", "as it was sent": "a small image"} {
		digest := objects.Sum([]byte(data))
		for want, s := range map[string]*store{
			"missing-object": {missing: map[objects.Digest]bool{digest: true}},
			"corrupt-object": {altered: map[objects.Digest][]byte{digest: []byte("another image")}},
		} {
			s.source = r.source
			got := requestResults(r.check(t, r.messages, func(c *audit.LogCheck) { c.Objects = audit.FromStore(s) }))
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
	b := deepseek()
	l.Body = func(r *fold.Request, _ objects.Source) (string, events.BodyDigest) {
		empty := fold.Request{Header: r.Header}
		return b(&empty, l.Objects)
	}
	l.Stream()
	r := recordLog("", l)
	v := r.check(t, r.messages, nil).Verdicts[0]
	if v.Result != audit.InvalidLog || v.Rule != audit.RuleCodec {
		t.Errorf("%s", &v)
	}
}

// forked returns a log and a fork of it that has gone on.
func forked() (parent, fork *foldtest.Log) {
	parent = whole()
	fork = parent.OpenFork(int(parent.Len()), events.Options{})
	fork.Body = deepseek()
	fork.Turn("hello", "fork")
	return parent, fork
}

// TestFork checks a fork of a log with everything: what was copied is judged like what is its own.
func TestFork(t *testing.T) {
	parent, f := forked()
	r := recordLog("", f)
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
			report := r.check(t, r.messages, func(c *audit.LogCheck) {
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
	parent := whole()
	r := recordLog("", parent.OpenFork(int(parent.Len()), events.Options{}))
	tries := 0
	c := audit.NewChecker(audit.CheckerConfig{
		Session: r.session, Objects: audit.FromStore(&store{source: r.source}),
		Parents: func(context.Context, events.ID, uint64) (events.Hash, error) {
			if tries++; tries < 3 {
				return events.Hash{}, eventlog.ErrUnavailable
			}
			return parent.State.Head(), nil
		},
	})
	for range 2 {
		if v, err := c.Apply(t.Context(), r.messages[0]); v != nil || !errors.Is(err, audit.ErrCouldNotCheck) || !errors.Is(err, eventlog.ErrUnavailable) {
			t.Fatalf("no answer: %v, %v", v, err)
		}
	}
	if v, err := c.Apply(t.Context(), r.messages[0]); v != nil || err != nil || c.Lineage() != audit.LineageConfirmed || c.Seq() != 1 {
		t.Fatalf("%v, %v, lineage %q at %d", v, err, c.Lineage(), c.Seq())
	}
	applyAll(t, c, r.messages[1:])
}

// TestFromLogs looks at logs in a store.
func TestFromLogs(t *testing.T) {
	s := eventlog.NewMemory(time.Now)
	l := whole()
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

// TestForkOfAnotherLog runs a verifier over a fork whose parent's log is not any more what it was: that is found once, and
// the fork's own requests are judged all the same.
func TestForkOfAnotherLog(t *testing.T) {
	b := newBench(t)
	parent, fork := forked()
	for _, ref := range recordLog("", fork).refs {
		data, _ := fork.Objects.Bytes(ref.Digest)
		if _, err := objects.Put(t.Context(), b.client.Objects(), ref.MediaType, data); err != nil {
			t.Fatal(err)
		}
	}
	store := rewrite(t, parent.State.ID(), later(t, parent, true))
	log, err := store.Create(t.Context(), fork.State.ID())
	if err != nil {
		t.Fatal(err)
	}
	for i := range fork.Events {
		if err := log.Append(t.Context(), &fork.Events[i], fork.Payloads[i]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // a verifier that starts again does not report it again
		cfg := b.config()
		cfg.Hints, cfg.Store = nil, store
		v, kill := b.start(cfg)
		b.until("all verdicts", func() bool { return audited(v) })
		kill()
	}
	verdicts := b.verdicts(fork.State.ID())
	if first := verdicts[0]; first.Kind != audit.KindLog || first.Result != audit.InvalidLog || first.Rule != audit.RuleLineage || first.Seq != 1 {
		t.Errorf("%s", &first)
	}
	requests := 0
	for _, v := range verdicts[1:] {
		if v.Kind == audit.KindRequest {
			requests++
		}
		if v.Result != audit.Match {
			t.Errorf("%s", &v)
		}
	}
	if requests != 7 {
		t.Errorf("%d requests", requests)
	}
}
