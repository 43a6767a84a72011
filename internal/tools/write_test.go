package tools_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

func TestWrite(t *testing.T) {
	dir, set := workspace(t)
	write(t, filepath.Join(dir, "old.sh"), []byte("old and longer"))
	if err := os.Chmod(filepath.Join(dir, "old.sh"), 0o751); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(filepath.Join(dir, "old.sh"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	for _, c := range []struct {
		args, file, want string
		mode             os.FileMode
	}{
		{`{"path":"old.sh","content":"new"}`, "old.sh", "new", 0o751},
		{`{"path":"/a/b/../c/new.txt","content":"Grüße\r\n"}`, "a/c/new.txt", "Grüße\r\n", 0o644},
		{`{"path":"empty","content":""}`, "empty", "", 0o644},
		{`{"path":"raw","content":"\udcff\u0000\ud800<&>"}`, "raw", "\xff\x00\xed\xa0\x80<&>", 0o644},
		{"{\"path\":\"raw2\",\"content\":\"\xed\xb3\xbf\"}", "raw2", "\xff", 0o644},
		{`{"path":"\udcfe","content":"x"}`, "\xfe", "x", 0o644},
	} {
		if r := run(t, set, "write", c.args); r.Error.Code != "" || !strings.Contains(string(r.Output), "Wrote ") {
			t.Fatalf("write %s: %+v", c.args, r)
		}
		path := filepath.Join(dir, c.file)
		data, err := os.ReadFile(path)
		if err != nil || string(data) != c.want {
			t.Errorf("%s holds %q, %v, want %q", c.file, data, err, c.want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%s: %v, %v, want mode %o", c.file, info.Mode(), err, c.mode)
		}
	}
	held := make([]byte, 100)
	if n, _ := old.Read(held); string(held[:n]) != "old and longer" {
		t.Errorf("whoever has the old file open reads %q", held[:n])
	}
	noLeftovers(t, dir)
}

// TestReadAndWriteGoRound writes back what read answered, in the form in which an event has it.
func TestReadAndWriteGoRound(t *testing.T) {
	dir, set := workspace(t)
	data := []byte("\x00\xff\xfe\xed\xa0\x80 \"日本\\\n\x1b\u2028\xf0\x9f")
	write(t, filepath.Join(dir, "from"), data)
	shown := events.TextFromBytes(run(t, set, "read", `{"path":"from"}`).Output)
	args := `{"path":"to","content":` + string(events.AppendQuote(nil, shown)) + `}`
	if r, ok := set.Check("write", args); !ok {
		t.Fatalf("Check: %+v", r)
	}
	run(t, set, "write", args)
	if got, err := os.ReadFile(filepath.Join(dir, "to")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("wrote %q, %v, want %q", got, err, data)
	}
}

func TestWriteRefusals(t *testing.T) {
	dir, set := workspace(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), []byte("s"))
	write(t, filepath.Join(dir, "file"), []byte("f"))
	write(t, filepath.Join(dir, "locked"), []byte("l"))
	if err := os.Chmod(filepath.Join(dir, "locked"), 0o444); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": filepath.Join(outside, "secret"), "inner": "file", "way": outside} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args string
		code events.ToolErrorCode
	}{
		{`{"path":"link","content":"x"}`, events.ToolFailed},
		{`{"path":"inner","content":"x"}`, events.ToolFailed},
		{`{"path":"way/new","content":"x"}`, events.ToolFailed},
		{`{"path":"way/new/new","content":"x"}`, events.ToolFailed},
		{`{"path":"file/new","content":"x"}`, events.ToolFailed},
		{`{"path":"locked","content":"x"}`, events.ToolFailed},
		{`{"path":".","content":"x"}`, events.ToolFailed},
		{`{"path":"a\u0000b","content":"x"}`, events.ToolFailed},
		{`{"path":"","content":"x"}`, events.ToolBadArguments},
		{`{"path":"x"}`, events.ToolBadArguments},
		{`{"path":"x","content":null}`, events.ToolBadArguments},
		{`{"path":"x","content":"a","content":"b"}`, events.ToolBadArguments},
	} {
		r := run(t, set, "write", c.args)
		if r.Error.Code != c.code || strings.Contains(string(r.Output), dir) || strings.Contains(string(r.Output), outside) {
			t.Errorf("write %s: %s %s, want code %s and no place of ours", c.args, r.Error.Code, r.Output, c.code)
		}
	}
	for path, want := range map[string]string{filepath.Join(outside, "secret"): "s", filepath.Join(dir, "file"): "f", filepath.Join(dir, "locked"): "l"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v, want %q", path, got, err, want)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside there are %v, %v", entries, err)
	}
	noLeftovers(t, dir)
}

func TestWriteInterrupted(t *testing.T) {
	dir, set := workspace(t)
	write(t, filepath.Join(dir, "file"), []byte("old"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tool, _ := set.Lookup("write")
	if tool.Safety() != (tools.Safety{}) {
		t.Errorf("write is %+v, want exclusive and not read only", tool.Safety())
	}
	if r := tool.Run(ctx, `{"path":"file","content":"new"}`); r.Error.Code != events.ToolFailed {
		t.Errorf("an interrupted write: %+v", r)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "old" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	noLeftovers(t, dir)
}

func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".refold-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestReadImages(t *testing.T) {
	dir, set := workspace(t)
	png := append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte{1, 2}, tools.MaxReadBytes)...)
	for name, data := range map[string][]byte{
		"a/pic.txt": png, "b.jpg": []byte("\xff\xd8\xff\xe0"), "c": []byte("GIF87a"), "d": []byte("GIF89a"), "e": []byte("RIFF\x00\x00\x00\x00WEBP"), "\xff": []byte("GIF89a"),
	} {
		write(t, filepath.Join(dir, name), data)
		r := run(t, set, "read", `{"path":`+string(events.AppendQuote(nil, events.TextFromBytes([]byte(name))))+`}`)
		if r.Error.Code != "" || len(r.Images) != 1 || !bytes.Equal(r.Images[0].Data, data) ||
			r.Images[0].Name != events.TextFromBytes([]byte(filepath.Base(name))) || !bytes.HasPrefix(r.Output, []byte("[")) {
			t.Errorf("read %q: %s, %d images, %v", name, r.Output, len(r.Images), r.Error)
		}
	}
	if r := run(t, set, "read", `{"path":"c","offset":1}`); string(r.Output) != "IF87a" || r.Images != nil {
		t.Errorf("read from 1: %+v", r)
	}
	write(t, filepath.Join(dir, "f.png"), []byte("no picture"))
	if r := run(t, set, "read", `{"path":"f.png"}`); string(r.Output) != "no picture" || r.Images != nil {
		t.Errorf("a text of that name: %+v", r)
	}
	write(t, filepath.Join(dir, "huge"), png)
	if err := os.Truncate(filepath.Join(dir, "huge"), tools.MaxImageBytes+1); err != nil {
		t.Fatal(err)
	}
	if r := run(t, set, "read", `{"path":"huge"}`); r.Error.Code != events.ToolFailed || r.Images != nil {
		t.Errorf("a picture that is too large: %s", r.Output)
	}
}

// TestReadKeepsCharacters has a flag where a part would end.
func TestReadKeepsCharacters(t *testing.T) {
	dir, set := workspace(t)
	head := strings.Repeat("x", tools.MaxReadBytes-4)
	write(t, filepath.Join(dir, "f"), []byte(head+flag+"rest"))
	first := string(run(t, set, "read", `{"path":"f"}`).Output)
	if !strings.HasPrefix(first, head+"\n[12 more bytes: go on with offset 262140]") {
		t.Errorf("the first part ends in %q", first[len(head)-1:])
	}
	if rest := string(run(t, set, "read", `{"path":"f","offset":262140}`).Output); rest != flag+"rest" {
		t.Errorf("the rest is %q", rest)
	}
	tool, _ := set.Lookup("read")
	write(t, filepath.Join(dir, "raw"), bytes.Repeat([]byte{0xFF}, 2*tools.MaxReadBytes))
	if text, cut := tools.Limit(run(t, set, "read", `{"path":"raw"}`).Output, tool.Safety().MaxOutput); cut {
		t.Errorf("a part of %d bytes of text does not fit into the tool's own limit of %d", len(text), tool.Safety().MaxOutput)
	}
}
