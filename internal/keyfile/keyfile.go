// Package keyfile keeps signing keys in files.
package keyfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/pkg/audit"
)

// maxSeedFile bounds what is taken of a key file.
const maxSeedFile = 4 << 10

// Load reads the nkey seed in the file. An absent file is made, with a new seed, readable by its owner only. The error
// wraps [audit.ErrKey].
func Load(path string) (*audit.Key, error) {
	seed, err := files.Read(path, maxSeedFile)
	if errors.Is(err, fs.ErrNotExist) {
		if seed, err = makeSeedFile(path); errors.Is(err, fs.ErrExist) {
			seed, err = files.Read(path, maxSeedFile) // somebody else was faster
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: give a file that can be read, or a place where one can be made", audit.ErrKey, err)
	}
	trimmed := bytes.TrimSpace(seed)
	key, err := audit.KeyFromSeed(trimmed)
	if err != nil {
		return nil, fmt.Errorf("%w: %s does not hold the seed of a signing nkey: give another file, or remove it and a new key is made", audit.ErrKey, path)
	}
	return key, nil
}

// makeSeedFile makes the file in one piece: a reader never sees half of it, and a file that is there is not replaced.
func makeSeedFile(path string) (seed []byte, err error) {
	key, err := audit.NewKey()
	if err != nil {
		return nil, err
	}
	if seed, err = key.Seed(); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".seed-*") // mode 0600
	if err != nil {
		return nil, notMade(path, err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it may be gone
	_, err = f.Write(append(bytes.Clone(seed), '\n'))
	err = cmp.Or(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if err != nil {
		return nil, notMade(path, err)
	}
	return seed, nil
}

// notMade says of the key's file what went wrong with the one that would have become it.
func notMade(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		err = e.Err
	}
	return &fs.PathError{Op: "make", Path: path, Err: err}
}
