// Package lossless reads JSON of other people's making without losing anything of it: strings keep lone surrogates
// and bytes that are not UTF-8, numbers keep their digits, values keep their bytes.
package lossless

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrType means that a value has another JSON type than its place asks for. The input is refused; reading it again
// gives the same.
var ErrType = errors.New("wrong JSON type")

// NewDecoder returns a decoder of one value that accepts what ECMAScript's JSON.parse accepts: strings that are not
// Unicode and objects with duplicate names, of which the last one counts. The decoder reads from b, which must not
// change while it is in use.
func NewDecoder(b []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(b), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

// End fails unless nothing but white space is left.
func End(dec *jsontext.Decoder) error {
	_, err := dec.ReadToken()
	switch {
	case err == nil:
		return fmt.Errorf("byte %d: more than one JSON value", dec.InputOffset())
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// Null reads a null if one comes next and reports whether it did.
func Null(dec *jsontext.Decoder) bool {
	if dec.PeekKind() != 'n' {
		return false
	}
	_, err := dec.ReadToken()
	return err == nil
}

// Object reads an object and calls member with each name in order; member must read exactly the value that follows.
// The error wraps [ErrType] when something else than an object comes next.
func Object(dec *jsontext.Decoder, member func(name string) error) error {
	if err := open(dec, '{'); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if err := member(tok.String()); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// Array reads an array and calls element with the position of each element in order; element must read exactly that
// element. The error wraps [ErrType] when something else than an array comes next.
func Array(dec *jsontext.Decoder, element func(i int) error) error {
	if err := open(dec, '['); err != nil {
		return err
	}
	for i := 0; dec.PeekKind() != ']'; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func open(dec *jsontext.Decoder, kind jsontext.Kind) error {
	got := dec.PeekKind()
	if got != kind && got != 0 { // 0: ReadToken says what is wrong
		return typeError(dec, string(byte(kind)), got)
	}
	_, err := dec.ReadToken()
	return err
}

func typeError(dec *jsontext.Decoder, want string, got jsontext.Kind) error {
	return fmt.Errorf("%w: byte %d: want %s, not %v", ErrType, dec.InputOffset(), want, got)
}

// String reads a string as well-formed text, see [events.Unquote]. The error wraps [ErrType] when something else
// comes next.
func String(dec *jsontext.Decoder) (string, error) {
	if k := dec.PeekKind(); k != '"' && k != 0 {
		return "", typeError(dec, "a string", k)
	}
	v, err := dec.ReadValue()
	if err != nil {
		return "", err
	}
	return events.Unquote(v)
}

// Raw reads any value and returns a copy of its bytes.
func Raw(dec *jsontext.Decoder) (jsontext.Value, error) {
	v, err := dec.ReadValue()
	if err != nil {
		return nil, err
	}
	return bytes.Clone(v), nil
}

// Text is a string that is read from and written to JSON without loss, for use as a field's type.
type Text string

// UnmarshalJSONFrom reads a string; null leaves the text as it is.
func (t *Text) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if Null(dec) {
		return nil
	}
	s, err := String(dec)
	*t = Text(s)
	return err
}

// MarshalJSONTo writes the text as ECMAScript's JSON.stringify would. The encoder must allow invalid UTF-8 and
// preserve raw strings for lone surrogates to pass.
func (t Text) MarshalJSONTo(enc *jsontext.Encoder) error {
	return enc.WriteValue(events.AppendQuote(nil, string(t)))
}

// Unmarshal reads one value into out as package json does, with what [NewDecoder] accepts accepted, names matched
// without regard to case and unknown members ignored. Strings that must not lose anything are to be of type [Text].
func Unmarshal(b []byte, out any) error {
	return json.Unmarshal(b, out, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true),
		json.MatchCaseInsensitiveNames(true))
}
