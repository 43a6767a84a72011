package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// full is a device without room.
type full struct{}

var errFull = errors.New("no space left on device")

func (full) Write([]byte) (int, error) { return 0, errFull }

// exitOf runs the program with arguments and returns its exit code.
func exitOf(t *testing.T, out io.Writer, args ...string) int {
	t.Helper()
	root := newRoot()
	root.SetOut(out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	return program.Main(root)
}

// TestUsageIsNoFinding: whoever looks at the exit code of an audit must not take a mistyped flag for a finding.
func TestUsageIsNoFinding(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{
		{"verify"},
		{"verify", "a", "b"},
		{"verify", "--trsut", "K", "a"},
		{"verify", "a", "--trust"},
		{"verify", "a", "--cold=x"},
		{"verify", "a"},
		{"verify", "01M8PG4VB622RY2RMXB3YG5CRA", "--dir", none},
		{"verify", "a", "--trust", "K"},
		{"--jsn", "verify", "a"},
		{"verify", "--jsn=1", "a"},
		{"audit"},
		{"audit", "a", "b"},
		{"audit", "--trsut"},
		{"audit", "a", "--trust"},
		{"audit", none},
		{"audit", "a", "--trust", "K"},
		{"tlog", "nonsense"},
		{"tlog", "--nonsense"},
		{"tlog", "check", "--trsut"},
		{"tlog", "check", "x"},
		{"tlog", "consistency"},
		{"tlog", "consistency", "--from", none, "--log", none},
		{"tlog", "check-inclusion"},
		{"tlog", "check-inclusion", none},
		{"tlog", "check-inclusion", none, "--log-key", "x", "--entry", none},
		{"tlog", "inclusion"},
		{"tlog", "inclusion", "--index", "x"},
		{"tlog", "checkpoint", "--log", none},
		{"nonsense"},
		{"--nonsense"},
		{"session", "nonsense"},
	} {
		if code := exitOf(t, io.Discard, args...); code != exitUnread {
			t.Errorf("%q: exit code %d, want %d", args, code, exitUnread)
		}
	}
	if code := exitOf(t, io.Discard, "session", "list", "--dir", none); code != 1 {
		t.Errorf("another command: exit code %d, want 1", code)
	}
	if code := exitOf(t, io.Discard, "tlog"); code != 0 {
		t.Errorf("help: exit code %d, want 0", code)
	}
}

// TestFullOutput: what cannot be told is no finding, even if there is one.
func TestFullOutput(t *testing.T) {
	b := newLogBench(t)
	good, bad := turned("good", 1, false), turned("bad", 2, true)
	b.put(good)
	b.put(bad)
	b.verdict(good.ID, 1, audit.KindRequest, nil)
	b.keep(1)
	dir := t.TempDir()
	for _, c := range []struct {
		session *audittest.Session
		code    int
	}{{good, 0}, {bad, exitFindings}} {
		file := filepath.Join(dir, c.session.Name)
		out := new(bytes.Buffer)
		w, err := bundle.NewWriter(out, bundle.Manifest{Session: c.session.ID, Last: uint64(len(c.session.Messages))})
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.session.Messages {
			if err := w.Message(&c.session.Messages[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"audit", file}, {"audit", file, "--json"}} {
			if code := exitOf(t, io.Discard, args...); code != c.code {
				t.Errorf("%q: exit code %d, want %d", args, code, c.code)
			}
			if code := exitOf(t, full{}, args...); code != exitUnread {
				t.Errorf("%q into what is full: exit code %d, want %d", args, code, exitUnread)
			}
		}
	}
	at := []string{"--nats", b.url, "--dir", filepath.Join(dir, "none")}
	for _, args := range [][]string{
		{"verify", string(good.ID)},
		{"verify", string(bad.ID), "--json"},
		{"tlog", "--log", b.dir, "checkpoint"},
		{"tlog", "--log", b.dir, "check", "--offline"},
		{"tlog", "--log", b.dir, "inclusion", "--index", "0"},
	} {
		if code := exitOf(t, full{}, append(args, at...)...); code != exitUnread {
			t.Errorf("%q into what is full: exit code %d, want %d", args, code, exitUnread)
		}
	}
}

// turned returns a session of one turn, whose request was recorded with another body than it has when lie is set.
func turned(name string, n uint64, lie bool) *audittest.Session {
	l := &foldtest.Log{State: fold.New(foldtest.ID(1_700_000_000_000, n)), Objects: new(objects.Set)}
	body := audittest.Bodies()
	l.Body = func(request *fold.Request, source objects.Source) (string, events.BodyDigest) {
		codec, digest := body(request, source)
		if lie {
			digest.SHA256[0]++
		}
		return codec, digest
	}
	l.Begin()
	l.Turn("hello", "there")
	return audittest.Of(name, l)
}

// put stores a session, which has no objects.
func (b *logBench) put(s *audittest.Session) {
	b.t.Helper()
	log, err := b.client.Logs().Create(b.t.Context(), s.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range s.Events {
		if err := log.Append(b.t.Context(), &s.Events[i], s.Messages[i].Payload); err != nil {
			b.t.Fatal(err)
		}
	}
}
