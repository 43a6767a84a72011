package witness_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
)

// TestHuge: memory does not grow with what passes.
func TestHuge(t *testing.T) {
	t.Parallel()
	size := int64(200 << 20)
	if testing.Short() {
		size = 20 << 20
	}
	var most atomic.Uint64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 1<<20)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				break
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapAlloc))
		}
		_, _ = io.CopyN(w, zeros{}, size)
	}))
	t.Cleanup(up.Close)
	b := stand(t, up.URL)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/x", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
		t.Errorf("%d bytes, %v", n, err)
	}
	if b.requests.all(1)[0].Body.Bytes != size || b.answers.all(1)[0].Body.Bytes != size {
		t.Error("the receipts are of something else")
	}
	if most.Load() > 100<<20 {
		t.Errorf("%d bytes of memory for a request of %d", most.Load(), size)
	}
}

// zeros are without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestAnswerReceipts: the receipt of an answer is tried again, and delays nobody.
func TestAnswerReceipts(t *testing.T) {
	t.Parallel()
	u := provide(t, nil)
	b := stand(t, u.URL)
	var tries atomic.Int64
	b.answers.decide = func(*audit.Receipt) fault { return fault{before: tries.Add(1) < 3} }
	if got := b.do("POST", "/x", nil, strings.NewReader("x")); got.status != 200 || got.err != nil {
		t.Errorf("%+v", got)
	}
	if r := b.answers.all(1)[0]; !r.Complete || tries.Load() != 3 {
		t.Errorf("%+v after %d tries", r, tries.Load())
	}
	gone := stand(t, u.URL, func(c *witness.Config) { c.AnswerTimeout = 10 * time.Millisecond })
	gone.answers.decide = func(*audit.Receipt) fault { return fault{before: true} }
	if got := gone.do("POST", "/x", nil, strings.NewReader("x")); got.status != 200 {
		t.Errorf("%+v", got)
	}
	gone.until("it is given up", func() bool {
		return gone.metric("refold_witness_receipts_total", "kind", "answer", "stored", "no") == 1
	})
}

// TestStop: calls under way may end; those that do not are ended.
func TestStop(t *testing.T) {
	t.Parallel()
	for _, grace := range []time.Duration{20 * time.Second, time.Millisecond} {
		began, finish := make(chan struct{}), make(chan struct{})
		u := provide(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "begin ")
			_ = http.NewResponseController(w).Flush()
			close(began)
			select {
			case <-finish:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "end")
		})
		b := stand(t, u.URL, func(c *witness.Config) { c.Grace = grace })
		var got response
		var wg sync.WaitGroup
		wg.Go(func() { got = b.do("POST", "/x", nil, strings.NewReader("x")) })
		<-began
		stopped := make(chan error, 1)
		go func() { stopped <- b.stop() }()
		if grace > time.Second {
			close(finish)
		}
		wg.Wait()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if cut := got.err != nil || got.status == http.StatusBadGateway; cut != (grace < time.Second) {
			t.Errorf("with a grace of %v: %q, %v", grace, got.body, got.err)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*witness.Config){
		"no upstream":      func(c *witness.Config) { c.Upstream = "" },
		"another protocol": func(c *witness.Config) { c.Upstream = "ftp://h" },
		"no host":          func(c *witness.Config) { c.Upstream = "http:///v1" },
		"a password":       func(c *witness.Config) { c.Upstream = "https://u:verysecret@h" },
		"a query":          func(c *witness.Config) { c.Upstream = "https://h/?key=verysecret" },
		"an empty query":   func(c *witness.Config) { c.Upstream = "https://h/?" },
		"a fragment":       func(c *witness.Config) { c.Upstream = "https://h/#verysecret" },
		"plain http":       func(c *witness.Config) { c.Upstream = "http://example.com" },
		"no key":           func(c *witness.Config) { c.Key = nil },
		"no store":         func(c *witness.Config) { c.Answers = nil },
		"a negative size":  func(c *witness.Config) { c.Hold = -1 },
		"a negative time":  func(c *witness.Config) { c.Grace = -1 },
	} {
		b := stand(t, "http://127.0.0.1:1")
		cfg := witness.Config{
			Upstream: "https://h", Key: b.key, Requests: b.requests, Answers: b.answers, NewID: newID, Registry: b.reg,
		}
		change(&cfg)
		if _, err := witness.New(cfg); !errors.Is(err, witness.ErrConfig) || strings.Contains(err.Error(), "verysecret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := witness.Listen(t.Context(), "nowhere:none"); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Error(err)
	}
}
