package provider

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
)

const testKey = "sk-0123456789abcdef-very-secret"

// newAdapter returns an adapter for a server and closes it after the test.
func newAdapter(t *testing.T, url string, change ...func(*Config)) Adapter {
	t.Helper()
	key, err := NewSecret(testKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{BaseURL: url, Key: key, Now: func() time.Time { return time.Unix(1_800_000_000, 0) }}
	for _, c := range change {
		c(&cfg)
	}
	a, err := New(KindDeepSeek, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.(io.Closer).Close() })
	return a
}

func prepare(t *testing.T, a Adapter) *Prepared {
	t.Helper()
	p, err := a.Prepare(t.Context(), events.Config{Provider: KindDeepSeek, Model: "deepseek-chat"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func callOf(p *Prepared, body string) Call {
	return Call{
		Config: p.Config(), Session: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Seq: 42, Turn: 1, Step: 2, Attempt: 3,
		Body: func() io.Reader { return strings.NewReader(body) }, Bytes: int64(len(body)), SHA256: sha256.Sum256([]byte(body)),
	}
}

// collect ranges over an answer and checks that a finish or an error ends it.
func collect(ctx context.Context, t *testing.T, p *Prepared, call Call) ([]events.Chunk, *Error) {
	t.Helper()
	var chunks []events.Chunk
	var failed *Error
	for c, err := range p.Dispatch(ctx, call) {
		if failed != nil {
			t.Errorf("something came after the error: %+v, %v", c, err)
		}
		if err != nil {
			if !errors.As(err, &failed) {
				t.Fatalf("error %T, want *Error", err)
			}
			continue
		}
		if len(c.Texts) > 1 {
			t.Errorf("a chunk with %d texts", len(c.Texts))
		}
		chunks = append(chunks, c)
	}
	if n := len(chunks); failed == nil && (n == 0 || chunks[n-1].Type != events.ChunkFinish) {
		t.Errorf("neither finish nor error ends the answer: %s", say(chunks))
	}
	return chunks, failed
}

func dispatch(t *testing.T, a Adapter) ([]events.Chunk, *Error) {
	t.Helper()
	p := prepare(t, a)
	return collect(t.Context(), t, p, callOf(p, "{}"))
}

// serve starts a server. The handler gets the body whole: net/http notices that a client is gone only after that.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), errReader{stdcmp.Or(err, io.EOF)}))
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func eventStream(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = io.WriteString(w, body)
}

const helloStream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n" +
	"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"

func TestRequest(t *testing.T) {
	body := `{"model":"deepseek-chat", "x":"` + strings.Repeat("\u00e9<>&", 100_000) + `"}`
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != body {
			t.Errorf("body of %d bytes, %v, want %d", len(got), err, len(body))
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" || r.ContentLength != int64(len(body)) || r.TransferEncoding != nil {
			t.Errorf("%s %s, length %d, encoding %q", r.Method, r.URL, r.ContentLength, r.TransferEncoding)
		}
		for name, want := range map[string]string{
			"Accept": "text/event-stream", "Accept-Encoding": "identity", "Content-Type": "application/json",
			"Authorization": "Bearer " + testKey, HeaderSession: "01ARZ3NDEKTSV4RRFFQ69G5FAV", HeaderSeq: "42",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		eventStream(w, helloStream)
	})
	a := newAdapter(t, url+"/v1/")
	p := prepare(t, a)
	chunks, failed := collect(t.Context(), t, p, callOf(p, body))
	if got := say(chunks); failed != nil || got != `+0:text 0=["hello"] -0 stop()` {
		t.Errorf("%s, %v", got, failed)
	}
}

// TestConnectionReuse: a complete answer leaves its connection fit for the next call.
func TestConnectionReuse(t *testing.T) {
	remotes := make(map[string]int)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		remotes[r.RemoteAddr]++
		eventStream(w, helloStream)
	})
	a := newAdapter(t, url)
	for range 5 {
		if _, failed := dispatch(t, a); failed != nil {
			t.Fatal(failed)
		}
	}
	if len(remotes) != 1 {
		t.Errorf("5 calls took %d connections, want 1", len(remotes))
	}
}

func TestWrongBody(t *testing.T) {
	broken := errors.New("broken reader")
	large := strings.Repeat("x", 1<<20)
	tests := []struct {
		name string
		call func(*Call)
	}{
		{"other bytes", func(c *Call) { c.Body = func() io.Reader { return strings.NewReader("[]") } }},
		{"short", func(c *Call) { c.Bytes = 3 }},
		{"long", func(c *Call) { c.Bytes = 1 }},
		{"goes on", func(c *Call) { c.Body = func() io.Reader { return strings.NewReader("{}x") } }},
		{"fails", func(c *Call) {
			c.Body = func() io.Reader { return io.MultiReader(strings.NewReader("{"), errReader{broken}) }
		}},
		{"large with a wrong end", func(c *Call) {
			c.Body = func() io.Reader { return strings.NewReader(large + "y") }
			c.Bytes, c.SHA256 = int64(len(large))+1, sha256.Sum256([]byte(large+"z"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if got, err := io.ReadAll(r.Body); err == nil {
					t.Errorf("the server got a complete body of %d bytes", len(got))
				}
			})
			p := prepare(t, newAdapter(t, url))
			call := callOf(p, "{}")
			tt.call(&call)
			chunks, failed := collect(t.Context(), t, p, call)
			if len(chunks) > 0 || failed == nil || failed.Failure.Code != events.FailurePrepared || !errors.Is(failed, ErrBody) {
				t.Errorf("%s, %v", say(chunks), failed)
			}
			if tt.name == "fails" && !errors.Is(failed, broken) {
				t.Errorf("the reader's error is lost: %v", failed.Err)
			}
		})
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestHTTPErrors(t *testing.T) {
	now := time.Unix(1_800_000_000, 0).UTC()
	object := func(message string) string { return `{"error":{"message":"` + message + `","type":"t","code":"c"}}` }
	tests := []struct {
		name   string
		status int
		header map[string]string
		body   string
		want   events.Failure // Message is compared when it is not empty
	}{
		{"400", 400, nil, object("bad field"), events.Failure{Message: "bad field", Code: events.FailureInvalid}},
		{"400 context", 400, nil, object("This model's maximum context length is 10 tokens."), events.Failure{Code: events.FailureContextWindow}},
		{"400 context by code", 400, nil, `{"error":{"message":"no","code":"context_length_exceeded"}}`, events.Failure{Message: "no", Code: events.FailureContextWindow}},
		{"400 max_tokens", 400, nil, object("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"), events.Failure{Code: events.FailureInvalid}},
		{"400 filtered", 400, nil, object("Content Exists Risk"), events.Failure{Code: events.FailureContentFilter}},
		{"401", 401, map[string]string{"X-Request-Id": "r1"}, object("bad key"), events.Failure{Code: events.FailureCredential, RequestID: "r1"}},
		{"402", 402, nil, object("Insufficient Balance"), events.Failure{Message: "Insufficient Balance", Code: events.FailureQuota}},
		{"403", 403, nil, "", events.Failure{Message: "deepseek answered with HTTP status 403", Code: events.FailureCredential}},
		{"404", 404, nil, "<html>", events.Failure{Message: "deepseek answered with HTTP status 404", Code: events.FailureInvalid}},
		{"408", 408, nil, "", events.Failure{Code: events.FailureTimeout}},
		{"413", 413, nil, "", events.Failure{Code: events.FailureContextWindow}},
		{"422", 422, nil, object("bad"), events.Failure{Code: events.FailureInvalid}},
		{"429", 429, map[string]string{"Retry-After": "2"}, object("slow"), events.Failure{Code: events.FailureRateLimit, RetryAfterMs: 2000}},
		{"429 part of a second", 429, map[string]string{"Retry-After": "0.0015"}, "", events.Failure{Code: events.FailureRateLimit, RetryAfterMs: 2}},
		{"429 milliseconds", 429, map[string]string{"Retry-After-Ms": "150", "Retry-After": "9"}, "", events.Failure{Code: events.FailureRateLimit, RetryAfterMs: 150}},
		{"429 date", 429, map[string]string{"Retry-After": now.Add(90 * time.Second).Format(http.TimeFormat)}, "", events.Failure{Code: events.FailureRateLimit, RetryAfterMs: 90_000}},
		{"429 past", 429, map[string]string{"Retry-After": now.Add(-time.Hour).Format(http.TimeFormat)}, "", events.Failure{Code: events.FailureRateLimit}},
		{"429 for ever", 429, map[string]string{"Retry-After": "1e300"}, "", events.Failure{Code: events.FailureRateLimit, RetryAfterMs: 365 * 24 * 3_600_000}},
		{"429 nonsense", 429, map[string]string{"Retry-After": "soon"}, "", events.Failure{Code: events.FailureRateLimit}},
		{"429 negative", 429, map[string]string{"Retry-After": "-5"}, "", events.Failure{Code: events.FailureRateLimit}},
		{"429 NaN", 429, map[string]string{"Retry-After": "NaN"}, "", events.Failure{Code: events.FailureRateLimit}},
		{"429 quota", 429, nil, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}`, events.Failure{Code: events.FailureQuota}},
		{"500", 500, map[string]string{"X-Request-Id": "req-500"}, object("boom"), events.Failure{Message: "boom", Code: events.FailureServer, RequestID: "req-500"}},
		{"503 bare", 503, map[string]string{"Retry-After": "1"}, "upstream down", events.Failure{Message: "deepseek answered with HTTP status 503", Code: events.FailureServer, RetryAfterMs: 1000}},
		{"504", 504, nil, "", events.Failure{Code: events.FailureTimeout}},
		{"529", 529, nil, `{"error":"overloaded"}`, events.Failure{Message: "overloaded", Code: events.FailureServer}},
		{"302", 302, map[string]string{"Location": "/elsewhere"}, "", events.Failure{Code: events.FailureInvalid}},
		{"204", 204, nil, "", events.Failure{Code: events.FailureMalformed}},
		{"huge", 500, nil, strings.Repeat("x", 1<<20), events.Failure{Message: "deepseek answered with HTTP status 500", Code: events.FailureServer}},
		{"a lone surrogate", 500, nil, object(`\ud800`), events.Failure{Message: "\xed\xa0\x80", Code: events.FailureServer}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/chat/completions" {
					t.Errorf("a request to %s", r.URL)
				}
				for k, v := range tt.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				if tt.status != http.StatusNoContent {
					_, _ = io.WriteString(w, tt.body)
				}
			})
			chunks, failed := dispatch(t, newAdapter(t, url))
			if failed == nil || len(chunks) > 0 {
				t.Fatalf("%s, %v", say(chunks), failed)
			}
			got, want := failed.Failure, tt.want
			want.Status = int64(tt.status)
			if want.Message == "" {
				if got.Message == "" {
					t.Error("no message")
				}
				want.Message = got.Message
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			checkFailureEncodable(t, got)
		})
	}
}

// TestRetryAfterInStream keeps what the response's header asks for when the answer breaks off in a way that may be made
// good.
func TestRetryAfterInStream(t *testing.T) {
	for kind, want := range map[string]int64{"rate_limit_error": 90_000, "invalid_request_error": 0} {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Retry-After", "90")
			_, _ = io.WriteString(w, data(delta(`"content":"a"`), `{"error":{"message":"slow","type":"`+kind+`"}}`))
		})
		_, failed := dispatch(t, newAdapter(t, url))
		if failed == nil || failed.Failure.Message != "slow" || failed.Failure.RetryAfterMs != want {
			t.Errorf("%s: %+v", kind, failed)
		}
	}
}

func checkFailureEncodable(t *testing.T, f events.Failure) {
	t.Helper()
	e := events.Event{
		Seq: 5, ID: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Time: 1, Prev: events.Hash{1},
		Body: &events.LLMFailed{Turn: 1, Step: 1, Attempt: 1, Failure: f},
	}
	if _, err := events.Encode(&e); err != nil {
		t.Errorf("the log refuses the failure: %v", err)
	}
}

func TestUnexpectedResponses(t *testing.T) {
	tests := []struct {
		name, kind, encoding, body string
		code                       events.FailureCode
	}{
		{"a page", "text/html", "", "<html>", events.FailureMalformed},
		{"a whole completion", "application/json", "", `{"choices":[]}`, events.FailureMalformed},
		{"an error with status 200", "application/json", "", `{"error":{"message":"x","type":"rate_limit_error"}}`, events.FailureRateLimit},
		{"compressed", "text/event-stream", "gzip", "\x1f\x8b", events.FailureMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.kind)
				if tt.encoding != "" {
					w.Header().Set("Content-Encoding", tt.encoding)
				}
				_, _ = io.WriteString(w, tt.body)
			})
			chunks, failed := dispatch(t, newAdapter(t, url))
			if failed == nil || failed.Failure.Code != tt.code || len(chunks) > 0 {
				t.Errorf("%s, %v, want %s", say(chunks), failed, tt.code)
			}
		})
	}
}

func TestEventLimit(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		eventStream(w, data(delta(`"content":"a"`), delta(`"content":"`+strings.Repeat("x", 1000)+`"`), done))
	})
	chunks, failed := dispatch(t, newAdapter(t, url, func(c *Config) { c.MaxEventBytes = 500 }))
	if got := say(chunks); failed == nil || failed.Failure.Code != events.FailureMalformed || got != `+0:text 0=["a"]` {
		t.Errorf("%s, %v", got, failed)
	}
}

func TestTimeouts(t *testing.T) {
	tests := []struct {
		name string
		h    http.HandlerFunc
		set  func(*Config)
		want string
	}{
		{
			"headers", func(http.ResponseWriter, *http.Request) {},
			func(c *Config) { c.HeaderTimeout = 20 * time.Millisecond }, "",
		},
		{
			"idle", func(w http.ResponseWriter, _ *http.Request) { eventStream(w, data(delta(`"content":"a"`))) },
			func(c *Config) { c.IdleTimeout = 20 * time.Millisecond }, `+0:text 0=["a"]`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				tt.h(w, r)
				if tt.want != "" {
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
			})
			chunks, failed := dispatch(t, newAdapter(t, url, tt.set))
			if got := say(chunks); failed == nil || failed.Failure.Code != events.FailureTimeout || got != tt.want {
				t.Errorf("%s, %v", got, failed)
			}
		})
	}
}

// TestCompleteButOpen: after its finish_reason an answer is complete, even if the server leaves the connection open.
func TestCompleteButOpen(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		eventStream(w, data(delta(`"content":"a"`), finish("stop")))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	chunks, failed := dispatch(t, newAdapter(t, url, func(c *Config) { c.IdleTimeout = 20 * time.Millisecond }))
	if got := say(chunks); failed != nil || got != `+0:text 0=["a"] -0 stop()` {
		t.Errorf("%s, %v", got, failed)
	}
}

func TestCancel(t *testing.T) {
	started := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(HeaderSeq) == "2" {
			eventStream(w, data(delta(`"content":"a"`)))
			w.(http.Flusher).Flush()
		} else {
			_, _ = io.Copy(io.Discard, r.Body)
			close(started)
		}
		<-r.Context().Done()
	})
	a := newAdapter(t, url)

	ctx, cancel := context.WithCancel(t.Context())
	p := prepare(t, a)
	call := callOf(p, "{}")
	call.Seq = 2
	var failed *Error
	var chunks []events.Chunk
	for c, err := range p.Dispatch(ctx, call) {
		if err != nil {
			errors.As(err, &failed)
			break
		}
		if chunks = append(chunks, c); c.Type == events.ChunkTextDelta {
			cancel()
		}
	}
	if failed == nil || failed.Failure.Code != events.FailureCancelled || !errors.Is(failed, context.Canceled) || len(chunks) != 2 {
		t.Errorf("within the stream: %s, %v", say(chunks), failed)
	}

	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	p = prepare(t, a)
	if _, failed = collect(ctx, t, p, callOf(p, "{}")); failed == nil || failed.Failure.Code != events.FailureCancelled {
		t.Errorf("before the headers: %v", failed)
	}

	p = prepare(t, a)
	if _, failed = collect(ctx, t, p, callOf(p, "{}")); failed == nil || failed.Failure.Code != events.FailureCancelled {
		t.Errorf("before the request: %v", failed)
	}

	ctx, cancel = context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	p = prepare(t, a)
	if _, failed = collect(ctx, t, p, callOf(p, "{}")); failed == nil || failed.Failure.Code != events.FailureTimeout {
		t.Errorf("after the deadline: %v", failed)
	}
}

// TestStopEarly: a receiver that stops ends the request.
func TestStopEarly(t *testing.T) {
	gone := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			eventStream(w, data(delta(`"content":"`+strconv.Itoa(i)+`"`)))
			w.(http.Flusher).Flush()
		}
		close(gone)
	})
	p := prepare(t, newAdapter(t, url))
	n := 0
	for _, err := range p.Dispatch(t.Context(), callOf(p, "{}")) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 3 {
			break
		}
	}
	<-gone
}

func TestConcurrentCalls(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		eventStream(w, data(delta(`"content":`+string(body)), finish("stop"), done))
	})
	a := newAdapter(t, url)
	errs := make(chan error, 32)
	for i := range cap(errs) {
		go func() {
			errs <- func() error {
				p, err := a.Prepare(t.Context(), events.Config{Model: "m"})
				if err != nil {
					return err
				}
				want := fmt.Sprintf("answer %d", i)
				var got bytes.Buffer
				for c, err := range p.Dispatch(t.Context(), callOf(p, strconv.Quote(want))) {
					if err != nil {
						return err
					}
					got.WriteString(strings.Join(c.Texts, ""))
				}
				if got.String() != want {
					return fmt.Errorf("got %q, want %q", got.String(), want)
				}
				return nil
			}()
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
