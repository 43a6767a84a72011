package bundle

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash"
	"io"
)

// entry is a header, and where its content stands.
type entry struct {
	key    key
	offset int64 // of the content
	size   int64
}

func (e *entry) wrong(format string, args ...any) error {
	return &FormatError{Offset: e.offset, Entry: e.key.String(), Reason: fmt.Sprintf(format, args...)}
}

// cursor reads entries one behind the other. It reads no more than stands in the file, and allocates for no content but what
// the caller asks for.
type cursor struct {
	src   *bufio.Reader
	size  int64     // of the file
	off   int64     // of what is read next
	sum   hash.Hash // of what was read; nil: not wanted
	last  key
	begun bool
	block [blockSize]byte
}

// readAhead is the size of a cursor's buffer.
const readAhead = 128 << 10

// newCursor returns a cursor at an offset at which a header stands. The order of entries counts from there.
func newCursor(r io.ReaderAt, off, size int64, sum hash.Hash) *cursor {
	return &cursor{src: bufio.NewReaderSize(io.NewSectionReader(r, off, size-off), readAhead), size: size, off: off, sum: sum}
}

// read fills p.
func (c *cursor) read(p []byte) error {
	n, err := io.ReadFull(c.src, p)
	c.off += int64(n)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return c.cut()
	case err != nil:
		return fmt.Errorf("read bundle at byte %d: %w", c.off, err)
	}
	return nil
}

// cut is the error of a file that ends where something more belongs.
func (c *cursor) cut() error {
	e := &FormatError{Offset: c.off, Reason: fmt.Sprintf("the file is cut off: it ends at byte %d, without end.json", c.size)}
	if c.begun {
		e.Entry = c.last.String()
	}
	return e
}

// header reads the next header. before, when not nil, is given the sum of all bytes before it.
func (c *cursor) header(before *[]byte) (entry, error) {
	if c.size-c.off < blockSize {
		return entry{}, c.cut()
	}
	at := c.off
	if err := c.read(c.block[:]); err != nil {
		return entry{}, err
	}
	k, size, why := parseHeader(c.block[:])
	e := entry{key: k, offset: c.off, size: size}
	wrong := &FormatError{Offset: at, Reason: why}
	if c.begun {
		wrong.Entry = "behind " + c.last.String()
	}
	switch {
	case why != "":
		if k != (key{}) {
			wrong.Entry = k.String()
		}
	case !c.begun && before != nil && k.section != sectionManifest:
		wrong.Reason = fmt.Sprintf("%s stands where %s belongs", k, nameManifest)
	case c.begun && c.last == k:
		wrong.Reason = fmt.Sprintf("%s stands there twice", k)
	case c.begun && !c.last.less(k):
		wrong.Reason = fmt.Sprintf("%s stands behind %s and belongs before it", k, c.last)
	case k.section == sectionInclusion && before != nil && c.last.section < sectionCheckpoint:
		wrong.Reason = fmt.Sprintf("%s stands there without %s", k, nameCheckpoint)
	case size+padding(size) > c.size-c.off:
		wrong.Reason = fmt.Sprintf("%s claims %d bytes and the file has %d left: it is cut off", k, size, c.size-c.off)
	}
	if wrong.Reason != "" {
		return entry{}, wrong
	}
	c.begun, c.last = true, k
	if before != nil && k.section == sectionEnd {
		*before = c.sum.Sum(nil)
	}
	if c.sum != nil {
		c.sum.Write(c.block[:])
	}
	return e, nil
}

// content reads the content of the entry whose header was read last, into dst when it is large enough.
func (c *cursor) content(e *entry, dst []byte) ([]byte, error) {
	if int64(cap(dst)) < e.size {
		dst = make([]byte, e.size) // so much stands in the file: header has seen to it
	}
	dst = dst[:e.size]
	if err := c.read(dst); err != nil {
		return nil, err
	}
	if c.sum != nil {
		c.sum.Write(dst)
	}
	return dst, c.padding(e)
}

// skip passes over the content.
func (c *cursor) skip(e *entry) error {
	for left := e.size; left > 0; {
		p, err := c.src.Peek(int(min(left, readAhead)))
		if len(p) == 0 {
			if errors.Is(err, io.EOF) {
				return c.cut()
			}
			return fmt.Errorf("read bundle at byte %d: %w", c.off, err)
		}
		if c.sum != nil {
			c.sum.Write(p)
		}
		n, _ := c.src.Discard(len(p)) // they are there
		c.off += int64(n)
		left -= int64(n)
	}
	return c.padding(e)
}

func (c *cursor) padding(e *entry) error {
	p := c.block[:padding(e.size)]
	at := c.off
	if err := c.read(p); err != nil {
		return err
	}
	if i := bytes.IndexFunc(p, func(r rune) bool { return r != 0 }); i >= 0 {
		return &FormatError{Offset: at + int64(i), Entry: e.key.String(), Reason: fmt.Sprintf("byte %#02x stands behind its content, where zeros fill the block", p[i])}
	}
	if c.sum != nil {
		c.sum.Write(p)
	}
	return nil
}

// finish reads the two blocks of zeros behind the last entry, and sees that nothing stands behind them.
func (c *cursor) finish() error {
	for range 2 {
		at := c.off
		if c.size-c.off < blockSize {
			return &FormatError{Offset: c.off, Entry: c.last.String(), Reason: "the file is cut off: two blocks of zeros belong behind it"}
		}
		if err := c.read(c.block[:]); err != nil {
			return err
		}
		if !allZero(c.block[:]) {
			return &FormatError{Offset: at, Entry: c.last.String(), Reason: "something stands behind it: two blocks of zeros and the end of the file belong there"}
		}
	}
	if c.off != c.size {
		return &FormatError{Offset: c.off, Entry: c.last.String(), Reason: fmt.Sprintf("%d bytes stand behind the end", c.size-c.off)}
	}
	return nil
}
