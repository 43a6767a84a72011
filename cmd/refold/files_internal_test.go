//go:build unix

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestNamedFiles gives every flag and argument that names a file to read what no such file can be. Each command refuses it in one
// line with the file's name, reads no more than a bound, and waits for nobody. No server is asked before.
func TestNamedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		syscall.Mkfifo(path("pipe"), 0o600), os.Mkdir(path("directory"), 0o700), os.Symlink(path("loop"), path("loop")),
		os.WriteFile(path("large"), nil, 0o600), os.Truncate(path("large"), 5<<30),
	)
	if err != nil {
		t.Fatal(err)
	}
	const session = "01M8PG4VB622RY2RMXB3YG5CRA"
	none := path("none")
	for name, args := range map[string]func(file string) []string{
		"audit":            func(f string) []string { return []string{"audit", f} },
		"consistency from": func(f string) []string { return []string{"tlog", "--log", dir, "consistency", "--from", f} },
		"check-inclusion": func(f string) []string {
			return []string{"tlog", "check-inclusion", f, "--entry", none, "--log-key", "example.com/log+702f3c70+AepKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs"}
		},
		"prompt":       func(f string) []string { return []string{"session", "new", "--dir", none, "--file", f} },
		"image":        func(f string) []string { return []string{"session", "new", "--dir", none, "--image", f} },
		"import":       func(f string) []string { return []string{"import", "dsh", "--dir", none, f} },
		"log":          func(f string) []string { return []string{"tlog", "--log", f, "checkpoint"} },
		"requests dsh": func(f string) []string { return []string{"requests", "--dsh", f, "--out", path("out")} },
		"script":       func(f string) []string { return []string{"simulator", "--listen", "127.0.0.1:0", "--script", f} },
		"dev script":   func(f string) []string { return []string{"dev", "--dir", none, "--script", f} },
		"creds": func(f string) []string {
			return []string{"session", "list", "--nats", "nats://127.0.0.1:1", "--creds", f}
		},
		"dir": func(f string) []string { return []string{"session", "log", session, "--dir", f} },
	} {
		for _, file := range []string{path("pipe"), path("directory"), path("loop"), path("large"), path("missing"), "/dev/zero"} {
			if file == path("directory") && name == "dir" {
				continue // it is one
			}
			root := newRoot()
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			root.SetArgs(args(file))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %s: %v", name, file, err)
			}
		}
	}
}
