package tlog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
)

// Sentinels of proofs.
var (
	// ErrNotIncluded means that a proof does not show the leaf at the index in the tree. A finding, unless the proof was
	// damaged on its way.
	ErrNotIncluded = errors.New("the proof does not show the entry in the log")
	// ErrInconsistent means that a proof does not show the smaller tree to be the beginning of the larger one. A finding,
	// unless the proof was damaged on its way.
	ErrInconsistent = errors.New("the smaller log is not the beginning of the larger one")
	// ErrProof means that the bytes are no proof. Final.
	ErrProof = errors.New("invalid proof")
	// ErrRange means that an index or a size is beyond the log's size.
	ErrRange = errors.New("beyond the end of the log")
)

// maxHashes bounds a proof: one for every level, and one more.
const maxHashes = MaxSizeBits + 1

// VerifyInclusion checks that the leaf stands at the index, from 0, in the tree of the size with the root. The error wraps
// [ErrNotIncluded].
func VerifyInclusion(index, size uint64, leaf Hash, hashes []Hash, root Hash) error {
	if size > MaxSize || len(hashes) > maxHashes {
		return fmt.Errorf("%w: too large", ErrNotIncluded)
	}
	if err := proof.VerifyInclusion(rfc6962.DefaultHasher, index, size, leaf[:], slicesOf(hashes), root[:]); err != nil {
		return fmt.Errorf("%w: index %d, size %d: %s", ErrNotIncluded, index, size, oneLine(err))
	}
	return nil
}

// VerifyConsistency checks that the tree of the old size and root is the beginning of the other. The error wraps
// [ErrInconsistent].
func VerifyConsistency(oldSize, size uint64, hashes []Hash, oldRoot, root Hash) error {
	switch {
	case size > MaxSize || len(hashes) > maxHashes:
		return fmt.Errorf("%w: too large", ErrInconsistent)
	case oldSize > size:
		return fmt.Errorf("%w: size %d, and %d later", ErrInconsistent, oldSize, size)
	case oldSize == 0 && oldRoot != EmptyRoot():
		return fmt.Errorf("%w: size 0 with the root of something else", ErrInconsistent)
	}
	if err := proof.VerifyConsistency(rfc6962.DefaultHasher, oldSize, size, slicesOf(hashes), oldRoot[:], root[:]); err != nil {
		return fmt.Errorf("%w: sizes %d and %d: %s", ErrInconsistent, oldSize, size, oneLine(err))
	}
	return nil
}

// oneLine words an error of the proof package for people.
func oneLine(err error) string {
	if _, ok := errors.AsType[proof.RootMismatchError](err); ok {
		return "its hashes give another root"
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func slicesOf(hashes []Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

// MaxProofBytes bounds a proof file.
const MaxProofBytes = 64 << 10

const proofHeader = "c2sp.org/tlog-proof@v1\n"

// Proof is a proof file: that an entry stands in a log, to be checked by somebody who has nothing but the entry and the log's
// key.
type Proof struct {
	Index      uint64 // of the entry, from 0
	Hashes     []Hash // from the leaf's sibling up
	Checkpoint []byte // signed, as it was read
	Extra      []byte // whatever else the writer has put in; signed by nobody
}

// Encode returns the file. The error wraps [ErrProof] when it would not be read back.
func (p *Proof) Encode() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(proofHeader)
	if len(p.Extra) > 0 {
		b.WriteString("extra " + base64.StdEncoding.EncodeToString(p.Extra) + "\n")
	}
	b.WriteString("index " + strconv.FormatUint(p.Index, 10) + "\n")
	for _, h := range p.Hashes {
		b.WriteString(h.String() + "\n")
	}
	b.WriteString("\n")
	b.Write(p.Checkpoint)
	if _, err := ParseProof(b.Bytes()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// ParseProof reads what [Proof.Encode] writes, and nothing else. It checks nothing but the form: see [Proof.Verify]. The
// error wraps [ErrProof].
func ParseProof(b []byte) (*Proof, error) {
	fail := func(format string, args ...any) (*Proof, error) {
		return nil, fmt.Errorf("%w: %s", ErrProof, fmt.Sprintf(format, args...))
	}
	if len(b) > MaxProofBytes {
		return fail("%d bytes, at most %d", len(b), MaxProofBytes)
	}
	head, checkpoint, ok := bytes.Cut(b, []byte("\n\n"))
	rest, isProof := strings.CutPrefix(string(head)+"\n", proofHeader)
	if !ok || !isProof {
		return fail("want %q, lines, an empty line and a checkpoint", strings.TrimSpace(proofHeader))
	}
	p := &Proof{Checkpoint: bytes.Clone(checkpoint)}
	line, rest, _ := strings.Cut(rest, "\n")
	if text, ok := strings.CutPrefix(line, "extra "); ok {
		extra, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || len(extra) == 0 || base64.StdEncoding.EncodeToString(extra) != text {
			return fail("its extra data is not base64")
		}
		p.Extra = extra
		line, rest, _ = strings.Cut(rest, "\n")
	}
	number, ok := strings.CutPrefix(line, "index ")
	index, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || strconv.FormatUint(index, 10) != number || index >= MaxSize {
		return fail("%.40q: want \"index\" and a number", line)
	}
	p.Index = index
	for rest != "" {
		if len(p.Hashes) == maxHashes {
			return fail("more than %d hashes", maxHashes)
		}
		line, rest, _ = strings.Cut(rest, "\n")
		h, err := ParseHash(line)
		if err != nil {
			return fail("%.60q: %v", line, err)
		}
		p.Hashes = append(p.Hashes, h)
	}
	if _, err := ReadCheckpoint(p.Checkpoint); err != nil {
		return fail("%v", err)
	}
	return p, nil
}

// Verify checks that the checkpoint is signed by one of the keys, as [OpenCheckpoint] does it, and that the entry of the
// payload stands in the log at the proof's index. It returns the checkpoint. The error wraps [ErrNotIncluded] or one of those
// of [OpenCheckpoint].
func (p *Proof) Verify(payload []byte, keys ...string) (Checkpoint, error) {
	c, err := OpenCheckpoint(p.Checkpoint, keys...)
	if err != nil {
		return Checkpoint{}, err
	}
	return c, VerifyInclusion(p.Index, c.Size, LeafHash(payload), p.Hashes, c.Root)
}
