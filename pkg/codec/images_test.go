package codec_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
	"github.com/refold-dev/refold/pkg/objects"
)

const png = "image/png"

// picture returns an image block and makes its object.
func picture(l *foldtest.Log, data string) events.Block {
	return events.Block{Type: events.BlockImage, Object: l.Object([]byte(data), png), Width: 4, Height: 3}
}

func inline(image events.Block, label string, object objects.Ref) events.ImageShown {
	return events.ImageShown{Image: image.Object.Digest, As: events.ImageInline, Label: label, Object: object}
}

func file(image events.Block, label, id string) events.ImageShown {
	return events.ImageShown{Image: image.Object.Digest, As: events.ImageFile, Label: label, FileID: id}
}

func placeholder(image events.Block, label string) events.ImageShown {
	return events.ImageShown{Image: image.Object.Digest, As: events.ImageText, Label: label}
}

func show(l *foldtest.Log, images ...events.ImageShown) {
	l.Append(&events.RequestImages{Images: images})
}

// request returns the request that the log calls for.
func request(t failer, l *foldtest.Log) *fold.Request {
	r, err := l.State.Request()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &r
}

// snapshot appends an answer with n calls and a result for each.
func snapshot(l *foldtest.Log, results ...[]events.Block) {
	var calls [][]events.Chunk
	for i := range results {
		calls = append(calls, foldtest.CallBlock(int64(i), fmt.Sprintf("call_g%d", i+1), "snapshot", "{}"))
	}
	l.Reply(events.FinishToolCalls, calls...)
	for _, r := range results {
		l.ToolCall()
		l.ToolResult(r...)
	}
}

// TestRecordedImages writes the log of a recorded session of the reference system by hand and compares each body with
// the one that the reference system sent: images as files, in a tool's result too, for a model that takes none, and with
// their bytes.
func TestRecordedImages(t *testing.T) {
	var want []string
	for i := 1; i <= 5; i++ {
		b, err := os.ReadFile(fmt.Sprintf("testdata/images-%d.json", i))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, string(b))
	}
	var sent [][]byte // the bytes that the last request shows
	for _, m := range regexp.MustCompile("data:image/png;base64,([^\"]*)").FindAllStringSubmatch(want[4], -1) {
		b, err := base64.StdEncoding.DecodeString(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, b)
	}
	l := foldtest.New()
	// The first image was made smaller for the request; the original's bytes show in no body. The second was sent as it came.
	big, shot := picture(l, "the original"), picture(l, string(sent[1]))
	const (
		bigLabel  = "\nImage sha256:8f40aab9160fd626c59a8f401c1dbc2e28f4dd5a71a00c57eefc683cd5cde245; request image 923x692px."
		shotLabel = "\nImage sha256:0d925c62facb748d054565d8a2748e727a027f25ff67c5645af91d123956d941; request image 40x30px."
		omitted   = "[image omitted because this model accepts text only; attachment sha256:"
	)
	header := events.Header{
		Config: events.Config{Provider: "deepseek", Model: "corpus-vision", MaxTokens: 256000, ReasoningEffort: "high"},
		System: "You are the corpus helper. Answer in one short line.",
		Tools:  []events.Tool{{Name: "snapshot", Description: "Takes a picture.", Parameters: `{"type":"object","properties":{}}`}},
	}
	whole, digests := newBuilder(t, codec.Options{}), newBuilder(t, codec.Options{DigestOnly: true})
	var reused []bool
	check := func() {
		t.Helper()
		r := request(t, l)
		body, digest := build(t, whole, r, l.Objects), build(t, digests, r, l.Objects)
		n := len(reused)
		if diff := cmp.Diff(want[n], string(body.Bytes())); diff != "" || body.Digest() != digest.Digest() {
			t.Errorf("request %d: %s", n+1, diff)
		}
		reused = append(reused, body.Reused() > 0)
	}
	turn := func(blocks ...events.Block) {
		l.TurnStart()
		l.StepStart()
		l.UserBlocks(blocks...)
		l.Header(header)
	}
	end := func(text string) {
		l.Reply(events.FinishStop, foldtest.TextBlock(0, text))
		l.StepEnd()
		l.TurnEnd(events.TurnCompleted)
	}
	l.Begin()
	turn(events.Text("What is this?"), big, events.Text("Short please."))
	show(l, file(big, bigLabel, "file-corpus-1"))
	check()
	end("see it.")
	turn(events.Text("take a snapshot"))
	check()
	snapshot(l, []events.Block{events.Text("shot:"), shot})
	l.StepEnd()
	l.StepStart()
	show(l, file(shot, shotLabel, "file-corpus-2"))
	check()
	end("saw both.")
	header.Config.Model = "corpus-flash"
	turn(events.Text("describe in text"))
	show(l, placeholder(big, omitted+"8f40aab9]"), placeholder(shot, omitted+"0d925c62]"))
	check()
	end("text only.")
	header.Config.Model, header.Tools = "corpus-vision", nil
	turn(events.Text("once more with inline images"))
	show(l, inline(big, bigLabel, l.Object(sent[0], png)), inline(shot, shotLabel, shot.Object))
	check()
	if !slices.Equal(reused, []bool{false, true, true, false, false}) {
		t.Errorf("prefixes reused: %v", reused)
	}
}

func TestImages(t *testing.T) {
	const (
		one, two = `{"type":"file","file_id":"f1"}`, `{"type":"file","file_id":"f\"2"}`
		attached = `{"type":"text","text":"Attached image(s) from tool result:"}`
		call     = `{"id":"call_g%d","type":"function","function":{"name":"snapshot","arguments":"{}"}}`
	)
	text := func(s string) string { return `{"type":"text","text":"` + s + `"}` }
	said := func(parts ...string) string { return `{"role":"user","content":[` + strings.Join(parts, ",") + `]}` }
	called := func(n int) string {
		var calls []string
		for i := range n {
			calls = append(calls, fmt.Sprintf(call, i+1))
		}
		return `{"role":"assistant","content":"","tool_calls":[` + strings.Join(calls, ",") + `]},`
	}
	tool := func(n int, s string) string {
		return fmt.Sprintf(`{"role":"tool","tool_call_id":"call_g%d","content":"%s"},`, n, s)
	}
	for name, c := range map[string]struct {
		write func(l *foldtest.Log, a, b events.Block)
		want  string // behind the first user message
	}{
		"an image alone": {
			func(l *foldtest.Log, a, _ events.Block) {
				l.UserBlocks(a)
				show(l, file(a, "", "f1"))
			}, said(one),
		},
		"empty texts are no parts": {
			func(l *foldtest.Log, a, b events.Block) {
				l.UserBlocks(events.Text(""), a, l.TextObject(""), b, events.Text("x"))
				show(l, file(a, "", "f1"), file(b, "two", "f\"2"))
			}, said(one, text("two"), two, text("x")),
		},
		"the bytes that are shown, not those that came": {
			func(l *foldtest.Log, a, _ events.Block) {
				l.UserBlocks(a)
				show(l, inline(a, "", l.Object([]byte{0xfb, 0xff, 0xfe, 0}, "image/webp")))
			}, said(`{"type":"image_url","image_url":{"url":"data:image/webp;base64,+//+AA=="}}`),
		},
		"a placeholder beside an image is a part": {
			func(l *foldtest.Log, a, b events.Block) {
				l.UserBlocks(events.Text("x"), a, b)
				show(l, placeholder(a, "(a)"), file(b, "", "f\"2"))
			}, said(text("x"), text("(a)"), two),
		},
		"placeholders join the text": {
			func(l *foldtest.Log, a, b events.Block) {
				l.UserBlocks(a, events.Text(low+"x"), b)
				show(l, placeholder(a, high), placeholder(b, "b"))
			}, `{"role":"user","content":"` + "\U0001F600" + `xb"}`,
		},
		"the same image twice": {
			func(l *foldtest.Log, a, _ events.Block) {
				l.UserBlocks(a, a)
				show(l, file(a, "", "f1"))
			}, said(one, one),
		},
		"images of results share one message behind the run": {
			func(l *foldtest.Log, a, b events.Block) {
				show(l, file(a, "A", "f1"), file(b, "", "f\"2"))
				snapshot(l, []events.Block{events.Text("x"), a, events.Text("y")}, nil, []events.Block{b, a})
			},
			called(3) + tool(1, "xAy") + tool(2, "(no output)") + tool(3, "A") + said(attached, one, two, one),
		},
		"an image without label is no output": {
			func(l *foldtest.Log, a, _ events.Block) {
				show(l, file(a, "", "f1"))
				snapshot(l, []events.Block{a})
			}, called(1) + tool(1, "(no output)") + said(attached, one),
		},
		"placeholders in results": {
			func(l *foldtest.Log, a, _ events.Block) {
				show(l, placeholder(a, "(a)"))
				snapshot(l, []events.Block{a, events.Text("!")})
			}, called(1) + strings.TrimSuffix(tool(1, "(a)!"), ","),
		},
		"what the user says next comes behind them": {
			func(l *foldtest.Log, a, b events.Block) {
				show(l, file(a, "", "f1"), file(b, "", "f\"2"))
				snapshot(l, []events.Block{events.Text("x"), a})
				l.StepEnd()
				l.StepStart()
				l.UserBlocks(b)
			}, called(1) + tool(1, "x") + said(attached, one) + "," + said(two),
		},
		"of images that changed the last form counts": {
			func(l *foldtest.Log, a, b events.Block) {
				l.UserBlocks(a)
				show(l, file(a, "A", "f0"), placeholder(b, "b"))
				show(l, file(a, "", "f1"))
			}, said(one),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := bodyOf(t, events.Header{}, func(l *foldtest.Log) { c.write(l, picture(l, "a"), picture(l, "b")) })
			if want := head + `{"role":"user","content":"go"},` + c.want + tail + "}"; got != want {
				t.Errorf("body\n %s\nwant\n %s", got, want)
			}
		})
	}
}

// TestUnshownImage builds a request of which nothing says how an image is shown, and again once that is said.
func TestUnshownImage(t *testing.T) {
	for place, write := range map[string]func(l *foldtest.Log, image events.Block){
		"message": func(l *foldtest.Log, image events.Block) { l.UserBlocks(image) },
		"result": func(l *foldtest.Log, image events.Block) {
			snapshot(l, []events.Block{image})
			l.StepEnd()
			l.StepStart()
		},
	} {
		l := foldtest.New()
		l.Begin()
		l.TurnStart()
		l.StepStart()
		l.User("go")
		l.Header(foldtest.Header())
		b := newBuilder(t, codec.Options{})
		before := build(t, b, request(t, l), l.Objects)
		image := picture(l, "a")
		write(l, image)
		var unshown *codec.UnshownImageError
		if _, err := b.Build(request(t, l), l.Objects); !errors.Is(err, codec.ErrUnshownImage) || !errors.As(err, &unshown) || unshown.Image != image.Object {
			t.Errorf("%s: %v", place, err)
		}
		show(l, file(image, "", "f1"))
		body := build(t, b, request(t, l), l.Objects)
		if body.Reused() != before.Stable() || !strings.Contains(string(body.Bytes()), `"file_id":"f1"`) {
			t.Errorf("%s: %d bytes reused of %d: %s", place, body.Reused(), before.Stable(), body.Bytes())
		}
	}
}

// TestImageObjects shows which objects a body with images is built from.
func TestImageObjects(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	a, b, c, note := picture(l, "a"), picture(l, "b"), picture(l, "c"), l.TextObject("note")
	small := l.Object([]byte("small"), png)
	l.UserBlocks(note, a, b, c, a)
	header := foldtest.Header()
	header.System, header.SystemObject = "", l.Object([]byte("Be kind."), events.TextMediaType)
	l.Header(header)
	show(l, inline(a, "", small), file(b, "", "f"), placeholder(c, "c"))
	r := request(t, l)
	want := []objects.Ref{header.SystemObject, note.Object, small}
	if got := codec.Refs(r); !slices.Equal(got, want) {
		t.Errorf("objects %v, want %v", got, want)
	}
	if got := codec.Needed(r, l.State.NewObjects()); !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("needed %v, want %v", got, want)
	}
	few := new(objects.Set)
	for _, ref := range want {
		data, _ := l.Objects.Bytes(ref.Digest)
		if err := few.Add(ref, data); err != nil {
			t.Fatal(err)
		}
	}
	build(t, newBuilder(t, codec.Options{}), r, few)

	var missing *codec.MissingObjectError
	others := raw{header.SystemObject.Digest: []byte("Be kind."), note.Object.Digest: []byte("note")}
	if _, err := newBuilder(t, codec.Options{}).Build(r, others); !errors.As(err, &missing) || missing.Ref != small {
		t.Errorf("without the image: %v", err)
	}
	others[small.Digest] = []byte("smaller")
	if _, err := newBuilder(t, codec.Options{}).Build(r, others); !errors.Is(err, codec.ErrCorruptObject) {
		t.Errorf("with other bytes: %v", err)
	}
}

func sorted(refs []objects.Ref) []objects.Ref {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b objects.Ref) int { return strings.Compare(a.String(), b.String()) })
	return refs
}

// drawImages draws a log with images in messages and results, of which some are shown otherwise later on, and returns
// its requests.
func drawImages(t *rapid.T) (*foldtest.Log, []fold.Request) {
	var all []fold.Request
	l := foldtest.New()
	l.Body = func(r *fold.Request, src objects.Source) (string, events.BodyDigest) {
		all = append(all, *r)
		return foldtest.NoBody(r, src)
	}
	images := []events.Block{picture(l, "a"), picture(l, "b"), picture(l, strings.Repeat("c", 200))}
	label := rapid.OneOf(rapid.Just(""), eventstest.Text())
	draw := func(image events.Block) events.ImageShown {
		switch rapid.IntRange(0, 2).Draw(t, "form") {
		case 0:
			return inline(image, label.Draw(t, "label"), l.Object(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"), png))
		case 1:
			return file(image, label.Draw(t, "label"), eventstest.NonEmptyText().Draw(t, "file"))
		}
		return placeholder(image, eventstest.NonEmptyText().Draw(t, "placeholder"))
	}
	block := rapid.Custom(func(t *rapid.T) events.Block {
		switch rapid.IntRange(0, 2).Draw(t, "block") {
		case 0:
			return events.Text(label.Draw(t, "text"))
		case 1:
			return l.TextObject(label.Draw(t, "object"))
		}
		return rapid.SampledFrom(images).Draw(t, "image")
	})
	blocks := rapid.SliceOfN(block, 0, 4)
	l.Begin()
	for range rapid.IntRange(1, 2).Draw(t, "turns") {
		l.TurnStart()
		for i := range rapid.IntRange(1, 3).Draw(t, "steps") {
			l.StepStart()
			if i == 0 || rapid.Bool().Draw(t, "steer") {
				l.UserBlocks(blocks.Draw(t, "content")...)
			}
			l.Header(foldtest.Header())
			for _, image := range images {
				_, shown := l.State.Images().Shown(image.Object.Digest)
				if next := draw(image); !shown || rapid.IntRange(0, 5).Draw(t, "change") == 0 {
					if old, _ := l.State.Images().Shown(image.Object.Digest); old != next {
						show(l, next)
					}
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "no tools") == 0 {
				l.Reply(events.FinishStop, foldtest.TextBlock(0, "yes"))
			} else {
				snapshot(l, rapid.SliceOfN(blocks, 1, 3).Draw(t, "results")...)
			}
			l.StepEnd()
		}
		l.TurnEnd(events.TurnCompleted)
	}
	return l, all
}

// TestResultBehindImages builds a request in the middle of a run of results, which no log calls for: the images that the
// prefix ends in have to move behind the next result.
func TestResultBehindImages(t *testing.T) {
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.User("go")
	l.Header(foldtest.Header())
	image := picture(l, "a")
	show(l, file(image, "A", "f1"))
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c1", "read", "{}"), foldtest.CallBlock(1, "c2", "read", "{}"))
	b := newBuilder(t, codec.Options{})
	var before codec.Body
	check := func(reuse bool) {
		t.Helper()
		r := request(t, l)
		body := build(t, b, r, l.Objects)
		if want := dumbBody(r, l.Objects); string(body.Bytes()) != string(want) || reuse != (body.Reused() == before.Stable()) {
			t.Errorf("%d bytes reused of %d; body\n %s\nwant\n %s", body.Reused(), before.Stable(), body.Bytes(), want)
		}
		before = body
	}
	check(true)
	l.ToolCall()
	l.ToolResult(image)
	check(true)
	check(true) // the same request again, as for a second attempt
	l.ToolCall()
	l.ToolResult(image)
	check(false)
	l.StepEnd()
	l.StepStart()
	l.User("and now?")
	check(true)
}
