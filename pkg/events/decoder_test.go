package events_test

import (
	"bytes"
	"errors"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"unsafe"
	"weak"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

// decoders checks that every way to decode p gives what Decode gives, and that none that must not writes to p. It returns the
// events, in pairs of what Decode gave and what d gave.
func decoders(t rapid.TB, d *events.Decoder, p []byte) (want, got []events.Event) {
	t.Helper()
	before := bytes.Clone(p)
	e, wantErr := events.Decode(p)
	for _, way := range []struct {
		name   string
		decode func([]byte) (events.Event, error)
		own    bool
	}{{"Decode", d.Decode, false}, {"DecodeShared", d.DecodeShared, false}, {"DecodeOwned", d.DecodeOwned, true}} {
		in := p
		if way.own {
			in = bytes.Clone(p)
		}
		g, err := way.decode(in)
		if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Fatalf("Decoder.%s: %v, Decode: %v\n%q", way.name, err, wantErr, before)
		}
		if !bytes.Equal(p, before) {
			t.Fatalf("Decoder.%s wrote to the payload %q", way.name, before)
		}
		want, got = append(want, e), append(got, g)
	}
	return want, got
}

var wholeEvent = cmp.Options{cmp.AllowUnexported(events.Event{}), cmpopts.EquateEmpty()}

// TestDecoderIsDecode feeds one Decoder with good and damaged payloads in turn: each result is Decode's, and no
// earlier result changes.
func TestDecoderIsDecode(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var d events.Decoder
		var got, want []events.Event
		for range rapid.IntRange(1, 6).Draw(rt, "events") {
			e := eventstest.Event().Draw(rt, "event")
			p, err := events.Encode(&e)
			if err != nil {
				rt.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(rt, "damage") == 0 {
				p = p[:rapid.IntRange(0, len(p)-1).Draw(rt, "cut")]
			}
			w, g := decoders(rt, &d, p)
			want, got = append(want, w...), append(got, g...)
		}
		if diff := cmp.Diff(want, got, wholeEvent); diff != "" {
			rt.Fatalf("Decode and Decoder differ:\n%s", diff)
		}
	})
}

// FuzzDecoder decodes two payloads with one Decoder, the second in the scratch memory of the first.
func FuzzDecoder(f *testing.F) {
	var payloads [][]byte
	for _, e := range slices.AppendSeq(samples(f), maps.Values(variants(f))) {
		payloads = append(payloads, encode(f, e))
	}
	for i, p := range payloads {
		f.Add(p, payloads[(i+1)%len(payloads)])
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var d events.Decoder
		want, got := decoders(t, &d, a)
		w, g := decoders(t, &d, b)
		if want, got = append(want, w...), append(got, g...); !reflect.DeepEqual(want, got) {
			t.Fatalf("Decode and Decoder differ:\n%s", cmp.Diff(want, got, wholeEvent))
		}
	})
}

// TestLongLists decodes lists around the length from which on they are not copied from the scratch memory.
func TestLongLists(t *testing.T) {
	var d events.Decoder
	var got, want []events.Event
	for _, n := range []int{1, 2, 8, 63, 64, 65, 66, 127, 128, 129, 300, 1} {
		var list []events.Chunk
		for i := range n {
			texts := slices.Repeat([]string{"a", "\n"}, n-i)
			list = append(list, events.Chunk{Type: events.ChunkTextDelta, Index: int64(i), Texts: texts})
		}
		w, g := decoders(t, &d, encode(t, events.Event{Seq: 1, ID: sampleID, Body: &events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1, Chunks: list}}))
		want, got = append(want, w...), append(got, g...)
	}
	if !reflect.DeepEqual(want, got) {
		t.Error("Decode and Decoder differ")
	}
}

// TestMessageKeepsNoPayload decodes messages of the surface without a copy. One whose texts are made anew, since they have
// escapes, does not keep the payload alive beside them.
func TestMessageKeepsNoPayload(t *testing.T) {
	seen := make(map[events.Type]bool)
	for _, e := range samples(t) {
		if !e.Type().Surface() || !bytes.ContainsRune(encode(t, e), '\\') {
			continue
		}
		seen[e.Type()] = true
		var d events.Decoder
		body, payload := func() (events.Body, weak.Pointer[byte]) {
			p := encode(t, e)
			got, err := d.DecodeShared(p)
			if err != nil {
				t.Fatal(err)
			}
			return got.Body, weak.Make(unsafe.SliceData(p))
		}()
		runtime.GC()
		if payload.Value() != nil {
			t.Errorf("the body of %s keeps its payload alive", e.Type())
		}
		if diff := cmp.Diff(e.Body, body, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	}
	if len(seen) != 3 {
		t.Errorf("of the three types on the surface, samples of %v have escapes", seen)
	}
}

func TestDecodeOwnedTooLarge(t *testing.T) {
	var d events.Decoder
	if _, err := d.DecodeOwned(make([]byte, events.MaxEventBytes+1)); !errors.Is(err, events.ErrTooLarge) {
		t.Error(err)
	}
}

func TestLiveRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := eventstest.Body(events.TypeAssistantChunk).Draw(t, "chunks").(*events.AssistantChunk)
		p, err := events.EncodeLive(b)
		if err != nil {
			t.Fatal(err)
		}
		got, err := events.DecodeLive(p)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if _, err := events.DecodeLive(append(p, ' ')); !errors.Is(err, events.ErrSyntax) {
			t.Fatalf("bytes after the end: %v", err)
		}
		e := events.Event{Seq: 1, ID: sampleID, Body: b}
		whole, err := events.Encode(&e)
		if err != nil || !bytes.Contains(whole, append([]byte(`"data":`), p...)) {
			t.Fatalf("live data is not the event's data: %v\n%s\n%s", err, p, whole)
		}
	})
	if p, err := events.EncodeLive(&events.AssistantChunk{Turn: 1, Step: 1, Attempt: 1}); !errors.Is(err, events.ErrInvalid) || p != nil {
		t.Errorf("no chunks: %s, %v", p, err)
	}
	if _, err := events.DecodeLive(make([]byte, events.MaxEventBytes+1)); !errors.Is(err, events.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}
