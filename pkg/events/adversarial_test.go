package events_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// hostile returns payloads of about n bytes, each made to hurt a careless decoder. Some are canonical.
func hostile(n int) map[string]func() string {
	fill := func(head, unit, tail string) string {
		return head + strings.Repeat(unit, max(1, (n-len(head)-len(tail))/len(unit))) + tail
	}
	text := func(unit string) string {
		head, tail, _ := strings.Cut(data("session/closed", `{"reason":"@"}`), "@")
		return fill(head, unit, tail)
	}
	list := func(p, unit string) string {
		head, tail, _ := strings.Cut(p, "@")
		return strings.Replace(fill(head, unit+",", tail), unit+","+tail, unit+tail, 1)
	}
	chunks := data("assistant/chunk", `{"turn":1,"step":1,"attempt":1,"chunks":[@]}`)
	unknown := payload("vendor/new", `"data":[@],"ignorable":true`)
	down := func() string {
		var list strings.Builder
		for at := range n/9 - 30 { // eight digits and a comma each
			fmt.Fprintf(&list, "%d,", 99_999_999-at)
		}
		p := payload("session/title", title+`,"sourceEventSeqs":[`+strings.TrimSuffix(list.String(), ",")+`],"ignorable":true`)
		return strings.Replace(p, `"seq":9`, `"seq":100000000`, 1)
	}
	return map[string]func() string{
		"plain text":         func() string { return text("a") },
		"newlines":           func() string { return text(`\n`) },
		"controls":           func() string { return text(`\u0001`) },
		"surrogates":         func() string { return text(`\ud83d`) },
		"alternating":        func() string { return text(`\ude00\ud83dx`) },
		"quotes":             func() string { return text(`\"`) },
		"korean":             func() string { return text("한") },
		"pairs":              func() string { return text(`\ud83d\ude00`) },
		"backslashes":        func() string { return text(`\`) },
		"descending sources": down,
		"block ends":         func() string { return list(chunks, `{"type":"block-end","index":0}`) },
		"empty chunks":       func() string { return list(chunks, `{}`) },
		"empty deltas":       func() string { return list(chunks, `{"type":"text-delta","index":0,"texts":[]}`) },
		"short deltas":       func() string { return list(chunks, `{"type":"text-delta","index":0,"texts":[""]}`) },
		"empty texts": func() string {
			return list(data("assistant/chunk", `{"turn":1,"step":1,"attempt":1,"chunks":[{"type":"text-delta","index":0,"texts":[@]}]}`), `""`)
		},
		"shadowed": func() string {
			return list(data("compaction/prune", `{"region":{"start":1,"end":1},"shadowed":[@],"shadowedTokens":0}`), `0`)
		},
		"labels": func() string {
			return list(data("session/created", `{"format":1,"labels":[@]}`), `{"name":"","value":""}`)
		},
		"blocks": func() string {
			return list(message(`{"message":{"id":"m","role":"user","content":[@],"source":{"kind":"user"}}}`), `{"type":"text","text":""}`)
		},
		"digits":       func() string { return fill(`{"v":`, "1", `}`) },
		"deep":         func() string { return strings.Replace(unknown, "@", strings.Repeat("[", n), 1) },
		"deep objects": func() string { return strings.Replace(unknown, "@", strings.Repeat(`{"":`, n/4), 1) },
		"wide raw":     func() string { return list(unknown, `{}`) },
		"raw digits":   func() string { return strings.Replace(unknown, "@", strings.Repeat("1", n), 1) },
		"raw escapes":  func() string { return strings.Replace(unknown, "@", `"`+strings.Repeat(`\u0041`, n/6)+`"`, 1) },
		"temperature digits": func() string {
			return data("session/configured", `{"options":{"temperature":0.`+strings.Repeat("1", n)+`}}`)
		},
		"nested results": func() string {
			return strings.Replace(message(`{"message":{"id":"m","role":"user","content":[@],"source":{"kind":"user"}}}`), "@", strings.Repeat(`{"type":"tool-result","toolCallId":"c","content":[`, n/50), 1)
		},
	}
}

// budget is far more than four MiB need on a busy machine, and far less than a quadratic step takes on an idle one.
const budget = 20 * time.Second

func within(t *testing.T, n int, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d > budget {
		t.Errorf("%d bytes took %v", n, d)
	}
}

// TestHostileInput decodes hostile payloads in linear time, in memory that is a small multiple of the input.
func TestHostileInput(t *testing.T) {
	for name, build := range hostile(4 << 20) {
		t.Run(name, func(t *testing.T) {
			p := []byte(build())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			within(t, len(p), func() { _, _ = events.Decode(p) })
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) / uint64(len(p)); got > 24 {
				t.Errorf("%d bytes of memory per byte of input", got)
			}
		})
	}
}

// TestHostileInputs does the same with what clients publish.
func TestHostileInputs(t *testing.T) {
	const n = 4 << 20
	shown := func(blocks, attachments string) string {
		return inputPayload("inject", `,"content":[`+blocks+`],"attachments":[`+attachments+`]`)
	}
	repeat := func(unit string) string { return strings.TrimSuffix(strings.Repeat(unit+",", n/len(unit)), ",") }
	huge := strings.Replace(imageOf("B"), `"bytes":1`, `"bytes":1073741824`, 1)
	for name, p := range map[string]string{
		"many empty attachments": shown(imageOf(""), repeat(`""`)),
		"many images":            shown(repeat(imageOf("")), ``),
		"long attachment":        shown(imageOf("B"), `"`+strings.Repeat("A", n)+`"`),
		"long claim":             shown(huge, `"`+strings.Repeat("A", n)+`"`),
		"many long claims":       shown(repeat(huge), repeat(`"Qg=="`)),
		"line ends":              shown(strings.Replace(imageOf("B"), `"bytes":1`, fmt.Sprintf(`"bytes":%d`, n/4*3), 1), `"`+strings.Repeat(`\n`, n)+`"`),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			within(t, len(p), func() {
				if _, err := events.DecodeInput([]byte(p)); err == nil {
					t.Error("it was accepted")
				}
			})
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) / uint64(len(p)); got > 24 {
				t.Errorf("%d bytes of memory per byte of input", got)
			}
		})
	}
}

func TestHostileText(t *testing.T) {
	for _, unit := range []string{`a`, `\n`, `\ud83d`, `\ude00`, `\ud83d\ude00`, "\xe9", "\xe9\\n", "\xed\xa0\xbd", "\\ud83d\x80", "한"} {
		text := bytes.Repeat([]byte(unit), (1<<20)/len(unit))
		within(t, len(text), func() {
			if _, err := events.Unquote(slices.Concat([]byte{'"'}, text, []byte{'"'})); err != nil {
				t.Error(err)
			}
			s := events.TextFromBytes(text)
			events.AppendQuote(nil, s)
			events.BytesFromText(s)
		})
	}
}

// TestLargest decodes payloads of the largest size that is allowed. A quadratic step would take hours.
func TestLargest(t *testing.T) {
	if testing.Short() {
		t.Skip("decodes several payloads of 64 MiB; run without -short")
	}
	all := hostile(events.MaxEventBytes)
	for _, name := range []string{"newlines", "wide raw"} {
		p := all[name]()
		if len(p) > events.MaxEventBytes {
			t.Fatalf("%s: %d bytes are too many", name, len(p))
		}
		start := time.Now()
		_, err := events.Decode([]byte(p))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %d bytes in %v", name, len(p), time.Since(start))
	}
}
