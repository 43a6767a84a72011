package events

import (
	"bytes"
	"fmt"
)

// Encode returns the canonical payload of e and remembers its hash in e. Errors wrap [ErrInvalid], [ErrLegacy]
// or [ErrTooLarge]; nothing of an event that fails may be stored.
func Encode(e *Event) ([]byte, error) {
	if e.Body == nil {
		return nil, fmt.Errorf("encode event %d: %w: it has no body", e.Seq, ErrInvalid)
	}
	w := &wire{out: make([]byte, 0, 1024)}
	e.fields(w)
	if w.err != nil {
		return nil, fmt.Errorf("encode %s event %d: %w", e.Type(), e.Seq, w.err)
	}
	if len(w.out) > MaxEventBytes {
		return nil, fmt.Errorf("encode %s event %d: %w: %d bytes, at most %d", e.Type(), e.Seq, ErrTooLarge, len(w.out), MaxEventBytes)
	}
	e.hash, e.sealed, e.withheld = HashPayload(w.out), true, false
	return w.out, nil
}

// Decode reads one stored payload, checks it, and returns the event, which shares no memory with payload. It
// accepts exactly the bytes that [Encode] writes. Errors are a [*DecodeError] that wraps [ErrSyntax],
// [ErrInvalid], [ErrVersion], [ErrUnknownType] or [ErrLegacy], or wrap [ErrTooLarge].
func Decode(payload []byte) (Event, error) {
	var d Decoder
	return d.Decode(payload)
}

// Decoder decodes the events of a log one after another. It does what [Decode] does with fewer allocations, because
// it keeps its scratch memory between calls. The zero Decoder is ready. It is for one goroutine at a time; the events
// that it returns share nothing with it.
type Decoder struct{ w wire }

// Decode is [Decode] with the scratch memory of d.
func (d *Decoder) Decode(payload []byte) (Event, error) {
	if err := checkSize(payload); err != nil {
		return Event{}, err
	}
	return d.DecodeOwned(bytes.Clone(payload))
}

// DecodeShared is [Decode] without the copy, where none is needed: the event's strings may live in payload, which nobody may
// change from then on. It is not written to.
func (d *Decoder) DecodeShared(payload []byte) (Event, error) { return d.decode(payload, false) }

// DecodeOwned is [Decode] without the copy: the event's strings live in payload, and strings with escapes were
// unescaped in place. The caller gives payload away and MUST NOT read or change it afterwards, whether or not the
// call succeeds; a hash that is needed is taken by [Event.Hash].
func (d *Decoder) DecodeOwned(payload []byte) (Event, error) { return d.decode(payload, true) }

func (d *Decoder) decode(payload []byte, owned bool) (Event, error) {
	if err := checkSize(payload); err != nil {
		return Event{}, err
	}
	hash := HashPayload(payload)
	d.w.reset(payload)
	if owned {
		d.w.buf = payload
	}
	defer d.w.release()
	var e Event
	e.fields(&d.w)
	d.w.end()
	if d.w.err != nil {
		return Event{}, d.w.err
	}
	e.hash, e.sealed = hash, true
	return e, nil
}

func checkSize(payload []byte) error {
	if len(payload) > MaxEventBytes {
		return fmt.Errorf("decode event: %w: %d bytes, at most %d", ErrTooLarge, len(payload), MaxEventBytes)
	}
	return nil
}

// end expects the end of the input.
func (w *wire) end() {
	if w.err == nil && w.pos != len(w.in) {
		w.fail(ErrSyntax, "%d bytes after the end", len(w.in)-w.pos)
	}
}
