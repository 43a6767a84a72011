package bundle

import (
	"bytes"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	sampleManifest = `{"v":1,"session":"01JDXAMP1E0000000000000000","last":7,"withheld":["request/header","user/message"]}`
	sampleEnd      = `{"v":1,"entries":3,"messages":1,"objects":1,"verdicts":0,"receipts":0,"inclusions":0,` +
		`"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`
)

func FuzzManifest(f *testing.F) {
	f.Add([]byte(sampleManifest))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err == nil && !bytes.Equal(m.encode(), b) {
			t.Errorf("%q is encoded again as %q", b, m.encode())
		}
	})
}

func FuzzEnd(f *testing.F) {
	f.Add([]byte(sampleEnd))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEnd(b)
		if err == nil && !bytes.Equal(e.encode(), b) {
			t.Errorf("%q is encoded again as %q", b, e.encode())
		}
	})
}

func FuzzMessage(f *testing.F) {
	const session events.ID = "01JDXAMP1E0000000000000000"
	f.Add([]byte("session.01JDXAMP1E0000000000000000.turn.start\nid\npayload"))
	f.Add([]byte("withheld structure e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 12\nsession.01JDXAMP1E0000000000000000.user.message\nid\n{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, c, why := parseMessage(session, 1, bytes.Clone(b))
		if why != "" {
			return
		}
		again, err := appendMessage(nil, session, &m, c)
		if err == nil && !bytes.Equal(again, b) {
			t.Errorf("%q is written again as %q", b, again)
		}
	})
}

// FuzzHeader shows that a header is taken only when it is the one that its name and size call for.
func FuzzHeader(f *testing.F) {
	f.Add(appendHeader(nil, nameManifest, 12))
	f.Add(appendHeader(nil, numbered(prefixLog, 7), 512))
	f.Fuzz(func(t *testing.T, h []byte) {
		if len(h) != blockSize {
			return
		}
		k, size, why := parseHeader(h)
		if why == "" && !bytes.Equal(appendHeader(nil, k.String(), size), h) {
			t.Errorf("%q is taken for %s, %d bytes", h, k, size)
		}
	})
}

func TestSamples(t *testing.T) {
	m, err := decodeManifest([]byte(sampleManifest))
	if err != nil || m.Session != "01JDXAMP1E0000000000000000" || m.Last != 7 || len(m.Withheld.Types()) != 2 {
		t.Errorf("%+v, %v", m, err)
	}
	if e, err := decodeEnd([]byte(sampleEnd)); err != nil || e.Entries != 3 || e.SHA256 != events.HashPayload(nil) {
		t.Errorf("%+v, %v", e, err)
	}
	if audit.RuleWithheld != "withheld" {
		t.Error(audit.RuleWithheld)
	}
}
