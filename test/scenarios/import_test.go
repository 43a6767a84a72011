package scenarios_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/embedded"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/events"
)

// TestImportOfCorpus imports every recorded log in both forms, and those of processes that died; each verifies, and a
// worker of ours goes on with it.
func TestImportOfCorpus(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*", "session.jsonl"))
	if err != nil || len(logs) == 0 {
		t.Skipf("SKIPPED: no recorded scenarios in %s (%v): set REFOLD_CORPUS to their folder", dir, err)
	}
	died, err := filepath.Glob(filepath.Join(dir, "12*", "after-phase", "*.jsonl"))
	if err != nil || len(died) == 0 {
		t.Fatalf("no logs of processes that died: %v", err)
	}
	dev := startDev(t, t.TempDir())
	imported := regexp.MustCompile(`: [1-9]\d* events and \d+ objects imported`)
	for i, log := range slices.Concat(logs, died) {
		id := fmt.Sprintf("01M8PBNPDDBXV0WEYPCXQ8R%03d", i)
		name, _ := filepath.Rel(dir, log)
		text := dev.refold(t, "import", "dsh", log, "--session", id)
		if !imported.MatchString(text) {
			t.Errorf("%s: %s", name, text)
		}
		if packed := log + ".zstd"; fileExists(packed) {
			if text := dev.refold(t, "import", "dsh", packed, "--session", id); !strings.Contains(text, "were imported before") {
				t.Errorf("%s.zstd: %s", name, text)
			}
		}
		before := dev.verified(t, name, id)
		if text := dev.refold(t, "session", "send", id, "--wait", "30s", "Go on please."); !strings.Contains(text, `You said "Go on please."`) {
			t.Errorf("%s: %s", name, text)
		}
		if after := dev.verified(t, name, id); after <= before {
			t.Errorf("%s: %d requests, and %d when it has gone on", name, before, after)
		}
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// devProcess is refold dev in a home.
type devProcess struct{ home string }

// startDev starts refold dev and waits until it is ready. It is stopped when the test ends.
func startDev(t *testing.T, home string) *devProcess {
	t.Helper()
	p := &process{done: make(chan struct{}), ready: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), filepath.Join(programs, "refold"), "dev", "--dir", home)
	p.cmd.Env = append(os.Environ(), "REFOLD_NATS=")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(bufio.NewScanner(out), regexp.MustCompile("(?m)^ready"))
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	})
	select {
	case <-p.ready:
	case <-p.done:
		t.Fatalf("refold dev ended: %v\n%s", p.err, p.text())
	case <-time.After(patience):
		t.Fatalf("refold dev is not ready:\n%s", p.text())
	}
	return &devProcess{home: home}
}

// refold runs the program on the home and returns all that it says.
func (d *devProcess) refold(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "refold"), args...)
	cmd.Env = append(os.Environ(), "REFOLD_DIR="+d.home, "REFOLD_NATS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("refold %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// verified wants all requests of a session to match, and returns how many there are.
func (d *devProcess) verified(t *testing.T, name, id string) int {
	t.Helper()
	m := regexp.MustCompile(`(\d+) requests, (\d+) match`).FindStringSubmatch(d.refold(t, "verify", id, "--cold"))
	if m == nil || m[1] != m[2] {
		t.Errorf("%s: session %s: %q", name, id, m)
		return 0
	}
	var n int
	if _, err := fmt.Sscan(m[1], &n); err != nil {
		t.Error(err)
	}
	return n
}

// TestImportKilled kills an import in the middle, several times; the next one goes on, and the session is the one that an
// undisturbed import makes.
func TestImportKilled(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	client, err := jetstream.Connect(t.Context(), jetstream.Config{URL: s.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var rows bytes.Buffer
	rows.WriteString(`{"type":"session","version":0,"id":"k","createdAt":1796046772653}` + "\n")
	const notes = 5000
	for i := range notes {
		fmt.Fprintf(&rows, `{"type":"note","seq":%d,"time":1796046772654,"data":{"n":%d}}`+"\n", i, i)
	}
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, rows.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const id, all = "01M8PBNPDDBXV0WEYPCXQ8RF99", notes + 3
	command := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), filepath.Join(programs, "refold"), append(args, "--nats", s.ClientURL())...)
	}
	for _, at := range []uint64{1, 500, 1500} {
		cmd := command("import", "dsh", file, "--session", id)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := awaitEvents(t, client, id, at)
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if last >= all {
			t.Fatalf("it was not killed in the middle: %d events", last)
		}
	}
	out, err := command("import", "dsh", file, "--session", id).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("events were imported before, ")) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = command("import", "dsh", file, "--session", id).CombinedOutput()
	if want := fmt.Sprintf("the %d events were imported before", all); err != nil || !bytes.Contains(out, []byte(want)) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := command("verify", id).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// awaitEvents waits until the session has so many events, and returns how many there are.
func awaitEvents(t *testing.T, client *jetstream.Client, id events.ID, n uint64) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if err := ctx.Err(); err != nil {
			t.Fatalf("no %d events: %v", n, err)
		}
		log, err := client.Logs().Open(ctx, id)
		if err != nil {
			continue // it is not made yet
		}
		if last, err := log.Last(ctx); err == nil && last >= n {
			return last
		}
	}
}
