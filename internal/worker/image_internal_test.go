package worker

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// grey returns a PNG of one colour.
func grey(t *testing.T, width, height int, shade uint8) []byte {
	t.Helper()
	m := image.NewGray(image.Rect(0, 0, width, height))
	for i := range m.Pix {
		m.Pix[i] = shade
	}
	m.SetGray(0, 0, color.Gray{Y: ^shade})
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// block returns the block of a picture with these dimensions.
func block(data []byte, width, height int64) events.Block {
	return events.Block{
		Type: events.BlockImage, Width: width, Height: height,
		Object: objects.Ref{Digest: objects.Sum(data), Bytes: int64(len(data)), MediaType: "image/png"},
	}
}

// show sends a prompt with a picture of 4x3 pixels.
func (k *talk) show(text string, data []byte) {
	k.tell(events.Input{
		Kind: events.InputPrompt, Open: true, Content: []events.Block{events.Text(text), block(data, 4, 3)}, Attachments: [][]byte{data},
	})
}

// images returns what the log says of how images are shown.
func (k *talk) images() (out []events.ImageShown) {
	list, _ := k.all()
	for i := range list {
		if b, ok := list[i].Body.(*events.RequestImages); ok {
			out = append(out, b.Images...)
		}
	}
	return out
}

// seeing is a rig whose models see: deepseek-chat in the body, "filed" as files, "blind" not.
func seeing(t *testing.T, script simulator.Script) *rig {
	r := newRig(t, script)
	r.route(provider.KindDeepSeek,
		provider.Model{Name: "deepseek-chat", Images: true}, provider.Model{Name: "filed", Images: true, Files: true}, provider.Model{Name: "blind"},
		provider.Model{Name: "small", Images: true, MaxImagePixels: 6},
	)
	return r
}

func TestImageInline(t *testing.T) {
	k := seeing(t, chatty()).talk()
	data := grey(t, 4, 3, 7)
	k.show("what is it?", data)
	k.show("and again?", data)
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt what is it?<image>", "header initial high", "images 1 inline", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt and again?<image>", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	kept, err := objects.Get(t.Context(), k.store, block(data, 4, 3).Object)
	if err != nil || !bytes.Equal(kept, data) {
		t.Errorf("kept %d bytes: %v", len(kept), err)
	}
	if sent := k.sim.Requests(); strings.Count(string(sent[1].Body), "data:image/png;base64,") != 2 {
		t.Errorf("the second request is %s", sent[1].Body)
	}
}

// TestImageModels changes how an image is shown with the model, and only then.
func TestImageModels(t *testing.T) {
	k := seeing(t, chatty()).talk()
	k.show("look", grey(t, 4, 3, 7))
	for _, model := range []string{"blind", "filed", "filed", "deepseek-chat", "small", "blind"} {
		k.configure(events.Options{Model: model})
		k.prompt("on " + model)
	}
	k.rest()
	var got []string
	for _, s := range k.images() {
		got = append(got, string(s.As))
		if len(got) == 5 && (s.Width*s.Height > 6 || s.Width == 0) {
			t.Errorf("the small model gets %dx%d pixels", s.Width, s.Height)
		}
	}
	if diff := cmp.Diff([]string{"inline", "text", "file", "inline", "inline", "text"}, got); diff != "" {
		t.Error(diff)
	}
	_, s := k.all()
	if shown, _ := s.Images().Shown(block(grey(t, 4, 3, 7), 4, 3).Object.Digest); !strings.Contains(shown.Label, "text only") {
		t.Errorf("the placeholder is %q", shown.Label)
	}
}

// TestImageUpload puts an image into the body when the provider does not take the file, and uploads it again when it is
// about to be forgotten.
func TestImageUpload(t *testing.T) {
	script := chatty()
	script.Uploads = []simulator.UploadRule{{When: simulator.UploadCondition{Nth: 1}, Failure: simulator.Failure{Kind: simulator.FailHTTP, Status: 500}}}
	r := seeing(t, script)
	r.cfg.Defaults.Model = "filed"
	now := time.Now()
	r.cfg.Now = func() time.Time { return now }
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.show("two", grey(t, 4, 3, 9))
	k.rest()
	now = now.Add(6 * 24 * time.Hour)
	k.prompt("three")
	k.rest()
	now = now.Add(24*time.Hour - fileMargin/2)
	k.prompt("four")
	k.rest()
	var got []string
	ids := make(map[string]bool)
	for _, s := range k.images() {
		got = append(got, string(s.As))
		ids[s.FileID] = true
	}
	if diff := cmp.Diff([]string{"inline", "file", "file"}, got); diff != "" || len(ids) != 3 {
		t.Errorf("%d ids: %s", len(ids), diff)
	}
}

// TestCancelUpload does not wait for an upload.
func TestCancelUpload(t *testing.T) {
	script := chatty()
	script.Uploads = []simulator.UploadRule{{Failure: simulator.Failure{Kind: simulator.FailHangBefore}}}
	r := seeing(t, script)
	r.cfg.Defaults.Model = "filed"
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.on(1, is[*events.RequestContext], func() { k.cancel(false) })
	k.rest()
	k.want("turn 1", "step 1", "prompt one<image>", "header initial high", "cancelled turn 1 keep false", "step end", "turn end aborted user")
}

// TestToolImages shows what a tool gives behind its text; what is no image becomes a text.
func TestToolImages(t *testing.T) {
	r := seeing(t, toolWork())
	data := grey(t, 5, 5, 1)
	r.use(&fake{name: "a", run: func(context.Context, string) tools.Result {
		return tools.Result{Output: []byte("two"), Images: []tools.Image{{Data: data, Name: "x.png"}, {Data: []byte("none")}}}
	}})
	k := r.talk()
	k.prompt("work")
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt work", "header initial high", "call loop 1", "answer tool-calls a()", "tool a", "result a", "step end",
		"step 2", "images 1 inline", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
	list, _ := k.all()
	for i := range list {
		b, ok := list[i].Body.(*events.ToolResult)
		if !ok {
			continue
		}
		content := b.Message.Content[0].Content
		if len(content) != 3 || content[1].Name != "x.png" || content[1].Width != 5 || !strings.HasPrefix(content[2].Text, "[an image of 4 bytes cannot be shown") {
			t.Errorf("content %+v", content)
		}
	}
}

// TestImageRefused drops an input whose attachment is not what it says; those behind it are used.
func TestImageRefused(t *testing.T) {
	k := seeing(t, chatty()).talk()
	data, text := grey(t, 4, 3, 7), []byte("no image")
	k.prompt("one")
	for _, b := range []events.Block{block(data, 3, 4), block(text, 4, 3)} {
		attached := data
		if b.Object.Bytes == int64(len(text)) {
			attached = text
		}
		k.tell(events.Input{Kind: events.InputPrompt, Content: []events.Block{b}, Attachments: [][]byte{attached}})
	}
	k.prompt("two")
	k.rest()
	k.want(
		"dropped prompt 2", "dropped prompt 3",
		"turn 1", "step 1", "prompt one", "header initial high", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt two", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestImageCompacted shows an image no more that a summary has taken away.
func TestImageCompacted(t *testing.T) {
	script := chatty()
	script.Rules = append([]simulator.Rule{{When: asksSummary(), Answer: notes}}, script.Rules...)
	r := seeing(t, script)
	k := r.talk()
	k.show("one "+strings.Repeat("and on ", 100), grey(t, 4, 3, 7))
	k.prompt("two " + strings.Repeat("and on ", 100))
	k.tell(events.Input{Kind: events.InputCompact})
	k.configure(events.Options{Model: "blind"})
	k.prompt("three")
	k.rest()
	if n := len(k.images()); n != 1 {
		t.Errorf("%d representations", n)
	}
	list, _ := k.all()
	if got := trace(list); got[len(got)-1] != "turn end completed" {
		t.Errorf("the session ends with %q", got[len(got)-1])
	}
}

// TestImageMissing ends the turn when an object is lost: it says which.
func TestImageMissing(t *testing.T) {
	r := seeing(t, chatty())
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.on(1, is[*events.RequestImages], func() { r.cfg.Objects = objects.NewMemory() })
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one<image>", "header initial high", "images 1 inline", "step end", "turn end error INVALID_REQUEST",
	)
}

// lost is a session whose one image is a file that the provider does not know any more: it has forgotten it, or another
// account asks.
func lost(t *testing.T, another bool) *talk {
	r := seeing(t, chatty())
	r.cfg.Defaults.Model = "filed"
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.rest()
	if !another {
		k.sim.DropFiles()
		return k
	}
	key, err := provider.NewSecret("of-another-account")
	if err != nil {
		t.Fatal(err)
	}
	adapter, err := provider.New(provider.KindDeepSeek, provider.Config{
		BaseURL: r.url, Transport: r.http, Key: key, Models: []provider.Model{{Name: "filed", Images: true, Files: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Routes.Set(provider.KindDeepSeek, adapter)
	return k
}

// TestImageFileLost puts an image into the body when the provider does not know its file, wherever the worker dies
// meanwhile, and leaves it there.
func TestImageFileLost(t *testing.T) {
	before := []string{
		"turn 1", "step 1", "prompt one<image>", "header initial high", "images 1 file", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt two", "call loop 1", "failed INVALID_REQUEST",
	}
	after := []string{
		"call loop 2", "answer stop Fine.", "step end", "turn end completed",
		"turn 3", "step 1", "prompt three", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
	}
	for name, tt := range map[string]struct {
		another bool
		die     func(events.Body) bool
		middle  []string
	}{
		"forgotten":                    {false, nil, []string{"images 1 inline"}},
		"another account":              {true, nil, []string{"images 1 inline"}},
		"dies behind the failure":      {false, is[*events.LLMFailed], []string{"claimed takeover", "header resume high", "images 1 inline"}},
		"dies when images are said":    {false, is[*events.RequestImages], []string{"images 1 inline", "claimed takeover", "header resume high"}},
		"another account, dies behind": {true, is[*events.RequestImages], []string{"images 1 inline", "claimed takeover", "header resume high"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := lost(t, tt.another)
			k.prompt("two")
			if tt.die != nil {
				k.crash(1, tt.die)
			}
			k.prompt("three")
			k.rest()
			k.want(append(append(append([]string(nil), before...), tt.middle...), after...)...)
		})
	}
}

// refusing refuses requests of deepseek-chat and filed that show images.
func refusing(images int) simulator.Script {
	script := chatty()
	refused := simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 400}}
	script.Rules = append([]simulator.Rule{
		{When: simulator.Condition{Model: "deepseek-chat", Images: &images}, Answer: refused},
		{When: simulator.Condition{Model: "filed", Images: &images}, Answer: refused},
	}, script.Rules...)
	return script
}

// TestImageNotTaken leaves out an image that the provider refuses also in the body, once, and says so to the model.
// Another model gets it.
func TestImageNotTaken(t *testing.T) {
	for model, first := range map[string][]string{
		"deepseek-chat": {"images 1 inline", "call loop 1", "failed INVALID_REQUEST", "images 1 text", "call loop 2"},
		"filed": {
			"images 1 file", "call loop 1", "failed INVALID_REQUEST", "images 1 inline", "call loop 2", "failed INVALID_REQUEST",
			"images 1 text", "call loop 3",
		},
	} {
		r := seeing(t, refusing(1))
		r.cfg.Defaults.Model = model
		k := r.talk()
		k.show("one", grey(t, 4, 3, 7))
		k.show("two", grey(t, 4, 3, 9))
		k.prompt("three")
		k.configure(events.Options{Model: "small"})
		k.prompt("four")
		k.rest()
		answered := []string{"answer stop Fine.", "step end", "turn end completed"}
		want := append([]string{"turn 1", "step 1", "prompt one<image>", "header initial high"}, first...)
		want = append(append(want, answered...), "turn 2", "step 1", "prompt two<image>")
		want = append(append(want, first...), answered...)
		want = append(append(want, "turn 3", "step 1", "prompt three", "call loop 1"), answered...)
		want = append(want, "configured", "turn 4", "step 1", "prompt four", "header change high", "images 2 inline", "call loop 1")
		k.want(append(want, answered...)...)
		if sent := string(k.sim.Requests()[len(k.sim.Requests())-2].Body); !strings.Contains(sent, "did not take it") {
			t.Errorf("%s: the model is not told: %s", model, sent)
		}
	}
}

// TestImageOtherFile puts a file into the body that the provider has forgotten, also when another image was there before.
func TestImageOtherFile(t *testing.T) {
	script := chatty()
	script.Uploads = []simulator.UploadRule{{When: simulator.UploadCondition{Nth: 2}, Failure: simulator.Failure{Kind: simulator.FailHTTP, Status: 500}}}
	r := seeing(t, script)
	r.cfg.Defaults.Model = "filed"
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.show("two", grey(t, 4, 3, 9))
	k.on(2, is[*events.RequestImages], k.sim.DropFiles)
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt one<image>", "header initial high", "images 1 file", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt two<image>", "images 1 inline", "call loop 1", "failed INVALID_REQUEST",
		"images 1 inline", "call loop 2", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestImageBusy leaves files alone when a request fails for another reason.
func TestImageBusy(t *testing.T) {
	r := seeing(t, chatty())
	r.cfg.Defaults.Model = "filed"
	k := r.talk()
	k.show("busy", grey(t, 4, 3, 7))
	k.rest()
	k.want(
		"turn 1", "step 1", "prompt busy<image>", "header initial high", "images 1 file", "call loop 1", "failed SERVER", "retry 1", "llm/retry-started",
		"call loop 2", "answer stop Fine.", "step end", "turn end completed",
	)
}

// TestImageRemediesOnce does nothing a second time in a step, even if another model gets the images as they were.
func TestImageRemediesOnce(t *testing.T) {
	for second, as := range map[string]string{"filed-2": "file", "deepseek-chat": "inline"} {
		r := newRig(t, failing(simulator.Failure{Kind: simulator.FailHTTP, Status: 400}, 99))
		r.route(provider.KindDeepSeek,
			provider.Model{Name: "filed", Images: true, Files: true}, provider.Model{Name: "filed-2", Images: true, Files: true},
			provider.Model{Name: "deepseek-chat", Images: true},
		)
		names := []string{"filed", "filed", "filed", second}
		g := &guard{
			name: "x",
			config: func(seed events.Config) (events.Config, error) {
				seed.Model, names = names[0], names[1:]
				return seed, nil
			},
			failure: func(attempt int64, _ events.Failure) (Advice, error) {
				return map[bool]Advice{true: AdviceRetry, false: AdviceStop}[attempt == 3], nil
			},
		}
		r.cfg.Extensions = Extensions{CallConfig: []CallConfig{g}, RequestError: []RequestError{g}}
		k := r.talk()
		k.show("one", grey(t, 4, 3, 7))
		k.rest()
		k.want(
			"turn 1", "step 1", "prompt one<image>", "header initial high", "images 1 file", "call loop 1", "failed INVALID_REQUEST",
			"images 1 inline", "call loop 2", "failed INVALID_REQUEST", "images 1 text", "call loop 3", "failed INVALID_REQUEST",
			"retry 3", "llm/retry-started", "header change high", "images 1 "+as, "call loop 4", "failed INVALID_REQUEST",
			"step end", "turn end error INVALID_REQUEST",
		)
	}
}

// TestImageInnocent leaves images alone that were answered before, and gives up when leaving out others does not help.
func TestImageInnocent(t *testing.T) {
	script := chatty()
	script.Rules = append([]simulator.Rule{
		{When: simulator.Condition{Contains: "bad"}, Answer: simulator.Answer{Failure: &simulator.Failure{Kind: simulator.FailHTTP, Status: 400}}},
	}, script.Rules...)
	r := seeing(t, script)
	r.cfg.Retry.Mode = provider.RetryAlways
	k := r.talk()
	k.show("one", grey(t, 4, 3, 7))
	k.show("bad", grey(t, 4, 3, 9))
	k.prompt("two")
	k.prompt("bad, too")
	k.rest()
	again := []string{
		"retry 2", "llm/retry-started", "call loop 3", "failed INVALID_REQUEST", "retry 3", "llm/retry-started", "call loop 4", "failed INVALID_REQUEST",
		"step end", "turn end error INVALID_REQUEST",
	}
	want := []string{
		"turn 1", "step 1", "prompt one<image>", "header initial high", "images 1 inline", "call loop 1", "answer stop Fine.", "step end", "turn end completed",
		"turn 2", "step 1", "prompt bad<image>", "images 1 inline", "call loop 1", "failed INVALID_REQUEST", "images 1 text",
		"call loop 2", "failed INVALID_REQUEST",
	}
	want = append(append(want, again...), "turn 3", "step 1", "prompt two")
	list, _ := k.all()
	got := trace(list)
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(strings.Join(got, "\n"), "images "); n != 3 {
		t.Errorf("images are shown otherwise: %q", got)
	}
}
