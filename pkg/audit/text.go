package audit

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxReason  = 1024
	maxPointer = 512
	maxName    = 128
)

// printable reports whether a rune may stand in a verdict: verdicts are shown on terminals.
func printable(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

// clean returns s as a text that a verdict can hold: valid UTF-8 without control characters, at most limit bytes.
func clean(s string, limit int) string {
	const more = "..."
	var b strings.Builder
	for _, r := range s {
		if !printable(r) {
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > limit-len(more) {
			b.WriteString(more)
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Reason returns s as the reason of a verdict: one printable line, cut when it is too long.
func Reason(s string) string { return clean(s, maxReason) }

// isClean reports whether s may stand in a verdict.
func isClean(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !printable(r) }) < 0
}
