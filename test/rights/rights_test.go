package rights_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/fleet"
)

// TestEverybodysJob runs a session from its first prompt to its verdicts, step records and receipts while every program has
// its own user's rights and no others. Only operators have made shared streams. A reader hears the model while it speaks.
func TestEverybodysJob(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	client, reader := f.As("client"), f.As("reader")
	url, key := f.Witness()
	f.Work(url)
	f.Verify("verifier", program.VerifierFlags{Witnesses: []string{key}, ColdShare: 1})
	f.Project()
	id, fork := program.NewID(), program.NewID()
	live, err := reader.Live().Subscribe(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	f.Prompt(client, id, "one", &events.Options{System: strings.Repeat("Be brief. ", 10_000)})
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if text, err := live.Next(soon); err != nil || len(text) == 0 {
		t.Errorf("live: %q, %v", text, err)
	}
	f.Turn(reader, id, 1)
	f.Prompt(client, id, "two", nil)
	end := f.Turn(reader, id, 2)
	in := events.Input{Kind: events.InputFork, ID: program.NewID(), Time: 1, Open: true, Parent: events.ForkPoint{ID: id}}
	if _, _, err := client.Inbox().Publish(t.Context(), fork, &in); err != nil {
		t.Fatal(err)
	}
	f.Prompt(client, fork, "three", nil)
	f.Verified(reader, fork, f.Turn(reader, fork, 3))
	f.Verified(reader, id, end)
	if r := f.Check(reader, fork); !r.AllMatch() || r.Requests != 3 || r.Lineage != audit.LineageConfirmed {
		t.Errorf("%d of %d match, lineage %q: %v", r.Matches, r.Requests, r.Lineage, r.Verdicts)
	}
	f.Until("step records", func() bool { return count(t, reader.Steps(), id) == 2 })
	if n := count(t, reader.Receipts(), id); n != 2 {
		t.Errorf("%d receipts of 2 requests", n)
	}
	f.Until("answer receipts", func() bool { return count(t, reader.AnswerReceipts(), id) == 2 })
	f.Until("wire verdicts", func() bool { return count(t, reader.WireVerdicts(), id) == 2 })
}

func count(t *testing.T, records *jetstream.Records, id events.ID) (n int) {
	t.Helper()
	for _, err := range records.Read(t.Context(), id, 1) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

const (
	someID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// probe is something that credentials may do or not.
type probe struct {
	what    string
	subject string
	may     string // who may, separated by spaces
}

// users are the fleet's.
func users() []string {
	return append(roles(), slices.Sorted(maps.Keys(fleet.Makers()))...)
}

// roles are the users of those accounts of the fleet that have no streams.
func roles() []string {
	return []string{"client", "reader", "worker", "witness", "verifier", "projector"}
}

// publishes are subjects to publish to. The table says who may; everybody else is refused.
func publishes() []probe {
	const api, operators = "$JS.API.", "operator inputs-operator records-operator"
	const readers = operators + " reader worker verifier projector"
	var all []probe
	add := func(what, may string, subjects ...string) {
		for _, s := range subjects {
			all = append(all, probe{what, strings.NewReplacer("ID", someID, "DIGEST", digest).Replace(s), may})
		}
	}
	add("write a session", "worker", "session.ID.session.closed")
	add("write an object", "worker", "object.DIGEST.0", "object.DIGEST.manifest")
	add("say what a model says", "worker", "live.ID")
	add("ask a worker", "worker", "worker.ID")
	for _, user := range users() {
		may := ""
		if user == "worker" {
			may = user // answers other workers
		}
		add("answer a "+user, may, fleet.Inbox(user)+".ID")
	}
	add("finish an input", "worker", "$JS.ACK.INBOX.workers.1.1.1.1.0")
	add("write a receipt", "witness", "witness.ID.request", "witness.ID.answer")
	add("write a verdict", "verifier", "verdict.ID", "verdict.ID.wire", "verdict.ID.stray")
	add("write a step record", "projector", "step.ID")
	add("send an input", "client", "inbox.ID")
	add("give a hint", "", "hint.3.ID.turn.end")
	add("deliver for a mirror", "", "fleet.deliver.M.x")

	add("know JetStream", readers+" witness", api+"INFO")
	add("look at a stream", readers, api+"STREAM.INFO.SESSION_ID", api+"STREAM.INFO.VERDICTS", api+"STREAM.INFO.OBJECTS")
	add("look at the receipts' stream", readers+" witness", api+"STREAM.INFO.WITNESS")
	add("list streams", readers, api+"STREAM.LIST")
	add("read", readers, api+"STREAM.MSG.GET.SESSION_ID", api+"DIRECT.GET.SESSION_ID", api+"DIRECT.GET.OBJECTS.object.DIGEST.0")
	add("make a stream", operators+" worker", api+"STREAM.CREATE.SESSION_ID")
	add("make a shared stream", "operator worker", api+"STREAM.CREATE.OBJECTS")
	add("make a shared stream", "inputs-operator", api+"STREAM.CREATE.INBOX")
	add("make a shared stream", "records-operator", api+"STREAM.CREATE.VERDICTS", api+"STREAM.CREATE.WITNESS", api+"STREAM.CREATE.STEPS")
	add("change a stream", operators, api+"STREAM.UPDATE.SESSION_ID", api+"STREAM.UPDATE.VERDICTS")
	add("delete a stream", operators, api+"STREAM.DELETE.SESSION_ID", api+"STREAM.DELETE.WITNESS")
	add("empty a stream", operators, api+"STREAM.PURGE.SESSION_ID", api+"STREAM.PURGE.OBJECTS")
	add("delete a message", operators, api+"STREAM.MSG.DELETE.SESSION_ID", api+"STREAM.MSG.DELETE.OBJECTS")
	add("put a stream back", operators, api+"STREAM.RESTORE.SESSION_ID", api+"STREAM.SNAPSHOT.SESSION_ID")
	add("move a stream", operators, api+"STREAM.LEADER.STEPDOWN.SESSION_ID", api+"STREAM.PEER.REMOVE.SESSION_ID")
	add("make a consumer", operators, api+"CONSUMER.CREATE.SESSION_ID", api+"CONSUMER.CREATE.INBOX.workers", api+"CONSUMER.DURABLE.CREATE.INBOX.x")
	add("delete a consumer", operators, api+"CONSUMER.DELETE.INBOX.workers")
	add("pause a consumer", operators, api+"CONSUMER.PAUSE.INBOX.workers")
	add("look at the workers' consumer", operators+" worker", api+"CONSUMER.INFO.INBOX.workers")
	add("take an input", operators+" worker", api+"CONSUMER.MSG.NEXT.INBOX.workers")
	add("take from another consumer", operators, api+"CONSUMER.MSG.NEXT.SESSION_ID.x")
	add("manage the account", operators, api+"ACCOUNT.PURGE.FLEET")
	add("manage the server", "", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.CONNZ")
	return all
}

// subscribes are subjects to subscribe to.
func subscribes() []probe {
	all := []probe{
		{"receive answers where everybody does by default", "_INBOX.>", ""},
		{"receive hints", "hint.>", "verifier projector"},
		{"hear what a model says", "live.>", "reader"},
		{"be asked as a worker", "worker.*", "worker"},
		{"receive everything", ">", ""},
		{"receive sessions", "session.>", ""},
		{"receive inputs", "inbox.>", ""},
		{"receive verdicts", "verdict.>", ""},
		{"receive receipts", "witness.>", ""},
		{"receive objects", "object.>", ""},
		{"receive what others ask", "$JS.API.>", ""},
		{"receive what mirrors get", "fleet.deliver.>", ""},
	}
	for _, user := range users() {
		all = append(all, probe{"receive answers to a " + user, fleet.Inbox(user) + ".>", user})
	}
	return all
}

// TestNothingElse tries everything as everybody, and wants the server to refuse whatever is not their job.
func TestNothingElse(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	for _, user := range users() {
		refused := refusals(t, f, user)
		for _, p := range publishes() {
			if may := slices.Contains(strings.Fields(p.may), user); refused["Publish to "+p.subject] == may {
				t.Errorf("%s: %s: publish to %s: refused: %v, want %v", user, p.what, p.subject, may, !may)
			}
		}
		for _, p := range subscribes() {
			if may := slices.Contains(strings.Fields(p.may), user); refused["Subscription to "+p.subject] == may {
				t.Errorf("%s: %s: subscribe to %s: refused: %v, want %v", user, p.what, p.subject, may, !may)
			}
		}
	}
}

// refusals tries all probes as the user and returns those that the server refused. What may be done is done with payloads
// that nothing comes of.
func refusals(t *testing.T, f *fleet.Fleet, user string) map[string]bool {
	t.Helper()
	refused := make(chan string, 1024)
	conn := f.Dial(user, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		text := err.Error()
		for _, op := range []string{"Publish to ", "Subscription to "} {
			if _, rest, ok := strings.Cut(text, op+`"`); ok {
				subject, _, _ := strings.Cut(rest, `"`)
				refused <- op + subject
				return
			}
		}
	}))
	defer conn.Close()
	for _, p := range publishes() {
		if err := conn.PublishRequest(p.subject, "_INBOX.nobody", []byte("no JSON")); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range subscribes() {
		if _, err := conn.SubscribeSync(p.subject); err != nil {
			t.Fatal(err)
		}
	}
	const last = "the.last.one" // nobody may: what is refused before it has been told
	if err := conn.Publish(last, nil); err != nil {
		t.Fatal(err)
	}
	out := make(map[string]bool)
	for {
		select {
		case what := <-refused:
			if what == "Publish to "+last {
				return out
			}
			out[what] = true
		case <-t.Context().Done():
			t.Fatal("the server does not refuse")
		}
	}
}

// TestMissingStream names what is missing, and the right to make it.
func TestMissingStream(t *testing.T) {
	f := fleet.Start(t, nil)
	for user, stream := range map[string]string{
		"verifier": jetstream.VerdictsStream, "projector": jetstream.StepsStream, "witness": jetstream.WitnessStream,
	} {
		err := f.As(user).EnsureStreams(t.Context(), stream)
		if !errors.Is(err, eventlog.ErrPermission) || !strings.Contains(err.Error(), "stream "+stream) ||
			!strings.Contains(err.Error(), `"$JS.API.STREAM.CREATE.`+stream+`"`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", user, err)
		}
	}
	worker := f.As("worker")
	for _, stream := range []string{jetstream.InboxStream, jetstream.VerdictsStream, jetstream.WitnessStream, jetstream.StepsStream} {
		err := worker.EnsureStreams(t.Context(), stream)
		if !errors.Is(err, eventlog.ErrPermission) || !strings.Contains(err.Error(), `"$JS.API.STREAM.CREATE.`+stream+`"`) {
			t.Errorf("worker: %v", err)
		}
	}
	operator := f.As("records-operator")
	if err := operator.EnsureStreams(t.Context(), "OTHER"); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a stream that is not ours: %v", err)
	}
	if err := operator.EnsureStreams(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Error(err)
	}
	if err := f.As("verifier").EnsureStreams(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Errorf("with nothing but its own stream: %v", err)
	}
}
