package tlog

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

const (
	// MaxSizeBits bounds the number of leaves: at most [MaxSize].
	MaxSizeBits = 56
	// MaxSize is the number of leaves of the largest log.
	MaxSize = 1 << MaxSizeBits
	// MaxCheckpointBytes bounds a signed checkpoint.
	MaxCheckpointBytes = 16 << 10
	// MaxOrigin bounds a log's name, in bytes.
	MaxOrigin = 255
)

// Sentinels of checkpoints.
var (
	// ErrCheckpoint means that the bytes are no checkpoint. Final.
	ErrCheckpoint = errors.New("invalid checkpoint")
	// ErrSignature means that a checkpoint has no signature of a key that is trusted to sign for its log. Whoever gave it is
	// not to be believed.
	ErrSignature = errors.New("the checkpoint is not signed by a trusted key")
	// ErrOrigin means that a text is no name of a log.
	ErrOrigin = errors.New("invalid name of a log")
)

// Checkpoint says what the log is: its root at a size.
type Checkpoint struct {
	Origin string // the log's name
	Size   uint64 // its number of leaves, at most [MaxSize]
	Root   Hash
}

// CheckOrigin reports whether s can name a log and its key: not empty, at most [MaxOrigin] bytes, printable, without spaces
// and plus signs. The error wraps [ErrOrigin].
func CheckOrigin(s string) error {
	bad := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == '+' || r == utf8.RuneError }
	if s == "" || len(s) > MaxOrigin || strings.IndexFunc(s, bad) >= 0 {
		return fmt.Errorf("%w: %.80q: want up to %d bytes without spaces and +, such as example.com/log", ErrOrigin, s, MaxOrigin)
	}
	return nil
}

func (c Checkpoint) check() error {
	if err := CheckOrigin(c.Origin); err != nil {
		return fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	if c.Size > MaxSize {
		return fmt.Errorf("%w: size %d, at most %d", ErrCheckpoint, c.Size, uint64(MaxSize))
	}
	if c.Size == 0 && c.Root != EmptyRoot() {
		return fmt.Errorf("%w: size 0 with the root of something else", ErrCheckpoint)
	}
	return nil
}

// Text returns what is signed of the checkpoint: three lines. The error wraps [ErrCheckpoint].
func (c Checkpoint) Text() (string, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, c.Root), nil
}

// ParseCheckpoint reads what [Checkpoint.Text] writes, and nothing else. The error wraps [ErrCheckpoint].
func ParseCheckpoint(text string) (Checkpoint, error) {
	if len(text) > MaxCheckpointBytes {
		return Checkpoint{}, fmt.Errorf("%w: %d bytes, at most %d", ErrCheckpoint, len(text), MaxCheckpointBytes)
	}
	const lines = 3
	parts := strings.SplitN(text, "\n", lines+1)
	if len(parts) != lines+1 || parts[lines] != "" {
		return Checkpoint{}, fmt.Errorf("%w: want three lines: name, size, root", ErrCheckpoint)
	}
	size, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil || strconv.FormatUint(size, 10) != parts[1] {
		return Checkpoint{}, fmt.Errorf("%w: size %.40q: want a decimal number", ErrCheckpoint, parts[1])
	}
	root, err := ParseHash(parts[2])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: root %.60q: %w", ErrCheckpoint, parts[2], err)
	}
	c := Checkpoint{Origin: parts[0], Size: size, Root: root}
	return c, c.check()
}

// ReadCheckpoint returns what a signed checkpoint says without looking at its signatures: it is to be believed by nobody.
// The error wraps [ErrCheckpoint].
func ReadCheckpoint(signed []byte) (Checkpoint, error) {
	c, err := openCheckpoint(signed, note.VerifierList())
	if errors.Is(err, ErrSignature) {
		err = nil
	}
	return c, err
}

// OpenCheckpoint returns what a checkpoint says that is signed by one of the keys, given as [Signer.Key] returns them, whose
// name is the log's: no key speaks for a log of another name. Signatures of other keys do not matter. The error wraps
// [ErrCheckpoint], [ErrSignature], or [ErrKey] when a key is none.
func OpenCheckpoint(signed []byte, keys ...string) (Checkpoint, error) {
	var verifiers []note.Verifier
	for i, key := range keys {
		v, err := newVerifier(key)
		if err != nil {
			return Checkpoint{}, err
		}
		if !slices.Contains(keys[:i], key) { // the list takes none twice
			verifiers = append(verifiers, v)
		}
	}
	c, err := openCheckpoint(signed, note.VerifierList(verifiers...))
	if err != nil {
		return Checkpoint{}, err
	}
	return c, nil
}

func openCheckpoint(signed []byte, keys note.Verifiers) (Checkpoint, error) {
	if len(signed) > MaxCheckpointBytes {
		return Checkpoint{}, fmt.Errorf("%w: %d bytes, at most %d", ErrCheckpoint, len(signed), MaxCheckpointBytes)
	}
	n, err := note.Open(signed, keys)
	if e, ok := errors.AsType[*note.InvalidSignatureError](err); ok {
		return Checkpoint{}, fmt.Errorf("%w: that of %s does not verify", ErrSignature, e.Name)
	}
	if e, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
		n, err = e.Note, nil
	}
	if err == nil {
		err = checkSignatureLines(signed[len(n.Text)+1:])
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	c, err := ParseCheckpoint(n.Text)
	if err != nil {
		return Checkpoint{}, err
	}
	if len(n.Sigs) == 0 {
		return c, ErrSignature
	}
	if !slices.ContainsFunc(n.Sigs, func(s note.Signature) bool { return s.Name == c.Origin }) {
		return Checkpoint{}, fmt.Errorf("%w: that of %s does not speak for the log %s", ErrSignature, n.Sigs[0].Name, c.Origin)
	}
	return c, nil
}

// checkSignatureLines refuses what the note package passes over: two ways to write one signature, and the same one twice.
func checkSignatureLines(lines []byte) error {
	seen := make(map[string]bool)
	for line := range strings.Lines(string(lines)) {
		_, text, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "\u2014 "), " ")
		b, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || base64.StdEncoding.EncodeToString(b) != text {
			return errors.New("a signature that is not in canonical base64")
		}
		if seen[line] {
			return errors.New("a signature stands twice")
		}
		seen[line] = true
	}
	return nil
}
