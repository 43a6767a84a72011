package tlog_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/tlog"
)

// signer returns the key that a seed of sevens gives; its signatures are always the same.
func signer(t testing.TB, origin string, fill byte) *tlog.Signer {
	t.Helper()
	secret, err := tlog.GenerateSigner(bytes.NewReader(bytes.Repeat([]byte{fill}, 64)), origin)
	if err != nil {
		t.Fatal(err)
	}
	s, err := tlog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const origin = "example.com/log"

func TestCheckpoint(t *testing.T) {
	s := signer(t, origin, 7)
	_, b := grow(t, 3)
	c := point(t, b)
	signed, err := s.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tlog.OpenCheckpoint(signed, s.Key(), s.Key())
	if err != nil || got != c {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := tlog.ReadCheckpoint(signed); err != nil || got != c {
		t.Fatalf("%+v, %v", got, err)
	}
	other := signer(t, origin, 8)
	if _, err := tlog.OpenCheckpoint(signed, other.Key()); !errors.Is(err, tlog.ErrSignature) {
		t.Errorf("another key: %v", err)
	}
	if _, err := tlog.OpenCheckpoint(signed); !errors.Is(err, tlog.ErrSignature) {
		t.Errorf("no key: %v", err)
	}
	if got, err := tlog.OpenCheckpoint(signed, other.Key(), s.Key()); err != nil || got != c {
		t.Errorf("one of two keys: %v", err)
	}
	if _, err := tlog.OpenCheckpoint(signed, "nonsense"); !errors.Is(err, tlog.ErrKey) {
		t.Errorf("no key: %v", err)
	}
	for i := range signed {
		changed := bytes.Clone(signed)
		changed[i] ^= 1
		if _, err := tlog.OpenCheckpoint(changed, s.Key()); !errors.Is(err, tlog.ErrSignature) && !errors.Is(err, tlog.ErrCheckpoint) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
}

// TestCosigned takes a checkpoint that others have signed too, and none of a key that speaks for another log.
func TestCosigned(t *testing.T) {
	_, b := grow(t, 3)
	c := point(t, b)
	s := signer(t, origin, 7)
	text, err := c.Text()
	if err != nil {
		t.Fatal(err)
	}
	secret, witness, err := note.GenerateKey(bytes.NewReader(bytes.Repeat([]byte{9}, 64)), "example.com/witness")
	if err != nil {
		t.Fatal(err)
	}
	cosigner, err := note.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := note.Sign(&note.Note{Text: text}, cosigner)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tlog.OpenCheckpoint(alone, witness); !errors.Is(err, tlog.ErrSignature) {
		t.Errorf("signed for another name: %v", err)
	}
	signed, err := s.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	both := append(bytes.Clone(signed), alone[len(text)+1:]...)
	if got, err := tlog.OpenCheckpoint(both, s.Key()); err != nil || got != c {
		t.Errorf("cosigned: %v", err)
	}
	if _, err := s.Sign(tlog.Checkpoint{Origin: "example.com/other", Root: tlog.EmptyRoot()}); !errors.Is(err, tlog.ErrOrigin) {
		t.Errorf("signs for another log: %v", err)
	}
}

func TestCheckpointText(t *testing.T) {
	root := tlog.LeafHash(nil).String()
	for name, text := range map[string]string{
		"empty":             "",
		"two lines":         "log\n1\n",
		"no line end":       "log\n1\n" + root,
		"an extension":      "log\n1\n" + root + "\nmore\n",
		"an empty line":     "log\n1\n" + root + "\n\n",
		"a leading zero":    "log\n01\n" + root + "\n",
		"a plus":            "log\n+1\n" + root + "\n",
		"a negative size":   "log\n-1\n" + root + "\n",
		"a large size":      "log\n72057594037927937\n" + root + "\n",
		"no number":         "log\nx\n" + root + "\n",
		"no name":           "\n1\n" + root + "\n",
		"a space in a name": "a log\n1\n" + root + "\n",
		"a plus in a name":  "a+log\n1\n" + root + "\n",
		"a short root":      "log\n1\n" + root[4:] + "\n",
		"a long root":       "log\n1\n" + root + "AAAA\n",
		"trailing bits":     "log\n1\n" + strings.TrimSuffix(root, root[42:]) + "f=\n",
		"size 0, a root":    "log\n0\n" + root + "\n",
		"very long":         "log\n1\n" + strings.Repeat("A", tlog.MaxCheckpointBytes) + "\n",
	} {
		if _, err := tlog.ParseCheckpoint(text); !errors.Is(err, tlog.ErrCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := tlog.Checkpoint{
			Origin: rapid.StringMatching(`[a-z./-]{1,40}`).Draw(rt, "origin"), Size: rapid.Uint64Range(1, tlog.MaxSize).Draw(rt, "size"),
			Root: tlog.Hash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(rt, "root")),
		}
		text, err := c.Text()
		if err != nil {
			rt.Fatal(err)
		}
		if got, err := tlog.ParseCheckpoint(text); err != nil || got != c {
			rt.Fatalf("%+v, %v", got, err)
		}
	})
}

func TestKeys(t *testing.T) {
	secret, err := tlog.GenerateSigner(bytes.NewReader(bytes.Repeat([]byte{7}, 64)), origin)
	if err != nil {
		t.Fatal(err)
	}
	s, err := tlog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	if name, err := tlog.CheckKey(s.Key()); err != nil || name != origin || s.Origin() != origin {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := tlog.CheckKey(secret); !errors.Is(err, tlog.ErrKey) || strings.Contains(err.Error(), secret[30:]) {
		t.Errorf("a secret as a public key: %v", err)
	}
	for _, bad := range []string{"", "x", secret[:len(secret)-1], secret + "x", s.Key(), strings.Repeat("x", 5000)} {
		if _, err := tlog.NewSigner(bad); !errors.Is(err, tlog.ErrKey) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "a b", "a+b", "a\n", "\u202e", "\xff", strings.Repeat("x", 256), "a\u00a0b"} {
		if _, err := tlog.GenerateSigner(strings.NewReader(""), bad); !errors.Is(err, tlog.ErrOrigin) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestProofFile(t *testing.T) {
	s := signer(t, origin, 7)
	m, b := grow(t, 300)
	c := point(t, b)
	signed, err := s.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	hashes, err := tlog.InclusionProof(t.Context(), m, c, 258)
	if err != nil {
		t.Fatal(err)
	}
	for _, extra := range [][]byte{nil, []byte("more")} {
		p := tlog.Proof{Index: 258, Hashes: hashes, Checkpoint: signed, Extra: extra}
		file, err := p.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := tlog.ParseProof(file)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := back.Encode(); err != nil || !bytes.Equal(again, file) {
			t.Errorf("%q, %v", again, err)
		}
		if got, err := back.Verify(payload(258), s.Key()); err != nil || got != c {
			t.Errorf("%+v, %v", got, err)
		}
		if _, err := back.Verify(payload(257), s.Key()); !errors.Is(err, tlog.ErrNotIncluded) {
			t.Errorf("another payload: %v", err)
		}
		if _, err := back.Verify(payload(258), signer(t, origin, 8).Key()); !errors.Is(err, tlog.ErrSignature) {
			t.Errorf("another key: %v", err)
		}
		for i := range file { // no change of a byte, not even of the extra data, makes another proof that holds
			changed := bytes.Clone(file)
			changed[i] ^= 1
			q, err := tlog.ParseProof(changed)
			if err == nil {
				_, err = q.Verify(payload(258), s.Key())
			}
			inExtra := extra != nil && i > 23 && i < 40
			if err == nil && !inExtra {
				t.Errorf("byte %d changed, and it holds", i)
			}
		}
	}
}

func FuzzParseProof(f *testing.F) {
	s := signer(f, origin, 7)
	m, b := grow(f, 5)
	c := point(f, b)
	signed, err := s.Sign(c)
	if err != nil {
		f.Fatal(err)
	}
	hashes, err := tlog.InclusionProof(f.Context(), m, c, 2)
	if err != nil {
		f.Fatal(err)
	}
	file, err := (&tlog.Proof{Index: 2, Hashes: hashes, Checkpoint: signed, Extra: []byte("e")}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := tlog.ParseProof(b)
		if err != nil {
			if !errors.Is(err, tlog.ErrProof) {
				t.Error(err)
			}
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("read %q, written %q, %v", b, again, err)
		}
	})
}

func FuzzOpenCheckpoint(f *testing.F) {
	s := signer(f, origin, 7)
	signed, err := s.Sign(tlog.Checkpoint{Origin: origin, Root: tlog.EmptyRoot()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := tlog.OpenCheckpoint(b, s.Key())
		if err != nil {
			if !errors.Is(err, tlog.ErrCheckpoint) && !errors.Is(err, tlog.ErrSignature) {
				t.Error(err)
			}
			return
		}
		if c.Size != 0 {
			t.Errorf("a forged checkpoint: %q", b)
		}
	})
}
