package witness_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
)

// records is a server with the streams, whose witness can be denied them.
type records struct {
	t      *testing.T
	opts   embedded.Options
	server *embedded.Server
	given  *server.Options // that the server was started with
}

func keepRecords(t *testing.T) *records {
	t.Helper()
	r := &records{t: t}
	r.opts = embedded.Options{StoreDir: t.TempDir(), Port: -1, Configure: func(o *server.Options) {
		o.Users = usersOf("witness.>")
		r.given = o.Clone()
	}}
	r.start()
	r.opts.Port = r.server.Port()
	t.Cleanup(func() { r.server.Shutdown() })
	if err := connect(t, r.as("all")).EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func usersOf(publish string) []*server.User {
	return []*server.User{
		{Username: "all", Password: "pass"},
		{Username: "witness", Password: "pass", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{publish}},
		}},
	}
}

func (r *records) start() {
	r.t.Helper()
	s, err := embedded.Start(r.opts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = s
}

func (r *records) as(user string) jetstream.Config {
	return jetstream.Config{URL: strings.Replace(r.server.ClientURL(), "://", "://"+user+":pass@", 1)}
}

// permit lets the witness publish on a subject, and nowhere else.
func (r *records) permit(publish string) {
	r.t.Helper()
	next := r.given.Clone()
	next.Users, next.Port = usersOf(publish), r.server.Port()
	if err := r.server.NATS().ReloadOptions(next); err != nil {
		r.t.Fatal(err)
	}
}

// limit sets how many bytes the receipts may take, -1 for any number.
func (r *records) limit(bytes int64) {
	r.t.Helper()
	conn, err := nats.Connect(r.server.ClientURL(), nats.UserInfo("all", "pass"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		r.t.Fatal(err)
	}
	stream, err := js.Stream(r.t.Context(), jetstream.WitnessStream)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = bytes
	if _, err := js.UpdateStream(r.t.Context(), cfg); err != nil {
		r.t.Fatal(err)
	}
}

// receipts returns how many there are of bodies of requests.
func (r *records) receipts() map[string]int {
	r.t.Helper()
	got := map[string]int{}
	for record, err := range connect(r.t, r.as("all")).Receipts().Read(r.t.Context(), "", 1) {
		if err != nil {
			r.t.Fatal(err)
		}
		receipt, err := audit.DecodeReceipt(record.Payload)
		if err != nil {
			r.t.Fatal(err)
		}
		got[receipt.Body.SHA256.String()]++
	}
	return got
}

// TestNowhereToKeep: while receipts cannot be stored no request passes, each gets an error that says why, and when they can be
// stored again requests pass without anybody's help.
func TestNowhereToKeep(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takeAway, giveBack func(*records)
		says               string
	}{
		"NATS is gone":  {func(r *records) { r.server.Shutdown() }, (*records).start, "server"},
		"full":          {func(r *records) { r.limit(1) }, func(r *records) { r.limit(-1) }, "full"},
		"no permission": {func(r *records) { r.permit("nothing") }, func(r *records) { r.permit("witness.>") }, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kept := keepRecords(t)
			own := connect(t, kept.as("witness"))
			u := provide(t, nil)
			b := stand(t, u.URL, func(c *witness.Config) {
				c.Requests, c.Answers = own.Receipts(), own.AnswerReceipts()
				c.StoreTimeout, c.AnswerTimeout, c.Hold = 2*time.Second, 2*time.Second, 1000
			})
			if got := b.do("POST", "/x", names("7"), strings.NewReader("before")); got.status != http.StatusOK {
				t.Fatalf("%+v", got)
			}
			tt.takeAway(kept)
			var calls sync.WaitGroup
			for _, size := range []int{1, 1000, 100_000} {
				calls.Go(func() {
					got := b.do("POST", "/x", names("8"), strings.NewReader(strings.Repeat("x", size)))
					message, kind := refusalOf(t, got)
					if got.status != http.StatusServiceUnavailable || kind != "witness_refused" || !strings.Contains(message, tt.says) {
						t.Errorf("%d %s", got.status, got.body)
					}
				})
			}
			calls.Wait()
			tt.giveBack(kept)
			b.until("requests pass again", func() bool {
				return b.do("POST", "/x", names("9"), strings.NewReader("behind")).status == http.StatusOK
			})
			stored := kept.receipts()
			for _, s := range u.all(2) {
				if s.whole && stored[digestOf(s.body).SHA256.String()] == 0 {
					t.Errorf("%d bytes passed without a receipt", len(s.body))
				}
				if s.whole && len(s.body) != len("before") {
					t.Errorf("%d bytes passed that were refused", len(s.body))
				}
			}
		})
	}
}
