package dsh

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrCorrupt is wrapped by every error about the contents of a log file. It is final for that file.
var ErrCorrupt = errors.New("corrupt session log")

// MaxRowBytes bounds one row of a log file.
const MaxRowBytes = events.MaxEventBytes

// MaxLogBytes bounds what a log file holds, before compression: a log is kept whole in memory.
const MaxLogBytes = 1 << 30

// maxWindow bounds the memory that a zstd frame may ask for.
const maxWindow = 128 << 20

// text is a string that keeps lone surrogates.
type text string

func (t *text) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	if v.Kind() == 'n' {
		return nil
	}
	s, err := events.Unquote(v)
	if err != nil {
		return err
	}
	*t = text(s)
	return nil
}

// loose is a string that takes no part in a request; another JSON value in its place stands as it was written.
type loose string

func (l *loose) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case 'n':
		return nil
	case '"':
		s, err := events.Unquote(v)
		*l = loose(s)
		return err
	default:
		*l = loose(events.TextFromBytes(v))
		return nil
	}
}

// row is one line of a log file: the header, an event, or a packed run of chunk events.
type row struct {
	Type    text           `json:"type"`
	Seq     uint64         `json:"seq"`
	Seq0    uint64         `json:"seq0"`
	Time    float64        `json:"time"`
	Time0   float64        `json:"time0"`
	Data    jsontext.Value `json:"data"`
	Surface jsontext.Value `json:"surfaceOp"`
	Sources []uint64       `json:"sourceEventSeqs"`

	// the header's
	Version         float64 `json:"version"`
	ID              text    `json:"id"`
	CreatedAt       float64 `json:"createdAt"`
	Cwd             loose   `json:"cwd"`
	DelegationDepth float64 `json:"delegationDepth"`

	raw []byte // the header's whole line
}

// lenient accepts what ECMAScript's JSON.parse accepts.
func lenient() json.Options {
	return json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

func unmarshal(b []byte, v any) error { return json.Unmarshal(b, v, lenient()) }

// rows yields the rows of a log file with their line number, from 1. The file is plain text or a sequence of zstd
// frames. After an error it yields nothing more.
func rows(r io.Reader) iter.Seq2[int, rowOrError] {
	return func(yield func(int, rowOrError) bool) {
		br := bufio.NewReaderSize(r, 64<<10)
		if magic, _ := br.Peek(4); bytes.Equal(magic, []byte{0x28, 0xB5, 0x2F, 0xFD}) {
			d, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
			if err != nil {
				yield(0, rowOrError{err: fmt.Errorf("%w: %w", ErrCorrupt, err)})
				return
			}
			defer d.Close()
			br = bufio.NewReaderSize(d, 64<<10)
		}
		total := 0
		for n := 1; ; n++ {
			line, err := readLine(br)
			if total += len(line) + 1; total > MaxLogBytes {
				err = fmt.Errorf("the log is longer than %d bytes", MaxLogBytes)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				yield(n, rowOrError{err: fmt.Errorf("%w: line %d: %w", ErrCorrupt, n, err)})
				return
			}
			last := err != nil
			if len(bytes.TrimSpace(line)) > 0 {
				var re rowOrError
				if err := unmarshal(line, &re.row); err != nil {
					re.err = fmt.Errorf("%w: line %d: %w", ErrCorrupt, n, err)
				}
				if re.row.Type == rowHeader {
					re.row.raw = bytes.TrimSpace(line)
				}
				if !yield(n, re) || re.err != nil {
					return
				}
			}
			if last {
				return
			}
		}
	}
}

type rowOrError struct {
	row row
	err error
}

// readLine returns the next line without its end. At the end of the file the error is io.EOF and the line what was
// left.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxRowBytes {
			return nil, fmt.Errorf("longer than %d bytes", MaxRowBytes)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), err
		}
	}
}
