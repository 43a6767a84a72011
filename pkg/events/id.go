package events

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// ID is a ULID in its text form: 26 characters of Crockford's base 32, upper case, at most 128 bits
// (https://github.com/ulid/spec). IDs are made outside this package and checked by [ParseID] wherever they enter.
type ID string

const idSize = 26

// ParseID checks s and returns it as an ID. The error wraps [ErrInvalid].
func ParseID(s string) (ID, error) {
	if !validID(s) {
		return "", fmt.Errorf("%w: %q is no ULID: want 26 characters of 0-9 A-Z without I, L, O, U, the first at most 7", ErrInvalid, clip(s))
	}
	return ID(s), nil
}

// Valid reports whether the ID is a well-formed ULID.
func (id ID) Valid() bool { return validID(string(id)) }

func validID(s string) bool {
	if len(s) != idSize || s[0] > '7' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c - 'A'
		if c-'0' > 9 && (letter > 25 || notInID>>letter&1 != 0) {
			return false
		}
	}
	return true
}

const notInID = 1<<('I'-'A') | 1<<('L'-'A') | 1<<('O'-'A') | 1<<('U'-'A')

// clip shortens a value quoted in an error, at the end of a character.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	end := most
	for end > most-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// Hash is the SHA-256 of a stored payload. The zero Hash is the predecessor of a log's first event.
type Hash [sha256.Size]byte

// ParseHash reads 64 lower-case hexadecimal digits. The error wraps [ErrInvalid].
func ParseHash(s string) (Hash, error) {
	var h Hash
	if !decodeHex(h[:], s) {
		return Hash{}, fmt.Errorf("%w: %q is no SHA-256: want 64 lower-case hexadecimal digits", ErrInvalid, clip(s))
	}
	return h, nil
}

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// HashPayload returns the chain hash of one stored payload.
func HashPayload(payload []byte) Hash { return sha256.Sum256(payload) }

// decodeHex fills dst from s and reports whether s is exactly that many lower-case digits.
func decodeHex(dst []byte, s string) bool {
	if len(s) != 2*len(dst) {
		return false
	}
	bad := byte(0)
	for i := range dst {
		hi, lo := hexValues[s[2*i]], hexValues[s[2*i+1]]
		bad |= hi | lo
		dst[i] = hi<<4 | lo&0xF
	}
	return bad < 0x10
}

// hexValues holds each byte's value as a lower-case hexadecimal digit, 0xFF for bytes that are none.
const hexValues = ff16 + ff16 + ff16 + "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09" + ff6 +
	ff16 + ff16 + "\xff\x0a\x0b\x0c\x0d\x0e\x0f" + ff9 + ff16 + ff16 + ff16 + ff16 + ff16 + ff16 + ff16 + ff16 + ff16

const (
	ff6  = "\xff\xff\xff\xff\xff\xff"
	ff9  = "\xff\xff\xff\xff\xff\xff\xff\xff\xff"
	ff16 = ff9 + ff6 + "\xff"
)

func isLowerHex(c byte) bool { return hexValues[c] != 0xff }

// Type names an event: lower-case words separated by slashes.
type Type string

// The event types. The names follow the reference system; see docs/format/events.md for each one's data.
const (
	TypeSessionCreated    Type = "session/created"
	TypeSessionConfigured Type = "session/configured"
	TypeSessionEndSeed    Type = "session/end-seed"
	TypeSessionTitle      Type = "session/title"
	TypeSessionClosed     Type = "session/closed"
	TypeInputDropped      Type = "input/dropped"
	TypeLoopClaimed       Type = "loop/claimed"
	TypeTurnStart         Type = "turn/start"
	TypeTurnEnd           Type = "turn/end"
	TypeTurnCancelled     Type = "turn/cancelled"
	TypeStepStart         Type = "step/start"
	TypeStepEnd           Type = "step/end"
	TypeUserMessage       Type = "user/message"
	TypeRequestHeader     Type = "request/header"
	TypeRequestContext    Type = "request/context"
	TypeRequestImages     Type = "request/images"
	TypeLLMStream         Type = "llm/stream"
	TypeLLMFailed         Type = "llm/failed"
	TypeLLMRetry          Type = "llm/retry"
	TypeLLMRetryStarted   Type = "llm/retry-started"
	TypeAssistantChunk    Type = "assistant/chunk"
	TypeAssistantMessage  Type = "assistant/message"
	TypeToolCall          Type = "tool/call"
	TypeToolResult        Type = "tool/result"
	TypeCompactionStart   Type = "compaction/start"
	TypeCompactionSummary Type = "compaction/summary"
	TypeCompactionEnd     Type = "compaction/end"
	TypeCompactionPrune   Type = "compaction/prune"
	TypeApprovalAsked     Type = "approval/asked"
	TypeApprovalDecided   Type = "approval/decided"

	typeHeaderDelta Type = "request/header-delta" // refused, see ErrLegacy
)

const maxTypeBytes = 64

// valid reports whether t is one to four words of [a-z0-9-], separated by slashes, at most 64 bytes.
func (t Type) valid() bool {
	if len(t) == 0 || len(t) > maxTypeBytes {
		return false
	}
	words, inWord := 1, false
	for i := range len(t) {
		switch c := t[i]; {
		case c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-':
			inWord = true
		case c == '/' && inWord:
			words++
			inWord = false
		default:
			return false
		}
	}
	return inWord && words <= 4
}

// Subject returns the type as the last part of its NATS subject: slashes become dots.
func (t Type) Subject() string { return strings.ReplaceAll(string(t), "/", ".") }

// Surface reports whether events of this type stand on the surface, that is, produce a message.
func (t Type) Surface() bool {
	return t == TypeUserMessage || t == TypeAssistantMessage || t == TypeToolResult
}
