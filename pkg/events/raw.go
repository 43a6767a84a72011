package events

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// RawJSON is one JSON value kept byte for byte, without white space around it: a tool's parameter schema, the
// metadata of a tool result, the data of an event that this version does not know.
type RawJSON string

// Validate reports whether r is one well-formed JSON value in UTF-8, nested at most 512 deep. The error wraps
// [ErrInvalid].
func (r RawJSON) Validate() error {
	end, err := scanJSON(string(r), 0)
	if err == nil && end != len(r) {
		err = fmt.Errorf("byte %d: more than one value", end)
	}
	if err != nil {
		return fmt.Errorf("%w: raw JSON: %w", ErrInvalid, err)
	}
	return nil
}

const maxDepth = 512

var (
	errDepth     = errors.New("nested deeper than 512")
	errTruncated = errors.New("a JSON value does not end")
	errNotUTF8   = errors.New("not UTF-8")
	errNumber    = errors.New("a malformed number")
)

// scanJSON returns the end of the JSON value that starts at s[i]. It recurses at most maxDepth deep.
func scanJSON(s string, i int) (int, error) {
	p := jsonScanner{s: s}
	end, err := p.value(i, 0)
	if err == nil && !utf8.ValidString(s[i:end]) {
		err = errNotUTF8
	}
	return end, err
}

type jsonScanner struct{ s string }

func (p *jsonScanner) space(i int) int {
	for i < len(p.s) && (p.s[i] == ' ' || p.s[i] == '\t' || p.s[i] == '\n' || p.s[i] == '\r') {
		i++
	}
	return i
}

func (p *jsonScanner) value(i, depth int) (int, error) {
	if i >= len(p.s) {
		return i, errTruncated
	}
	switch c := p.s[i]; {
	case c == '{':
		return p.members(i, depth, '}')
	case c == '[':
		return p.members(i, depth, ']')
	case c == '"':
		return p.string(i)
	case c == '-' || c >= '0' && c <= '9':
		return p.number(i)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(p.s[i:], word) {
			return i + len(word), nil
		}
	}
	return i, fmt.Errorf("byte %d: no JSON value", i)
}

// members scans an object or array from its opening bracket to its closing one.
func (p *jsonScanner) members(i, depth int, end byte) (int, error) {
	if depth == maxDepth {
		return i, errDepth
	}
	i = p.space(i + 1)
	if i < len(p.s) && p.s[i] == end {
		return i + 1, nil
	}
	for {
		var err error
		if end == '}' {
			if i, err = p.string(i); err != nil {
				return i, err
			}
			i = p.space(i)
			if i >= len(p.s) || p.s[i] != ':' {
				return i, fmt.Errorf("byte %d: want a colon", i)
			}
			i = p.space(i + 1)
		}
		if i, err = p.value(i, depth+1); err != nil {
			return i, err
		}
		i = p.space(i)
		if i >= len(p.s) {
			return i, errTruncated
		}
		if p.s[i] == end {
			return i + 1, nil
		}
		if p.s[i] != ',' {
			return i, fmt.Errorf("byte %d: want a comma or %q", i, end)
		}
		i = p.space(i + 1)
	}
}

func (p *jsonScanner) string(i int) (int, error) {
	if i >= len(p.s) || p.s[i] != '"' {
		return i, fmt.Errorf("byte %d: want a string", i)
	}
	i++
	for {
		i, _ = special(p.s, i)
		switch {
		case i >= len(p.s):
			return i, errTruncated
		case p.s[i] == '"':
			return i + 1, nil
		case p.s[i] != '\\':
			return i, fmt.Errorf("byte %d: control character in a string", i)
		}
		_, n := unescape(p.s[i:])
		if n == 0 {
			return i, fmt.Errorf("byte %d: bad escape", i)
		}
		i += n
	}
}

func (p *jsonScanner) digits(i int) int {
	for i < len(p.s) && p.s[i] >= '0' && p.s[i] <= '9' {
		i++
	}
	return i
}

func (p *jsonScanner) number(start int) (int, error) {
	i := start
	if p.s[i] == '-' {
		i++
	}
	end := p.digits(i)
	if end == i || (p.s[i] == '0' && end > i+1) {
		return start, errNumber
	}
	i = end
	if i < len(p.s) && p.s[i] == '.' {
		end = p.digits(i + 1)
		if end == i+1 {
			return start, errNumber
		}
		i = end
	}
	if i < len(p.s) && (p.s[i] == 'e' || p.s[i] == 'E') {
		i++
		if i < len(p.s) && (p.s[i] == '+' || p.s[i] == '-') {
			i++
		}
		end = p.digits(i)
		if end == i {
			return start, errNumber
		}
		i = end
	}
	return i, nil
}

// Number is a JSON number in the form in which ECMAScript prints it ("0.7", "1", "1e-7"); the empty Number is
// absent. Make one with [NewNumber].
type Number string

// NewNumber returns f as ECMAScript prints it. The error wraps [ErrInvalid] when f is not finite.
func NewNumber(f float64) (Number, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "", fmt.Errorf("%w: %v is no JSON number", ErrInvalid, f)
	}
	if f == 0 {
		return "0", nil // ECMAScript prints -0 as 0
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return Number(strconv.FormatFloat(f, 'f', -1, 64)), nil
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exp, _ := strings.Cut(s, "e")
	sign := exp[:1]
	return Number(mantissa + "e" + sign + strings.TrimLeft(exp[1:], "0")), nil
}

func (n Number) canonical() bool {
	f, err := strconv.ParseFloat(string(n), 64)
	if err != nil {
		return false
	}
	c, err := NewNumber(f)
	return err == nil && c == n
}

func (w *wire) optNumber(name string, n *Number) {
	if !w.optional(name, *n != "") {
		return
	}
	w.raw(name, (*RawJSON)(n))
	if w.err == nil && !n.canonical() {
		w.fail(ErrInvalid, "number %q is not in ECMAScript's form", clip(string(*n)))
	}
}
