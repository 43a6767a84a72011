package tools

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/pkg/events"
)

// The values that arguments are judged as. They are what encoding/json makes, under names of their own that print
// briefly: the library prints the values that do not fit, several times where schemas are nested, and a model may write
// megabytes.
type (
	object map[string]any
	array  []any
	// text is valid UTF-8; see [standIn].
	text string
)

// maxDepth is how deep arguments may be nested, as JSON in events may.
const maxDepth = 512

// shownBytes bounds a string in a message.
const shownBytes = 100

var errDepth = fmt.Errorf("nested deeper than %d", maxDepth)

// Format implements [fmt.Formatter].
func (object) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "the object") }

// Format implements [fmt.Formatter].
func (array) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "the array") }

// Format implements [fmt.Formatter].
func (t text) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, quote(string(t))) }

// quote returns a text as JSON, shortened.
func quote(s string) string {
	s, cut := Cut(s, shownBytes)
	quoted := shown(string(events.AppendQuote(nil, s)))
	if cut {
		return quoted + "..."
	}
	return quoted
}

// decode reads one JSON value. Lone surrogates are kept (as [standIn] has them) and integers of 64 bits are exact; other
// numbers are the nearest finite double. Of members of one name the last one counts, as for most programs.
func decode(raw string) (any, error) {
	if !utf8.ValidString(raw) {
		raw = standIn(raw)
	}
	d := jsontext.NewDecoder(bytes.NewReader([]byte(raw)), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	v, err := decodeValue(d)
	if err != nil {
		return nil, decodeError(err, len(raw))
	}
	if _, err := d.ReadToken(); err == nil {
		return nil, fmt.Errorf("byte %d: something follows the value", d.InputOffset())
	} else if !errors.Is(err, io.EOF) {
		return nil, decodeError(err, len(raw))
	}
	return v, nil
}

// decodeError says where the JSON text of that many bytes is wrong, without the package's name.
func decodeError(err error, length int) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the text ends after %d bytes, before the value does", length)
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return fmt.Errorf("byte %d: %w", e.ByteOffset, e.Err)
	}
	return err
}

func decodeValue(d *jsontext.Decoder) (any, error) {
	switch d.PeekKind() {
	case '{':
		return decodeObject(d)
	case '[':
		return decodeArray(d)
	case '"':
		s, err := decodeString(d)
		return text(s), err
	case '0':
		raw, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		return number(string(raw)), nil
	default: // true, false, null, or what the decoder refuses
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if token.Kind() == 'n' {
			return nil, nil // null
		}
		return token.Bool(), nil
	}
}

func decodeObject(d *jsontext.Decoder) (any, error) {
	if err := open(d); err != nil {
		return nil, err
	}
	o := object{}
	for d.PeekKind() != '}' {
		name, err := decodeString(d)
		if err != nil {
			return nil, err
		}
		if o[name], err = decodeValue(d); err != nil {
			return nil, err
		}
	}
	_, err := d.ReadToken()
	return o, err
}

func decodeArray(d *jsontext.Decoder) (any, error) {
	if err := open(d); err != nil {
		return nil, err
	}
	a := array{}
	for d.PeekKind() != ']' {
		v, err := decodeValue(d)
		if err != nil {
			return nil, err
		}
		a = append(a, v)
	}
	_, err := d.ReadToken()
	return a, err
}

// open reads an opening bracket.
func open(d *jsontext.Decoder) error {
	if d.StackDepth() == maxDepth {
		return fmt.Errorf("byte %d: %w", d.InputOffset(), errDepth)
	}
	_, err := d.ReadToken()
	return err
}

func decodeString(d *jsontext.Decoder) (string, error) {
	raw, err := d.ReadValue()
	if err != nil {
		return "", err
	}
	s, err := events.Unquote(raw)
	if err != nil {
		return "", err // a name that is no string: the decoder has refused it already
	}
	return standIn(s), nil
}

// number returns an integer of 64 bits as it is and every other number as the double next to it: the largest one for
// those beyond it.
func number(literal string) any {
	if i, err := strconv.ParseInt(literal, 10, 64); err == nil {
		return i
	}
	if u, err := strconv.ParseUint(literal, 10, 64); err == nil {
		return u
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil {
		return math.Copysign(math.MaxFloat64, f)
	}
	return f
}

// A schema judges code points, and the library counts in UTF-8, so that the three bytes of a lone surrogate would count
// as three. For that time U+D800..U+DFFF become U+10F800..U+10FFFF, the end of the last private plane, one for one.
const (
	surrogateMin = 0xD800
	standInMin   = 0x10F800
)

// standIn returns well-formed text in UTF-8.
func standIn(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	dst := make([]byte, 0, len(s)+len(s)/2)
	for i := 0; i < len(s); {
		n := width(s, i)
		if isSurrogate(s[i:]) {
			u := rune(s[i]&0xF)<<12 | rune(s[i+1]&0x3F)<<6 | rune(s[i+2]&0x3F)
			dst = utf8.AppendRune(dst, u-surrogateMin+standInMin)
		} else {
			r, _ := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
		}
		i += n
	}
	return string(dst)
}

// shown returns text that a person or a model reads, with escapes for what stands in for surrogates.
func shown(s string) string {
	var dst []byte
	for _, r := range s {
		if r >= standInMin {
			dst = fmt.Appendf(dst, `\u%04x`, r-standInMin+surrogateMin)
		} else {
			dst = utf8.AppendRune(dst, r)
		}
	}
	return string(dst)
}
