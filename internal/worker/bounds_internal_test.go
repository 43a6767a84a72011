package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// TestAnswerTooLong ends a call whose answer no event can hold, and the session goes on.
func TestAnswerTooLong(t *testing.T) {
	const most = 192 * kib
	r := newRig(t, simulator.Script{Rules: []simulator.Rule{
		{When: simulator.Condition{Contains: "flood", Times: 1}, Answer: simulator.Answer{Text: lossless.Text(strings.Repeat("x", 2*most)), DeltaSizes: []int{8 * kib}}},
		{Answer: simulator.Answer{Text: "Fine."}},
	}})
	r.cfg.MaxEventBytes = most
	id := newID()
	log, err := eventlog.NewMemory(time.Now).Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.open(log, id, newQueue(prompt(1, "flood"), prompt(2, "go on"))).rest(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ends []events.TurnEnd
	list, _ := history(t, log, id)
	for _, e := range list {
		if b, ok := e.Body.(*events.TurnEnd); ok {
			ends = append(ends, *b)
		}
	}
	if len(ends) != 2 || ends[0].Failure.Code != events.FailureMalformed || ends[1].Kind != events.TurnCompleted {
		t.Errorf("turns ended as %+v", ends)
	}
}

// TestSilentOwner gives an owner up only when it has answered nothing for the whole patience.
func TestSilentOwner(t *testing.T) {
	now := time.Unix(1000, 0)
	w := &Worker{
		cfg: Config{Now: func() time.Time { return now }}, patience: 30 * time.Second, since: make(map[events.ID]time.Time),
	}
	owner := newID()
	for i, step := range []struct {
		wait  time.Duration
		heard bool
		gone  bool
	}{{0, false, false}, {29 * time.Second, false, false}, {time.Second, false, true}, {0, true, false}, {29 * time.Second, false, false}} {
		now = now.Add(step.wait)
		if step.heard {
			w.heard(owner)
		}
		if got := w.silent(owner); got != step.gone {
			t.Errorf("step %d: given up: %t, want %t", i, got, step.gone)
		}
	}
}
