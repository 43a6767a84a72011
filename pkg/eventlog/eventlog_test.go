package eventlog_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	t.Parallel()
	store := eventlog.NewMemory(time.Now)
	eventlogtest.Run(t, func(testing.TB) eventlog.Store { return store })
}

// TestMessageEvent moves, relabels and renames a message.
func TestMessageEvent(t *testing.T) {
	t.Parallel()
	e := events.Event{Seq: 1, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Body: &events.SessionCreated{}}
	payload, err := events.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	good := eventlog.Message{Seq: 1, ID: e.ID, Type: e.Type(), Payload: payload}
	for _, tt := range []struct {
		name   string
		change func(*eventlog.Message)
		want   error
	}{
		{"untouched", func(*eventlog.Message) {}, nil},
		{"moved", func(m *eventlog.Message) { m.Seq = 2 }, eventlog.ErrCorrupt},
		{"another ID", func(m *eventlog.Message) { m.ID = "01ARZ3NDEKTSV4RRFFQ69G5FAW" }, eventlog.ErrCorrupt},
		{"no ID", func(m *eventlog.Message) { m.ID = "" }, eventlog.ErrCorrupt},
		{"another type", func(m *eventlog.Message) { m.Type = events.TypeTurnStart }, eventlog.ErrCorrupt},
		{"not an event", func(m *eventlog.Message) { m.Payload = []byte("{}") }, events.ErrSyntax},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := good
			tt.change(&m)
			if _, err := m.Event(); !isOrNil(err, tt.want) {
				t.Errorf("error = %v, want %v", err, tt.want)
			}
		})
	}
}

func isOrNil(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}
