package rights_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/fleet"
)

// TestNoRightByAnswering has a worker ask itself, with every subject that it may not publish to as the place of the answer,
// and answer: nothing comes of it.
func TestNoRightByAnswering(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	fill(t, f)
	before := stored(t, f)
	refused := make(chan string, 1024)
	conn := f.Dial("worker", nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err.Error() }))
	defer conn.Close()
	self, err := conn.SubscribeSync("worker." + someID)
	if err != nil {
		t.Fatal(err)
	}
	answers := []string{"", "{}", `{"seq":1}`}
	for _, p := range publishes() {
		if slices.Contains(strings.Fields(p.may), "worker") {
			continue
		}
		subject := strings.Replace(p.subject, "SESSION_"+someID, jetstream.StepsStream, 1) // one that there is
		if err := conn.PublishRequest("worker."+someID, subject, nil); err != nil {
			t.Fatal(err)
		}
		question, err := self.NextMsgWithContext(t.Context())
		if err != nil || question.Reply != subject {
			t.Fatalf("%s: %v", subject, err)
		}
		for _, answer := range answers {
			if err := question.Respond([]byte(answer)); err != nil {
				t.Fatal(err)
			}
		}
		if n := refusedBefore(t, conn, refused, subject); n != len(answers) {
			t.Errorf("%s: %d of %d answers on %s were refused", p.what, n, len(answers), subject)
		}
	}
	if after := stored(t, f); !maps.Equal(before, after) {
		t.Errorf("the streams hold\n%v, before\n%v", after, before)
	}
}

// refusedBefore returns how many messages to the subject were refused of those that the connection has sent.
func refusedBefore(t *testing.T, conn *nats.Conn, refused <-chan string, subject string) (n int) {
	t.Helper()
	const last = "the.last.one" // nobody may
	if err := conn.Publish(last, nil); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case text := <-refused:
			if strings.Contains(text, `"`+last+`"`) {
				return n
			}
			if strings.Contains(text, `"`+subject+`"`) {
				n++
			}
		case <-t.Context().Done():
			t.Fatal("the server does not refuse")
		}
	}
}

// fill puts a message into every shared stream, by those who may.
func fill(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	for user, subject := range map[string]string{
		"client": "inbox." + someID, "worker": "object." + digest + ".0", "verifier": "verdict." + someID,
		"witness": "witness." + someID + ".request", "projector": "step." + someID,
	} {
		conn := f.Dial(user)
		if _, err := conn.RequestWithContext(t.Context(), subject, []byte("{}")); err != nil {
			t.Errorf("%s: %s: %v", user, subject, err)
		}
		conn.Close()
	}
}

// stored returns how many messages each stream of the fleet's account holds.
func stored(t *testing.T, f *fleet.Fleet) map[string]uint64 {
	t.Helper()
	out := make(map[string]uint64)
	for user := range fleet.Makers() {
		conn := f.Dial(user)
		defer conn.Close()
		js, err := natsjs.New(conn)
		if err != nil {
			t.Fatal(err)
		}
		list := js.ListStreams(t.Context())
		for info := range list.Info() {
			out[info.Config.Name] = info.State.Msgs
		}
		if list.Err() != nil {
			t.Fatal(list.Err())
		}
	}
	return out
}

// TestWorkersAnswerEachOther on the prefix that they share.
func TestWorkersAnswerEachOther(t *testing.T) {
	f := fleet.Start(t, nil)
	one, other := f.As("worker"), f.As("worker")
	instance, ready := program.NewID(), make(chan struct{})
	f.Start(serving{one.Presence(), instance, ready})
	<-ready
	answer, err := other.Presence().Ask(t.Context(), instance, []byte("you?"))
	if err != nil || string(answer) != "you? me" {
		t.Errorf("%q, %v", answer, err)
	}
	if _, err := other.Presence().Ask(t.Context(), program.NewID(), nil); !errors.Is(err, jetstream.ErrNoResponders) {
		t.Errorf("nobody: %v", err)
	}
}

// serving is an instance that answers questions.
type serving struct {
	presence *jetstream.Presence
	instance events.ID
	ready    chan struct{}
}

func (s serving) Run(ctx context.Context) error {
	return s.presence.Serve(ctx, s.instance, func() { close(s.ready) }, func(_ context.Context, question []byte) []byte {
		return append(question, " me"...)
	})
}

// TestOnlyOnesOwnAnswers has every user listen wherever answers come while every other one asks something: nobody hears what
// another is told.
func TestOnlyOnesOwnAnswers(t *testing.T) {
	f := fleet.Start(t, nil)
	f.MakeStreams()
	if err := f.As("auditor").EnsureStreams(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Fatal(err)
	}
	all := append(users(), "auditor", "audit-mirror", "audit-verifier", "audit-reader")
	ear := make(map[string]*nats.Conn)
	var heard []*nats.Subscription
	for _, user := range all {
		conn := f.Dial(user, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		defer conn.Close()
		ear[user] = conn
		places := []string{">", "*.>", "_INBOX.>", "_INBOX.*.*"}
		for _, other := range all {
			if other != user {
				places = append(places, fleet.Inbox(other)+".>")
			}
		}
		for _, place := range places {
			sub, err := conn.SubscribeSync(place)
			if err != nil {
				t.Fatal(err)
			}
			heard = append(heard, sub)
		}
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for _, user := range all {
		asking, question := f.Dial(user), "$JS.API.INFO"
		if user == "client" {
			question = "inbox." + someID
		}
		if _, err := asking.RequestWithContext(t.Context(), question, nil); err != nil {
			t.Errorf("%s: no answer: %v", user, err)
		}
		asking.Close()
	}
	for _, user := range all {
		if err := ear[user].Flush(); err != nil { // whatever was sent to it has come
			t.Fatal(err)
		}
	}
	for _, sub := range heard {
		if n, _, err := sub.Pending(); err == nil && n > 0 {
			t.Errorf("%d messages were heard on %s", n, sub.Subject)
		}
	}
}
