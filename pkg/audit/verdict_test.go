package audit_test

import (
	"bytes"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

// goldenSeed returns the seed of the key that signs the verdicts pinned here.
func goldenSeed(t testing.TB) string {
	t.Helper()
	seed, err := nkeys.EncodeSeed(nkeys.PrefixByteUser, bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return string(seed)
}

func goldenKey(t testing.TB) *audit.Key {
	t.Helper()
	key, err := audit.KeyFromSeed([]byte(goldenSeed(t)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newKey(t testing.TB) *audit.Key {
	t.Helper()
	key, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func goldenVerdicts() map[string]audit.Verdict {
	digest := digestOf
	return map[string]audit.Verdict{
		"match": {
			Kind: audit.KindRequest, Session: foldtest.SessionID, Seq: 7, Event: foldtest.ID(1_733_000_000_000, 7),
			Chain: events.HashPayload([]byte("payload")), Turn: 1, Step: 1, Attempt: 1, Result: audit.Match,
			Codec: "deepseek-chat/1", Recorded: digest("body"), Rebuilt: digest("body"), Time: 1_733_000_000_123,
		},
		"mismatch": {
			Kind: audit.KindRequest, Session: foldtest.SessionID, Seq: 7, Event: foldtest.ID(1_733_000_000_000, 7),
			Chain: events.HashPayload([]byte("payload")), Turn: 1, Step: 1, Attempt: 2, Result: audit.Mismatch,
			Codec: "deepseek-chat/1", Recorded: digest("body"), Rebuilt: digest("other"),
			Reason: `a reason with "quotes"`, Located: true, Pointer: "/messages/0/content", Time: 1_733_000_000_123,
		},
		"head": {
			Kind: audit.KindHead, Session: foldtest.SessionID, Seq: 21, Event: foldtest.ID(1_733_000_000_000, 21),
			Chain: events.HashPayload([]byte("turn/end")), Result: audit.Match, Time: 1_733_000_000_123,
		},
		"log": {
			Kind: audit.KindLog, Session: foldtest.SessionID, Seq: 22, Result: audit.BrokenChain, Rule: audit.RuleSequence,
			Reason: "event 22 is missing", Time: 1_733_000_000_123,
		},
		"wire": {
			Kind: audit.KindWire, Session: foldtest.SessionID, Seq: 7, Event: foldtest.ID(1_733_000_000_000, 7),
			Chain: events.HashPayload([]byte("payload")), Turn: 1, Step: 1, Attempt: 1, Result: audit.Match,
			Recorded: digest("body"), Rebuilt: digest("body"), Wire: digest("body"), Receipt: 12, Time: 1_733_000_000_123,
		},
		"unwitnessed": {
			Kind: audit.KindWire, Session: foldtest.SessionID, Seq: 7, Event: foldtest.ID(1_733_000_000_000, 7),
			Chain: events.HashPayload([]byte("payload")), Turn: 1, Step: 1, Attempt: 1, Result: audit.Mismatch,
			Recorded: digest("body"), Rule: audit.RuleUnwitnessed, Reason: "the log holds an answer, and no witness saw the call",
			Time: 1_733_000_000_123,
		},
		"stray": {
			Kind: audit.KindStray, Session: audit.NoSession, Seq: 1, Result: audit.Mismatch, Wire: digest("body"), Receipt: 13,
			Rule: audit.RuleUnlogged, Reason: "a call that names no session: POST /v1/chat/completions", Time: 1_733_000_000_123,
		},
	}
}

func verdictFormat() *recordFormat[audit.Verdict, *audit.Verdict] {
	return &recordFormat[audit.Verdict, *audit.Verdict]{
		file: "verdict", domain: "refold verdict 1\n", wrong: audit.ErrVerdict, limit: audit.MaxVerdictBytes,
		sign:   (*audit.Key).Sign,
		signer: func(v *audit.Verdict) (string, []byte) { return v.Verifier, v.Signature },
		decode: audit.DecodeVerdict,
	}
}

func TestSignatureCoversEverything(t *testing.T) {
	key := newKey(t)
	for name, change := range map[string]func(*audit.Verdict){
		"session":  func(v *audit.Verdict) { v.Session = foldtest.ID(1, 1) },
		"seq":      func(v *audit.Verdict) { v.Seq++ },
		"event":    func(v *audit.Verdict) { v.Event = "" },
		"chain":    func(v *audit.Verdict) { v.Chain[0]++ },
		"turn":     func(v *audit.Verdict) { v.Turn++ },
		"result":   func(v *audit.Verdict) { v.Result = audit.InvalidLog },
		"kind":     func(v *audit.Verdict) { v.Kind, v.Result = audit.KindLog, audit.Mismatch; v.Located = false },
		"codec":    func(v *audit.Verdict) { v.Codec = "" },
		"recorded": func(v *audit.Verdict) { v.Recorded.Bytes++ },
		"rebuilt":  func(v *audit.Verdict) { v.Rebuilt.SHA256[3]++ },
		"wire":     func(v *audit.Verdict) { v.Wire.SHA256[5]++ },
		"receipt":  func(v *audit.Verdict) { v.Receipt++ },
		"rule":     func(v *audit.Verdict) { v.Rule = "rule" },
		"reason":   func(v *audit.Verdict) { v.Reason = "reason" },
		"time":     func(v *audit.Verdict) { v.Time++ },
		"verifier": func(v *audit.Verdict) { v.Verifier = newKey(t).Public() },
		"cut":      func(v *audit.Verdict) { v.Signature = nil },
		"flip":     func(v *audit.Verdict) { v.Signature[0] ^= 1 },
	} {
		v := goldenVerdicts()["match"]
		if name == "wire" || name == "receipt" {
			v = goldenVerdicts()["wire"]
		}
		if err := key.Sign(&v); err != nil {
			t.Fatal(err)
		}
		if err := v.Verify(); err != nil {
			t.Fatalf("unchanged: %v", err)
		}
		change(&v)
		if err := v.Verify(); !errors.Is(err, audit.ErrSignature) {
			t.Errorf("%s changed: %v", name, err)
		}
	}
}

func TestVerdictRefused(t *testing.T) {
	for name, change := range map[string]func(*audit.Verdict){
		"kind":           func(v *audit.Verdict) { v.Kind = "x" },
		"session":        func(v *audit.Verdict) { v.Session = "x" },
		"seq":            func(v *audit.Verdict) { v.Seq = 0 },
		"event":          func(v *audit.Verdict) { v.Event = "x" },
		"result":         func(v *audit.Verdict) { v.Result = "" },
		"a bad head":     func(v *audit.Verdict) { v.Kind, v.Result = audit.KindHead, audit.Mismatch },
		"a good log":     func(v *audit.Verdict) { v.Kind = audit.KindLog },
		"negative":       func(v *audit.Verdict) { v.Time = -1 },
		"offset":         func(v *audit.Verdict) { v.Offset = 1 },
		"control":        func(v *audit.Verdict) { v.Reason = "a\x1b[31m" },
		"no UTF-8":       func(v *audit.Verdict) { v.Reason = "a\xff" },
		"line separator": func(v *audit.Verdict) { v.Reason = "a\u2028" },
		"long":           func(v *audit.Verdict) { v.Reason = strings.Repeat("a", 2000) },
		"signature":      func(v *audit.Verdict) { v.Signature = []byte{1} },
	} {
		v := goldenVerdicts()["match"]
		change(&v)
		if _, err := v.Encode(); !errors.Is(err, audit.ErrVerdict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, v := range map[string]audit.Verdict{
		"a receipt of a request":   {Kind: audit.KindRequest, Result: audit.Match, Receipt: 1},
		"a body of a head":         {Kind: audit.KindHead, Result: audit.Match, Wire: digestOf("body")},
		"a good stray":             {Kind: audit.KindStray, Result: audit.Match, Receipt: 1},
		"a stray without":          {Kind: audit.KindStray, Result: audit.Mismatch},
		"a match without receipt":  {Kind: audit.KindWire, Result: audit.Match, Wire: digestOf("body")},
		"a body without receipt":   {Kind: audit.KindWire, Result: audit.Mismatch, Wire: digestOf("body")},
		"a receipt without body":   {Kind: audit.KindStray, Result: audit.Mismatch, Receipt: 1},
		"a match with a rule":      {Kind: audit.KindRequest, Result: audit.Match, Rule: audit.RuleWire},
		"a match with a reason":    {Kind: audit.KindHead, Result: audit.Match, Reason: "why"},
		"an event without payload": {Kind: audit.KindHead, Result: audit.Match, Event: foldtest.ID(1, 1)},
		"a step of a stray":        {Kind: audit.KindStray, Result: audit.Mismatch, Receipt: 1, Wire: digestOf("body"), Step: 1},
		"a turn of a head":         {Kind: audit.KindHead, Result: audit.Match, Turn: 1},
		"an attempt of a log":      {Kind: audit.KindLog, Result: audit.Mismatch, Attempt: 1},
		"the codec of a call":      {Kind: audit.KindWire, Result: audit.Mismatch, Codec: "x"},
		"a recorded body of a log": {Kind: audit.KindLog, Result: audit.Mismatch, Recorded: digestOf("body")},
		"the body of a stray":      {Kind: audit.KindStray, Result: audit.Mismatch, Receipt: 1, Wire: digestOf("body"), Rebuilt: digestOf("body")},
		"a negative body":          {Kind: audit.KindWire, Result: audit.Mismatch, Wire: events.BodyDigest{Bytes: -1}},
		"the offset of a call":     {Kind: audit.KindWire, Result: audit.Mismatch, Located: true},
		"a session that is none":   {Kind: audit.KindStray, Result: audit.Mismatch, Receipt: 1, Session: "X"},
		"an unknown kind":          {Kind: "wires", Result: audit.Mismatch},
		"a signature without name": {Kind: audit.KindWire, Result: audit.Mismatch, Signature: make([]byte, 64)},
	} {
		v.Seq = 1
		if v.Session == "" {
			v.Session = foldtest.SessionID
		}
		if _, err := v.Encode(); !errors.Is(err, audit.ErrVerdict) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResultsOfKinds holds the table of docs/format/verdicts.md.
func TestResultsOfKinds(t *testing.T) {
	for kind, has := range map[audit.Kind]string{
		audit.KindRequest: "match mismatch missing-object corrupt-object broken-chain unknown-codec invalid-log could-not-check",
		audit.KindHead:    "match",
		audit.KindLog:     "mismatch missing-object corrupt-object broken-chain unknown-codec invalid-log could-not-check",
		audit.KindWire:    "match mismatch",
		audit.KindStray:   "mismatch",
	} {
		for _, result := range audit.Results() {
			v := audit.Verdict{Kind: kind, Session: foldtest.SessionID, Seq: 1, Result: result}
			if kind == audit.KindWire || kind == audit.KindStray {
				v.Receipt, v.Wire = 1, digestOf("body")
			}
			_, err := v.Encode()
			if want := slices.Contains(strings.Fields(has), string(result)); want != (err == nil) {
				t.Errorf("%s %s: %v", kind, result, err)
			}
		}
	}
}

func FuzzDecodeVerdict(f *testing.F) { fuzzRecords(f, verdictFormat(), goldenVerdicts()) }

func TestCheckPublic(t *testing.T) {
	key := newKey(t).Public()
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	ofAccount, err := account.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{key, ofAccount} {
		if err := audit.CheckPublic(good); err != nil {
			t.Error(err)
		}
	}
	exchange, err := nkeys.CreateCurveKeys()
	if err != nil {
		t.Fatal(err)
	}
	curve, err := exchange.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	changed := []byte(key)
	changed[20] ^= 'A' ^ 'B'
	for _, bad := range []string{"", "U", key[:55], key + "A", key + "\n", " " + key, strings.ToLower(key), string(changed), curve, goldenSeed(t)} {
		if err := audit.CheckPublic(bad); !errors.Is(err, audit.ErrKey) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := audit.CheckPublic(goldenSeed(t)); strings.Contains(err.Error(), goldenSeed(t)) {
		t.Error("the error shows the seed")
	}
	// As docs/format/verdicts.md says.
	raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(key)
	if err != nil || len(key) != 56 || len(raw) != 35 || raw[0] != 0xA0 {
		t.Fatalf("%q: %x, %v", key, raw, err)
	}
	crc := uint16(0)
	for _, b := range raw[:33] {
		crc ^= uint16(b) << 8
		for range 8 {
			top := crc >> 15
			crc = crc<<1 ^ top*0x1021
		}
	}
	if binary.LittleEndian.Uint16(raw[33:]) != crc {
		t.Errorf("checksum %x, want %04x low byte first", raw[33:], crc)
	}
}
