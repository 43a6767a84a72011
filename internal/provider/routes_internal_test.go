package provider

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
)

// endpoint is a server that names itself in every answer, and an adapter for it.
func endpoint(t *testing.T, name string, model Model, retry RetryPolicy) Adapter {
	t.Helper()
	model.Name = "m"
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/files") {
			_, _ = io.WriteString(w, `{"id":"file-of-`+name+`"}`)
			return
		}
		eventStream(w, data(delta(`"content":"`+name+`"`), finish("stop"), done))
	})
	return newAdapter(t, url, func(c *Config) { c.Models, c.Retry = []Model{model}, retry })
}

// traits is what a prepared call says of itself.
type traits struct {
	Window, MaxTokens, Pixels int64
	Images, Files             bool
	Retry                     RetryPolicy
}

func capabilities(p *Prepared) traits {
	return traits{p.ContextWindow(), p.MaxTokens(), p.MaxImagePixels(), p.AcceptsImages(), p.Files(), p.RetryPolicy()}
}

// where dispatches a call and returns the name of the endpoint that answers.
func where(t *testing.T, p *Prepared) string {
	t.Helper()
	chunks, failed := collect(t.Context(), t, p, callOf(p, "{}"))
	if failed != nil {
		t.Fatal(failed)
	}
	text := ""
	for _, c := range chunks {
		text += strings.Join(c.Texts, "")
	}
	return text
}

func prepareOn(t *testing.T, r *Routes, name string) *Prepared {
	t.Helper()
	a, generation, ok := r.Lookup(name)
	if !ok {
		t.Fatalf("no route %q", name)
	}
	p, err := a.Prepare(t.Context(), events.Config{Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Generation() != generation || generation == 0 {
		t.Errorf("generation %d of an adapter of generation %d", p.Generation(), generation)
	}
	return p
}

// TestReplaceBetweenPrepareAndDispatch: a prepared call stays with the adapter that prepared it, wholly.
func TestReplaceBetweenPrepareAndDispatch(t *testing.T) {
	smallRetry, largeRetry := RetryPolicy{MaxAttempts: 2}, RetryPolicy{Mode: RetryAlways, Base: time.Second}
	small := endpoint(t, "small", Model{ContextWindow: 1000, MaxTokens: 10, Images: true, MaxImagePixels: 99, Files: true}, smallRetry)
	large := endpoint(t, "large", Model{ContextWindow: 9000, MaxTokens: 90}, largeRetry)
	ofSmall := traits{1000, 10, 99, true, true, smallRetry}
	ofLarge := traits{9000, 90, 0, false, false, largeRetry}
	for name, replace := range map[string]func(r *Routes){
		"set":     func(r *Routes) { r.Set("x", large) },
		"replace": func(r *Routes) { r.Replace(map[string]Adapter{"x": large, "y": small}) },
	} {
		t.Run(name, func(t *testing.T) {
			routes := NewRoutes(map[string]Adapter{"x": small})
			before, second := prepareOn(t, routes, "x"), prepareOn(t, routes, "x")
			replace(routes)
			if err := small.(io.Closer).Close(); err != nil {
				t.Fatal(err)
			}
			after := prepareOn(t, routes, "x")
			if after.Generation() <= before.Generation() || second.Generation() != before.Generation() {
				t.Errorf("generations %d, %d, then %d", before.Generation(), second.Generation(), after.Generation())
			}
			if diff := cmp.Diff([]traits{ofSmall, ofLarge}, []traits{capabilities(before), capabilities(after)}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			mixed := callOf(before, "{}")
			mixed.Config = after.Config() // the new route's limit of tokens
			if _, failed := collect(t.Context(), t, before, mixed); failed == nil || failed.Failure.Code != events.FailurePrepared {
				t.Errorf("the new config with the old endpoint: %v", failed)
			}
			if file, err := before.Uploader().Upload(t.Context(), testUpload); err != nil || file.ID != "file-of-small" {
				t.Errorf("uploaded as %+v, %v", file, err)
			}
			if got := where(t, before); got != "small" {
				t.Errorf("prepared before, answered by %s", got)
			}
			if got := where(t, after); got != "large" {
				t.Errorf("prepared after, answered by %s", got)
			}
			routes.Set("x", nil)
			if got := where(t, second); got != "small" {
				t.Errorf("prepared before, answered by %s", got)
			}
		})
	}
}

// TestReplacedEndpointGone: when the old endpoint is gone, the prepared call fails and does not go elsewhere.
func TestReplacedEndpointGone(t *testing.T) {
	gone := newAdapter(t, "http://127.0.0.1:1")
	routes := NewRoutes(map[string]Adapter{"x": gone})
	p := prepareOn(t, routes, "x")
	routes.Set("x", endpoint(t, "other", Model{}, RetryPolicy{}))
	if chunks, failed := collect(t.Context(), t, p, callOf(p, "{}")); failed == nil || failed.Failure.Code != events.FailureTransport || len(chunks) > 0 {
		t.Errorf("%s, %v", say(chunks), failed)
	}
}

func TestRoutes(t *testing.T) {
	plain := &plainAdapter{}
	full := newAdapter(t, "http://127.0.0.1:1")
	adapters := map[string]Adapter{"b": plain, "a": full, "none": nil}
	r := NewRoutes(adapters)
	adapters["c"] = full // not kept
	if diff := cmp.Diff([]string{"a", "b"}, r.Names()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, want := range map[string]bool{"a": true, "b": false} {
		a, _, _ := r.Lookup(name)
		if _, ok := a.(Uploader); ok != want {
			t.Errorf("%s uploads: %v", name, ok)
		}
	}
	for _, name := range []string{"c", "none", ""} {
		if a, generation, ok := r.Lookup(name); a != nil || generation != 0 || ok {
			t.Errorf("%q: %v, %d, %v", name, a, generation, ok)
		}
	}
	_, first, _ := r.Lookup("a")
	r.Replace(nil)
	if names := r.Names(); len(names) != 0 {
		t.Errorf("%v", names)
	}
	r.Set("a", full)
	if _, again, ok := r.Lookup("a"); !ok || again <= first+1 {
		t.Errorf("generation %d after %d was used", again, first+1)
	}
	var empty Routes
	if _, _, ok := empty.Lookup("a"); ok {
		t.Error("the zero table has a route")
	}
	empty.Set("a", plain)
	a, _, _ := empty.Lookup("a")
	if _, err := a.Prepare(t.Context(), events.Config{}); FailureOf(err).Code != events.FailureInvalid {
		t.Errorf("%v", err)
	}
	if p := prepare(t, full); p.Generation() != 0 {
		t.Errorf("generation %d without a table", p.Generation())
	}
}

// plainAdapter refuses everything and uploads nothing.
type plainAdapter struct{}

func (*plainAdapter) Prepare(context.Context, events.Config) (*Prepared, error) {
	return nil, &Error{Failure: events.Failure{Code: events.FailureInvalid, Message: "no"}}
}

// TestReplaceWhileCalling: calls that run while the table changes under them are each answered by the endpoint whose
// limits they were prepared with.
func TestReplaceWhileCalling(t *testing.T) {
	const rounds = 40
	windows := map[string]int64{"one": 1000, "two": 2000}
	adapters := make(map[string]Adapter)
	for name, window := range windows {
		adapters[name] = endpoint(t, name, Model{ContextWindow: window}, RetryPolicy{})
	}
	routes := NewRoutes(map[string]Adapter{"x": adapters["one"]})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var last uint64
			for range rounds {
				if err := callOnce(t.Context(), routes, windows, &last); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range rounds {
			next := adapters[[]string{"two", "one"}[i%2]]
			if i%3 == 0 {
				routes.Replace(map[string]Adapter{"x": next, "y": next})
			} else {
				routes.Set("x", next)
			}
			_ = routes.Names()
		}
	})
	wg.Wait()
}

func callOnce(ctx context.Context, routes *Routes, windows map[string]int64, last *uint64) error {
	a, generation, ok := routes.Lookup("x")
	if !ok || generation < *last {
		return fmt.Errorf("route %v of generation %d after %d", ok, generation, *last)
	}
	*last = generation
	p, err := a.Prepare(ctx, events.Config{Model: "m"})
	if err != nil {
		return err
	}
	text := ""
	for c, err := range p.Dispatch(ctx, callOf(p, "{}")) {
		if err != nil {
			return err
		}
		text += strings.Join(c.Texts, "")
	}
	if windows[text] != p.ContextWindow() {
		return fmt.Errorf("%q answered a call that was prepared for a window of %d", text, p.ContextWindow())
	}
	return nil
}
