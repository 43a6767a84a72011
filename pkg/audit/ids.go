package audit

import (
	"cmp"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// eventIDs holds the IDs of a log's events, to find one that comes twice. It is exact, and takes 16 bytes an event and the
// slack of a slice: IDs begin with the time, so that those of one writer come in ascending order and need nothing but to
// be put behind each other. Its zero value is empty.
type eventIDs struct {
	// runs are ascending each. There is more than one where time goes back: a fork's first event is younger than those that
	// it copied, and writers' clocks differ.
	runs [][]binaryID
	// rest holds what fits behind none of the runs, at several times the memory. Only a log whose IDs are not made as ULIDs
	// are has many of these.
	rest map[binaryID]struct{}
}

// maxRuns bounds the runs, each of which is searched for an ID that is not its last.
const maxRuns = 8

// binaryID is a ULID as the number that it stands for: the upper and the lower half.
type binaryID [2]uint64

func (a binaryID) compare(b binaryID) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
}

// binaryOf reads a valid ULID.
func binaryOf(id events.ID) binaryID {
	var n binaryID
	for i := range len(id) {
		n[0] = n[0]<<5 | n[1]>>59
		n[1] = n[1]<<5 | uint64(crockford[id[i]])
	}
	return n
}

// crockford holds the value of each digit of Crockford's base 32.
var crockford = [256]byte{
	'0': 0, '1': 1, '2': 2, '3': 3, '4': 4, '5': 5, '6': 6, '7': 7, '8': 8, '9': 9, 'A': 10, 'B': 11, 'C': 12, 'D': 13, 'E': 14,
	'F': 15, 'G': 16, 'H': 17, 'J': 18, 'K': 19, 'M': 20, 'N': 21, 'P': 22, 'Q': 23, 'R': 24, 'S': 25, 'T': 26, 'V': 27, 'W': 28,
	'X': 29, 'Y': 30, 'Z': 31,
}

// add takes the ID of the next event, a valid ULID, and reports whether it is new.
func (s *eventIDs) add(id events.ID) bool {
	n, into := binaryOf(id), -1
	for i, run := range s.runs {
		if last := run[len(run)-1]; last.compare(n) < 0 {
			if into < 0 {
				into = i
			}
			continue
		}
		if _, found := slices.BinarySearchFunc(run, n, binaryID.compare); found {
			return false
		}
	}
	if _, found := s.rest[n]; found {
		return false
	}
	switch {
	case into >= 0:
		s.runs[into] = append(s.runs[into], n)
	case len(s.runs) < maxRuns:
		s.runs = append(s.runs, []binaryID{n})
	default:
		if s.rest == nil {
			s.rest = make(map[binaryID]struct{})
		}
		s.rest[n] = struct{}{}
	}
	return true
}
