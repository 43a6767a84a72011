package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
)

var testUpload = Upload{Name: "a.png", MediaType: "image/png", Data: []byte("\x89PNG\r\n\x1a\n--data")}

// upload sends testUpload and returns the error as it must be.
func upload(ctx context.Context, t *testing.T, a Adapter, file Upload) (FileID, *Error) {
	t.Helper()
	id, err := a.(Uploader).Upload(ctx, file)
	if err == nil {
		return id, nil
	}
	failed, ok := errors.AsType[*Error](err)
	if !ok || id != (FileID{}) {
		t.Fatalf("%+v, error %T: %v", id, err, err)
	}
	checkFailureEncodable(t, failed.Failure)
	return id, failed
}

// formField is a field of a form, with its order and headers.
type formField struct{ Name, File, Kind, Value string }

func readForm(t *testing.T, contentType string, body []byte) []formField {
	t.Helper()
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" {
		t.Fatalf("content type %q, %v", contentType, err)
	}
	var fields []formField
	form := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return fields
		}
		if err != nil {
			t.Fatal(err)
		}
		value, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, formField{part.FormName(), part.FileName(), part.Header.Get("Content-Type"), string(value)})
	}
}

func TestUpload(t *testing.T) {
	const session = "01JDXQ0000000000000000000A"
	file := Upload{Session: session, Name: `a "quoted" name.png`, MediaType: "image/png", Data: bytes.Repeat([]byte("\x00\r\n--\xff"), 50_000)}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/files" || r.ContentLength != int64(len(body)) || r.TransferEncoding != nil {
			t.Errorf("%s %s, length %d of %d, %v", r.Method, r.URL, r.ContentLength, len(body), err)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer "+testKey {
			t.Errorf("Authorization %q", got)
		}
		if got := r.Header.Values(HeaderSession); len(got) != 1 || got[0] != session || len(r.Header.Values(HeaderSeq)) != 0 {
			t.Errorf("session %q, sequence %q", got, r.Header.Values(HeaderSeq))
		}
		want := []formField{
			{"purpose", "", "", "user_data"},
			{"expires_after[anchor]", "", "", "created_at"},
			{"expires_after[seconds]", "", "", "604800"},
			{"file", file.Name, "image/png", string(file.Data)},
		}
		if diff := cmp.Diff(want, readForm(t, r.Header.Get("Content-Type"), body)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		_, _ = io.WriteString(w, `{"object":"file","id":"file-7","bytes":1,"expires_at":1800000100}`)
	})
	got, failed := upload(t.Context(), t, newAdapter(t, url+"/v1/"), file)
	if want := (FileID{"file-7", time.Unix(1_800_000_100, 0)}); failed != nil || got != want {
		t.Errorf("%+v, %v", got, failed)
	}
}

// TestUploadCorpus: the form is the one that the reference system sends, and its answers are understood.
func TestUploadCorpus(t *testing.T) {
	dir := corpusDir(t)
	if dir == "" {
		t.Log("no corpus: set REFOLD_CORPUS to compare with recorded uploads; nothing was compared")
		return
	}
	requests, err := filepath.Glob(filepath.Join(dir, "17-image", "files-api", "*.request.bin"))
	if err != nil || len(requests) == 0 {
		t.Fatalf("the corpus has no uploads: %v", err)
	}
	for _, path := range requests {
		recorded, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		response, err := os.ReadFile(strings.TrimSuffix(path, ".request.bin") + ".response.json")
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := bytes.Cut(recorded, []byte("\r\n"))
		want := readForm(t, "multipart/form-data; boundary="+string(line[2:]), recorded)
		status := http.StatusOK
		if bytes.Contains(response, []byte(`"error"`)) {
			status = http.StatusInternalServerError
		}
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if diff := cmp.Diff(want, readForm(t, r.Header.Get("Content-Type"), body)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
			w.WriteHeader(status)
			_, _ = w.Write(response)
		})
		last := want[len(want)-1]
		id, failed := upload(t.Context(), t, newAdapter(t, url), Upload{Name: last.File, MediaType: last.Kind, Data: []byte(last.Value)})
		switch {
		case status == http.StatusOK && (failed != nil || !strings.HasPrefix(id.ID, "file-corpus-") || id.Expires.Unix() != 1_796_651_673):
			t.Errorf("%s: %+v, %v", path, id, failed)
		case status != http.StatusOK && (failed == nil || failed.Failure.Code != events.FailureServer || failed.Failure.Message != "files down"):
			t.Errorf("%s: %v", path, failed)
		}
	}
}

func TestUploadResponses(t *testing.T) {
	asked := time.Unix(1_800_000_000, 0)
	week := asked.Add(7 * 24 * time.Hour)
	long := strings.Repeat("x", maxFileID+1)
	tests := []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   FileID
		code   events.FailureCode
	}{
		{"created", 201, nil, `{"id":"f"}`, FileID{"f", week}, ""},
		{"no expiry", 200, nil, `{"id":"f","expires_at":null}`, FileID{"f", week}, ""},
		{"a fraction", 200, nil, `{"id":"f","expires_at":1800000000.9}`, FileID{"f", asked}, ""},
		{"as text", 200, nil, `{"id":"f","expires_at":"1800000000"}`, FileID{"f", asked}, ""},
		{"no time", 200, nil, `{"id":"f","expires_at":1e300}`, FileID{"f", week}, ""},
		{"negative", 200, nil, `{"id":"f","expires_at":-5}`, FileID{"f", week}, ""},
		{"no id", 200, nil, `{"object":"file"}`, FileID{}, events.FailureMalformed},
		{"an id that is no text", 200, nil, `{"id":7}`, FileID{}, events.FailureMalformed},
		{"a long id", 200, nil, `{"id":"` + long + `"}`, FileID{}, events.FailureMalformed},
		{"an id with a space", 200, nil, `{"id":"a b"}`, FileID{}, events.FailureMalformed},
		{"an id that is the key", 200, nil, `{"id":"` + testKey + `"}`, FileID{}, events.FailureMalformed},
		{"more than one value", 200, nil, `{"id":"f"}{}`, FileID{}, events.FailureMalformed},
		{"no JSON", 200, nil, `<html>`, FileID{}, events.FailureMalformed},
		{"nothing", 200, nil, ``, FileID{}, events.FailureMalformed},
		{"created, without an id", 201, nil, `{}`, FileID{}, events.FailureMalformed},
		{"another success", 202, nil, `{"id":"f"}`, FileID{}, events.FailureMalformed},
		{"without end", 200, nil, `{"id":"f","x":"` + strings.Repeat("x", 1<<20) + `"}`, FileID{}, events.FailureMalformed},
		{"an error with status 200", 200, nil, `{"error":{"message":"x","type":"rate_limit_error"}}`, FileID{}, events.FailureRateLimit},
		{"encoded", 200, map[string]string{"Content-Encoding": "gzip"}, "\x1f\x8b", FileID{}, events.FailureMalformed},
		{"400", 400, nil, `{"error":{"message":"no image"}}`, FileID{}, events.FailureInvalid},
		{"401", 401, nil, `{"error":{"message":"bad key ` + testKey + `"}}`, FileID{}, events.FailureCredential},
		{"402", 402, nil, ``, FileID{}, events.FailureQuota},
		{"404", 404, nil, ``, FileID{}, events.FailureInvalid},
		{"408", 408, nil, ``, FileID{}, events.FailureTimeout},
		{"413", 413, nil, ``, FileID{}, events.FailureInvalid},
		{"429", 429, map[string]string{"Retry-After": "2", "X-Request-Id": "r1"}, ``, FileID{}, events.FailureRateLimit},
		{"500", 500, nil, `{"error":{"message":"files down","type":"server_error"}}`, FileID{}, events.FailureServer},
		{"307", 307, map[string]string{"Location": "/elsewhere"}, ``, FileID{}, events.FailureInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAdapter(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/files" {
					t.Errorf("a request to %s", r.URL)
				}
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			got, failed := upload(t.Context(), t, a, testUpload)
			var f events.Failure
			if failed != nil {
				f = failed.Failure
			}
			if got != tt.want || f.Code != tt.code || failed != nil && f.Status != int64(tt.status) {
				t.Errorf("%+v, %v", got, failed)
			}
			if len(tt.header) == 2 && (f.RetryAfterMs != 2000 || f.RequestID != "r1") {
				t.Errorf("%+v", f)
			}
			if text := fmt.Sprintf("%v %+v %#v", failed, failed, f); strings.Contains(text, testKey[:20]) {
				t.Errorf("the key shows: %s", text)
			}
		})
	}
}

func TestUploadRefused(t *testing.T) {
	a := newAdapter(t, serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("a request to %s", r.URL) }))
	for name, change := range map[string]func(*Upload){
		"empty":                       func(u *Upload) { u.Data = nil },
		"no name":                     func(u *Upload) { u.Name = "" },
		"a directory":                 func(u *Upload) { u.Name = "../x" },
		"a line feed in the name":     func(u *Upload) { u.Name = "a\r\nX: y" },
		"no media type":               func(u *Upload) { u.MediaType = "" },
		"a line feed in its type":     func(u *Upload) { u.MediaType = "image/png\r\nX: y" },
		"a media type that is no one": func(u *Upload) { u.MediaType = "image/" },
	} {
		file := testUpload
		change(&file)
		if _, failed := upload(t.Context(), t, a, file); failed == nil || failed.Failure.Code != events.FailureInvalid {
			t.Errorf("%s: %v", name, failed)
		}
	}
}

func TestUploadFaults(t *testing.T) {
	hang := func(head string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if head != "" {
				_, _ = io.WriteString(w, head)
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}
	}
	soon := func(c *Config) { c.HeaderTimeout, c.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond }
	codes := make(map[string]events.FailureCode)
	note := func(ctx context.Context, name string, a Adapter) {
		_, failed := upload(ctx, t, a, testUpload)
		if failed == nil {
			t.Fatalf("%s: no failure", name)
		}
		codes[name] = failed.Failure.Code
	}
	note(t.Context(), "no headers", newAdapter(t, serve(t, hang("")), soon))
	note(t.Context(), "no end", newAdapter(t, serve(t, hang(`{"id":"f"`)), soon))
	note(t.Context(), "reset", newAdapter(t, rawServer(t, func(c *net.TCPConn) { _ = c.SetLinger(0) })))
	note(t.Context(), "cut off", newAdapter(t, rawServer(t, func(c *net.TCPConn) {
		write(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"id\":\"f\"")
	})))
	note(t.Context(), "an error response cut off", newAdapter(t, rawServer(t, func(c *net.TCPConn) {
		write(c, "HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\n{\"error\":")
	})))
	ctx, cancel := context.WithCancel(t.Context())
	note(ctx, "cancelled", newAdapter(t, serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})))
	want := map[string]events.FailureCode{
		"no headers": events.FailureTimeout, "no end": events.FailureTimeout, "reset": events.FailureTransport,
		"cut off": events.FailureTransport, "an error response cut off": events.FailureServer, "cancelled": events.FailureCancelled,
	}
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
