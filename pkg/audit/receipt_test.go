package audit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

func goldenReceipts() map[string]audit.Receipt {
	digest := digestOf
	call := foldtest.ID(1_733_000_000_000, 70)
	return map[string]audit.Receipt{
		"request": {
			Kind: audit.ReceiptRequest, Call: call, Session: foldtest.SessionID, Seq: 7, Method: "POST", Target: "/v1/chat/completions",
			Body: digest("body"), Time: 1_733_000_000_123,
		},
		"answer": {
			Kind: audit.ReceiptAnswer, Call: call, Session: foldtest.SessionID, Seq: 7, Method: "POST", Target: "/v1/chat/completions",
			Body: digest("data: [DONE]\n\n"), Status: 200, Complete: true, Time: 1_733_000_000_456,
		},
		"broken": {
			Kind: audit.ReceiptAnswer, Call: call, Session: foldtest.SessionID, Method: "POST", Target: "/files", Body: digest(""),
			Time: 1_733_000_000_456,
		},
		"nameless": {Kind: audit.ReceiptRequest, Call: call, Method: "GET", Target: `/a"b`, Body: digest("")},
	}
}

func receiptFormat() *recordFormat[audit.Receipt, *audit.Receipt] {
	return &recordFormat[audit.Receipt, *audit.Receipt]{
		file: "receipt", domain: "refold receipt 1\n", wrong: audit.ErrReceipt, limit: audit.MaxReceiptBytes,
		sign:   (*audit.Key).SignReceipt,
		signer: func(r *audit.Receipt) (string, []byte) { return r.Witness, r.Signature },
		decode: audit.DecodeReceipt,
	}
}

func TestReceiptSignatureCoversEverything(t *testing.T) {
	key := newKey(t)
	other := newKey(t).Public()
	for name, change := range map[string]func(*audit.Receipt){
		"kind":     func(r *audit.Receipt) { r.Kind = audit.ReceiptRequest; r.Status, r.Complete = 0, false },
		"call":     func(r *audit.Receipt) { r.Call = foldtest.ID(1, 1) },
		"session":  func(r *audit.Receipt) { r.Session = foldtest.ID(1, 1) },
		"seq":      func(r *audit.Receipt) { r.Seq++ },
		"method":   func(r *audit.Receipt) { r.Method = "GET" },
		"target":   func(r *audit.Receipt) { r.Target += "/files" },
		"bytes":    func(r *audit.Receipt) { r.Body.Bytes++ },
		"digest":   func(r *audit.Receipt) { r.Body.SHA256[31]++ },
		"status":   func(r *audit.Receipt) { r.Status = 500 },
		"complete": func(r *audit.Receipt) { r.Complete = false },
		"time":     func(r *audit.Receipt) { r.Time++ },
		"witness":  func(r *audit.Receipt) { r.Witness = other },
		"no key":   func(r *audit.Receipt) { r.Witness = "nobody" },
		"cut":      func(r *audit.Receipt) { r.Signature = nil },
		"flip":     func(r *audit.Receipt) { r.Signature[0] ^= 1 },
	} {
		r := goldenReceipts()["answer"]
		if err := key.SignReceipt(&r); err != nil {
			t.Fatal(err)
		}
		if err := r.Verify(); err != nil {
			t.Fatalf("unchanged: %v", err)
		}
		change(&r)
		if err := r.Verify(); !errors.Is(err, audit.ErrSignature) {
			t.Errorf("%s changed: %v", name, err)
		}
	}
}

// TestSignaturesDoNotMix: a signature of one kind of record is none of the other, even over the same bytes.
func TestSignaturesDoNotMix(t *testing.T) {
	key := goldenKey(t)
	r, v := goldenReceipts()["request"], goldenVerdicts()["match"]
	if err := errors.Join(key.SignReceipt(&r), key.Sign(&v)); err != nil {
		t.Fatal(err)
	}
	r.Signature, v.Signature = v.Signature, r.Signature
	if r.Verify() == nil || v.Verify() == nil {
		t.Error("a signature passes for another")
	}
}

func TestReceiptRefused(t *testing.T) {
	for name, change := range map[string]func(*audit.Receipt){
		"kind":                func(r *audit.Receipt) { r.Kind = "x" },
		"no call":             func(r *audit.Receipt) { r.Call = "" },
		"call":                func(r *audit.Receipt) { r.Call = "x" },
		"session":             func(r *audit.Receipt) { r.Session = "x" },
		"the id of none":      func(r *audit.Receipt) { r.Session = audit.NoSession },
		"an event of nothing": func(r *audit.Receipt) { r.Session = "" },
		"a negative length":   func(r *audit.Receipt) { r.Body.Bytes = -1 },
		"a negative time":     func(r *audit.Receipt) { r.Time = -1 },
		"a negative status":   func(r *audit.Receipt) { r.Kind, r.Status = audit.ReceiptAnswer, -1 },
		"no digest":           func(r *audit.Receipt) { r.Body.SHA256 = events.Hash{} },
		"a request's status":  func(r *audit.Receipt) { r.Status = 200 },
		"a request's end":     func(r *audit.Receipt) { r.Complete = true },
		"control":             func(r *audit.Receipt) { r.Target = "/a\x1b[31m" },
		"no UTF-8":            func(r *audit.Receipt) { r.Target = "/a\xff" },
		"line separator":      func(r *audit.Receipt) { r.Method = "a\u2028" },
		"a long method":       func(r *audit.Receipt) { r.Method = strings.Repeat("A", 33) },
		"a long target":       func(r *audit.Receipt) { r.Target = strings.Repeat("/", 513) },
		"a short signature":   func(r *audit.Receipt) { r.Witness, r.Signature = "x", []byte{1} },
		"nobody's signature":  func(r *audit.Receipt) { r.Signature = make([]byte, 64) },
	} {
		r := goldenReceipts()["request"]
		change(&r)
		if _, err := r.Encode(); !errors.Is(err, audit.ErrReceipt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReceiptDescribe(t *testing.T) {
	r := goldenReceipts()["request"]
	r.Describe(strings.Repeat("M", 100), "/\x00\xff\u202e"+strings.Repeat("é", 1000))
	if _, err := r.Encode(); err != nil {
		t.Error(err)
	}
	if !strings.HasPrefix(r.Target, "/???é") || len(r.Target) > 512 || len(r.Method) > 32 {
		t.Errorf("%q %q", r.Method, r.Target)
	}
	if s := r.String(); !strings.Contains(s, string(r.Session)) || !strings.Contains(s, "event 7") {
		t.Error(s)
	}
}

func FuzzDecodeReceipt(f *testing.F) { fuzzRecords(f, receiptFormat(), goldenReceipts()) }
