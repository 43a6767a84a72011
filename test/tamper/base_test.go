package tamper_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// base is an honest session and all that was signed about it.
type base struct {
	*audittest.Session

	log        *foldtest.Log // nil of a session that was imported
	key        *audit.Key    // of the verifier
	witness    *audit.Key
	signed     []audit.Verdict
	receipts   []audit.PlacedReceipt
	lastSigned uint64 // the newest event that a verdict is about
	packed     *bundled
}

// keys are those of everybody who signs in this suite. The other is trusted by nobody.
type keys struct{ verifier, witness, other *audit.Key }

func newKeys(t *testing.T) keys {
	t.Helper()
	var k keys
	for _, into := range []**audit.Key{&k.verifier, &k.witness, &k.other} {
		key, err := audit.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		*into = key
	}
	return k
}

// newLog returns the signer of a transparency log.
func newLog(t *testing.T) *tlog.Signer {
	t.Helper()
	secret, err := tlog.GenerateSigner(strings.NewReader(strings.Repeat("x", 64)), "example.com/verdicts")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tlog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// newBase has the session checked and signed. That it is honest and nothing is found is looked at here.
func newBase(t *testing.T, s *audittest.Session, l *foldtest.Log, k keys) *base {
	t.Helper()
	b := &base{Session: s, log: l, key: k.verifier, witness: k.witness, receipts: s.Receipts(k.witness)}
	check := s.LogCheck()
	check.Receipts, check.Witnesses = b.receipts, []string{k.witness.Public()}
	report, err := audit.CheckLog(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if !report.AllMatch() || report.Requests == 0 || report.Calls != len(s.Calls())-b.open() {
		t.Fatalf("%s: %d requests, %d calls: %v", s.Name, report.Requests, report.Calls, report.Verdicts)
	}
	for i := range report.Verdicts {
		v := report.Verdicts[i]
		if err := k.verifier.Sign(&v); err != nil {
			t.Fatal(err)
		}
		b.signed = append(b.signed, v)
		b.lastSigned = max(b.lastSigned, v.Seq)
	}
	return b
}

// open returns how many calls have no end at the end of the log: 0 or 1.
func (b *base) open() int {
	for _, e := range slices.Backward(b.Events) {
		switch e.Body.(type) {
		case *events.AssistantChunk, *events.AssistantMessage, *events.CompactionSummary, *events.LLMFailed, *events.SessionTitle:
			return 0
		case *events.LLMStream:
			return 1
		}
	}
	return 0
}

// last returns the sequence of the last event.
func (b *base) last() uint64 { return uint64(len(b.Messages)) }

// bases returns the sessions that are tampered with: two made by hand that hold one of everything, a fork, generated ones
// with images and forks, and the recorded ones when they are at hand.
func bases(t *testing.T, k keys, generated int) []*base {
	t.Helper()
	_, fork := audittest.Forked()
	out := []*base{
		newBase(t, audittest.Of("sample", audittest.Sample(foldtest.ID(1_700_000_000_000, 1))), audittest.Sample(foldtest.ID(1_700_000_000_000, 1)), k),
		newBase(t, audittest.Of("whole", audittest.Whole()), audittest.Whole(), k),
		newBase(t, audittest.Of("fork", fork), fork, k),
	}
	for seed := range generated {
		l := generate(seed)
		out = append(out, newBase(t, audittest.Of("generated "+strconv.Itoa(seed), l), l, k))
	}
	for _, s := range corpus(t) {
		out = append(out, newBase(t, s, nil, k))
	}
	return out
}

// generate returns a random honest log, the same for the same seed.
func generate(seed int) *foldtest.Log {
	return rapid.Custom(func(t *rapid.T) *foldtest.Log {
		return foldtest.GenerateLog(t, foldtest.Options{Body: audittest.Bodies(), Images: true, Forks: true})
	}).Example(seed)
}

// corpus returns the translated logs of the reference system: those of REFOLD_CORPUS, or beside the checkout.
func corpus(t *testing.T) []*audittest.Session {
	t.Helper()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "session.jsonl"))
	if err != nil || len(files) == 0 {
		t.Logf("the recorded scenarios are not in %s: set REFOLD_CORPUS to their folder", dir)
		return nil
	}
	var out []*audittest.Session
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		var cfg dsh.Config
		if uploads := filepath.Join(filepath.Dir(file), "files-api"); isDir(uploads) {
			cfg.Uploads = os.DirFS(uploads)
		}
		s, err := cfg.Translate(f)
		f.Close() //nolint:errcheck // only read
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		set := new(objects.Set)
		for _, o := range s.Objects {
			if err := set.Add(o.Ref, o.Data); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		out = append(out, audittest.OfEvents(name, s.ID, s.Events, s.Payloads, set))
	}
	return out
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// check returns the check of messages in the place of the session's, which states that it has last events.
func (b *base) check(messages []eventlog.Message, last uint64) audit.LogCheck {
	c := b.LogCheck()
	c.Messages, c.Last = audittest.Sequence(messages), last
	return c
}

// with adds what the verifier has signed.
func (b *base) with(c audit.LogCheck) audit.LogCheck {
	c.Prior, c.Trusted = b.signed, []string{b.key.Public()}
	return c
}

// witnessed adds receipts, and has each call need one.
func (b *base) witnessed(receipts []audit.PlacedReceipt) audit.LogCheck {
	c := b.LogCheck()
	c.Receipts, c.Witnesses = receipts, []string{b.witness.Public()}
	return c
}
