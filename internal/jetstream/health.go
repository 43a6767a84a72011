package jetstream

import (
	"fmt"

	"github.com/refold-dev/refold/pkg/eventlog"
)

// Healthy returns nil while the connection to the server stands, and an error that wraps [eventlog.ErrUnavailable]
// while it does not.
func (c *Client) Healthy() error {
	if !c.conn.IsConnected() {
		return fmt.Errorf("%w: not connected to %s", eventlog.ErrUnavailable, c.where())
	}
	return nil
}

// Where names the server, without credentials, for people.
func (c *Client) Where() string { return c.where() }
