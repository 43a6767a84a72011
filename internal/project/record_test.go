package project_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/project"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

var update = flag.Bool("update", false, "write the golden files anew; a difference is a change of the format")

func genUsage() *rapid.Generator[*project.Usage] {
	return rapid.Custom(func(t *rapid.T) *project.Usage {
		return project.UsageOf(eventstest.Usage().Draw(t, "usage"), rapid.Bool().Draw(t, "reported"))
	})
}

func genAttempt(stream uint64) *rapid.Generator[project.Attempt] {
	return rapid.Custom(func(t *rapid.T) project.Attempt {
		a := project.Attempt{
			Stream: stream, Bytes: eventstest.Count().Draw(t, "bytes"), Messages: eventstest.Count().Draw(t, "messages"),
			DurationMs: eventstest.Count().Draw(t, "duration"), Usage: genUsage().Draw(t, "usage"),
			Limit:   rapid.SampledFrom([]project.Limit{project.LimitNone, project.LimitModel, project.LimitTemplateOrder}).Draw(t, "limit"),
			Unbuilt: rapid.SampledFrom([]project.Unbuilt{project.Built, project.UnbuiltCodec, project.UnbuiltMissing}).Draw(t, "unbuilt"),
			Failure: rapid.SampledFrom([]events.FailureCode{"", events.FailureServer, "VENDOR_CODE"}).Draw(t, "failure"),
		}
		a.Prefix.Bytes = rapid.Int64Range(0, a.Bytes).Draw(t, "prefix bytes")
		a.Prefix.Messages = rapid.Int64Range(0, a.Messages).Draw(t, "prefix messages")
		a.Reusable.Bytes = rapid.Int64Range(0, a.Prefix.Bytes).Draw(t, "reusable bytes")
		a.Reusable.Messages = rapid.Int64Range(0, a.Prefix.Messages).Draw(t, "reusable messages")
		if rapid.Bool().Draw(t, "chunks") {
			ms := eventstest.Count().Draw(t, "first chunk")
			a.FirstChunkMs = &ms
		}
		return a
	})
}

func genRecord() *rapid.Generator[project.Record] {
	text := rapid.Map(eventstest.Text(), func(s string) project.Text { return project.Text(s) })
	return rapid.Custom(func(t *rapid.T) project.Record {
		r := project.Record{
			V: project.Version, Session: eventstest.ID().Draw(t, "session"),
			Turn: eventstest.Ordinal().Draw(t, "turn"), Step: eventstest.Ordinal().Draw(t, "step"),
			Time: eventstest.Count().Draw(t, "time"), DurationMs: eventstest.Count().Draw(t, "duration"),
			Provider: text.Draw(t, "provider"), Model: text.Draw(t, "model"), Codec: text.Draw(t, "codec"),
			Usage: genUsage().Draw(t, "usage"), ExpectedTokens: eventstest.Count().Draw(t, "expected"),
			GapMs: eventstest.Count().Draw(t, "gap"), Cause: rapid.SampledFrom(project.Causes()).Draw(t, "cause"),
			ToolCalls: eventstest.Count().Draw(t, "calls"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "attempts") {
			r.Seq += rapid.Uint64Range(1, 100).Draw(t, "stream")
			r.Attempts = append(r.Attempts, genAttempt(r.Seq).Draw(t, "attempt"))
		}
		r.Seq++
		switch rapid.IntRange(0, 2).Draw(t, "end") {
		case 0:
			r.Finish = events.FinishStop
		case 1:
			r.Failure = events.FailureTimeout
		}
		if rapid.Bool().Draw(t, "published") {
			r.Projector = eventstest.ID().Draw(t, "projector")
		}
		return r
	})
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRecord().Draw(t, "record")
		b, err := project.Encode(&r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := project.Decode(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// sample is a record with every field.
func sample() project.Record {
	ms := int64(412)
	return project.Record{
		V: project.Version, Session: "01JDXAMP1E0000000000000000", Turn: 2, Step: 1, Seq: 57, Time: 1733000000969, DurationMs: 2810,
		Provider: "deepseek", Model: "caf\u00e9 \xed\xa0\xbd <&>\u2028", Codec: "deepseek-chat/1",
		Attempts: []project.Attempt{
			{
				Stream: 41, Bytes: 9120, Messages: 7, Prefix: project.Extent{Bytes: 8800, Messages: 5},
				Reusable: project.Extent{Bytes: 120}, Limit: project.LimitTemplateOrder, DurationMs: 90,
				Failure: events.FailureTransport, Usage: &project.Usage{InputUncached: 10},
			},
			{
				Stream: 45, Bytes: 9120, Messages: 7, Prefix: project.Extent{Bytes: 9120, Messages: 7}, Unbuilt: project.UnbuiltPredecessor,
				Reusable: project.Extent{Bytes: 9120, Messages: 7}, FirstChunkMs: &ms, DurationMs: 2000,
			},
		},
		Usage: &project.Usage{
			InputUncached: 310, CacheRead: 1920, CacheWrite5m: 5, CacheWrite1h: 6, Output: 200, Reasoning: 120, CacheReported: true, Clamped: true,
		},
		ExpectedTokens: 2176, GapMs: 3000, Cause: project.CauseTools, Finish: events.FinishToolCalls, ToolCalls: 2,
		Projector: "01JDXAMP1E0000000000000001",
	}
}

// TestRecordGolden pins the bytes.
func TestRecordGolden(t *testing.T) {
	r := sample()
	got, err := project.Encode(&r)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "record.json")
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	again, err := project.Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	r := sample()
	good, err := project.Encode(&r)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		old, with string
		want      error
	}{
		"white space":        {`{"v":1,`, `{"v":1, `, project.ErrSyntax},
		"an unknown field":   {`"turn":2`, `"turn":2,"x":1`, project.ErrSyntax},
		"another case":       {`"turn":2`, `"Turn":2`, project.ErrSyntax},
		"a doubled field":    {`"turn":2`, `"turn":2,"turn":2`, project.ErrSyntax},
		"another order":      {`"turn":2,"step":1`, `"step":1,"turn":2`, project.ErrSyntax},
		"an empty field":     {`"gapMs":3000`, `"gapMs":0`, project.ErrSyntax},
		"a fraction":         {`"turn":2`, `"turn":2.0`, project.ErrSyntax},
		"something behind":   {`0001"}`, `0001"}{}`, project.ErrSyntax},
		"a newer format":     {`"v":1`, `"v":2`, project.ErrInvalid},
		"a malformed ULID":   {`01JDXAMP1E0000000000000000`, `01JDXAMP1E`, project.ErrInvalid},
		"an unknown cause":   {`"cause":"tools"`, `"cause":"moon"`, project.ErrInvalid},
		"a negative count":   {`"durationMs":2810`, `"durationMs":-1`, project.ErrInvalid},
		"too much reasoning": {`"reasoning":120`, `"reasoning":201`, project.ErrInvalid},
		"a prefix too long":  {`"bytes":8800`, `"bytes":9121`, project.ErrInvalid},
		"unreported cache":   {`"cacheReported":true,`, ``, project.ErrInvalid},
		"an attempt behind":  {`"stream":45`, `"stream":57`, project.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			bad := bytes.Replace(good, []byte(tt.old), []byte(tt.with), 1)
			if bytes.Equal(bad, good) {
				t.Fatalf("%s is not in %s", tt.old, good)
			}
			if _, err := project.Decode(bad); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// FuzzDecode: what is accepted is canonical.
func FuzzDecode(f *testing.F) {
	r := sample()
	good, err := project.Encode(&r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := project.Decode(b)
		if err != nil {
			return
		}
		again, err := project.Encode(&r)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q becomes %q: %v", b, again, err)
		}
	})
}
