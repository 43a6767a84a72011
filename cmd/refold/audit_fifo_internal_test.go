//go:build unix

package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/refold-dev/refold/pkg/audit/bundle"
)

// A FIFO without a writer is refused at once: opening it would wait forever.
func TestAuditRefusesFIFO(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := auditFile(nil, name, &bundle.Options{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Fatalf("error %v, want that it is no regular file", err)
	}
}

// What is no file is not replaced by one, with --force neither.
func TestExportKeepsFIFO(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := free(name, true); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Fatalf("error %v, want that it is no regular file", err)
	}
}
