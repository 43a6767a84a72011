// Package readahead reads a log faster than one goroutine can: messages are read, and their payloads hashed and decoded,
// while the receiver still works on earlier events.
package readahead

import (
	"iter"
	"runtime"
	"sync"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	batchSize  = 64 // elements that are handed over at a time
	maxWorkers = 4  // more would wait for the receiver
)

// Events returns the events of the messages, in order. Each is decoded and checked as [eventlog.Message.Event] does, and
// the messages' payloads are given away: nothing else may hold them. See [Decode].
func Events(messages iter.Seq2[eventlog.Message, error]) iter.Seq2[events.Event, error] {
	return Decode(messages, (*eventlog.Message).Take)
}

// Decode returns what decode makes of every element of in, in order. An error of decode, or of in, ends the iteration,
// behind all events before it. decode is called by several goroutines at once, with a decoder for each, and owns what it
// is given.
//
// It is for a log that is read to its end, as [eventlog.Log.Read] does: an event may be held back until more elements
// have come or there are no more. Up to a few hundred are read ahead. The goroutines that do it end before the iteration
// returns; when the receiver stops early, that is after the next element or error of in.
func Decode[T any](in iter.Seq2[T, error], decode func(*T, *events.Decoder) (events.Event, error)) iter.Seq2[events.Event, error] {
	return func(yield func(events.Event, error) bool) {
		workers := min(runtime.GOMAXPROCS(0), maxWorkers)
		p := newPipeline[T](2*workers + 2)
		defer p.stop()
		p.owned.Go(func() { p.read(in) })
		for range workers {
			p.owned.Go(func() { p.decode(decode) })
		}
		for b := range p.ordered {
			<-b.decoded
			for i := range b.events {
				if !yield(b.events[i], nil) {
					return
				}
			}
			if b.err != nil {
				yield(events.Event{}, b.err)
				return
			}
			p.free <- b
		}
	}
}

// batch is some elements in a row on their way to the receiver.
type batch[T any] struct {
	elements []T
	decoded  chan struct{} // gets a token when the events are there
	events   []events.Event
	err      error // what stands behind them
}

// pipeline moves a fixed number of batches in a circle: free, read, decoded, received. No send can block, because each
// channel has room for all of them.
type pipeline[T any] struct {
	free    chan *batch[T]
	work    chan *batch[T]
	ordered chan *batch[T] // in the order of the log
	done    chan struct{}
	owned   sync.WaitGroup
}

func newPipeline[T any](batches int) *pipeline[T] {
	p := &pipeline[T]{
		free: make(chan *batch[T], batches), work: make(chan *batch[T], batches), ordered: make(chan *batch[T], batches),
		done: make(chan struct{}),
	}
	for range batches {
		p.free <- &batch[T]{decoded: make(chan struct{}, 1)}
	}
	return p
}

// stop ends the goroutines and waits for them.
func (p *pipeline[T]) stop() {
	close(p.done)
	p.owned.Wait()
}

// read fills batches until in ends or fails, or the receiver stops.
func (p *pipeline[T]) read(in iter.Seq2[T, error]) {
	defer close(p.ordered)
	defer close(p.work)
	b := p.next()
	if b == nil {
		return
	}
	for e, err := range in {
		if err != nil {
			b.err = err
			break
		}
		if b.elements = append(b.elements, e); len(b.elements) < batchSize {
			select {
			case <-p.done:
				return
			default:
				continue
			}
		}
		p.hand(b)
		if b = p.next(); b == nil {
			return
		}
	}
	p.hand(b)
}

// next returns an empty batch, or nil when the receiver has stopped.
func (p *pipeline[T]) next() *batch[T] {
	select {
	case b := <-p.free:
		b.elements, b.events, b.err = b.elements[:0], b.events[:0], nil
		return b
	case <-p.done:
		return nil
	}
}

func (p *pipeline[T]) hand(b *batch[T]) {
	p.work <- b
	p.ordered <- b
}

// decode decodes batches until there are no more.
func (p *pipeline[T]) decode(one func(*T, *events.Decoder) (events.Event, error)) {
	var d events.Decoder
	for b := range p.work {
		for i := range b.elements {
			e, err := one(&b.elements[i], &d)
			if err != nil {
				b.err = err // comes before what ended the reading
				break
			}
			b.events = append(b.events, e)
		}
		b.decoded <- struct{}{}
	}
}
