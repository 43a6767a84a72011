package jetstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/textproto"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
)

// The headers that are used by name.
const (
	headerMsgID      = "Nats-Msg-Id"
	headerLastSeq    = "Nats-Expected-Last-Sequence"
	headerLastSubSeq = "Nats-Expected-Last-Subject-Sequence"
	headerStream     = "Nats-Expected-Stream"
)

// rawMessage is a stored message; seq 0 means that there is none.
type rawMessage struct {
	seq     uint64
	subject string
	id      string // Nats-Msg-Id
	payload []byte
	stored  time.Time
}

// request sends a message and returns the answer to it, within the time of one request. Its errors are not mapped.
func (c *Client) request(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	ctx, stop := c.watchOne(ctx, msg.Subject)
	defer stop()
	resp, err := c.exchange(ctx, msg)
	if err != nil {
		return nil, cause(ctx, err)
	}
	return resp, nil
}

// api asks the JetStream API and decodes the answer into out, whose error field is the *natsjs.APIError at apiErr.
func (c *Client) api(ctx context.Context, subject string, ask, out any, apiErr **natsjs.APIError) error {
	return c.apiAt(ctx, c.prefix, subject, ask, out, apiErr)
}

// apiAt is api of whatever account answers under a prefix, which ends in a dot.
func (c *Client) apiAt(ctx context.Context, prefix, subject string, ask, out any, apiErr **natsjs.APIError) error {
	var body []byte
	if ask != nil {
		var err error
		if body, err = json.Marshal(ask); err != nil {
			return fmt.Errorf("encode request %s: %w", subject, err)
		}
	}
	resp, err := c.request(ctx, &nats.Msg{Subject: prefix + subject, Data: body})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(resp.Data, out); err != nil {
		return fmt.Errorf("%w: the answer to %s is malformed: %w", eventlog.ErrUnavailable, subject, err)
	}
	if *apiErr != nil {
		return *apiErr
	}
	return nil
}

// getRequest asks for one message or a batch of them.
type getRequest struct {
	Seq      uint64 `json:"seq,omitempty"`
	LastFor  string `json:"last_by_subj,omitempty"`
	NextFor  string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

// atLeader asks the stream's leader, which alone knows for certain what is stored, for one message. A message that is
// not there is no error.
func (c *Client) atLeader(ctx context.Context, stream string, ask getRequest) (rawMessage, error) {
	var answer struct {
		Error   *natsjs.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  string    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	err := c.api(ctx, "STREAM.MSG.GET."+stream, ask, &answer, &answer.Error)
	switch {
	case apiCode(err) == codeNoMessage:
		return rawMessage{}, nil
	case err != nil:
		return rawMessage{}, err
	case answer.Message == nil || answer.Message.Seq == 0:
		return rawMessage{}, fmt.Errorf("%w: an answer without a message", eventlog.ErrUnavailable)
	}
	m := answer.Message
	header, err := base64.StdEncoding.DecodeString(m.Header)
	if err != nil {
		return rawMessage{}, fmt.Errorf("%w: malformed headers of message %d: %w", eventlog.ErrCorrupt, m.Seq, err)
	}
	return rawMessage{seq: m.Seq, subject: m.Subject, id: headerValue(string(header), headerMsgID), payload: m.Data, stored: m.Time}, nil
}

// headerValue returns the first value of a header in its wire form.
func headerValue(wire, name string) string {
	for line := range strings.SplitSeq(wire, "\r\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && textproto.CanonicalMIMEHeaderKey(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// streamState is what the leader says of a stream.
type streamState struct {
	Messages uint64    `json:"messages"`
	Bytes    uint64    `json:"bytes"`
	LastSeq  uint64    `json:"last_seq"`
	LastTime time.Time `json:"last_ts"`
}

// streamInfo is what the leader says of a stream and its configuration, as far as it is used here.
type streamInfo struct {
	Created time.Time `json:"created"`
	Config  struct {
		Name   string `json:"name"`
		Mirror *struct {
			Name     string `json:"name"`
			External *struct {
				API string `json:"api"`
			} `json:"external"`
		} `json:"mirror"`
		Metadata struct {
			Origin string `json:"refold-origin-created"` // see metaOrigin
		} `json:"metadata"`
	} `json:"config"`
	State  streamState `json:"state"`
	Mirror *struct {
		Error *natsjs.APIError `json:"error"`
	} `json:"mirror"`
}

// info asks the leader of a stream about it, in the account that answers under the prefix.
func (c *Client) info(ctx context.Context, prefix, stream string) (streamInfo, error) {
	var answer struct {
		Error *natsjs.APIError `json:"error"`
		streamInfo
	}
	if err := c.apiAt(ctx, prefix, "STREAM.INFO."+stream, nil, &answer, &answer.Error); err != nil {
		return streamInfo{}, err
	}
	return answer.streamInfo, nil
}

// state asks the stream's leader for its state.
func (c *Client) state(ctx context.Context, stream string) (streamState, error) {
	info, err := c.info(ctx, c.prefix, stream)
	return info.State, err
}

// ack is the server's answer to a publish.
type ack struct {
	Error     *natsjs.APIError `json:"error"`
	Stream    string           `json:"stream"`
	Seq       uint64           `json:"seq"`
	Duplicate bool             `json:"duplicate"`
}

// publish sends a message to a stream and returns its acknowledgement. Its errors are not mapped.
func (c *Client) publish(ctx context.Context, msg *nats.Msg) (ack, error) {
	resp, err := c.request(ctx, msg)
	if err != nil {
		return ack{}, err
	}
	if a, ok := plainAck(resp.Data); ok {
		return a, nil
	}
	var a ack
	if err := json.Unmarshal(resp.Data, &a); err != nil {
		return ack{}, fmt.Errorf("%w: malformed acknowledgement: %w", eventlog.ErrUnavailable, err)
	}
	if a.Error != nil {
		return ack{}, a.Error
	}
	if a.Stream == "" || a.Seq == 0 {
		return ack{}, fmt.Errorf("%w: an acknowledgement without stream and sequence", eventlog.ErrUnavailable)
	}
	return a, nil
}

// plainAck reads the usual acknowledgement, {"stream":"NAME","seq":N} and nothing else, faster than a JSON decoder. It
// takes nothing else, nor a name with other than printable ASCII: ok is false then.
func plainAck(data []byte) (a ack, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok {
		return ack{}, false
	}
	name, rest, ok := bytes.Cut(rest, []byte(`","seq":`))
	if !ok || len(name) == 0 || bytes.ContainsFunc(name, notPlain) {
		return ack{}, false
	}
	digits, ok := bytes.CutSuffix(rest, []byte("}"))
	if !ok || len(digits) == 0 || len(digits) > 18 {
		return ack{}, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return ack{}, false
		}
		a.Seq = a.Seq*10 + uint64(c-'0')
	}
	a.Stream = string(name)
	return a, a.Seq > 0
}

// notPlain reports whether c does not stand for itself in a JSON string of printable ASCII.
func notPlain(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }
