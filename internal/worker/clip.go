package worker

import (
	"errors"
	"unicode/utf8"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/events"
)

// clipText bounds a message of unknown origin and makes it well-formed. What it returned once stays as it is.
func clipText(s string) string {
	const long = 4 * kib
	return clipTo(s, long)
}

func clipTo(s string, most int) string {
	if len(s) > most {
		end := most
		for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	if events.ValidText(s) {
		return s
	}
	const escaped = 3 // bytes that one takes that is no text
	if n := most / escaped; len(s) > n {
		s = s[:n]
	}
	return events.TextFromBytes([]byte(s))
}

// clipFailure makes a failure of unknown origin one that an event can hold: an event that never fits would keep the
// session from going on.
func clipFailure(f events.Failure) events.Failure {
	const longID = 256
	f.Message, f.RequestID = clipText(f.Message), clipTo(f.RequestID, longID)
	f.Status, f.RetryAfterMs = max(f.Status, 0), max(f.RetryAfterMs, 0)
	if _, err := events.Encode(&events.Event{
		Seq: 1, ID: "00000000000000000000000000", Body: &events.TurnEnd{Turn: 1, Kind: events.TurnError, Failure: f},
	}); err != nil { // the code is none
		f.Code = events.FailureInvalid
	}
	return f
}

// failureOf returns the failure that an error of a call is; one that is no [*provider.Error] is invalid by the loop's own
// doing.
func failureOf(err error) events.Failure {
	if failed, ok := errors.AsType[*provider.Error](err); ok {
		return clipFailure(failed.Failure)
	}
	return clipFailure(events.Failure{Code: events.FailureInvalid, Message: err.Error()})
}
