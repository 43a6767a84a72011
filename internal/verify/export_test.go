package verify

import (
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/dumb"
)

// SetSecondFold puts another function in the place of the second fold. It is called before Run.
func (v *Verifier) SetSecondFold(f func(log []events.Event, stream *events.LLMStream) (dumb.Request, error)) {
	v.second = f
}
