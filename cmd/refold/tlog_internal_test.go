package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/internal/tlog"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// logBench is a server with verdicts and a log of them.
type logBench struct {
	t      *testing.T
	url    string
	client *jetstream.Client
	admin  natsjs.JetStream
	key    *audit.Key
	dir    string // of the log
	logKey string
}

func newLogBench(t *testing.T) *logBench {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	b := &logBench{t: t, url: server.ClientURL(), dir: filepath.Join(t.TempDir(), "log")}
	if b.client, err = jetstream.Connect(t.Context(), jetstream.Config{URL: b.url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
	if err := b.client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(b.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if b.admin, err = natsjs.New(conn); err != nil {
		t.Fatal(err)
	}
	if b.key, err = audit.NewKey(); err != nil {
		t.Fatal(err)
	}
	signer, err := tlog.LoadSigner(b.dir+".key", "example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	b.logKey = signer.Key()
	return b
}

// session makes a session's stream.
func (b *logBench) session(n uint64) events.ID {
	b.t.Helper()
	id := foldtest.ID(1_700_000_000_000, n)
	if _, err := b.client.Logs().Create(b.t.Context(), id); err != nil {
		b.t.Fatal(err)
	}
	return id
}

// verdict publishes one, changed before or after it is signed.
func (b *logBench) verdict(id events.ID, seq uint64, kind audit.Kind, forge func(*audit.Verdict)) {
	b.t.Helper()
	v := audit.Verdict{Kind: kind, Session: id, Seq: seq, Result: audit.Match, Time: 1}
	if err := b.key.Sign(&v); err != nil {
		b.t.Fatal(err)
	}
	if forge != nil {
		forge(&v)
	}
	payload, err := v.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.Verdicts().Add(b.t.Context(), id, string(id)+string(kind)+string(rune('a'+seq)), payload); err != nil {
		b.t.Fatal(err)
	}
}

// keep brings the log up to date.
func (b *logBench) keep(size uint64) {
	b.t.Helper()
	signer, err := tlog.LoadSigner(b.dir+".key", "")
	if err != nil {
		b.t.Fatal(err)
	}
	i, err := tlog.New(tlog.Config{
		Dir: b.dir, Signer: signer, Verdicts: b.client.Verdicts(), Registry: prometheus.NewPedanticRegistry(), Interval: 5 * time.Millisecond,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- i.Run(ctx) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.point().Size != size {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatalf("the log has %d leaves, want %d: %v", b.point().Size, size, i.Health())
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.t.Fatal(err)
	}
}

func (b *logBench) point() translog.Checkpoint {
	signed, err := os.ReadFile(filepath.Join(b.dir, translog.CheckpointPath))
	if err != nil {
		return translog.Checkpoint{Size: translog.MaxSize}
	}
	c, err := translog.OpenCheckpoint(signed, b.logKey)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// run runs a command and returns its output and exit code.
func (b *logBench) run(args ...string) (out string, code int) {
	b.t.Helper()
	root := newRoot()
	var stdout bytes.Buffer
	root.SetOut(&stdout)
	root.SetErr(io.Discard)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(append([]string{"--nats", b.url, "--dir", filepath.Join(b.t.TempDir(), "none"), "tlog", "--log", b.dir}, args...))
	err := root.ExecuteContext(b.t.Context())
	exit, ok := errors.AsType[*program.ExitError](err)
	switch {
	case err == nil:
		return stdout.String(), 0
	case !ok:
		return stdout.String() + err.Error(), exitUnread
	}
	return stdout.String() + exit.Error(), exit.Code
}

// want runs a command and compares its exit code, and its output with what it must hold.
func (b *logBench) want(code int, holds string, args ...string) {
	b.t.Helper()
	if out, got := b.run(args...); got != code || !strings.Contains(out, holds) {
		b.t.Errorf("%q: exit code %d, want %d, output without %q:\n%s", args, got, code, holds, out)
	}
}

func TestTlogCommands(t *testing.T) {
	b := newLogBench(t)
	one, two := b.session(1), b.session(2)
	b.verdict(one, 1, audit.KindRequest, nil)
	b.verdict(two, 1, audit.KindRequest, nil)
	b.verdict(one, 2, audit.KindHead, nil)
	b.keep(3)
	b.want(0, "example.com/log\n3\n", "checkpoint", "--log-key", b.logKey)
	b.want(0, `{"origin":"example.com/log","size":3,`, "checkpoint", "--json")
	old := filepath.Join(t.TempDir(), "old")
	signed, _ := b.run("checkpoint")
	if err := os.WriteFile(old, []byte(signed), 0o600); err != nil {
		t.Fatal(err)
	}
	b.verdict(two, 3, audit.KindRequest, nil)
	b.keep(4)
	b.want(0, "=\n", "consistency", "--from", old, "--log-key", b.logKey)
	b.want(0, `"hashes":["`, "consistency", "--from", old, "--json")
	b.want(0, "size 4", "check", "--log-key", b.logKey, "--trust", b.key.Public())
	b.want(0, `"verdicts":4,"newer":0,"sessions":2,"findings":[]}`, "check", "--json")

	proof, entry := filepath.Join(t.TempDir(), "p.tlog-proof"), filepath.Join(t.TempDir(), "entry")
	b.want(0, "", "inclusion", string(one), "2", "--kind", "head", "-o", proof, "--entry", entry)
	b.want(0, "the head verdict match on event 2 of session "+string(one), "check-inclusion", proof, "--entry", entry, "--log-key", b.logKey)
	b.want(0, `"index":2}`, "check-inclusion", proof, "--entry", entry, "--log-key", b.logKey, "--json")
	b.want(exitUnread, "give --log-key", "check-inclusion", proof, "--entry", entry)
	b.want(exitFindings, "does not show the entry", "check-inclusion", proof, "--entry", proof, "--log-key", b.logKey)
	b.want(exitUnread, "invalid proof", "check-inclusion", entry, "--entry", entry, "--log-key", b.logKey)
	b.want(0, "index 3\n", "inclusion", "--index", "3")
	b.want(exitUnread, "beyond the end of the log", "inclusion", "--index", "4")
	b.want(exitUnread, "does not hold it", "inclusion", string(one), "9")
	b.want(exitUnread, "no session id", "inclusion", "x", "9")
	b.want(exitUnread, "no event", "inclusion", string(one), "0")
	b.want(exitUnread, "want one of", "inclusion", string(one), "1", "--kind", "x")

	other, err := tlog.LoadSigner(filepath.Join(t.TempDir(), "key"), "example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, "not signed by a trusted key", "checkpoint", "--log-key", other.Key())
	b.want(exitFindings, "not signed by a trusted key", "check-inclusion", proof, "--entry", entry, "--log-key", other.Key())
	b.want(exitUnread, "no key of a log", "checkpoint", "--log-key", "x")
	b.want(exitUnread, "not usable", "checkpoint", "--log", filepath.Join(t.TempDir(), "x"))
	b.want(exitUnread, "no address of a log", "checkpoint", "--log", "http://")
	forged, err := other.Sign(translog.Checkpoint{Origin: "example.com/log", Size: 3, Root: translog.LeafHash(nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, forged, 0o600); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, "not the beginning", "consistency", "--from", old)
	b.want(exitUnread, "invalid checkpoint", "consistency", "--from", entry)
}

// TestTlogSigner: an entry stands in the log whoever wrote it, and only a signature makes it a verdict.
func TestTlogSigner(t *testing.T) {
	b := newLogBench(t)
	one := b.session(1)
	stranger, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for place, forge := range []func(*audit.Verdict){
		func(v *audit.Verdict) { v.Verifier, v.Signature = "", nil },
		func(v *audit.Verdict) { v.Seq, v.Turn = 7, 9 }, // signed for something else
		func(v *audit.Verdict) {
			if err := stranger.Sign(v); err != nil {
				t.Fatal(err)
			}
		},
		nil, // the verifier's
	} {
		v := audit.Verdict{Kind: audit.KindRequest, Session: one, Seq: 7, Result: audit.Match, Time: int64(place)}
		if err := b.key.Sign(&v); err != nil {
			t.Fatal(err)
		}
		if forge != nil {
			forge(&v)
		}
		payload, err := v.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.client.Verdicts().Add(t.Context(), one, string(rune('a'+place)), payload); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.client.Verdicts().Add(t.Context(), one, "x", []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	b.keep(5)
	proof, entry := filepath.Join(t.TempDir(), "proof"), filepath.Join(t.TempDir(), "entry")
	mine, theirs := b.key.Public(), stranger.Public()
	checked := func(code int, holds string, args ...string) {
		t.Helper()
		b.want(code, holds, append([]string{"check-inclusion", proof, "--entry", entry, "--log-key", b.logKey}, args...)...)
	}
	for _, c := range []struct{ index, holds string }{{"0", "it has none"}, {"1", "signature verification failed"}} {
		b.want(0, "", "inclusion", "--index", c.index, "-o", proof, "--entry", entry)
		checked(exitFindings, c.holds)
		checked(exitFindings, c.holds, "--json")
		checked(exitFindings, c.holds, "--trust", mine)
	}
	b.want(0, "", "inclusion", "--index", "2", "-o", proof, "--entry", entry)
	checked(0, "\nit is signed by "+theirs+", which you did not say that you trust\n")
	checked(exitFindings, theirs+" signed it, and no --trust names that key", "--trust", mine)
	checked(exitFindings, "no --trust names that key", "--trust", mine, "--json")
	checked(exitUnread, "no usable signing key", "--trust", "x")

	b.want(0, "index 3\n", "inclusion", string(one), "7", "--trust", mine)
	b.want(0, "", "inclusion", string(one), "7", "--trust", mine, "-o", proof, "--entry", entry)
	b.want(0, "index 2\n", "inclusion", string(one), "7") // the first that anybody signed
	checked(0, "the request verdict match on event 7 of session "+string(one)+" stands in the log example.com/log, at index 3 of 5\nit is signed by "+mine+"\n", "--trust", mine)
	checked(0, `"verdict":{"v":1,"kind":"request"`, "--trust", theirs, "--trust", mine, "--json")
	nobody, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b.want(exitUnread, "the entry at index 0 says so and does not count", "inclusion", string(one), "7", "--trust", nobody.Public())
	b.want(exitUnread, "no usable signing key", "inclusion", string(one), "7", "--trust", "x")

	b.want(0, "", "inclusion", "--index", "4", "-o", proof, "--entry", entry)
	checked(0, "an entry that is no verdict stands in the log")
	checked(exitFindings, "", "--trust", mine)
}

// TestTlogNeverWas: a verdict on a call says nothing of the session that the call named, which may never have been.
func TestTlogNeverWas(t *testing.T) {
	b := newLogBench(t)
	never := foldtest.ID(1_700_000_000_000, 9)
	stray := audit.Verdict{
		Kind: audit.KindStray, Session: never, Seq: 5, Result: audit.Mismatch, Rule: audit.RuleUnlogged, Reason: "no log permits it",
		Wire: events.BodyDigest{Bytes: 2, SHA256: events.HashPayload([]byte("{}"))}, Receipt: 1, Time: 1,
	}
	if err := b.key.Sign(&stray); err != nil {
		t.Fatal(err)
	}
	payload, err := stray.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.StrayVerdicts().Add(t.Context(), never, "stray", payload); err != nil {
		t.Fatal(err)
	}
	b.keep(1)
	b.want(0, "", "check")
}

// TestTlogFindings removes and changes things, and finds them.
func TestTlogFindings(t *testing.T) {
	b := newLogBench(t)
	one, two := b.session(1), b.session(2)
	b.verdict(one, 1, audit.KindRequest, nil)
	b.verdict(two, 1, audit.KindRequest, nil)
	b.verdict(two, 2, audit.KindRequest, func(v *audit.Verdict) { v.Seq = 3 })
	if _, err := b.client.Verdicts().Add(t.Context(), one, "x", []byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	b.keep(4)
	out, code := b.run("check", "--json")
	if code != exitFindings || strings.Count(out, `"what":"signature"`) != 2 || !strings.Contains(out, `"place":3`) || !strings.Contains(out, `"place":4`) {
		t.Errorf("%d: %s", code, out)
	}
	stranger, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, "which is not trusted", "check", "--trust", stranger.Public())
	b.want(exitUnread, "no usable signing key", "check", "--trust", "x")

	if err := b.admin.DeleteStream(t.Context(), jetstream.SessionStream(two)); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, `{"what":"gone","place":2,"session":"`+string(two)+`"`, "check", "--json")

	if err := b.admin.DeleteStream(t.Context(), jetstream.VerdictsStream); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, `{"what":"stream","place":1,`, "check", "--json")
	if err := b.client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.verdict(one, 1, audit.KindRequest, nil)
	b.want(exitFindings, `{"what":"stream","place":2,"text":"the stored verdicts end before place 2`, "check", "--json")
	b.verdict(one, 2, audit.KindRequest, nil)
	b.want(exitFindings, `{"what":"stream","place":2,"text":"another verdict is stored`, "check", "--json")
	if out, code := b.run("check", "--offline", "--json"); code != exitFindings || strings.Contains(out, "stream") {
		t.Errorf("%d: %s", code, out)
	}

	path := filepath.Join(b.dir, "tile", "entries", "000.p", "4")
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, `{"what":"files","place":1,`, "check", "--offline", "--json")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, "no such file", "check", "--offline")
	if err := os.Truncate(filepath.Join(b.dir, "tile", "0", "000.p", "4"), 100); err != nil {
		t.Fatal(err)
	}
	b.want(exitFindings, "differ", "check", "--offline")
}
