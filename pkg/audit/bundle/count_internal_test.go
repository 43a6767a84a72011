package bundle

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// TestTooMany writes and reads one entry more of each kind than a bundle has, here three.
func TestTooMany(t *testing.T) {
	const most = 3
	three := func(section) uint64 { return most }
	for name, write := range map[string]func(w *Writer, n uint64) error{
		"log": func(w *Writer, n uint64) error {
			return w.Message(&eventlog.Message{Seq: n, Type: "turn/end", ID: "x", Payload: []byte("{}")})
		},
		"objects":        func(w *Writer, n uint64) error { return w.Object(objects.Digest{byte(n)}, nil) },
		"verdicts":       func(w *Writer, n uint64) error { return w.Verdict(n, []byte("x")) },
		"receipts":       func(w *Writer, n uint64) error { return w.Receipt(n, []byte("x")) },
		"tlog/inclusion": func(w *Writer, n uint64) error { return w.Inclusion(n, []tlog.Hash{{}}) },
	} {
		t.Run(name, func(t *testing.T) {
			file := func(w *Writer, n uint64) error {
				if name == "tlog/inclusion" {
					if err := w.Checkpoint([]byte("x")); err != nil {
						return err
					}
				}
				for i := range n {
					if err := write(w, i+1); err != nil {
						return err
					}
				}
				return w.Close()
			}
			for n := uint64(most); n <= most+1; n++ {
				var out bytes.Buffer
				w, err := NewWriter(&out, Manifest{Session: "01JDXAMP1E0000000000000000", Last: n})
				if err != nil {
					t.Fatal(err)
				}
				if err := file(w, n); err != nil {
					t.Fatal(err)
				}
				_, err = newReader(bytes.NewReader(out.Bytes()), int64(out.Len()), three)
				if n == most && err != nil {
					t.Error(err)
				}
				if want := "more than 3 entries of " + name + ":"; n > most && (!errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want)) {
					t.Errorf("read: %v, want %q", err, want)
				}
				if w, err = NewWriter(&out, Manifest{Session: "01JDXAMP1E0000000000000000", Last: n}); err != nil {
					t.Fatal(err)
				}
				w.most = three
				if err := file(w, n); errors.Is(err, ErrContent) != (n > most) {
					t.Errorf("write %d: %v", n, err)
				}
			}
		})
	}
}
