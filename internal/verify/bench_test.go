package verify_test

import (
	"fmt"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// BenchmarkVerifyStep is the cost of one more step, all its events included, behind so many events of history.
func BenchmarkVerifyStep(b *testing.B) {
	const more = 600
	all := recordLog("", foldtest.SessionLog(10_000+more, deepseek()))
	for _, history := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("history=%d", history), func(b *testing.B) {
			messages := all.messages[:history+more]
			var checker *audit.Checker
			next, steps := len(messages), 0
			apply := func() {
				if _, err := checker.Apply(b.Context(), messages[next]); err != nil {
					b.Fatal(err)
				}
				next++
			}
			toStream := func() bool {
				for next < len(messages) && messages[next].Type != events.TypeStepEnd {
					apply()
				}
				if next == len(messages) {
					return false
				}
				apply()
				return true
			}
			for b.Loop() {
				if next < len(messages) && toStream() {
					steps++
					continue
				}
				b.StopTimer()
				checker = audit.NewChecker(audit.CheckerConfig{Session: all.session, Objects: audit.FromStore(&store{source: all.source})})
				for next = 0; next < history; {
					apply()
				}
				toStream() // whole steps from here on
				b.StartTimer()
				toStream()
				steps++
			}
			if broken, ok := checker.Broken(); ok {
				b.Fatal(broken.String())
			}
		})
	}
}

// BenchmarkCold compares checking a whole stream with merely reading it.
func BenchmarkCold(b *testing.B) {
	const n = 10_000
	s := newBench(b)
	log, err := s.client.Logs().Create(b.Context(), foldtest.SessionID)
	if err != nil {
		b.Fatal(err)
	}
	l := foldtest.SessionLog(n, deepseek())
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
		messages := recordLog("", l).messages
		check(b, func() func(func(eventlog.Message, error) bool) { return sequence(messages) })
	})
}
