package events_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

// overwrite sets every element of every slice that v reaches to its zero value, the innermost first.
func overwrite(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			overwrite(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			overwrite(field)
		}
	case reflect.Slice:
		for i := range v.Len() {
			overwrite(v.Index(i))
			v.Index(i).SetZero()
		}
	default: // holds nothing that could be shared
	}
}

// checkClone checks that clone is equal to the value behind v, and that nothing done to it reaches that value.
func checkClone[T any](t *rapid.T, v, clone T, before func() T) {
	if diff := cmp.Diff(v, clone); diff != "" {
		t.Fatalf("the copy differs:\n%s", diff)
	}
	overwrite(reflect.ValueOf(&clone))
	if diff := cmp.Diff(before(), v); diff != "" {
		t.Fatalf("changed with its copy:\n%s", diff)
	}
}

// decoded returns the body that a log gives for b, made anew each time.
func decoded[T events.Body](t *rapid.T, b T, op events.SurfaceOp) func() T {
	p, err := events.Encode(&events.Event{Seq: 1, ID: sampleID, Body: b, Surface: op})
	if err != nil {
		t.Fatal(err)
	}
	return func() T {
		e, err := events.Decode(p)
		if err != nil {
			t.Fatal(err)
		}
		return e.Body.(T)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		result := decoded(t, eventstest.Body(events.TypeToolResult).Draw(t, "result").(*events.ToolResult), events.AppendOp())
		v := result().Message
		checkClone(t, v, v.Clone(), func() events.Message { return result().Message })

		header := decoded(t, eventstest.Body(events.TypeRequestHeader).Draw(t, "header").(*events.RequestHeader), events.SurfaceOp{})
		h := header().Header
		checkClone(t, h, h.Clone(), func() events.Header { return header().Header })

		stream := decoded(t, eventstest.Body(events.TypeLLMStream).Draw(t, "stream").(*events.LLMStream), events.SurfaceOp{})
		a := stream().Auxiliary
		checkClone(t, a, a.Clone(), func() *events.Auxiliary { return stream().Auxiliary })
	})
}

func TestMergeSharesNothingWithTheChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		configured := decoded(t, eventstest.Body(events.TypeSessionConfigured).Draw(t, "options").(*events.SessionConfigured), events.SurfaceOp{})
		o := configured().Options
		checkClone(t, o, events.Options{}.Merge(o), func() events.Options { return configured().Options })
	})
}

func TestMergeSetsWhatTheChangeSets(t *testing.T) {
	old := sampleOptions()
	got := old.Merge(events.Options{Model: "m", MaxSteps: 7, System: "Be brief."})
	want := sampleOptions()
	want.Model, want.MaxSteps, want.System = "m", 7, "Be brief."
	want.SystemObject = events.Options{}.SystemObject
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(sampleOptions(), old.Merge(events.Options{})); diff != "" {
		t.Error(diff)
	}
}
