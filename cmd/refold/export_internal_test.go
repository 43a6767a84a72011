package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// exportBench is a server with a session that grows when a test says so.
type exportBench struct {
	t       *testing.T
	client  *jetstream.Client
	session *audittest.Session
	signed  []audit.Verdict
	witness *audit.Key
	log     eventlog.Log
	stored  int // messages
	place   uint64
}

// newExportBench returns a server whose object store has the session's objects from the one at index first on.
func newExportBench(t *testing.T, first int) *exportBench {
	t.Helper()
	server, err := embedded.Start(embedded.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	client, err := jetstream.Connect(t.Context(), jetstream.Config{InProcess: server.InProcess()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b := &exportBench{t: t, client: client, session: audittest.Of("whole", audittest.Whole())}
	b.signed = b.session.Sign(t.Context(), key)
	if b.witness, err = audit.NewKey(); err != nil {
		t.Fatal(err)
	}
	for _, ref := range b.session.Refs[first:] {
		data, ok := b.session.Source.Bytes(ref.Digest)
		if !ok {
			t.Fatalf("no object %s", ref)
		}
		if _, err := objects.Put(t.Context(), client.Objects(), ref.MediaType, data); err != nil {
			t.Fatal(err)
		}
	}
	if b.log, err = client.Logs().Create(t.Context(), b.session.ID); err != nil {
		t.Fatal(err)
	}
	return b
}

// grow stores the messages up to the n-th, with receipts.
func (b *exportBench) grow(n int) {
	b.t.Helper()
	for ; b.stored < n; b.stored++ {
		e := &b.session.Events[b.stored]
		if err := b.log.Append(b.t.Context(), e, b.session.Messages[b.stored].Payload); err != nil {
			b.t.Fatal(err)
		}
		call, ok := e.Body.(*events.LLMStream)
		if !ok {
			continue
		}
		r := audit.Receipt{
			Kind: audit.ReceiptRequest, Call: foldtest.ID(e.Time, e.Seq), Session: b.session.ID, Seq: e.Seq, Method: "POST", Target: "/chat/completions",
			Body: call.Body, Time: e.Time,
		}
		if err := b.witness.SignReceipt(&r); err != nil {
			b.t.Fatal(err)
		}
		payload, err := r.Encode()
		if err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.client.Receipts().Add(b.t.Context(), b.session.ID, string(r.Call), payload); err != nil {
			b.t.Fatal(err)
		}
	}
}

// sign stores the verdicts about the events up to the n-th.
func (b *exportBench) sign(n int) {
	b.t.Helper()
	for ; len(b.signed) > 0 && b.signed[0].Seq <= uint64(n); b.signed = b.signed[1:] {
		v := &b.signed[0]
		payload, err := v.Encode()
		if err != nil {
			b.t.Fatal(err)
		}
		id := fmt.Sprintf("%s.%d.%s", v.Session, v.Seq, v.Kind)
		if b.place, err = b.client.Verdicts().Append(b.t.Context(), v.Session, id, payload, b.place); err != nil {
			b.t.Fatal(err)
		}
	}
}

// export writes a bundle and audits it.
func (b *exportBench) export(log eventlog.Log, withhold ...events.Type) (*bundle.Report, []string) {
	b.t.Helper()
	var warnings []string
	withheld, err := audit.NewWithholding(withhold)
	if err != nil {
		b.t.Fatal(err)
	}
	x := &exporter{client: b.client, id: b.session.ID, log: log, withheld: withheld, warn: func(s string) { warnings = append(warnings, s) }}
	var out bytes.Buffer
	if _, err := x.write(b.t.Context(), &out); err != nil {
		b.t.Fatal(err)
	}
	r, err := bundle.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		b.t.Fatal(err)
	}
	report, err := bundle.Check(b.t.Context(), r, bundle.Options{Witnesses: []string{b.witness.Public()}})
	if err != nil {
		b.t.Fatal(err)
	}
	return report, warnings
}

func found(r *bundle.Report) string {
	var b strings.Builder
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Result != audit.Match {
			fmt.Fprintf(&b, "%s\n", v)
		}
	}
	return b.String()
}

// growingLog grows when somebody has asked where it ends.
type growingLog struct {
	eventlog.Log

	grow func()
}

func (g *growingLog) Last(ctx context.Context) (uint64, error) {
	last, err := g.Log.Last(ctx)
	if g.grow != nil {
		g.grow()
		g.grow = nil
	}
	return last, err
}

// TestExportOfAGrowingSession exports at every length while the session grows at the worst moment: what is written is a
// snapshot in which everything fits.
func TestExportOfAGrowingSession(t *testing.T) {
	t.Parallel()
	b := newExportBench(t, 0)
	all := len(b.session.Messages)
	for n := 1; n < all; n = b.stored + 1 {
		b.grow(n)
		b.sign(n)
		later := min(n+3, all)
		report, warnings := b.export(&growingLog{Log: b.log, grow: func() { b.grow(later); b.sign(later) }})
		if got := found(report); got != "" || len(warnings) > 0 || report.Last != uint64(n) {
			t.Errorf("at %d of %d: %d events, %q\n%s", n, all, report.Last, warnings, got)
		}
	}
	b.grow(all)
	b.sign(all)
	report, warnings := b.export(b.log)
	if got := found(report); got != "" || len(warnings) > 0 || report.Matches != report.Requests || report.Passed != report.Calls || report.Calls == 0 {
		t.Errorf("%d of %d requests, %d of %d calls, %q\n%s", report.Matches, report.Requests, report.Passed, report.Calls, warnings, got)
	}
	if report, _ := b.export(b.log, events.TypeUserMessage); report.Unchecked == 0 || report.Confirmed == 0 {
		t.Errorf("withheld: %d unchecked of %d", report.Unchecked, report.Requests)
	}
}

// cutLog is a log that was cut, and says so of its length.
type cutLog struct {
	eventlog.Log

	last uint64
}

func (s *cutLog) Last(context.Context) (uint64, error) { return s.last, nil }

// TestExportOfACutSession exports a log that ends before what was signed about it: the verdicts are there, and tell.
func TestExportOfACutSession(t *testing.T) {
	t.Parallel()
	b := newExportBench(t, 0)
	all := len(b.session.Messages)
	b.grow(all)
	b.sign(all)
	report, _ := b.export(&cutLog{Log: b.log, last: uint64(all) - 3})
	if got := found(report); !strings.Contains(got, `rule "signed"`) {
		t.Errorf("%s", got)
	}
}

// TestExportWithoutAnObject leaves out what the store lacks, and says so; the requests that need it are not matches.
func TestExportWithoutAnObject(t *testing.T) {
	t.Parallel()
	b := newExportBench(t, 1)
	b.grow(len(b.session.Messages))
	gone := b.session.Refs[0].Digest
	report, warnings := b.export(b.log)
	if got := found(report); !strings.Contains(got, string(audit.MissingObject)) || len(warnings) != 1 || !strings.Contains(warnings[0], gone.String()) {
		t.Errorf("%q\n%s", warnings, got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := &exporter{client: b.client, id: b.session.ID, log: b.log, warn: func(string) {}}
	if _, err := x.write(ctx, io.Discard); err == nil {
		t.Error("no answer, and a bundle")
	}
}

// TestInstall shows that a file is there as a whole or not at all.
func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "s.bundle")
	left := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	failed := errors.New("failed")
	if err := install(file, false, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 3<<20))
		return errors.Join(err, failed)
	}); !errors.Is(err, failed) || left() != 0 {
		t.Errorf("%v, %d files", err, left())
	}
	write := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	if err := install(file, false, write("one")); err != nil || left() != 1 {
		t.Fatalf("%v, %d files", err, left())
	}
	if err := install(file, false, write("two")); err == nil || left() != 1 {
		t.Errorf("%v, %d files", err, left())
	}
	if err := install(file, true, write("three")); err != nil || left() != 1 {
		t.Errorf("%v, %d files", err, left())
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "three" {
		t.Errorf("%q, %v", b, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != fs.FileMode(0o600) {
		t.Errorf("%v, %v", info, err)
	}
	if err := install(filepath.Join(dir, "none", "s.bundle"), false, write("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestInstallTogether: of several that write one file none replaces what another wrote.
func TestInstallTogether(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "s.bundle")
	const writers = 8
	written := make(chan int, writers)
	var ready, done sync.WaitGroup
	ready.Add(writers)
	for i := range writers {
		done.Go(func() {
			err := install(file, false, func(w io.Writer) error {
				ready.Done()
				ready.Wait() // nobody is done before all have begun
				_, err := fmt.Fprint(w, i)
				return err
			})
			if err == nil {
				written <- i
			} else if !errors.Is(err, errTaken) {
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	done.Wait()
	close(written)
	var winners []int
	for i := range written {
		winners = append(winners, i)
	}
	b, err := os.ReadFile(file)
	if err != nil || len(winners) != 1 || string(b) != strconv.Itoa(winners[0]) {
		t.Errorf("the file holds %q, and %d wrote it: %v", b, winners, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left: %v", len(entries), err)
	}
	if err := install(dir, true, func(io.Writer) error { return nil }); err == nil {
		t.Error("a directory was replaced")
	}
}
