package jetstream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/pkg/eventlog"
)

const (
	// readBatch is how many messages are asked for at a time.
	readBatch = 2048
	// readBatchBytes bounds a batch; one message may go beyond it.
	readBatchBytes = 8 << 20
	// readAttempts is how often a batch may bring nothing before the read fails.
	readAttempts = 3
)

// readRange yields the stream's messages [from, last], in order, those that match filter unless it is empty. A message
// that the answering replica lacks is asked of the leader before it is left out. The errors are mapped.
func (c *Client) readRange(ctx context.Context, stream, filter string, from, last uint64) iter.Seq2[rawMessage, error] {
	return func(yield func(rawMessage, error) bool) {
		if from > last {
			return
		}
		r := reader{client: c, stream: stream, filter: filter, next: from, last: last, yield: yield}
		defer r.close()
		for idle := 0; r.next <= r.last; {
			got, more, err := r.batch(ctx)
			switch {
			case err != nil && (ctx.Err() != nil || !isPassing(err) || idle >= readAttempts):
				yield(rawMessage{}, mapped(err))
				return
			case !more:
				return
			case got:
				idle = 0
				continue
			case err == nil:
				if !r.fromLeader(ctx) {
					return
				}
				continue
			}
			r.unsubscribe() // what the broken batch still brings must not mix with the next one
			if err := wait(ctx, backoff(4+idle)); err != nil {
				yield(rawMessage{}, mapped(err))
				return
			}
			idle++
		}
	}
}

// isPassing reports whether a read may succeed when it is tried again.
func isPassing(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, errDisconnected) || isDisconnected(err) ||
		errors.Is(err, nats.ErrNoResponders) || isTransient(err)
}

// reader is a read in progress.
type reader struct {
	client         *Client
	stream, filter string
	next, last     uint64 // what is still to be read
	yield          func(rawMessage, error) bool

	sub   *nats.Subscription // where batches are received; nil when there is none yet
	inbox chan *nats.Msg     // holds a whole batch, so that a slow receiver loses nothing

	scan   *scan  // nil: direct gets
	noScan bool   // no consumer is to be had
	asked  uint64 // the last sequence that the consumer was asked for
}

func (r *reader) subscribe() (err error) {
	if r.sub == nil {
		r.inbox = make(chan *nats.Msg, min(readBatch, r.last-r.next+1)+2)
		r.sub, err = r.client.conn.ChanSubscribe(r.client.conn.NewInbox(), r.inbox)
	}
	return err
}

func (r *reader) unsubscribe() {
	if r.sub != nil {
		r.sub.Unsubscribe() //nolint:errcheck // fails only on a closed connection
		r.sub = nil
	}
}

func (r *reader) close() {
	r.unsubscribe()
	if r.scan != nil {
		r.scan.close()
	}
}

// receive returns the next message of a batch, nil when ctx ends before it comes. One that has come goes before the end of ctx:
// that is cheaper than to look at both.
func (r *reader) receive(ctx context.Context) *nats.Msg {
	select {
	case msg := <-r.inbox:
		return msg
	default:
	}
	select {
	case <-ctx.Done():
		return nil
	case msg := <-r.inbox:
		return msg
	}
}

// scanning makes a consumer when much is to be read and one is to be had, and reports whether there is one.
func (r *reader) scanning(ctx context.Context) bool {
	if r.scan == nil && !r.noScan && r.filter == "" && r.last-r.next+1 >= scanFrom {
		var err error
		if r.scan, err = r.client.newScan(ctx, r.stream, r.next); err != nil {
			r.noScan = true // such as for lack of permission
		}
		r.asked = r.next - 1
	}
	return r.scan != nil
}

// batch asks for messages from next on and yields them. got says whether to go on at next, more whether the receiver
// wants more. The errors are not mapped.
func (r *reader) batch(ctx context.Context) (got, more bool, err error) {
	if err := r.subscribe(); err != nil {
		return false, true, err
	}
	if r.scanning(ctx) {
		if more, whole := r.scanBatch(ctx); whole || !more || ctx.Err() != nil {
			return true, more, ctx.Err()
		}
		// Whatever is wrong with the consumer, direct gets and the leader settle it.
		r.scan.close()
		r.scan, r.noScan = nil, true
		r.unsubscribe()
		return true, true, nil
	}
	return r.directBatch(ctx)
}

// scanBatch yields the next messages of the consumer, half of what the inbox holds. The other half is asked for before they
// have come, so that the server does not wait for the receiver. whole says that all came that were asked for, without a gap.
func (r *reader) scanBatch(ctx context.Context) (more, whole bool) {
	ctx, stop := r.client.watch(ctx, r.client.prefix+"CONSUMER.MSG.NEXT."+r.stream+"."+r.scan.name)
	defer stop()
	const half = readBatch / 2
	n := min(half, r.last-r.next+1)
	for end := min(r.next-1+2*half, r.last); r.asked < end; {
		ask := min(half, end-r.asked)
		if err := r.scan.ask(r.sub.Subject, ask); err != nil {
			return true, false
		}
		r.asked += ask
	}
	for range n {
		msg := r.receive(ctx)
		if msg == nil {
			return true, false
		}
		m, err := delivered(msg)
		if err != nil || m.seq != r.next { // a status, or messages are missing
			return true, false
		}
		r.next++
		if !r.yield(m, nil) {
			return false, false
		}
	}
	return true, true
}

// directBatch yields a batch of direct gets.
func (r *reader) directBatch(ctx context.Context) (got, more bool, err error) {
	subject := r.client.prefix + "DIRECT.GET." + r.stream
	ctx, stop := r.client.watch(ctx, subject)
	defer stop()
	ask := fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d`, r.next, min(readBatch, r.last-r.next+1), readBatchBytes)
	if r.filter != "" {
		ask = fmt.Appendf(ask, `,"next_by_subj":%q`, r.filter)
	}
	ask = append(ask, '}')
	if err := r.client.conn.PublishMsg(&nats.Msg{Subject: subject, Reply: r.sub.Subject, Data: ask}); err != nil {
		return false, true, err
	}
	for {
		msg := r.receive(ctx)
		if msg == nil {
			return got, true, context.Cause(ctx)
		}
		if end, err := status(msg); end {
			return got, true, err
		}
		m, err := direct(msg)
		if err != nil {
			return got, true, err
		}
		if m.seq > r.last {
			r.next = m.seq
			return true, true, nil
		}
		r.next = m.seq + 1
		got = true
		if !r.yield(m, nil) {
			return got, false, nil
		}
	}
}

// status reports whether msg ends a batch, and with which error.
func status(msg *nats.Msg) (end bool, err error) {
	if len(msg.Data) > 0 {
		return false, nil
	}
	switch status := headerOf(msg, "Status"); status {
	case "":
		return false, nil
	case "204", "404": // the end of the batch, nothing found
		return true, nil
	case "503":
		return true, nats.ErrNoResponders
	default:
		return true, fmt.Errorf("%w: direct get: %s %s", eventlog.ErrUnavailable, status, headerOf(msg, "Description"))
	}
}

// fromLeader yields the next message as the leader has it, and reports whether the receiver wants more and there may
// be more.
func (r *reader) fromLeader(ctx context.Context) bool {
	filter := r.filter
	if filter == "" {
		filter = ">"
	}
	m, err := r.client.atLeader(ctx, r.stream, getRequest{Seq: r.next, NextFor: filter})
	if err != nil {
		r.yield(rawMessage{}, mapped(err))
		return false
	}
	if m.seq == 0 || m.seq > r.last {
		r.next = r.last + 1
		return false
	}
	r.next = m.seq + 1
	return r.yield(m, nil)
}

// direct converts an answer to a direct get.
func direct(msg *nats.Msg) (rawMessage, error) {
	seq, err := strconv.ParseUint(headerOf(msg, natsjs.SequenceHeader), 10, 64)
	if err != nil || seq == 0 {
		return rawMessage{}, fmt.Errorf("%w: direct get: an answer without a sequence", eventlog.ErrUnavailable)
	}
	stored, err := time.Parse(time.RFC3339Nano, headerOf(msg, natsjs.TimeStampHeaer))
	if err != nil {
		return rawMessage{}, fmt.Errorf("%w: direct get: message %d has no time", eventlog.ErrUnavailable, seq)
	}
	return rawMessage{
		seq: seq, subject: headerOf(msg, natsjs.SubjectHeader), id: headerOf(msg, headerMsgID),
		payload: msg.Data, stored: stored,
	}, nil
}

// headerOf returns the last value of a header: the server appends its own to those of the writer, who might have sent
// one of the same name.
func headerOf(msg *nats.Msg, name string) string {
	values := msg.Header[name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
