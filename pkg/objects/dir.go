package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	dirFormatName = "FORMAT"
	dirFormat     = "refold-objects/1\n"
	dirTempName   = "tmp"

	// dirPiece is how many bytes are read, written or compared between two looks at the context.
	dirPiece = 1 << 20

	// dirTempAge is the age beyond which a temporary file is a leftover of a crash and not a put in progress.
	dirTempAge = 24 * time.Hour
)

// Dir is a [Store] in a directory of the local file system: one file per object, at <2 hex>/<2 hex>/<64 hex> under the
// root. Any number of processes may use one directory at a time; it needs atomic renames and a working fsync.
//
// A put writes a temporary file, syncs it, renames it into place and syncs the directory: an object that Put reported
// survives a power cut, and what a crash leaves behind is never under an object's name. Leftovers older than a day are
// removed by [OpenDir].
type Dir struct {
	root string

	// fail is called with the name of each step of a put before it is done; a test makes steps fail with it.
	fail func(step string) error

	mu     sync.Mutex
	synced map[string]struct{} // fan-out directories whose own entries are known to be durable
}

var _ Store = (*Dir)(nil)

// OpenDir opens the directory store at path, creating it if there is nothing or an empty directory. It refuses a
// directory that holds other things, and one whose format it does not know.
func OpenDir(path string) (*Dir, error) {
	root, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open object directory %s: %w", path, err)
	}
	d := &Dir{root: root, synced: make(map[string]struct{})}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("open object directory %s: %w", root, err)
	}
	return d, nil
}

func (d *Dir) open() error {
	if err := os.MkdirAll(d.temp(), 0o700); err != nil {
		return dirError(err)
	}
	format, err := readSmall(filepath.Join(d.root, dirFormatName), len(dirFormat)+1)
	switch {
	case err == nil && string(format) == dirFormat:
		return d.removeLeftovers()
	case err == nil:
		return fmt.Errorf("its %s file says %q, this program knows %q: use the program that wrote it", dirFormatName, format, dirFormat)
	case !errors.Is(err, fs.ErrNotExist):
		return dirError(err)
	}
	entries, err := os.ReadDir(d.root)
	if err != nil {
		return dirError(err)
	}
	for _, e := range entries {
		// Another process may be creating the store at this moment.
		if e.Name() != dirTempName && e.Name() != dirFormatName {
			return fmt.Errorf("it is not an object store and holds %q already: name an empty directory", e.Name())
		}
	}
	if err := d.install(context.Background(), filepath.Join(d.root, dirFormatName), []byte(dirFormat)); err != nil {
		return err
	}
	return dirError(syncDir(filepath.Dir(d.root)))
}

// removeLeftovers removes temporary files that no living put can own.
func (d *Dir) removeLeftovers() error {
	entries, err := os.ReadDir(d.temp())
	if err != nil {
		return dirError(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < dirTempAge { //nolint:forbidigo // the file's time is the machine's too
			continue // gone already, or young
		}
		if err := os.Remove(filepath.Join(d.temp(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dirError(err)
		}
	}
	return nil
}

// Put implements [Store].
func (d *Dir) Put(ctx context.Context, ref Ref, data []byte) error {
	if err := CheckPut(ctx, ref, data); err != nil {
		return d.wrap(err)
	}
	path := d.path(ref.Digest)
	if sameContent(ctx, path, data) {
		// Whoever renamed it may not have synced the directory yet.
		return d.wrap(d.do("sync directory", func() error { return syncDir(filepath.Dir(path)) }))
	}
	if err := ctx.Err(); err != nil {
		return d.wrap(err)
	}
	if err := d.makeFanOut(filepath.Dir(path)); err != nil {
		return d.wrap(err)
	}
	return d.wrap(d.install(ctx, path, data))
}

// Get implements [Store].
func (d *Dir) Get(ctx context.Context, digest Digest) ([]byte, error) {
	f, size, err := d.openObject(ctx, digest)
	if err != nil {
		return nil, d.wrap(err)
	}
	defer func() { _ = f.Close() }()
	data := make([]byte, size)
	for off := 0; off < len(data); {
		if err := ctx.Err(); err != nil {
			return nil, d.wrap(err)
		}
		n, err := io.ReadFull(f, data[off:min(off+dirPiece, len(data))])
		off += n
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, d.wrap(&CorruptError{Digest: digest, Part: "file", Cause: fmt.Errorf("it ends after %d of %d bytes", off, size)})
		case err != nil:
			return nil, d.wrap(dirError(err))
		}
	}
	return data, nil
}

// Has implements [Store].
func (d *Dir) Has(ctx context.Context, digest Digest) (bool, error) {
	f, _, err := d.openObject(ctx, digest)
	switch {
	case err == nil:
		return true, d.wrap(dirError(f.Close()))
	case errors.Is(err, ErrNotFound):
		return false, nil
	default:
		return false, d.wrap(err)
	}
}

// openObject opens the file of an object and returns its size, in [0, MaxBytes].
func (d *Dir) openObject(ctx context.Context, digest Digest) (*os.File, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	path := d.path(digest)
	info, err := os.Stat(path) // before opening: opening a pipe would block
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Absence counts only while the store itself is there, not while its file system is unmounted.
		if _, err := os.Stat(filepath.Join(d.root, dirFormatName)); err != nil {
			return nil, 0, dirError(err)
		}
		return nil, 0, ErrNotFound
	case err != nil:
		return nil, 0, dirError(err)
	case !info.Mode().IsRegular():
		return nil, 0, &CorruptError{Digest: digest, Part: "file", Cause: fmt.Errorf("it is not a regular file but %s", info.Mode().Type())}
	case info.Size() > MaxBytes:
		return nil, 0, &CorruptError{Digest: digest, Part: "file", Cause: fmt.Errorf("it has %d bytes, an object has at most %d", info.Size(), int64(MaxBytes))}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, dirError(err)
	}
	return f, info.Size(), nil
}

// install makes path hold data, whole or not at all, durably.
func (d *Dir) install(ctx context.Context, path string, data []byte) (err error) {
	var f *os.File
	err = d.do("create temporary file", func() error {
		f, err = os.CreateTemp(d.temp(), filepath.Base(path)+".*")
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// A failed removal leaves a file that nobody reads; the put has failed already with a better error.
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	for piece := range chunks(data, dirPiece) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.do("write", func() error { _, err := f.Write(piece); return err }); err != nil {
			return err
		}
	}
	if err := d.do("sync file", f.Sync); err != nil {
		return err
	}
	if err := d.do("close", f.Close); err != nil {
		return err
	}
	if err := d.do("rename", func() error { return os.Rename(f.Name(), path) }); err != nil {
		return err
	}
	return d.do("sync directory", func() error { return syncDir(filepath.Dir(path)) })
}

// chunks yields data in pieces of at most size bytes.
func chunks(data []byte, size int) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(size, len(data))
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

// makeFanOut creates the two directories of an object and makes their names durable, once each.
func (d *Dir) makeFanOut(leaf string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range []string{filepath.Dir(leaf), leaf} {
		if _, ok := d.synced[dir]; ok {
			if _, err := os.Stat(dir); err == nil {
				continue
			}
		}
		err := d.do("create directory", func() error { return os.Mkdir(dir, 0o700) })
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := d.do("sync parent directory", func() error { return syncDir(filepath.Dir(dir)) }); err != nil {
			return err
		}
		d.synced[dir] = struct{}{}
	}
	return nil
}

// do runs one step of a put and classifies its failure.
func (d *Dir) do(step string, f func() error) error {
	var err error
	if d.fail != nil {
		err = d.fail(step)
	}
	if err == nil {
		err = f()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", step, dirError(err))
	}
	return nil
}

func (d *Dir) temp() string { return filepath.Join(d.root, dirTempName) }

func (d *Dir) path(digest Digest) string {
	name := digest.String()
	return filepath.Join(d.root, name[:2], name[2:4], name)
}

func (d *Dir) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("object directory %s: %w", d.root, err)
}

// dirError turns a failure of the file system into the sentinel that says what to do about it.
func dirError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: free space on that file system or raise the quota: %w", ErrFull, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// sameContent reports whether the regular file at path holds exactly data. A file that cannot be read does not.
func sameContent(ctx context.Context, path string, data []byte) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(data)) {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, min(dirPiece, len(data)))
	for piece := range chunks(data, dirPiece) {
		if ctx.Err() != nil {
			return false
		}
		if _, err := io.ReadFull(f, buf[:len(piece)]); err != nil || !bytes.Equal(buf[:len(piece)], piece) {
			return false
		}
	}
	return true
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// readSmall returns at most limit bytes of the file at path.
func readSmall(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}
