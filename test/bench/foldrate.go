package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// foldGoal is ten times what the reference system loads and derives per second, cold from a file.
const foldGoal = 10 * 128_000

// coldGoal is the rate at which a whole stream is verified, in parts of that at which it is merely read.
const coldGoal = 0.7

// fold measures how fast a whole log is read and folded, and verified.
func (b *bench) fold(ctx context.Context) error {
	path := filepath.Join(b.dir, "session.jsonl")
	if err := b.session.writeFile(path); err != nil {
		return err
	}
	if err := b.store(ctx); err != nil {
		return fmt.Errorf("store the session: %w", err)
	}
	runs := []run{
		{what: "copy of the file in memory", do: func() error { return copied(path) }},
		{what: "SHA-256 of every payload, in memory", do: b.hashed},
		{what: "file: read, hash, decode, apply", do: func() error { return b.foldFile(path) }},
		{what: "JetStream: bare ordered consumer", cold: true, do: func() error { return b.consume(ctx) }},
		{what: "JetStream: ordered read", cold: true, do: func() error { return b.read(ctx) }},
		{what: "JetStream: read, hash, decode, apply", cold: true, do: func() error { return b.foldStream(ctx) }},
		{what: "JetStream: check of the whole log", cold: true, do: func() error { return b.verify(ctx) }},
	}
	for range b.rounds {
		for i := range runs {
			if runs[i].cold {
				if err := b.restart(); err != nil {
					return err
				}
			}
			runtime.GC() // every run pays for its own garbage alone
			busy := cpuTime()
			d, err := timed(runs[i].do)
			if err != nil {
				return fmt.Errorf("%s: %w", runs[i].what, err)
			}
			runs[i].took, runs[i].busy = append(runs[i].took, d), append(runs[i].busy, cpuTime()-busy)
		}
	}
	b.foldTable(runs)
	return nil
}

// run is one way to go through the session's log.
type run struct {
	what string
	cold bool // with a new server each time
	do   func() error
	took []time.Duration
	busy []time.Duration // of all processors together
}

// cpuTime returns the processor time that this process has used, the embedded server's included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (b *bench) foldTable(runs []run) {
	cold, coldCPU := ratios(runs[3].took, runs[6].took), ratios(runs[3].busy, runs[6].busy)
	n, chunks := float64(len(b.session.Events)), float64(b.session.chunks)
	b.title("A session of %d events, %.1f MB, which are %d when every delta is an event (median of %d rounds; CPU: of the whole process, server included)",
		len(b.session.Events), float64(b.session.bytes)/1e6, b.session.chunks, b.rounds)
	b.line("", "%9s %9s %9s %9s %10s %14s", "time", "best", "CPU", "MB/s", "events/s", "deltas apart/s")
	medians := make([]float64, len(runs))
	for i := range runs {
		s := median(runs[i].took).Seconds()
		medians[i] = s
		b.line(runs[i].what, "%7.1fms %7.1fms %7.1fms %9.1f %10.0f %14.0f", 1000*s, ms(slices.Min(runs[i].took)), ms(median(runs[i].busy)),
			float64(b.session.bytes)/1e6/s, n/s, chunks/s)
	}
	hash, file, bare, read, stream, verified := medians[1], medians[2], medians[3], medians[4], medians[5], medians[6]
	b.line("file: time against SHA-256 alone", "%6.2fx", file/hash)
	b.line("JetStream: ordered read against the bare one", "%6.2fx", read/bare)
	b.line("JetStream: fold against the ordered read", "%6.2fx", stream/read)
	b.line("JetStream: verification against the ordered read", "%6.2fx", verified/read)
	b.line("JetStream: rate of verification, bare read = 1", "%6.2f   goal: at least %.2f, %s", cold, coldGoal, reached(cold >= coldGoal))
	b.line("the same by CPU time", "%6.2f", coldCPU)
	b.line("file: events", "%s", perSecond(n/file))
	b.line("file: events, deltas apart", "%s", perSecond(chunks/file))
	b.line("JetStream: events", "%s", perSecond(n/stream))
	b.line("JetStream: events, deltas apart", "%s", perSecond(chunks/stream))
}

// ratios returns the median of what one took in parts of what another took in the same round.
func ratios(one, other []time.Duration) float64 {
	all := make([]float64, len(one))
	for i := range one {
		all[i] = one[i].Seconds() / other[i].Seconds()
	}
	return median(all)
}

// store appends the session to its stream.
func (b *bench) store(ctx context.Context) error {
	client, err := b.connect(ctx, false)
	if err != nil {
		return err
	}
	defer client.Close()
	log, err := client.Logs().Create(ctx, b.session.State.ID())
	if err != nil {
		return err
	}
	for i := range b.session.Events {
		if err := log.Append(ctx, &b.session.Events[i], b.session.Payloads[i]); err != nil {
			return err
		}
	}
	return nil
}

func copied(path string) error {
	_, err := os.ReadFile(path)
	return err
}

func (b *bench) hashed() error {
	var all [sha256.Size]byte
	for _, payload := range b.session.Payloads {
		sum := sha256.Sum256(payload)
		for i := range all {
			all[i] ^= sum[i]
		}
	}
	if all == [sha256.Size]byte{} {
		return errors.New("the digests cancel out")
	}
	return nil
}

// lines yields the lines of data, which it gives away.
func lines(data []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(data) > 0 {
			line, rest, _ := bytes.Cut(data, []byte{'\n'})
			if data = rest; !yield(slices.Clip(line), nil) {
				return
			}
		}
	}
}

func (b *bench) foldFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return foldAll(b, lines(data), func(line *[]byte, d *events.Decoder) (events.Event, error) { return d.DecodeOwned(*line) })
}

func (b *bench) foldStream(ctx context.Context) error {
	return b.opened(ctx, func(log eventlog.Log) error {
		return foldAll(b, log.Read(ctx, 1), (*eventlog.Message).Take)
	})
}

// foldAll folds all that in yields, and checks that the state is that of the session.
func foldAll[T any](b *bench, in iter.Seq2[T, error], decode func(*T, *events.Decoder) (events.Event, error)) error {
	state := fold.New(b.session.State.ID())
	var d events.Decoder
	for v, err := range in {
		if err != nil {
			return err
		}
		e, err := decode(&v, &d)
		if err != nil {
			return err
		}
		if err := state.Apply(&e); err != nil {
			return err
		}
	}
	if state.Seq() != b.session.State.Seq() || state.Head() != b.session.State.Head() {
		return fmt.Errorf("the fold ended at event %d", state.Seq())
	}
	return nil
}

// opened calls do with the session's log, over a new connection.
func (b *bench) opened(ctx context.Context, do func(eventlog.Log) error) error {
	client, err := b.connect(ctx, false)
	if err != nil {
		return err
	}
	defer client.Close()
	log, err := client.Logs().Open(ctx, b.session.State.ID())
	if err != nil {
		return err
	}
	return do(log)
}

// read reads the session's log and does nothing with it.
func (b *bench) read(ctx context.Context) error {
	return b.opened(ctx, func(log eventlog.Log) error {
		n := uint64(0)
		for _, err := range log.Read(ctx, 1) {
			if err != nil {
				return err
			}
			n++
		}
		return b.whole(n)
	})
}

func (b *bench) whole(n uint64) error {
	if n != b.session.Len() {
		return fmt.Errorf("read %d of %d events", n, b.session.Len())
	}
	return nil
}

// consume reads the session's stream with the vendor's library alone: an ordered consumer with its default options and a
// callback, which is faster than its iterator, and than to let it ask for more messages at a time.
func (b *bench) consume(ctx context.Context) error {
	conn, js, err := b.bare(false)
	if err != nil {
		return err
	}
	defer conn.Close()
	consumer, err := js.OrderedConsumer(ctx, jetstream.SessionStream(b.session.State.ID()), natsjs.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	left, done := b.session.Len(), make(chan struct{})
	consuming, err := consumer.Consume(func(natsjs.Msg) {
		if left--; left == 0 {
			close(done)
		}
	})
	if err != nil {
		return err
	}
	defer consuming.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verify checks the whole log as somebody does who knows nothing of it.
func (b *bench) verify(ctx context.Context) error {
	return b.opened(ctx, func(log eventlog.Log) error {
		report, err := audit.CheckLog(ctx, audit.LogCheck{
			Session: b.session.State.ID(), Messages: log.Read(ctx, 1), Last: b.session.Len(),
			Objects: audit.FromStore(objects.NewMemory()),
		})
		switch {
		case err != nil:
			return err
		case !report.AllMatch():
			return fmt.Errorf("%d of %d requests match", report.Matches, report.Requests)
		}
		return b.whole(report.Last)
	})
}

// apply applies the message and expects no finding.
func apply(ctx context.Context, c *audit.Checker, m eventlog.Message) error {
	v, err := c.Apply(ctx, m)
	if err == nil && v != nil && v.Result != audit.Match {
		err = fmt.Errorf("event %d: %s: %s", v.Seq, v.Result, v.Reason)
	}
	return err
}
