package jetstream

import (
	"context"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// Interpose puts wrap between the client and the server, for every request. It must be called before the client is used.
func (c *Client) Interpose(wrap func(next func(context.Context, *nats.Msg) (*nats.Msg, error)) func(context.Context, *nats.Msg) (*nats.Msg, error)) {
	c.exchange = wrap(c.exchange)
}

// Conn returns the connection.
func (c *Client) Conn() *nats.Conn { return c.conn }

// ErrNoAnswer is what a request without an answer ends with.
var ErrNoAnswer = errNoAnswer

// ErrorCode returns the server's error code in err.
func ErrorCode(err error) int { return int(apiCode(err)) }

// PublishRaw publishes a message to a stream, once, and returns its sequence.
func (c *Client) PublishRaw(ctx context.Context, msg *nats.Msg) (uint64, error) {
	a, err := c.publish(ctx, msg)
	return a.Seq, err
}

// JetStream returns the client library's view.
func (c *Client) JetStream() natsjs.JetStream { return c.js }

// UnopenedLog returns the session's log without asking for it.
func (c *Client) UnopenedLog(session events.ID) eventlog.Log { return newSessionLog(c, session) }

// PlainAck is what the fast path makes of an acknowledgement.
func PlainAck(data []byte) (stream string, seq uint64, ok bool) {
	a, ok := plainAck(data)
	return a.Stream, a.Seq, ok
}
