package bundle

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
)

// The first line of a message without its content.
const (
	markStructure = "withheld structure "
	markEnvelope  = "withheld envelope "
)

// maxHead bounds the lines before a payload, in bytes.
const maxHead = 2 << 10

// appendMessage appends the content of a log entry: subject, message ID and payload, behind a line with the commitment when
// there is one. The error names what does not fit.
func appendMessage(dst []byte, session events.ID, m *eventlog.Message, c *audit.Commitment) ([]byte, error) {
	if c != nil {
		mark := markStructure
		if c.Opaque {
			mark = markEnvelope
		}
		dst = fmt.Appendf(dst, "%s%s %d\n", mark, c.Payload.SHA256, c.Payload.Bytes)
	}
	subject := "session." + string(session) + "." + m.Type.Subject()
	if strings.ContainsRune(subject, '\n') || strings.ContainsRune(string(m.ID), '\n') || len(subject)+len(m.ID) > maxHead/2 {
		return nil, fmt.Errorf("message %d: a subject of %d bytes and an ID of %d do not fit into a bundle", m.Seq, len(subject), len(m.ID))
	}
	dst = append(dst, subject...)
	dst = append(dst, '\n')
	dst = append(dst, m.ID...)
	dst = append(dst, '\n')
	return append(dst, m.Payload...), nil
}

// parseMessage reads the content of the entry log/seq, and keeps it. why says what is wrong with it.
func parseMessage(session events.ID, seq uint64, b []byte) (m eventlog.Message, c *audit.Commitment, why string) {
	rest := b
	line := func() (string, bool) {
		i := bytes.IndexByte(rest[:min(len(rest), maxHead)], '\n')
		if i < 0 {
			return "", false
		}
		s := string(rest[:i])
		rest = rest[i+1:]
		return s, true
	}
	first, ok := line()
	if strings.HasPrefix(first, "withheld ") {
		if c, why = parseCommitment(first); why != "" {
			return m, nil, why
		}
		first, ok = line()
	}
	id, found := line()
	if !ok || !found {
		return m, nil, "it does not begin with a line for the subject and one for the message ID"
	}
	t, ok := strings.CutPrefix(first, "session."+string(session)+".")
	if !ok {
		if other, _, ok := strings.Cut(strings.TrimPrefix(first, "session."), "."); ok && events.ID(other).Valid() {
			return m, nil, fmt.Sprintf("it is a message of session %s, and %s says that this is a bundle of session %s", other, nameManifest, session)
		}
		return m, nil, fmt.Sprintf("its subject %.100q is not of session %s, which %s names", first, session, nameManifest)
	}
	m = eventlog.Message{Seq: seq, Type: events.Type(strings.ReplaceAll(t, ".", "/")), ID: events.ID(id), Payload: rest}
	return m, c, ""
}

func parseCommitment(line string) (*audit.Commitment, string) {
	var c audit.Commitment
	rest, ok := strings.CutPrefix(line, markStructure)
	if !ok {
		rest, c.Opaque = strings.CutPrefix(line, markEnvelope)
		ok = c.Opaque
	}
	digest, length, cut := strings.Cut(rest, " ")
	hash, hashErr := events.ParseHash(digest)
	n, err := strconv.ParseUint(length, 10, 32)
	if !ok || !cut || hashErr != nil || err != nil || strconv.FormatUint(n, 10) != length {
		return nil, fmt.Sprintf("%.120q stands where %q or %q, a digest and a length belong", line, markStructure, markEnvelope)
	}
	c.Payload = events.BodyDigest{Bytes: int64(n), SHA256: hash}
	return &c, ""
}
