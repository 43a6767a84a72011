package codec_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

type failer interface {
	Fatalf(format string, args ...any)
}

func newBuilder(t failer, o codec.Options) codec.Builder {
	b, err := codec.New(codec.DeepSeekChat1, o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

func build(t failer, b codec.Builder, r *fold.Request, src objects.Source) codec.Body {
	body, err := b.Build(r, src)
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	return body
}

// requests draws a log and returns the request of each llm/stream in it, some with a header of any kind instead of the
// log's, and the objects that they need.
func requests(t *rapid.T) ([]fold.Request, *objects.Set) {
	var all []fold.Request
	l := foldtest.GenerateLog(t, foldtest.Options{Body: func(r *fold.Request, src objects.Source) (string, events.BodyDigest) {
		all = append(all, *r)
		return foldtest.NoBody(r, src)
	}})
	header := rapid.Custom(func(t *rapid.T) events.Header { return anyHeader(t, l.Objects) })
	for i := range all {
		switch rapid.IntRange(0, 5).Draw(t, "header") {
		case 0:
			all[i].Header = header.Draw(t, "other header")
		case 1:
			if i > 0 {
				all[i].Header = all[i-1].Header.Clone()
			}
		}
	}
	return all, l.Objects
}

// anyHeader draws a header whose objects are real.
func anyHeader(t *rapid.T, set *objects.Set) events.Header {
	h := eventstest.Header().Draw(t, "header")
	add := func(mediaType string, data []byte) objects.Ref {
		ref, err := objects.NewRef(mediaType, data)
		if err == nil {
			err = set.Add(ref, data)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	if h.SystemObject != (objects.Ref{}) {
		h.SystemObject = add(events.TextMediaType, []byte(eventstest.Text().Draw(t, "system object")))
	}
	if h.ToolsObject != (objects.Ref{}) {
		tools, err := events.AppendTools(nil, rapid.SliceOfN(eventstest.Tool(), 0, 3).Draw(t, "tools object"))
		if err != nil {
			t.Fatal(err)
		}
		h.ToolsObject = add(events.ToolsMediaType, tools)
	}
	return h
}

// limited answers the first few questions for objects and denies the rest.
type limited struct {
	objects.Source

	left   int
	denied bool
}

func (l *limited) Bytes(d objects.Digest) ([]byte, bool) {
	if l.left == 0 {
		l.denied = true
		return nil, false
	}
	l.left--
	return l.Source.Bytes(d)
}

// TestBodies holds every body of random logs against the dumb codec, against a fresh builder and one that keeps no
// bytes, and builds that fail against nothing having happened.
func TestBodies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, src := requests(t)
		checkBodies(t, all, src)
	})
}

// TestImageBodies is TestBodies for logs with images.
func TestImageBodies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, all := drawImages(t)
		checkBodies(t, all, l.Objects)
	})
}

func checkBodies(t *rapid.T, all []fold.Request, src objects.Source) {
	whole, digests := newBuilder(t, codec.Options{}), newBuilder(t, codec.Options{DigestOnly: true})
	var before []kept
	for i := range all {
		r := &all[i]
		want := dumbBody(r, src)
		body, digest := retried(t, whole, r, src), retried(t, digests, r, src)
		checkBody(t, &body, want)
		if digest.Digest() != body.Digest() || digest.Stable() != body.Stable() || digest.Reused() != body.Reused() {
			t.Fatalf("request %d: the builder without bytes says %+v, the other %+v", i, digest, body)
		}
		fresh := build(t, newBuilder(t, codec.Options{}), r, src)
		checkBody(t, &fresh, want)
		if fresh.Reused() != 0 {
			t.Fatalf("request %d: a fresh builder reused %d bytes", i, fresh.Reused())
		}
		checkPrefix(t, before, &body, r, src)
		before = append(before, kept{body: body, want: want, request: r})
	}
	for i := range before {
		checkBody(t, &before[i].body, before[i].want) // as it was when it was handed out
		j := rapid.IntRange(0, i).Draw(t, "other")
		got, want := codec.CommonPrefix(&before[i].body, &before[j].body), naivePrefix(before[i].want, before[j].want)
		if got != want || codec.CommonPrefix(&before[j].body, &before[i].body) != want {
			t.Fatalf("requests %d and %d have %d bytes in common, want %d", i, j, got, want)
		}
	}
}

type kept struct {
	body    codec.Body
	want    []byte
	request *fold.Request
}

// retried builds with a source that may lack objects, and again with all of them when it did: the builder must stand as
// if the first build had not been.
func retried(t *rapid.T, b codec.Builder, r *fold.Request, src objects.Source) codec.Body {
	few := &limited{Source: src, left: rapid.IntRange(0, 4).Draw(t, "objects here")}
	body, err := b.Build(r, few)
	var missing *codec.MissingObjectError
	switch {
	case err == nil && !few.denied:
		return body
	case !few.denied || !errors.As(err, &missing) || !errors.Is(err, codec.ErrMissingObject):
		t.Fatalf("an object missing: %t, the error: %v", few.denied, err)
	}
	if _, ok := src.Bytes(missing.Ref.Digest); !ok {
		t.Fatalf("%v, which nothing refers to", err)
	}
	return build(t, b, r, src)
}

func checkBody(t *rapid.T, b *codec.Body, want []byte) {
	got := b.Bytes()
	if !bytes.Equal(got, want) {
		t.Fatalf("body\n %q\nwant\n %q", got, want)
	}
	if d := b.Digest(); d.Bytes != int64(len(want)) || d.SHA256 != sha256.Sum256(want) {
		t.Fatalf("digest %+v of %q", d, want)
	}
	read, err := io.ReadAll(iotest.OneByteReader(b.Reader()))
	if err != nil || !bytes.Equal(read, want) {
		t.Fatalf("read %q, %v\nwant %q", read, err, want)
	}
	clear(got) // the copy is the caller's
}

// checkPrefix checks what the body says about the bytes it shares with the body before and with the next.
func checkPrefix(t *rapid.T, before []kept, b *codec.Body, r *fold.Request, src objects.Source) {
	prefix := dumbPrefix(r, src)
	if b.Stable() != int64(len(prefix)) {
		t.Fatalf("%d bytes are stable, want %d: %q", b.Stable(), len(prefix), prefix)
	}
	want := int64(0)
	if len(before) > 0 {
		last := before[len(before)-1]
		empty := fold.Request{Header: r.Header}
		old := fold.Request{Header: last.request.Header}
		sameHead := bytes.Equal(dumbPrefix(&empty, src), dumbPrefix(&old, src))
		sameImages := last.request.Images.Generation() == r.Images.Generation()
		if sameHead && sameImages && continues(r, last.request) && last.request.Surface.Generation == r.Surface.Generation {
			want = last.body.Stable()
		}
	}
	if b.Reused() != want {
		t.Fatalf("%d bytes reused, want %d", b.Reused(), want)
	}
}

// continues reports whether r begins with the messages of old, as far as their ids tell; every directive of an auxiliary
// call is another message.
func continues(r, old *fold.Request) bool {
	n := old.Messages.Len()
	for i := range n {
		if id := old.Messages.At(i).ID; i >= r.Messages.Len() || id != r.Messages.At(i).ID || id == "directive" {
			return false
		}
	}
	return true
}

func naivePrefix(a, b []byte) int64 {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return int64(n)
}

// TestObjectsGiveTheSameBytes compares content that stands in the event with the same content as an object.
func TestObjectsGiveTheSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		system, said := eventstest.Text().Draw(t, "system"), eventstest.Text().Draw(t, "said")
		output, more := eventstest.Text().Draw(t, "output"), eventstest.Text().Draw(t, "more")
		tools := rapid.SliceOfN(eventstest.Tool(), 1, 3).Draw(t, "tools")
		write := func(asObject bool) []byte {
			l := foldtest.New()
			block := func(s string) events.Block {
				if asObject {
					return l.TextObject(s)
				}
				return events.Text(s)
			}
			h := events.Header{Config: events.Config{Provider: "deepseek", Model: "m"}, System: system, Tools: tools}
			if asObject {
				list, err := events.AppendTools(nil, tools)
				if err != nil {
					t.Fatal(err)
				}
				h.System, h.SystemObject = "", l.Object([]byte(system), events.TextMediaType)
				h.Tools, h.ToolsObject = nil, l.Object(list, events.ToolsMediaType)
			}
			l.Begin()
			l.TurnStart()
			l.StepStart()
			l.UserBlocks(block(said), events.Text(more))
			l.Header(h)
			l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c", "read", "{}"))
			l.ToolCall()
			l.ToolResult(block(output), block(more))
			r, err := l.State.Request()
			if err != nil {
				t.Fatal(err)
			}
			body := build(t, newBuilder(t, codec.Options{}), &r, l.Objects)
			return body.Bytes()
		}
		inline := write(false)
		if referred := write(true); !bytes.Equal(inline, referred) {
			t.Fatalf("inline\n %q\nas objects\n %q", inline, referred)
		}
	})
}

// ExampleBuilder rebuilds the body of a session's first request.
func ExampleBuilder() {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.User("Which files are here?")
	l.Header(events.Header{Config: events.Config{Provider: "deepseek", Model: "deepseek-chat", ReasoningEffort: "off"}})
	request, err := l.State.Request()
	if err != nil {
		fmt.Println(err)
		return
	}
	builder, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := builder.Build(&request, l.Objects)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(body.Bytes()))
	// Output:
	// {"model":"deepseek-chat","messages":[{"role":"user","content":"Which files are here?"}],"stream":true,"stream_options":{"include_usage":true},"thinking":{"type":"disabled"}}
}
