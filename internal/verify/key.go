package verify

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"
)

// ErrKey says that a file holds no nkey seed, or cannot be read or made. The message names file and remedy.
var ErrKey = errors.New("no usable verifier key")

// signatureDomain stands before what is signed, so that no signature made for something else passes as a verdict's.
const signatureDomain = "refold verdict 1\n"

// maxSeedFile bounds what is read of a key file.
const maxSeedFile = 4 << 10

// Key signs verdicts.
type Key struct {
	pair   nkeys.KeyPair
	public string
}

// NewKey makes a random key.
func NewKey() (*Key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return newKey(pair)
}

func newKey(pair nkeys.KeyPair) (*Key, error) {
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return &Key{pair: pair, public: public}, nil
}

// LoadKey reads the nkey seed in the file. An absent file is made, with a new seed, readable by its owner only. The error
// wraps [ErrKey].
func LoadKey(path string) (*Key, error) {
	seed, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if seed, err = makeSeedFile(path); errors.Is(err, fs.ErrExist) {
			seed, err = os.ReadFile(path) // somebody else was faster
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: give a file that can be read, or a place where one can be made", ErrKey, err)
	}
	trimmed := bytes.TrimSpace(seed)
	pair, err := nkeys.FromSeed(trimmed)
	if err != nil || len(seed) > maxSeedFile || bytes.HasPrefix(trimmed, []byte("SX")) {
		return nil, fmt.Errorf("%w: %s does not hold the seed of a signing nkey: give another file, or remove it and a new key is made", ErrKey, path)
	}
	return newKey(pair)
}

// makeSeedFile makes the file in one piece: a reader never sees half of it, and a file that is there is not replaced.
func makeSeedFile(path string) (seed []byte, err error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	if seed, err = pair.Seed(); err != nil {
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

// CheckPublic reports whether s is the public key of a verifier, as [Key.Public] returns it: that of a signing nkey of any
// kind. The error wraps [ErrKey].
func CheckPublic(s string) error {
	if _, _, err := nkeys.DecodeSeed([]byte(s)); err == nil {
		return fmt.Errorf("%w: that is a seed, which is secret: give the public key", ErrKey)
	}
	const length = 56 // the decoder passes over line ends
	if len(s) != length || !nkeys.IsValidPublicKey(s) || nkeys.IsValidPublicCurveKey(s) {
		return fmt.Errorf("%w: %q is no public key of a signing nkey: want %d characters of A-Z and 2-7", ErrKey, clean(s, maxName), length)
	}
	return nil
}

// Public returns the public key, which names the verifier.
func (k *Key) Public() string { return k.public }

// Sign sets v's verifier and signature.
func (k *Key) Sign(v *Verdict) error {
	v.Verifier, v.Signature = k.public, nil
	if err := v.check(); err != nil {
		return err
	}
	signature, err := k.pair.Sign(v.signed())
	if err != nil {
		return fmt.Errorf("sign verdict: %w", err)
	}
	v.Signature = signature
	return nil
}

// signed returns the bytes that the signature is over.
func (v *Verdict) signed() []byte { return v.appendUnsigned([]byte(signatureDomain)) }

// Verify checks that v has the signature of its verifier. The error wraps [ErrSignature]. Whether the verifier is to be
// trusted is the caller's question.
func (v *Verdict) Verify() error {
	if len(v.Signature) == 0 {
		return fmt.Errorf("%w: session %s, event %d: it has none", ErrSignature, v.Session, v.Seq)
	}
	key, err := nkeys.FromPublicKey(v.Verifier)
	if err == nil {
		err = key.Verify(v.signed(), v.Signature)
	}
	if err != nil {
		return fmt.Errorf("%w: session %s, event %d: %w", ErrSignature, v.Session, v.Seq, err)
	}
	return nil
}

func appendHex(dst, b []byte) []byte { return hex.AppendEncode(dst, b) }

func parseHex(s string) ([]byte, error) { return hex.DecodeString(s) }
