package tamper_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// workerKinds are workers that say one thing and do another.
func workerKinds() []kind {
	return []kind{
		{"worker: records another body than the log gives", 3, func(d *dice, b *base) (mutation, bool) {
			return b.restated(d, of(audit.Mismatch, ""), func(s *events.LLMStream) { s.Body.SHA256[d.index(32)] ^= 1 << d.index(8) })
		}},
		{"worker: records another length", 1, func(d *dice, b *base) (mutation, bool) {
			return b.restated(d, of(audit.Mismatch, ""), func(s *events.LLMStream) { s.Body.Bytes++ })
		}},
		{"worker: names a codec that nobody knows", 1, func(d *dice, b *base) (mutation, bool) {
			return b.restated(d, of(audit.UnknownCodec, ""), func(s *events.LLMStream) { s.Codec += "0" })
		}},
		{"worker: records one body and sends another", 4, func(d *dice, b *base) (mutation, bool) {
			return b.receipted(d, of(audit.Mismatch, audit.RuleWire), nil, func(r *audit.Receipt) bool {
				r.Body.SHA256[d.index(32)] ^= 1 << d.index(8)
				return true
			})
		}},
		{"worker: sends what no log permits", 3, func(d *dice, b *base) (mutation, bool) {
			return b.receipted(d, of(audit.Mismatch, audit.RuleUnlogged), of(audit.Mismatch, audit.RuleUnwitnessed), func(r *audit.Receipt) bool {
				r.Seq = uint64(d.index(len(b.Messages) + 3))
				return !slices.ContainsFunc(b.Calls(), func(e events.Event) bool { return e.Seq == r.Seq })
			})
		}},
		{"worker: sends past the witness", 3, func(d *dice, b *base) (mutation, bool) {
			i, ok := b.call(d)
			if !ok || !b.Answered(b.receipts[i].Receipt.Seq) {
				return mutation{}, false
			}
			receipts := slices.Delete(slices.Clone(b.receipts), i, i+1)
			return mutation{what: "no receipt", check: b.witnessed(receipts), want: of(audit.Mismatch, audit.RuleUnwitnessed)}, true
		}},
		{"worker: sends twice", 3, func(d *dice, b *base) (mutation, bool) {
			i, ok := b.call(d)
			if !ok {
				return mutation{}, false
			}
			again := b.receipts[i]
			again.Place = b.receipts[len(b.receipts)-1].Place + 1 + uint64(d.index(3))
			if d.IntN(2) == 0 { // with another body
				again.Receipt.Body.SHA256[0] ^= 1
				sign(b.witness, &again.Receipt)
			}
			return mutation{what: "sent again", check: b.witnessed(append(slices.Clone(b.receipts), again)), want: of(audit.Mismatch, audit.RuleRepeated)}, true
		}},
		{"worker: logs a call as failed that was answered to nobody", 1, func(d *dice, b *base) (mutation, bool) {
			i, ok := b.call(d)
			if !ok || b.Answered(b.receipts[i].Receipt.Seq) { // it need not have left
				return mutation{}, false
			}
			return mutation{what: "no receipt of a failed call", check: b.witnessed(slices.Delete(slices.Clone(b.receipts), i, i+1)), maybe: true}, true
		}},
	}
}

// restated changes what a request's event says of its body, and makes the log fit, as the worker wrote it.
func (b *base) restated(d *dice, want found, change func(*events.LLMStream)) (mutation, bool) {
	i := d.index(len(b.Messages))
	e, err := events.Decode(b.Messages[i].Payload)
	if err != nil {
		panic(err)
	}
	s, ok := e.Body.(*events.LLMStream)
	if !ok || b.copied(e.Seq) {
		return mutation{}, false
	}
	change(s)
	messages := slices.Clone(b.Messages)
	if messages[i].Payload, err = events.Encode(&e); err != nil {
		panic(err)
	}
	c := b.check(audittest.Relink(messages, i), b.last())
	c.Cold = d.IntN(2) == 0
	return mutation{what: fmt.Sprintf("request of event %d", i+1), check: c, want: want}, true
}

// call draws the receipt of a request for one of the session's calls.
func (b *base) call(d *dice) (i int, ok bool) {
	if len(b.receipts) == 0 {
		return 0, false
	}
	i = d.index(len(b.receipts))
	r := &b.receipts[i].Receipt
	return i, r.Kind == audit.ReceiptRequest && r.Seq != 0
}

// receipted changes what the witness saw of a call.
func (b *base) receipted(d *dice, want, also found, change func(*audit.Receipt) bool) (mutation, bool) {
	i, ok := b.call(d)
	if !ok {
		return mutation{}, false
	}
	receipts := slices.Clone(b.receipts)
	r := &receipts[i].Receipt
	if !change(r) {
		return mutation{}, false
	}
	sign(b.witness, r)
	return mutation{what: r.String(), check: b.witnessed(receipts), want: want, also: also}, true
}

func sign(key *audit.Key, r *audit.Receipt) {
	if err := key.SignReceipt(r); err != nil {
		panic(err)
	}
}

// objectKinds damage one object in the store.
func objectKinds() []kind {
	altered := func(change func(d *dice, b *base, right []byte) ([]byte, bool)) func(d *dice, b *base) (mutation, bool) {
		return func(d *dice, b *base) (mutation, bool) {
			ref, right, ok := b.object(d)
			if !ok {
				return mutation{}, false
			}
			wrong, ok := change(d, b, right)
			if !ok || bytes.Equal(wrong, right) {
				return mutation{}, false
			}
			return b.stored(d, ref, &audittest.Store{Source: b.Source, Altered: map[objects.Digest][]byte{ref.Digest: wrong}}, of(audit.CorruptObject, ""))
		}
	}
	return []kind{
		{"object: missing", 3, func(d *dice, b *base) (mutation, bool) {
			ref, _, ok := b.object(d)
			return mutationOf(ok, func() (mutation, bool) {
				return b.stored(d, ref, &audittest.Store{Source: b.Source, Missing: map[objects.Digest]bool{ref.Digest: true}}, of(audit.MissingObject, ""))
			})
		}},
		{"object: bit flipped", 3, altered(func(d *dice, _ *base, right []byte) ([]byte, bool) {
			if len(right) == 0 {
				return nil, false
			}
			wrong := bytes.Clone(right)
			wrong[d.index(len(wrong))] ^= 1 << d.index(8)
			return wrong, true
		})},
		{"object: cut", 2, altered(func(d *dice, _ *base, right []byte) ([]byte, bool) { return right[:d.index(len(right)+1)], true })},
		{"object: longer", 2, altered(func(d *dice, _ *base, right []byte) ([]byte, bool) {
			return append(bytes.Clone(right), byte(d.IntN(256))), true
		})},
		{"object: another in its place", 2, altered(func(d *dice, b *base, _ []byte) ([]byte, bool) {
			_, other, ok := b.object(d)
			return other, ok
		})},
		{"object: no answer", 1, func(d *dice, b *base) (mutation, bool) {
			ref, _, ok := b.object(d)
			return mutationOf(ok, func() (mutation, bool) {
				return b.stored(d, ref, &audittest.Store{Source: b.Source, Fail: objects.ErrUnavailable}, of(audit.CouldNotCheck, ""))
			})
		}},
	}
}

func mutationOf(ok bool, f func() (mutation, bool)) (mutation, bool) {
	if !ok {
		return mutation{}, false
	}
	return f()
}

// object draws an object that a request lists.
func (b *base) object(d *dice) (objects.Ref, []byte, bool) {
	if len(b.Refs) == 0 {
		return objects.Ref{}, nil, false
	}
	ref := b.Refs[d.index(len(b.Refs))]
	data, _ := b.Source.Bytes(ref.Digest)
	return ref, data, true
}

func (b *base) stored(d *dice, ref objects.Ref, s *audittest.Store, want found) (mutation, bool) {
	c := b.check(b.Messages, b.last())
	c.Objects, c.Cold = audit.FromStore(s), d.IntN(2) == 0
	if d.IntN(2) == 0 {
		c = b.with(c)
	}
	return mutation{what: ref.String(), check: c, want: want}, true
}

// verdictKinds forge what verifiers have signed.
func verdictKinds() []kind {
	return []kind{
		{"verdict: signature's bit flipped", 3, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, signature(), func(v *audit.Verdict) bool {
				v.Signature = bytes.Clone(v.Signature)
				v.Signature[d.index(64)] ^= 1 << d.index(8)
				return true
			})
		}},
		{"verdict: without a signature", 1, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, signature(), func(v *audit.Verdict) bool {
				v.Signature = nil
				return true
			})
		}},
		{"verdict: field changed", 4, func(d *dice, b *base) (mutation, bool) {
			m, ok := b.verdict(d, signature(), func(v *audit.Verdict) bool { return changeVerdict(d, v) })
			m.also = of(audit.Mismatch, audit.RuleSilent) // it may name another event, and none is left on its own
			return m, ok
		}},
		{"verdict: another's signature", 2, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, signature(), func(v *audit.Verdict) bool {
				other := *v
				signVerdict(d.keys.other, &other)
				v.Signature = other.Signature
				return true
			})
		}},
		{"verdict: signature of another verdict", 2, func(d *dice, b *base) (mutation, bool) {
			other := b.signed[d.index(len(b.signed))]
			return b.verdict(d, signature(), func(v *audit.Verdict) bool {
				differs := !bytes.Equal(v.Signature, other.Signature)
				v.Signature = other.Signature
				return differs
			})
		}},
		{"verdict: of another session", 2, func(d *dice, b *base) (mutation, bool) {
			other := d.bases[d.index(len(d.bases))]
			m, ok := b.verdict(d, signature(), func(v *audit.Verdict) bool {
				*v = other.signed[d.index(len(other.signed))]
				return other.ID != b.ID
			})
			m.also = of(audit.Mismatch, audit.RuleSilent) // the one that stood there
			return m, ok
		}},
		{"verdict: signed over another log", 3, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, broken(audit.RuleSigned), func(v *audit.Verdict) bool {
				v.Chain[d.index(32)] ^= 1 << d.index(8)
				signVerdict(b.key, v)
				return true
			})
		}},
		{"verdict: signed, and contradicts", 3, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, of(audit.Mismatch, audit.RuleVerdict), func(v *audit.Verdict) bool {
				untrue(d, v)
				signVerdict(b.key, v)
				return true
			})
		}},
		{"verdict: on a call, signed, and contradicts", 3, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, of(audit.Mismatch, audit.RuleVerdict), func(v *audit.Verdict) bool {
				if v.Kind != audit.KindWire {
					return false
				}
				untrueCall(d, v)
				signVerdict(b.key, v)
				return true
			})
		}},
		{"verdict: broken chain signed, and the log written anew", 2, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, broken(string(fold.RuleChain)), func(v *audit.Verdict) bool {
				v.Result, v.Rule, v.Rebuilt = audit.BrokenChain, string(fold.RuleChain), events.BodyDigest{}
				v.Chain[d.index(32)] ^= 1 << d.index(8)
				if v.Kind != audit.KindRequest {
					return false
				}
				signVerdict(b.key, v)
				return true
			})
		}},
		{"verdict: finding that only a verifier makes", 2, func(d *dice, b *base) (mutation, bool) {
			at := b.signed[d.index(len(b.signed))]
			v := audit.Verdict{
				Kind: audit.KindLog, Session: b.ID, Seq: at.Seq, Event: at.Event, Chain: at.Chain, Result: audit.InvalidLog,
				Rule: []string{audit.RuleGone, audit.RuleCold, audit.RuleShadow, audit.RuleLineage}[d.index(4)],
			}
			signVerdict(b.key, &v)
			c := b.with(b.LogCheck())
			c.Prior = append(slices.Clone(c.Prior), v)
			return mutation{what: v.String(), check: c, want: invalid(v.Rule)}, true
		}},
		{"verdict: on an event that is not there", 2, func(d *dice, b *base) (mutation, bool) {
			return b.verdict(d, broken(audit.RuleSigned), func(v *audit.Verdict) bool {
				v.Seq = b.last() + 1 + uint64(d.index(9))
				signVerdict(b.key, v)
				return true
			})
		}},
		{"verdict: by a key that is not trusted", 2, untrusted},
		{"verdict: none left", 1, func(_ *dice, b *base) (mutation, bool) {
			c := b.with(b.LogCheck())
			c.Prior = nil
			return mutation{what: "no verdicts", check: c, verify: func(_ *testing.T, r *audit.Report) (string, error) {
				findings := findingsOf(r)
				if len(findings) != 1 || !of(audit.CouldNotCheck, audit.RuleSilent).has(findings[0]) || r.Confirmed != 0 || !slices.Equal(r.Silent, c.Trusted) {
					return "", fmt.Errorf("confirmed %d, silent %v, %v", r.Confirmed, r.Silent, findings)
				}
				return findings[0].String(), nil
			}}, true
		}},
		{"verdict: one left out", 1, func(d *dice, b *base) (mutation, bool) {
			c := b.with(b.LogCheck())
			i := d.index(len(c.Prior))
			c.Prior = slices.Delete(slices.Clone(c.Prior), i, i+1)
			m := mutation{what: "a verdict left out", check: c, want: b.missed(i)}
			m.maybe = len(m.want) == 0 // a verdict says nothing of others: the transparency log does
			return m, true
		}},
		{"verdict: replayed", 1, func(d *dice, b *base) (mutation, bool) {
			c := b.with(b.LogCheck()) // it says nothing but what is true
			c.Prior = append(slices.Clone(c.Prior), c.Prior[d.index(len(c.Prior))])
			return mutation{what: "a verdict again", check: c, maybe: true}, true
		}},
		{"verdict: byte changed", 4, func(d *dice, b *base) (mutation, bool) {
			right, err := b.signed[d.index(len(b.signed))].Encode()
			if err != nil {
				panic(err)
			}
			wrong := damaged(d, right)
			m := mutation{what: fmt.Sprintf("%q", wrong)}
			v, err := audit.DecodeVerdict(wrong)
			m.refused, m.err = refusal(err, audit.ErrVerdict, v.Verify)
			return m, true
		}},
	}
}

// verdict changes one signed verdict.
func (b *base) verdict(d *dice, want found, change func(*audit.Verdict) bool) (mutation, bool) {
	i := d.index(len(b.signed))
	signed := slices.Clone(b.signed)
	if !change(&signed[i]) {
		return mutation{}, false
	}
	c := b.with(b.LogCheck())
	c.Prior = signed
	return mutation{what: signed[i].String(), check: c, want: want}, true
}

// untrusted signs all verdicts by somebody else, on another log.
func untrusted(d *dice, b *base) (mutation, bool) {
	c := b.with(b.LogCheck())
	c.Prior = slices.Clone(c.Prior)
	i := d.index(len(c.Prior))
	v := &c.Prior[i]
	v.Chain[0] ^= 1
	signVerdict(d.keys.other, v)
	n := len(c.Prior)
	wrong := b.missed(i)
	return mutation{what: "an untrusted verdict", check: c, verify: func(_ *testing.T, r *audit.Report) (string, error) {
		findings := findingsOf(r)
		silent := len(findings) == 1 && of(audit.CouldNotCheck, audit.RuleSilent).has(findings[0])
		if r.Ignored != 1 || r.Confirmed != n-1 || len(wrong) == 0 != (len(findings) == 0) || len(wrong) > 0 && !silent {
			return "", fmt.Errorf("ignored %d, confirmed %d of %d, %v", r.Ignored, r.Confirmed, n, findings)
		}
		return "ignored, and counted", nil
	}}, true
}

// missed returns what is found when the signed verdict i is not there. That of a request shows when a later one of a request or a
// head is there; others do not, since nobody says in which order they were given.
func (b *base) missed(i int) found {
	if b.signed[i].Kind != audit.KindRequest {
		return nil
	}
	later := slices.ContainsFunc(b.signed, func(v audit.Verdict) bool {
		return v.Seq > b.signed[i].Seq && (v.Kind == audit.KindRequest || v.Kind == audit.KindHead)
	})
	if !later {
		return nil
	}
	return of(audit.Mismatch, audit.RuleSilent)
}

func signVerdict(key *audit.Key, v *audit.Verdict) {
	if err := key.Sign(v); err != nil {
		panic(err)
	}
}

// untrue changes what a verdict that matches says of its event, the request or the call.
func untrue(d *dice, v *audit.Verdict) {
	switch v.Kind {
	case audit.KindHead:
		v.Event = foldtest.ID(1, uint64(d.index(1000)))
	case audit.KindWire:
		switch d.IntN(4) {
		case 0:
			v.Recorded.SHA256[d.index(32)] ^= 1
		case 1:
			v.Wire.SHA256[d.index(32)] ^= 1
		case 2:
			v.Rebuilt.Bytes++
		case 3:
			v.Attempt++
		}
	case audit.KindRequest, audit.KindLog, audit.KindStray:
		switch d.IntN(5) {
		case 0:
			v.Result = audit.Mismatch
		case 1:
			v.Recorded.SHA256[d.index(32)] ^= 1
		case 2:
			v.Rebuilt.SHA256[d.index(32)] ^= 1
		case 3:
			v.Result, v.Rule = audit.InvalidLog, "turn"
		case 4:
			v.Codec = "another/1"
		}
	}
}

// untrueCall changes what a verdict on a call that matches says of it.
func untrueCall(d *dice, v *audit.Verdict) {
	switch d.IntN(6) {
	case 0:
		v.Recorded.SHA256[d.index(32)] ^= 1 << d.index(8)
	case 1:
		v.Rebuilt.Bytes++
	case 2:
		v.Wire.SHA256[d.index(32)] ^= 1 << d.index(8)
	case 3:
		v.Recorded.SHA256[d.index(32)] ^= 1 << d.index(8)
		v.Rebuilt, v.Wire = v.Recorded, v.Recorded
	case 4:
		v.Turn, v.Step = v.Step+1, v.Turn
	case 5:
		v.Attempt++
	}
}

// changeVerdict changes a field and leaves the signature; false when the field has no other value here.
func changeVerdict(d *dice, v *audit.Verdict) bool {
	before := v.String() + fmt.Sprint(*v)
	switch d.IntN(11) {
	case 0:
		v.Seq += 1 + uint64(d.index(5))
	case 1:
		v.Chain[d.index(32)] ^= 1 << d.index(8)
	case 2:
		v.Result = audit.Results()[d.index(len(audit.Results()))]
	case 3:
		v.Rebuilt.Bytes++
	case 4:
		v.Recorded.SHA256[d.index(32)] ^= 1
	case 5:
		v.Time++
	case 6:
		v.Rule += "x"
	case 7:
		v.Reason += "x"
	case 8:
		v.Step++
	case 9:
		v.Wire.SHA256[d.index(32)] ^= 1
	case 10:
		v.Receipt++
	}
	return before != v.String()+fmt.Sprint(*v)
}

// damaged flips a bit, cuts, or adds a byte.
func damaged(d *dice, right []byte) []byte {
	switch wrong := bytes.Clone(right); d.IntN(4) {
	case 0:
		return wrong[:d.index(len(wrong))]
	case 1:
		at := d.index(len(wrong) + 1)
		return slices.Insert(wrong, at, byte(d.IntN(256)))
	default:
		wrong[d.index(len(wrong))] ^= 1 << d.index(8)
		return wrong
	}
}
