package audit

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/refold-dev/refold/pkg/events"
)

// VerdictVersion is the format version that this package writes and the only one that it reads.
const VerdictVersion = 1

// MaxVerdictBytes bounds an encoded verdict.
const MaxVerdictBytes = 16 << 10

// Sentinels of verdicts.
var (
	// ErrVerdict means that the bytes are no verdict in canonical form, or its fields do not fit together. Final.
	ErrVerdict = errors.New("invalid verdict")
	// ErrSignature means that a signature is not that of the key that is named, or is absent. Whoever wrote it is not to be
	// believed.
	ErrSignature = errors.New("signature does not verify")
)

// Verdict says what a check found about one event of a session's log. docs/format/verdicts.md describes its fields.
type Verdict struct {
	Kind    Kind
	Session events.ID
	Seq     uint64      // the event, from 1
	Event   events.ID   // its ID, empty when the event is not there
	Chain   events.Hash // the hash of its payload, zero when it is not there

	Turn, Step, Attempt int64 // of a request whose event can be read, 0 otherwise

	Result   Result
	Codec    string            // of a request
	Recorded events.BodyDigest // by the llm/stream
	Rebuilt  events.BodyDigest // by the check, zero when nothing could be built
	Wire     events.BodyDigest // of a wire or stray verdict: what the witness saw, zero when nothing passed
	Receipt  uint64            // of a wire or stray verdict: the place of the receipt in WITNESS, 0 when there is none
	Rule     string            // which rule was broken, see docs/format
	Reason   string            // for people: one line, valid UTF-8, no control characters
	Located  bool              // a mismatch whose body was at hand: Offset and Pointer are set
	Offset   int64             // of the first differing byte
	Pointer  string            // the JSON pointer there, in the rebuilt body

	Time      int64  // Unix milliseconds, when it was checked
	Verifier  string // the public key of the signer
	Signature []byte // Ed25519
}

const signatureBytes = 64

func (v *Verdict) String() string {
	s := fmt.Sprintf("session %s: event %d: %s %s", v.Session, v.Seq, v.Kind, v.Result)
	if v.Rule != "" {
		s += ", rule " + strconv.Quote(v.Rule)
	}
	if v.Reason != "" {
		s += ": " + v.Reason
	}
	return s
}

// Encode returns the canonical JSON of v. The error wraps [ErrVerdict].
func (v *Verdict) Encode() ([]byte, error) {
	if err := v.check(); err != nil {
		return nil, err
	}
	return withSignature(v.appendUnsigned(nil), v.Signature, MaxVerdictBytes, ErrVerdict)
}

// DecodeVerdict reads what [Verdict.Encode] wrote and accepts no other bytes. It does not check the signature: see
// [Verdict.Verify]. The error wraps [ErrVerdict].
func DecodeVerdict(b []byte) (Verdict, error) {
	var w verdictJSON
	return decodeCanonical(b, MaxVerdictBytes, ErrVerdict, &w, w.verdict)
}

// check holds the rules between the fields.
func (v *Verdict) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrVerdict, fmt.Sprintf(format, args...))
	}
	switch {
	case !v.Kind.valid():
		return fail("kind %q", clean(string(v.Kind), maxName))
	case !v.Session.Valid():
		return fail("session %q", clean(string(v.Session), maxName))
	case v.Seq == 0:
		return fail("sequences count from 1")
	case v.Event != "" && !v.Event.Valid():
		return fail("event %q", clean(string(v.Event), maxName))
	case !v.Result.valid():
		return fail("result %q", clean(string(v.Result), maxName))
	case !v.Kind.has(v.Result):
		return fail("a %s verdict with result %s", v.Kind, v.Result)
	case v.Result == Match && (v.Rule != "" || v.Reason != ""):
		return fail("a match with a rule or a reason")
	case v.Event != "" && v.Chain == events.Hash{}:
		return fail("an event without the hash of its payload")
	case v.Turn < 0 || v.Step < 0 || v.Attempt < 0 || v.Time < 0 || v.Offset < 0 || v.Recorded.Bytes < 0 || v.Rebuilt.Bytes < 0 || v.Wire.Bytes < 0:
		return fail("a negative number")
	case v.foreign() != "":
		return fail("%s in a %s verdict", v.foreign(), v.Kind)
	case v.Kind == KindStray && v.Receipt == 0:
		return fail("a stray verdict is about a receipt")
	case v.Kind == KindWire && v.Result == Match && v.Receipt == 0:
		return fail("a wire verdict that matches names its receipt")
	case (v.Wire == events.BodyDigest{}) != (v.Receipt == 0):
		return fail("a receipt goes with the body that it is about")
	case v.Located && (v.Result != Mismatch || v.Kind != KindRequest), !v.Located && (v.Offset != 0 || v.Pointer != ""):
		return fail("an offset belongs to a mismatch")
	case !isClean(v.Codec, maxName), !isClean(v.Rule, maxName), !isClean(v.Reason, maxReason), !isClean(v.Pointer, maxPointer),
		!isClean(v.Verifier, maxName):
		return fail("a text is too long or holds what cannot be printed")
	case len(v.Signature) != 0 && len(v.Signature) != signatureBytes, len(v.Signature) != 0 && v.Verifier == "":
		return fail("a signature has %d bytes and a verifier", signatureBytes)
	}
	return nil
}

// foreign names a field that verdicts of the kind do not have, empty when there is none.
func (v *Verdict) foreign() string {
	none := events.BodyDigest{}
	request, wire, stray := v.Kind == KindRequest, v.Kind == KindWire, v.Kind == KindStray
	switch {
	case (v.Turn != 0 || v.Step != 0 || v.Attempt != 0) && !request && !wire:
		return "a turn, a step or an attempt"
	case v.Codec != "" && !request:
		return "a codec"
	case v.Recorded != none && !request && !wire && !stray:
		return "a recorded body"
	case v.Rebuilt != none && !request && !wire:
		return "a rebuilt body"
	case (v.Wire != none || v.Receipt != 0) && !wire && !stray:
		return "a receipt"
	}
	return ""
}

// appendUnsigned appends the canonical JSON without the signature.
func (v *Verdict) appendUnsigned(b []byte) []byte {
	c := newCanonical(b, VerdictVersion)
	c.text("kind", string(v.Kind))
	c.text("session", string(v.Session))
	c.count("seq", v.Seq)
	c.text("event", string(v.Event))
	if v.Chain != (events.Hash{}) {
		c.text("chain", v.Chain.String())
	}
	c.nonzero("turn", v.Turn)
	c.nonzero("step", v.Step)
	c.nonzero("attempt", v.Attempt)
	c.text("result", string(v.Result))
	c.text("codec", v.Codec)
	c.digest("recorded", v.Recorded)
	c.digest("rebuilt", v.Rebuilt)
	c.digest("wire", v.Wire)
	if v.Receipt != 0 {
		c.count("receipt", v.Receipt)
	}
	c.text("rule", v.Rule)
	c.text("reason", v.Reason)
	if v.Located {
		c.number("offset", v.Offset)
		c.text("pointer", v.Pointer)
	}
	c.number("time", v.Time)
	c.text("verifier", v.Verifier)
	return c.end()
}

// verdictJSON is a verdict as the JSON decoder sees it. Its order of fields does not matter: see DecodeVerdict.
type verdictJSON struct {
	V         int64      `json:"v"`
	Kind      Kind       `json:"kind"`
	Session   events.ID  `json:"session"`
	Seq       uint64     `json:"seq"`
	Event     events.ID  `json:"event"`
	Chain     string     `json:"chain"`
	Turn      int64      `json:"turn"`
	Step      int64      `json:"step"`
	Attempt   int64      `json:"attempt"`
	Result    Result     `json:"result"`
	Codec     string     `json:"codec"`
	Recorded  digestJSON `json:"recorded"`
	Rebuilt   digestJSON `json:"rebuilt"`
	Wire      digestJSON `json:"wire"`
	Receipt   uint64     `json:"receipt"`
	Rule      string     `json:"rule"`
	Reason    string     `json:"reason"`
	Offset    *int64     `json:"offset"`
	Pointer   string     `json:"pointer"`
	Time      int64      `json:"time"`
	Verifier  string     `json:"verifier"`
	Signature string     `json:"signature"`
}

type digestJSON struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (d digestJSON) digest() (events.BodyDigest, error) {
	if d.SHA256 == "" {
		return events.BodyDigest{Bytes: d.Bytes}, nil
	}
	h, err := events.ParseHash(d.SHA256)
	return events.BodyDigest{Bytes: d.Bytes, SHA256: h}, err
}

func (w *verdictJSON) verdict() (Verdict, error) {
	if err := knows(w.V, VerdictVersion); err != nil {
		return Verdict{}, err
	}
	v := Verdict{
		Kind: w.Kind, Session: w.Session, Seq: w.Seq, Event: w.Event, Turn: w.Turn, Step: w.Step, Attempt: w.Attempt,
		Result: w.Result, Codec: w.Codec, Receipt: w.Receipt, Rule: w.Rule, Reason: w.Reason, Pointer: w.Pointer, Time: w.Time,
		Verifier: w.Verifier,
	}
	if w.Offset != nil {
		v.Located, v.Offset = true, *w.Offset
	}
	var errs [5]error
	if w.Chain != "" {
		v.Chain, errs[0] = events.ParseHash(w.Chain)
	}
	v.Recorded, errs[1] = w.Recorded.digest()
	v.Rebuilt, errs[2] = w.Rebuilt.digest()
	if w.Signature != "" {
		v.Signature, errs[3] = parseHex(w.Signature)
	}
	v.Wire, errs[4] = w.Wire.digest()
	return v, errors.Join(errs[:]...)
}
