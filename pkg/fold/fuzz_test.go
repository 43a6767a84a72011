package fold_test

import (
	"bytes"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// FuzzApply folds payloads, one a line. Lines that are no event are left out, and sequence and chain are mended, so that
// what is changed reaches the rules behind those. Whatever the fold takes, the dumb one must read the same way.
func FuzzApply(f *testing.F) {
	for _, s := range scenarios() {
		f.Add(bytes.Join(s.log().Payloads, []byte("\n")))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			return // long logs try nothing new and cost time
		}
		s := fold.New(foldtest.SessionID)
		var taken []events.Event
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			e, err := events.Decode(line)
			if err != nil {
				continue
			}
			e.Seq, e.Prev = s.Seq()+1, s.Head()
			if _, err := events.Encode(&e); err != nil {
				continue
			}
			request, requestErr := requestBefore(s, &e)
			if s.Apply(&e) != nil {
				break
			}
			if requestErr != nil {
				t.Fatal(requestErr)
			}
			compareRequest(t, taken, &e, request)
			taken = append(taken, e)
		}
		compareDumb(t, taken, s)
	})
}
