package readahead_test

import (
	"bytes"
	"testing"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/readahead"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// BenchmarkFold folds a log in memory, with one goroutine and with decoding ahead.
func BenchmarkFold(b *testing.B) {
	l := foldtest.SessionLog(25_000, nil)
	size := 0
	for _, p := range l.Payloads {
		size += len(p)
	}
	messages := func(b *testing.B) []eventlog.Message {
		b.Helper()
		b.StopTimer()
		defer b.StartTimer()
		all := make([]eventlog.Message, 0, len(l.Events))
		for i := range l.Events {
			e := &l.Events[i]
			all = append(all, eventlog.Message{Seq: e.Seq, Type: e.Type(), ID: e.ID, Payload: bytes.Clone(l.Payloads[i])})
		}
		return all
	}
	b.Run("in-turn", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			s, d := fold.New(foldtest.SessionID), new(events.Decoder)
			for _, m := range messages(b) {
				e, err := m.Take(d)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Apply(&e); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("ahead", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			s := fold.New(foldtest.SessionID)
			all := messages(b)
			in := func(yield func(eventlog.Message, error) bool) {
				for _, m := range all {
					if !yield(m, nil) {
						return
					}
				}
			}
			for e, err := range readahead.Events(in) {
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Apply(&e); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
