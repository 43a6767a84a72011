package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/refold-dev/refold/pkg/events"
)

// canonical is the canonical JSON of a verdict or a receipt in the making: an object that begins with its version.
type canonical []byte

func newCanonical(prefix []byte, version int64) canonical {
	return strconv.AppendInt(append(prefix, `{"v":`...), version, 10)
}

func (c *canonical) name(name string) { *c = append(append(append(*c, `,"`...), name...), `":`...) }

// text appends a text unless it is empty.
func (c *canonical) text(name, s string) {
	if s != "" {
		c.name(name)
		*c = events.AppendQuote(*c, s)
	}
}

// number appends a number.
func (c *canonical) number(name string, n int64) {
	c.name(name)
	*c = strconv.AppendInt(*c, n, 10)
}

// nonzero appends a number unless it is 0.
func (c *canonical) nonzero(name string, n int64) {
	if n != 0 {
		c.number(name, n)
	}
}

// count appends a number that needs all 64 bits.
func (c *canonical) count(name string, n uint64) {
	c.name(name)
	*c = strconv.AppendUint(*c, n, 10)
}

// digest appends a digest unless it is zero.
func (c *canonical) digest(name string, d events.BodyDigest) {
	if d == (events.BodyDigest{}) {
		return
	}
	c.name(name)
	*c = strconv.AppendInt(append(*c, `{"bytes":`...), d.Bytes, 10)
	*c = append(*c, `,"sha256":"`...)
	*c = append(appendHex(*c, d.SHA256[:]), `"}`...)
}

func (c *canonical) end() []byte { return append(*c, '}') }

// withSignature puts the signature, if there is one, at the end of what it is over, and holds the limit. The error wraps
// invalid.
func withSignature(unsigned, signature []byte, limit int, invalid error) ([]byte, error) {
	b := unsigned
	if len(signature) > 0 {
		b = append(b[:len(b)-1], `,"signature":"`...)
		b = append(appendHex(b, signature), `"}`...)
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", invalid, len(b), limit)
	}
	return b, nil
}

// encoder is a value with a canonical encoding.
type encoder interface{ Encode() ([]byte, error) }

// decodeCanonical decodes b into wire, takes the value from it and accepts only what that encodes to. The errors of its own wrap
// invalid.
func decodeCanonical[T any, P interface {
	*T
	encoder
}](b []byte, limit int, invalid error, wire any, value func() (T, error)) (T, error) {
	var none T
	if len(b) > limit {
		return none, fmt.Errorf("%w: %d bytes, at most %d", invalid, len(b), limit)
	}
	if err := json.Unmarshal(b, wire); err != nil {
		return none, fmt.Errorf("%w: %w", invalid, err)
	}
	v, err := value()
	if err != nil {
		return none, fmt.Errorf("%w: %w", invalid, err)
	}
	again, err := P(&v).Encode()
	if err != nil {
		return none, err
	}
	if !bytes.Equal(again, b) {
		return none, fmt.Errorf("%w: not in canonical form", invalid)
	}
	return v, nil
}

// knows returns why a reader of one version does not take another, nil when it is that one.
func knows(version, known int64) error {
	if version != known {
		return fmt.Errorf("format %d, this reader knows %d", version, known)
	}
	return nil
}
