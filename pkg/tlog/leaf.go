package tlog

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
)

// HashSize is the length of a hash in bytes.
const HashSize = sha256.Size

// Hash is that of a leaf, or of two hashes that stand beside each other in the tree.
type Hash [HashSize]byte

// String returns the hash in base64, as checkpoints and proofs have it.
func (h Hash) String() string { return base64.StdEncoding.EncodeToString(h[:]) }

// errHash says that a text is no hash; its user wraps it.
var errHash = errors.New("want a SHA-256 in base64, 44 characters")

// ParseHash reads what [Hash.String] writes, and nothing else.
func ParseHash(s string) (h Hash, err error) {
	const length = 44
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(s) != length || len(b) != HashSize { // the decoder passes over line ends
		return h, errHash
	}
	return Hash(b), nil
}

// MaxEntry is the length in bytes of the longest entry: a bundle has two bytes for it.
const MaxEntry = 1<<16 - 1

// Entry returns the entry for a stored payload: the payload itself, or, when it is longer than [MaxEntry], a line that
// names its SHA-256. No verdict is that long. The result may share memory with the payload.
func Entry(payload []byte) []byte {
	if len(payload) <= MaxEntry {
		return payload
	}
	sum := sha256.Sum256(payload)
	return append([]byte("refold oversize "), hex.EncodeToString(sum[:])...)
}

// LeafHash returns the hash of the leaf for a stored payload.
func LeafHash(payload []byte) Hash { return EntryHash(Entry(payload)) }

// EntryHash returns the hash of the leaf that is the entry: SHA-256 over a zero byte and the entry.
func EntryHash(entry []byte) Hash { return Hash(rfc6962.DefaultHasher.HashLeaf(entry)) }

// NodeHash returns the hash over two hashes that stand beside each other: SHA-256 over a byte 1 and both.
func NodeHash(left, right Hash) Hash {
	return Hash(rfc6962.DefaultHasher.HashChildren(left[:], right[:]))
}

// EmptyRoot returns the root of the log without leaves: SHA-256 of nothing.
func EmptyRoot() Hash { return Hash(rfc6962.DefaultHasher.EmptyRoot()) }

func hashChildren(left, right []byte) []byte { return rfc6962.DefaultHasher.HashChildren(left, right) }

// perfect returns the root over hashes, whose number is a power of two.
func perfect(hashes []Hash) Hash {
	if len(hashes) == 1 {
		return hashes[0]
	}
	half := len(hashes) / 2
	return NodeHash(perfect(hashes[:half]), perfect(hashes[half:]))
}

// edgeRoot returns the root of the tree whose last tiles, those that are not full, are edge, by level from 0.
func edgeRoot(edge [][]Hash, size uint64) (Hash, error) {
	if size == 0 {
		return EmptyRoot(), nil
	}
	var roots [][]byte // of the perfect subtrees, from left to right
	for _, rest := range slices.Backward(edge) {
		for width := tileWidth / 2; width > 0; width /= 2 {
			if len(rest) >= width {
				root := perfect(rest[:width])
				roots, rest = append(roots, root[:]), rest[width:]
			}
		}
	}
	factory := compact.RangeFactory{Hash: hashChildren}
	r, err := factory.NewRange(0, size, roots)
	if err != nil {
		return Hash{}, fmt.Errorf("%w: %w", ErrTile, err)
	}
	root, err := r.GetRootHash(nil)
	if err != nil {
		return Hash{}, fmt.Errorf("%w: %w", ErrTile, err)
	}
	return Hash(root), nil
}
