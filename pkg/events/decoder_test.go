package events_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

// TestDecoderIsDecode feeds one Decoder with good and damaged payloads in turn: each result is Decode's, and no
// earlier result changes.
func TestDecoderIsDecode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d events.Decoder
		var got, want []events.Event
		for range rapid.IntRange(1, 6).Draw(t, "events") {
			e := eventstest.Event().Draw(t, "event")
			p, err := events.Encode(&e)
			if err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "damage") == 0 {
				p = p[:rapid.IntRange(0, len(p)-1).Draw(t, "cut")]
			}
			want1, wantErr := events.Decode(p)
			before := bytes.Clone(p)
			got1, gotErr := d.Decode(p)
			if !bytes.Equal(p, before) {
				t.Fatal("Decode wrote to the payload")
			}
			got2, gotErr2 := d.DecodeShared(p)
			if !bytes.Equal(p, before) {
				t.Fatal("DecodeShared wrote to the payload")
			}
			got3, gotErr3 := d.DecodeOwned(bytes.Clone(p))
			for _, err := range []error{gotErr, gotErr2, gotErr3} {
				if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
					t.Fatalf("Decoder: %v, Decode: %v", err, wantErr)
				}
			}
			want, got = append(want, want1, want1, want1), append(got, got1, got2, got3)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(events.Event{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Decode and Decoder differ:\n%s", diff)
		}
	})
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
