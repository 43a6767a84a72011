package audit

import (
	"errors"
	"fmt"

	"github.com/refold-dev/refold/pkg/events"
)

// ReceiptVersion is the format version that this package writes and the only one that it reads.
const ReceiptVersion = 1

// MaxReceiptBytes bounds an encoded receipt.
const MaxReceiptBytes = 4 << 10

// ErrReceipt means that the bytes are no receipt in canonical form, or its fields do not fit together. Final.
var ErrReceipt = errors.New("invalid receipt")

// receiptDomain stands before what is signed, so that no signature made for something else passes as a receipt's.
const receiptDomain = "refold receipt 1\n"

// maxTarget bounds method and path of a receipt's request.
const (
	maxMethod = 32
	maxTarget = 512
)

// ReceiptKind says what passed.
type ReceiptKind string

// The kinds of receipts.
const (
	ReceiptRequest ReceiptKind = "request" // the whole body of a request, before its last byte went on
	ReceiptAnswer  ReceiptKind = "answer"  // what came back of the answer
)

func (k ReceiptKind) valid() bool { return k == ReceiptRequest || k == ReceiptAnswer }

// Receipt says what a witness saw pass between a worker and a provider. docs/format/receipts.md describes its fields.
type Receipt struct {
	Kind     ReceiptKind
	Call     events.ID         // the witness's own id of the call: request and answer have the same
	Session  events.ID         // as the request's header says; empty when it has none, or no valid one
	Seq      uint64            // likewise, of the llm/stream event; 0 when there is none
	Method   string            // of the request
	Target   string            // of the request: its path as it was sent, cleaned and cut, without the query, which may hold a key
	Body     events.BodyDigest // of the request's body, or of the answer's as far as it passed
	Status   int64             // of an answer: the HTTP status, 0 when none came
	Complete bool              // of an answer: it passed to its end
	Time     int64             // Unix milliseconds, when the last byte was seen

	Witness   string // the public key of the signer
	Signature []byte // Ed25519
}

// Describe sets method and target, cleaned and cut.
func (r *Receipt) Describe(method, path string) {
	r.Method, r.Target = clean(method, maxMethod), clean(path, maxTarget)
}

func (r *Receipt) String() string {
	s := fmt.Sprintf("call %s: %s", r.Call, r.Kind)
	if r.Session != "" {
		s += fmt.Sprintf(" of session %s, event %d", r.Session, r.Seq)
	}
	return s + fmt.Sprintf(": %s %s, %d bytes %s", r.Method, r.Target, r.Body.Bytes, r.Body.SHA256)
}

// Encode returns the canonical JSON of r. The error wraps [ErrReceipt].
func (r *Receipt) Encode() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return withSignature(r.appendUnsigned(nil), r.Signature, MaxReceiptBytes, ErrReceipt)
}

// DecodeReceipt reads what [Receipt.Encode] wrote and accepts no other bytes. It does not check the signature: see
// [Receipt.Verify]. The error wraps [ErrReceipt].
func DecodeReceipt(b []byte) (Receipt, error) {
	var w receiptJSON
	return decodeCanonical(b, MaxReceiptBytes, ErrReceipt, &w, w.receipt)
}

// check holds the rules between the fields.
func (r *Receipt) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrReceipt, fmt.Sprintf(format, args...))
	}
	switch {
	case !r.Kind.valid():
		return fail("kind %q", clean(string(r.Kind), maxName))
	case !r.Call.Valid():
		return fail("call %q", clean(string(r.Call), maxName))
	case r.Session != "" && (!r.Session.Valid() || r.Session == NoSession):
		return fail("session %q", clean(string(r.Session), maxName))
	case r.Session == "" && r.Seq != 0:
		return fail("an event of no session")
	case r.Body.Bytes < 0 || r.Time < 0 || r.Status < 0:
		return fail("a negative number")
	case r.Body.SHA256 == events.Hash{}:
		return fail("no digest")
	case r.Kind == ReceiptRequest && (r.Status != 0 || r.Complete):
		return fail("the status of a request")
	case !isClean(r.Method, maxMethod), !isClean(r.Target, maxTarget), !isClean(r.Witness, maxName):
		return fail("a text is too long or holds what cannot be printed")
	case len(r.Signature) != 0 && len(r.Signature) != signatureBytes, len(r.Signature) != 0 && r.Witness == "":
		return fail("a signature has %d bytes and a witness", signatureBytes)
	}
	return nil
}

// appendUnsigned appends the canonical JSON without the signature.
func (r *Receipt) appendUnsigned(b []byte) []byte {
	c := newCanonical(b, ReceiptVersion)
	c.text("kind", string(r.Kind))
	c.text("call", string(r.Call))
	c.text("session", string(r.Session))
	if r.Seq != 0 {
		c.count("seq", r.Seq)
	}
	c.text("method", r.Method)
	c.text("target", r.Target)
	c.digest("body", r.Body)
	c.nonzero("status", r.Status)
	if r.Complete {
		c.name("complete")
		c = append(c, "true"...)
	}
	c.number("time", r.Time)
	c.text("witness", r.Witness)
	return c.end()
}

// receiptJSON is a receipt as the JSON decoder sees it. Its order of fields does not matter: see DecodeReceipt.
type receiptJSON struct {
	V         int64       `json:"v"`
	Kind      ReceiptKind `json:"kind"`
	Call      events.ID   `json:"call"`
	Session   events.ID   `json:"session"`
	Seq       uint64      `json:"seq"`
	Method    string      `json:"method"`
	Target    string      `json:"target"`
	Body      digestJSON  `json:"body"`
	Status    int64       `json:"status"`
	Complete  bool        `json:"complete"`
	Time      int64       `json:"time"`
	Witness   string      `json:"witness"`
	Signature string      `json:"signature"`
}

func (w *receiptJSON) receipt() (Receipt, error) {
	if err := knows(w.V, ReceiptVersion); err != nil {
		return Receipt{}, err
	}
	r := Receipt{
		Kind: w.Kind, Call: w.Call, Session: w.Session, Seq: w.Seq, Method: w.Method, Target: w.Target, Status: w.Status,
		Complete: w.Complete, Time: w.Time, Witness: w.Witness,
	}
	var errs [2]error
	r.Body, errs[0] = w.Body.digest()
	if w.Signature != "" {
		r.Signature, errs[1] = parseHex(w.Signature)
	}
	return r, errors.Join(errs[:]...)
}

// SignReceipt sets r's witness and signature.
func (k *Key) SignReceipt(r *Receipt) error {
	r.Witness, r.Signature = k.public, nil
	if err := r.check(); err != nil {
		return err
	}
	signature, err := k.sign(r.signed())
	if err != nil {
		return fmt.Errorf("sign receipt: %w", err)
	}
	r.Signature = signature
	return nil
}

// signed returns the bytes that the signature is over.
func (r *Receipt) signed() []byte { return r.appendUnsigned([]byte(receiptDomain)) }

// Verify checks that r has the signature of its witness. The error wraps [ErrSignature]. Whether the witness is to be
// trusted is the caller's question.
func (r *Receipt) Verify() error {
	if len(r.Signature) == 0 {
		return fmt.Errorf("%w: call %s: its receipt has none", ErrSignature, r.Call)
	}
	if err := checkSignature(r.Witness, r.signed(), r.Signature); err != nil {
		return fmt.Errorf("%w: receipt of call %s: %w", ErrSignature, r.Call, err)
	}
	return nil
}
