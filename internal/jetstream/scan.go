package jetstream

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
)

const (
	// scanFrom is how many messages a read must want before a consumer is made for it: the server hands messages of a
	// consumer out as they are stored, while it writes new headers for every one of a direct get.
	scanFrom = 1024
	// scanIdle is how long the server keeps a consumer that nobody asks.
	scanIdle = 10 * time.Second
)

// scan is an ephemeral consumer over the rest of a read.
type scan struct {
	client *Client
	stream string
	name   string
}

// newScan makes a consumer over the stream's messages from a sequence on.
func (c *Client) newScan(ctx context.Context, stream string, from uint64) (*scan, error) {
	var answer struct {
		Error *natsjs.APIError `json:"error"`
		Name  string           `json:"name"`
	}
	ask := struct {
		Stream string                `json:"stream_name"`
		Config natsjs.ConsumerConfig `json:"config"`
	}{stream, natsjs.ConsumerConfig{
		DeliverPolicy: natsjs.DeliverByStartSequencePolicy, OptStartSeq: from, AckPolicy: natsjs.AckNonePolicy,
		InactiveThreshold: scanIdle, Replicas: 1, MemoryStorage: true,
	}}
	if err := c.api(ctx, "CONSUMER.CREATE."+stream, ask, &answer, &answer.Error); err != nil {
		return nil, err
	}
	return &scan{client: c, stream: stream, name: answer.Name}, nil
}

// ask asks for the next n messages. They come to reply, and then a status.
func (s *scan) ask(reply string, n uint64) error {
	return s.client.conn.PublishMsg(&nats.Msg{
		Subject: s.client.prefix + "CONSUMER.MSG.NEXT." + s.stream + "." + s.name, Reply: reply,
		Data: fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, n),
	})
}

// close removes the consumer; if that gets lost, the server does so by itself.
func (s *scan) close() {
	_ = s.client.conn.Publish(s.client.prefix+"CONSUMER.DELETE."+s.stream+"."+s.name, nil)
}

// delivered converts a message that a consumer handed out: the reply subject tells where it stands, as
// $JS.ACK[.domain.account].stream.consumer.deliveries.sequence.delivery.time.pending[.token].
func delivered(msg *nats.Msg) (rawMessage, error) {
	const short, long = 9, 11
	var tokens [long + 1]string
	n := 0
	for rest, more := msg.Reply, true; more && n < len(tokens); n++ {
		tokens[n], rest, more = strings.Cut(rest, ".")
	}
	at := 5 // of the sequence in the short form
	if n >= long {
		at += 2
	}
	if n < short || tokens[0] != "$JS" || tokens[1] != "ACK" {
		return rawMessage{}, fmt.Errorf("%w: a message without its place", eventlog.ErrUnavailable)
	}
	seq, err1 := strconv.ParseUint(tokens[at], 10, 64)
	ns, err2 := strconv.ParseInt(tokens[at+2], 10, 64)
	if err1 != nil || err2 != nil || seq == 0 {
		return rawMessage{}, fmt.Errorf("%w: a message with the malformed place %q", eventlog.ErrUnavailable, msg.Reply)
	}
	return rawMessage{
		seq: seq, subject: msg.Subject, id: headerOf(msg, headerMsgID), payload: msg.Data, stored: time.Unix(0, ns).UTC(),
	}, nil
}
