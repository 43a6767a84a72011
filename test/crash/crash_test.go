// Package crash_test kills worker processes at every boundary of a session and compares what becomes of it with the
// session that nobody interrupts.
package crash_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/child"
)

// TestMain runs the tests, or is a worker when a test says so.
func TestMain(m *testing.M) {
	child.Main(func(ctx context.Context, a *assignment) error { return a.run(ctx) })
	goleak.VerifyTestMain(m)
}

// TestTools crashes workers of one server in a session with tools.
func TestTools(t *testing.T) {
	t.Parallel()
	matrix(t, 1, toolsScript(), 1, 1)
}

// TestToolsCluster crashes workers of a cluster that keeps everything three times.
func TestToolsCluster(t *testing.T) {
	t.Parallel()
	matrix(t, 3, toolsScript(), 1, 4)
}

// TestControls crashes workers of one server in a session that is steered, cancelled and compacted.
func TestControls(t *testing.T) {
	t.Parallel()
	matrix(t, 1, controlsScript(), 1, 4)
}

// TestControlsCluster does the same in a cluster, at some of the boundaries.
func TestControlsCluster(t *testing.T) {
	t.Parallel()
	matrix(t, 3, controlsScript(), 4, 8)
}

const (
	parallel = 2  // sessions of a test at a time, each with its own servers
	fewest   = 30 // events of the uninterrupted session
	sample   = 8  // with -short, every so many cases
)

// matrix plays the session without a crash, then with one at each boundary, then with a second one while a worker
// recovers from the first: every so many of the cases of one crash, and of two.
func matrix(t *testing.T, replicas int, played script, one, two int) {
	t.Helper()
	slots := make([]*slot, parallel)
	for i := range slots {
		slots[i] = newSlot(t, replicas, played)
	}
	run, trail := slots[0].play(t, true)
	base := run.read(t)
	want := played.want
	want.Requests = base.Requests // compared with what the provider received
	if diff := cmp.Diff(want, base.outcome); diff != "" {
		t.Fatalf("the uninterrupted session:\n%s", diff)
	}
	if len(base.events) < fewest {
		t.Fatalf("the session has %d events", len(base.events))
	}
	cases := slices.Concat(every(singles(trail), one), every(doubles(trail), two))
	all := len(cases)
	if testing.Short() {
		cases = every(cases, sample)
	}
	var mu sync.Mutex
	fates := make(map[string]int)
	queue := make(chan []boundary, len(cases))
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	var group sync.WaitGroup
	for _, s := range slots {
		group.Go(func() {
			for stops := range queue {
				t.Run(title(stops), func(t *testing.T) {
					fate := s.crash(t, base, stops)
					mu.Lock()
					fates[fate]++
					mu.Unlock()
				})
			}
		})
	}
	group.Wait()
	t.Logf("%d replicas: %d events, %d boundaries; %d cases of %d:", replicas, len(base.events), len(trail), len(cases), all)
	for _, fate := range slices.Sorted(maps.Keys(fates)) {
		t.Logf("%4d ended %s", fates[fate], fate)
	}
}

// crash plays the session with crashes and compares it with the uninterrupted one.
func (s *slot) crash(t *testing.T, base *record, stops []boundary) (fate string) {
	t.Helper()
	r, _ := s.play(t, false, stops...)
	first := r.kills[0]
	if n := int(first.last); n > len(base.events) || first.at.op == opAppend && n != first.at.n-1 && first.at.when == before ||
		first.at.op == opAppend && n != first.at.n && first.at.when == after {
		t.Errorf("killed %s with %d events in the log", first.at, first.last)
	}
	got := r.read(t)
	for i := range base.events[:min(int(first.last), len(base.events))] {
		if was, is := base.events[i].Type(), got.events[i].Type(); was != is {
			t.Errorf("event %d is %s, in the uninterrupted session %s", i+1, is, was)
		}
	}
	calls := r.compare(t, base, got)
	if t.Failed() {
		r.dump(t.Context(), t)
	}
	switch {
	case calls != "":
		return "with " + calls
	case slices.ContainsFunc(r.kills, func(k kill) bool { return k.open > 0 }):
		return "the same, after a request was made again"
	}
	return "the same"
}

// singles returns a case for each boundary.
func singles(trail []passed) (cases [][]boundary) {
	for _, p := range trail {
		cases = append(cases, []boundary{p.boundary})
	}
	return cases
}

// doubles returns cases of a crash behind the first operation of each sort, with a second one behind the first and
// second event of the recovery: its claim, and mostly its repair.
func doubles(trail []passed) (cases [][]boundary) {
	const deepest = 2
	left := 1 // events that a recovery appends: the rest of the session, and its claim
	for _, p := range trail {
		if p.op == opAppend && p.when == after {
			left++
		}
	}
	sorts := make(map[string]struct{})
	for _, p := range trail {
		if p.when != after {
			continue
		}
		if p.op == opAppend {
			left--
		}
		sort := string(p.op) + " " + p.what
		if _, again := sorts[sort]; again || p.what == string(events.TypeSessionClosed) { // a closed session is not claimed
			continue
		}
		sorts[sort] = struct{}{}
		for n := 1; n <= min(deepest, left); n++ {
			cases = append(cases, []boundary{p.boundary, {after, opAppend, n}})
		}
	}
	return cases
}

// every returns every nth case.
func every(cases [][]boundary, n int) (out [][]boundary) {
	for i := 0; i < len(cases); i += n {
		out = append(out, cases[i])
	}
	return out
}

func title(stops []boundary) string {
	parts := make([]string, len(stops))
	for i, b := range stops {
		parts[i] = b.String()
	}
	return strings.ReplaceAll(strings.Join(parts, " then "), " ", "-")
}
