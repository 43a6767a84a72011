package rights_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/fleet"
)

// spy is a user without permissions, so with all of them, that can be put into an account to see what comes there.
const spy = "spy-in-"

// withSpies returns an edit of the configuration that puts a spy into the account of each of the users.
func withSpies(t *testing.T, users ...string) func(string) string {
	return func(text string) string {
		for _, user := range users {
			own := "user: " + user + ","
			before, after, ok := strings.Cut(text, own)
			at := strings.LastIndex(before, "users: [\n") + len("users: [\n")
			if !ok || at < len("users: [\n") {
				t.Fatalf("the configuration has no user %s", user)
			}
			text = before[:at] + fmt.Sprintf("{ user: %q, password: %q }\n", spy+user, "secret") + before[at:] + own + after
		}
		return text
	}
}

// patience is how long to wait for what comes at once.
const patience = time.Minute

// holders are the users who can look at everything in an account with streams.
func holders() []string { return append(slices.Collect(maps.Keys(fleet.Makers())), "auditor") }

// account is what an account with streams holds, by the names of streams.
type account map[string]held

type held struct {
	Made      string // when
	State     natsjs.StreamState
	Config    natsjs.StreamConfig
	Consumers []string
}

// everything returns what the accounts with streams hold, by the user who looks.
func everything(t *testing.T, f *fleet.Fleet) map[string]account {
	t.Helper()
	out := make(map[string]account)
	for _, user := range holders() {
		conn := f.Dial(user)
		js, err := natsjs.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		streams := make(account)
		list := js.ListStreams(t.Context())
		for info := range list.Info() {
			h := held{Made: info.Created.String(), State: info.State, Config: info.Config}
			h.State.Consumers = 0 // listed here:
			stream, err := js.Stream(t.Context(), info.Config.Name)
			if err != nil {
				t.Fatal(err)
			}
			names := stream.ConsumerNames(t.Context())
			for name := range names.Name() {
				h.Consumers = append(h.Consumers, name)
			}
			if names.Err() != nil {
				t.Fatal(names.Err())
			}
			streams[info.Config.Name] = h
		}
		if list.Err() != nil {
			t.Fatal(list.Err())
		}
		out[user] = streams
		conn.Close()
	}
	return out
}

// filled starts a server whose streams all hold something, a session and a message without payload among it.
func filled(t *testing.T, edit func(string) string) *fleet.Fleet {
	t.Helper()
	f := fleet.Start(t, edit)
	f.MakeStreams()
	if err := f.As("auditor").EnsureStreams(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Fatal(err)
	}
	fill(t, f)
	worker := f.As("worker")
	conn := f.Dial("worker")
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), worker.SessionConfig(someID)); err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"", "{}"} {
		if _, err := js.Publish(t.Context(), "session."+someID+".session.closed", []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	auditor := f.Dial("audit-verifier")
	defer auditor.Close()
	if _, err := auditor.RequestWithContext(t.Context(), "verdict."+someID, nil); err != nil {
		t.Fatal(err)
	}
	return f
}

// places are subjects on which an answer would do something, were it to come there in an account with streams.
func places() []string {
	const api = "$JS.API."
	all := []string{
		"session." + someID + ".session.closed", "object." + digest + ".0", "inbox." + someID,
		"verdict." + someID, "verdict." + someID + ".wire", "witness." + someID + ".request", "step." + someID,
		"hint.3." + someID + ".turn.end", "live." + someID, "worker." + someID, "fleet.deliver.M.x",
		api + "CONSUMER.DELETE.INBOX.workers", api + "CONSUMER.CREATE.OBJECTS", api + "CONSUMER.CREATE.WITNESS",
		"fleet.api.CONSUMER.CREATE.OBJECTS", "fleet.api.STREAM.DELETE.OBJECTS", "records.CONSUMER.CREATE.WITNESS",
	}
	for _, stream := range append(jetstream.SharedStreams(), jetstream.SessionStream(someID)) {
		for _, what := range []string{"DELETE", "PURGE", "UPDATE", "MSG.DELETE"} {
			all = append(all, api+"STREAM."+what+"."+stream)
		}
	}
	for _, user := range append(users(), "auditor", "audit-verifier") {
		all = append(all, fleet.Inbox(user)+".x")
	}
	return all
}

// question is something that the server answers.
type question struct {
	subject string
	header  nats.Header
	body    string
	batch   bool // the answer ends with a status
}

// questions are all that the user may ask and be acknowledged, in every shape of an answer: JSON, what is stored, an empty
// message that is stored, an empty status. Nothing is stored by them.
func questions(user string) (all []question) {
	probes := publishes()
	if strings.HasPrefix(user, "audit") {
		probes = slices.Concat(auditQuestions(), probes)
	}
	for _, p := range probes {
		if !slices.Contains(strings.Fields(p.may), user) {
			continue
		}
		root, _, _ := strings.Cut(p.subject, ".")
		switch {
		case slices.Contains([]string{"session", "object", "inbox", "verdict", "witness", "step"}, root):
			for name, value := range map[string]string{"Nats-Expected-Last-Sequence": "1000", "Nats-Expected-Stream": "OTHER"} {
				all = append(all, question{p.subject, nats.Header{name: {value}}, "{}", false}) // refused
			}
		case strings.HasPrefix(p.subject, "$JS.ACK."):
			all = append(all, question{p.subject, nil, "+WPI", false}) // of what was not delivered
		case strings.Contains(p.subject, ".GET."):
			for _, body := range []string{`{"seq":1}`, `{"seq":2}`, `{"seq":1000}`, "no JSON"} {
				all = append(all, question{p.subject, nil, body, false})
			}
			if strings.Contains(p.subject, "DIRECT") && !strings.Contains(p.subject, digest) {
				all = append(all, question{p.subject, nil, `{"seq":1,"batch":3}`, true})
			}
		case strings.Contains(p.subject, ".MSG.NEXT."):
			for _, body := range []string{`{"no_wait":true}`, `{"batch":1,"no_wait":true}`} {
				all = append(all, question{p.subject, nil, body, false})
			}
		case strings.Contains(p.subject, "STREAM.CREATE"):
			all = append(all, question{p.subject, nil, `{"name":"` + p.subject[strings.LastIndexByte(p.subject, '.')+1:] + `"}`, false}) // exists
		case strings.HasPrefix(p.subject, "$JS.API.") || strings.HasPrefix(p.subject, "fleet.api."):
			all = append(all, question{p.subject, nil, "", false})
		}
	}
	return all
}

// auditQuestions are what the auditor's users may ask and be acknowledged.
func auditQuestions() []probe {
	const api, fleetAPI, all = "$JS.API.", "fleet.api.", "audit-mirror audit-verifier audit-reader"
	const reading = "audit-verifier audit-reader"
	return []probe{
		{"know JetStream", api + "INFO", all},
		{"look at a stream", api + "STREAM.INFO.VERDICTS", all},
		{"list streams", api + "STREAM.LIST", all},
		{"read", api + "STREAM.MSG.GET.VERDICTS", reading},
		{"read", api + "DIRECT.GET.VERDICTS", reading},
		{"make a stream", api + "STREAM.CREATE.VERDICTS", "audit-mirror"},
		{"write a verdict", "verdict." + someID, "audit-verifier"},
		{"look at the fleet's streams", fleetAPI + "STREAM.INFO.VERDICTS", all},
		{"look at the fleet's streams", fleetAPI + "STREAM.INFO.SESSION_" + someID, all},
		{"list the fleet's streams", fleetAPI + "STREAM.LIST", "audit-mirror"},
	}
}

// TestAnswersOfTheServer has every role ask all that it may, and be acknowledged, and name for the answer every place that it
// may not publish to. The server looks at no permission then. The answer comes to that place in the role's own account, where
// nobody is, and no stream of any account changes.
func TestAnswersOfTheServer(t *testing.T) {
	asking := append(roles(), "audit-mirror", "audit-verifier", "audit-reader")
	for _, user := range asking {
		t.Run(user, func(t *testing.T) {
			f := filled(t, withSpies(t, user))
			before := everything(t, f)
			refused := make(chan string, 1024)
			conn := f.Dial(user, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
			defer conn.Close()
			seen := f.Dial(spy + user)
			defer seen.Close()
			for _, place := range places() {
				if mayPublish(t, conn, refused, place) {
					continue
				}
				answers, err := seen.SubscribeSync(place)
				if err != nil {
					t.Fatal(err)
				}
				if err := seen.Flush(); err != nil {
					t.Fatal(err)
				}
				for _, q := range questions(user) {
					if err := conn.PublishMsg(&nats.Msg{Subject: q.subject, Reply: place, Header: q.header, Data: []byte(q.body)}); err != nil {
						t.Fatal(err)
					}
					for last := false; !last; {
						answer, err := answers.NextMsg(patience)
						if err != nil {
							t.Fatalf("%s %q was not answered: %v", q.subject, q.body, err)
						}
						last = !q.batch || answer.Header.Get("Status") != ""
					}
				}
				if err := answers.Unsubscribe(); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, everything(t, f)); diff != "" {
				t.Errorf("what is stored has changed (-before +after)\n%s", diff)
			}
		})
	}
}

// mayPublish tries to.
func mayPublish(t *testing.T, conn *nats.Conn, refused <-chan string, subject string) bool {
	t.Helper()
	if err := conn.PublishMsg(&nats.Msg{Subject: subject, Header: nats.Header{"Nats-Expected-Stream": {"OTHER"}}}); err != nil {
		t.Fatal(err)
	}
	return refusedBefore(t, conn, refused, subject) == 0
}

// TestAcknowledgeByAnswer shows that nobody can name a place for an answer that would finish an input.
func TestAcknowledgeByAnswer(t *testing.T) {
	f := filled(t, nil)
	worker := f.Dial("worker")
	defer worker.Close()
	js, err := natsjs.New(worker)
	if err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), jetstream.InboxStream, jetstream.InboxConsumer)
	if err != nil {
		t.Fatal(err)
	}
	input, err := consumer.Next()
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan string, 1024)
	conn := f.Dial("reader", nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
	defer conn.Close()
	for _, body := range []string{`{"seq":1}`, `{"seq":1000}`} { // an empty message, and an empty status
		if err := conn.PublishRequest("$JS.API.DIRECT.GET."+jetstream.SessionStream(someID), input.Reply(), []byte(body)); err != nil {
			t.Fatal(err)
		}
		if n := refusedBefore(t, conn, refused, input.Reply()); n != 1 {
			t.Errorf("%d refusals", n)
		}
	}
	if n := stored(t, f)[jetstream.InboxStream]; n != 1 {
		t.Errorf("%d inputs", n)
	}
	if err := input.DoubleAck(t.Context()); err != nil {
		t.Errorf("the worker: %v", err)
	}
}

// TestMakersOfStreams shows what the right to make streams is worth. A stream can republish what is stored in it on any subject
// of its account. So a worker can do there what an operator can, to sessions and objects, and nothing elsewhere: neither to
// verdicts, receipts, step records and inputs, nor to an auditor's account.
func TestMakersOfStreams(t *testing.T) {
	f := filled(t, withSpies(t, "operator"))
	before := everything(t, f)
	conn := f.Dial("worker")
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	seen := f.Dial(spy + "operator")
	defer seen.Close()
	// republish has a message published to the subject in FLEET, and returns when it was.
	n := 0
	republish := func(subject, payload string) {
		t.Helper()
		n++
		from := "session.detour." + strconv.Itoa(n)
		heard, err := seen.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := seen.Flush(); err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{
			Name: "DETOUR_" + strconv.Itoa(n), Subjects: []string{from}, RePublish: &natsjs.RePublish{Source: from, Destination: subject},
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), from, []byte(payload)); err != nil {
			t.Fatal(err)
		}
		if _, err := heard.NextMsg(patience); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
	}
	fleets := append([]string{jetstream.ObjectsStream, jetstream.SessionStream(someID)}, "object.", "session.")
	for _, place := range append(places(), "$JS.ACK.INBOX.workers.1.1.1.1.0") {
		if !slices.ContainsFunc(fleets, func(part string) bool { return strings.Contains(place, part) }) {
			republish(place, "")
		}
	}
	after := everything(t, f)
	maps.DeleteFunc(after["operator"], func(name string, _ held) bool { return strings.HasPrefix(name, "DETOUR_") })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("what is stored has changed (-before +after)\n%s", diff)
	}
	for _, stream := range []string{jetstream.ObjectsStream, jetstream.SessionStream(someID)} {
		limited := after["operator"][stream].Config
		limited.MaxBytes = 1 << 20
		request, err := json.Marshal(limited)
		if err != nil {
			t.Fatal(err)
		}
		republish("$JS.API.STREAM.UPDATE."+stream, string(request))
		f.Until("another limit of "+stream, func() bool { return everything(t, f)["operator"][stream].Config.MaxBytes == limited.MaxBytes })
		republish("$JS.API.STREAM.DELETE."+stream, "")
		f.Until("the end of "+stream, func() bool { _, there := stored(t, f)[stream]; return !there })
	}
}

// TestMakersOfStreamsAnswer shows that the same right is one to answer in the place of the server: in the account of the streams
// a worker makes one that stores the server's answers, which tells where they go, and another that republishes there.
func TestMakersOfStreamsAnswer(t *testing.T) {
	f := filled(t, nil)
	conn, asking := f.Dial("worker"), f.Dial("reader")
	defer conn.Close()
	defer asking.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	ear, err := js.CreateStream(t.Context(), natsjs.StreamConfig{Name: "EAR", Subjects: []string{"_R_.>"}, NoAck: true})
	if err != nil {
		t.Fatal(err)
	}
	const place = "_INBOX_reader.x"
	answers, err := asking.SubscribeSync(place)
	if err != nil {
		t.Fatal(err)
	}
	request := `{"seq":1,"batch":1}`
	if err := asking.PublishRequest("$JS.API.DIRECT.GET."+jetstream.SessionStream(someID), place, []byte(request)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a message, and the end of the batch
		if _, err := answers.NextMsg(patience); err != nil {
			t.Fatal(err)
		}
	}
	var to string
	f.Until("the answer in the worker's stream", func() bool {
		for seq := uint64(1); to == ""; seq++ {
			stored, err := ear.GetMsg(t.Context(), seq)
			if err != nil {
				return false
			}
			if stored.Header.Get("Nats-Subject") != "" {
				to = stored.Subject
			}
		}
		return true
	})
	if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{
		Name: "MOUTH", Subjects: []string{"session.detour"}, RePublish: &natsjs.RePublish{Source: "session.detour", Destination: to},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "session.detour", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	if answer, err := answers.NextMsg(patience); err != nil || string(answer.Data) != "forged" {
		t.Errorf("%v, %v", answer, err)
	}
}

// TestConsumersOfAnAuditor has the auditor, who may do everything in the account of the mirrors, make consumers of the fleet's
// streams that deliver on other subjects of the same account: the server delivers only where somebody listens to that very
// subject, and streams and the API listen to wildcards.
func TestConsumersOfAnAuditor(t *testing.T) {
	f := filled(t, withSpies(t, "operator", "records-operator"))
	conn := f.Dial("auditor")
	defer conn.Close()
	js, err := natsjs.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, stream string
		deliver      []string // into the stream itself, which is refused as a cycle, and elsewhere
	}{
		{"operator", jetstream.ObjectsStream, []string{
			"object." + digest + ".1", "session." + someID + ".session.closed", "$JS.API.STREAM.DELETE." + jetstream.SessionStream(someID),
		}},
		{"records-operator", jetstream.WitnessStream, []string{
			"witness." + someID + ".answer", "verdict." + someID, "step." + someID, "$JS.API.STREAM.DELETE." + jetstream.StepsStream,
		}},
	} {
		before := everything(t, f)[c.user]
		seen := f.Dial(spy + c.user)
		defer seen.Close()
		heard, err := seen.SubscribeSync("control")
		if err != nil {
			t.Fatal(err)
		}
		if err := seen.Flush(); err != nil {
			t.Fatal(err)
		}
		// What is published here is published there as a request to make a consumer.
		from := "$JS.API.detour." + c.stream
		if _, err := js.CreateStream(t.Context(), natsjs.StreamConfig{
			Name: "DETOUR_" + c.stream, Subjects: []string{from}, NoAck: true,
			RePublish: &natsjs.RePublish{Source: from, Destination: "fleet.api.CONSUMER.CREATE." + c.stream},
		}); err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(c.deliver, []string{"control"}) // the last one may
		for _, deliver := range all {
			request, err := json.Marshal(map[string]any{"stream_name": c.stream, "config": natsjs.ConsumerConfig{
				DeliverSubject: deliver, DeliverPolicy: natsjs.DeliverAllPolicy, AckPolicy: natsjs.AckNonePolicy,
			}})
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.Publish(from, request); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := heard.NextMsg(patience); err != nil {
			t.Fatalf("%s: the consumer that may deliver does not: %v", c.stream, err)
		}
		after := everything(t, f)[c.user]
		if n := len(after[c.stream].Consumers); n != len(all)-1 {
			t.Errorf("%s has %d consumers, want %d", c.stream, n, len(all)-1)
		}
		for name, stream := range after {
			if stream.Consumers = nil; name != c.stream {
				stream.Consumers = before[name].Consumers
			}
			after[name] = stream
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("what is stored has changed (-before +after)\n%s", diff)
		}
	}
}

// TestNothingRemembered wants the server to remember of no message that has been acknowledged, or is not to be, where an answer
// to it would go.
func TestNothingRemembered(t *testing.T) {
	f := filled(t, nil)
	conn := f.Dial("worker")
	defer conn.Close()
	for range 100 {
		for _, subject := range []string{"live." + someID, "$JS.ACK.INBOX.workers.1.9.9.1.0"} {
			if err := conn.Publish(subject, []byte("+WPI")); err != nil {
				t.Fatal(err)
			}
		}
		for _, subject := range []string{"session." + someID + ".session.closed", "$JS.API.STREAM.INFO.VERDICTS", "session.none"} {
			if _, err := conn.RequestWithContext(t.Context(), subject, nil); err != nil && !errors.Is(err, nats.ErrNoResponders) {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"FLEET", "INPUTS", "RECORDS", "API"} {
		if n := len(f.Account(name).Responses); n > 0 {
			t.Errorf("%s: %d", name, n)
		}
	}
}

// TestEmptyInputs has a client send inputs without anything in them, after which the server forgets where the answers to a
// worker's question go. Workers go on.
func TestEmptyInputs(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	f.Work(f.Provider)
	client, reader := f.As("client"), f.As("reader")
	conn := f.Dial("client")
	defer conn.Close()
	id := program.NewID()
	f.Prompt(client, id, "one", &events.Options{})
	for n := 1; n <= 5; n++ {
		f.Turn(reader, id, n)
		for range 3 {
			if _, err := conn.RequestWithContext(t.Context(), "inbox."+someID, nil); err != nil {
				t.Fatal(err)
			}
		}
		f.Prompt(client, id, "again", nil)
	}
	f.Turn(reader, id, 6)
}
