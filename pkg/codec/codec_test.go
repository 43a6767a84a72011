package codec_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestNew(t *testing.T) {
	for _, name := range codec.Names() {
		b, err := codec.New(name, codec.Options{})
		if err != nil || b.Codec() != name {
			t.Errorf("codec %s: %v, %v", name, b, err)
		}
	}
	if !slices.Contains(codec.Names(), "deepseek-chat/1") {
		t.Errorf("the codecs are %v", codec.Names())
	}
	for _, name := range []string{"", "deepseek-chat", "deepseek-chat/2", "DeepSeek-chat/1"} {
		if b, err := codec.New(name, codec.Options{}); !errors.Is(err, codec.ErrUnknownCodec) || b != nil {
			t.Errorf("codec %q: %v, %v", name, b, err)
		}
	}
	names := codec.Names()
	names[0] = "changed"
	if codec.Names()[0] == "changed" {
		t.Error("Names shares its list")
	}
}

// raw is a source that checks nothing.
type raw map[objects.Digest][]byte

func (r raw) Bytes(d objects.Digest) ([]byte, bool) { b, ok := r[d]; return b, ok }

// TestObjectFaults builds requests of which one object is missing or wrong, each place in turn, and then right.
func TestObjectFaults(t *testing.T) {
	tools, err := events.AppendTools(nil, foldtest.Header().Tools)
	if err != nil {
		t.Fatal(err)
	}
	notUTF8 := "\xff\xfe"
	pair := "\xed\xa0\xbd\xed\xb8\x80" // a pair, which well-formed text holds as one code point
	for place, c := range map[string]struct {
		data string
		bad  []string
	}{
		"system": {"Be kind.", []string{notUTF8, pair, "", "Be kind!!"}},
		"tools":  {string(tools), []string{"", "null", "[", string(tools) + " ", `[{"name":"x"}]`, "\xff"}},
		"user":   {"large", []string{notUTF8, pair, "larg", "large\x80"}},
		"result": {"a file", []string{notUTF8, "a fil", "\xc3a fil"}},
	} {
		t.Run(place, func(t *testing.T) {
			mediaType := events.TextMediaType
			if place == "tools" {
				mediaType = events.ToolsMediaType
			}
			l := foldtest.New()
			ref := l.Object([]byte(c.data), mediaType)
			block := events.Block{Type: events.BlockText, Object: ref}
			h := foldtest.Header()
			switch place {
			case "system":
				h.System, h.SystemObject = "", ref
			case "tools":
				h.Tools, h.ToolsObject = nil, ref
			}
			l.Begin()
			l.TurnStart()
			l.StepStart()
			l.User("first")
			l.Header(h)
			plain, err := l.State.Request()
			if err != nil {
				t.Fatal(err)
			}
			if place == "user" {
				l.UserBlocks(block)
			}
			l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c", "read", "{}"))
			l.ToolCall()
			if place == "result" {
				l.ToolResult(events.Text("see "), block)
			}
			r, err := l.State.Request()
			if err != nil {
				t.Fatal(err)
			}
			for _, digestOnly := range []bool{false, true} {
				b := newBuilder(t, codec.Options{DigestOnly: digestOnly})
				before := build(t, b, &plain, l.Objects)
				for _, bad := range c.bad {
					got, err := b.Build(&r, raw{ref.Digest: []byte(bad)})
					if !errors.Is(err, codec.ErrCorruptObject) || got.Digest() != (events.BodyDigest{}) {
						t.Errorf("object %q: %+v, %v", bad, got.Digest(), err)
					}
				}
				var missing *codec.MissingObjectError
				if _, err := b.Build(&r, raw{}); !errors.As(err, &missing) || missing.Ref != ref || !errors.Is(err, codec.ErrMissingObject) {
					t.Errorf("without the object: %v", err)
				} else if !strings.Contains(err.Error(), ref.Digest.String()) {
					t.Errorf("the error does not name the object: %v", err)
				}
				body := build(t, b, &r, l.Objects)
				fresh := build(t, newBuilder(t, codec.Options{}), &r, l.Objects)
				if body.Digest() != fresh.Digest() || body.Reused() != before.Stable() {
					t.Errorf("after the failures %+v, %d reused; want %+v, %d", body.Digest(), body.Reused(), fresh.Digest(), before.Stable())
				}
			}
		})
	}
}

// TestOldObjectsAreNotAskedFor builds a session step by step with only the objects that came into use.
func TestOldObjectsAreNotAskedFor(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	b := newBuilder(t, codec.Options{DigestOnly: true})
	for i := range 5 {
		l.TurnStart()
		l.StepStart()
		l.UserBlocks(l.TextObject(strings.Repeat("x", i+1)))
		l.Header(foldtest.Header())
		fresh := new(objects.Set)
		for _, ref := range l.State.NewObjects() {
			data, _ := l.Objects.Bytes(ref.Digest)
			if err := fresh.Add(ref, data); err != nil {
				t.Fatal(err)
			}
		}
		if fresh.Len() != 1 {
			t.Fatalf("%d new objects", fresh.Len())
		}
		r, err := l.State.Request()
		if err != nil {
			t.Fatal(err)
		}
		build(t, b, &r, fresh)
		l.Reply(events.FinishStop, foldtest.TextBlock(0, "yes"))
		l.StepEnd()
		l.TurnEnd(events.TurnCompleted)
	}
}

// TestLongBodies compares builders over bodies of many blocks of CommonPrefix and of the scratch memory.
func TestLongBodies(t *testing.T) {
	var all []fold.Request
	l := foldtest.SessionLog(6000, func(r *fold.Request, src objects.Source) (string, events.BodyDigest) {
		all = append(all, *r)
		return foldtest.NoBody(r, src)
	})
	last := &all[len(all)-1]
	whole, digests := newBuilder(t, codec.Options{}), newBuilder(t, codec.Options{DigestOnly: true})
	want := build(t, newBuilder(t, codec.Options{}), last, l.Objects)
	if want.Digest().Bytes < 1<<18 {
		t.Fatalf("the last body has only %d bytes", want.Digest().Bytes)
	}
	if once := build(t, newBuilder(t, codec.Options{DigestOnly: true}), last, l.Objects); once.Digest() != want.Digest() {
		t.Error("a body hashed in one go has another digest")
	}
	var before codec.Body
	for i := range all {
		body, digest := build(t, whole, &all[i], l.Objects), build(t, digests, &all[i], l.Objects)
		if body.Digest() != digest.Digest() || body.Reused() != before.Stable() {
			t.Fatalf("request %d: %+v and %+v, %d reused", i, body.Digest(), digest.Digest(), body.Reused())
		}
		other := build(t, newBuilder(t, codec.Options{}), &all[i], l.Objects) // of another line: compared byte by byte
		if n := codec.CommonPrefix(&before, &body); n != codec.CommonPrefix(&before, &other) || n < before.Stable() {
			t.Fatalf("request %d: %d bytes in common with the one before, %d stable", i, n, before.Stable())
		}
		before = body
	}
	if before.Digest() != want.Digest() || codec.CommonPrefix(&before, &want) != want.Digest().Bytes {
		t.Error("step by step the last body is another")
	}
}
