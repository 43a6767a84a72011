package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/pkg/events"
)

func TestPrepare(t *testing.T) {
	a := newAdapter(t, "http://127.0.0.1:1", func(c *Config) {
		c.Name = "ds"
		c.Models = []Model{{Name: "small", ContextWindow: 1000, MaxTokens: 100}}
	})
	tests := []struct {
		in       events.Config
		want     events.Config
		defaults events.AdapterDefaults
		window   int64
	}{
		{
			events.Config{Model: "x", Temperature: "0.5", Stop: []string{"s"}},
			events.Config{Provider: "ds", Model: "x", ReasoningEffort: "high", MaxTokens: 32768, Temperature: "0.5", Stop: []string{"s"}},
			events.AdapterDefaults{ReasoningEffort: true, MaxTokens: true},
			128_000,
		},
		{
			events.Config{Provider: "ds", Model: "deepseek-chat", ReasoningEffort: "off"},
			events.Config{Provider: "ds", Model: "deepseek-chat", ReasoningEffort: "off", MaxTokens: 8192},
			events.AdapterDefaults{MaxTokens: true},
			128_000,
		},
		{
			events.Config{Provider: "ds", Model: "small", ReasoningEffort: "max", MaxTokens: 7},
			events.Config{Provider: "ds", Model: "small", ReasoningEffort: "max", MaxTokens: 7},
			events.AdapterDefaults{},
			1000,
		},
	}
	for _, tt := range tests {
		p, err := a.Prepare(t.Context(), tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, p.Config()); diff != "" || p.Defaults() != tt.defaults || p.ContextWindow() != tt.window || p.Codec() != "deepseek-chat/1" {
			t.Errorf("%+v: %+v, %d, %s (-want +got):\n%s", tt.in, p.Defaults(), p.ContextWindow(), p.Codec(), diff)
		}
	}
	limit := make(map[string]int64)
	for _, effort := range []string{"off", "high"} {
		for _, given := range []int64{0, 7} {
			p, err := a.Prepare(t.Context(), events.Config{Model: "deepseek-chat", ReasoningEffort: effort, MaxTokens: given})
			if err != nil {
				t.Fatal(err)
			}
			limit[fmt.Sprint(effort, given)] = p.MaxTokens()
			if p.AcceptsImages() || p.Files() || p.Uploader() != nil || p.MaxImagePixels() != 0 || p.RetryPolicy() != (RetryPolicy{}) {
				t.Errorf("%+v of a model of texts", p.spec)
			}
		}
	}
	if diff := cmp.Diff(map[string]int64{"off0": 8192, "off7": 8192, "high0": 32768, "high7": 32768}, limit); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tt := range []struct {
		in   events.Config
		code events.FailureCode
	}{
		{events.Config{Provider: "other", Model: "x"}, events.FailureNoAdapter},
		{events.Config{}, events.FailureInvalid},
		{events.Config{Model: "x", ReasoningEffort: "medium"}, events.FailureInvalid},
		{events.Config{Model: "x", MaxTokens: -1}, events.FailureInvalid},
	} {
		if _, err := a.Prepare(t.Context(), tt.in); FailureOf(err).Code != tt.code {
			t.Errorf("%+v: %v, want %s", tt.in, err, tt.code)
		}
	}
}

func TestPreparedOnce(t *testing.T) {
	requests := 0
	a := newAdapter(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests++
		eventStream(w, helloStream)
	}))
	refused := func(what string, p *Prepared, call Call) {
		t.Helper()
		before := requests
		chunks, failed := collect(t.Context(), t, p, call)
		if failed == nil || failed.Failure.Code != events.FailurePrepared || len(chunks) > 0 || requests != before {
			t.Errorf("%s: %s, %v, %d requests", what, say(chunks), failed, requests-before)
		}
	}
	p := prepare(t, a)
	other := callOf(p, "{}")
	other.Config.MaxTokens++
	refused("another config", p, other)
	empty := callOf(p, "{}")
	empty.Body = nil
	refused("no body", p, empty)

	answer := p.Dispatch(t.Context(), callOf(p, "{}"))
	refused("a second dispatch", p, callOf(p, "{}"))
	for _, err := range answer {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range answer {
		if FailureOf(err).Code != events.FailurePrepared {
			t.Errorf("ranged over twice: %v", err)
		}
	}
	if requests != 1 {
		t.Errorf("%d requests, want 1", requests)
	}

	stop := []string{"a"}
	p, err := a.Prepare(t.Context(), events.Config{Model: "x", Stop: stop})
	if err != nil {
		t.Fatal(err)
	}
	stop[0] = "changed"
	p.Config().Stop[0] = "changed"
	if got := p.Config().Stop[0]; got != "a" {
		t.Errorf("the prepared config was changed from outside: %q", got)
	}
}

func TestNew(t *testing.T) {
	key, err := NewSecret(" " + testKey + "\n")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, kind string
		cfg        Config
		env        string
		want       error
	}{
		{"the service", KindDeepSeek, Config{Key: key}, "", nil},
		{"the service, key from the environment", KindDeepSeek, Config{}, testKey, nil},
		{"the service without a key", KindDeepSeek, Config{}, "", ErrNoCredential},
		{"another service without a key", KindDeepSeek, Config{BaseURL: "http://simulator:8080/v1"}, "", nil},
		{"a bad key in the environment", KindDeepSeek, Config{}, "sk-\x01secret", ErrSecret},
		{"no such kind", "anthropic", Config{Key: key}, "", ErrKind},
		{"a password in the URL", KindDeepSeek, Config{BaseURL: "https://u:" + testKey + "@host"}, "", ErrConfig},
		{"a query in the URL", KindDeepSeek, Config{BaseURL: "https://host?key=" + testKey}, "", ErrConfig},
		{"no URL", KindDeepSeek, Config{BaseURL: "host:80"}, "", ErrConfig},
		{"a key in the clear", KindDeepSeek, Config{BaseURL: "http://host", Key: key}, "", ErrConfig},
		{"a key in the clear, permitted", KindDeepSeek, Config{BaseURL: "http://host", Key: key, PlainHTTP: true}, "", nil},
		{"a key in the clear to this host", KindDeepSeek, Config{BaseURL: "http://[::1]:80", Key: key}, "", nil},
		{"a negative timeout", KindDeepSeek, Config{Key: key, IdleTimeout: -1}, "", ErrConfig},
		{"a policy that is none", KindDeepSeek, Config{Key: key, Retry: RetryPolicy{Mode: "never"}}, "", ErrConfig},
		{"and which error it is", KindDeepSeek, Config{Key: key, Retry: RetryPolicy{MaxAttempts: -1}}, "", ErrRetryPolicy},
		{"a negative window", KindDeepSeek, Config{Key: key, Models: []Model{{ContextWindow: -1}}}, "", ErrConfig},
		{"a negative number of pixels", KindDeepSeek, Config{Key: key, Models: []Model{{Images: true, MaxImagePixels: -1}}}, "", ErrConfig},
		{"files without images", KindDeepSeek, Config{Key: key, Models: []Model{{Files: true}}}, "", ErrConfig},
		{"images and files", KindDeepSeek, Config{Key: key, Models: []Model{{Images: true, MaxImagePixels: 1, Files: true}}}, "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(EnvDeepSeekKey, tt.env)
			_, err := New(tt.kind, tt.cfg)
			if !errors.Is(err, tt.want) {
				t.Errorf("error = %v, want %v", err, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), testKey) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}

// TestSecretNeverShows prints everything that holds the key in every way.
func TestSecretNeverShows(t *testing.T) {
	key, err := NewSecret(testKey)
	if err != nil {
		t.Fatal(err)
	}
	if key.reveal() != testKey {
		t.Fatal("the secret is lost")
	}
	a := newAdapter(t, "http://127.0.0.1:1")
	p := prepare(t, a)
	values := map[string]any{
		"secret": key, "pointer": &key, "config": Config{Key: key}, "config pointer": &Config{Key: key},
		"adapter": a, "adapter value": *a.(*deepSeek), "prepared": p, "nested": []any{map[string]any{"k": Config{Key: key}}},
		"unexported": struct{ k Secret }{key}, "stream": chatStream{secret: key},
	}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if got := fmt.Sprintf(verb, v); strings.Contains(got, testKey) || strings.Contains(got, fmt.Sprintf("%x", testKey)) {
				t.Errorf("%s with %s shows the key: %s", name, verb, got)
			}
		}
		if b, err := json.Marshal(v); bytes.Contains(b, []byte(testKey)) || err != nil && strings.Contains(err.Error(), testKey) {
			t.Errorf("%s as JSON shows the key: %s, %v", name, b, err)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", slog.Any("v", v))
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", slog.Any("v", v))
		if strings.Contains(log.String(), testKey) {
			t.Errorf("%s in a log shows the key: %s", name, &log)
		}
	}
	if key.String() != redacted || (Secret{}).String() != "" {
		t.Errorf("placeholders %q, %q", key.String(), Secret{}.String())
	}
}

// TestSecretEchoed: a server that repeats the key does not get it into an error.
func TestSecretEchoed(t *testing.T) {
	echo := func(status int, header, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Authorization"), testKey) {
				t.Error("the key was not sent")
			}
			w.Header().Set("X-Request-Id", header)
			w.Header().Set("Content-Type", "application/json")
			if status == http.StatusOK {
				w.Header().Set("Content-Type", "text/event-stream")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	escaped := `\u0073` + testKey[1:] // the same as a JSON string
	for name, h := range map[string]http.HandlerFunc{
		"error body":    echo(401, "", `{"error":{"message":"key `+escaped+` is wrong"}}`),
		"long message":  echo(401, "", `{"error":{"message":"`+strings.Repeat("x", maxMessage-10)+testKey+`"}}`),
		"request id":    echo(500, testKey, ""),
		"error event":   echo(200, testKey, "event: error\n"+data(`{"message":"`+escaped+`","type":"`+testKey+`"}`)),
		"bare event":    echo(200, "", "event: error\n"+data(testKey)),
		"malformed":     echo(200, "", data(`{"`+testKey+`":`+testKey+`}`)),
		"finish reason": echo(200, "", data(delta(`"content":"a"`), finish(testKey), done)),
		"status line": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, testKey+"\r\n\r\n")
			_ = conn.Close()
		},
	} {
		chunks, failed := dispatch(t, newAdapter(t, serve(t, h)))
		texts := []string{fmt.Sprintf("%+v", chunks)}
		for err := error(failed); err != nil && failed != nil; err = errors.Unwrap(err) {
			texts = append(texts, fmt.Sprintf("%v %+v %#v", err, err, err))
		}
		if failed != nil {
			texts = append(texts, fmt.Sprintf("%+v", failed.Failure))
		}
		for _, text := range texts {
			if strings.Contains(text, testKey[:20]) {
				t.Errorf("%s: the key shows: %s", name, text)
			}
		}
	}
}
