package witness_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/eventlog/eventlogtest"
	"github.com/refold-dev/refold/pkg/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// session is one that calls of these tests are of.
const session events.ID = "01JDXQ0000000000000000000A"

var errStore = errors.New("the store fails")

// fault is what happens to one receipt that is to be stored.
type fault struct {
	wait   func(ctx context.Context) error // first, unless nil; its error means that nothing is stored
	before bool                            // fail, and store nothing
	after  bool                            // store, and fail
}

// store keeps receipts in memory and checks that they are what a witness may write.
type store struct {
	t      testing.TB
	kind   audit.ReceiptKind
	decide func(r *audit.Receipt) fault // nil: nothing fails

	mu   sync.Mutex
	kept []audit.Receipt
	ids  map[string]bool
	news chan struct{} // closed and replaced when one is kept
}

func newStore(t testing.TB, kind audit.ReceiptKind) *store {
	t.Helper()
	return &store{t: t, kind: kind, ids: make(map[string]bool), news: make(chan struct{})}
}

func (s *store) Add(ctx context.Context, session events.ID, id string, payload []byte) (uint64, error) {
	r, err := audit.DecodeReceipt(payload)
	if err != nil || r.Kind != s.kind || id != string(r.Call)+"."+string(r.Kind) {
		s.t.Errorf("receipt %s under the id %q: %v", payload, id, err)
	}
	if err := r.Verify(); err != nil {
		s.t.Error(err)
	}
	if want := max(r.Session, audit.NoSession); session != want {
		s.t.Errorf("a receipt of session %q under %s", r.Session, session)
	}
	var f fault
	if s.decide != nil {
		f = s.decide(&r)
	}
	if f.wait != nil {
		if err := f.wait(ctx); err != nil {
			return 0, err
		}
	}
	if f.before {
		return 0, errStore
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ids[id] {
		s.ids[id] = true
		s.kept = append(s.kept, r)
		close(s.news)
		s.news = make(chan struct{})
	}
	if f.after {
		return 0, fmt.Errorf("%w: stored all the same", errStore)
	}
	return uint64(len(s.kept)), nil
}

// all returns what is kept, when that is at least n.
func (s *store) all(n int) []audit.Receipt {
	s.t.Helper()
	for end := time.After(20 * time.Second); ; {
		s.mu.Lock()
		kept, news := slices.Clip(s.kept), s.news
		s.mu.Unlock()
		if len(kept) >= n {
			return kept
		}
		select {
		case <-news:
		case <-end:
			s.t.Fatalf("%d receipts of kind %s, want %d", len(kept), s.kind, n)
		}
	}
}

// holds reports whether there is a receipt of the body.
func (s *store) holds(body []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.kept {
		if s.kept[i].Body == digestOf(body) {
			return true
		}
	}
	return false
}

func digestOf(b []byte) events.BodyDigest {
	return events.BodyDigest{Bytes: int64(len(b)), SHA256: events.HashPayload(b)}
}

func newID() events.ID { return eventlogtest.IDs()() }

// bench is a witness that serves before an upstream.
type bench struct {
	t                 testing.TB
	url               string
	key               *audit.Key
	reg               *prometheus.Registry
	requests, answers *store
	client            *http.Client
	stop              func() error // tells it to stop and waits; the test's end does so too
}

func key(t testing.TB) *audit.Key {
	t.Helper()
	k, err := audit.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// stand starts a witness.
func stand(t testing.TB, upstream string, change ...func(*witness.Config)) *bench {
	t.Helper()
	b := &bench{
		t: t, key: key(t), reg: prometheus.NewRegistry(),
		requests: newStore(t, audit.ReceiptRequest), answers: newStore(t, audit.ReceiptAnswer),
	}
	cfg := witness.Config{
		Upstream: upstream, Key: b.key, Requests: b.requests, Answers: b.answers, NewID: newID, Registry: b.reg,
		Grace: 5 * time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	w, err := witness.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := witness.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Serve(ctx, l) }()
	b.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	b.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	b.url = "http://" + l.Addr().String()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// seen is a request that reached the upstream.
type seen struct {
	method, uri, host string
	header            http.Header
	length            int64
	chunked           bool
	body              []byte
	whole             bool // the body came to its end
}

// upstream is a provider that records requests and answers as it is told.
type upstream struct {
	*httptest.Server
	t      testing.TB
	answer http.HandlerFunc // called with the body read; nil: an echo

	mu   sync.Mutex
	seen []seen
	news chan struct{}
}

func provide(t testing.TB, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{t: t, answer: answer, news: make(chan struct{})}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	u.record(seen{
		r.Method, r.RequestURI, r.Host, r.Header, r.ContentLength, len(r.TransferEncoding) > 0, body, err == nil,
	})
	if err != nil {
		return
	}
	if u.answer != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		u.answer(w, r)
		return
	}
	_, _ = w.Write(append([]byte("echo: "), body...))
}

func (u *upstream) record(s seen) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen = append(u.seen, s)
	close(u.news)
	u.news = make(chan struct{})
}

// all returns what came, when that is at least n requests.
func (u *upstream) all(n int) []seen {
	u.t.Helper()
	for end := time.After(20 * time.Second); ; {
		u.mu.Lock()
		all, news := slices.Clip(u.seen), u.news
		u.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-news:
		case <-end:
			u.t.Fatalf("%d requests came, want %d", len(all), n)
		}
	}
}

// response is what a client got.
type response struct {
	status  int
	header  http.Header
	trailer http.Header
	body    []byte
	err     error // of reading the body, or with the status 0 why there is no answer
}

// do sends a request and reads the answer; a failure to get one fails the test.
func (b *bench) do(method, path string, header http.Header, body io.Reader) response {
	b.t.Helper()
	got := b.try(method, path, header, body)
	if got.status == 0 {
		b.t.Fatal(got.err)
	}
	return got
}

// try sends a request and reads the answer, of which there may be none.
func (b *bench) try(method, path string, header http.Header, body io.Reader) response {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	resp, err := b.client.Do(req)
	if err != nil {
		return response{err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	got := response{status: resp.StatusCode, header: resp.Header}
	got.body, got.err = io.ReadAll(resp.Body)
	got.trailer = resp.Trailer
	return got
}

// unsized hides a reader's length, so that a body is sent in chunks.
func unsized(r io.Reader) io.Reader { return struct{ io.Reader }{r} }

func names(seq string) http.Header {
	return http.Header{provider.HeaderSession: {string(session)}, provider.HeaderSeq: {seq}}
}

// metric returns a metric's value: a counter's, a gauge's, or the count of a histogram. labels are names and values.
func (b *bench) metric(name string, labels ...string) float64 {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := true
			for i := 0; i < len(labels); i += 2 {
				has := false
				for _, l := range m.GetLabel() {
					has = has || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				match = match && has
			}
			if match {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// outcome waits until so many requests have had an outcome.
func (b *bench) outcome(name string, n float64) {
	b.t.Helper()
	b.until("outcome "+name, func() bool { return b.metric("refold_witness_requests_total", "outcome", name) == n })
}

// until waits for a condition.
func (b *bench) until(what string, condition func() bool) {
	b.t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for end := time.After(20 * time.Second); !condition(); {
		select {
		case <-again.C:
		case <-end:
			b.t.Fatalf("it does not come to that: %s", what)
		}
	}
}

// raw is a connection on which a test writes and reads bytes.
func raw(t testing.TB, address string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}
