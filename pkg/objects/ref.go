// Package objects is content-addressed storage for the bytes that events refer to instead of holding them.
//
// An object is named by the SHA-256 of its raw bytes and never changes. Events hold a [Ref]; the bytes live in a
// [Store]. There is one door in, [Put], which computes the reference, and one door out, [Get], which checks length
// and digest, so that no caller ever acts on bytes that are not the ones the log refers to.
//
// Three stores keep the contract of [Store] and pass the suite in package objectstest: [Memory], [Dir] and the
// JetStream store of this module.
package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

const (
	// MaxBytes is the largest size of one object, in bytes: 1 GiB.
	MaxBytes = 1 << 30

	// MaxMediaTypeLen is the longest media type of a reference, in bytes.
	MaxMediaTypeLen = 127
)

// Digest is the SHA-256 of an object's raw bytes. Digests are comparable and serve as map keys.
type Digest [sha256.Size]byte

// Sum returns the digest of data.
func Sum(data []byte) Digest {
	return sha256.Sum256(data)
}

// ParseDigest parses the text form of a digest: exactly 64 lower-case hexadecimal digits. Any other text fails with
// [ErrInvalidRef]; upper case is refused so that equal digests have equal text everywhere.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != hex.EncodedLen(len(d)) {
		return Digest{}, fmt.Errorf("%w: a digest has %d hexadecimal digits, got %d bytes",
			ErrInvalidRef, hex.EncodedLen(len(d)), len(s))
	}
	for i := range d {
		hi, ok1 := unhex(s[2*i])
		lo, ok2 := unhex(s[2*i+1])
		if !ok1 || !ok2 {
			return Digest{}, fmt.Errorf("%w: digest %.80q is not all lower-case hexadecimal digits", ErrInvalidRef, s)
		}
		d[i] = hi<<4 | lo
	}
	return d, nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	default:
		return 0, false
	}
}

// String returns the 64 lower-case hexadecimal digits of d.
func (d Digest) String() string {
	return hex.EncodeToString(d[:])
}

// AppendHex appends the text form of d to dst and returns the extended slice.
func (d Digest) AppendHex(dst []byte) []byte {
	return hex.AppendEncode(dst, d[:])
}

// MarshalText returns the text form of d. It never fails.
func (d Digest) MarshalText() ([]byte, error) {
	return d.AppendHex(nil), nil
}

// UnmarshalText sets d to the digest in text, which must be in the form that [ParseDigest] accepts.
func (d *Digest) UnmarshalText(text []byte) error {
	v, err := ParseDigest(string(text))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

// Ref refers to one object. Refs are comparable. The digest alone names the bytes; the length is checked with it, and
// the media type is what the referring event says about them: two refs with equal digests and different media types
// share one stored object.
type Ref struct {
	// Digest is the SHA-256 of the raw bytes.
	Digest Digest `json:"sha256"`
	// Bytes is the length of the raw bytes, in [0, MaxBytes].
	Bytes int64 `json:"bytes"`
	// MediaType is type/subtype without parameters, such as "text/plain".
	MediaType string `json:"mediaType"`
}

// Validate reports whether r can refer to an object at all: length in [0, [MaxBytes]] and a media type of the form
// type/subtype, both names as RFC 6838 restricts them, at most [MaxMediaTypeLen] bytes together. A length above the
// bound fails with [ErrTooLarge], everything else with [ErrInvalidRef]. Whether the object exists is not asked.
func (r Ref) Validate() error {
	switch {
	case r.Bytes < 0:
		return fmt.Errorf("%w: object %s has a negative length %d", ErrInvalidRef, r.Digest, r.Bytes)
	case r.Bytes > MaxBytes:
		return fmt.Errorf("%w: object %s has %d bytes, at most %d are allowed", ErrTooLarge, r.Digest, r.Bytes, int64(MaxBytes))
	}
	return ValidateMediaType(r.MediaType)
}

// String names the object and its length for messages.
func (r Ref) String() string {
	return fmt.Sprintf("%s (%d bytes, %s)", r.Digest, r.Bytes, r.MediaType)
}

// ValidateMediaType reports whether s is a media type that a [Ref] may carry; if not, the error wraps [ErrInvalidRef].
func ValidateMediaType(s string) error {
	if s == "" {
		return fmt.Errorf("%w: the media type is empty", ErrInvalidRef)
	}
	if len(s) > MaxMediaTypeLen {
		return fmt.Errorf("%w: the media type has %d bytes, at most %d are allowed", ErrInvalidRef, len(s), MaxMediaTypeLen)
	}
	slash := -1
	for i := range len(s) {
		switch c := s[i]; {
		case c == '/':
			if slash >= 0 {
				return fmt.Errorf("%w: media type %q has more than one slash", ErrInvalidRef, s)
			}
			slash = i
		case isAlphanumeric(c):
		case (i > 0 && i != slash+1) && isNamePunctuation(c):
		default:
			return fmt.Errorf("%w: media type %q: byte %d is not allowed there", ErrInvalidRef, s, i)
		}
	}
	if slash <= 0 || slash == len(s)-1 {
		return fmt.Errorf("%w: media type %q is not type/subtype", ErrInvalidRef, s)
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// isNamePunctuation reports whether c may stand in a restricted name of RFC 6838 after its first character.
func isNamePunctuation(c byte) bool {
	switch c {
	case '!', '#', '$', '&', '-', '^', '_', '.', '+':
		return true
	default:
		return false
	}
}
