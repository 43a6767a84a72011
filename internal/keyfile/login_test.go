package keyfile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/pkg/audit"
)

// TestNotLogin: who can choose what a key signs for a login can have it sign verdicts.
func TestNotLogin(t *testing.T) {
	key, err := audit.KeyFromSeed([]byte(seed(t)))
	if err != nil {
		t.Fatal(err)
	}
	as := func(kind nkeys.PrefixByte, of byte) string {
		s, err := nkeys.EncodeSeed(kind, bytes.Repeat([]byte{of}, 32))
		if err != nil {
			t.Fatal(err)
		}
		return string(s)
	}
	const jwt = "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.e30.AAAA\n------END NATS USER JWT------\n\n"
	creds := func(seed string) string {
		return jwt + "************************* IMPORTANT *************************\n-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n"
	}
	for name, c := range map[string]struct {
		content string
		same    bool
	}{
		"its own":           {creds(as(nkeys.PrefixByteUser, 7)), true},
		"its own, DOS":      {strings.ReplaceAll(creds(as(nkeys.PrefixByteUser, 7)), "\n", "\r\n"), true},
		"its own, bare":     {as(nkeys.PrefixByteUser, 7), true},
		"as an account":     {creds(as(nkeys.PrefixByteAccount, 7)), true},
		"another":           {creds(as(nkeys.PrefixByteUser, 8)), false},
		"another's account": {creds(as(nkeys.PrefixByteAccount, 8)), false},
		"the public key":    {jwt + key.Public(), false},
		"no seed":           {jwt, false},
		"nothing":           {"", false},
	} {
		path := filepath.Join(t.TempDir(), "creds")
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := keyfile.NotLogin(key, path)
		if errors.Is(err, audit.ErrKey) != c.same || (err == nil) == c.same {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "SU") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := keyfile.NotLogin(key, ""); err != nil {
		t.Errorf("without credentials: %v", err)
	}
	if err := keyfile.NotLogin(key, filepath.Join(t.TempDir(), "none")); !errors.Is(err, audit.ErrKey) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
