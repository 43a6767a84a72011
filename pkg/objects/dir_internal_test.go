package objects

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestDirEveryStepFails makes every step of a put fail in turn: nothing is visible in part, the failure is classified,
// and putting again succeeds.
func TestDirEveryStepFails(t *testing.T) {
	data := make([]byte, 3*dirPiece)
	for failing := 0; ; failing++ {
		d, err := OpenDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		steps, failed := 0, ""
		d.fail = func(step string) error {
			steps++
			if steps-1 == failing {
				failed = step
				return syscall.ENOSPC
			}
			return nil
		}
		ref, err := Put(t.Context(), d, "text/plain", data)
		if failed == "" {
			if err != nil || failing < 10 {
				t.Fatalf("a put of %d steps without a failing one: %v", steps, err)
			}
			return
		}
		if !errors.Is(err, ErrFull) || ref != (Ref{}) {
			t.Fatalf("put with failing step %q: %v, %v", failed, ref, err)
		}
		d.fail = nil
		ref, err = NewRef("text/plain", data)
		if err != nil {
			t.Fatal(err)
		}
		// Only the last step comes after the rename, and then the whole object may be seen.
		if _, err := Get(t.Context(), d, ref); err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("get after failing step %q: %v", failed, err)
		}
		if left, err := os.ReadDir(d.temp()); err != nil || len(left) != 0 {
			t.Fatalf("step %q left %v, %v", failed, left, err)
		}
		if _, err := Put(t.Context(), d, "text/plain", data); err != nil {
			t.Fatalf("second put after failing step %q: %v", failed, err)
		}
		if _, err := Get(t.Context(), d, ref); err != nil {
			t.Fatalf("get after second put: %v", err)
		}
	}
}

func TestDirRemovesOldLeftovers(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	oldFile, youngFile := filepath.Join(d.temp(), "old"), filepath.Join(d.temp(), "young")
	for _, name := range []string{oldFile, youngFile} {
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-2 * dirTempAge)
	if err := os.Chtimes(oldFile, then, then); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(d.root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(oldFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old leftover: %v", err)
	}
	if _, err := os.Stat(youngFile); err != nil {
		t.Errorf("a file that a living put may own: %v", err)
	}
}

func TestDirOddFiles(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	huge, odd := Sum([]byte("huge")), Sum([]byte("odd"))
	for _, digest := range []Digest{huge, odd} {
		if err := d.makeFanOut(filepath.Dir(d.path(digest))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(d.path(huge), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.path(huge), MaxBytes+1); err != nil { // sparse
		t.Fatal(err)
	}
	if err := os.Mkdir(d.path(odd), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, digest := range []Digest{huge, odd} {
		if _, err := d.Get(t.Context(), digest); !errors.Is(err, ErrCorrupt) {
			t.Errorf("get: %v", err)
		}
		if _, err := d.Has(t.Context(), digest); !errors.Is(err, ErrCorrupt) {
			t.Errorf("has: %v", err)
		}
	}
	if _, err := Put(t.Context(), d, "text/plain", []byte("huge")); err != nil {
		t.Errorf("put over a file that is too large: %v", err)
	}
}
