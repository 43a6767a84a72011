package fold_test

import (
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

const benchEvents = 25_000

// BenchmarkFold is what it costs to read a log: decode, hash and apply every event.
func BenchmarkFold(b *testing.B) {
	l := foldtest.SessionLog(benchEvents, nil)
	reportSize(b, l)
	var d events.Decoder
	for b.Loop() {
		s := fold.New(foldtest.SessionID)
		for _, payload := range l.Payloads {
			e, err := d.DecodeShared(payload)
			if err != nil {
				b.Fatal(err)
			}
			if err := s.Apply(&e); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRate(b, l)
}

// BenchmarkDecode is BenchmarkFold without the fold.
func BenchmarkDecode(b *testing.B) {
	l := foldtest.SessionLog(benchEvents, nil)
	reportSize(b, l)
	var d events.Decoder
	for b.Loop() {
		for _, payload := range l.Payloads {
			if _, err := d.DecodeShared(payload); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRate(b, l)
}

// BenchmarkApply is BenchmarkFold without reading.
func BenchmarkApply(b *testing.B) {
	l := foldtest.SessionLog(benchEvents, nil)
	reportSize(b, l)
	for b.Loop() {
		s := fold.New(foldtest.SessionID)
		for i := range l.Events {
			if err := s.Apply(&l.Events[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRate(b, l)
}

func reportSize(b *testing.B, l *foldtest.Log) {
	b.Helper()
	size := 0
	for _, p := range l.Payloads {
		size += len(p)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
}

func reportRate(b *testing.B, l *foldtest.Log) {
	b.Helper()
	perSecond := float64(len(l.Events)) * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(perSecond, "events/s")
}
