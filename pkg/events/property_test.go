package events_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

var sameEvent = cmp.Options{cmpopts.IgnoreUnexported(events.Event{}), cmpopts.EquateEmpty()}

// checkRoundTrip checks that e survives the encoding, that its bytes are JSON, and that they are the only ones.
func checkRoundTrip(t *rapid.T, e events.Event) []byte {
	b, err := events.Encode(&e)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	if !json.Valid(b) {
		t.Fatalf("not JSON: %s", b)
	}
	got, err := events.Decode(b)
	if err != nil {
		t.Fatalf("decode: %v\n%s", err, b)
	}
	if diff := cmp.Diff(e, got, sameEvent); diff != "" {
		t.Fatalf("decode(encode(x)) != x (-x +got):\n%s", diff)
	}
	wrote, ok1 := e.Hash()
	read, ok2 := got.Hash()
	if !ok1 || !ok2 || wrote != read || read != events.HashPayload(b) {
		t.Fatalf("hashes: written %v %t, read %v %t", wrote, ok1, read, ok2)
	}
	again, err := events.Encode(&got)
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("encode(decode(b)) != b: %v\n%s\n%s", err, b, again)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	for _, typ := range append(eventstest.Types(), eventstest.TypeUnknown) {
		t.Run(string(typ), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkRoundTrip(t, eventstest.EventOf(typ).Draw(t, "event")) })
		})
	}
}

func TestDecodeSharesNothing(t *testing.T) {
	for _, e := range slices.AppendSeq(samples(t), maps.Values(variants(t))) {
		b := encode(t, e)
		got, err := events.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] = 'x'
		}
		if diff := cmp.Diff(e, got, sameEvent); diff != "" {
			t.Errorf("%s changed with the payload it was read from:\n%s", e.Type(), diff)
		}
	}
}

// canonicalOrRefused checks that Decode accepts b only if b is the canonical encoding of what it returns.
func canonicalOrRefused(t testing.TB, b []byte) (accepted bool) {
	t.Helper()
	e, err := events.Decode(b)
	if err != nil {
		return false
	}
	again, err := events.Encode(&e)
	if err != nil {
		t.Fatalf("decoded, but does not encode: %v\n%q", err, b)
	}
	if !bytes.Equal(again, b) {
		t.Fatalf("decoded, but is not canonical:\n%q\n%q", b, again)
	}
	return true
}

// TestEveryByte changes every byte of every sample to values that matter, deletes it, and doubles it.
func TestEveryByte(t *testing.T) {
	refused, accepted := 0, 0
	count := func(ok bool) {
		if ok {
			accepted++
		} else {
			refused++
		}
	}
	for _, e := range slices.AppendSeq(samples(t), maps.Values(variants(t))) {
		b := encode(t, e)
		for i := range b {
			for _, c := range []byte{b[i] ^ 1, b[i] ^ 0x20, b[i] ^ 0x80, 0, ' ', '"', '\\', '0', '9', ',', '}', 'F'} {
				if c == b[i] {
					continue
				}
				m := bytes.Clone(b)
				m[i] = c
				count(canonicalOrRefused(t, m))
			}
			count(canonicalOrRefused(t, slices.Delete(bytes.Clone(b), i, i+1)))
			count(canonicalOrRefused(t, slices.Insert(bytes.Clone(b), i, b[i])))
			if _, err := events.Decode(b[:i]); err == nil {
				t.Fatalf("%s: a payload cut at byte %d was accepted", e.Type(), i)
			}
		}
	}
	if accepted == 0 || refused < accepted {
		t.Errorf("%d changes accepted, %d refused: the test does not test what it should", accepted, refused)
	}
}

func TestSingleByteChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := eventstest.Event().Draw(t, "event")
		b, err := events.Encode(&e)
		if err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		old := b[i]
		b[i] = rapid.Byte().Filter(func(c byte) bool { return c != old }).Draw(t, "byte")
		got, err := events.Decode(b)
		if err != nil {
			return
		}
		again, err := events.Encode(&got)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("decoded, but is not canonical: %v\n%q\n%q", err, b, again)
		}
		if cmp.Equal(e, got, sameEvent) {
			t.Fatalf("two encodings of one event:\n%q", b)
		}
	})
}

func TestToolsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tools := rapid.SliceOfN(eventstest.Tool(), 0, 4).Draw(t, "tools")
		b, err := events.AppendTools(nil, tools)
		if err != nil {
			t.Fatal(err)
		}
		got, err := events.ParseTools(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tools, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// TestEncodeLosesNothing sets one field that the kind of block, chunk, turn end or surface operation does not have: the encoding has no place for it, so it must be refused and not dropped.
func TestEncodeLosesNothing(t *testing.T) {
	for name, change := range map[string]func(*rapid.T, *events.Event){
		"block": func(t *rapid.T, e *events.Event) {
			block := eventstest.Block(events.BlockText, events.BlockReasoning, events.BlockToolCall, events.BlockImage)
			a, b := block.Draw(t, "a"), block.Draw(t, "b")
			a.Text, a.ID, a.Name, a.Arguments, a.Object = a.Text+b.Text, a.ID+b.ID, a.Name+b.Name, a.Arguments+b.Arguments, b.Object
			a.Width, a.Height = b.Width, b.Height
			e.Body.(*events.AssistantMessage).Message.Content = []events.Block{a}
		},
		"result": func(t *rapid.T, e *events.Event) {
			a := eventstest.Block(events.BlockText, events.BlockImage).Draw(t, "a")
			b := eventstest.Block(events.BlockText, events.BlockImage).Draw(t, "b")
			b.Type = a.Type
			r := eventstest.Result().Draw(t, "result")
			r.Content[0].Content = []events.Block{b}
			e.Body = &events.ToolResult{Turn: 1, Step: 1, Message: r}
			e.Surface = events.AppendOp()
		},
		"usage": func(t *rapid.T, e *events.Event) {
			e.Body.(*events.AssistantMessage).Usage = eventstest.Usage().Draw(t, "usage")
		},
		"surface": func(t *rapid.T, e *events.Event) {
			e.Surface = events.SurfaceOp{
				Kind:   events.SurfaceOpKind(rapid.IntRange(0, 4).Draw(t, "kind")),
				Region: events.Region{Start: rapid.Uint64Range(0, 2).Draw(t, "start"), End: rapid.Uint64Range(0, 2).Draw(t, "end")},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := eventstest.EventOf(events.TypeAssistantMessage).Draw(t, "event")
				change(t, &e)
				if b, err := events.Encode(&e); err == nil {
					got, err := events.Decode(b)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(e, got, sameEvent); diff != "" {
						t.Fatalf("lost in the encoding (-x +got):\n%s", diff)
					}
				}
			})
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := eventstest.Chunk().Draw(t, "a"), eventstest.Chunk().Draw(t, "b")
		b.Type = a.Type
		e := events.Event{Seq: 1, ID: sampleID, Body: &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: []events.Chunk{b}}}
		if p, err := events.Encode(&e); err == nil {
			got, err := events.Decode(p)
			if err != nil || !cmp.Equal(e, got, sameEvent) {
				t.Fatalf("lost in the encoding: %v\n%s", err, cmp.Diff(e, got, sameEvent))
			}
		}
	})
}
