package objects

import "fmt"

// Source is the view of objects that pure code has: no I/O, no context, no failure but absence.
type Source interface {
	// Bytes returns the verified bytes of the object d and whether they are here. The slice MUST NOT be changed.
	Bytes(d Digest) ([]byte, bool)
}

// Set is a [Source] over bytes that were fetched before. The zero value is an empty set. A Set may be read
// concurrently, but not while Add runs.
type Set struct {
	objects map[Digest][]byte
}

var _ Source = (*Set)(nil)

// Add verifies that data are the bytes ref refers to and adds them. The set keeps data itself, which MUST NOT be
// changed afterwards. Adding an object twice changes nothing.
//
// Failures: [ErrInvalidRef] or [ErrTooLarge] when ref does not validate, [ErrCorrupt] when data are other bytes.
func (s *Set) Add(ref Ref, data []byte) error {
	if err := ref.Validate(); err != nil {
		return fmt.Errorf("add object: %w", err)
	}
	if err := Verify(ref, data); err != nil {
		return fmt.Errorf("add object: %w", err)
	}
	if s.objects == nil {
		s.objects = make(map[Digest][]byte)
	}
	if _, ok := s.objects[ref.Digest]; !ok {
		s.objects[ref.Digest] = data
	}
	return nil
}

// Bytes returns the bytes of the object d and whether the set has them. A nil set is empty.
func (s *Set) Bytes(d Digest) ([]byte, bool) {
	if s == nil {
		return nil, false
	}
	data, ok := s.objects[d]
	return data, ok
}

// Len returns the number of objects in the set.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.objects)
}
