package replay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

// body gives the bodies of the DeepSeek codec, each built from nothing.
func body(r *fold.Request, src objects.Source) (string, events.BodyDigest) {
	b, err := codec.New(codec.DeepSeekChat1, codec.Options{})
	if err != nil {
		panic(err)
	}
	whole, err := b.Build(r, src)
	if err != nil {
		panic(err)
	}
	return b.Codec(), whole.Digest()
}

// session returns a log with an image, a title's call between two turns, and the store of its objects.
func session(t *testing.T) (l *foldtest.Log, log eventlog.Log, store *counted, original, sent objects.Ref) {
	t.Helper()
	l = foldtest.New()
	l.Body = body
	image := l.ImageBlock([]byte("a large image"), 40, 30)
	original, sent = image.Object, l.Object([]byte("a small image"), "image/png")
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(l.TextObject("look"), image)
	l.Header(foldtest.Header())
	l.Images(foldtest.Inline(image.Object.Digest, "Image 1", sent))
	l.Stream()
	l.Failed(events.FailureServer)
	l.Retry()
	l.Reply(events.FinishStop, foldtest.TextBlock(0, "A dog."))
	l.StepEnd()
	l.TurnEnd(events.TurnCompleted)
	nodes := l.State.Nodes()
	l.AuxStream(events.PurposeTitle, events.Region{Start: nodes[0], End: nodes[0]}, l.TextObject("Name this."))
	l.Chunks(append(foldtest.TextBlock(0, "Dogs"), foldtest.FinishChunk(events.FinishStop))...)
	l.TitleOfCall("Dogs")
	l.Turn("again", "sure")

	logs := eventlog.NewMemory(time.Now)
	log, err := logs.Create(t.Context(), l.State.ID())
	if err != nil {
		t.Fatal(err)
	}
	store = &counted{Store: objects.NewMemory(), asked: make(map[objects.Digest]int)}
	for i := range l.Events {
		if err := log.Append(t.Context(), &l.Events[i], l.Payloads[i]); err != nil {
			t.Fatal(err)
		}
		if b, ok := l.Events[i].Body.(*events.LLMStream); ok {
			for _, ref := range b.Objects {
				data, _ := l.Objects.Bytes(ref.Digest)
				if _, err := objects.Put(t.Context(), store, ref.MediaType, data); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return l, log, store, original, sent
}

// counted counts what is asked for, and can lack an object.
type counted struct {
	objects.Store
	asked   map[objects.Digest]int
	missing objects.Digest
}

func (c *counted) Get(ctx context.Context, d objects.Digest) ([]byte, error) {
	c.asked[d]++
	if d == c.missing {
		return nil, objects.ErrNotFound
	}
	return c.Store.Get(ctx, d)
}

func requests(t *testing.T, l *foldtest.Log, log eventlog.Log, store objects.Store) []replay.Request {
	t.Helper()
	var out []replay.Request
	for r, err := range replay.Requests(t.Context(), l.State.ID(), log, store) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func TestRequests(t *testing.T) {
	l, log, store, original, sent := session(t)
	var purposes []events.Purpose
	var reused []bool
	rs := requests(t, l, log, store)
	for i, r := range rs {
		if r.Err != nil || r.Body.Digest() != r.Stream.Body {
			t.Errorf("request %d: %v, %+v", r.N, r.Err, r.Body.Digest())
		}
		if e := l.Events[r.Seq-1]; r.N != i+1 || r.Time != e.Time || e.Type() != events.TypeLLMStream {
			t.Errorf("request %d is %+v", i+1, r)
		}
		purposes, reused = append(purposes, r.Purpose), append(reused, r.Body.Reused() > 0)
	}
	if diff := cmp.Diff([]events.Purpose{events.PurposeLoop, events.PurposeLoop, events.PurposeTitle, events.PurposeLoop}, purposes); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]bool{false, true, false, true}, reused); diff != "" {
		t.Errorf("the loop's requests go on behind each other, whatever comes between: %s", diff)
	}
	if c := rs[2].Header.Config; c.MaxTokens != foldtest.AuxConfig().MaxTokens || rs[3].Header.Config.MaxTokens != 0 {
		t.Errorf("configurations %+v, %+v", c, rs[3].Header.Config)
	}
	if store.asked[original.Digest] != 0 || store.asked[sent.Digest] != 2 {
		t.Errorf("the image as it came was fetched %d times, the one that is shown %d times", store.asked[original.Digest], store.asked[sent.Digest])
	}
}

// TestMissingObject: what cannot be rebuilt says why, and ends nothing.
func TestMissingObject(t *testing.T) {
	l, log, store, _, sent := session(t)
	store.missing = sent.Digest
	rs := requests(t, l, log, store)
	if len(rs) != 4 {
		t.Fatalf("%d requests", len(rs))
	}
	for _, r := range rs {
		if !errors.Is(r.Err, objects.ErrNotFound) {
			t.Errorf("request %d: %v", r.N, r.Err)
		}
	}
}

// liar is a builder that asks for an object that it was given.
type liar struct{ codec.Builder }

func (liar) Build(*fold.Request, objects.Source) (codec.Body, error) {
	return codec.Body{}, &codec.MissingObjectError{Ref: objects.Ref{Digest: objects.Sum([]byte("x")), Bytes: 1, MediaType: events.TextMediaType}}
}

func TestBuildAsksOnce(t *testing.T) {
	store := &counted{Store: objects.NewMemory(), asked: make(map[objects.Digest]int)}
	ref, err := objects.Put(t.Context(), store, events.TextMediaType, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = replay.Build(t.Context(), liar{}, new(fold.Request), store, nil)
	if !errors.Is(err, codec.ErrMissingObject) || store.asked[ref.Digest] != 1 {
		t.Errorf("%v, asked for %d times", err, store.asked[ref.Digest])
	}
}
