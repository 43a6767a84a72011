package tlog

import "fmt"

// Builder makes the files of a growing log. It is not safe for concurrent use; after an error of its write function it is
// of no more use.
type Builder struct {
	write  func(f File, b []byte) error
	size   uint64
	edge   [][]Hash // the tiles that are not full, by level
	bundle []byte   // the entries of the level-0 tile that is not full
}

// NewBuilder returns a builder of a log without leaves. It gives files to write, which must keep none of the bytes that
// it is given: full ones as soon as they are, and the others when it is told to [Builder.Flush].
func NewBuilder(write func(f File, b []byte) error) *Builder { return &Builder{write: write} }

// Size returns the number of leaves.
func (b *Builder) Size() uint64 { return b.size }

// Append adds the entry of a stored payload, and writes the files that it fills.
func (b *Builder) Append(payload []byte) error {
	if b.size >= MaxSize {
		return fmt.Errorf("%w: %d leaves", ErrRange, b.size)
	}
	entry := Entry(payload)
	b.bundle = appendEntry(b.bundle, entry)
	b.size++
	if b.size%tileWidth == 0 {
		if err := b.write(File{Entries: true, N: b.size/tileWidth - 1, Width: tileWidth}, b.bundle); err != nil {
			return err
		}
		b.bundle = b.bundle[:0]
	}
	hash := EntryHash(entry)
	for level, count := 0, b.size; ; level, count = level+1, count/tileWidth {
		if level == len(b.edge) {
			b.edge = append(b.edge, nil)
		}
		b.edge[level] = append(b.edge[level], hash)
		if len(b.edge[level]) < tileWidth {
			return nil
		}
		if err := b.write(File{Level: level, N: count/tileWidth - 1, Width: tileWidth}, encodeTile(b.edge[level])); err != nil {
			return err
		}
		hash = perfect(b.edge[level])
		b.edge[level] = b.edge[level][:0]
	}
}

// Flush writes the files at the right edge that are not full. Then a checkpoint of the size and the root can be signed.
func (b *Builder) Flush() error {
	for _, f := range filesOf(b.size) {
		data := b.bundle
		if !f.Entries {
			data = encodeTile(b.edge[f.Level])
		}
		if err := b.write(f, data); err != nil {
			return err
		}
	}
	return nil
}

// Root returns the root of the tree.
func (b *Builder) Root() (Hash, error) { return edgeRoot(b.edge, b.size) }
