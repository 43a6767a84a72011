package events

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"
)

const hexDigits = "0123456789abcdef"

// special returns the index, from i on, of the first byte of s that cannot stand for itself in a JSON string (a
// quote, a backslash or a control character), or len(s). When ascii is true, all bytes before it are ASCII.
func special(s string, i int) (end int, ascii bool) {
	const (
		ones  = 0x0101010101010101
		highs = 0x80 * ones
	)
	var seen uint64
	for ; len(s)-i >= 8; i += 8 {
		v := s[i : i+8]
		x := uint64(v[0]) | uint64(v[1])<<8 | uint64(v[2])<<16 | uint64(v[3])<<24 |
			uint64(v[4])<<32 | uint64(v[5])<<40 | uint64(v[6])<<48 | uint64(v[7])<<56
		// (y - ones) &^ y has the high bit of every zero byte of y set, and of no byte before the first of them.
		quote, slash := x^('"'*ones), x^('\\'*ones)
		hits := ((quote-ones)&^quote | (slash-ones)&^slash | (x-0x20*ones)&^x) & highs
		if hits != 0 {
			n := bits.TrailingZeros64(hits) / 8
			seen |= x & (1<<(8*n) - 1)
			return i + n, seen&highs == 0
		}
		seen |= x
	}
	for ; i < len(s); i++ {
		c := s[i]
		if c < 0x20 || c == '"' || c == '\\' {
			break
		}
		seen |= uint64(c)
	}
	return i, seen&highs == 0
}

// AppendQuote appends s as a JSON string in the form of ECMAScript's JSON.stringify: escapes only for ", \,
// characters below U+0020 (short forms where they exist) and lone surrogates, hexadecimal digits in lower case;
// everything else, U+2028, DEL, <, > and & included, stands as it is. s must be well-formed text.
func AppendQuote(dst []byte, s string) []byte {
	dst = append(slices.Grow(dst, len(s)+len(s)/8+2), '"') // room for a few escapes
	for i := 0; i < len(s); i++ {
		end, ascii := special(s, i)
		if ascii {
			dst = append(dst, s[i:end]...)
		} else {
			dst = appendPlain(dst, s[i:end])
		}
		if end == len(s) {
			break
		}
		c := s[end]
		if e := shortEscape(c); e != 0 {
			dst = append(dst, '\\', e)
		} else {
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
		}
		i = end
	}
	return append(dst, '"')
}

// appendPlain appends text in which only surrogates need an escape.
func appendPlain(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, surrogateLead)
		if i < 0 {
			return append(dst, s...)
		}
		u := surrogateAt(s, i)
		if u == 0 {
			dst = append(dst, s[:i+1]...)
			s = s[i+1:]
			continue
		}
		dst = append(dst, s[:i]...)
		dst = append(dst, '\\', 'u', 'd', hexDigits[u>>8&0xF], hexDigits[u>>4&0xF], hexDigits[u&0xF])
		s = s[i+surrogateSize:]
	}
}

func shortEscape(c byte) byte {
	switch c {
	case '"', '\\':
		return c
	case '\b':
		return 'b'
	case '\t':
		return 't'
	case '\n':
		return 'n'
	case '\f':
		return 'f'
	case '\r':
		return 'r'
	}
	return 0
}

// readString reads a string in canonical form.
func (w *wire) readString() string {
	if w.err != nil {
		return ""
	}
	if w.pos >= len(w.in) || w.in[w.pos] != '"' {
		w.fail(ErrSyntax, "want a string")
		return ""
	}
	start := w.pos + 1
	end, ascii := special(w.in, start)
	if end < len(w.in) {
		if w.in[end] == '"' && ascii {
			w.pos = end + 1
			return w.in[start:end]
		}
		if w.in[end] == '\\' {
			return w.readEscaped(start, end, ascii)
		}
	}
	w.endString(start, end, ascii)
	return w.in[start:end]
}

// readEscaped goes on with a string that starts at start and whose first escape stands at i. The text is never longer than its
// literal. When the buffer is the wire's own, it is written over that: nothing reads these bytes again but through the string
// that is returned. Otherwise the string has memory of its own.
func (w *wire) readEscaped(start, i int, ascii bool) string {
	text, own := w.scratch.text[:0], w.buf != nil
	if own {
		text = w.buf[start:start]
	}
	for from := start; ; {
		if w.in[i] != '\\' {
			w.endString(from, i, ascii)
			text = append(text, w.in[from:i]...)
			if own {
				return unsafe.String(unsafe.SliceData(text), len(text))
			}
			w.scratch.text = text
			return string(text)
		}
		if !ascii && !utf8.ValidString(w.in[from:i]) {
			w.fail(ErrSyntax, "a string is not UTF-8")
			return ""
		}
		text = append(text, w.in[from:i]...)
		n := 2
		if c := w.in[min(i+1, len(w.in)-1)]; c == 'n' {
			text = append(text, '\n') // the usual one
		} else if text, n = appendUnescaped(text, w.in[i:]); n == 0 {
			w.pos = i
			w.fail(ErrSyntax, "a string is not escaped as JSON.stringify escapes")
			return ""
		}
		from = i + n
		if i, ascii = special(w.in, from); i == len(w.in) {
			w.fail(ErrSyntax, "a string does not end")
			return ""
		}
	}
}

// endString expects that a string's literal, which starts at start, ends at i.
func (w *wire) endString(start, i int, ascii bool) {
	switch {
	case i >= len(w.in):
		w.fail(ErrSyntax, "a string does not end")
	case w.in[i] != '"':
		w.pos = i
		w.fail(ErrSyntax, "unescaped control character in a string")
	case !ascii && !utf8.ValidString(w.in[start:i]):
		w.fail(ErrSyntax, "a string is not UTF-8")
	default:
		w.pos = i + 1
	}
}

// appendUnescaped appends the text of the escape at the start of s and returns the escape's length, 0 when it is
// none that [AppendQuote] would write there. dst is the text before it.
func appendUnescaped(dst []byte, s string) ([]byte, int) {
	u, n := unescape(s)
	switch {
	case n == 2 && u != '/':
		return append(dst, byte(u)), n
	case n != 6 || !isLowerHex(s[2]) || !isLowerHex(s[3]) || !isLowerHex(s[4]) || !isLowerHex(s[5]):
		return dst, 0
	case u < 0x20 && shortEscape(byte(u)) == 0:
		return append(dst, byte(u)), n
	case isHigh(u), isLow(u) && !endsHigh(dst):
		return appendSurrogate(dst, u), n
	}
	return dst, 0
}

// endsHigh reports whether the text b ends in a lone high surrogate.
func endsHigh(b []byte) bool {
	n := len(b) - surrogateSize
	return n >= 0 && b[n] == surrogateLead && b[n+1] >= 0xA0 && b[n+1] <= 0xAF
}

// Unquote returns the text of a JSON string literal, quotes included, of any origin: every escape that RFC 8259
// allows, lone surrogates kept, bytes that are not UTF-8 kept as [TextFromBytes] keeps them. (So such a byte
// directly after the escape of a lone high surrogate forms a pair with it, as any low surrogate would.) It fails
// with an error that wraps [ErrSyntax] when lit is no JSON string.
func Unquote(lit []byte) (string, error) {
	if len(lit) < 2 || lit[0] != '"' || lit[len(lit)-1] != '"' {
		return "", fmt.Errorf("%w: not a quoted string", ErrSyntax)
	}
	s := string(lit[1 : len(lit)-1])
	end, ascii := special(s, 0)
	if end == len(s) {
		if ascii || utf8.ValidString(s) {
			return s, nil
		}
		return TextFromBytes([]byte(s)), nil
	}
	dst := make([]byte, 0, len(s))
	for i := 0; ; {
		dst = appendForeign(dst, s[i:end])
		if end == len(s) {
			return string(dst), nil
		}
		if s[end] != '\\' {
			return "", fmt.Errorf("%w: unescaped %q in a string at byte %d", ErrSyntax, s[end], end+1)
		}
		u, n := unescape(s[end:])
		if n == 0 {
			return "", fmt.Errorf("%w: bad escape in a string at byte %d", ErrSyntax, end+1)
		}
		dst = appendUnit(dst, u)
		i = end + n
		end, _ = special(s, i)
	}
}

// appendForeign appends bytes of unknown origin to well-formed text.
func appendForeign(dst []byte, s string) []byte {
	if utf8.ValidString(s) {
		return append(dst, s...)
	}
	return AppendText(dst, TextFromBytes([]byte(s)))
}

// appendUnit appends one UTF-16 code unit to well-formed text.
func appendUnit(dst []byte, u rune) []byte {
	if u < highMin || u > surrogateMax {
		return utf8.AppendRune(dst, u)
	}
	if n := len(dst) - surrogateSize; isLow(u) && endsHigh(dst) {
		return utf8.AppendRune(dst[:n], pair(surrogateAt(string(dst[n:]), 0), u))
	}
	return appendSurrogate(dst, u)
}

// unescape returns the code unit of the escape at the start of s and the escape's length, 0 when it is none.
func unescape(s string) (rune, int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch s[1] {
	case '"', '\\', '/':
		return rune(s[1]), 2
	case 'b':
		return '\b', 2
	case 't':
		return '\t', 2
	case 'n':
		return '\n', 2
	case 'f':
		return '\f', 2
	case 'r':
		return '\r', 2
	case 'u':
		if len(s) < 6 {
			return 0, 0
		}
		var u rune
		for _, c := range []byte(s[2:6]) {
			d := unhex(c)
			if d < 0 {
				return 0, 0
			}
			u = u<<4 | d
		}
		return u, 6
	}
	return 0, 0
}

func unhex(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10
	}
	return -1
}
