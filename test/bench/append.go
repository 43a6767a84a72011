package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	appendGoal  = 1.25
	appendPairs = 100 // in each round
)

// append compares appends with bare publishes of the same bytes.
func (b *bench) append(ctx context.Context) error {
	for _, tcp := range []bool{false, true} {
		if err := b.appendOver(ctx, tcp); err != nil {
			return fmt.Errorf("measure appends: %w", err)
		}
	}
	return nil
}

// publisher publishes to a stream without any of ours in between.
type publisher struct {
	js      natsjs.JetStream
	subject string
	last    uint64
	fenced  bool // with the headers that an append has
}

func (p *publisher) publish(ctx context.Context, payload []byte) error {
	var opts []natsjs.PublishOpt
	if p.fenced {
		opts = append(opts, natsjs.WithMsgID(string(newID())), natsjs.WithExpectLastSequence(p.last))
	}
	p.last++
	_, err := p.js.PublishMsg(ctx, &nats.Msg{Subject: p.subject, Data: payload}, opts...)
	return err
}

func (b *bench) appendOver(ctx context.Context, tcp bool) error {
	where := "in process"
	if tcp {
		where = "over loopback TCP"
	}
	client, err := b.connect(ctx, tcp)
	if err != nil {
		return err
	}
	defer client.Close()
	log, err := client.Logs().Create(ctx, b.session.State.ID())
	if err != nil {
		return err
	}
	var others [2]publisher // each over a connection of its own, as ours
	for i := range others {
		conn, js, err := b.bare(tcp)
		if err != nil {
			return err
		}
		defer conn.Close()
		id := newID()
		if _, err := client.Logs().Create(ctx, id); err != nil { // a stream of the very same settings
			return err
		}
		others[i] = publisher{js: js, subject: jetstream.SessionSubject(id, events.TypeAssistantChunk), fenced: i == 1}
	}
	bare, fenced := &others[0], &others[1]
	defer bare.js.DeleteStream(ctx, jetstream.SessionStream(b.session.State.ID())) //nolint:errcheck // the directory goes too
	a := &appender{writer: eventlog.NewWriter(log, b.session.State.ID(), 0, events.Hash{}, time.Now, newID), session: b.session}
	var times [3][]time.Duration
	var ratios, headers []float64
	for range b.rounds {
		var round [3][]time.Duration
		for i := range appendPairs {
			if err := a.pair(ctx, i, bare, fenced, &round); err != nil {
				return err
			}
		}
		var middle [3]float64
		for i := range round {
			times[i] = append(times[i], round[i]...)
			middle[i] = float64(median(round[i]))
		}
		ratios, headers = append(ratios, middle[0]/middle[1]), append(headers, middle[2]/middle[1])
	}
	b.title("Append, %s (file storage, R1; medians, ratios by round, of %d rounds of %d interleaved triples; bare publish = 1x)", where, b.rounds, appendPairs)
	b.line("bare synchronous publish", "%9v", median(times[1]))
	b.line("bare publish with message ID and fence", "%9v %6.2fx", median(times[2]), median(headers))
	b.line("append: encode, hash, fence, settle", "%9v %s", median(times[0]), most(median(ratios), appendGoal))
	return nil
}

// bare returns a connection of the vendor's library.
func (b *bench) bare(tcp bool) (*nats.Conn, natsjs.JetStream, error) {
	url, opts := "", []nats.Option{nats.InProcessServer(b.server)}
	if tcp {
		url, opts = b.server.ClientURL(), nil
	}
	conn, err := nats.Connect(url, opts...)
	if err != nil {
		return nil, nil, err
	}
	js, err := natsjs.New(conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, js, nil
}

// appender appends the session's events one by one.
type appender struct {
	writer  *eventlog.Writer
	session *session
	next    int
}

// pair appends the next event and publishes its payload to the others, in turns of who is first.
func (a *appender) pair(ctx context.Context, turn int, bare, fenced *publisher, times *[3][]time.Duration) error {
	e := &a.session.Events[a.next%len(a.session.Events)]
	payload := a.session.Payloads[a.next%len(a.session.Events)]
	a.next++
	do := [3]func() error{
		func() error {
			_, err := a.writer.Append(ctx, e.Body, func(n *events.Event) {
				n.Surface, n.Sources, n.Ignorable = e.Surface, e.Sources, e.Ignorable
			})
			return err
		},
		func() error { return bare.publish(ctx, payload) },
		func() error { return fenced.publish(ctx, payload) },
	}
	for k := range do {
		i := (k + turn) % len(do)
		d, err := timed(do[i])
		if err != nil {
			return err
		}
		times[i] = append(times[i], d)
	}
	return nil
}
