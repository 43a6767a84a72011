package tamper_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
)

// receiptKinds forge what witnesses have signed.
func receiptKinds() []kind {
	unwitnessed := of(audit.Mismatch, audit.RuleUnwitnessed)
	return []kind{
		{"receipt: signature's bit flipped", 3, func(d *dice, b *base) (mutation, bool) {
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				r.Signature = bytes.Clone(r.Signature)
				r.Signature[d.index(64)] ^= 1 << d.index(8)
				return true
			})
		}},
		{"receipt: without a signature", 1, func(d *dice, b *base) (mutation, bool) {
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				r.Signature = nil
				return true
			})
		}},
		{"receipt: field changed", 3, func(d *dice, b *base) (mutation, bool) {
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				switch d.IntN(5) {
				case 0:
					r.Seq++
				case 1:
					r.Body.SHA256[d.index(32)] ^= 1 << d.index(8)
				case 2:
					r.Body.Bytes++
				case 3:
					r.Time++
				case 4:
					r.Target += "x"
				}
				return true
			})
		}},
		{"receipt: another's signature", 2, func(d *dice, b *base) (mutation, bool) {
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				other := *r
				sign(d.keys.other, &other)
				r.Signature = other.Signature
				return true
			})
		}},
		{"receipt: the verifier's signature", 1, func(d *dice, b *base) (mutation, bool) {
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				other := *r
				sign(b.key, &other)
				r.Signature = other.Signature
				return true
			})
		}},
		{"receipt: of another session", 2, func(d *dice, b *base) (mutation, bool) {
			other := d.bases[d.index(len(d.bases))]
			if len(other.receipts) == 0 || other.ID == b.ID {
				return mutation{}, false
			}
			return b.receipt(d, signature(), unwitnessed, func(r *audit.Receipt) bool {
				*r = other.receipts[d.index(len(other.receipts))].Receipt
				return true
			})
		}},
		{"receipt: by a witness that is not trusted", 2, unheard},
		{"receipt: given twice", 2, func(d *dice, b *base) (mutation, bool) {
			i, ok := b.call(d)
			if !ok {
				return mutation{}, false
			}
			again := b.receipts[i]
			again.Place++
			receipts := slices.Insert(slices.Clone(b.receipts), i+1, again)
			return mutation{what: "twice", check: b.witnessed(receipts), want: of(audit.Mismatch, audit.RuleRepeated)}, true
		}},
		{"receipt: in another order", 1, func(d *dice, b *base) (mutation, bool) {
			receipts := slices.Clone(b.receipts)
			d.Shuffle(len(receipts), func(i, j int) { receipts[i], receipts[j] = receipts[j], receipts[i] })
			return mutation{what: "in another order", check: b.witnessed(receipts), maybe: true}, true
		}},
		{"receipt: byte changed", 4, func(d *dice, b *base) (mutation, bool) {
			if len(b.receipts) == 0 {
				return mutation{}, false
			}
			right, err := b.receipts[d.index(len(b.receipts))].Receipt.Encode()
			if err != nil {
				panic(err)
			}
			wrong := damaged(d, right)
			m := mutation{what: fmt.Sprintf("%q", wrong)}
			r, err := audit.DecodeReceipt(wrong)
			m.refused, m.err = refusal(err, audit.ErrReceipt, r.Verify)
			return m, true
		}},
	}
}

// refusal says how damaged bytes were noticed: they are none of their kind, or their signature does not hold.
func refusal(err, sentinel error, verify func() error) (how string, problem error) {
	if err == nil {
		if err = verify(); err == nil {
			return "", errors.New("the bytes pass")
		}
	}
	switch {
	case errors.Is(err, sentinel):
		return "refused: " + sentinel.Error(), nil
	case errors.Is(err, audit.ErrSignature):
		return "refused: " + audit.ErrSignature.Error(), nil
	}
	return "", fmt.Errorf("refused as something else: %w", err)
}

// receipt forges the receipt of a call. Where it is the only one of an answered call, nothing is left that shows the call.
func (b *base) receipt(d *dice, want, also found, change func(*audit.Receipt) bool) (mutation, bool) {
	i, ok := b.call(d)
	if !ok {
		return mutation{}, false
	}
	receipts := slices.Clone(b.receipts)
	r := &receipts[i].Receipt
	if !change(r) {
		return mutation{}, false
	}
	return mutation{what: r.String(), check: b.witnessed(receipts), want: want, also: also}, true
}

// unheard has a call witnessed by somebody whom nobody trusts.
func unheard(d *dice, b *base) (mutation, bool) {
	i, ok := b.call(d)
	if !ok {
		return mutation{}, false
	}
	answered := b.Answered(b.receipts[i].Receipt.Seq)
	receipts := slices.Clone(b.receipts)
	sign(d.keys.other, &receipts[i].Receipt)
	return mutation{what: "an untrusted receipt", check: b.witnessed(receipts), verify: func(_ *testing.T, r *audit.Report) (string, error) {
		found := findingsOf(r)
		if r.Unheard != 1 || answered != found.has(finding{audit.Mismatch, audit.RuleUnwitnessed}) || len(found) > 1 {
			return "", fmt.Errorf("%d unheard, answered %t, found %v", r.Unheard, answered, found)
		}
		return "not heard, and counted", nil
	}}, true
}
