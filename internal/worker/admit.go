package worker

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// errRefused says that an input can never be used. It is logged and passed over; those behind it are not held up.
var errRefused = errors.New("input refused")

// smallText is the length from which texts become objects when the others leave no room, in bytes.
const smallText = 512

// admit decides whether an input can be used, before anything is recorded of it, and returns the length from which its
// texts become objects. It does no I/O: whoever decides again decides the same. The error wraps errRefused.
//
// References to objects are refused: the client has not shown that it knows what they refer to, nor that they are there.
func (c *Config) admit(in *input) (inline int, err error) {
	if in.Options.SystemObject != (objects.Ref{}) {
		return 0, fmt.Errorf("%w: its options refer to an object", errRefused)
	}
	for i := range in.Content {
		if in.Content[i].Object != (objects.Ref{}) {
			return 0, fmt.Errorf("%w: its content refers to an object", errRefused)
		}
	}
	var size int
	for _, inline = range [...]int{c.InlineMax, min(smallText, c.InlineMax)} {
		size = c.eventBytes(in, inline)
		if size <= c.MaxEventBytes {
			return inline, nil
		}
	}
	return 0, fmt.Errorf("%w: its events take %d bytes, at most %d fit", errRefused, size, c.MaxEventBytes)
}

// eventBytes returns the size of the largest event that the input leads to when texts longer than inline are objects.
// Options stand in two events, beside other things, so they count twice.
func (c *Config) eventBytes(in *input, inline int) int {
	outside := func(s string) (string, objects.Ref) {
		if len(s) <= inline {
			return s, objects.Ref{}
		}
		return "", objects.Ref{Bytes: int64(len(s)), MediaType: events.TextMediaType}
	}
	options := in.Options
	options.System, options.SystemObject = outside(options.System)
	m := events.Message{ID: string(in.ID), Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser}}
	for _, b := range in.Content {
		b.Text, b.Object = outside(b.Text)
		m.Content = append(m.Content, b)
	}
	configured := encodedBytes(&events.SessionConfigured{Options: options, InboxSeq: in.seq}, events.SurfaceOp{})
	return max(
		2*configured,
		encodedBytes(&events.SessionCreated{Session: in.ID, Options: options, Labels: in.Labels, Cwd: in.Cwd}, events.SurfaceOp{}),
		encodedBytes(&events.UserMessage{Message: m, InboxSeq: in.seq}, events.AppendOp()),
		encodedBytes(&events.SessionClosed{Reason: in.Reason, InboxSeq: in.seq}, events.SurfaceOp{}),
	)
}

// encodedBytes returns the size of an event with the body, about: its sequence may have more digits.
func encodedBytes(body events.Body, surface events.SurfaceOp) int {
	const digits = 64 // room for the sequence and the time
	payload, err := events.Encode(&events.Event{Seq: 1, ID: "00000000000000000000000000", Body: body, Surface: surface})
	if err != nil {
		return events.MaxEventBytes + 1
	}
	return len(payload) + digits
}
