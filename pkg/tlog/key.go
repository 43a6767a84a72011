package tlog

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// ErrKey means that a text is no key of a log.
var ErrKey = errors.New("no key of a log")

// maxKey bounds the text of a key.
const maxKey = 1 << 10

// Signer signs the checkpoints of the log that its key names. It is safe for concurrent use.
type Signer struct {
	signer note.Signer
	key    string
}

// GenerateSigner makes a key for the log of the name. The secret, which [NewSigner] reads, is one line of printable
// characters. The error wraps [ErrOrigin], or is that of random.
func GenerateSigner(random io.Reader, origin string) (secret string, err error) {
	if err := CheckOrigin(origin); err != nil {
		return "", err
	}
	secret, _, err = note.GenerateKey(random, origin)
	return secret, err
}

// NewSigner returns the signer of a secret. The error wraps [ErrKey]; it does not show the secret.
func NewSigner(secret string) (*Signer, error) {
	if len(secret) > maxKey {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrKey, len(secret), maxKey)
	}
	s, err := note.NewSigner(secret)
	if err != nil {
		return nil, fmt.Errorf("%w: want PRIVATE+KEY+NAME+HASH+KEY: %w", ErrKey, err)
	}
	if err := CheckOrigin(s.Name()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	const fields = 5
	parts := strings.SplitN(secret, "+", fields)
	seed, err := base64.StdEncoding.DecodeString(parts[fields-1]) // the kind of key, and the seed
	if err != nil || len(seed) != 1+ed25519.SeedSize {
		return nil, fmt.Errorf("%w: want an Ed25519 key", ErrKey)
	}
	public, ok := ed25519.NewKeyFromSeed(seed[1:]).Public().(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%w: want an Ed25519 key", ErrKey)
	}
	key, err := note.NewEd25519VerifierKey(s.Name(), public)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return &Signer{signer: s, key: key}, nil
}

// Origin returns the name of the log that the signer signs for.
func (s *Signer) Origin() string { return s.signer.Name() }

// Key returns the public key, NAME+HASH+KEY, as [OpenCheckpoint] takes it.
func (s *Signer) Key() string { return s.key }

// Sign returns the checkpoint with the signer's signature. The error wraps [ErrCheckpoint], or [ErrOrigin] when it is that of
// another log.
func (s *Signer) Sign(c Checkpoint) ([]byte, error) {
	text, err := c.Text()
	if err != nil {
		return nil, err
	}
	if c.Origin != s.Origin() {
		return nil, fmt.Errorf("%w: %s signs nothing for the log %s", ErrOrigin, s.Origin(), c.Origin)
	}
	return note.Sign(&note.Note{Text: text}, s.signer)
}

// CheckKey reports whether s is the public key of a log, and returns the log's name. The error wraps [ErrKey].
func CheckKey(s string) (origin string, err error) {
	v, err := newVerifier(s)
	if err != nil {
		return "", err
	}
	return v.Name(), nil
}

func newVerifier(key string) (note.Verifier, error) {
	if strings.HasPrefix(key, "PRIVATE+KEY+") {
		return nil, fmt.Errorf("%w: that is the secret one: give the public key", ErrKey)
	}
	if len(key) > maxKey {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrKey, len(key), maxKey)
	}
	v, err := note.NewVerifier(key)
	if err != nil {
		return nil, fmt.Errorf("%w: %.80q: want NAME+HASH+KEY: %w", ErrKey, key, err)
	}
	return v, nil
}
