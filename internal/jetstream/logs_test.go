package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/faults"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func TestConformanceR1(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	conform(t, jetstream.Config{InProcess: s})
}

func TestConformanceR3(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	conform(t, jetstream.Config{URL: c.URLs(), Replicas: 3})
}

// conform runs the suite and all faults, with two clients taking turns as the processes of different workers would.
func conform(t *testing.T, cfg jetstream.Config) {
	t.Helper()
	clients := []*jetstream.Client{connect(t, cfg), connect(t, cfg)}
	var n atomic.Uint64
	open := func(testing.TB) eventlog.Store { return clients[n.Add(1)%2].Logs() }
	t.Run("Suite", func(t *testing.T) {
		t.Parallel()
		eventlogtest.Run(t, open)
	})
	t.Run("Faults", func(t *testing.T) {
		t.Parallel()
		eventlogtest.RunTakeovers(t, open,
			around("fail-after-persist", faults.FailAfterPersist()), around("drop-ack", faults.DropAck()),
			around("duplicate", faults.Duplicate()), around("lost", faults.Lost()),
			wire(cfg, "request-lost", false, 0), wire(cfg, "ack-lost", true, 0), wire(cfg, "sent-twice", true, 1))
	})
}

// around is a fault of the log as a whole.
func around(name string, fault faults.Fault) eventlogtest.Fault {
	return eventlogtest.Fault{Name: name, Wrap: func(_ testing.TB, log eventlog.Log, session events.ID, seq uint64) eventlog.Log {
		return faults.NewLog(log, session, func(_ events.ID, op faults.Op, at uint64) faults.Fault {
			if op == faults.Append && at == seq {
				return fault
			}
			return faults.Fault{}
		})
	}}
}

// wire is a fault between client and server, which the log has to settle by itself: the publish of one event is lost or
// only its answer, after it was sent again a number of times.
func wire(cfg jetstream.Config, name string, sent bool, again int) eventlogtest.Fault {
	return eventlogtest.Fault{Name: name, Wrap: func(t testing.TB, _ eventlog.Log, session events.ID, seq uint64) eventlog.Log {
		t.Helper()
		c := connect(t, cfg)
		var done atomic.Bool
		fence := fmt.Sprint(seq - 1)
		c.Interpose(func(next exchange) exchange {
			return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
				if msg.Header.Get("Nats-Expected-Last-Sequence") != fence || done.Swap(true) {
					return next(ctx, msg)
				}
				if !sent {
					return nil, jetstream.ErrNoAnswer
				}
				for range again {
					if _, err := next(ctx, msg); err != nil {
						return nil, err
					}
				}
				if _, err := next(ctx, msg); err != nil {
					return nil, err
				}
				return nil, jetstream.ErrNoAnswer
			}
		})
		log, err := c.Logs().Open(t.Context(), session)
		if err != nil {
			t.Fatal(err)
		}
		return log
	}}
}

type exchange = func(context.Context, *nats.Msg) (*nats.Msg, error)

// writer returns a writer that goes on after what the log holds now.
func writer(t testing.TB, log eventlog.Log, id events.ID) *eventlog.Writer {
	t.Helper()
	list := eventlogtest.Verify(t, log)
	var hash events.Hash
	if len(list) > 0 {
		hash, _ = list[len(list)-1].Hash()
	}
	return eventlog.NewWriter(log, id, uint64(len(list)), hash, time.Now, eventlogtest.IDs())
}

func create(t testing.TB, c *jetstream.Client) (events.ID, eventlog.Log) {
	t.Helper()
	id := newID()
	log, err := c.Logs().Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return id, log
}

// TestConflictCodes provokes what the server answers to a fence that does not hold, and to a verbatim resend.
func TestConflictCodes(t *testing.T) {
	t.Parallel()
	publish := func(c *jetstream.Client, id, msgID events.ID, fence string) error {
		msg := nats.NewMsg(jetstream.SessionSubject(id, events.TypeSessionCreated))
		msg.Header.Set("Nats-Msg-Id", string(msgID))
		msg.Header.Set("Nats-Expected-Last-Sequence", fence)
		msg.Data = []byte("x")
		_, err := c.PublishRaw(t.Context(), msg)
		return err
	}
	t.Run("R1", func(t *testing.T) {
		t.Parallel()
		c := connect(t, jetstream.Config{InProcess: serve(t, nil)})
		id, _ := create(t, c)
		first := newID()
		if err := publish(c, id, first, "0"); err != nil {
			t.Fatal(err)
		}
		if err := publish(c, id, newID(), "0"); jetstream.ErrorCode(err) != 10071 {
			t.Errorf("a taken place: %v, want code 10071", err)
		}
		if err := publish(c, id, newID(), "5"); jetstream.ErrorCode(err) != 10071 {
			t.Errorf("a place beyond the end: %v, want code 10071", err)
		}
		if err := publish(c, id, first, "0"); jetstream.ErrorCode(err) != 10071 {
			t.Errorf("a verbatim resend: %v, want code 10071", err)
		}
	})
	t.Run("R3", func(t *testing.T) {
		t.Parallel()
		c := connect(t, jetstream.Config{URL: cluster(t).URLs(), Replicas: 3})
		id, _ := create(t, c)
		first := newID()
		if err := publish(c, id, first, "0"); err != nil {
			t.Fatal(err)
		}
		if err := publish(c, id, newID(), "0"); jetstream.ErrorCode(err) != 10071 {
			t.Errorf("a taken place: %v, want code 10071", err)
		}
		if err := publish(c, id, first, "0"); err != nil {
			t.Errorf("a verbatim resend: %v, want it to be a duplicate", err)
		}
		// While a write to a subject is in flight, its fence cannot be judged: 10164.
		if err := c.EnsureStreams(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !writeInFlight(t, c, "verdict."+string(id)) {
			t.Error("code 10164 was not provoked")
		}
	})
}

// writeInFlight publishes with one fence from several sides until one is told that another write is in flight.
func writeInFlight(t *testing.T, c *jetstream.Client, subject string) bool {
	t.Helper()
	type outcome struct {
		seq uint64
		err error
	}
	var last uint64
	for range 500 {
		fence := strconv.FormatUint(last, 10)
		outcomes := make(chan outcome, 8)
		for range cap(outcomes) {
			msg := nats.NewMsg(subject)
			msg.Header.Set("Nats-Expected-Last-Subject-Sequence", fence)
			msg.Data = []byte("x")
			go func() {
				seq, err := c.PublishRaw(t.Context(), msg)
				outcomes <- outcome{seq, err}
			}()
		}
		won, found := 0, false
		for range cap(outcomes) {
			o := <-outcomes
			switch code := jetstream.ErrorCode(o.err); {
			case o.err == nil:
				won++
				last = o.seq
			case code == 10164:
				found = true
			case code != 10071:
				t.Fatalf("publish: %v", o.err)
			}
		}
		if won != 1 {
			t.Fatalf("%d publishes with one fence were stored", won)
		}
		if found {
			return true
		}
	}
	return false
}

// TestServerRestart restarts the server between and during appends.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	o := embedded.Options{StoreDir: t.TempDir(), Port: -1}
	s, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Port = s.Port()
	c := connect(t, jetstream.Config{URL: s.ClientURL()})
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	const rounds = 3
	appended := uint64(1)
	for range rounds {
		done := make(chan uint64)
		enough := make(chan struct{})
		started := make(chan struct{})
		go func() {
			defer close(done)
			var n uint64
			for {
				if _, err := w.Append(t.Context(), &events.TurnStart{Turn: 1}); err != nil {
					t.Errorf("append across a restart: %v", err)
					done <- n
					return
				}
				if n++; n == 20 {
					close(started)
				}
				select {
				case <-enough:
					if n >= 20 {
						done <- n
						return
					}
				default:
				}
			}
		}()
		<-started
		s.Shutdown()
		if s, err = embedded.Start(o); err != nil {
			close(enough)
			t.Fatal(err)
		}
		close(enough)
		appended += <-done
	}
	t.Cleanup(func() { s.Shutdown() })
	if got := eventlogtest.Verify(t, log); uint64(len(got)) != appended {
		t.Fatalf("the log has %d events, acknowledged were %d", len(got), appended)
	}
}

// TestLeaderStops stops the leader of a replicated session in the middle of its appends.
func TestLeaderStops(t *testing.T) {
	t.Parallel()
	cl := cluster(t)
	c := connect(t, jetstream.Config{URL: cl.URLs(), Replicas: 3})
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	const n = 300
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-stop
		if leader := cl.StreamLeader(jetstream.SessionStream(id)); leader >= 0 {
			cl.Stop(leader)
		}
	}()
	for i := range n {
		if i == n/3 {
			close(stop)
		}
		if _, err := w.Append(t.Context(), &events.TurnStart{Turn: 1}); err != nil {
			t.Fatalf("append %d: %v", i, err)
		}
	}
	<-stopped
	if got := eventlogtest.Verify(t, log); len(got) != 1+n {
		t.Fatalf("the log has %d events, acknowledged were %d", len(got), 1+n)
	}
}

// TestServerVanishes shows that nothing waits longer than its context, and says so in one line.
func TestServerVanishes(t *testing.T) {
	t.Parallel()
	s := serve(t, func(o *embedded.Options) { o.Port = -1 })
	c := connect(t, jetstream.Config{URL: s.ClientURL()})
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	start := time.Now()
	_, err := w.Append(within(t, 300*time.Millisecond), &events.TurnStart{Turn: 1})
	check := func(op string, err error) {
		t.Helper()
		if !errors.Is(err, eventlog.ErrUnavailable) {
			t.Errorf("%s without a server: %v, want ErrUnavailable", op, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: an error of several lines: %q", op, err)
		}
	}
	check("append", err)
	if !errors.Is(w.Err(), eventlog.ErrWriterStopped) {
		t.Error("the writer goes on after an unknown outcome")
	}
	_, err = log.Last(within(t, 100*time.Millisecond))
	check("last", err)
	for _, err = range log.Read(within(t, 100*time.Millisecond), 1) {
		check("read", err)
	}
	_, err = c.Logs().Open(within(t, 100*time.Millisecond), id)
	check("open", err)
	_, err = c.Logs().Create(within(t, 100*time.Millisecond), newID())
	check("create", err)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v, the contexts allow for 0.7 s", took)
	}
}

// TestAckSequence shows that an acknowledgement for another place is an error.
func TestAckSequence(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	c := connect(t, jetstream.Config{InProcess: s})
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	c2 := connect(t, jetstream.Config{InProcess: s})
	c2.Interpose(func(next exchange) exchange {
		return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
			resp, err := next(ctx, msg)
			if err == nil && msg.Header.Get("Nats-Expected-Last-Sequence") != "" {
				resp.Data = []byte(strings.Replace(string(resp.Data), `"seq":2`, `"seq":7`, 1))
			}
			return resp, err
		}
	})
	log2, err := c2.Logs().Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer(t, log2, id).Append(t.Context(), &events.TurnStart{Turn: 1}); !errors.Is(err, eventlog.ErrCorrupt) {
		t.Fatalf("an acknowledgement for another place: %v, want ErrCorrupt", err)
	}
}
