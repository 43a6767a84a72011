package tools_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

func workspace(t *testing.T) (string, *tools.Set) {
	t.Helper()
	dir := t.TempDir()
	w, err := tools.OpenWorkspace(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	set, err := tools.NewSet(w.Tools()...)
	if err != nil {
		t.Fatal(err)
	}
	return dir, set
}

func run(t *testing.T, set *tools.Set, name, args string) tools.Result {
	t.Helper()
	tool, ok := set.Lookup(name)
	if !ok {
		t.Fatalf("no tool %q", name)
	}
	return tool.Run(t.Context(), args)
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestListAndRead(t *testing.T) {
	dir, set := workspace(t)
	write(t, filepath.Join(dir, "b.txt"), []byte("hello"))
	write(t, filepath.Join(dir, "a", "x"), []byte{0xFF, 0, 'x'})

	if got, want := string(run(t, set, "list", "").Output), "a/\nb.txt\t5\n"; got != want {
		t.Errorf("list: %q, want %q", got, want)
	}
	if got, want := string(run(t, set, "list", `{"path":"/a"}`).Output), "x\t3\n"; got != want {
		t.Errorf("list a: %q, want %q", got, want)
	}
	if got := run(t, set, "read", `{"path":"a/x"}`).Output; !bytes.Equal(got, []byte{0xFF, 0, 'x'}) {
		t.Errorf("read: %q", got)
	}
	if got, want := string(run(t, set, "read", `{"path":"b.txt","offset":3}`).Output), "lo"; got != want {
		t.Errorf("read from 3: %q, want %q", got, want)
	}
	if got := run(t, set, "read", `{"path":"b.txt","offset":99}`); got.Error.Code != "" || len(got.Output) != 0 {
		t.Errorf("read behind the end: %+v", got)
	}
}

func TestReadGoesOn(t *testing.T) {
	dir, set := workspace(t)
	data := bytes.Repeat([]byte("0123456789"), tools.MaxReadBytes/10+10)
	write(t, filepath.Join(dir, "big"), data)
	first := run(t, set, "read", `{"path":"big"}`).Output
	if !bytes.Equal(first[:tools.MaxReadBytes], data[:tools.MaxReadBytes]) || !strings.Contains(string(first[tools.MaxReadBytes:]), "offset 262144") {
		t.Errorf("the first part does not say how to go on: %q", first[tools.MaxReadBytes:])
	}
	if rest := run(t, set, "read", `{"path":"big","offset":262144}`).Output; !bytes.Equal(rest, data[tools.MaxReadBytes:]) {
		t.Errorf("the rest has %d bytes, want %d", len(rest), len(data)-tools.MaxReadBytes)
	}
}

func TestRefusals(t *testing.T) {
	dir, set := workspace(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret"), []byte("s"))
	if err := os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tool, args string
		code       events.ToolErrorCode
	}{
		{"read", `{"path":"nothing"}`, events.ToolFailed},
		{"read", `{"path":"../` + filepath.Base(outside) + `/secret"}`, events.ToolFailed},
		{"read", `{"path":"link"}`, events.ToolFailed},
		{"read", `{"path":"pipe"}`, events.ToolFailed},
		{"read", `{"path":"."}`, events.ToolFailed},
		{"read", `{}`, events.ToolBadArguments},
		{"read", `{"path":"x","offset":-1}`, events.ToolBadArguments},
		{"read", `{"path":"x","offset":1.5}`, events.ToolBadArguments},
		{"read", `{"path":1}`, events.ToolBadArguments},
		{"read", `{"path":"x","mode":"w"}`, events.ToolBadArguments},
		{"read", `{"path":"x"`, events.ToolBadArguments},
		{"list", `[]`, events.ToolBadArguments},
		{"list", `{"path":"nothing"}`, events.ToolFailed},
	} {
		got := run(t, set, c.tool, c.args)
		if got.Error.Code != c.code || !strings.HasPrefix(string(got.Output), "Error: ") {
			t.Errorf("%s %s: %+v, want code %s", c.tool, c.args, got, c.code)
		}
		if strings.Contains(string(got.Output), dir) {
			t.Errorf("%s %s: the answer shows where the workspace lies: %s", c.tool, c.args, got.Output)
		}
	}
}

func TestSet(t *testing.T) {
	_, set := workspace(t)
	if _, ok := set.Lookup("run"); ok {
		t.Error("there is a tool that nobody registered")
	}
	if s := set.Schemas([]string{"read", "unknown"}); len(s) != 1 || s[0].Name != "read" {
		t.Errorf("Schemas(read, unknown) = %v", s)
	}
	all := set.Schemas(nil)
	if len(all) != 3 || all[0].Name != "list" || all[1].Name != "read" || all[2].Name != "write" {
		t.Errorf("Schemas() = %v, want list, read, write", all)
	}
	for _, s := range all {
		if err := s.Parameters.Validate(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
	tool, _ := set.Lookup("read")
	if _, err := tools.NewSet(tool, tool); !errors.Is(err, tools.ErrDuplicate) {
		t.Errorf("two tools of one name: %v", err)
	}
	if _, err := tools.OpenWorkspace(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a workspace that is not there: %v", err)
	}
}
