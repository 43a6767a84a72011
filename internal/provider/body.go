package provider

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrBody means that a call's body is not the one that its length and digest announce. Nothing complete was sent; the
// call must be built anew from the log. The error is a [*BodyError].
var ErrBody = errors.New("the body is not the announced one")

// BodyError says how a call's body differs. It wraps [ErrBody].
type BodyError struct {
	Reason string
	Bytes  int64 // read so far
	Err    error // of the body's reader, if it failed
}

func (e *BodyError) Error() string {
	s := fmt.Sprintf("%v: %s after %d bytes", ErrBody, e.Reason, e.Bytes)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns [ErrBody] and the reader's error.
func (e *BodyError) Unwrap() []error {
	if e.Err != nil {
		return []error{ErrBody, e.Err}
	}
	return []error{ErrBody}
}

// bodyReader passes a body on and hashes it. It withholds the last bytes until length and digest are right, so that no
// other body is ever sent as a whole.
type bodyReader struct {
	r    io.Reader
	want int64
	sum  events.Hash
	h    hash.Hash
	n    int64
	err  error
}

func newBodyReader(r io.Reader, bytes int64, sum events.Hash) *bodyReader {
	return &bodyReader{r: r, want: bytes, sum: sum, h: sha256.New()}
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.n == b.want {
		b.err = io.EOF
		return 0, b.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if int64(len(p)) > b.want-b.n {
		p = p[:b.want-b.n]
	}
	n, err := b.r.Read(p)
	b.n += int64(n)
	b.h.Write(p[:n])
	switch {
	case b.n == b.want:
		if fault := b.check(); fault != nil {
			b.err = fault
			return 0, b.err
		}
	case errors.Is(err, io.EOF):
		b.err = &BodyError{Reason: fmt.Sprintf("it ends before %d bytes", b.want), Bytes: b.n}
	case err != nil:
		b.err = &BodyError{Reason: "it cannot be read", Bytes: b.n, Err: err}
	}
	return n, b.err
}

// check compares the digest and makes sure that nothing follows.
func (b *bodyReader) check() error {
	if events.Hash(b.h.Sum(nil)) != b.sum {
		return &BodyError{Reason: "its SHA-256 differs", Bytes: b.n}
	}
	var one [1]byte
	for {
		n, err := b.r.Read(one[:])
		switch {
		case n > 0:
			return &BodyError{Reason: "it goes on", Bytes: b.n}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &BodyError{Reason: "it cannot be read", Bytes: b.n, Err: err}
		}
	}
}

// idleReader reads a response and cancels the request when a single Read takes longer than idle. The time that the
// receiver takes between two reads does not count.
type idleReader struct {
	body   io.Reader
	idle   time.Duration
	cancel context.CancelCauseFunc
}

func (r *idleReader) Read(p []byte) (int, error) {
	timer := time.AfterFunc(r.idle, func() { r.cancel(errIdle) })
	defer timer.Stop()
	return r.body.Read(p)
}
