package audit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/refold-dev/refold/pkg/audit"
)

// signedRecord is a verdict or a receipt.
type signedRecord[T any] interface {
	*T
	Encode() ([]byte, error)
	Verify() error
}

// recordFormat is how records of one type are signed and read.
type recordFormat[T any, P signedRecord[T]] struct {
	file   string // what names of golden files begin with
	domain string // what stands before the signed bytes
	wrong  error  // the sentinel of bytes that are none
	limit  int    // bytes of one
	sign   func(*audit.Key, P) error
	signer func(P) (public string, signature []byte)
	decode func([]byte) (T, error)
}

// TestRecordBytes pins the bytes and the signatures, which it checks also as the documentation describes them, with the nkeys library
// alone. Set UPDATE_GOLDEN to write them anew.
func TestRecordBytes(t *testing.T) {
	verdictFormat().pinned(t, goldenVerdicts())
	receiptFormat().pinned(t, goldenReceipts())
}

func (f *recordFormat[T, P]) pinned(t *testing.T, records map[string]T) {
	t.Helper()
	key := goldenKey(t)
	for name, r := range records {
		name = f.file + "-" + name
		if err := f.sign(key, &r); err != nil {
			t.Fatal(err)
		}
		got, err := P(&r).Encode()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".golden")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(golden(t, name), string(got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
		back, err := f.decode(got)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, back); diff != "" {
			t.Errorf("%s: -encoded +decoded\n%s", name, diff)
		}
		if err := P(&back).Verify(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		unsigned, _, ok := strings.Cut(string(got), `,"signature":"`)
		if !ok {
			t.Fatalf("%s: no signature", name)
		}
		public, signature := f.signer(&r)
		signer, err := nkeys.FromPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		if err := signer.Verify([]byte(f.domain+unsigned+"}"), signature); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// golden returns the text of a golden file.
func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

// TestRecordsOfOtherBytes reads what says the same as a record, in other bytes than its own, and what says something else.
func TestRecordsOfOtherBytes(t *testing.T) {
	verdictFormat().refused(t, "verdict-match")
	receiptFormat().refused(t, "receipt-answer", [2]string{`"complete":true`, `"complete":false`})
}

func (f *recordFormat[T, P]) refused(t *testing.T, name string, more ...[2]string) {
	t.Helper()
	right := golden(t, name)
	if _, err := f.decode([]byte(right)); err != nil {
		t.Fatal(err)
	}
	replaced := func(old, with string) string {
		wrong := strings.Replace(right, old, with, 1)
		if wrong == right {
			t.Fatalf("%s: no %s", name, old)
		}
		return wrong
	}
	_, rest, _ := strings.Cut(right, `"kind":`)
	kind, _, _ := strings.Cut(rest, ",")
	all := map[string]string{
		"empty":            "",
		"null":             "null",
		"space":            right + " ",
		"two":              right + right,
		"an unknown field": replaced(`{"v":1,`, `{"v":1,"x":1,`),
		"another order":    replaced(`{"v":1,"kind":`+kind+`,`, `{"kind":`+kind+`,"v":1,`),
		"another version":  replaced(`{"v":1,`, `{"v":2,`),
		"a field twice":    replaced(`{"v":1,`, `{"v":1,"v":1,`),
		"upper case":       replaced(`"seq"`, `"SEQ"`),
		"a float":          replaced(`"seq":7`, `"seq":7.0`),
		"upper hex":        replaced(`"sha256":"`, `"sha256":"A`),
		"a huge length":    replaced(`"bytes":`, `"bytes":9999999999999999999`),
		"a zero in front":  replaced(`"bytes":`, `"bytes":0`),
		"an empty field":   replaced(`"time":`, `"reason":"","time":`),
		"too long":         strings.Repeat(" ", f.limit) + right,
	}
	for _, m := range more {
		all[m[1]] = replaced(m[0], m[1])
	}
	for what, wrong := range all {
		if _, err := f.decode([]byte(wrong)); !errors.Is(err, f.wrong) {
			t.Errorf("%s: %s: %v", name, what, err)
		}
	}
}

// fuzzRecords reads any bytes. A record that is read is encoded to the same bytes.
func fuzzRecords[T any, P signedRecord[T]](f *testing.F, of *recordFormat[T, P], records map[string]T) {
	f.Helper()
	key := goldenKey(f)
	for _, r := range records {
		for range 2 {
			b, err := P(&r).Encode()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
			if err := of.sign(key, &r); err != nil {
				f.Fatal(err)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := of.decode(b)
		if err != nil {
			if !errors.Is(err, of.wrong) {
				t.Errorf("%v", err)
			}
			return
		}
		again, err := P(&r).Encode()
		if err != nil || string(again) != string(b) {
			t.Errorf("%q is encoded again as %q: %v", b, again, err)
		}
		_ = P(&r).Verify() // must not panic
	})
}
