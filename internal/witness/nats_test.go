package witness_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
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
