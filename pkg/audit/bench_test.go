package audit_test

import (
	"fmt"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// BenchmarkVerifyStep is the cost of one more step, all its events included, behind so many events of history.
func BenchmarkVerifyStep(b *testing.B) {
	const more = 600
	all := audittest.Of("", foldtest.SessionLog(10_000+more, audittest.Bodies()))
	for _, history := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("history=%d", history), func(b *testing.B) {
			messages := all.Messages[:history+more]
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
				checker = audit.NewChecker(audit.CheckerConfig{Session: all.ID, Objects: audit.FromStore(all.Store())})
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

// BenchmarkCheck is a cold check of a whole log that is in memory: hash, decode, fold, rebuild and compare.
func BenchmarkCheck(b *testing.B) {
	const n = 25_000
	l := audittest.Of("", foldtest.SessionLog(n, audittest.Bodies()))
	var size int64
	for i := range l.Messages {
		size += int64(len(l.Messages[i].Payload))
	}
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		checker := audit.NewChecker(audit.CheckerConfig{Session: l.ID, Objects: audit.FromStore(l.Store())})
		for _, m := range l.Messages {
			v, err := checker.Apply(b.Context(), m)
			if err != nil {
				b.Fatal(err)
			}
			if v != nil && v.Result != audit.Match {
				b.Fatal(v.String())
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/event")
}
