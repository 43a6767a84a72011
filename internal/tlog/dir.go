package tlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	translog "github.com/refold-dev/refold/pkg/tlog"
)

var (
	// ErrLocked means that another process keeps the log in the directory. Wait until it has ended, or use another directory.
	ErrLocked = errors.New("another process keeps the log there")
	// ErrDir means that a directory cannot be used for a log: the message says why.
	ErrDir = errors.New("not usable as a log's directory")
)

// Names in a log's directory that are not part of the log.
const (
	lockName = "lock"
	tempName = "tmp"
)

// Dir reads the log in a directory. It is safe for concurrent use, and while another process writes.
type Dir struct{ root string }

var _ translog.Tiles = (*Dir)(nil)

// OpenDir returns the reader of a directory that is there. The error wraps [ErrDir].
func OpenDir(root string) (*Dir, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is no directory", ErrDir, root)
	}
	return &Dir{root: root}, nil
}

// Read implements [translog.Tiles]. It follows no link out of the directory, and reads nothing but a log's files.
func (d *Dir) Read(_ context.Context, name string, limit int) ([]byte, error) {
	if _, ok := translog.ParsePath(name); !ok && name != translog.CheckpointPath {
		return nil, fmt.Errorf("%.80q: %w", name, translog.ErrNotFound)
	}
	b, err := readFile(d.root, name, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", filepath.Join(d.root, name), translog.ErrNotFound)
	}
	return b, err
}

func readFile(root, name string, limit int) ([]byte, error) {
	full := filepath.Join(root, filepath.FromSlash(name))
	info, err := os.Stat(full) // before opening: opening a pipe would block
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > int64(limit) {
		return nil, fmt.Errorf("%s: %w: want a file of at most %d bytes", full, translog.ErrTile, limit)
	}
	f, err := os.OpenInRoot(root, filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("%s: %w: longer than %d bytes", full, translog.ErrTile, limit)
	}
	return b, err
}

// writer writes the files of a log. Every file is written under another name, synced and then renamed, so that whoever reads
// sees all of it or nothing. What was renamed survives a power cut when sync has returned.
type writer struct {
	Dir
	lock  *os.File
	made  map[string]bool // directories that are there, durably
	dirty []string        // directories with names that may not be durable

	// fsync makes a file or a directory durable; a test that fails a thousand steps does without.
	fsync func(*os.File) error
	// fault, unless nil, is called with each step on a path before it is done and after it; a test makes steps fail with it.
	fault func(step, path string, after bool) error
}

// lockDir makes the directory when it is missing, and takes it until close is called. It refuses one that holds other things
// than a log. The error wraps [ErrLocked] or [ErrDir].
func lockDir(root string) (*writer, error) {
	for _, dir := range []string{root, filepath.Join(root, tempName)} {
		if err := os.MkdirAll(dir, 0o755); err != nil { // any web server may hand it out
			return nil, fmt.Errorf("%w: %w", ErrDir, err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(root, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close() // nothing was written
		return nil, fmt.Errorf("%w: %s: one process writes it at a time", ErrLocked, root)
	}
	w := &writer{Dir: Dir{root: root}, lock: lock, made: map[string]bool{root: true}, fsync: (*os.File).Sync}
	if err := w.tidy(); err != nil {
		w.close()
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	return w, nil
}

// tidy removes what a crash left, and makes the directory's own name durable.
func (w *writer) tidy() error {
	left, err := os.ReadDir(filepath.Join(w.root, tempName))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.Remove(filepath.Join(w.root, tempName, e.Name())); err != nil {
			return err
		}
	}
	if err := w.syncDir(w.root); err != nil {
		return err
	}
	return w.syncDir(filepath.Dir(w.root))
}

// empty returns an error when the directory holds anything: a log that has files and no checkpoint has lost it.
func (w *writer) empty() error {
	entries, err := os.ReadDir(w.root)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	for _, e := range entries {
		if e.Name() != lockName && e.Name() != tempName {
			return fmt.Errorf("%w: %s holds %q and no checkpoint: name an empty directory, or restore the log's newest checkpoint",
				ErrDir, w.root, e.Name())
		}
	}
	return nil
}

func (w *writer) close() { _ = w.lock.Close() } // which gives the lock back

// step does one thing that can fail.
func (w *writer) step(name, path string, do func() error) error {
	if w.fault != nil {
		if err := w.fault(name, path, false); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if w.fault != nil {
		return w.fault(name, path, true)
	}
	return nil
}

// install makes the path hold the data, whole or not at all. It is durable when sync has returned.
func (w *writer) install(name string, data []byte) (err error) {
	dir := path.Dir(name)
	if err := w.makeDir(dir); err != nil {
		return err
	}
	temp := filepath.Join(w.root, tempName, strings.ReplaceAll(name, "/", "-"))
	var f *os.File
	err = w.step("make", name, func() error {
		f, err = os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		return err
	})
	if err == nil {
		err = w.step("write", name, func() error { _, err := f.Write(data); return err })
	}
	if err == nil {
		err = w.step("sync", name, func() error { return w.fsync(f) })
	}
	if f != nil {
		if closed := f.Close(); err == nil && closed != nil {
			err = fmt.Errorf("close: %w", closed)
		}
	}
	if err == nil {
		if !slices.Contains(w.dirty, dir) {
			w.dirty = append(w.dirty, dir)
		}
		err = w.step("rename", name, func() error { return os.Rename(temp, filepath.Join(w.root, filepath.FromSlash(name))) })
	}
	return err
}

// makeDir makes a directory of the log and those above it, durably.
func (w *writer) makeDir(dir string) error {
	full := filepath.Join(w.root, filepath.FromSlash(dir))
	if w.made[full] {
		return nil
	}
	if err := w.makeDir(path.Dir(dir)); err != nil {
		return err
	}
	err := w.step("make directory", dir, func() error {
		if err := os.Mkdir(full, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.step("sync directory", path.Dir(dir), func() error { return w.syncDir(filepath.Dir(full)) }); err != nil {
		return err
	}
	w.made[full] = true
	return nil
}

// sync makes all that was installed durable.
func (w *writer) sync() error {
	for len(w.dirty) > 0 {
		dir := w.dirty[0]
		full := filepath.Join(w.root, filepath.FromSlash(dir))
		if err := w.step("sync directory", dir, func() error { return w.syncDir(full) }); err != nil {
			return err
		}
		w.dirty = w.dirty[1:]
	}
	return nil
}

// dropPartial removes the beginnings of a file that is full now. Readers take the full one instead.
func (w *writer) dropPartial(f translog.File) error {
	dir := f.Path() + ".p"
	full := filepath.Join(w.root, filepath.FromSlash(dir))
	if err := w.step("remove", dir, func() error { return os.RemoveAll(full) }); err != nil {
		return err
	}
	delete(w.made, full)
	return nil
}

func (w *writer) syncDir(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(w.fsync(f), f.Close())
}
