package events

import "unicode/utf8"

// In WTF-8 a surrogate U+D800..U+DFFF is 0xED, then 0xA0..0xAF (high) or 0xB0..0xBF (low), then a continuation
// byte. Strict UTF-8 never has 0xED followed by a byte of 0xA0 or more, so the two never mix up.
const (
	surrogateLead = 0xED
	surrogateSize = 3
	highMin       = 0xD800
	lowMin        = 0xDC00
	surrogateMax  = 0xDFFF
	escapeBase    = 0xDC00 // byte b that is not UTF-8 is kept as U+DC00+b, b in [0x80,0xFF]
)

// surrogateAt returns the surrogate code unit encoded at s[i:], or 0 when there is none.
func surrogateAt(s string, i int) rune {
	if i+surrogateSize > len(s) || s[i] != surrogateLead {
		return 0
	}
	b1, b2 := s[i+1], s[i+2]
	if b1 < 0xA0 || b1 > 0xBF || b2 < 0x80 || b2 > 0xBF {
		return 0
	}
	return 0xD000 | rune(b1&0x3F)<<6 | rune(b2&0x3F)
}

func appendSurrogate(dst []byte, u rune) []byte {
	return append(dst, surrogateLead, 0x80|byte(u>>6)&0x3F, 0x80|byte(u)&0x3F)
}

func isHigh(u rune) bool { return u >= highMin && u < lowMin }
func isLow(u rune) bool  { return u >= lowMin && u <= surrogateMax }

func pair(high, low rune) rune { return 0x10000 + (high-highMin)<<10 + (low - lowMin) }

// invalidText returns the index of the first byte of s that is not well-formed WTF-8, or -1. A high surrogate
// directly before a low one is not well-formed: the two are one code point and must be written as such.
func invalidText(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			i++
			continue
		}
		if u := surrogateAt(s, i); u != 0 {
			i += surrogateSize
			if isHigh(u) && isLow(surrogateAt(s, i)) {
				return i - surrogateSize
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// ValidText reports whether s is well-formed WTF-8, which every string of an event must be. Bytes of unknown
// origin become well-formed by [TextFromBytes].
func ValidText(s string) bool { return invalidText(s) < 0 }

// JoinText concatenates well-formed texts into one. A high surrogate at the end of one and a low surrogate at
// the start of the next become the code point they encode, as they do when ECMAScript strings are concatenated:
// two stream deltas may split a pair.
func JoinText(parts ...string) string {
	switch len(parts) {
	case 0:
		return ""
	case 1:
		return parts[0]
	}
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	dst := make([]byte, 0, n)
	for _, p := range parts {
		dst = AppendText(dst, p)
	}
	return string(dst)
}

// AppendText appends well-formed text to well-formed dst, joining a surrogate pair split between them, and
// returns the extended slice.
func AppendText(dst []byte, s string) []byte {
	if n := len(dst); n >= surrogateSize && len(s) >= surrogateSize && s[0] == surrogateLead {
		low := surrogateAt(s, 0)
		high := surrogateAt(string(dst[n-surrogateSize:]), 0)
		if isHigh(high) && isLow(low) {
			dst = utf8.AppendRune(dst[:n-surrogateSize], pair(high, low))
			s = s[surrogateSize:]
		}
	}
	return append(dst, s...)
}

// TextFromBytes returns b as well-formed text. Bytes that are not UTF-8 are kept, one by one, as the lone
// surrogates U+DC80..U+DCFF, so that [BytesFromText] gives back exactly b. The scheme is PEP 383
// ("surrogateescape", https://peps.python.org/pep-0383/).
func TextFromBytes(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	dst := make([]byte, 0, len(b)+len(b)/2)
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			dst = appendSurrogate(dst, escapeBase+rune(b[i]))
		} else {
			dst = append(dst, b[i:i+n]...)
		}
		i += n
	}
	return string(dst)
}

// BytesFromText is the inverse of [TextFromBytes]. Any other lone surrogate keeps its WTF-8 form.
func BytesFromText(s string) []byte {
	dst := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if u := surrogateAt(s, i); u >= escapeBase+0x80 && u <= escapeBase+0xFF {
			dst = append(dst, byte(u-escapeBase))
			i += surrogateSize
			continue
		}
		dst = append(dst, s[i])
		i++
	}
	return dst
}
