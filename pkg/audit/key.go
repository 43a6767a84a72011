package audit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nkeys"
)

// ErrKey says that something is no key, or a file none that can be read or made.
var ErrKey = errors.New("no usable signing key")

// signatureDomain stands before what is signed, so that no signature made for something else passes as a verdict's.
const signatureDomain = "refold verdict 1\n"

// Key signs verdicts and receipts. It is safe for concurrent use.
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

// KeyFromSeed returns the key of an nkey seed, without white space around it. The error wraps [ErrKey]; it does not show
// the seed.
func KeyFromSeed(seed []byte) (*Key, error) {
	pair, err := nkeys.FromSeed(seed)
	if err != nil || bytes.HasPrefix(seed, []byte("SX")) { // the last is a key for encryption
		return nil, fmt.Errorf("%w: not the seed of a signing nkey", ErrKey)
	}
	return newKey(pair)
}

// Seed returns the key's seed, which is secret.
func (k *Key) Seed() ([]byte, error) {
	seed, err := k.pair.Seed()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	return seed, nil
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
	signature, err := k.sign(v.signed())
	if err != nil {
		return fmt.Errorf("sign verdict: %w", err)
	}
	v.Signature = signature
	return nil
}

func (k *Key) sign(b []byte) ([]byte, error) { return k.pair.Sign(b) }

// checkSignature returns why b does not have the signature of the public nkey, nil when it has.
func checkSignature(public string, b, signature []byte) error {
	key, err := nkeys.FromPublicKey(public)
	if err != nil {
		return err
	}
	return key.Verify(b, signature)
}

// signed returns the bytes that the signature is over.
func (v *Verdict) signed() []byte { return v.appendUnsigned([]byte(signatureDomain)) }

// Verify checks that v has the signature of its verifier. The error wraps [ErrSignature]. Whether the verifier is to be
// trusted is the caller's question.
func (v *Verdict) Verify() error {
	if len(v.Signature) == 0 {
		return fmt.Errorf("%w: session %s, event %d: it has none", ErrSignature, v.Session, v.Seq)
	}
	if err := checkSignature(v.Verifier, v.signed(), v.Signature); err != nil {
		return fmt.Errorf("%w: session %s, event %d: %w", ErrSignature, v.Session, v.Seq, err)
	}
	return nil
}

func appendHex(dst, b []byte) []byte { return hex.AppendEncode(dst, b) }

func parseHex(s string) ([]byte, error) { return hex.DecodeString(s) }
