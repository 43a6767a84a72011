package httpserve_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/httpserve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	reg := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total", Help: "x"})
	reg.MustRegister(counter)
	counter.Add(3)
	var sick atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	l, err := httpserve.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- httpserve.ServeListener(ctx, l, reg, func() error {
			if sick.Load() {
				return errors.New("not well")
			}
			return nil
		}, httpserve.Mount{Path: "/log/", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "at "+r.URL.Path)
		})})
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url := "http://" + l.Addr().String()
	if code, body := get(t, client, url+"/metrics"); code != http.StatusOK || !strings.Contains(body, "x_total 3") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	if code, _ := get(t, client, url+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if code, body := get(t, client, url+"/log/a/b"); code != http.StatusOK || body != "at /a/b" {
		t.Errorf("/log/a/b: %d %s", code, body)
	}
	if code, _ := get(t, client, url+"/other"); code != http.StatusNotFound {
		t.Errorf("/other: %d", code)
	}
	sick.Store(true)
	if code, body := get(t, client, url+"/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "not well") {
		t.Errorf("/healthz when sick: %d %s", code, body)
	}
	if err := httpserve.Serve(ctx, l.Addr().String(), reg, func() error { return nil }); !errors.Is(err, httpserve.ErrListen) {
		t.Errorf("a taken address: %v", err)
	}
	if err := httpserve.Serve(ctx, "nonsense", reg, func() error { return nil }); !errors.Is(err, httpserve.ErrListen) {
		t.Errorf("a malformed address: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve after its context ended: %v", err)
	}
}
