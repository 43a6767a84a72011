// Package sse decodes Server-Sent Events as the WHATWG's HTML standard defines them
// (https://html.spec.whatwg.org/multipage/server-sent-events.html), one byte or one megabyte at a time.
//
// Two things differ from a browser, on purpose. Bytes that are not UTF-8 are handed out as they came, not replaced.
// And an event that the stream's end cut off, which a browser drops, is handed out marked Incomplete, because vendors
// forget the blank line after their last event: its receiver decides.
package sse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// DefaultLimit is the greatest size of an event in bytes unless another is chosen.
const DefaultLimit = 64 << 20

// ErrTooLarge means that an event is larger than the decoder's limit. The stream cannot be read on; the connection is
// to be closed. The error is a [*LimitError].
var ErrTooLarge = errors.New("event too large")

// LimitError reports an event, finished or not, larger than the limit. It wraps [ErrTooLarge].
type LimitError struct {
	Limit int // bytes
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("sse: %v: more than %d bytes without an end of the event; raise the limit or refuse the stream", ErrTooLarge, e.Limit)
}

// Unwrap returns [ErrTooLarge].
func (e *LimitError) Unwrap() error { return ErrTooLarge }

// Event is one event.
type Event struct {
	Type string // of the event field; empty: "message"
	ID   string // the last id that the stream gave, in this event or before
	Data []byte // the data lines, joined by line feeds; valid until the receiver returns

	// Incomplete: the stream ended before the blank line that ends an event. A browser drops such an event.
	Incomplete bool
}

// A Decoder turns bytes into events. How the bytes are split over calls makes no difference. Not safe for concurrent
// use.
type Decoder struct {
	limit int
	err   error
	retry int64

	begun   bool   // past the place of a byte order mark
	mark    int    // bytes of a byte order mark seen so far
	skipLF  bool   // the last byte was a carriage return
	comment bool   // within a comment line, which is not kept
	line    []byte // the line that has not ended

	data    []byte // each data line and a line feed
	hasData bool
	kind    string
	id      string
}

// byteOrderMark is U+FEFF in UTF-8. One at the very start of a stream is dropped.
const byteOrderMark = "\xEF\xBB\xBF"

// NewDecoder returns a decoder that refuses events, and lines other than comments, of more than limit bytes; 0 means
// [DefaultLimit]. Comment lines are of any length: they are not kept.
func NewDecoder(limit int) *Decoder {
	if limit <= 0 {
		limit = DefaultLimit
	}
	return &Decoder{limit: limit, retry: -1}
}

// Retry returns the reconnection time in milliseconds that the stream asked for last, -1 when it did not.
func (d *Decoder) Retry() int64 { return d.retry }

// Feed decodes p and calls emit with each event that ends in it, in order. When emit returns false, the rest of p is
// dropped and the decoder must not be used again. The error wraps [ErrTooLarge] and is final.
func (d *Decoder) Feed(p []byte, emit func(Event) bool) error {
	if d.err != nil {
		return d.err
	}
	p = d.start(p)
	for len(p) > 0 {
		if d.skipLF {
			d.skipLF = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		end := lineEnd(p)
		part := p
		if end >= 0 {
			part, p, d.skipLF = p[:end], p[end+1:], p[end] == '\r'
		} else {
			p = nil
		}
		if err := d.part(part, end < 0); err != nil {
			return err
		}
		if end < 0 {
			return nil
		}
		if !d.endLine(part, emit) {
			return d.err
		}
	}
	return nil
}

// start drops a byte order mark at the start of the stream, which may come byte by byte, and returns the rest of p.
func (d *Decoder) start(p []byte) []byte {
	for !d.begun && len(p) > 0 {
		if p[0] != byteOrderMark[d.mark] {
			d.begun = true
			d.line = append(d.line, byteOrderMark[:d.mark]...)
			break
		}
		d.mark++
		p = p[1:]
		d.begun = d.mark == len(byteOrderMark)
	}
	return p
}

// lineEnd returns the index of the first carriage return or line feed, -1 when there is none. Nothing else ends a
// line, U+2028 in particular does not.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// part takes a part of a line. It is kept only when the line goes on or began earlier.
func (d *Decoder) part(part []byte, goesOn bool) error {
	if len(d.line) == 0 && !d.comment && len(part) > 0 && part[0] == ':' {
		d.comment = true
	}
	if d.comment {
		return nil
	}
	if len(d.line)+len(part)+len(d.data) > d.limit {
		d.err = &LimitError{Limit: d.limit}
		return d.err
	}
	if goesOn || len(d.line) > 0 {
		d.line = append(d.line, part...)
	}
	return nil
}

// endLine handles the line that ends with part and reports whether to go on.
func (d *Decoder) endLine(part []byte, emit func(Event) bool) bool {
	if d.comment {
		d.comment = false
		return true
	}
	line := part
	if len(d.line) > 0 {
		line = d.line
	}
	goOn := true
	if len(line) == 0 {
		goOn = d.dispatch(false, emit)
	} else {
		d.field(line)
	}
	d.line = d.line[:0]
	return goOn
}

func (d *Decoder) field(line []byte) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		d.data = append(append(d.data, value...), '\n')
		d.hasData = true
	case "event":
		d.kind = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			d.id = string(value)
		}
	case "retry":
		if ms, ok := digits(value); ok {
			d.retry = ms
		}
	}
}

// digits reads a decimal number of up to 15 digits, which is 30,000 years of milliseconds.
func digits(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 15 {
		return 0, false
	}
	var n int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// keepBuffer is the largest data buffer in bytes that is kept for the next event.
const keepBuffer = 1 << 20

func (d *Decoder) dispatch(incomplete bool, emit func(Event) bool) bool {
	goOn := true
	if d.hasData {
		goOn = emit(Event{Type: d.kind, ID: d.id, Data: d.data[:len(d.data)-1], Incomplete: incomplete})
	}
	d.data, d.hasData, d.kind = d.data[:0], false, ""
	if cap(d.data) > keepBuffer {
		d.data = nil
	}
	return goOn
}

// Close ends the stream. If it ended within an event that has data, a last line without its end included, emit is
// called with that event, marked Incomplete. The decoder must not be used again.
func (d *Decoder) Close(emit func(Event) bool) error {
	if d.err != nil {
		return d.err
	}
	if len(d.line) > 0 {
		d.field(d.line)
	}
	d.dispatch(true, emit)
	return nil
}

// Events reads r to its end and yields its events in order; an error, of r or one that wraps [ErrTooLarge], comes
// last. limit is as for [NewDecoder]. An event's Data is valid until the next one.
func Events(r io.Reader, limit int) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		d := NewDecoder(limit)
		stopped := false
		emit := func(e Event) bool {
			stopped = !yield(e, nil)
			return !stopped
		}
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			if ferr := d.Feed(buf[:n], emit); ferr != nil {
				yield(Event{}, ferr)
				return
			}
			if stopped {
				return
			}
			if errors.Is(err, io.EOF) {
				_ = d.Close(emit) // cannot fail: Feed did not
				return
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("sse: read: %w", err))
				return
			}
		}
	}
}
