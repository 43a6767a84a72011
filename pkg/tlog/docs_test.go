package tlog_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/tlog"
)

// TestDocumentedExample compares the example in the documentation with what the package does.
func TestDocumentedExample(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "format", "tlog.md"))
	if err != nil {
		t.Fatal(err)
	}
	s := signer(t, origin, 7)
	m := memory{}
	b := tlog.NewBuilder(m.write)
	shown := func(what, text string) {
		t.Helper()
		if !strings.Contains(string(doc), text) {
			t.Errorf("docs/format/tlog.md lacks %s:\n%s", what, text)
		}
	}
	sign := func() []byte {
		t.Helper()
		signed, err := s.Sign(point(t, b))
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	shown("the public key", s.Key())
	var old tlog.Checkpoint
	for _, payload := range []string{"one", "two", "three"} {
		if err := b.Append([]byte(payload)); err != nil {
			t.Fatal(err)
		}
		leaf := tlog.LeafHash([]byte(payload))
		shown("a leaf", hex.EncodeToString(leaf[:]))
		if b.Size() == 2 {
			old = point(t, b)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	c := point(t, b)
	shown("the root", hex.EncodeToString(c.Root[:]))
	shown("the root of two", hex.EncodeToString(old.Root[:]))
	shown("the root of two in base64", old.Root.String())
	shown("the bundle", hex.EncodeToString(m["tile/entries/000.p/3"]))
	shown("the checkpoint", string(sign()))
	tree := open(t, m, c)
	hashes, err := tree.Inclusion(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := (&tlog.Proof{Index: 2, Hashes: hashes, Checkpoint: sign()}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	shown("the proof", string(proof))
	if _, err := (&tlog.Proof{Index: 2, Hashes: hashes, Checkpoint: sign()}).Verify([]byte("three"), s.Key()); err != nil {
		t.Error(err)
	}
	consistency, err := tree.Consistency(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(consistency) != 1 || consistency[0] != tlog.LeafHash([]byte("three")) {
		t.Errorf("%v", consistency)
	}
	shown("the consistency proof", consistency[0].String())
	long := tlog.Entry(bytes.Repeat([]byte("x"), tlog.MaxEntry+1))
	shown("the entry for a long payload", string(long))
}
