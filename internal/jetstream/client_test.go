package jetstream_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// TestConnectErrors shows that whoever starts a program against the wrong thing is told so in one line, soon.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	secured := serve(t, users(map[string]*server.Permissions{"u": nil}))
	plain, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	plain.Start()
	t.Cleanup(func() { plain.Shutdown(); plain.WaitForShutdown() })
	if !plain.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server without JetStream is not ready")
	}
	for _, tt := range []struct {
		name, url string
		want      error
		says      string
	}{
		{"no server", "nats://" + closed.Addr().String(), eventlog.ErrUnavailable, "no NATS server listens there"},
		{"web server", "nats://" + web.Listener.Addr().String(), eventlog.ErrUnavailable, "does not speak NATS"},
		{"silent server", "nats://" + silent.Addr().String(), eventlog.ErrUnavailable, "does not speak NATS"},
		{"wrong password", strings.Replace(secured.ClientURL(), "://", "://u:secretword@", 1), eventlog.ErrPermission, "refuses the credentials"},
		{"no password", secured.ClientURL(), eventlog.ErrPermission, "refuses the credentials"},
		{"no JetStream", plain.ClientURL(), eventlog.ErrUnavailable, "has no JetStream"},
		{"no host", "nats://does-not-exist.invalid:4222", eventlog.ErrUnavailable, ""},
		{"no URL", "::", eventlog.ErrUnavailable, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			c, err := jetstream.Connect(t.Context(), jetstream.Config{URL: tt.url, ConnectTimeout: time.Second})
			if err == nil {
				c.Close()
				t.Fatal("connected")
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if !errors.Is(err, tt.want) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q, want one line that wraps %q and says %q", err, tt.want, tt.says)
			}
			if strings.Contains(err.Error(), "secretword") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	large := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 5<<30)); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []jetstream.Config{
		{Replicas: 7},
		{Replicas: -1},
		{MaxAckPending: -1},
		{AckWait: -1},
		{Creds: "no/such/file.creds"},
		{Creds: large},
		{Creds: "/dev/zero"},
	} {
		if c, err := jetstream.Connect(t.Context(), cfg); err == nil {
			c.Close()
			t.Errorf("connected with %+v", cfg)
		}
	}
}

// TestPermissions shows that a refusal, which the server reports apart from the request, ends the request at once.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := serve(t, users(map[string]*server.Permissions{
		"all":    nil,
		"client": {Publish: &server.SubjectPermission{Allow: []string{"inbox.>"}}},
		"mute": {
			Publish:   &server.SubjectPermission{Allow: []string{">"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"nothing"}},
		},
	}))
	as := func(name string) *jetstream.Client {
		return connect(t, jetstream.Config{URL: strings.Replace(s.ClientURL(), "://", "://"+name+":pass@", 1)})
	}
	all := as("all")
	if err := all.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	id, log := create(t, all)
	if _, err := writer(t, log, id).Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	refused := func(op string, err error) {
		t.Helper()
		if !errors.Is(err, eventlog.ErrPermission) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that wraps ErrPermission", op, err)
		}
	}
	client := as("client")
	if _, _, err := client.Inbox().Publish(t.Context(), id, prompt("hello")); err != nil {
		t.Errorf("a client publishes an input: %v", err)
	}
	_, err := client.Logs().Open(t.Context(), id)
	refused("open", err)
	_, err = client.Logs().Create(t.Context(), newID())
	refused("create", err)
	refused("ensure streams", client.EnsureStreams(t.Context()))
	_, err = client.Inbox().Subscribe(t.Context(), 1)
	refused("receive inputs", err)
	_, err = client.Verdicts().Append(t.Context(), id, "x", []byte("x"), 0)
	refused("append a verdict", err)
	_, err = client.Presence().Ask(t.Context(), id, nil)
	refused("ask", err)
	for _, err := range client.Logs().Sessions(t.Context()) {
		refused("list", err)
	}
	// A client that may read and not append: its writer is told for certain.
	reader := eventlog.NewWriter(client.UnopenedLog(id), id, 1, events.Hash{}, time.Now, newID)
	if _, err := reader.Append(t.Context(), &events.TurnStart{Turn: 1}); !errors.Is(err, eventlog.ErrPermission) || errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("append: %v, want ErrPermission alone", err)
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("the refusals took %v: they were waited for", took)
	}
	mute, err := jetstream.Connect(t.Context(), jetstream.Config{URL: strings.Replace(s.ClientURL(), "://", "://mute:pass@", 1)})
	if err == nil {
		mute.Close()
	}
	refused("connect without a place for answers", err)
}

// TestTooLarge sends more than the server and the stream take.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	c := local(t)
	id, log := create(t, c)
	w := writer(t, log, id)
	_, err := w.Append(t.Context(), &events.SessionCreated{Preset: strings.Repeat("x", 2<<20)})
	if !errors.Is(err, eventlog.ErrTooLarge) || strings.Contains(err.Error(), "\n") {
		t.Errorf("beyond max_payload: %v, want ErrTooLarge", err)
	}
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Errorf("append after a message that was too large: %v", err)
	}
}

// TestFull fills the storage.
func TestFull(t *testing.T) {
	t.Parallel()
	c := connect(t, jetstream.Config{InProcess: serve(t, func(o *embedded.Options) { o.MaxStore = 1 << 20 })})
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	var err error
	n := uint64(1)
	for range 100 {
		if _, err = w.Append(t.Context(), &events.SessionTitle{Title: strings.Repeat("x", 100<<10)}, eventlog.WithIgnorable()); err != nil {
			break
		}
		n++
	}
	if !errors.Is(err, eventlog.ErrFull) || errors.Is(err, eventlog.ErrUnavailable) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("a full store: %v, want ErrFull", err)
	}
	if w.Err() != nil {
		t.Errorf("the writer stopped: %v", w.Err())
	}
	if last, err := log.Last(t.Context()); err != nil || last != n {
		t.Errorf("the log has %d events, %v, acknowledged were %d", last, err, n)
	}
}

// TestDeletedStream shows what an operator's deletion looks like.
func TestDeletedStream(t *testing.T) {
	t.Parallel()
	c := local(t)
	id, log := create(t, c)
	w := writer(t, log, id)
	if err := c.JetStream().DeleteStream(t.Context(), jetstream.SessionStream(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("append: %v, want ErrNotFound", err)
	}
	for _, err := range log.Read(t.Context(), 1) {
		if !errors.Is(err, eventlog.ErrNotFound) {
			t.Errorf("read: %v, want ErrNotFound", err)
		}
	}
}

// TestEvicted shows that a log which lost its beginning is not read as if it were whole.
func TestEvicted(t *testing.T) {
	t.Parallel()
	c := local(t)
	id, log := create(t, c)
	w := writer(t, log, id)
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); err != nil {
		t.Fatal(err)
	}
	for range 9 {
		if _, err := w.Append(t.Context(), &events.TurnStart{Turn: 1}); err != nil {
			t.Fatal(err)
		}
	}
	cfg := c.SessionConfig(id)
	cfg.MaxMsgs = 4
	cfg.Discard = natsjs.DiscardOld
	if _, err := c.JetStream().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for m, err := range log.Read(t.Context(), 1) {
		var gap *eventlog.GapError
		if !errors.As(err, &gap) || gap.Want != 1 || gap.Got != 7 {
			t.Errorf("read: message %d, %v, want a GapError", m.Seq, err)
		}
	}
	for info, err := range c.Logs().Sessions(t.Context()) {
		if err != nil || info.Last != 10 || info.Messages != 4 {
			t.Errorf("listed as %+v, %v", info, err)
		}
	}
}

// TestSessionStream shows that the stream is as documented.
func TestSessionStream(t *testing.T) {
	t.Parallel()
	c := local(t)
	id, _ := create(t, c)
	stream, err := c.JetStream().Stream(t.Context(), jetstream.SessionStream(id))
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if !cfg.DenyDelete || !cfg.DenyPurge || !cfg.AllowDirect || cfg.Compression != natsjs.S2Compression || cfg.Storage != natsjs.FileStorage ||
		cfg.MaxMsgs != -1 || cfg.MaxBytes != -1 || cfg.MaxAge != 0 || cfg.Discard != natsjs.DiscardNew ||
		!slices.Equal(cfg.Subjects, []string{"session." + string(id) + ".>"}) {
		t.Errorf("configuration: %+v", cfg)
	}
	want := natsjs.RePublish{
		Source: "session." + string(id) + ".>", HeadersOnly: true,
		Destination: fmt.Sprintf("hint.%d.%s.>", jetstream.Partition(id), id),
	}
	if cfg.RePublish == nil || *cfg.RePublish != want {
		t.Errorf("republish: %+v, want %+v", cfg.RePublish, want)
	}
	if err := stream.Purge(t.Context()); err == nil {
		t.Error("the stream was purged")
	}
}

func TestEnsureStreams(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	var wg sync.WaitGroup
	for range 4 {
		c := connect(t, jetstream.Config{InProcess: s})
		wg.Go(func() {
			if err := c.EnsureStreams(t.Context()); err != nil {
				t.Errorf("ensure streams: %v", err)
			}
		})
	}
	wg.Wait()
	c := connect(t, jetstream.Config{InProcess: s})
	if d, err := c.Differences(t.Context()); err != nil || len(d) > 0 {
		t.Fatalf("differences: %v, %v, want none", d, err)
	}
	cfg := c.InboxConfig()
	cfg.MaxAge = time.Hour
	if _, err := c.JetStream().UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatalf("streams of another configuration: %v", err)
	}
	want := []jetstream.Difference{{Stream: "INBOX", Field: "max_age", Have: "1h0m0s", Want: "0s"}}
	if d, err := c.Differences(t.Context()); err != nil || !slices.Equal(d, want) {
		t.Fatalf("differences: %v, %v, want %v", d, err, want)
	}
	r3 := connect(t, jetstream.Config{InProcess: s, Replicas: 3})
	if _, err := r3.Logs().Create(within(t, 2*time.Second), newID()); !errors.Is(err, eventlog.ErrUnavailable) || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("three replicas on one server: %v", err)
	}
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	c, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: serve(t, nil)})
	if err != nil {
		t.Fatal(err)
	}
	id, log := create(t, c)
	w := writer(t, log, id)
	sub, err := c.Live().Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	start := time.Now()
	if _, err := w.Append(t.Context(), &events.SessionCreated{}); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("append: %v", err)
	}
	if _, err := log.Last(context.Background()); !errors.Is(err, eventlog.ErrUnavailable) {
		t.Errorf("last: %v", err)
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, jetstream.ErrClosed) {
		t.Errorf("next: %v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestInboxPrefix receives answers where the credentials permit it, and refuses what is no prefix in one line.
func TestInboxPrefix(t *testing.T) {
	t.Parallel()
	s := serve(t, users(map[string]*server.Permissions{"u": {
		Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_u.a.>"}},
	}}))
	cfg := jetstream.Config{URL: strings.Replace(s.ClientURL(), "://", "://u:pass@", 1)}
	for prefix, ok := range map[string]bool{
		"_INBOX_u.a": true, "_INBOX_u.a.b": true, "": false, "_INBOX_u": false, "_INBOX_other": false,
	} {
		cfg.InboxPrefix = prefix
		client, err := jetstream.Connect(t.Context(), cfg)
		if err == nil {
			client.Close()
		}
		if ok != (err == nil) || err != nil && (!errors.Is(err, eventlog.ErrPermission) || !strings.Contains(err.Error(), "no answer can be received")) {
			t.Errorf("%q: %v", prefix, err)
		}
	}
	for _, prefix := range []string{".", "a.", ".a", "a..b", "*", "a.*", "a.>", ">", "a b", " ", "a\tb", "a\n", "a\r\nPUB x 0", "a\x00"} {
		cfg.InboxPrefix = prefix
		_, err := jetstream.Connect(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), "inbox prefix") || strings.ContainsAny(err.Error(), "\n\t") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}
