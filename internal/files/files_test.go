package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/refold-dev/refold/internal/files"
)

// TestRead reads files of every kind, with a limit of 4 bytes.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"empty": "", "fits": "1234", "long": "12345"} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("fits"), path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path("sparse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path("sparse"), 5<<30); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, want string
		err        error
		regular    bool
	}{
		{path("empty"), "", nil, true},
		{path("fits"), "1234", nil, true},
		{path("link"), "1234", nil, true},
		{path("long"), "", files.ErrTooLarge, false},
		{path("sparse"), "", files.ErrTooLarge, false},
		{path("pipe"), "", files.ErrNoWriter, false},
		{path("nothing"), "", fs.ErrNotExist, false},
		{dir, "", syscall.EISDIR, false},
		{"/dev/zero", "", files.ErrTooLarge, false},
		{"/dev/null", "", nil, false},
	} {
		got, err := files.Read(tt.name, 4)
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if _, err := files.Regular(tt.name, 4); (err == nil) != tt.regular {
			t.Errorf("%s: regular: %v", tt.name, err)
		}
	}
}

// TestReadPipe reads what a writer has begun to write into a pipe, as of a shell's process substitution.
func TestReadPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // only read
	go func() {
		_, _ = w.WriteString("text")
		_ = w.Close()
	}()
	name, err := os.Readlink(fmt.Sprint("/proc/self/fd/", r.Fd()))
	if err != nil {
		t.Skip("no /proc here")
	}
	got, err := files.Read(fmt.Sprint("/proc/self/fd/", r.Fd()), 10)
	if err != nil || string(got) != "text" {
		t.Errorf("%s: %q, %v", name, got, err)
	}
}
