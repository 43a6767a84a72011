package provider

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
)

type usage = events.Usage

var usageTests = []struct {
	name, in string
	want     usage
}{
	{"no cache figures", `{"prompt_tokens":20,"completion_tokens":3,"total_tokens":23}`, usage{InputTokens: 20, OutputTokens: 3}},
	{
		"hit and miss", `{"prompt_tokens":100,"completion_tokens":3,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":36}`,
		usage{InputTokens: 36, CacheReported: true, CacheReadTokens: 64, OutputTokens: 3},
	},
	{
		"hit at the top alone", `{"prompt_tokens":100,"completion_tokens":3,"prompt_cache_hit_tokens":64}`,
		usage{InputTokens: 36, CacheReported: true, CacheReadTokens: 64, OutputTokens: 3},
	},
	{
		"miss alone is no write", `{"prompt_tokens":100,"completion_tokens":3,"prompt_cache_miss_tokens":36}`,
		usage{InputTokens: 36, CacheReported: true, CacheReadTokens: 64, OutputTokens: 3},
	},
	{
		"details", `{"prompt_tokens":120,"completion_tokens":3,"prompt_tokens_details":{"audio_tokens":1,"cached_tokens":96}}`,
		usage{InputTokens: 24, CacheReported: true, CacheReadTokens: 96, OutputTokens: 3},
	},
	{
		"details win", `{"prompt_tokens":140,"completion_tokens":3,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":76,"prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2}}`,
		usage{InputTokens: 12, CacheReported: true, CacheReadTokens: 128, OutputTokens: 3, ReasoningTokens: 2},
	},
	{
		"a null in the details does not win", `{"prompt_tokens":100,"completion_tokens":3,"prompt_cache_hit_tokens":64,"prompt_tokens_details":{"cached_tokens":null}}`,
		usage{InputTokens: 36, CacheReported: true, CacheReadTokens: 64, OutputTokens: 3},
	},
	{
		"zero is a report", `{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":10,"completion_tokens_details":{}}`,
		usage{InputTokens: 10, CacheReported: true, OutputTokens: 1},
	},
	{
		"both null is none", `{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_hit_tokens":null,"prompt_cache_miss_tokens":null,"prompt_tokens_details":null,"completion_tokens_details":null}`,
		usage{InputTokens: 10, OutputTokens: 1},
	},
	{
		"hit and miss without the sum", `{"completion_tokens":1,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":6}`,
		usage{InputTokens: 6, CacheReported: true, CacheReadTokens: 64, OutputTokens: 1},
	},
	{
		"whole numbers in other spellings", `{"prompt_tokens":1e2,"completion_tokens":3.0,"prompt_cache_hit_tokens":-0}`,
		usage{InputTokens: 100, CacheReported: true, OutputTokens: 3},
	},
	{
		"the last of two names counts", `{"prompt_tokens":1,"prompt_tokens":2,"completion_tokens":3}`,
		usage{InputTokens: 2, OutputTokens: 3},
	},

	{
		"more hits than input", `{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_hit_tokens":25}`,
		usage{CacheReported: true, CacheReadTokens: 10, OutputTokens: 1, Clamped: true},
	},
	{
		"more misses than input", `{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_miss_tokens":25}`,
		usage{InputTokens: 10, CacheReported: true, OutputTokens: 1, Clamped: true},
	},
	{
		"hit and miss are not the input", `{"prompt_tokens":10,"completion_tokens":1,"prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":5}`,
		usage{InputTokens: 6, CacheReported: true, CacheReadTokens: 4, OutputTokens: 1, Clamped: true},
	},
	{
		"more reasoning than output", `{"prompt_tokens":10,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":2}}`,
		usage{InputTokens: 10, OutputTokens: 1, ReasoningTokens: 1, Clamped: true},
	},
	{"fractional", `{"prompt_tokens":10.5,"completion_tokens":1}`, usage{InputTokens: 10, OutputTokens: 1, Clamped: true}},
	{"negative", `{"prompt_tokens":-5,"completion_tokens":-1e300}`, usage{Clamped: true}},
	{
		"absurd", `{"prompt_tokens":1e400,"completion_tokens":99999999999999999999}`,
		usage{InputTokens: maxTokenCount, OutputTokens: maxTokenCount, Clamped: true},
	},
	{"just beyond", `{"prompt_tokens":9007199254740993,"completion_tokens":1}`, usage{InputTokens: maxTokenCount, OutputTokens: 1, Clamped: true}},
	{
		"an absurd sum", `{"completion_tokens":1,"prompt_cache_hit_tokens":1e15,"prompt_cache_miss_tokens":9e15}`,
		usage{InputTokens: maxTokenCount - 1e15, CacheReported: true, CacheReadTokens: 1e15, OutputTokens: 1, Clamped: true},
	},
	{"text for a number", `{"prompt_tokens":"10","completion_tokens":1}`, usage{OutputTokens: 1, Clamped: true}},
	{"details of a wrong type", `{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":[1]}`, usage{InputTokens: 10, OutputTokens: 1, Clamped: true}},
	{"empty", `{}`, usage{Clamped: true}},
	{
		"hits alone", `{"completion_tokens":1,"prompt_cache_hit_tokens":64}`,
		usage{CacheReported: true, CacheReadTokens: 64, OutputTokens: 1, Clamped: true},
	},
}

func TestUsage(t *testing.T) {
	for _, tt := range usageTests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := parseUsage(jsontext.Value(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			c := u.chunk()
			if diff := cmp.Diff(tt.want, c.Usage); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if string(c.RawUsage) != tt.in {
				t.Errorf("raw = %s", c.RawUsage)
			}
			checkEncodable(t, []events.Chunk{c})
		})
	}
}

// TestUsageLatest: a later report replaces an earlier one, figure by figure, and nothing is added up.
func TestUsageLatest(t *testing.T) {
	chunk := func(u string) string { return `{"choices":[{"delta":{"content":"a"}}],"usage":` + u + `}` }
	tests := []struct {
		name    string
		reports []string
		want    usage
		raw     []string
	}{
		{
			"cumulative",
			[]string{`{"prompt_tokens":5,"completion_tokens":1}`, `{"prompt_tokens":5,"completion_tokens":2}`, `{"prompt_tokens":5,"completion_tokens":3}`},
			usage{InputTokens: 5, OutputTokens: 3},
			[]string{`{"prompt_tokens":5,"completion_tokens":3}`},
		},
		{
			"input first, output later",
			[]string{`{"prompt_tokens":100,"prompt_cache_hit_tokens":64}`, `{"completion_tokens":2}`, `{"completion_tokens":9}`},
			usage{InputTokens: 36, CacheReported: true, CacheReadTokens: 64, OutputTokens: 9},
			[]string{`{"completion_tokens":2}`, `{"completion_tokens":9}`},
		},
		{
			"null takes nothing back",
			[]string{`{"prompt_tokens":5,"completion_tokens":1}`, `null`},
			usage{InputTokens: 5, OutputTokens: 1},
			[]string{`{"prompt_tokens":5,"completion_tokens":1}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			for _, r := range tt.reports {
				lines = append(lines, chunk(r))
			}
			chunks, failed := decodeStream(1, data(append(lines, done)...))
			if failed != nil {
				t.Fatal(failed)
			}
			var got []events.Chunk
			for _, c := range chunks {
				if c.Type == events.ChunkUsage {
					got = append(got, c)
				}
			}
			var raw []string
			for _, c := range got {
				raw = append(raw, string(c.RawUsage))
			}
			if diff := cmp.Diff(tt.raw, raw); diff != "" {
				t.Errorf("raw (-want +got):\n%s", diff)
			}
			if len(got) == 0 || got[len(got)-1].Usage != tt.want {
				t.Errorf("usage = %+v, want %+v last", got, tt.want)
			}
		})
	}
}

// TestUsageRawUnfit: a usage object that the log cannot hold is left out and the figures are marked.
func TestUsageRawUnfit(t *testing.T) {
	for name, extra := range map[string]string{
		"not UTF-8": "\"\xff\"",
		"too large": `"` + strings.Repeat("x", maxRawUsage) + `"`,
		"too deep":  strings.Repeat("[", 600) + strings.Repeat("]", 600),
	} {
		u, err := parseUsage(jsontext.Value(`{"prompt_tokens":1,"completion_tokens":2,"x":` + extra + `}`))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c := u.chunk(); c.RawUsage != "" || c.Usage != (usage{InputTokens: 1, OutputTokens: 2, Clamped: true}) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
