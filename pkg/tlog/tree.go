package tlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
)

// Sentinels of files.
var (
	// ErrTile means that a file of the log is not what its checkpoint says. The log is damaged, or was forged; the message
	// names the file.
	ErrTile = errors.New("the log's files and its checkpoint differ")
	// ErrNotFound means that a log does not have a file. A log that has a checkpoint of a size has all files for it.
	ErrNotFound = errors.New("the log has no such file")
)

// Tiles are the files of a log.
type Tiles interface {
	// Read returns the bytes of the file at the path, which the caller owns: [CheckpointPath], or one that [File.Path]
	// returns. A file that is not there is an error that wraps [ErrNotFound], one with more than limit bytes one that wraps
	// [ErrTile]; it reads no more than that.
	Read(ctx context.Context, path string, limit int) ([]byte, error)
}

// Tree reads a log up to a checkpoint, and believes no file that does not fit to its root. It is not safe for concurrent use.
type Tree struct {
	tiles  Tiles
	point  Checkpoint
	edge   [][]Hash     // the tiles that are not full, by level; empty where there is none
	recent []recentTile // the full tile of each level that was read last
}

type recentTile struct {
	n      uint64
	hashes []Hash // nil when none was read
}

// OpenTree reads the last tiles of the log and compares them with the checkpoint's root. Whether the checkpoint is to be
// believed is the caller's question. The error wraps [ErrCheckpoint], [ErrTile] or that of tiles.
func OpenTree(ctx context.Context, tiles Tiles, c Checkpoint) (*Tree, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Tree{tiles: tiles, point: c}
	var paths []string
	for level, n := 0, c.Size; n > 0; level, n = level+1, n/tileWidth {
		t.edge, t.recent = append(t.edge, nil), append(t.recent, recentTile{})
		if width := int(n % tileWidth); width > 0 {
			f := File{Level: level, N: n / tileWidth, Width: width}
			hashes, err := t.readTile(ctx, f)
			if err != nil {
				return nil, err
			}
			t.edge[level] = hashes
			paths = append(paths, f.Path())
		}
	}
	root, err := edgeRoot(t.edge, c.Size)
	if err != nil {
		return nil, err
	}
	if root != c.Root {
		return nil, fmt.Errorf("%w: %q give the root %s at size %d, the checkpoint says %s", ErrTile, paths, root, c.Size, c.Root)
	}
	return t, nil
}

// Checkpoint returns the checkpoint that the tree was opened with.
func (t *Tree) Checkpoint() Checkpoint { return t.point }

// read returns the file, or the beginning of the full one when it is not full and not there any more.
func (t *Tree) read(ctx context.Context, f File) (b []byte, whole bool, err error) {
	b, err = t.tiles.Read(ctx, f.Path(), f.Limit())
	if f.Width == tileWidth || !errors.Is(err, ErrNotFound) {
		return b, true, err
	}
	full, fullErr := t.tiles.Read(ctx, f.Full().Path(), f.Full().Limit())
	if fullErr != nil {
		return nil, true, err
	}
	return full, false, nil
}

func (t *Tree) readTile(ctx context.Context, f File) ([]Hash, error) {
	b, whole, err := t.read(ctx, f)
	if err != nil {
		return nil, err
	}
	if !whole {
		if len(b) != MaxTileBytes {
			return nil, fmt.Errorf("%s: %w: %d bytes, want %d", f.Full().Path(), ErrTile, len(b), MaxTileBytes)
		}
		b = b[:f.Width*HashSize]
	}
	hashes, err := DecodeTile(b, f.Width)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	return hashes, nil
}

// tile returns the hashes [n*256, n*256+256) of a level, or as many as there are, checked against the root.
func (t *Tree) tile(ctx context.Context, level int, n uint64) ([]Hash, error) {
	count := t.point.Size >> (tileHeight * level) // hashes of the level
	if n == count/tileWidth {
		return t.edge[level], nil
	}
	if r := t.recent[level]; r.hashes != nil && r.n == n {
		return r.hashes, nil
	}
	f := File{Level: level, N: n, Width: tileWidth}
	hashes, err := t.readTile(ctx, f)
	if err != nil {
		return nil, err
	}
	above, err := t.tile(ctx, level+1, n/tileWidth)
	if err != nil {
		return nil, err
	}
	if perfect(hashes) != above[n%tileWidth] {
		return nil, fmt.Errorf("%s: %w: its hashes are not those that stand above them", f.Path(), ErrTile)
	}
	t.recent[level] = recentTile{n: n, hashes: hashes}
	return hashes, nil
}

// node returns the hash of a node whose leaves are all in the log.
func (t *Tree) node(ctx context.Context, id compact.NodeID) (Hash, error) {
	level, inner := int(id.Level)/tileHeight, id.Level%tileHeight //nolint:gosec // below 64
	first := id.Index << inner
	hashes, err := t.tile(ctx, level, first/tileWidth)
	if err != nil {
		return Hash{}, err
	}
	at := int(first % tileWidth) //nolint:gosec // below 256
	return perfect(hashes[at : at+1<<inner]), nil
}

func (t *Tree) prove(ctx context.Context, nodes proof.Nodes) ([]Hash, error) {
	hashes := make([][]byte, len(nodes.IDs))
	for i, id := range nodes.IDs {
		h, err := t.node(ctx, id)
		if err != nil {
			return nil, err
		}
		hashes[i] = h[:]
	}
	hashes, err := nodes.Rehash(hashes, hashChildren)
	if err != nil {
		return nil, err
	}
	out := make([]Hash, len(hashes))
	for i, h := range hashes {
		out[i] = Hash(h)
	}
	return out, nil
}

// Leaf returns the hash of the leaf at the index. The error wraps [ErrRange], [ErrTile] or that of the tiles.
func (t *Tree) Leaf(ctx context.Context, index uint64) (Hash, error) {
	if index >= t.point.Size {
		return Hash{}, fmt.Errorf("%w: index %d, size %d", ErrRange, index, t.point.Size)
	}
	return t.node(ctx, compact.NewNodeID(0, index))
}

// Inclusion returns the proof that the leaf at the index is in the tree, for [VerifyInclusion]. The error wraps [ErrRange],
// [ErrTile] or that of the tiles.
func (t *Tree) Inclusion(ctx context.Context, index uint64) ([]Hash, error) {
	nodes, err := proof.Inclusion(index, t.point.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: index %d, size %d", ErrRange, index, t.point.Size)
	}
	return t.prove(ctx, nodes)
}

// Consistency returns the proof that the tree of the old size is the beginning of this one, for [VerifyConsistency]. The
// error wraps [ErrRange], [ErrTile] or that of the tiles.
func (t *Tree) Consistency(ctx context.Context, oldSize uint64) ([]Hash, error) {
	nodes, err := proof.Consistency(oldSize, t.point.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: size %d, now %d", ErrRange, oldSize, t.point.Size)
	}
	return t.prove(ctx, nodes)
}

// InclusionProof returns the proof that the leaf at the index stands in the log of the checkpoint, as [Tree.Inclusion] does.
func InclusionProof(ctx context.Context, tiles Tiles, c Checkpoint, index uint64) ([]Hash, error) {
	t, err := OpenTree(ctx, tiles, c)
	if err != nil {
		return nil, err
	}
	return t.Inclusion(ctx, index)
}

// bundle returns the entries [n*256, n*256+256), or as many as there are, checked against their leaves.
func (t *Tree) bundle(ctx context.Context, n uint64) ([][]byte, error) {
	hashes, err := t.tile(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	f := File{Entries: true, N: n, Width: len(hashes)}
	b, whole, err := t.read(ctx, f)
	if err != nil {
		return nil, err
	}
	stored := f
	if !whole {
		stored = f.Full()
	}
	entries, err := DecodeBundle(b, stored.Width)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stored.Path(), err)
	}
	entries = entries[:f.Width]
	for i, entry := range entries {
		if EntryHash(entry) != hashes[i] {
			return nil, fmt.Errorf("%s: %w: entry %d is another one", stored.Path(), ErrTile, n*tileWidth+uint64(i))
		}
	}
	return entries, nil
}

// Entries yields the entries from the index on, in order, each checked. It stops at the first error, which wraps [ErrTile] or
// is that of the tiles. An entry is the receiver's only until the next one comes.
func (t *Tree) Entries(ctx context.Context, from uint64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for from < t.point.Size {
			entries, err := t.bundle(ctx, from/tileWidth)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, entry := range entries[from%tileWidth:] {
				if !yield(entry, nil) {
					return
				}
				from++
			}
		}
	}
}

// Entry returns the entry at the index. The error is as that of [Tree.Leaf].
func (t *Tree) Entry(ctx context.Context, index uint64) ([]byte, error) {
	if index >= t.point.Size {
		return nil, fmt.Errorf("%w: index %d, size %d", ErrRange, index, t.point.Size)
	}
	entries, err := t.bundle(ctx, index/tileWidth)
	if err != nil {
		return nil, err
	}
	return bytes.Clone(entries[index%tileWidth]), nil
}

// Builder returns a builder that goes on behind the tree. The error wraps [ErrTile] or is that of the tiles.
func (t *Tree) Builder(ctx context.Context, write func(f File, b []byte) error) (*Builder, error) {
	b := &Builder{write: write, size: t.point.Size}
	for _, hashes := range t.edge {
		b.edge = append(b.edge, slices.Clone(hashes))
	}
	if t.point.Size%tileWidth == 0 {
		return b, nil
	}
	entries, err := t.bundle(ctx, t.point.Size/tileWidth)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		b.bundle = appendEntry(b.bundle, entry)
	}
	return b, nil
}
