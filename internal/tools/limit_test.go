package tools_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

const (
	flag      = "🇩🇪"                  // 8 bytes
	family    = "👩\u200d👩\u200d👧"     // 18 bytes
	surrogate = "\xed\xa0\xbd"        // U+D83D, 3 bytes
	accented  = "e\u0301\u0323\u0308" // 7 bytes
)

func TestCut(t *testing.T) {
	for _, c := range []struct {
		name, text string
		max        int
		want       string
	}{
		{"fits", "abc", 3, "abc"},
		{"empty", "", 0, ""},
		{"nothing fits", "abc", 0, ""},
		{"a limit below nothing", "abc", -1, ""},
		{"between letters", "abc", 2, "ab"},
		{"inside a flag", "a" + flag + "b", 8, "a"},
		{"after a flag", "a" + flag + "b", 9, "a" + flag},
		{"between two flags", flag + flag + "b", 12, flag},
		{"inside the third of three flags", flag + flag + flag, 20, flag + flag},
		{"inside a family", "ab" + family, 18, "ab"},
		{"inside an accented letter", accented + accented, 10, accented},
		{"inside CRLF", "ab\r\ncd", 3, "ab"},
		{"inside a surrogate", "ab" + surrogate, 4, "ab"},
		{"after a surrogate", surrogate + surrogate, 5, surrogate},
		{"a surrogate keeps its accent", "abc" + surrogate + "\u0301" + "abcdef", 6, "abc"},
		{"Hangul", "각각", 5, "각"},
		{"a cluster that is longer than the limit", flag, 7, "🇩"},
		{"such a cluster after a letter", "a" + family, 10, "a👩\u200d"},
		{"not even a code point", "日", 2, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, cut := tools.Cut(c.text, c.max)
			if got != c.want || cut != (got != c.text) {
				t.Errorf("Cut(%q, %d) = %q, %v, want %q", c.text, c.max, got, cut, c.want)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	long := strings.Repeat("x", 500) + strings.Repeat("y", 500)
	raw := bytes.Repeat([]byte{0xFF}, 100)
	for _, c := range []struct {
		name string
		in   string
		max  int
		want string
	}{
		{"fits", "abc", 3, "abc"},
		{"beginning and end", long, 132, strings.Repeat("x", 50) + "\n[899 of 1000 bytes left out]\n" + strings.Repeat("y", 51)},
		{"no room for the line", long, 20, strings.Repeat("x", 20)},
		{"room for the line alone", strings.Repeat(family, 100), 33, "[1800 of 1800 bytes left out]"},
		{"bytes that are not UTF-8", string(raw), 90, strings.Repeat("\xed\xb3\xbf", 10) + "\n[80 of 100 bytes left out]\n" + strings.Repeat("\xed\xb3\xbf", 10)},
		{
			"flags at both cuts", strings.Repeat(flag, 100), 100,
			strings.Repeat(flag, 4) + "\n[736 of 800 bytes left out]\n" + strings.Repeat(flag, 4),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, cut := tools.Limit([]byte(c.in), c.max)
			if got != c.want || cut != (c.in != c.want) {
				t.Errorf("Limit(%d) = %q (%d bytes), %v, want %q (%d bytes)", c.max, got, len(got), cut, c.want, len(c.want))
			}
		})
	}
}

// TestLimitOfMarks has outputs in which no place tells that a cluster ends; time grows with them, not with their square.
func TestLimitOfMarks(t *testing.T) {
	for _, c := range []struct {
		name, unit string
		size       int
		one        bool // the whole is one cluster
	}{
		{"marks", "\u0301", 10 << 20, true},
		{"flags", flag, 1 << 20, false},
		{"emoji joined", "😀\u200d", 1 << 20, true},
		{"no UTF-8", "\xff", 1 << 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := bytes.Repeat([]byte(c.unit), c.size/len(c.unit))
			got, cut := tools.Limit(in, 1000)
			if !cut || len(got) > 1000 || len(got) < 900 || !events.ValidText(got) {
				t.Errorf("Limit has %d bytes: %q", len(got), got)
			}
			in = in[:min(len(in), 1<<20)/len(c.unit)*len(c.unit)]
			text := events.TextFromBytes(in)
			if head, cut := tools.Cut(text, len(text)/2); !cut || len(head) < len(text)/2-8 {
				t.Errorf("Cut has %d bytes of %d", len(head), len(text))
			}
			if pruned, ok := tools.Prune(text, 3, 3); ok == c.one { // one cluster is not pruned
				t.Errorf("Prune = %d bytes, %v", len(pruned), ok)
			}
		})
	}
}

func TestPrune(t *testing.T) {
	long := strings.Repeat("0123456789", 10)
	for _, c := range []struct {
		name, text string
		head, tail int
		want       string
	}{
		{"letters", long, 3, 2, "012\n[95 of 100 bytes left out]\n89"},
		{"head alone", long, 3, 0, "012\n[97 of 100 bytes left out]"},
		{"tail alone", long, 0, 2, "[98 of 100 bytes left out]\n89"},
		{"nothing", long, -1, -1, "[100 of 100 bytes left out]"},
		{"clusters", flag + family + long + "\r\n" + surrogate, 2, 2, flag + family + "\n[100 of 131 bytes left out]\n\r\n" + surrogate},
		{"a byte", "\xed\xb3\xbf" + long + "\xed\xb2\x80", 1, 1, "\xed\xb3\xbf" + "\n[100 of 102 bytes left out]\n" + "\xed\xb2\x80"},
		{"all of it", long, 50, 50, ""},
		{"more than all of it", long, 1 << 62, 1 << 62, ""},
		{"not shorter", long, 40, 35, ""},
		{"empty", "", 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, pruned := c.want, true
			if want == "" {
				want, pruned = c.text, false
			}
			if got, ok := tools.Prune(c.text, c.head, c.tail); got != want || ok != pruned {
				t.Errorf("Prune(%q, %d, %d) = %q, %v, want %q", c.text, c.head, c.tail, got, ok, want)
			}
		})
	}
}

func TestCutsKeepText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Repeat(eventstest.Text().Draw(t, "text"), rapid.IntRange(1, 8).Draw(t, "times"))
		if !events.ValidText(text) { // a pair that the repetition joined
			text = events.TextFromBytes([]byte(text))
		}
		limit := rapid.IntRange(-1, 300).Draw(t, "limit")
		checkCut(t, text, limit)
		checkLimit(t, events.BytesFromText(text), limit)
		head, tail := rapid.IntRange(-1, 20).Draw(t, "head"), rapid.IntRange(-1, 20).Draw(t, "tail")
		got, ok := tools.Prune(text, head, tail)
		if ok != (got != text) || ok && len(got) >= len(text) || !events.ValidText(got) {
			t.Fatalf("Prune(%q, %d, %d) = %q, %v", text, head, tail, got, ok)
		}
		if again, _ := tools.Prune(text, head, tail); again != got {
			t.Fatalf("Prune(%q) is once %q and once %q", text, got, again)
		}
	})
}

type fataler interface {
	Fatalf(format string, args ...any)
}

func checkCut(t fataler, text string, limit int) {
	got, cut := tools.Cut(text, limit)
	if !strings.HasPrefix(text, got) || cut != (got != text) || len(got) > max(limit, 0) || !events.ValidText(got) {
		t.Fatalf("Cut(%q, %d) = %q, %v", text, limit, got, cut)
	}
}

// checkLimit checks that what is left and what is said to be left out make up the output.
func checkLimit(t fataler, output []byte, limit int) {
	got, cut := tools.Limit(output, limit)
	whole := events.TextFromBytes(output)
	if len(got) > max(limit, 0) || cut != (got != whole) || !events.ValidText(got) {
		t.Fatalf("Limit(%q, %d) = %q, %v", output, limit, got, cut)
	}
	if !cut || limit < 100 {
		return
	}
	for i := 0; ; i++ {
		at := strings.Index(got[i:], "[")
		if at < 0 {
			t.Fatalf("Limit(%q, %d) = %q does not say what is left out", output, limit, got)
		}
		i += at
		var left, all int
		if n, _ := fmt.Sscanf(got[i:], "[%d of %d bytes left out]", &left, &all); n < 2 || all != len(output) {
			continue
		}
		line := fmt.Sprintf("[%d of %d bytes left out]", left, all)
		head, tail, found := strings.Cut(got[max(i-1, 0):], line)
		if !found {
			continue
		}
		head, tail = strings.TrimSuffix(got[:max(i-1, 0)]+head, "\n"), strings.TrimPrefix(tail, "\n")
		if strings.HasPrefix(whole, head) && strings.HasSuffix(whole, tail) &&
			len(events.BytesFromText(head))+left+len(events.BytesFromText(tail)) == len(output) {
			return
		}
	}
}

func FuzzLimit(f *testing.F) {
	f.Add([]byte(strings.Repeat(flag, 40)), 150)
	f.Add([]byte("a\xff"+family+"\r\n"), 10)
	f.Add(bytes.Repeat([]byte{0xFF, 'a', '\n'}, 100), 120)
	f.Fuzz(func(t *testing.T, output []byte, limit int) {
		checkCut(t, events.TextFromBytes(output), limit)
		checkLimit(t, output, limit)
	})
}
