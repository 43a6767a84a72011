package events

import (
	"strconv"
	"strings"
)

// withheldPrefix begins the text that stands in the place of another one.
const withheldPrefix = "withheld:sha256:"

// WithheldText returns what stands in the place of a text that is withheld: a commitment to the length and the SHA-256 of
// its bytes. Somebody may say such a text: what it stands for counts only in an event that is [Event.Withheld].
func WithheldText(text string) string {
	return withheldPrefix + HashPayload([]byte(text)).String() + ":" + strconv.Itoa(len(text))
}

// ParseWithheldText returns the commitment that a text holds which [WithheldText] returned; ok is false for any other.
func ParseWithheldText(s string) (d BodyDigest, ok bool) {
	rest, ok := strings.CutPrefix(s, withheldPrefix)
	digest, length, cut := strings.Cut(rest, ":")
	if !ok || !cut {
		return d, false
	}
	hash, err := ParseHash(digest)
	if err != nil {
		return d, false
	}
	n, err := strconv.ParseUint(length, 10, 32)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != length {
		return d, false
	}
	return BodyDigest{Bytes: int64(n), SHA256: hash}, true
}
