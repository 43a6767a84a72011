package simulator_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/provider/simulator"
	"github.com/refold-dev/refold/pkg/events"
)

const png = "\x89PNG\r\n\x1a\nrest of a picture"

// upload uploads a file.
func (r *rig) upload(a provider.Adapter, name, data string) (provider.FileID, events.Failure) {
	r.t.Helper()
	id, err := a.(provider.Uploader).Upload(r.t.Context(), provider.Upload{Name: name, MediaType: "image/png", Data: []byte(data)})
	if err != nil {
		return id, provider.FailureOf(err)
	}
	return id, events.Failure{}
}

func userParts(parts ...string) string {
	return `{"role":"user","content":[` + strings.Join(parts, ",") + `]}`
}

func textPart(text string) string { return `{"type":"text","text":"` + text + `"}` }
func filePart(id string) string   { return `{"type":"file","file_id":"` + id + `"}` }

func urlPart(url string) string { return `{"type":"image_url","image_url":{"url":"` + url + `"}}` }

func inlinePart(kind, data string) string {
	return urlPart("data:" + kind + ";base64," + base64.StdEncoding.EncodeToString([]byte(data)))
}

func TestFiles(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := newRig(t, simulator.Config{Now: func() time.Time { return now }, Record: true})
	first, failed := r.upload(r.adapter, "a.png", png)
	if failed.Code != "" || first != (provider.FileID{ID: "file-1", Expires: now.Add(7 * 24 * time.Hour)}) {
		t.Fatalf("%+v, %+v", first, failed)
	}
	second, _ := r.upload(r.adapter, "b.txt", "no picture")
	want := []simulator.File{
		{ID: "file-1", Name: "a.png", MediaType: "image/png", Purpose: "user_data", Data: []byte(png), Created: now, Expires: first.Expires},
		{ID: "file-2", Name: "b.txt", MediaType: "image/png", Purpose: "user_data", Data: []byte("no picture"), Created: now, Expires: first.Expires},
	}
	if diff := cmp.Diff(want, r.sim.Files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := len(r.sim.Requests()); n != 0 {
		t.Errorf("%d requests recorded, want none for uploads", n)
	}

	ask := func(part string) result { return r.ask(chat(userParts(textPart("see "), part, textPart("this")))) }
	good := ask(filePart(first.ID))
	if good.finish != events.FinishStop || !strings.Contains(good.text, "see this") {
		t.Errorf("%+v", good)
	}
	if inline := ask(inlinePart("image/png", png)); inline.usage.InputTokens+inline.usage.CacheReadTokens != good.usage.InputTokens+good.usage.CacheReadTokens {
		t.Errorf("the image costs %+v inline and %+v as a file", inline.usage, good.usage)
	}
	refused := func(what, part string) {
		t.Helper()
		if got := ask(part); got.failure.Code != events.FailureInvalid || got.failure.Status != http.StatusBadRequest {
			t.Errorf("%s: %+v", what, got)
		}
	}
	refused("an unknown file", filePart("file-3"))
	refused("a file that is no image", filePart(second.ID))
	got := r.askAs(t.Context(), r.client("another"), "", chat(userParts(filePart(first.ID))))
	if got.failure.Code != events.FailureInvalid {
		t.Errorf("somebody else's file: %+v", got)
	}
	now = first.Expires.Add(-time.Second)
	if got := ask(filePart(first.ID)); got.failure.Code != "" {
		t.Errorf("before it expires: %+v", got)
	}
	now = first.Expires
	refused("an expired file", filePart(first.ID))

	third, _ := r.upload(r.adapter, "a.png", png)
	r.sim.DropFiles()
	refused("a dropped file", filePart(third.ID))
	if again, failed := r.upload(r.adapter, "a.png", png); again.ID != "file-4" || failed.Code != "" || len(r.sim.Files()) != 1 {
		t.Errorf("%+v, %+v", again, failed)
	}
}

func TestUploadRules(t *testing.T) {
	script, err := simulator.ParseScript([]byte(`{"rules":[],"uploads":[
	 {"when":{"name":"busy","times":2},"failure":{"kind":"http","status":429,"retryAfter":"3"}},
	 {"when":{"name":"reset"},"failure":{"kind":"reset-before"}},
	 {"when":{"name":"odd","nth":2},"failure":{"kind":"malformed"}},
	 {"when":{"name":"slow"},"failure":{"kind":"hang-before","hangMs":1}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := script.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if script, err = simulator.ParseScript(b); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, simulator.Config{Script: script})
	var got []string
	for _, name := range []string{"busy", "busy", "busy", "reset", "odd", "odd", "odd", "slow", "other"} {
		id, failed := r.upload(r.adapter, name, png)
		got = append(got, fmt.Sprintf("%s %s%s %d", name, id.ID, failed.Code, failed.RetryAfterMs))
	}
	want := []string{
		"busy RATE_LIMIT 3000", "busy RATE_LIMIT 3000", "busy file-1 0", "reset TRANSPORT 0", "odd file-2 0", "odd MALFORMED_RESPONSE 0",
		"odd file-3 0", "slow file-4 0", "other file-5 0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestUploadForms: what a vendor would refuse is refused.
func TestUploadForms(t *testing.T) {
	r := newRig(t, simulator.Config{Key: "sk-right"})
	field := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	purpose, file := field("purpose", "user_data"), field(`file"; filename="x`, "data")
	anchor := field("expires_after[anchor]", "created_at")
	post := func(key, kind, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/files", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	defer http.DefaultClient.CloseIdleConnections()
	const form, end = "multipart/form-data; boundary=b", "--b--\r\n"
	tests := []struct {
		name, key, kind, body string
		want                  int
	}{
		{"for ever", "sk-right", form, purpose + file + end, 200},
		{"for an hour", "sk-right", form, purpose + anchor + field("expires_after[seconds]", "3600") + file + end, 200},
		{"another key", "sk-wrong", form, purpose + file + end, 401},
		{"no form", "sk-right", "application/json", "{}", 400},
		{"no end", "sk-right", form, purpose + file, 400},
		{"no purpose", "sk-right", form, file + end, 400},
		{"another purpose", "sk-right", form, field("purpose", "batch") + file + end, 400},
		{"no file", "sk-right", form, purpose + end, 400},
		{"an empty file", "sk-right", form, purpose + field(`file"; filename="x`, "") + end, 400},
		{"a file without a name", "sk-right", form, purpose + field("file", "data") + end, 400},
		{"no anchor", "sk-right", form, purpose + field("expires_after[seconds]", "3600") + file + end, 400},
		{"no seconds", "sk-right", form, purpose + anchor + file + end, 400},
		{"too few seconds", "sk-right", form, purpose + anchor + field("expires_after[seconds]", "3599") + file + end, 400},
		{"an unknown field", "sk-right", form, purpose + field("ttl", "1") + file + end, 400},
	}
	for _, tt := range tests {
		if got, body := post(tt.key, tt.kind, tt.body); got != tt.want || got == 200 && !strings.Contains(body, `"id":"file-`) {
			t.Errorf("%s: %d, %s", tt.name, got, body)
		}
	}
	files := r.sim.Files()
	if len(files) != 2 || !files[0].Expires.IsZero() || files[1].Expires.Sub(files[1].Created) != time.Hour {
		t.Errorf("%+v", files)
	}
}

func TestImageParts(t *testing.T) {
	r := newRig(t, simulator.Config{Script: simulator.Script{Models: []simulator.Model{{Name: "blind", NoImages: true}}}})
	inline := inlinePart("image/png", png)
	good := []string{
		chat(userParts(inline)), chat(userParts(inlinePart("image/gif", "GIF89a...."), textPart("x"), inlinePart("image/jpeg", "\xff\xd8\xff..."))),
		chat(userParts(inlinePart("image/webp", "RIFF\x00\x00\x00\x00WEBPVP8 ...."))),
		chat(user("a"), calling("x"), toolResult("x", "r"), userParts(textPart("Attached image(s) from tool result:"), inline)),
	}
	for _, body := range good {
		if got := r.ask(body); got.failure.Code != "" {
			t.Errorf("%s: %+v", body, got.failure)
		}
	}
	bad := []string{
		chat(userParts(inlinePart("image/jpeg", png))), chat(userParts(inlinePart("image/png", "no picture"))), chat(userParts(urlPart("https://host/a.png"))),
		chat(userParts(urlPart("data:image/png;base64,iVBORw0KGgo=x"))), chat(userParts(urlPart("data:image/png," + png[1:4]))),
		chat(userParts(`{"type":"image_url"}`)), chat(userParts(`{"type":"file"}`)), chat(userParts(filePart(""))), chat(userParts(`{"type":"text"}`)),
		chat(userParts(`{"type":"input_audio","text":"x"}`)), chat(userParts(`{"text":"x"}`)), chat(userParts(`"text"`)),
		chat(`{"role":"system","content":[`+inline+`]}`, user("a")), chat(user("a"), `{"role":"assistant","content":[`+inline+`]}`),
		chat(user("a"), calling("x"), `{"role":"tool","tool_call_id":"x","content":[`+inline+`]}`),
		`{"model":"blind","messages":[` + userParts(inline) + `],"stream":true}`,
	}
	for _, body := range bad {
		if got := r.ask(body); got.failure.Code != events.FailureInvalid || got.failure.Status != http.StatusBadRequest {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := r.ask(`{"model":"blind","messages":[` + user("a") + `],"stream":true}`); got.failure.Code != "" {
		t.Errorf("%+v", got)
	}
	// An image is part of the prompt where it stands: another one there, and nothing behind it is cached.
	long := strings.Repeat("x", 2000)
	cached := func(picture string) int64 {
		return r.ask(chat(userParts(inlinePart("image/png", png+picture), textPart(long)))).usage.CacheReadTokens
	}
	cached("1")
	if same, other := cached("1"), cached("2"); same < 400 || other > 64 {
		t.Errorf("%d tokens cached of the same image, %d of another", same, other)
	}
}
