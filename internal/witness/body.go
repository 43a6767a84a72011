package witness

import (
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// errFinished is what a body that is read after its call has ended gives.
var errFinished = errors.New("the call has ended")

// receiptError means that a request's receipt is not known to be stored. It hides the cause, which must not pass for the
// end of a body.
type receiptError struct{ err error }

func (e *receiptError) Error() string { return "no receipt: " + e.err.Error() }

// heldBody passes a request's body on and hashes it. It withholds the last bytes until permit says that the whole may
// go. Another goroutine may close it, and finish it.
type heldBody struct {
	src    io.Reader
	hold   int
	permit func(events.BodyDigest) error

	mu       sync.Mutex // held while reading
	buf      []byte     // what was read and not passed on, at most twice hold
	digest   hash.Hash
	n        int64
	err      error // what reading ends with, once buf is empty; io.EOF after permit
	finished bool

	ended     atomic.Bool // the source was read to its end, or failed
	whole     atomic.Bool // the source was read to its end
	permitted atomic.Bool // and permit has said that it may go
	fault     atomic.Pointer[error]
	closed    atomic.Bool
	over      chan struct{} // closed when nothing more will be permitted that is not
	once      sync.Once
}

func newHeldBody(src io.Reader, hold int, permit func(events.BodyDigest) error) *heldBody {
	return &heldBody{src: src, hold: hold, permit: permit, digest: sha256.New(), over: make(chan struct{})}
}

// prefetch reads as long as everything would be held back anyway. length is the announced length, -1 when there is
// none. It returns whether the body is whole, with the error of permit, or failed.
func (b *heldBody) prefetch(length int64) (whole bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if length >= 0 && length < int64(b.hold) {
		b.buf = make([]byte, 0, length+1) // one more, so that the end is seen with the last byte
	}
	for b.err == nil && len(b.buf) <= b.hold {
		b.fill()
	}
	if errors.Is(b.err, io.EOF) {
		return true, nil
	}
	return false, b.err
}

// Read implements [io.Reader].
func (b *heldBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.finished || b.closed.Load() {
		return 0, errFinished
	}
	if len(p) == 0 {
		return 0, nil
	}
	for b.err == nil && len(b.buf) <= b.hold {
		b.fill()
	}
	free := len(b.buf)
	if b.err == nil {
		free -= b.hold
	} else if !errors.Is(b.err, io.EOF) {
		return 0, b.err // what is held back stays here
	}
	n := copy(p, b.buf[:free])
	b.buf = b.buf[:copy(b.buf, b.buf[n:])]
	if n == 0 {
		return 0, b.err
	}
	return n, nil
}

// fill reads once from the source. At its end it asks for the permission.
func (b *heldBody) fill() {
	if len(b.buf) == cap(b.buf) {
		const least = 4 << 10
		b.buf = append(make([]byte, 0, min(max(2*cap(b.buf), least), 2*b.hold+1)), b.buf...)
	}
	n, err := b.src.Read(b.buf[len(b.buf):cap(b.buf)])
	b.digest.Write(b.buf[len(b.buf) : len(b.buf)+n])
	b.buf = b.buf[:len(b.buf)+n]
	b.n += int64(n)
	if err == nil {
		return
	}
	defer b.once.Do(func() { close(b.over) })
	b.ended.Store(true)
	b.err = err
	if errors.Is(err, io.EOF) {
		b.whole.Store(true)
		if refused := b.permit(events.BodyDigest{Bytes: b.n, SHA256: events.Hash(b.digest.Sum(nil))}); refused != nil {
			b.err = &receiptError{refused}
		}
	}
	if !errors.Is(b.err, io.EOF) {
		b.fault.Store(&b.err)
		return
	}
	b.permitted.Store(true)
}

// failure returns why the body is not passed on, nil as long as it may be. It does not wait for a Read under way.
func (b *heldBody) failure() error {
	if err := b.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// Close implements [io.Closer]. It does not wait for a Read under way.
func (b *heldBody) Close() error {
	b.closed.Store(true)
	if !b.ended.Load() { // nobody reads on
		b.once.Do(func() { close(b.over) })
	}
	return nil
}

// finish waits for a Read under way, whose source the caller has made fail, and returns what the body ended with: io.EOF
// when it was whole and permitted, nil when its end was not seen, else why it was not passed on.
func (b *heldBody) finish() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = true
	return b.err
}

// timedBody reads a request's body from its connection, and fails when nothing comes for a time.
type timedBody struct {
	src     io.Reader
	control *http.ResponseController
	wait    time.Duration
	stopped atomic.Bool
}

// Read implements [io.Reader].
func (t *timedBody) Read(p []byte) (int, error) {
	_ = t.control.SetReadDeadline(time.Now().Add(t.wait)) // always there in HTTP/1
	if t.stopped.Load() {                                 // stop may have come before the deadline
		return 0, errFinished
	}
	n, err := t.src.Read(p)
	if errors.Is(err, io.EOF) { // the server looks whether the client leaves, as long as the answer takes
		_ = t.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// stop ends a Read under way; no other begins. It does not wait.
func (t *timedBody) stop() {
	t.stopped.Store(true)
	_ = t.control.SetReadDeadline(time.Unix(1, 0))
}

// emptyBody is a body without content that the transport does not know as such: what it takes for a request without a
// body it may send twice.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }

func (emptyBody) Close() error { return nil }
