package sse_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/sse"
)

// event is an event whose data does not change.
type event struct {
	Type, ID, Data string
	Incomplete     bool
}

// decode feeds the parts one by one.
func decode(t testing.TB, limit int, parts ...string) ([]event, *sse.Decoder, error) {
	t.Helper()
	d := sse.NewDecoder(limit)
	var out []event
	emit := func(e sse.Event) bool {
		out = append(out, event{e.Type, e.ID, string(e.Data), e.Incomplete})
		return true
	}
	for _, p := range parts {
		if err := d.Feed([]byte(p), emit); err != nil {
			return out, d, err
		}
	}
	return out, d, d.Close(emit)
}

func bytesOf(s string) []string {
	parts := make([]string, len(s))
	for i := range len(s) {
		parts[i] = s[i : i+1]
	}
	return parts
}

var decodeTests = []struct {
	name, in string
	want     []event
}{
	{"nothing", "", nil},
	{"one", "data: a\n\n", []event{{Data: "a"}}},
	{"no space", "data:a\n\n", []event{{Data: "a"}}},
	{"one space only is dropped", "data:  a\n\n", []event{{Data: " a"}}},
	{"several lines", "data: a\ndata: b\ndata\ndata: d\n\n", []event{{Data: "a\nb\n\nd"}}},
	{"CRLF", "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", []event{{Data: "a\nb"}, {Data: "c"}}},
	{"CR", "data: a\rdata: b\r\rdata: c\r\r", []event{{Data: "a\nb"}, {Data: "c"}}},
	{"mixed ends", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", []event{{Data: "a"}, {Data: "b"}, {Data: "c"}}},
	{"empty data", "data:\n\ndata\n\n", []event{{Data: ""}, {Data: ""}}},
	{"blank lines", "\n\r\n\rdata: a\n\n\n\n", []event{{Data: "a"}}},
	{"comments", ": hello\n:\ndata: a\n: within\ndata: b\n\n:end", []event{{Data: "a\nb"}}},
	{"a comment alone", ": keep-alive\n\n", nil},
	{"type", "event: error\ndata: a\n\ndata: b\n\n", []event{{Type: "error", Data: "a"}, {Data: "b"}}},
	{"type without data", "event: error\n\ndata: b\n\n", []event{{Data: "b"}}},
	{"id stays", "id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", []event{{ID: "7", Data: "a"}, {ID: "7", Data: "b"}, {Data: "c"}}},
	{"id with NUL", "id: 7\nid: a\x00b\ndata: a\n\n", []event{{ID: "7", Data: "a"}}},
	{"unknown fields", "foo: x\nDATA: x\n data: x\ndata: a\n\n", []event{{Data: "a"}}},
	{"colon in the value", "data: a: b:c\n\n", []event{{Data: "a: b:c"}}},
	{"byte order mark", "\xEF\xBB\xBFdata: a\n\n", []event{{Data: "a"}}},
	{"one byte order mark only", "\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\ndata: b\n\n", []event{{Data: "b"}}},
	{"half a byte order mark", "\xEF\xBBdata: a\n\ndata: \xEF\xBB\xBFb\n\n", []event{{Data: "\xEF\xBB\xBFb"}}},
	{"other line ends are none", "data: a\u2028b\u2029c\u0085d\x0be\x0cf\n\n", []event{{Data: "a\u2028b\u2029c\u0085d\x0be\x0cf"}}},
	{"not UTF-8", "data: \xff\xfe\xc3\n\n", []event{{Data: "\xff\xfe\xc3"}}},
	{"NUL", "data: a\x00b\n\n", []event{{Data: "a\x00b"}}},
	{"no blank line at the end", "data: a\n\ndata: [DONE]\n", []event{{Data: "a"}, {Data: "[DONE]", Incomplete: true}}},
	{"no line end at the end", "data: a\n\ndata: [DONE]", []event{{Data: "a"}, {Data: "[DONE]", Incomplete: true}}},
	{"cut within a field name", "data: a\nda", []event{{Data: "a", Incomplete: true}}},
	{"cut before data", "event: x\nid: 3", nil},
}

func TestDecode(t *testing.T) {
	for _, tt := range decodeTests {
		t.Run(tt.name, func(t *testing.T) {
			for how, parts := range map[string][]string{"whole": {tt.in}, "byte by byte": bytesOf(tt.in)} {
				got, _, err := decode(t, 0, parts...)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", how, diff)
				}
			}
		})
	}
}

func TestRetry(t *testing.T) {
	for in, want := range map[string]int64{
		"": -1, "retry: 1500\n": 1500, "retry: 15\nretry: x\n": 15, "retry: -1\n": -1, "retry:\n": -1, "retry: 1e3\n": -1,
		"retry: 99999999999999999999\n": -1,
	} {
		if _, d, err := decode(t, 0, in); err != nil || d.Retry() != want {
			t.Errorf("%q: Retry() = %d, %v, want %d", in, d.Retry(), err, want)
		}
	}
}

func TestLimit(t *testing.T) {
	const limit = 100
	fits := strings.Repeat("x", limit-len("data: "))
	if got, _, err := decode(t, limit, "data: "+fits+"\n\n"); err != nil || len(got) != 1 {
		t.Errorf("an event at the limit: %v, %v", got, err)
	}
	for name, in := range map[string]string{
		"line":       "data: x" + fits + "\n\n",
		"open line":  "data: x" + fits,
		"data lines": strings.Repeat("data: 12345678\n", 12),
		"empty data": strings.Repeat("data\n", 101),
		"other line": "x" + strings.Repeat("y", limit),
	} {
		for how, parts := range map[string][]string{"whole": {in}, "byte by byte": bytesOf(in)} {
			_, d, err := decode(t, limit, parts...)
			var le *sse.LimitError
			if !errors.Is(err, sse.ErrTooLarge) || !errors.As(err, &le) || le.Limit != limit {
				t.Errorf("%s, %s: error = %v", name, how, err)
			}
			if again := d.Feed([]byte("\n\n"), nil); !errors.Is(again, sse.ErrTooLarge) {
				t.Errorf("%s, %s: the decoder goes on after its error: %v", name, how, again)
			}
		}
	}
	if got, _, err := decode(t, limit, ":"+strings.Repeat("c", 10*limit), "c\ndata: a\n\n"); err != nil || len(got) != 1 {
		t.Errorf("a long comment: %v, %v", got, err)
	}
}

func TestLongLine(t *testing.T) {
	data := strings.Repeat("0123456789abcdef", 1<<18) // 4 MiB
	var got int
	for e, err := range sse.Events(strings.NewReader("data: "+data+"\n\ndata: b\n\n"), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if got++; got == 1 && string(e.Data) != data {
			t.Errorf("the long event has %d bytes, want %d", len(e.Data), len(data))
		}
	}
	if got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

func TestEventsReader(t *testing.T) {
	broken := errors.New("broken")
	r := io.MultiReader(strings.NewReader("data: a\n\ndata: b\n\ndata: c"), iotest.ErrReader(broken))
	var got []string
	var last error
	for e, err := range sse.Events(iotest.OneByteReader(r), 0) {
		if err != nil {
			last = err
			continue
		}
		got = append(got, string(e.Data))
	}
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" || !errors.Is(last, broken) {
		t.Errorf("events (-want +got):\n%s\nerror = %v", diff, last)
	}
	for e, err := range sse.Events(strings.NewReader("data: a\n\ndata: b\n\n"), 0) {
		if err != nil || string(e.Data) != "a" {
			t.Errorf("%q, %v", e.Data, err)
		}
		break // an iterator that goes on after this panics
	}
	for _, err := range sse.Events(strings.NewReader("data: aaaaaaaaaaaa\n\n"), 8) {
		if !errors.Is(err, sse.ErrTooLarge) {
			t.Errorf("error = %v", err)
		}
	}
}

// FuzzDecoder: how the input is split makes no difference, and the decoder agrees with a decoder that knows the whole
// input.
func FuzzDecoder(f *testing.F) {
	for _, tt := range decodeTests {
		f.Add(tt.in, 3, 7)
	}
	f.Fuzz(func(t *testing.T, in string, a, b int) {
		cut := func(n int) int {
			if n < 0 {
				n = -(n + 1)
			}
			return n % (len(in) + 1)
		}
		i, j := min(cut(a), cut(b)), max(cut(a), cut(b))
		whole, _, err := decode(t, 1<<20, in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(naive(in), whole); diff != "" {
			t.Fatalf("naive and real (-naive +real):\n%s", diff)
		}
		for _, parts := range [][]string{{in[:i], in[i:j], in[j:]}, bytesOf(in)} {
			split, _, err := decode(t, 1<<20, parts...)
			if diff := cmp.Diff(whole, split); err != nil || diff != "" {
				t.Fatalf("split at %d and %d: %v (-whole +split):\n%s", i, j, err, diff)
			}
		}
	})
}

// naive decodes by splitting the whole input into lines.
func naive(in string) []event {
	in = strings.TrimPrefix(in, "\xEF\xBB\xBF")
	in = strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(in, "\n")
	open := lines[len(lines)-1] != "" // the last line has no end
	if !open {
		lines = lines[:len(lines)-1]
	}
	var out []event
	var e event
	var data []string
	end := func(incomplete bool) {
		if data != nil {
			out = append(out, event{e.Type, e.ID, strings.Join(data, "\n"), incomplete})
		}
		data, e.Type = nil, ""
	}
	for _, line := range lines {
		if line == "" {
			end(false)
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case name == "data":
			data = append(data, value)
		case name == "event":
			e.Type = value
		case name == "id" && !strings.Contains(value, "\x00"):
			e.ID = value
		}
	}
	end(true)
	return out
}
