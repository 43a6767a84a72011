package verify_test

import (
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// BenchmarkCold compares checking a whole stream with merely reading it.
func BenchmarkCold(b *testing.B) {
	const n = 10_000
	s := newBench(b)
	log, err := s.client.Logs().Create(b.Context(), foldtest.SessionID)
	if err != nil {
		b.Fatal(err)
	}
	l := foldtest.SessionLog(n, audittest.Bodies())
	for i := range l.Events {
		if err := log.Append(b.Context(), &l.Events[i], l.Payloads[i]); err != nil {
			b.Fatal(err)
		}
	}
	perEvent := func(b *testing.B) {
		b.Helper()
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
	}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			for _, err := range log.Read(b.Context(), 1) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		perEvent(b)
	})
	check := func(b *testing.B, messages func() func(func(eventlog.Message, error) bool)) {
		b.Helper()
		for b.Loop() {
			report, err := audit.CheckLog(b.Context(), audit.LogCheck{
				Session: foldtest.SessionID, Messages: messages(), Last: n, Objects: audit.FromStore(s.client.Objects()),
			})
			if err != nil || !report.AllMatch() {
				b.Fatal(err, report)
			}
		}
		perEvent(b)
	}
	b.Run("read and verify", func(b *testing.B) {
		check(b, func() func(func(eventlog.Message, error) bool) { return log.Read(b.Context(), 1) })
	})
	b.Run("verify from memory", func(b *testing.B) {
		messages := audittest.Of("", l).Messages
		check(b, func() func(func(eventlog.Message, error) bool) { return audittest.Sequence(messages) })
	})
}
