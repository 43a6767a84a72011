package tlog

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/refold-dev/refold/internal/files"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// PublicSuffix is what the name of the file with the public key ends in; it stands beside the one with the secret.
const PublicSuffix = ".pub"

// maxKeyFile bounds what is taken of a key file.
const maxKeyFile = 4 << 10

// LoadSigner reads the secret key in the file, which signs for the log of the name; an empty name stands for the one that the
// file holds. An absent file is made with a new key, readable by its owner only. The public key is written beside it. The error
// wraps [translog.ErrKey] or [translog.ErrOrigin].
func LoadSigner(file, origin string) (*translog.Signer, error) {
	secret, err := files.Read(file, maxKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if secret, err = makeSecret(file, origin); errors.Is(err, fs.ErrExist) {
			secret, err = files.Read(file, maxKeyFile) // somebody else was faster
		}
	}
	switch {
	case errors.Is(err, translog.ErrOrigin):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w: give a file that can be read, or a place where one can be made", translog.ErrKey, err)
	}
	s, err := translog.NewSigner(strings.TrimSpace(string(secret)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: give another file, or remove it and a new key is made", file, err)
	}
	if origin != "" && s.Origin() != origin {
		return nil, fmt.Errorf("%w: %s holds the key of the log %s, not of %s: give that name, or another file", translog.ErrKey, file, s.Origin(), origin)
	}
	if err := writePublic(file+PublicSuffix, s.Key()+"\n"); err != nil {
		return nil, fmt.Errorf("%w: %w", translog.ErrKey, err)
	}
	return s, nil
}

// makeSecret makes the file in one piece: a reader never sees half of it, and a file that is there is not replaced.
func makeSecret(file, origin string) ([]byte, error) {
	secret, err := translog.GenerateSigner(rand.Reader, origin)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".key-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it may be gone
	_, err = f.WriteString(secret + "\n")
	err = cmp.Or(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), file)
	}
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(file)) // a log whose key is lost is of no more use
	if err != nil {
		return nil, err
	}
	return []byte(secret), errors.Join(dir.Sync(), dir.Close())
}

// writePublic replaces the file unless it holds the text.
func writePublic(file, text string) error {
	if b, err := files.Read(file, maxKeyFile); err == nil && bytes.Equal(b, []byte(text)) {
		return nil
	}
	temp := file + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, file)
}
