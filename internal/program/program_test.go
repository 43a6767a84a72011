package program_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/audit"
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

// TestKeyOfLogin: nothing signs with the key that its NATS credentials hold.
func TestKeyOfLogin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, creds := filepath.Join(dir, "key.seed"), filepath.Join(dir, "creds")
	if _, err := keyfile.Load(file); err != nil {
		t.Fatal(err)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(creds, append([]byte("-----BEGIN USER NKEY SEED-----\n"), seed...), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := program.NewVerifier(nil, &program.VerifierFlags{KeyFile: file, Creds: creds}, nil, log); !errors.Is(err, audit.ErrKey) {
		t.Errorf("a verifier: %v", err)
	}
	flags := &program.WitnessFlags{Listen: "127.0.0.1:0", Upstream: "https://api.example", KeyFile: file, Creds: creds}
	if _, err := program.NewWitness(t.Context(), nil, flags, nil, log); !errors.Is(err, audit.ErrKey) {
		t.Errorf("a witness: %v", err)
	}
}

// TestFailWith: the nearest command above decides, and without one a usage error is told from others.
func TestFailWith(t *testing.T) {
	t.Parallel()
	fails := func(*cobra.Command, []string) error { return errors.ErrUnsupported }
	for want, line := range map[int][]string{1: {"plain"}, 2: {"plain", "--x"}, 7: {"seven"}, 8: {"seven", "eight"}, 9: {"seven", "own"}} {
		root := &cobra.Command{Use: "root"}
		seven := &cobra.Command{Use: "seven", RunE: fails}
		program.FailWith(seven, 7)
		eight := &cobra.Command{Use: "eight", RunE: fails}
		program.FailWith(eight, 8)
		own := &cobra.Command{Use: "own", RunE: func(*cobra.Command, []string) error { return &program.ExitError{Code: 9} }}
		seven.AddCommand(eight, own)
		root.AddCommand(&cobra.Command{Use: "plain", RunE: fails}, seven)
		root.SetArgs(line)
		if got := program.Main(root); got != want {
			t.Errorf("%q: exit code %d, want %d", line, got, want)
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
