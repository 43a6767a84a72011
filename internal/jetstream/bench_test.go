package jetstream_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// benchBody makes events of about 500 bytes.
func benchBody() events.Body {
	return &events.SessionTitle{Title: strings.Repeat("x", 300)}
}

// BenchmarkAppend compares an append, with encoding, hashing and settling, with a bare publish of the same bytes to a
// stream of the same configuration.
func BenchmarkAppend(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		name := "R" + strconv.Itoa(replicas)
		cfg := jetstream.Config{Replicas: replicas}
		if replicas == 1 {
			cfg.InProcess = serve(b, nil)
		} else {
			cfg.URL = cluster(b).URLs()
		}
		c := connect(b, cfg)
		b.Run(name+"/writer", func(b *testing.B) {
			id, log := create(b, c)
			w := writer(b, log, id)
			if _, err := w.Append(b.Context(), &events.SessionCreated{}); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for b.Loop() {
				if _, err := w.Append(b.Context(), benchBody(), eventlog.WithIgnorable()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/publish", func(b *testing.B) {
			id, _ := create(b, c)
			e := events.Event{Seq: 1, ID: newID(), Time: time.Now().UnixMilli(), Body: benchBody(), Ignorable: true}
			payload, err := events.Encode(&e)
			if err != nil {
				b.Fatal(err)
			}
			subject := jetstream.SessionSubject(id, e.Type())
			b.SetBytes(int64(len(payload)))
			b.ResetTimer()
			for b.Loop() {
				if _, err := c.JetStream().PublishMsg(b.Context(), &nats.Msg{Subject: subject, Data: payload}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/publish-with-headers", func(b *testing.B) {
			id, _ := create(b, c)
			e := events.Event{Seq: 1, ID: newID(), Time: time.Now().UnixMilli(), Body: benchBody(), Ignorable: true}
			payload, err := events.Encode(&e)
			if err != nil {
				b.Fatal(err)
			}
			subject := jetstream.SessionSubject(id, e.Type())
			last := uint64(0)
			b.ResetTimer()
			for b.Loop() {
				_, err := c.JetStream().PublishMsg(b.Context(), &nats.Msg{Subject: subject, Data: payload},
					natsjs.WithMsgID(string(newID())), natsjs.WithExpectLastSequence(last))
				if err != nil {
					b.Fatal(err)
				}
				last++
			}
		})
	}
}

// BenchmarkRead reads a log of 25,000 events from its beginning, one log per operation.
func BenchmarkRead(b *testing.B) {
	c := connect(b, jetstream.Config{InProcess: serve(b, nil)})
	id, log := create(b, c)
	w := writer(b, log, id)
	if _, err := w.Append(b.Context(), &events.SessionCreated{}); err != nil {
		b.Fatal(err)
	}
	const n = 25_000
	var bytes int64
	for range n - 1 {
		if _, err := w.Append(b.Context(), &events.TurnStart{Turn: 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for b.Loop() {
		bytes = 0
		read := 0
		for m, err := range log.Read(b.Context(), 1) {
			if err != nil {
				b.Fatal(err)
			}
			bytes += int64(len(m.Payload))
			read++
		}
		if read != n {
			b.Fatalf("read %d messages, want %d", read, n)
		}
	}
	b.SetBytes(bytes)
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
