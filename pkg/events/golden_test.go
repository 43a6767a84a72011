package events_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

var update = flag.Bool("update", false, "write the golden files anew; a difference is a change of the format")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(bytes.TrimSuffix(want, []byte("\n"))), string(got)); diff != "" {
		t.Errorf("%s: the bytes of a stored event changed (-golden +now):\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	all := samples(t)
	seen := map[events.Type]bool{}
	for _, e := range all {
		t.Run(fileName(e.Type()), func(t *testing.T) {
			if seen[e.Type()] {
				t.Fatalf("two samples of type %s", e.Type())
			}
			seen[e.Type()] = true
			golden(t, fileName(e.Type()), encode(t, e))
		})
	}
	for _, typ := range eventstest.Types() {
		if !seen[typ] {
			t.Errorf("no golden file for type %s", typ)
		}
	}
	unknown := events.Event{
		Seq: 1, ID: sampleID, Time: sampleTime, Ignorable: true,
		Body: &events.Unknown{Name: eventstest.TypeUnknown, Data: `{ "b" : [ 1.0, "\/" ] }`},
	}
	golden(t, "unknown.golden", encode(t, unknown))
	for name, e := range variants(t) {
		golden(t, name+".golden", encode(t, e))
	}
}

func TestGoldenInput(t *testing.T) {
	all := sampleInputs()
	for name, in := range all {
		golden(t, "input-"+name+".golden", encodeInput(t, in))
	}
	for _, kind := range eventstest.InputKinds() {
		if in, ok := all[string(kind)]; !ok || in.Kind != kind {
			t.Errorf("no golden file for inputs of kind %s", kind)
		}
	}
}

func TestGoldenTools(t *testing.T) {
	got, err := events.AppendTools(nil, sampleHeader().Tools)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "tools.golden", got)
	back, err := events.ParseTools(got)
	if err != nil || !slices.Equal(back, sampleHeader().Tools) {
		t.Errorf("ParseTools = %v, %v", back, err)
	}
}
