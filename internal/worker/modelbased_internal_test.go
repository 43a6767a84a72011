package worker

import (
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// TestModel carries out random plans: inputs of all kinds at all moments, answers and failures of the provider, workers
// that die, are stopped or lose the session to another. When the dust has settled, the log must be one that could have
// come about without any of that, apart from what it says of it: see [world.check].
//
// Time is virtual: the bubble's clock goes on when everybody waits, so that backoffs, slow answers and timeouts take none.
func TestModel(t *testing.T) {
	for name, e := range map[string]emphasis{
		"calm": {}, "deaths": {deaths: true}, "failures": {failures: true, deaths: true}, "small window": {small: true, deaths: true},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				p := drawPlan(rt, e)
				if bad := carryOut(t, p); len(bad) > 0 {
					rt.Fatalf("%v\n%s", p, strings.Join(bad, "\n"))
				}
			})
		})
	}
}

// carryOut carries a plan out in a bubble and returns what must not be and was.
func carryOut(t *testing.T, p *plan) (bad []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { bad = newWorld(t, p).run() })
	return bad
}
