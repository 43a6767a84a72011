package codec

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// Pointer returns the JSON pointer (RFC 6901) of the innermost value, or member name's value, that the byte at
// offset of body belongs to; a byte between two values belongs to the second. It is the empty pointer, the whole
// document, for a byte behind the end. Where body stops being JSON before the byte, it names the last value before that.
func Pointer(body []byte, offset int64) string {
	d := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	last := jsontext.Pointer("")
	for {
		_, err := d.ReadToken()
		if err != nil {
			return string(last)
		}
		last = d.StackPointer()
		if d.InputOffset() > offset {
			return string(last)
		}
	}
}
