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

// Open opens the file for reading, as [os.Open] does, but does not wait for a writer: a named pipe that nobody has opened for
// writing is empty. So /dev/fd/N of a shell's process substitution can be read, and no command hangs before it can be
// interrupted.
func Open(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// Read returns what the file holds. The error is that of [Open], or wraps [ErrTooLarge] when there are more than limit bytes,
// of which no more are read.
func Read(name string, limit int64) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return ReadFrom(f, name, limit)
}

// ReadFrom is [Read] for a file that is open.
func ReadFrom(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: larger than %d bytes, the most that is read", ErrTooLarge, limit)}
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Regular returns what is known of a file that is read again later, at a time that nobody chooses, and so must be a regular
// one. The error wraps that of [os.Stat], or is a [*fs.PathError] that says what the file is.
func Regular(name string) (fs.FileInfo, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("no regular file")}
	}
	return info, nil
}
