package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

// mirrored makes a stream of a session's events under another name, and a mirror of it under the session's.
func mirrored(t *testing.T, c *jetstream.Client, id events.ID) {
	t.Helper()
	origin := c.SessionConfig(id)
	origin.Name = "ORIGIN_" + string(id)
	if _, err := c.JetStream().CreateStream(within(t, 20*time.Second), origin); err != nil {
		t.Fatal(err)
	}
	if _, err := c.JetStream().CreateStream(within(t, 20*time.Second), natsjs.StreamConfig{
		Name: jetstream.SessionStream(id), Mirror: &natsjs.StreamSource{Name: origin.Name}, Replicas: origin.Replicas,
		Storage: origin.Storage, AllowDirect: true, DenyDelete: true, DenyPurge: true,
	}); err != nil {
		t.Fatal(err)
	}
}

// put publishes n messages of the session, as event types and payloads that count.
func put(t *testing.T, c *jetstream.Client, id events.ID, n int) {
	t.Helper()
	for i := range n {
		msg := &nats.Msg{
			Subject: jetstream.SessionSubject(id, events.TypeLLMStream), Header: nats.Header{"Nats-Msg-Id": {string(newID())}},
			Data: fmt.Appendf(nil, "%d", i+1),
		}
		if seq, err := c.PublishRaw(within(t, 20*time.Second), msg); err != nil || seq != uint64(i+1) {
			t.Fatalf("message %d: stored at %d, %v", i+1, seq, err)
		}
	}
}

// current waits until the log of a session is known to have everything.
func current(t *testing.T, log eventlog.Log) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for {
		err := log.(interface {
			Current(ctx context.Context) error
		}).Current(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestMirroredLog lists and reads a log from a mirror, in each of the ways in which logs are read.
func TestMirroredLog(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ replicas, messages int }{{1, 10}, {1, 3000}, {3, 10}} {
		t.Run(fmt.Sprintf("R%d, %d messages", tt.replicas, tt.messages), func(t *testing.T) {
			t.Parallel()
			cfg := jetstream.Config{Replicas: tt.replicas}
			if tt.replicas == 1 {
				cfg.InProcess = serve(t, nil)
			} else {
				cfg.URL = cluster(t).URLs()
			}
			c := connect(t, cfg)
			id, plain := newID(), newID()
			mirrored(t, c, id)
			if _, err := c.Logs().Create(t.Context(), plain); err != nil {
				t.Fatal(err)
			}
			put(t, c, id, tt.messages)
			log, err := c.Logs().Open(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			current(t, log)
			next := uint64(1)
			for m, err := range log.Read(t.Context(), 1) {
				if err != nil {
					t.Fatal(err)
				}
				if m.Seq != next || string(m.Payload) != fmt.Sprint(next) || !m.ID.Valid() || m.Type != events.TypeLLMStream {
					t.Fatalf("message %d: %d %q %q %s", next, m.Seq, m.Payload, m.ID, m.Type)
				}
				next++
			}
			if next != uint64(tt.messages)+1 {
				t.Errorf("%d messages were read, want %d", next-1, tt.messages)
			}
			last, ok, err := log.(interface {
				LastOf(ctx context.Context, typ events.Type) (eventlog.Message, bool, error)
			}).LastOf(t.Context(), events.TypeLLMStream)
			if err != nil || !ok || last.Seq != uint64(tt.messages) {
				t.Errorf("last: %d, %v, %v", last.Seq, ok, err)
			}
			for _, err := range log.Read(t.Context(), uint64(tt.messages)+2) {
				if !errors.Is(err, eventlog.ErrGap) {
					t.Errorf("behind the end: %v", err)
				}
			}
			var listed []events.ID
			for info, err := range c.Logs().Sessions(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, info.ID)
				if info.ID == id && (info.Last != uint64(tt.messages) || info.Messages != info.Last) {
					t.Errorf("listed: %+v", info)
				}
			}
			want := []events.ID{id, plain}
			slices.Sort(want)
			if !slices.Equal(listed, want) {
				t.Errorf("listed: %v, want %v", listed, want)
			}
		})
	}
}

// TestSessionsAmongOthers lists sessions in an account with many other streams, before and behind theirs by name, and does not
// ask for all of those.
func TestSessionsAmongOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ before, sessions, behind, pages int }{
		{0, 0, 0, 1}, {3, 5, 3, 1}, {255, 2, 0, 2}, {256, 2, 0, 2}, {257, 300, 1, 4}, {0, 300, 200, 2}, {600, 3, 0, 4},
	} {
		t.Run(fmt.Sprintf("%d %d %d", tt.before, tt.sessions, tt.behind), func(t *testing.T) {
			t.Parallel()
			c := connect(t, jetstream.Config{InProcess: serve(t, nil), MemoryStorage: true})
			other := func(name string) {
				if _, err := c.JetStream().CreateStream(t.Context(), natsjs.StreamConfig{Name: name, Subjects: []string{"other." + name}, Storage: natsjs.MemoryStorage}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range tt.before {
				other(fmt.Sprintf("A%04d", i))
			}
			for i := range tt.behind {
				other(fmt.Sprintf("T%04d", i))
			}
			other("SESSION_")
			other("SESSION_OTHER")
			ids := eventlogtest.IDs()
			var want []events.ID
			for range tt.sessions {
				id := ids()
				if _, err := c.Logs().Create(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				want = append(want, id)
			}
			pages := 0
			c.Interpose(func(next func(context.Context, *nats.Msg) (*nats.Msg, error)) func(context.Context, *nats.Msg) (*nats.Msg, error) {
				return func(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
					if strings.HasSuffix(msg.Subject, "STREAM.LIST") {
						pages++
					}
					return next(ctx, msg)
				}
			})
			var listed []events.ID
			for info, err := range c.Logs().Sessions(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				listed = append(listed, info.ID)
			}
			if !slices.Equal(listed, want) {
				t.Errorf("%d sessions are listed, want %d", len(listed), len(want))
			}
			if pages > tt.pages {
				t.Errorf("%d pages were asked for, want at most %d", pages, tt.pages)
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstream.Config{InProcess: serve(t, nil)})
	for _, tt := range []struct {
		api, deliver string
		ok           bool
	}{
		{"fleet.api", "fleet.deliver", true},
		{"fleet", "deliver", true},
		{"", "fleet.deliver", false},
		{"fleet.api", "", false},
		{"fleet.api.", "fleet.deliver", false},
		{"fleet.*", "fleet.deliver", false},
		{"fleet.api", "fleet.>", false},
		{"fleet api", "fleet.deliver", false},
		{"$JS.API", "fleet.deliver", false},
	} {
		_, err := c.Mirrors(jetstream.Origin{API: tt.api, Deliver: tt.deliver})
		if (err == nil) != tt.ok || err != nil && (!errors.Is(err, events.ErrInvalid) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q, %q: %v", tt.api, tt.deliver, err)
		}
	}
	m, err := c.Mirrors(jetstream.Origin{API: "nobody.api", Deliver: "nobody.deliver"})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range m.There(t.Context()) {
		if !errors.Is(err, eventlog.ErrUnavailable) || !strings.Contains(err.Error(), "check export, import and prefix") {
			t.Errorf("an origin that nobody exports: %v", err)
		}
	}
}

// TestCurrentOfReplaced believes nothing of a mirror whose origin is another stream by now.
func TestCurrentOfReplaced(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstream.Config{InProcess: serve(t, nil)})
	id := newID()
	mirrored(t, c, id)
	put(t, c, id, 3)
	log, err := c.Logs().Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	current(t, log)
	if err := c.JetStream().DeleteStream(t.Context(), "ORIGIN_"+string(id)); err != nil {
		t.Fatal(err)
	}
	unknown := func(what string) {
		t.Helper()
		err := log.(interface {
			Current(ctx context.Context) error
		}).Current(t.Context())
		if !errors.Is(err, eventlog.ErrUnavailable) || errors.Is(err, eventlog.ErrNotFound) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	unknown("an origin that is gone")
	origin := c.SessionConfig(id)
	origin.Name = "ORIGIN_" + string(id)
	if _, err := c.JetStream().CreateStream(t.Context(), origin); err != nil {
		t.Fatal(err)
	}
	unknown("an origin that was made anew")
}
