package bundle_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"testing"

	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// long returns a bundle of a session of 20,000 events.
func long(b *testing.B) (*kit, []byte) {
	b.Helper()
	k := newKit(b, audittest.Of("long", foldtest.SessionLog(20_000, audittest.Bodies())))
	packed := k.pack(b)
	b.SetBytes(int64(len(packed)))
	return k, packed
}

// BenchmarkSHA256 is the floor of the others: the hash of the file alone.
func BenchmarkSHA256(b *testing.B) {
	_, packed := long(b)
	for b.Loop() {
		_ = sha256.Sum256(packed)
	}
}

func BenchmarkWrite(b *testing.B) {
	k, _ := long(b)
	for b.Loop() {
		w, err := bundle.NewWriter(io.Discard, k.manifest)
		if err != nil {
			b.Fatal(err)
		}
		for i := range k.Messages {
			if err := w.Message(&k.Messages[i]); err != nil {
				b.Fatal(err)
			}
		}
		for _, d := range w.Objects() {
			data, _ := k.Source.Bytes(d)
			if err := w.Object(d, data); err != nil {
				b.Fatal(err)
			}
		}
		for _, r := range k.verdicts {
			if err := w.Verdict(r.Place, r.Payload); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	_, packed := long(b)
	for b.Loop() {
		if _, err := bundle.NewReader(bytes.NewReader(packed), int64(len(packed))); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	k, packed := long(b)
	for b.Loop() {
		r, err := bundle.NewReader(bytes.NewReader(packed), int64(len(packed)))
		if err != nil {
			b.Fatal(err)
		}
		report, err := bundle.Check(b.Context(), r, k.trust())
		if err != nil || !report.AllMatch() {
			b.Fatal(err, report)
		}
	}
}
