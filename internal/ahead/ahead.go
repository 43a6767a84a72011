// Package ahead reads logs ahead of whoever folds them: it decodes events in goroutines of its own, so that a long log is
// read, decoded and folded at the same time.
package ahead

import (
	"context"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	// run is how many messages go from one goroutine to the next at a time, unless runBytes of payloads come together before.
	run      = 64
	runBytes = 128 << 10
	// held bounds the payloads of all messages that were read and not yielded, in bytes. A single run may have more.
	held = 4 << 20
	// runs is how many of these may wait.
	runs = 8
	// fewest is how many messages are worth the goroutines.
	fewest = 4 * run
)

// Read is log.Read(ctx, from), with messages that are decoded already when there are many, which last, the last sequence
// as far as it is known, tells. Messages and errors are the same. At most run*runs messages and one run for each goroutine
// are held, and of their payloads 4 MiB and the one run that is being read, whose last payload may be of any size. When the
// iteration ends the goroutines have ended too.
func Read(ctx context.Context, log eventlog.Log, from, last uint64) iter.Seq2[eventlog.Message, error] {
	if last < from || last-from < fewest {
		return log.Read(ctx, from)
	}
	return func(yield func(eventlog.Message, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		r := reader{queue: make(chan *batch, runs), work: make(chan *batch, runs), freed: make(chan struct{}, 1)}
		defer r.group.Wait()
		defer cancel()
		r.group.Go(func() { r.read(ctx, log.Read(ctx, from)) })
		for range max(runtime.GOMAXPROCS(0)-1, 1) {
			r.group.Go(r.decode)
		}
		for b := range r.queue {
			<-b.decoded
			for i := range b.messages {
				if !yield(b.messages[i], nil) {
					return
				}
			}
			if b.err != nil {
				yield(eventlog.Message{}, b.err)
				return
			}
			r.free(b)
		}
		if err := context.Cause(ctx); err != nil { // the reader had to stop
			yield(eventlog.Message{}, err)
		}
	}
}

// batch is a run of messages, and the error that ended the read behind them, nil when none did.
type batch struct {
	messages []eventlog.Message
	bytes    int64 // of the payloads
	err      error
	decoded  chan struct{} // closed when all are
}

// reader is a read in progress.
type reader struct {
	group sync.WaitGroup
	queue chan *batch // in the order of the log
	work  chan *batch // the same, to be decoded

	bytes atomic.Int64  // of the payloads of batches that were queued and not yielded
	freed chan struct{} // says that there may be fewer now
}

// take waits until there is room for the batch, or no other one. It returns false when ctx has ended.
func (r *reader) take(ctx context.Context, b *batch) bool {
	for {
		if now := r.bytes.Load(); now == 0 || now+b.bytes <= held {
			r.bytes.Add(b.bytes) // nobody else adds
			return true
		}
		select {
		case <-r.freed:
		case <-ctx.Done():
			return false
		}
	}
}

// free gives back what a batch took.
func (r *reader) free(b *batch) {
	r.bytes.Add(-b.bytes)
	select {
	case r.freed <- struct{}{}:
	default: // it was said
	}
}

// read reads the log in batches until it ends or ctx does.
func (r *reader) read(ctx context.Context, messages iter.Seq2[eventlog.Message, error]) {
	defer close(r.queue)
	defer close(r.work)
	b := newBatch()
	pass := func() bool {
		full := b
		b = newBatch()
		if !r.take(ctx, full) {
			return false
		}
		for _, to := range []chan *batch{r.work, r.queue} {
			select {
			case to <- full:
			case <-ctx.Done():
				return false
			}
		}
		return true
	}
	for m, err := range messages {
		if err != nil {
			b.err = err
			break
		}
		b.messages = append(b.messages, m)
		b.bytes += int64(len(m.Payload))
		if (len(b.messages) == run || b.bytes >= runBytes) && !pass() {
			return
		}
	}
	if len(b.messages) > 0 || b.err != nil {
		pass()
	}
}

func newBatch() *batch {
	return &batch{messages: make([]eventlog.Message, 0, run), decoded: make(chan struct{})}
}

// decode decodes batches until there are no more.
func (r *reader) decode() {
	var d events.Decoder
	for b := range r.work {
		for i := range b.messages {
			b.messages[i].Decode(&d)
		}
		close(b.decoded)
	}
}
