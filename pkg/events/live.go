package events

import "fmt"

// EncodeLive returns the canonical data object of an assistant/chunk event: what live.<session> carries. It is not
// durable and has no envelope. Errors wrap [ErrInvalid] or [ErrTooLarge].
func EncodeLive(b *AssistantChunk) ([]byte, error) {
	w := new(wire)
	w.open()
	b.fields(w)
	w.close()
	if w.err != nil {
		return nil, fmt.Errorf("encode live chunks: %w", w.err)
	}
	if len(w.out) > MaxEventBytes {
		return nil, fmt.Errorf("encode live chunks: %w: %d bytes, at most %d", ErrTooLarge, len(w.out), MaxEventBytes)
	}
	return w.out, nil
}

// DecodeLive is the inverse of [EncodeLive] and accepts no other bytes. Errors wrap [ErrSyntax], [ErrInvalid] or
// [ErrTooLarge].
func DecodeLive(data []byte) (*AssistantChunk, error) {
	if len(data) > MaxEventBytes {
		return nil, fmt.Errorf("decode live chunks: %w: %d bytes, at most %d", ErrTooLarge, len(data), MaxEventBytes)
	}
	w := newReader(data)
	b := new(AssistantChunk)
	w.open()
	b.fields(w)
	w.close()
	w.end()
	if w.err != nil {
		return nil, w.err
	}
	return b, nil
}
