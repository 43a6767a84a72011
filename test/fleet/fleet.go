// Package fleet runs the programs against a server with the accounts and permissions of the example configuration, for the
// tests below test/. Each program has the credentials of its own user there.
package fleet

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	// ConfigFile is the example configuration, from a test's directory.
	ConfigFile = "../../deployments/nats/accounts.conf"
	// password is every user's.
	password = "secret"
)

// The users of the example configuration, in its order: the fleet's, and the auditor's.
func fleetUsers() []string {
	return []string{"operator", "inputs-operator", "records-operator", "client", "reader", "worker", "witness", "verifier", "projector"}
}

func auditUsers() []string {
	return []string{"auditor", "audit-mirror", "audit-verifier", "audit-reader"}
}

// Fleet is a running server.
type Fleet struct {
	t        testing.TB
	Server   *embedded.Server
	Provider string // the URL of a model provider
}

// Options parses the example configuration, after edit has changed its text. Edit may be nil.
func Options(t testing.TB, edit func(text string) string) *server.Options {
	t.Helper()
	for _, user := range append(append([]string{"sys"}, fleetUsers()...), auditUsers()...) {
		name := strings.ReplaceAll(strings.ToUpper(user), "-", "_")
		t.Setenv("REFOLD_"+name+"_PASSWORD", password)
	}
	file := ConfigFile
	if edit != nil {
		text, err := os.ReadFile(ConfigFile)
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(t.TempDir(), "accounts.conf")
		if err := os.WriteFile(file, []byte(edit(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Start starts a server with the accounts of the example configuration, as edit has changed them, and a provider.
func Start(t testing.TB, edit func(text string) string) *Fleet {
	t.Helper()
	parsed := Options(t, edit)
	s, err := embedded.Start(embedded.Options{
		StoreDir: t.TempDir(), Port: -1, Configure: func(o *server.Options) {
			o.Accounts, o.Users, o.SystemAccount = parsed.Accounts, parsed.Users, parsed.SystemAccount
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	sim, err := simulator.New(simulator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(sim)
	t.Cleanup(web.Close)
	return &Fleet{t: t, Server: s, Provider: web.URL}
}

// URL returns the server's address for a user.
func (f *Fleet) URL(user string) string {
	return strings.Replace(f.Server.ClientURL(), "://", "://"+user+":"+password+"@", 1)
}

// Inbox returns the prefix of the subjects on which a user receives answers.
func Inbox(user string) string { return "_INBOX_" + user }

// Dial connects as a user of the configuration without the programs' own client. The caller closes the connection.
func (f *Fleet) Dial(user string, options ...nats.Option) *nats.Conn {
	f.t.Helper()
	conn, err := nats.Connect(f.URL(user), append([]nats.Option{nats.CustomInboxPrefix(Inbox(user))}, options...)...)
	if err != nil {
		f.t.Fatalf("connect as %s: %v", user, err)
	}
	return conn
}

// As connects as a user of the configuration.
func (f *Fleet) As(user string) *jetstream.Client {
	f.t.Helper()
	c, err := jetstream.Connect(f.t.Context(), jetstream.Config{URL: f.URL(user), InboxPrefix: Inbox(user), Name: user, Logger: f.Log()})
	if err != nil {
		f.t.Fatalf("connect as %s: %v", user, err)
	}
	f.t.Cleanup(c.Close)
	return c
}

// Account returns what the server says of an account of the configuration.
func (f *Fleet) Account(name string) *server.AccountInfo {
	f.t.Helper()
	conn, err := nats.Connect(f.URL("sys"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	msg, err := conn.RequestWithContext(f.t.Context(), "$SYS.REQ.ACCOUNT."+name+".INFO", nil)
	if err != nil {
		f.t.Fatalf("account %s: %v", name, err)
	}
	var answer struct {
		Data server.AccountInfo `json:"data"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		f.t.Fatalf("account %s: %v", name, err)
	}
	return &answer.Data
}

// Log returns a logger of the test's output.
func (f *Fleet) Log() *slog.Logger {
	return slog.New(slog.NewTextHandler(f.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// Start runs a service and returns what ends it and waits for the end. It is ended with the test in any case.
func (f *Fleet) Start(r program.Runner) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	f.t.Cleanup(stop)
	return stop
}

// Work runs a loop worker as the user worker, with the provider at the URL.
func (f *Fleet) Work(url string) (stop func()) {
	f.t.Helper()
	f.t.Setenv("DEEPSEEK_API_KEY", "simulator")
	client := f.As("worker")
	f.ensure(client, jetstream.InboxStream, jetstream.ObjectsStream)
	w, err := program.NewWorker(f.t.Context(), client, &program.WorkerFlags{
		Name: "worker", Workspace: f.t.TempDir(), Provider: provider.KindDeepSeek, ProviderURL: url, Model: "deepseek-chat", System: "Be brief.",
	}, 0, prometheus.NewRegistry(), f.Log())
	if err != nil {
		f.t.Fatal(err)
	}
	return f.Start(w)
}

// Witness runs a witness before the provider, as the user witness, and returns its URL and its public key.
func (f *Fleet) Witness() (url, key string) {
	f.t.Helper()
	client := f.As("witness")
	f.ensure(client, jetstream.WitnessStream)
	file := filepath.Join(f.t.TempDir(), "witness.seed")
	w, err := program.NewWitness(f.t.Context(), client, &program.WitnessFlags{Listen: "127.0.0.1:0", Upstream: f.Provider, KeyFile: file},
		prometheus.NewRegistry(), f.Log())
	if err != nil {
		f.t.Fatal(err)
	}
	signer, err := keyfile.Load(file)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Start(w)
	return w.URL(), signer.Public()
}

// Verify runs a verifier as a user. Flags without a key file get one.
func (f *Fleet) Verify(user string, flags program.VerifierFlags) (v *verify.Verifier, stop func()) {
	f.t.Helper()
	client := f.As(user)
	f.ensure(client, jetstream.VerdictsStream)
	if flags.KeyFile == "" {
		flags.KeyFile = filepath.Join(f.t.TempDir(), "verifier.seed")
	}
	flags.Sweep = 50 * time.Millisecond
	v, err := program.NewVerifier(client, &flags, prometheus.NewPedanticRegistry(), f.Log())
	if err != nil {
		f.t.Fatal(err)
	}
	return v, f.Start(v)
}

// Project runs a projector as the user projector.
func (f *Fleet) Project() (stop func()) {
	f.t.Helper()
	client := f.As("projector")
	f.ensure(client, jetstream.StepsStream)
	p, err := program.NewProjector(client, 50*time.Millisecond, 0, prometheus.NewPedanticRegistry(), f.Log())
	if err != nil {
		f.t.Fatal(err)
	}
	return f.Start(p)
}

func (f *Fleet) ensure(client *jetstream.Client, streams ...string) {
	f.t.Helper()
	if err := client.EnsureStreams(f.t.Context(), streams...); err != nil {
		f.t.Fatal(err)
	}
}

// Makers returns the users that make the shared streams, each with the names of its own. They are the only ones in the
// accounts that hold the fleet's streams.
func Makers() map[string][]string {
	return map[string][]string{
		"operator":         {jetstream.ObjectsStream},
		"inputs-operator":  {jetstream.InboxStream},
		"records-operator": {jetstream.VerdictsStream, jetstream.WitnessStream, jetstream.StepsStream},
	}
}

// MakeStreams makes the shared streams.
func (f *Fleet) MakeStreams() {
	f.t.Helper()
	for user, streams := range Makers() {
		f.ensure(f.As(user), streams...)
	}
}

// Prompt sends a prompt to a session, as the user client; options, unless nil, open it with them.
func (f *Fleet) Prompt(client *jetstream.Client, id events.ID, text string, options *events.Options) {
	f.t.Helper()
	in := events.Input{
		Kind: events.InputPrompt, Content: []events.Block{events.Text(text)}, ID: program.NewID(), Time: time.Now().UnixMilli(),
	}
	if options != nil {
		in.Open, in.Options = true, *options
	}
	if _, _, err := client.Inbox().Publish(f.t.Context(), id, &in); err != nil {
		f.t.Fatal(err)
	}
}

// Until waits for a condition, and says what did not come when it does not in a minute.
func (f *Fleet) Until(what string, holds func() bool) {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			f.t.Fatalf("not in time: %s", what)
		}
	}
}

// Events returns the events of a session as a client sees them, none when there is no such log.
func (f *Fleet) Events(client *jetstream.Client, id events.ID) (list []events.Event) {
	f.t.Helper()
	log, err := client.Logs().Open(f.t.Context(), id)
	if err != nil {
		return nil
	}
	for m, err := range log.Read(f.t.Context(), 1) {
		if err != nil {
			f.t.Fatal(err)
		}
		e, err := m.Event()
		if err != nil {
			f.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// Turn waits until a session has ended so many turns, and returns the sequence of the end of the last one.
func (f *Fleet) Turn(client *jetstream.Client, id events.ID, n int) (end uint64) {
	f.t.Helper()
	f.Until("the end of a turn of session "+string(id), func() bool {
		turns := 0
		for _, e := range f.Events(client, id) {
			if e.Type() == events.TypeTurnEnd {
				turns, end = turns+1, e.Seq
			}
		}
		return turns >= n
	})
	return end
}

// Verdicts returns the verdicts on a session's requests and heads that a client sees.
func (f *Fleet) Verdicts(client *jetstream.Client, id events.ID) (out []audit.Verdict) {
	f.t.Helper()
	for record, err := range client.Verdicts().Read(f.t.Context(), id, 1) {
		if err != nil {
			f.t.Fatal(err)
		}
		v, err := audit.DecodeVerdict(record.Payload)
		if err != nil {
			f.t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// Verified waits until a verdict stands at the sequence or behind, and wants every one to be a match.
func (f *Fleet) Verified(client *jetstream.Client, id events.ID, seq uint64) {
	f.t.Helper()
	f.Until("the verdicts on session "+string(id), func() bool {
		list := f.Verdicts(client, id)
		return len(list) > 0 && list[len(list)-1].Seq >= seq
	})
	for _, v := range f.Verdicts(client, id) {
		if v.Result != audit.Match {
			f.t.Errorf("%s", v.String())
		}
	}
}

// Check checks a session here and now, as refold verify does.
func (f *Fleet) Check(client *jetstream.Client, id events.ID) *audit.Report {
	f.t.Helper()
	log, err := client.Logs().Open(f.t.Context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	last, err := log.Last(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	report, err := audit.CheckLog(f.t.Context(), audit.LogCheck{
		Session: id, Messages: log.Read(f.t.Context(), 1), Last: last, Objects: audit.FromStore(client.Objects()),
		Parents: audit.FromLogs(client.Logs()), Prior: f.Verdicts(client, id),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return report
}
