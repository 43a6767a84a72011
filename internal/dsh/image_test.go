package dsh_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"io/fs"
	"maps"
	"mime/multipart"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/refold-dev/refold/internal/dsh"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/objects"
)

// picture returns a PNG of one colour.
func picture(t testing.TB, width, height int, shade uint8) []byte {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = shade
	}
	img.SetGray(0, 0, color.Gray{Y: ^shade})
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// shot is an image of a log: as it came, and as it was sent.
type shot struct {
	came, sent    []byte
	width, height int // as sent
}

func (s *shot) digest() string { return objects.Sum(s.came).String() }

func (s *shot) block() string {
	cfg, err := png.DecodeConfig(bytes.NewReader(s.came))
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"type":"image","attachment":{"attachmentId":"sha256:%s","mediaType":"image/png","width":%d,"height":%d,"bytes":%d,"name":"x.png"}}`,
		s.digest(), cfg.Width, cfg.Height, len(s.came))
}

func (s *shot) label() string {
	return fmt.Sprintf(`\nImage sha256:%s; request image %dx%dpx.`, s.digest(), s.width, s.height)
}

// The parts of a request that show it.

func (s *shot) file(id string) string {
	return fmt.Sprintf(`{"type":"text","text":"%s"},{"type":"file","file_id":%q}`, s.label(), id)
}

func (s *shot) inline() string {
	return fmt.Sprintf(`{"type":"text","text":"%s"},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`,
		s.label(), base64.StdEncoding.EncodeToString(s.sent))
}

func (s *shot) placeholder() string {
	return fmt.Sprintf(`[image omitted because this model accepts text only; attachment sha256:%s]`, s.digest()[:8])
}

// uploads is a directory of recorded uploads.
type uploads struct {
	t   testing.TB
	dir fstest.MapFS
	n   int
}

func newUploads(t testing.TB) *uploads { return &uploads{t: t, dir: fstest.MapFS{}} }

func (u *uploads) add(s *shot, answer string) {
	u.t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	field := func(name, value string) {
		if err := w.WriteField(name, value); err != nil {
			u.t.Fatal(err)
		}
	}
	field("purpose", "user_data")
	part, err := w.CreateFormFile("file", "dsh-"+s.digest()[:16]+"-00000000.png")
	if err == nil {
		_, err = part.Write(s.sent)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		u.t.Fatal(err)
	}
	u.n++
	u.dir[fmt.Sprintf("%03d.request.bin", u.n)] = &fstest.MapFile{Data: b.Bytes()}
	u.dir[fmt.Sprintf("%03d.response.json", u.n)] = &fstest.MapFile{Data: []byte(answer)}
}

func (u *uploads) ok(s *shot, id string) {
	u.add(s, fmt.Sprintf(`{"id":%q,"object":"file","expires_at":1796651673}`, id))
}

func (u *uploads) fails(s *shot) { u.add(s, `{"error":{"message":"down"}}`) }

// userImages adds a user message with a text and images.
func (l *record) userImages(text string, shots ...*shot) {
	blocks := []string{blockText(text)}
	for _, s := range shots {
		blocks = append(blocks, s.block())
	}
	l.row("user/message", fmt.Sprintf(`{"content":[%s],"source":{"kind":"user"},"role":"user","id":"u%d"}`, strings.Join(blocks, ","), l.seq), onSurface)
}

func wireParts(parts ...string) string {
	return fmt.Sprintf(`{"role":"user","content":[%s]}`, strings.Join(parts, ","))
}

func wireText(text string) string { return fmt.Sprintf(`{"type":"text","text":%q}`, text) }

// gallery is a log of two processes with images for two models, and the bodies of its requests.
type gallery struct {
	log        *record
	large, low *shot
	uploads    *uploads
	want       []string
}

func newGallery(t *testing.T) *gallery {
	t.Helper()
	g := &gallery{
		log:     newRecord(),
		large:   &shot{came: picture(t, 1000, 1000, 7), sent: picture(t, 800, 800, 7), width: 800, height: 800},
		low:     &shot{came: picture(t, 30, 20, 9), sent: picture(t, 30, 20, 9), width: 30, height: 20},
		uploads: newUploads(t),
	}
	l := g.log
	step := func(text, model, reason string, shots ...*shot) {
		l.turnStart()
		l.stepStart()
		l.userImages(text, shots...)
		if reason != "" {
			l.header(reason, model)
		}
		l.reply("ok")
		l.stepEnd()
		l.turnEnd(`{"kind":"completed"}`)
	}
	step("one", "m", "initial", g.large)
	step("two", "m", "", g.low, g.large)
	step("three", "plain", "change")
	l.row("session/end-seed", "{}", "")
	step("four", "m", "resume")
	g.uploads.ok(g.large, "f1")
	g.uploads.ok(g.low, "f2")
	g.uploads.ok(g.large, "f3")
	g.uploads.fails(g.low)
	texts := []string{
		wireUser("one" + g.large.placeholder()), wireSaid("ok"),
		wireUser("two" + g.low.placeholder() + g.large.placeholder()), wireSaid("ok"), wireUser("three"),
	}
	files := []string{
		wireParts(wireText("one"), g.large.file("f1")), wireSaid("ok"),
		wireParts(wireText("two"), g.low.file("f2"), g.large.file("f1")),
	}
	inline := []string{
		wireParts(wireText("one"), g.large.inline()), wireSaid("ok"),
		wireParts(wireText("two"), g.low.inline(), g.large.inline()), wireSaid("ok"), wireUser("three"), wireSaid("ok"), wireUser("four"),
	}
	g.want = []string{body("m", files[0]), body("m", files...), body("plain", texts...), body("m", inline...)}
	return g
}

// check compares the requests of a translation, and finds that it folds and that its objects are there.
func check(t *testing.T, s *dsh.Session, want []string) {
	t.Helper()
	if len(s.Requests) != len(want) {
		t.Fatalf("%d requests, want %d", len(s.Requests), len(want))
	}
	for i := range want {
		if got := string(s.Requests[i].Bytes()); got != want[i] {
			t.Errorf("request %d:\n got %.3000s\nwant %.3000s", i+1, got, want[i])
		}
	}
	have := make(map[objects.Ref]bool)
	for _, o := range s.Objects {
		if err := objects.Verify(o.Ref, o.Data); err != nil {
			t.Error(err)
		}
		have[o.Ref] = true
	}
	state := fold.New(s.ID)
	for i := range s.Events {
		if b, ok := s.Events[i].Body.(*events.LLMStream); ok {
			for _, ref := range b.Objects {
				if !have[ref] {
					t.Errorf("event %d names %s, which is not there", i+1, ref.Digest)
				}
			}
		}
		if err := state.Apply(&s.Events[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImages rebuilds requests with images from a log and the recorded uploads: as files, as placeholders for a model
// that takes text only, and inline from the upload that failed on.
func TestImages(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	s, err := (&dsh.Config{Uploads: g.uploads.dir}).Translate(strings.NewReader(g.log.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, g.want)
	if len(s.Missing) > 0 || s.Rescaled > 0 {
		t.Errorf("missing %v, made smaller %d", s.Missing, s.Rescaled)
	}
	// With the images as they came the blocks name those.
	came := fstest.MapFS{g.large.digest() + ".png": &fstest.MapFile{Data: g.large.came}, "README": &fstest.MapFile{Data: []byte("x")}}
	s, err = (&dsh.Config{Uploads: g.uploads.dir, Attachments: came}).Translate(strings.NewReader(g.log.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, g.want)
	first := s.Objects[0]
	if first.Ref.Digest.String() != g.large.digest() {
		t.Errorf("the first object is %s", first.Ref.Digest)
	}
}

// TestImagesInline rebuilds requests whose images went inline, from the images alone.
func TestImagesInline(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	inline := func(large *shot) []string {
		one, two := wireParts(wireText("one"), large.inline()), wireParts(wireText("two"), g.low.inline(), large.inline())
		return []string{
			body("m", one), body("m", one, wireSaid("ok"), two), g.want[2],
			body("m", one, wireSaid("ok"), two, wireSaid("ok"), wireUser("three"), wireSaid("ok"), wireUser("four")),
		}
	}
	dir := fstest.MapFS{
		g.large.digest() + ".sent.png": &fstest.MapFile{Data: g.large.sent},
		g.low.digest() + ".png":        &fstest.MapFile{Data: g.low.came},
	}
	s, err := (&dsh.Config{Attachments: dir, TextModels: []string{"plain"}}).Translate(strings.NewReader(g.log.text()))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s, inline(g.large))

	// A large image of which nobody has what was sent is made smaller only when that is wanted.
	dir = fstest.MapFS{
		g.large.digest(): &fstest.MapFile{Data: g.large.came},
		g.low.digest():   &fstest.MapFile{Data: g.low.came},
	}
	cfg := dsh.Config{Attachments: dir, TextModels: []string{"plain"}}
	if _, err := cfg.Translate(strings.NewReader(g.log.text())); !errors.Is(err, dsh.ErrImages) || !strings.Contains(err.Error(), "--rescale") {
		t.Errorf("error %v", err)
	}
	cfg.Rescale = true
	if s, err = cfg.Translate(strings.NewReader(g.log.text())); err != nil {
		t.Fatal(err)
	}
	if s.Rescaled != 1 || !strings.Contains(string(s.Requests[0].Bytes()), "request image 800x800px.") {
		t.Errorf("%d images made smaller: %.300s", s.Rescaled, s.Requests[0].Bytes())
	}
	// No model takes images: nobody needs their bytes, and no session can be made.
	s, err = (&dsh.Config{TextModels: []string{"m", "plain"}}).Translate(strings.NewReader(g.log.text()))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Missing) != 2 || !strings.Contains(string(s.Requests[0].Bytes()), g.large.placeholder()) {
		t.Errorf("missing %v, %s", s.Missing, s.Requests[0].Bytes())
	}
}

// TestImagesRefused refuses what does not tell how the images were shown, and says why.
func TestImagesRefused(t *testing.T) {
	t.Parallel()
	g := newGallery(t)
	text := g.log.text()
	change := func(edit func(fstest.MapFS)) fs.FS {
		dir := fstest.MapFS{}
		maps.Copy(dir, g.uploads.dir)
		edit(dir)
		return dir
	}
	both := newRecord() // two models of which each may have uploaded the image
	both.turnStart()
	for i, model := range []string{"m", "n"} {
		both.stepStart()
		both.userImages("x", g.low)
		both.header([]string{"initial", "change"}[i], model)
		both.reply("ok")
		both.stepEnd()
	}
	one := newUploads(t)
	one.ok(g.low, "f1")
	cases := map[string]struct {
		log  string
		cfg  dsh.Config
		says string
	}{
		"nothing":     {text, dsh.Config{}, "nobody has the bytes of image sha256:" + g.large.digest()},
		"no uploads":  {text, dsh.Config{Uploads: fstest.MapFS{}, ImageModels: []string{"m"}}, "no upload is left"},
		"one too few": {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { delete(d, "001.request.bin") })}, "do not fit"},
		"one too many": {text, dsh.Config{Uploads: change(func(d fstest.MapFS) {
			d["009.request.bin"], d["009.response.json"] = d["001.request.bin"], d["001.response.json"]
		})}, "accounts for upload 009"},
		"no answer":         {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { delete(d, "002.response.json") })}, "002"},
		"answer no JSON":    {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { d["002.response.json"] = &fstest.MapFile{Data: []byte("<html>")} })}, "upload 002: its answer"},
		"no form":           {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { d["003.request.bin"] = &fstest.MapFile{Data: []byte("x")} })}, "upload 003"},
		"cut form":          {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { d["003.request.bin"] = &fstest.MapFile{Data: d["003.request.bin"].Data[:400]} })}, "upload 003"},
		"a pipe for a form": {text, dsh.Config{Uploads: change(func(d fstest.MapFS) { d["003.request.bin"] = &fstest.MapFile{Mode: fs.ModeNamedPipe} })}, "no regular file"},
		"a pipe for an image": {
			text, dsh.Config{Attachments: fstest.MapFS{g.low.digest() + ".png": &fstest.MapFile{Mode: fs.ModeNamedPipe}}}, "no regular file",
		},
		"either model": {both.text(), dsh.Config{Uploads: one.dir}, "--image-model"},
		"wrong bytes":  {text, dsh.Config{Attachments: fstest.MapFS{g.low.digest() + ".png": &fstest.MapFile{Data: g.large.came}}}, "call the file " + g.low.digest() + ".sent"},
		"no image":     {text, dsh.Config{Attachments: fstest.MapFS{g.low.digest() + ".sent": &fstest.MapFile{Data: []byte("x")}}}, "unknown media type"},
		"two files":    {text, dsh.Config{Attachments: fstest.MapFS{g.low.digest(): &fstest.MapFile{Data: g.low.came}, g.low.digest() + ".png": &fstest.MapFile{Data: g.low.came}}}, "two files"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := c.cfg.Translate(strings.NewReader(c.log))
			if !errors.Is(err, dsh.ErrImages) || s != nil || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("session %v, error %v; want it to say %q", s, err, c.says)
			}
		})
	}
	t.Run("read once", func(t *testing.T) {
		t.Parallel()
		_, err := (&dsh.Config{Uploads: g.uploads.dir}).Translate(io.MultiReader(strings.NewReader(text)))
		if !errors.Is(err, dsh.ErrImages) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("either model, told which", func(t *testing.T) {
		t.Parallel()
		s, err := (&dsh.Config{Uploads: one.dir, ImageModels: []string{"n"}}).Translate(strings.NewReader(both.text()))
		if err != nil {
			t.Fatal(err)
		}
		low := wireUser("x" + g.low.placeholder())
		check(t, s, []string{body("m", low), body("n", wireParts(wireText("x"), g.low.file("f1")), wireSaid("ok"), wireParts(wireText("x"), g.low.file("f1")))})
	})
}
