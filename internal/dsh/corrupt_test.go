package dsh_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

func compressed(t testing.TB, s string) string {
	t.Helper()
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close() //nolint:errcheck // it writes nowhere
	return string(e.EncodeAll([]byte(s), nil))
}

// TestCorrupt refuses files that are no whole session log, and says where they are not.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	l, _ := shapeFork()
	whole := l.text()
	lines := strings.SplitAfter(whole, "\n")
	packed := compressed(t, whole)
	edit := func(i int, from, to string) string {
		changed := append([]string(nil), lines...)
		if changed[i] = strings.Replace(changed[i], from, to, 1); changed[i] == lines[i] {
			t.Fatalf("line %d does not hold %q", i, from)
		}
		return strings.Join(changed, "")
	}
	cases := map[string]struct{ file, says string }{
		"empty":             {"", "no session header in 0 lines"},
		"blank":             {"\n\n \n", "no session header"},
		"truncated line":    {whole[:len(whole)-20], "line 24"},
		"truncated frame":   {packed[:len(packed)-9], "corrupt session log"},
		"half a magic":      {packed[:3], "line 1"},
		"damaged frame":     {packed[:40] + "\x00\x00" + packed[42:], "corrupt session log"},
		"not JSON":          {"hello\n", "line 1"},
		"an array":          {"[]\n", "line 1"},
		"no header":         {strings.Join(lines[1:], ""), "line 1"},
		"two headers":       {lines[0] + whole, "second session header"},
		"gap":               {strings.Join(append(append([]string(nil), lines[:4]...), lines[5:]...), ""), "sequence 4 where 3 belongs"},
		"doubled":           {strings.Join(append(append([]string(nil), lines[:4]...), lines[3:]...), ""), "sequence 2 where 3 belongs"},
		"other version":     {edit(0, `"version":0`, `"version":1`), "log version 1"},
		"NUL bytes":         {strings.Join(lines[:3], "") + strings.Repeat("\x00", 4096) + "\n", "line 4"},
		"huge line":         {lines[0] + `{"x":"` + strings.Repeat("x", dsh.MaxRowBytes) + `"}`, "longer than"},
		"huge packed line":  {compressed(t, lines[0]+strings.Repeat("y", dsh.MaxRowBytes+1)), "longer than"},
		"legacy delta":      {edit(4, `"type":"request/header"`, `"type":"request/header-delta"`), events.ErrLegacy.Error()},
		"legacy reason":     {edit(4, `"reason":"initial"`, `"reason":"fallback"`), events.ErrLegacy.Error()},
		"no request header": {edit(4, `"type":"request/header"`, `"type":"other/header"`), "no request/header"},
		"an image": {lines[0] + strings.Replace(lines[3], `"seq":2,"time":1796046772659,"data":{"content":[{"type":"text","text":"one"}]`,
			`"seq":0,"data":{"content":[{"type":"image","attachment":{}}]`, 1), `"image"`},
		"negative sequence": {edit(1, `"seq":0`, `"seq":-1`), "line 2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			session, err := dsh.Translate(strings.NewReader(c.file))
			if !errors.Is(err, dsh.ErrCorrupt) || session != nil {
				t.Fatalf("session %v, error %v", session, err)
			}
			if !strings.Contains(err.Error(), c.says) || len(err.Error()) > 600 {
				t.Errorf("the error does not say %q, or says too much: %.700s", c.says, err)
			}
		})
	}
}

// TestFrames reads a log in several frames and without the last line's end.
func TestFrames(t *testing.T) {
	t.Parallel()
	l, want := shapeFork()
	whole := strings.TrimSuffix(l.text(), "\n")
	for _, file := range []string{whole, compressed(t, whole[:700]) + compressed(t, whole[700:]), strings.ReplaceAll(whole, "\n", "\r\n")} {
		session, err := dsh.Translate(strings.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(session.Requests); n != len(want) || string(session.Requests[n-1].Bytes()) != want[n-1] {
			t.Errorf("%d requests", n)
		}
	}
}

// FuzzTranslate: whatever a file holds, the answer is an error or a log that folds.
func FuzzTranslate(f *testing.F) {
	for _, s := range shapes {
		l, _ := s.make()
		f.Add([]byte(l.text()), false)
	}
	f.Add([]byte{0x28, 0xB5, 0x2F, 0xFD}, false)
	f.Add([]byte("{\"type\":\"session\"}\n{\"type\":\"text-chunks\",\"seq0\":0,\"data\":{}}\n"), true)
	f.Fuzz(func(t *testing.T, file []byte, pack bool) {
		if pack {
			file = []byte(compressed(t, string(file)))
		}
		session, err := dsh.Translate(bytes.NewReader(file))
		if err != nil {
			if !errors.Is(err, dsh.ErrCorrupt) && !errors.Is(err, dsh.ErrImages) || session != nil {
				t.Fatalf("session %v, error %v", session, err)
			}
			return
		}
		state := fold.New(session.ID)
		for i := range session.Events {
			if err := state.Apply(&session.Events[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range session.Requests {
			if len(session.Requests[i].Bytes()) == 0 {
				t.Fatal("an empty body")
			}
		}
	})
}
