package compact_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestTextTokens(t *testing.T) {
	tests := []struct {
		name, text string
		want       int64
	}{
		{"nothing", "", 0},
		{"one character", "a", 1},
		{"four characters", "abcd", 1},
		{"five characters", "abcde", 2},
		{"prose", strings.Repeat("word", 100), 100},
		{"NUL counts", "\x00", 1},
		{"Cyrillic", strings.Repeat("слово", 10), 25},
		{"Thai", strings.Repeat("\u0e01", 40), 30},
		{"Han", strings.Repeat("\u6f22", 40), 40},
		{"Kana", strings.Repeat("\u30ab", 40), 40},
		{"Hangul", strings.Repeat("\ud55c", 40), 40},
		{"emoji", strings.Repeat("\U0001F600", 40), 80},
		{"half a surrogate pair", "\xed\xa0\xbd", 3},
		{"bytes that are not text", "\xff\xfe", 2},
		{"mixed", "word\u6f22", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compact.TextTokens(tt.text); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestTextTokensProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), string(rapid.SliceOf(rapid.Byte()).Draw(t, "b"))
		whole := compact.TextTokens(a + b)
		if parts := compact.TextTokens(a) + compact.TextTokens(b); whole > parts {
			t.Errorf("%q and %q have %d tokens apart, %d together", a, b, parts, whole)
		}
		if n := int64(len(a + b)); whole > n || (whole == 0) != (n == 0) {
			t.Errorf("%d bytes have %d tokens", n, whole)
		}
	})
}

func TestImageTokens(t *testing.T) {
	tests := []struct {
		name                string
		width, height, want int64
	}{
		{"a dot", 1, 1, 64},
		{"no size", 0, 0, 64},
		{"negative", -5, 100, 64},
		{"middle", 750, 1000, 1000},
		{"rounded up", 751, 1000, 1002},
		{"large", 8000, 6000, 3200},
		{"absurd", math.MaxInt64, math.MaxInt64, 3200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compact.ImageTokens(tt.width, tt.height); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestMessageTokens(t *testing.T) {
	image := events.Block{Type: events.BlockImage, Width: 750, Height: 1000}
	huge := events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: math.MaxInt64}}
	tests := []struct {
		name    string
		content []events.Block
		want    int64
	}{
		{"empty", nil, 4},
		{"text", []events.Block{events.Text(words(10))}, 14},
		{"reasoning", []events.Block{{Type: events.BlockReasoning, Text: words(10)}}, 14},
		{"text in an object", []events.Block{{Type: events.BlockText, Object: objects.Ref{Bytes: 300}}}, 104},
		{"call", assistant(1, "", "call").Message.Content, 4 + 8 + 1 + 1 + 2},
		{"result", output(1, "call", words(10)).Message.Content, 4 + 8 + 1 + 10},
		{"result with an image", result(1, "call", events.Text(words(10)), image).Message.Content, 4 + 8 + 1 + 10 + 1000},
		{"image", []events.Block{image}, 1004},
		{"absurd sizes do not overflow", []events.Block{huge, huge, huge}, 1 << 40},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compact.MessageTokens(&events.Message{Content: tt.content}); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
	if got := compact.MessageTokens(nil); got != 0 {
		t.Errorf("no message has %d tokens", got)
	}
}

func TestHeaderTokens(t *testing.T) {
	tool := events.Tool{Name: "read", Description: words(3), Parameters: `{"type":"object"}`}
	huge := objects.Ref{Bytes: math.MaxInt64}
	tests := []struct {
		name   string
		header *events.Header
		want   int64
	}{
		{"none", nil, 0},
		{"empty", header(""), 0},
		{"system prompt", header(words(10)), 14},
		{"system prompt in an object", &events.Header{SystemObject: objects.Ref{Bytes: 30}}, 14},
		{"tools", header("", tool, tool), 2 * (8 + 1 + 3 + 5)},
		{"tools in an object", &events.Header{ToolsObject: objects.Ref{Bytes: 41}}, 11},
		{"absurd sizes do not overflow", &events.Header{SystemObject: huge, ToolsObject: huge}, 1 << 40},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compact.HeaderTokens(tt.header); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
