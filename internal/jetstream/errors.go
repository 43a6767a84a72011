package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// The server's error codes that are told apart here; the object store has more.
const (
	codeNoSuitablePeers  natsjs.ErrorCode = 10005
	codeMaxStreams       natsjs.ErrorCode = 10027
	codeNotEnabledForAcc natsjs.ErrorCode = 10039
	codeStreamExists     natsjs.ErrorCode = 10058
	codeStreamNotFound   natsjs.ErrorCode = 10059
	codeNoReplicas       natsjs.ErrorCode = 10074
)

var (
	// ErrConflict means that another record stands where this one should. Read the last record and decide again.
	// Details are in a [*ConflictError].
	ErrConflict = errors.New("another record stands there")
	// ErrNoResponders means that nobody serves the instance: the worker is gone, as far as the servers know.
	ErrNoResponders = errors.New("no such worker")
	// ErrClosed means that the subscription was closed, or its connection was.
	ErrClosed = errors.New("subscription closed")
)

// ConflictError says which record stands in the way. errors.Is(err, [ErrConflict]) holds.
type ConflictError struct {
	Stream  string
	Session events.ID
	Last    uint64 // the sequence of the session's last record, 0 when there is none
	ID      string // its ID
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("stream %s, session %s: %v: record %d, %s", e.Stream, e.Session, ErrConflict, e.Last, e.ID)
}

// Unwrap returns [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }

// apiCode returns the server's error code, 0 when err is none of its answers.
func apiCode(err error) natsjs.ErrorCode {
	if api := apiError(err); api != nil {
		return api.ErrorCode
	}
	return 0
}

// isConflict reports whether a publish was refused because of its fence.
func isConflict(err error) bool {
	code := apiCode(err)
	return code == codeWrongLastSequence || code == codeWriteInFlight
}

// mapped turns a failure of the client library or the server into one that wraps the sentinel for it, names the
// remedy, and is one line.
func mapped(err error) error {
	if api := apiError(err); api != nil {
		return mappedAPI(api)
	}
	switch {
	case errors.As(err, new(*refusedError)):
		return fmt.Errorf("%w: %w", eventlog.ErrPermission, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: raise max_payload of the server or put content into an object: %w", eventlog.ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, natsjs.ErrNoStreamResponse):
		return fmt.Errorf("%w: no stream takes it: make the streams, and check that JetStream's servers are up", eventlog.ErrUnavailable)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: the connection is closed", eventlog.ErrUnavailable)
	case isDisconnected(err), errors.Is(err, errDisconnected):
		return fmt.Errorf("%w: no connection to the server: check that it is up", eventlog.ErrUnavailable)
	case errors.Is(err, errNoAnswer), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w: %w: check that the server is up and not overloaded", eventlog.ErrUnavailable, errNoAnswer)
	case errors.Is(err, context.DeadlineExceeded): // a server whose disk is full says nothing at all
		return fmt.Errorf("%w: no answer in time: check that the server is up, and in its log that its disk is not full: %w",
			eventlog.ErrUnavailable, err)
	case errors.Is(err, eventlog.ErrUnavailable), errors.Is(err, eventlog.ErrNotFound):
		return err
	}
	return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, err)
}

func mappedAPI(api *natsjs.APIError) error {
	switch {
	case api.ErrorCode == codeStreamNotFound:
		return fmt.Errorf("%w: the server has no such stream", eventlog.ErrNotFound)
	case api.ErrorCode == codeMessageTooLarge:
		return fmt.Errorf("%w: raise max_msg_size of the stream or put content into an object: %w", eventlog.ErrTooLarge, api)
	case objectNoRoom(api) || api.ErrorCode == codeMaxStreams:
		return fmt.Errorf("%w: raise the account's limits or the server's max_file_store, or archive sessions: %w", eventlog.ErrFull, api)
	case api.ErrorCode == codeNoSuitablePeers, api.ErrorCode == codeNoReplicas:
		return fmt.Errorf("%w: there are not enough servers for this many replicas: ask for fewer: %w", eventlog.ErrUnavailable, api)
	case api.ErrorCode == codeNotEnabledForAcc:
		return fmt.Errorf("%w: enable JetStream for this account: %w", eventlog.ErrUnavailable, api)
	}
	return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, api)
}

// isDisconnected reports whether nothing was sent because there is no connection right now.
func isDisconnected(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionReconnecting) ||
		errors.Is(err, nats.ErrDisconnected)
}

// apiError returns the server's error answer, nil when err is none.
func apiError(err error) *natsjs.APIError {
	if api, ok := errors.AsType[*natsjs.APIError](err); ok {
		return api
	}
	if js, ok := errors.AsType[natsjs.JetStreamError](err); ok {
		return js.APIError()
	}
	return nil
}
