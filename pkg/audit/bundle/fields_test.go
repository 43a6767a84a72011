package bundle_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/pkg/audit/audittest"
	"github.com/refold-dev/refold/pkg/audit/bundle"
	"github.com/refold-dev/refold/pkg/events"
)

// value is a string or a number of a JSON text.
type value struct {
	name     string // its JSON pointer
	from, to int    // it is [from,to) of the text
}

// values returns the strings and numbers of a JSON text, in order.
func values(t *testing.T, text []byte) []value {
	t.Helper()
	var out []value
	d := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		if kind := d.PeekKind(); kind == '{' || kind == '}' || kind == '[' || kind == ']' {
			if _, err := d.ReadToken(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		in, n := d.StackIndex(d.StackDepth())
		raw, err := d.ReadValue()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		name, to := in == '{' && n%2 == 0, int(d.InputOffset())
		if kind := raw.Kind(); !name && (kind == '"' && len(raw) > 2 || kind == '0') {
			out = append(out, value{string(d.StackPointer()), to - len(raw), to})
		}
	}
}

// others are values of the same length that may stand in the place of one.
func others(raw, key string) []string {
	last := func(at int) string {
		c := raw[at] + 1
		switch raw[at] {
		case '9', 'z', 'Z', 'f':
			c = raw[at] - 1
		}
		return raw[:at] + string(c) + raw[at+1:]
	}
	if raw[0] != '"' {
		return []string{last(len(raw) - 1), last(0)}
	}
	out := []string{last(1), last(len(raw) - 2)}
	if len(raw) == len(key)+2 {
		out = append(out, `"`+key+`"`)
	}
	return out
}

// TestFields changes each string and each number in each JSON of a bundle, and has everything else fit. Either the file is
// refused, or something is found.
func TestFields(t *testing.T) {
	for name, types := range map[string][]events.Type{"whole": nil, "withheld": {events.TypeUserMessage, events.TypeRequestHeader}} {
		t.Run(name, func(t *testing.T) {
			k := newKit(t, audittest.Of("whole", audittest.Whole()))
			k.signCalls(t)
			packed := k.withheld(t, types...)
			if got := onlyUnchecked(audited(t, packed, k.trust())); got != "" {
				t.Fatal(got)
			}
			stranger := newKey(t).Public()
			at, n := 0, 0
			for _, f := range split(t, packed) {
				content := bytes.TrimRight(f.content, "\x00")
				start := at + block
				at = start + len(f.content)
				log, isLog := strings.CutPrefix(f.name, "log/")
				switch {
				case strings.HasPrefix(f.name, "objects/") || strings.HasPrefix(f.name, "tlog/"):
					continue
				case isLog && !slices.Contains([]string{numbered(1), numbered(7), numbered(len(k.Messages))}, log): // the others are like these
					continue
				case bytes.HasPrefix(content, []byte("withheld ")): // the exporter's word, and said to be
					continue
				}
				text := content[bytes.IndexByte(content, '{'):]
				start += len(content) - len(text)
				for _, v := range values(t, text) {
					for _, other := range others(string(text[v.from:v.to]), stranger) {
						changed := bytes.Clone(packed)
						copy(changed[start+v.from:], other)
						if f.name != "end.json" {
							reseal(changed)
						}
						n++
						if err := noticed(t, changed, k.trust()); err != nil {
							t.Errorf("%s: %s: %s for %s: %v", f.name, v.name, other, text[v.from:v.to], err)
						}
					}
				}
			}
			t.Logf("%d changes", n)
		})
	}
}

// TestPlaces gives the last entry of each kind the next number.
func TestPlaces(t *testing.T) {
	k := newKit(t, audittest.Of("whole", audittest.Whole()))
	k.signCalls(t)
	files := split(t, k.pack(t))
	for _, prefix := range []string{"log/", "verdicts/", "receipts/", "tlog/inclusion/"} {
		for i, f := range slices.Backward(files) {
			digits, ok := strings.CutPrefix(f.name, prefix)
			if !ok {
				continue
			}
			var number int
			if _, err := fmt.Sscanf(digits, "%d", &number); err != nil {
				t.Fatal(err)
			}
			changed := slices.Clone(files)
			changed[i].header = bytes.Clone(f.header)
			rename(prefix + numbered(number+1))(&changed[i])
			if err := noticed(t, join(changed), k.trust()); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
			break
		}
	}
}

func numbered(n int) string { return fmt.Sprintf("%020d", n) }

// noticed returns an error when a file is neither refused, nor anything said about it but that content is withheld.
func noticed(t *testing.T, file []byte, o bundle.Options) error {
	t.Helper()
	r, err := open(file)
	if err == nil {
		var report *bundle.Report
		if report, err = bundle.Check(t.Context(), r, o); err == nil && onlyUnchecked(report) == "" {
			return errors.New("nothing is found")
		}
	}
	if err != nil && !errors.Is(err, bundle.ErrFormat) {
		return err
	}
	return nil
}

// reseal has the end of a bundle name the digest of what stands before it.
func reseal(file []byte) {
	end := bytes.LastIndex(file, []byte("end.json\x00"))
	sum := sha256.Sum256(file[:end])
	at := end + bytes.Index(file[end:], []byte(`"sha256":"`)) + len(`"sha256":"`)
	copy(file[at:], hex.EncodeToString(sum[:]))
}
