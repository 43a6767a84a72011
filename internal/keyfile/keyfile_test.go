package keyfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/pkg/audit"
)

func seed(t *testing.T) string {
	t.Helper()
	seed, err := nkeys.EncodeSeed(nkeys.PrefixByteUser, bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return string(seed)
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "verifier.seed")
	made, err := keyfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	again, err := keyfile.Load(path)
	if err != nil || again.Public() != made.Public() {
		t.Errorf("read again: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v %v", left, err)
	}
	exchange, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	curve, err := exchange.Seed()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty": "", "text": "hello\n", "public": made.Public(), "long": seed(t) + strings.Repeat("\n", 5000), "curve": string(curve),
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := keyfile.Load(file)
		if !errors.Is(err, audit.ErrKey) || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if kept, err := os.ReadFile(file); err != nil || string(kept) != content {
			t.Errorf("%s: the file was changed", name)
		}
	}
	nowhere := filepath.Join(dir, "no", "such", "place")
	if _, err := keyfile.Load(nowhere); !errors.Is(err, audit.ErrKey) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), nowhere+":") {
		t.Errorf("no directory: %v", err)
	}
	if _, err := keyfile.Load(dir); !errors.Is(err, audit.ErrKey) {
		t.Errorf("a directory: %v", err)
	}
}
