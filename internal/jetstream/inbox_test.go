package jetstream_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// TestNextAsksAgain finds the input although the first questions got no answer.
func TestNextAsksAgain(t *testing.T) {
	t.Parallel()
	c := local(t)
	var lost atomic.Int32
	c.Interpose(func(next exchange) exchange {
		return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
			if strings.HasSuffix(msg.Subject, ".STREAM.MSG.GET."+jetstream.InboxStream) && lost.Add(1) <= 2 {
				return nil, jetstream.ErrNoAnswer
			}
			return next(ctx, msg)
		}
	})
	session := newID()
	seq, _, err := c.Inbox().Publish(t.Context(), session, prompt("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if q, ok, err := c.Inbox().Next(t.Context(), session, 0); err != nil || !ok || q.Seq != seq {
		t.Errorf("next: %+v, %t, %v", q, ok, err)
	}
	if n := lost.Load(); n != 3 {
		t.Errorf("%d questions", n)
	}
}

// TestLastOf finds the last event of a type, or none.
func TestLastOf(t *testing.T) {
	t.Parallel()
	c := local(t)
	id := newID()
	log, err := c.Logs().Create(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	finder := log.(interface {
		LastOf(ctx context.Context, t events.Type) (eventlog.Message, bool, error)
	})
	w := writer(t, log, id)
	for i := range 3 {
		m, ok, err := finder.LastOf(t.Context(), events.TypeLoopClaimed)
		if err != nil || ok != (i > 0) || ok && m.Seq != uint64(2*i-1) {
			t.Errorf("after %d claims: event %d, %t, %v", i, m.Seq, ok, err)
		}
		if ok {
			if e, err := m.Event(); err != nil || e.Type() != events.TypeLoopClaimed {
				t.Errorf("after %d claims: %v, %v", i, e.Body, err)
			}
		}
		for _, body := range []events.Body{&events.LoopClaimed{Worker: "w", Instance: newID(), Reason: events.ClaimResumed}, &events.TurnStart{Turn: 1}} {
			if _, err := w.Append(t.Context(), body); err != nil {
				t.Fatal(err)
			}
		}
	}
}
