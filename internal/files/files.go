// Package files reads the files that command lines name, whatever they turn out to be.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge says that a file has more bytes than are read of one of its kind: another file was meant, or a device.
var ErrTooLarge = errors.New("too large")

// ErrNoWriter says that nothing came out of a pipe: nobody has opened it for writing, or has, and wrote nothing.
var ErrNoWriter = errors.New("nothing is written into this pipe")

// Open opens the file for reading, as [os.Open] does, but does not wait for a writer: a named pipe that nobody has opened for
// writing is at its end. So /dev/fd/N of a shell's process substitution can be read, and no command hangs before it can be
// interrupted.
func Open(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Read returns what the file holds. The error is that of [Open], or wraps [ErrTooLarge] when there are more than limit bytes,
// of which no more are read, or [ErrNoWriter] where a pipe would pass for an empty file.
func Read(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := ReadFrom(f, name, limit)
	if err != nil || len(b) > 0 {
		return b, err
	}
	if info, err := f.Stat(); err == nil && info.Mode().Type() == fs.ModeNamedPipe {
		return nil, &fs.PathError{Op: "read", Path: name, Err: ErrNoWriter}
	}
	return b, nil
}

// ReadFrom is [Read] for a file that is open.
func ReadFrom(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = tooLarge(name, limit)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

func tooLarge(name string, limit int64) error {
	return &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: larger than %d bytes, the most that is read", ErrTooLarge, limit)}
}

// Regular returns what is known of a file that is read again later, at a time that nobody chooses, or by code that knows no
// bound, and so must be a regular one of at most limit bytes. The error wraps that of [os.Stat] or [ErrTooLarge], or is a
// [*fs.PathError] that says what the file is.
func Regular(name string, limit int64) (fs.FileInfo, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("no regular file")}
	case info.Size() > limit:
		return nil, tooLarge(name, limit)
	}
	return info, nil
}
