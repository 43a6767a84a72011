package worker

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/internal/images"
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
		if b := &in.Content[i]; b.Type != events.BlockImage && b.Object != (objects.Ref{}) {
			return 0, fmt.Errorf("%w: its content refers to an object", errRefused)
		}
	}
	if err := c.admitImages(in); err != nil {
		return 0, err
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

// maxImages is how many images one input may bring.
const maxImages = 64

// admitImages checks that the attachments are images, within the limits, and what their blocks say of them.
func (c *Config) admitImages(in *input) error {
	if len(in.Attachments) > maxImages {
		return fmt.Errorf("%w: %d images, at most %d", errRefused, len(in.Attachments), maxImages)
	}
	next := 0
	for i := range in.Content {
		b := &in.Content[i]
		if b.Type != events.BlockImage {
			continue
		}
		data := in.Attachments[next] // a decoded input has one for each
		next++
		info, err := c.inspect(data)
		if err != nil {
			return fmt.Errorf("%w: image %d: %w", errRefused, next, err)
		}
		claimed := images.Info{MediaType: b.Object.MediaType, Width: int(b.Width), Height: int(b.Height)}
		if info != claimed {
			return fmt.Errorf("%w: image %d is %v, not %v", errRefused, next, info, claimed)
		}
	}
	return nil
}

// mostDecoding is how many images are decoded at a time, over all sessions. A small one takes no time; what claims to be a
// large one takes 24 bytes a pixel and a second.
const mostDecoding = 2

// inspect returns what an image is, when it is its turn to be decoded.
func (c *Config) inspect(data []byte) (images.Info, error) {
	c.decoding <- struct{}{}
	defer func() { <-c.decoding }()
	return images.Inspect(data, c.ImageLimits)
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
		if b.Type == events.BlockText {
			b.Text, b.Object = outside(b.Text)
		}
		m.Content = append(m.Content, b)
	}
	configured := encodedBytes(&events.SessionConfigured{Options: options, Claim: in.claim()}, events.SurfaceOp{})
	return max(
		2*configured,
		encodedBytes(&events.SessionCreated{Session: in.ID, Options: options, Labels: in.Labels, Cwd: in.Cwd}, events.SurfaceOp{}),
		encodedBytes(&events.UserMessage{Message: m, InboxSeq: max(in.seq, 1), Delivery: events.DeliverySteer}, events.AppendOp()),
		encodedBytes(&events.TurnCancelled{Cause: in.Cause, Claim: in.claim()}, events.SurfaceOp{}),
		encodedBytes(&events.SessionClosed{Reason: in.Reason, Claim: in.claim()}, events.SurfaceOp{}),
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
