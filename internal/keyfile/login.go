package keyfile

import (
	"bytes"
	"encoding/base32"
	"fmt"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/pkg/audit"
)

// maxCreds bounds what is taken of a credentials file.
const maxCreds = 1 << 20

// NotLogin refuses a signing key with which somebody logs in to NATS: that of a seed in the credentials file, whatever kind of
// nkey it is written as. A login signs what the server asks to have signed, so a server that means ill would have it sign a
// verdict. An empty path is no file. The error wraps [audit.ErrKey]; the caller asks for another key.
func NotLogin(key *audit.Key, creds string) error {
	if creds == "" {
		return nil
	}
	b, err := files.Read(creds, maxCreds)
	if err != nil {
		return fmt.Errorf("%w: the credentials cannot be compared with it: %w", audit.ErrKey, err)
	}
	for word := range bytes.FieldsSeq(b) {
		login, err := audit.KeyFromSeed(word)
		if err == nil && bytes.Equal(point(login), point(key)) {
			return fmt.Errorf("%w: %s is the key of the credentials in %s, and a NATS server chooses what a login signs: sign with a key of its own",
				audit.ErrKey, key.Public(), creds)
		}
	}
	return nil
}

// point returns the Ed25519 public key of an nkey, without its kind in front and the checksum behind.
func point(key *audit.Key) []byte {
	const length = 32
	b, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(key.Public())
	if err != nil || len(b) < 1+length {
		return []byte(key.Public())
	}
	return b[1 : 1+length]
}
