package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// narrowLogs are logs that take less than the server says.
type narrowLogs struct {
	eventlog.Store
	most int
}

func (n *narrowLogs) narrow(log eventlog.Log, err error) (eventlog.Log, error) {
	if err != nil {
		return nil, err
	}
	return &narrowLog{log, n.most}, nil
}

func (n *narrowLogs) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	return n.narrow(n.Store.Open(ctx, id))
}

func (n *narrowLogs) Create(ctx context.Context, id events.ID) (eventlog.Log, error) {
	return n.narrow(n.Store.Create(ctx, id))
}

type narrowLog struct {
	eventlog.Log
	most int
}

func (n *narrowLog) Append(ctx context.Context, e *events.Event, payload []byte) error {
	if len(payload) > n.most {
		return fmt.Errorf("%w: at most %d", eventlog.ErrTooLarge, n.most)
	}
	return n.Log.Append(ctx, e, payload)
}

// TestLogTakesLess goes on with smaller events when the log refuses one that was thought to fit.
func TestLogTakesLess(t *testing.T) {
	flood := func(nth int) simulator.Rule {
		return simulator.Rule{
			When:   simulator.Condition{Contains: "flood", Nth: nth},
			Answer: simulator.Answer{Text: lossless.Text(strings.Repeat("x", 200<<10)), DeltaSizes: []int{8 << 10}},
		}
	}
	f := newFleet(t, simulator.Script{Rules: []simulator.Rule{flood(1), flood(2), {Answer: simulator.Answer{Text: "Fine."}}}})
	f.start("w", func(_ *worker.Config, s *worker.Service) { s.Logs = &narrowLogs{s.Client.Logs(), 48 << 10} })
	id := newID()
	f.prompt(id, true, "flood")
	f.prompt(id, false, "again")
	_, list := f.until(id, "the second turn's end", resting(2))
	var got []string
	for i := range list {
		switch b := list[i].Body.(type) {
		case *events.LoopClaimed:
			got = append(got, string(b.Reason))
		case *events.TurnEnd:
			got = append(got, string(b.Kind)+string(b.Failure.Code))
		}
	}
	if diff := cmp.Diff([]string{"created", "errorMALFORMED_RESPONSE", "completed"}, got); diff != "" {
		t.Error(diff)
	}
}

// brokenLogs cannot be opened at first, for a reason of their own.
type brokenLogs struct {
	eventlog.Store
	once sync.Once
}

func (b *brokenLogs) Open(ctx context.Context, id events.ID) (eventlog.Log, error) {
	err := error(nil)
	b.once.Do(func() { err = fmt.Errorf("a proxy gave up: %w", context.Canceled) })
	if err != nil {
		return nil, err
	}
	return b.Store.Open(ctx, id)
}

// TestOthersCanceledRequest says of a session that it was put aside, unless the worker itself stops.
func TestOthersCanceledRequest(t *testing.T) {
	f := newFleet(t, simulator.Script{})
	aside := make(chan struct{}, 1)
	f.start("w", func(cfg *worker.Config, s *worker.Service) {
		s.Logs = &brokenLogs{Store: s.Client.Logs()}
		cfg.Log = slog.New(slog.NewTextHandler(writer(func(line string) {
			if strings.Contains(line, "session put aside") && strings.Contains(line, "a proxy gave up") {
				aside <- struct{}{}
			}
		}), nil))
	})
	f.prompt(newID(), true, "one")
	select {
	case <-aside:
	case <-time.After(20 * time.Second):
		t.Error("nothing is said of the session")
	}
}

// writer calls a function for each line.
type writer func(string)

func (w writer) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}
