package provider

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

// Secret is a credential. No way of printing, logging or encoding it, or a struct that holds it, shows the value. The
// zero Secret is empty.
type Secret struct {
	value func() string // a function, because fmt and encoders look into everything else
}

const redacted = "[redacted]"

// ErrSecret means that a credential cannot be sent in an HTTP header. The configuration is to be corrected.
var ErrSecret = errors.New("the credential is empty, longer than 4096 bytes or has characters other than visible ASCII")

// NewSecret returns s as a secret, white space around it removed. The error wraps [ErrSecret] and does not show s.
func NewSecret(s string) (Secret, error) {
	s = strings.TrimSpace(s)
	bad := func(r rune) bool { return r <= ' ' || r > '~' }
	if s == "" || len(s) > 4096 || strings.ContainsFunc(s, bad) {
		return Secret{}, ErrSecret
	}
	return Secret{value: func() string { return s }}, nil
}

// Empty reports whether there is no credential.
func (s Secret) Empty() bool { return s.value == nil }

func (s Secret) reveal() string {
	if s.value == nil {
		return ""
	}
	return s.value()
}

// scrub returns text without the secret.
func (s Secret) scrub(text string) string {
	if s.Empty() {
		return text
	}
	return strings.ReplaceAll(text, s.reveal(), redacted)
}

// scrubError returns err, or an error with the scrubbed text alone if its text shows the secret.
func (s Secret) scrubError(err error) error {
	if err == nil || s.Empty() {
		return err
	}
	if text := err.Error(); strings.Contains(text, s.reveal()) {
		return errors.New(s.scrub(text))
	}
	return err
}

// clean returns text from outside as a failure may hold it: well-formed, without the secret, at most limit bytes
// plus a mark that something was cut.
func (s Secret) clean(text string, limit int) string {
	text = s.scrub(text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	if !events.ValidText(text) {
		text = events.TextFromBytes([]byte(text))
	}
	return text
}

// String returns a placeholder.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}
	return redacted
}

// GoString returns a placeholder.
func (s Secret) GoString() string { return fmt.Sprintf("provider.Secret(%q)", s.String()) }

// LogValue returns a placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns a placeholder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
