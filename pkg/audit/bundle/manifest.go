package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// Version is the format version that this package writes and the only one that it reads.
const Version = 1

// Manifest is what a bundle says of itself first. That the log does not end before its last, nor behind it, is checked; that the
// stream had stated no other is the exporter's word.
type Manifest struct {
	Session  events.ID
	Last     uint64            // the last sequence that the log itself stated when the bundle was made
	Withheld audit.Withholding // the content that is withheld
}

// encode returns the canonical JSON.
func (m *Manifest) encode() []byte {
	b := fmt.Appendf(nil, `{"v":%d,"session":"%s","last":%d`, Version, m.Session, m.Last)
	if types := m.Withheld.Types(); len(types) > 0 {
		b = append(b, `,"withheld":[`...)
		for i, t := range types {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendQuote(b, string(t))
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// decodeManifest reads what encode wrote and accepts no other bytes.
func decodeManifest(b []byte) (Manifest, error) {
	var w struct {
		V        int64         `json:"v"`
		Session  events.ID     `json:"session"`
		Last     uint64        `json:"last"`
		Withheld []events.Type `json:"withheld"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return Manifest{}, err
	}
	if w.V != Version {
		return Manifest{}, fmt.Errorf("format %d, this reader knows %d: use a newer one", w.V, Version)
	}
	if !w.Session.Valid() {
		return Manifest{}, fmt.Errorf("session %.40q is no ULID", w.Session)
	}
	withheld, err := audit.NewWithholding(w.Withheld)
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Session: w.Session, Last: w.Last, Withheld: withheld}
	if !bytes.Equal(m.encode(), b) {
		return Manifest{}, errCanonical
	}
	return m, nil
}

// End is what a bundle says of itself last: how many entries there are of each kind, and which keys have signed.
type End struct {
	Entries    uint64      // all before it
	Messages   uint64      // of the log
	Objects    uint64      // those that the store held
	Verdicts   uint64      // of all kinds
	Receipts   uint64      // of requests and of answers
	Inclusions uint64      // proofs
	Verifiers  []string    // the public keys that the verdicts name, sorted, at most maxKeys
	Witnesses  []string    // the public keys that the receipts name, likewise
	SHA256     events.Hash // of all bytes before its header
}

// maxKeys bounds the keys of a list that an end names.
const maxKeys = 64

func (e *End) encode() []byte {
	b := fmt.Appendf(nil, `{"v":%d,"entries":%d,"messages":%d,"objects":%d,"verdicts":%d,"receipts":%d,"inclusions":%d`,
		Version, e.Entries, e.Messages, e.Objects, e.Verdicts, e.Receipts, e.Inclusions)
	for _, list := range [...]struct {
		name string
		keys []string
	}{{"verifiers", e.Verifiers}, {"witnesses", e.Witnesses}} {
		for i, k := range list.keys {
			if i == 0 {
				b = fmt.Appendf(b, `,"%s":["%s"`, list.name, k)
			} else {
				b = fmt.Appendf(b, `,"%s"`, k)
			}
		}
		if len(list.keys) > 0 {
			b = append(b, ']')
		}
	}
	return fmt.Appendf(b, `,"sha256":"%s"}`, e.SHA256)
}

// decodeEnd reads what encode wrote and accepts no other bytes.
func decodeEnd(b []byte) (End, error) {
	var w struct {
		V          int64    `json:"v"`
		Entries    uint64   `json:"entries"`
		Messages   uint64   `json:"messages"`
		Objects    uint64   `json:"objects"`
		Verdicts   uint64   `json:"verdicts"`
		Receipts   uint64   `json:"receipts"`
		Inclusions uint64   `json:"inclusions"`
		Verifiers  []string `json:"verifiers"`
		Witnesses  []string `json:"witnesses"`
		SHA256     string   `json:"sha256"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return End{}, err
	}
	sum, err := events.ParseHash(w.SHA256)
	if err != nil {
		return End{}, err
	}
	e := End{
		Entries: w.Entries, Messages: w.Messages, Objects: w.Objects, Verdicts: w.Verdicts, Receipts: w.Receipts, Inclusions: w.Inclusions,
		Verifiers: w.Verifiers, Witnesses: w.Witnesses, SHA256: sum,
	}
	for _, keys := range [][]string{w.Verifiers, w.Witnesses} {
		if len(keys) > maxKeys || !slices.IsSorted(keys) {
			return End{}, errCanonical
		}
		for _, k := range keys {
			if err := audit.CheckPublic(k); err != nil {
				return End{}, err
			}
		}
	}
	if w.V != Version || !bytes.Equal(e.encode(), b) {
		return End{}, errCanonical
	}
	return e, nil
}

var errCanonical = fmt.Errorf("it is not in canonical form")

// keySet collects the keys that signed records name, the first maxKeys of them.
type keySet []string

func (s *keySet) add(key string) {
	i, found := slices.BinarySearch(*s, key)
	if found || len(*s) >= maxKeys || audit.CheckPublic(key) != nil {
		return
	}
	*s = slices.Insert(*s, i, key)
}
