package witness_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func connect(t *testing.T, cfg jetstream.Config) *jetstream.Client {
	t.Helper()
	c, err := jetstream.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestStream keeps the receipts where they belong, with credentials that permit nothing else, and refuses calls while
// the stream's server is away.
func TestStream(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1, Configure: func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "pass"},
			{Username: "witness", Password: "pass", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{"witness.>"}},
			}},
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	as := func(user string) jetstream.Config {
		return jetstream.Config{URL: strings.Replace(s.ClientURL(), "://", "://"+user+":pass@", 1)}
	}
	all := connect(t, as("all"))
	if err := all.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := connect(t, as("witness"))
	u := provide(t, nil)
	b := stand(t, u.URL, func(c *witness.Config) {
		c.Requests, c.Answers, c.StoreTimeout, c.AnswerTimeout = own.Receipts(), own.AnswerReceipts(), time.Second, time.Second
	})
	bodies := []string{"", "one", strings.Repeat("two", 50_000)}
	for i, body := range bodies {
		h := http.Header{}
		if i > 0 {
			h = names("7")
		}
		if got := b.do("POST", "/x", h, strings.NewReader(body)); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	b.until("three answers are kept", func() bool {
		return b.metric("refold_witness_receipts_total", "kind", "answer", "stored", "yes") == 3
	})
	got := map[string]int{}
	for kind, records := range map[audit.ReceiptKind]*jetstream.Records{
		audit.ReceiptRequest: all.Receipts(), audit.ReceiptAnswer: all.AnswerReceipts(),
	} {
		for record, err := range records.Read(t.Context(), "", 1) {
			if err != nil {
				t.Fatal(err)
			}
			r, err := audit.DecodeReceipt(record.Payload)
			if err != nil || r.Verify() != nil || r.Kind != kind || r.Witness != b.key.Public() {
				t.Fatalf("%s: %v", record.Payload, err)
			}
			if want := max(r.Session, audit.NoSession); record.Session != want {
				t.Errorf("a receipt of %q under %s", r.Session, record.Session)
			}
			for i, body := range bodies {
				text := body
				if kind == audit.ReceiptAnswer {
					text = "echo: " + body
				}
				if r.Body == digestOf([]byte(text)) && (r.Session == session) == (i > 0) {
					got[text]++
				}
			}
		}
	}
	if len(got) != 6 {
		t.Errorf("receipts of %d of 6 bodies", len(got))
	}
	for _, records := range []*jetstream.Records{all.Receipts(), all.AnswerReceipts()} {
		counts, err := records.Counts(t.Context())
		if err != nil || counts[session] != 2 || counts[audit.NoSession] != 1 {
			t.Errorf("%v, %v", counts, err)
		}
	}
	if _, err := own.Verdicts().Add(t.Context(), session, "x", []byte("x")); err == nil {
		t.Error("a witness has published a verdict")
	}

	s.Shutdown()
	refused := b.do("POST", "/x", names("8"), bytes.NewReader(make([]byte, 100_000)))
	if _, kind := refusalOf(t, refused); refused.status != http.StatusServiceUnavailable || kind != "witness_refused" {
		t.Errorf("%d %s", refused.status, refused.body)
	}
	for _, s := range u.all(3) {
		if s.whole && len(s.body) == 100_000 {
			t.Error("it came without a receipt")
		}
	}
}

// TestNoSuchStream: without the stream nothing passes.
func TestNoSuchStream(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	c := connect(t, jetstream.Config{InProcess: s})
	u := provide(t, nil)
	b := stand(t, u.URL, func(cfg *witness.Config) {
		cfg.Requests, cfg.Answers, cfg.StoreTimeout = c.Receipts(), c.AnswerReceipts(), 500*time.Millisecond
	})
	if got := b.do("POST", "/x", names("8"), strings.NewReader("x")); got.status != http.StatusServiceUnavailable || len(u.all(0)) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestRecord: where a record is required, what passes is what the log of its session permits, and nothing else; and nothing while
// the log cannot be read.
func TestRecord(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	c := connect(t, jetstream.Config{InProcess: s})
	if err := c.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	bodies := func(prefix string) foldtest.BodyFunc {
		n := 0
		return func(*fold.Request, objects.Source) (string, events.BodyDigest) {
			n++
			return "test/1", digestOf(fmt.Appendf(nil, "%s %d", prefix, n))
		}
	}
	parent := foldtest.New()
	parent.Body = bodies("request")
	parent.Begin()
	parent.Turn("hello", "world")
	fork := parent.OpenFork(int(parent.Len()), events.Options{})
	fork.Body = bodies("fork")
	fork.Turn("again", "sure")
	write := func(l *foldtest.Log, events int) {
		log, err := c.Logs().Open(t.Context(), l.State.ID())
		if errors.Is(err, eventlog.ErrNotFound) {
			log, err = c.Logs().Create(t.Context(), l.State.ID())
		}
		if err != nil {
			t.Fatal(err)
		}
		last, err := log.Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := int(last); i < events; i++ {
			if err := log.Append(t.Context(), &l.Events[i], l.Payloads[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	streams := func(l *foldtest.Log) (seqs []uint64) {
		for i := range l.Events {
			if l.Events[i].Type() == events.TypeLLMStream {
				seqs = append(seqs, l.Events[i].Seq)
			}
		}
		return seqs
	}
	call, forked := streams(parent)[0], streams(fork)[1]
	write(parent, int(call)-1) // up to the event before
	write(fork, len(fork.Events))
	u := provide(t, nil)
	b := stand(t, u.URL, func(cfg *witness.Config) {
		cfg.Requests, cfg.Answers, cfg.Record = c.Receipts(), c.AnswerReceipts(), c.Logs()
	})
	passed := 0
	try := func(name string, session events.ID, seq uint64, method, path, body, want string) {
		t.Helper()
		header := http.Header{}
		if session != "" {
			header.Set(provider.HeaderSession, string(session))
		}
		if seq > 0 {
			header.Set(provider.HeaderSeq, strconv.FormatUint(seq, 10))
		}
		got := b.do(method, path, header, strings.NewReader(body))
		if want == "" {
			passed++
			if got.status != 200 {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		} else if message, kind := refusalOf(t, got); got.status != http.StatusConflict || kind != "witness_unrecorded" || !strings.Contains(message, want) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		if n := len(u.all(passed)); n != passed {
			t.Fatalf("%s: %d requests have passed, want %d", name, n, passed)
		}
		counts, err := c.Receipts().Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, n := range counts {
			kept += int(n)
		}
		if kept != passed {
			t.Errorf("%s: %d receipts, %d requests have passed", name, kept, passed)
		}
	}
	p, f := parent.State.ID(), fork.State.ID()
	const chat = "/v1/chat/completions"
	try("before its event is stored", p, call, "POST", chat, "request 1", "permits none")
	write(parent, len(parent.Events))
	try("then", p, call, "POST", chat, "request 1", "")
	try("another body", p, call, "POST", chat, "request 2", "not the one that the log recorded")
	try("another event", p, call+1, "POST", chat, "request 1", "permits none")
	try("behind the end", p, 1000, "POST", chat, "request 1", "permits none")
	try("no event", p, 0, "POST", chat, "request 1", "no event of it")
	try("no session", "", 0, "POST", chat, "request 1", "names no session")
	try("no such session", newID(), call, "POST", chat, "request 1", "without a log")
	try("an event that the fork has copied", f, call+1, "POST", chat, "request 1", "permits none")
	try("the fork's own", f, forked, "POST", chat, "fork 1", "")
	try("an upload", p, 0, "POST", "/v1/files", "a file", "")
	try("an upload of no session", "", 0, "POST", "/v1/files", "a file", "names no session")
	try("an upload of no such session", newID(), 0, "POST", "/v1/files", "a file", "without a log")
	try("no body", "", 0, "GET", "/v1/models", "", "")
	b.outcome("unrecorded", 10)

	s.Shutdown()
	b.do("POST", chat, names("8"), strings.NewReader("x"))
	b.outcome("refused", 1)
	if n := len(u.all(0)); n != passed {
		t.Errorf("%d requests have passed, want %d", n, passed)
	}
}
