package codec

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// Sentinels.
var (
	// ErrUnknownCodec means that no codec of that name and version is known; a newer program may know it.
	ErrUnknownCodec = errors.New("unknown codec")
	// ErrMissingObject means that the objects given do not hold one that the request needs; see [MissingObjectError].
	// The caller fetches it and builds again.
	ErrMissingObject = errors.New("object missing")
	// ErrCorruptObject means that an object's bytes are not what its place in the request wants, such as text that is
	// not WTF-8. Final.
	ErrCorruptObject = errors.New("object corrupt")
	// ErrUnsupported means that the vendor's wire format has no place for something in the request. Final.
	ErrUnsupported = errors.New("not representable in this wire format")
	// ErrUnshownImage means that the request holds an image and nothing says how it is shown; see [UnshownImageError].
	// Whoever writes the log records a request/images event first; for a log that calls for the request it is final.
	ErrUnshownImage = errors.New("nothing says how an image is shown")
)

// MissingObjectError names the object that is missing. It unwraps to [ErrMissingObject].
type MissingObjectError struct{ Ref objects.Ref }

func (e *MissingObjectError) Error() string {
	return fmt.Sprintf("%v: %s (%d bytes, %s)", ErrMissingObject, e.Ref.Digest, e.Ref.Bytes, e.Ref.MediaType)
}

// Unwrap returns [ErrMissingObject].
func (e *MissingObjectError) Unwrap() error { return ErrMissingObject }

// UnshownImageError names the image. It unwraps to [ErrUnshownImage].
type UnshownImageError struct{ Image objects.Ref }

func (e *UnshownImageError) Error() string {
	return fmt.Sprintf("%v: %s (%d bytes, %s)", ErrUnshownImage, e.Image.Digest, e.Image.Bytes, e.Image.MediaType)
}

// Unwrap returns [ErrUnshownImage].
func (e *UnshownImageError) Unwrap() error { return ErrUnshownImage }

// Body is one exact request body. It does not change when its builder goes on.
type Body struct {
	prefix []byte // nil when the builder keeps no bytes
	suffix []byte
	digest events.BodyDigest

	stable int64
	reused int64
	line   *line
}

// line stands for a prefix that only grows: of two bodies of one line, the prefix of one begins with that of the other.
type line struct{ _ byte }

// Digest returns the body's length in bytes and its SHA-256.
func (b *Body) Digest() events.BodyDigest { return b.digest }

// Stable returns the length in bytes of the prefix that the next request repeats when it appends messages only. The one
// exception is a tool result that continues a run whose images the prefix has shown already; no valid log has that.
func (b *Body) Stable() int64 { return b.stable }

// Reused returns how many bytes of the prefix the builder took over from the body before, 0 when it started anew.
func (b *Body) Reused() int64 { return b.reused }

// Reader returns a new reader of the body's bytes. The builder must keep bytes.
func (b *Body) Reader() io.Reader { return b.from(0) }

// from returns a reader that starts at byte n of the prefix.
func (b *Body) from(n int64) io.Reader {
	return io.MultiReader(bytes.NewReader(b.prefix[n:]), bytes.NewReader(b.suffix))
}

// Bytes returns a copy of the body. The builder must keep bytes.
func (b *Body) Bytes() []byte {
	return append(append(make([]byte, 0, len(b.prefix)+len(b.suffix)), b.prefix...), b.suffix...)
}

// CommonPrefix returns how many bytes the two bodies have in common from the start. Both builders must keep bytes.
// What two bodies of one builder are known to share is not compared.
func CommonPrefix(a, b *Body) int64 {
	var n int64
	if a.line != nil && a.line == b.line {
		n = min(a.stable, b.stable)
	}
	x, y := a.from(n), b.from(n)
	const block = 32 << 10
	p, q := make([]byte, block), make([]byte, block)
	for {
		i, _ := io.ReadFull(x, p) // a short read is the end: memory readers do not fail
		j, _ := io.ReadFull(y, q)
		most := min(i, j)
		k := firstDifference(p[:most], q[:most])
		n += int64(k)
		if k < most || most < block {
			return n
		}
	}
}

// firstDifference returns the index of the first byte that differs, the length when none does. Both are equally long.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return len(a)
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	return i
}

// Options change what a builder keeps.
type Options struct {
	// DigestOnly keeps no bytes: bodies have a digest but no Reader, Bytes or CommonPrefix. Memory per session is
	// then constant.
	DigestOnly bool
}

// Builder builds the bodies of one session's requests in order. It is not safe for concurrent use.
type Builder interface {
	// Codec returns the codec's name and version.
	Codec() string
	// Build returns the exact body of req. src must hold the objects that the header and the messages need, see [Refs];
	// those of messages built before are not asked for again unless the builder has to start anew. Errors wrap
	// ErrMissingObject, ErrCorruptObject, ErrUnsupported or ErrUnshownImage; after one the builder stands as it stood
	// before.
	Build(req *fold.Request, src objects.Source) (Body, error)
}

// New returns a builder of the codec with the name. The error wraps [ErrUnknownCodec].
func New(name string, opts Options) (Builder, error) {
	if name == DeepSeekChat1 {
		return &deepSeek{appender: appender{digestOnly: opts.DigestOnly}}, nil
	}
	return nil, fmt.Errorf("%w: %q; this program knows %v", ErrUnknownCodec, name, Names())
}

// Names returns the names of all codecs.
func Names() []string { return []string{DeepSeekChat1} }

// appender holds the prefix that one session's bodies share: a head, then one message after another.
type appender struct {
	digestOnly bool

	head     string        // what stands before the first message
	messages fold.Messages // those in the prefix
	buf      []byte        // the prefix; with digestOnly what is not hashed yet
	hashed   int           // how much of buf is
	length   int64         // how many bytes are, in all
	sum      hash.Cloner   // over them
	line     *line         // of the prefix
}

// scratchBytes is about how much a builder that keeps no bytes gathers before it hashes.
const scratchBytes = 64 << 10

// messageWriter writes messages in a vendor's wire form. One writer serves one call of Build.
type messageWriter interface {
	// add appends the message's wire form to dst, but for what waits until it is known what follows.
	add(dst []byte, m *events.Message) ([]byte, error)
	// end appends what still waits.
	end(dst []byte) []byte
}

// build brings the prefix up to the messages and returns the body that ends in suffix. With anew, which it must be when
// restarts says so, it keeps nothing of the body before. It works on a copy, which takes the appender's place at the end: bytes behind the length of a buffer are
// nobody's yet.
func (a *appender) build(head string, messages fold.Messages, suffix []byte, anew bool, w messageWriter) (Body, error) {
	next, err := a.from(head, anew)
	if err != nil {
		return Body{}, err
	}
	reused := next.length
	for _, m := range messages.From(next.messages.Len()) {
		if next.buf, err = w.add(next.buf, &m); err != nil {
			return Body{}, err
		}
		if next.digestOnly && len(next.buf) >= scratchBytes {
			next.settle()
		}
	}
	next.buf = w.end(next.buf)
	next.settle()
	next.messages = messages
	whole, err := cloneSum(next.sum)
	if err != nil {
		return Body{}, err
	}
	_, _ = whole.Write(suffix)
	*a = next

	body := Body{suffix: suffix, stable: a.length, reused: reused, line: a.line}
	body.digest.Bytes = a.length + int64(len(suffix))
	whole.Sum(body.digest.SHA256[:0])
	if !a.digestOnly {
		body.prefix = slices.Clip(a.buf)
	}
	return body, nil
}

// from returns a copy of a, or with anew one that holds the head and no message.
func (a *appender) from(head string, anew bool) (appender, error) {
	next := *a
	if anew {
		next = appender{digestOnly: a.digestOnly, head: head, buf: []byte(head), sum: newSum(), line: new(line)}
		return next, nil
	}
	var err error
	next.sum, err = cloneSum(a.sum)
	return next, err
}

// restarts reports whether a body with the head and the messages does not begin with the prefix.
func (a *appender) restarts(head string, messages fold.Messages) bool {
	return a.sum == nil || head != a.head || !messages.Extends(a.messages)
}

// settle hashes what is new.
func (a *appender) settle() {
	fresh := a.buf[a.hashed:]
	_, _ = a.sum.Write(fresh) // a hash never fails
	a.length += int64(len(fresh))
	a.hashed = len(a.buf)
	if a.digestOnly {
		a.buf, a.hashed = a.buf[:0], 0
		if cap(a.buf) > 4*scratchBytes {
			a.buf = nil
		}
	}
}

func cloneSum(sum hash.Cloner) (hash.Cloner, error) {
	c, err := sum.Clone()
	if err != nil {
		return nil, fmt.Errorf("clone the running hash: %w", err)
	}
	return c, nil
}

func newSum() hash.Cloner { return sha256.New().(hash.Cloner) }

// text returns a text that stands inline or as an object.
func text(inline string, ref objects.Ref, src objects.Source) (string, error) {
	if (ref == objects.Ref{}) {
		return inline, nil
	}
	b, ok := src.Bytes(ref.Digest)
	if !ok {
		return "", &MissingObjectError{Ref: ref}
	}
	s := string(b)
	if int64(len(b)) != ref.Bytes || !events.ValidText(s) {
		return "", fmt.Errorf("%w: %s is not %d bytes of WTF-8", ErrCorruptObject, ref.Digest, ref.Bytes)
	}
	return s, nil
}
