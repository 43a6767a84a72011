package bundle_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
	"github.com/refold-dev/refold/pkg/tlog"
)

// kit is all that goes into a bundle, to be changed before it is packed.
type kit struct {
	*audittest.Session
	manifest bundle.Manifest
	skip     map[objects.Digest]bool // objects that the store lacks
	bytes    map[objects.Digest][]byte
	extra    map[objects.Digest][]byte // objects that nothing names
	verdicts []bundle.Record
	receipts []bundle.Record
	point    []byte
	proofs   []bundle.Inclusion
	verifier *audit.Key
	witness  *audit.Key
	logKey   string

	logSigner *tlog.Signer
}

// stable are the keys of tests that pin bytes.
func newKey(t testing.TB) *audit.Key {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newKit returns a session with all that verifiers, witnesses and a transparency log say about it.
func newKit(t testing.TB, s *audittest.Session) *kit {
	t.Helper()
	k := &kit{Session: s, verifier: newKey(t), witness: newKey(t), bytes: map[objects.Digest][]byte{}, skip: map[objects.Digest]bool{}}
	k.manifest = bundle.Manifest{Session: s.ID, Last: uint64(len(s.Messages))}
	place := uint64(3) // of another session's verdicts
	for _, v := range s.Sign(t.Context(), k.verifier) {
		k.verdicts = append(k.verdicts, bundle.Record{Place: place, Payload: encode(t, &v)})
		place += 1 + place%3
	}
	k.seeReceipts(t)
	k.seeLog(t)
	return k
}

func encode(t testing.TB, v *audit.Verdict) []byte {
	t.Helper()
	b, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// seeReceipts lets the witness see every request of the session, but those that a fork copied.
func (k *kit) seeReceipts(t testing.TB) {
	t.Helper()
	copied := uint64(0)
	for i := range k.Events {
		e := &k.Events[i]
		switch b := e.Body.(type) {
		case *events.SessionCreated:
			if b.SeedLength > 0 {
				copied = b.SeedLength + 1
			}
		case *events.LLMStream:
			if e.Seq <= copied {
				continue
			}
			r := audit.Receipt{
				Kind: audit.ReceiptRequest, Call: foldtest.ID(e.Time, e.Seq), Session: k.ID, Seq: e.Seq, Method: "POST", Target: "/chat/completions",
				Body: b.Body, Time: e.Time,
			}
			if err := k.witness.SignReceipt(&r); err != nil {
				t.Fatal(err)
			}
			payload, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			k.receipts = append(k.receipts, bundle.Record{Place: uint64(len(k.receipts)*2 + 1), Payload: payload})
		}
	}
}

// seeLog makes the transparency log over the verdicts, with others between them, and the proofs.
func (k *kit) seeLog(t testing.TB) {
	t.Helper()
	if len(k.verdicts) == 0 {
		return
	}
	secret, err := tlog.GenerateSigner(strings.NewReader(strings.Repeat("x", 64)), "example.com/verdicts")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tlog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	k.logKey, k.logSigner = signer.Key(), signer
	k.sawLog(t, signer, k.verdicts[len(k.verdicts)-1].Place)
}

// sawLog makes the log when it has the size, and the proofs for the verdicts in it.
func (k *kit) sawLog(t testing.TB, signer *tlog.Signer, size uint64) {
	t.Helper()
	files := tiles{}
	b := tlog.NewBuilder(func(f tlog.File, data []byte) error { files[f.Path()] = bytes.Clone(data); return nil })
	for place, i := uint64(1), 0; place <= size; place++ {
		payload := []byte("another session's verdict")
		if k.verdicts[i].Place == place {
			payload = k.verdicts[i].Payload
			i++
		}
		if err := b.Append(payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	root, err := b.Root()
	if err != nil {
		t.Fatal(err)
	}
	point := tlog.Checkpoint{Origin: "example.com/verdicts", Size: b.Size(), Root: root}
	k.proofs = nil
	if k.point, err = signer.Sign(point); err != nil {
		t.Fatal(err)
	}
	tree, err := tlog.OpenTree(t.Context(), files, point)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range k.verdicts {
		if v.Place > size {
			break
		}
		hashes, err := tree.Inclusion(t.Context(), v.Place-1)
		if err != nil {
			t.Fatal(err)
		}
		k.proofs = append(k.proofs, bundle.Inclusion{Place: v.Place, Hashes: hashes})
	}
}

type tiles map[string][]byte

func (f tiles) Read(_ context.Context, path string, _ int) ([]byte, error) {
	b, ok := f[path]
	if !ok {
		return nil, fmt.Errorf("%s: %w", path, tlog.ErrNotFound)
	}
	return b, nil
}

// pack writes the bundle.
func (k *kit) pack(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := bundle.NewWriter(&out, k.manifest)
	must(err)
	for i := range k.Messages {
		must(w.Message(&k.Messages[i]))
	}
	digests := append(w.Objects(), slices.Collect(maps.Keys(k.extra))...)
	slices.SortFunc(digests, func(a, b objects.Digest) int { return bytes.Compare(a[:], b[:]) })
	for _, d := range digests {
		data, ok := k.Source.Bytes(d)
		if other := k.bytes[d]; other != nil {
			data = other
		}
		if other, extra := k.extra[d]; extra {
			data, ok = other, true
		}
		if ok && !k.skip[d] {
			must(w.Object(d, data))
		}
	}
	for _, r := range k.verdicts {
		must(w.Verdict(r.Place, r.Payload))
	}
	for _, r := range k.receipts {
		must(w.Receipt(r.Place, r.Payload))
	}
	if k.point != nil {
		must(w.Checkpoint(k.point))
	}
	for _, p := range k.proofs {
		must(w.Inclusion(p.Place, p.Hashes))
	}
	must(w.Close())
	return out.Bytes()
}

// trust are the options of an auditor who knows all keys.
func (k *kit) trust() bundle.Options {
	o := bundle.Options{Trusted: []string{k.verifier.Public()}, Witnesses: []string{k.witness.Public()}}
	if k.logKey != "" {
		o.LogKeys = []string{k.logKey}
	}
	return o
}

func open(b []byte) (*bundle.Reader, error) {
	return bundle.NewReader(bytes.NewReader(b), int64(len(b)))
}

// audited reads and checks a bundle.
func audited(t testing.TB, b []byte, o bundle.Options) *bundle.Report {
	t.Helper()
	r, err := open(b)
	if err != nil {
		t.Fatal(err)
	}
	report, err := bundle.Check(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// findings are the verdicts that are no match.
func findings(r *bundle.Report) string {
	var b strings.Builder
	for i := range r.Verdicts {
		if v := &r.Verdicts[i]; v.Result != audit.Match {
			fmt.Fprintf(&b, "%d %s %s %s: %s\n", v.Seq, v.Kind, v.Result, v.Rule, v.Reason)
		}
	}
	return b.String()
}

func samples(t testing.TB) []*kit {
	t.Helper()
	parent, fork := audittest.Forked()
	return []*kit{
		newKit(t, audittest.Of("sample", audittest.Sample(foldtest.SessionID))), newKit(t, audittest.Of("whole", audittest.Whole())),
		newKit(t, audittest.Of("parent", parent)), newKit(t, audittest.Of("fork", fork)),
	}
}

func TestAllMatch(t *testing.T) {
	for _, k := range samples(t) {
		packed := k.pack(t)
		if again := k.pack(t); !bytes.Equal(packed, again) {
			t.Errorf("%s: the same state gives other bytes", k.Name)
		}
		for _, o := range []bundle.Options{{}, k.trust(), {Cold: true}} {
			report := audited(t, packed, o)
			if got := findings(report); got != "" {
				t.Errorf("%s: %s", k.Name, got)
			}
			if !report.AllMatch() || report.Requests == 0 || report.Requests != report.Matches || report.Confirmed != len(k.verdicts) {
				t.Errorf("%s: %d of %d requests, %d of %d verdicts", k.Name, report.Matches, report.Requests, report.Confirmed, len(k.verdicts))
			}
			if report.Receipts != len(k.receipts) || report.Passed != len(k.receipts) {
				t.Errorf("%s: %d receipts, %d passed, want %d", k.Name, report.Receipts, report.Passed, len(k.receipts))
			}
			if n := len(k.verdicts); report.Log.Proven != n || report.Log.Later != 0 || report.Log.Signed != (len(o.LogKeys) > 0) {
				t.Errorf("%s: %+v, want %d proven", k.Name, report.Log, n)
			}
			if len(report.Verifiers) != 1 || report.Verifiers[0].Signed != len(k.verdicts) || report.Verifiers[0].Trusted != (len(o.Trusted) > 0) {
				t.Errorf("%s: verifiers %+v", k.Name, report.Verifiers)
			}
		}
	}
}

// TestTar reads a bundle with a program that knows nothing of bundles.
func TestTar(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	r := tar.NewReader(bytes.NewReader(k.pack(t)))
	var names []string
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg || h.Mode != 0o644 || h.Size != int64(len(content)) {
			t.Errorf("%+v", h)
		}
		if seq, ok := strings.CutPrefix(h.Name, "log/"); ok {
			var n int
			if _, err := fmt.Sscanf(seq, "%d", &n); err != nil || !bytes.HasSuffix(content, k.Messages[n-1].Payload) {
				t.Errorf("%s: %q", h.Name, content)
			}
		}
		names = append(names, h.Name)
	}
	if names[0] != "bundle.json" || names[len(names)-1] != "end.json" || !slices.Contains(names, "tlog/checkpoint") {
		t.Errorf("%q", names)
	}
}

func TestGeneratedLogs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := foldtest.GenerateLog(rt, foldtest.Options{Body: audittest.Bodies(), Images: true, Forks: true})
		k := newKit(t, audittest.Of("generated", l))
		report := audited(t, k.pack(t), k.trust())
		if got := findings(report); got != "" || report.Matches != report.Requests {
			rt.Fatalf("%d of %d requests\n%s", report.Matches, report.Requests, got)
		}
	})
}
