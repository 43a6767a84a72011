package program_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain: caf\u00e9 \U0001F600":  "plain: caf\u00e9 \U0001F600",
		"two\nlines\r\n":               "two; lines ; ",
		"\x1b[31mred\x07\x00\u009b2J":  "\uFFFD[31mred\uFFFD\uFFFD\uFFFD2J",
		"right\u202eleft\u2028next":    "right\uFFFDleft\uFFFDnext",
		"not UTF-8 \xff, \xed\xa0\xbd": "not UTF-8 \uFFFD, \uFFFD\uFFFD\uFFFD",
	} {
		if got := program.OneLine(errors.New(in)); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestHome(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "home")
	if _, err := program.OpenHome(dir, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a home that is not there: %v", err)
	}
	home, err := program.OpenHome(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	server, release, err := home.Serve(-1, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := home.Serve(-1, log); !errors.Is(err, program.ErrInUse) {
		t.Errorf("a home that is served: %v", err)
	}
	client, done, err := home.Connect(t.Context(), log) // over the other's socket
	if err != nil {
		t.Fatal(err)
	}
	if err := client.EnsureStreams(t.Context()); err != nil {
		t.Error(err)
	}
	done()
	other, err := program.OpenHome(filepath.Join(t.TempDir(), "other"), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Serve(server.Port(), log); err == nil || errors.Is(err, program.ErrInUse) {
		t.Errorf("a port that is taken, %s: %v", strconv.Itoa(server.Port()), err)
	}
	release()
	if _, err := os.Stat(filepath.Join(dir, "address")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the address is still there: %v", err)
	}
	if _, done, err = home.Connect(t.Context(), log); err != nil { // a server of its own
		t.Fatal(err)
	}
	done()
	_, release, err = other.Serve(-1, log) // the failure has left no lock
	if err != nil {
		t.Fatal(err)
	}
	release()
}
