package objects

import (
	"context"
	"errors"
	"fmt"
)

// Sentinels, one per thing a caller can do about a failure. Any error of a [Store] that is neither [ErrNotFound] nor
// [ErrCorrupt] leaves the question open and MUST NOT be reported as a finding about the object.
var (
	// ErrNotFound means that the store was asked and does not hold the object. Retrying does not help until somebody
	// puts it.
	ErrNotFound = errors.New("object not found")

	// ErrCorrupt means that the store holds something under this digest that is not the object. The error is a
	// [*CorruptError]. Putting the right bytes again repairs it.
	ErrCorrupt = errors.New("object is corrupt")

	// ErrInvalidRef means that the reference, or a part of it, is malformed, or it does not describe the bytes given
	// with it. A mistake of the caller or of whoever wrote the reference; retrying does not help.
	ErrInvalidRef = errors.New("invalid object reference")

	// ErrTooLarge means that the object, or a part of it, exceeds a bound of the format or of the store. Retrying does
	// not help.
	ErrTooLarge = errors.New("object is too large")

	// ErrUnavailable means that the store gave no answer, or none that tells whether the object is there. Retry later;
	// a put that ended so may or may not have happened, and putting again is safe.
	ErrUnavailable = errors.New("object store is unavailable")

	// ErrFull means that the store has no room for the object. Nothing visible was written. The message names the limit
	// and the remedy; retry when an operator has made room.
	ErrFull = errors.New("object store is full")
)

// CorruptError says what is wrong with the bytes stored under a digest. It matches [ErrCorrupt].
type CorruptError struct {
	// Digest is the name under which the wrong bytes were found.
	Digest Digest
	// Part is the stored part that is wrong, such as "chunk 3" or "manifest"; empty when it is the whole object.
	Part string
	// Cause says what is wrong with it.
	Cause error
}

// Error names the digest, the part and the cause.
func (e *CorruptError) Error() string {
	if e.Part == "" {
		return fmt.Sprintf("object %s is corrupt: %v", e.Digest, e.Cause)
	}
	return fmt.Sprintf("object %s is corrupt: %s: %v", e.Digest, e.Part, e.Cause)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Store keeps objects under their digests. It is what implementations provide; programs call [Put] and [Get], which
// check what a store does not. Implementations MUST pass objectstest.Run and MUST be safe for concurrent use.
//
// Every method returns promptly when ctx ends, with an error that wraps ctx.Err().
type Store interface {
	// Put stores data under ref.Digest if it is not there yet. When Put returns nil the object is complete and as
	// durable as the store makes anything; until then, and after any error, readers see either no object or the whole
	// one, never a part. Putting what is there already succeeds and changes nothing; whatever else is found under
	// the digest (a torn or corrupt object) is replaced. Concurrent puts of the same object all succeed.
	//
	// Put MUST refuse with [ErrInvalidRef] a ref that does not validate or whose length is not len(data). It may trust
	// ref.Digest, which is why only [Put], which computes it, should be called. Put MUST NOT change data nor retain it
	// after returning.
	//
	// Failures: [ErrInvalidRef], [ErrTooLarge], [ErrFull], [ErrUnavailable].
	Put(ctx context.Context, ref Ref, data []byte) error

	// Get returns the bytes stored under d, which the caller then owns. They are not necessarily the bytes that were
	// put: a store reports damage it notices as [ErrCorrupt] and may leave the rest to [Get].
	//
	// Failures: [ErrNotFound], [ErrCorrupt], [ErrUnavailable].
	Get(ctx context.Context, d Digest) ([]byte, error)

	// Has reports whether a complete object is stored under d, without reading it: it says nothing about damage.
	//
	// Failures: [ErrCorrupt] when what is there cannot be an object, [ErrUnavailable].
	Has(ctx context.Context, d Digest) (bool, error)
}

// Put stores data in s and returns the reference to it. It is the one door in: the reference is computed from the
// bytes, never taken from a caller. When Put returns nil, the object is durable and may be referred to.
//
// Failures: those of [Store.Put]; on any of them the returned ref is zero and MUST NOT be logged.
func Put(ctx context.Context, s Store, mediaType string, data []byte) (Ref, error) {
	ref, err := NewRef(mediaType, data)
	if err != nil {
		return Ref{}, fmt.Errorf("put object: %w", err)
	}
	if err := s.Put(ctx, ref, data); err != nil {
		return Ref{}, fmt.Errorf("put object %s: %w", ref.Digest, err)
	}
	return ref, nil
}

// NewRef returns the reference to data without storing anything. It fails with [ErrTooLarge] or [ErrInvalidRef].
func NewRef(mediaType string, data []byte) (Ref, error) {
	if len(data) > MaxBytes {
		return Ref{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrTooLarge, len(data), int64(MaxBytes))
	}
	if err := ValidateMediaType(mediaType); err != nil {
		return Ref{}, err
	}
	return Ref{Digest: Sum(data), Bytes: int64(len(data)), MediaType: mediaType}, nil
}

// Get returns the bytes that ref refers to. It is the one door out: whatever the store returned, only bytes of the
// length and digest of ref come back; the caller owns them.
//
// Failures: [ErrInvalidRef] or [ErrTooLarge] when ref does not validate, [ErrNotFound], [ErrCorrupt] (a
// [*CorruptError] naming what is wrong; also when the bytes have the right digest but ref states another length),
// and [ErrUnavailable] or another error when the store could not tell.
func Get(ctx context.Context, s Store, ref Ref) ([]byte, error) {
	if err := ref.Validate(); err != nil {
		return nil, fmt.Errorf("get object: %w", err)
	}
	data, err := s.Get(ctx, ref.Digest)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", ref.Digest, err)
	}
	if err := Verify(ref, data); err != nil {
		return nil, fmt.Errorf("get object: %w", err)
	}
	return data, nil
}

// Fetch returns the object named d, of which nothing but the name is known; the caller owns the bytes. They have that
// digest: a caller that holds a [Ref] calls [Get], which checks the length as well.
//
// Failures: [ErrNotFound], [ErrCorrupt] (a [*CorruptError]), and [ErrUnavailable] or another error when the store could
// not tell.
func Fetch(ctx context.Context, s Store, d Digest) ([]byte, error) {
	data, err := s.Get(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("get object %s: %w", d, err)
	}
	if got := Sum(data); got != d {
		return nil, fmt.Errorf("get object: %w", &CorruptError{Digest: d, Cause: fmt.Errorf("the stored bytes have digest %s", got)})
	}
	return data, nil
}

// Verify reports whether data are the bytes that ref refers to; if not, the error is a [*CorruptError].
func Verify(ref Ref, data []byte) error {
	if int64(len(data)) != ref.Bytes {
		return &CorruptError{
			Digest: ref.Digest,
			Cause:  fmt.Errorf("the reference says %d bytes, the store has %d", ref.Bytes, len(data)),
		}
	}
	if got := Sum(data); got != ref.Digest {
		return &CorruptError{Digest: ref.Digest, Cause: fmt.Errorf("the stored bytes have digest %s", got)}
	}
	return nil
}

// CheckPut is the check that every [Store.Put] makes first: ctx has not ended, ref validates, and data has the length
// that ref states. It does not hash.
func CheckPut(ctx context.Context, ref Ref, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := ref.Validate(); err != nil {
		return err
	}
	if int64(len(data)) != ref.Bytes {
		return fmt.Errorf("%w: object %s has %d bytes, its reference says %d", ErrInvalidRef, ref.Digest, len(data), ref.Bytes)
	}
	return nil
}
