package witness_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
)

// refusalOf reads what the witness itself answers.
func refusalOf(t *testing.T, got response) (message, kind string) {
	t.Helper()
	var body struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
		} `json:"error"`
	}
	if err := json.Unmarshal(got.body, &body); err != nil || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("%q: %v", got.body, err)
	}
	return body.Error.Message, body.Error.Type
}

// TestStoreFaults fails the write of a request's receipt in every way, with bodies around what is held back: the
// provider never has a whole request without a stored receipt.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		fault  fault
		passes bool
		stored int
	}{
		{"none", fault{}, true, 1},
		{"before", fault{before: true}, false, 0},
		{"after", fault{after: true}, false, 1},
		{"silent", fault{wait: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}, false, 0},
		{"end of file", fault{wait: func(context.Context) error { return io.EOF }}, false, 0},
	} {
		for _, size := range []int{0, 1, 99, 100, 101, 199, 200, 201, 300, 70_000} {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%t", tt.name, size, chunked), func(t *testing.T) {
					t.Parallel()
					u := provide(t, nil)
					b := stand(t, u.URL, func(c *witness.Config) { c.Hold, c.StoreTimeout = 100, 50*time.Millisecond })
					b.requests.decide = func(*audit.Receipt) fault { return tt.fault }
					body := bytes.Repeat([]byte("x"), size)
					var r io.Reader = bytes.NewReader(body)
					if chunked {
						r = unsized(r)
					}
					got := b.do("POST", "/x", names("7"), r)
					whole := 0
					for _, s := range u.all(0) {
						if s.whole {
							whole++
						}
					}
					if tt.passes {
						if got.status != 200 || whole != 1 {
							t.Errorf("%+v, %d whole requests", got, whole)
						}
						return
					}
					if _, kind := refusalOf(t, got); got.status != http.StatusServiceUnavailable || kind != "witness_refused" {
						t.Errorf("%d %s", got.status, got.body)
					}
					if whole != 0 {
						t.Errorf("%d whole requests came", whole)
					}
					if n := len(b.requests.all(tt.stored)); n != tt.stored {
						t.Errorf("%d receipts", n)
					}
					b.outcome("refused", 1)
					if n := len(b.answers.all(0)); n != 0 {
						t.Errorf("%d receipts of answers to what was not sent", n)
					}
				})
			}
		}
	}
}

// TestSlowStore: while the receipt is being stored the provider has all but what is held back, and then the rest.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	var came atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 1000)
		for {
			n, err := r.Body.Read(buf)
			came.Add(int64(n))
			if err != nil {
				break
			}
		}
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(up.Close)
	b := stand(t, up.URL)
	const size = 100_000
	storing, gate := make(chan struct{}), make(chan struct{})
	b.requests.decide = func(*audit.Receipt) fault {
		return fault{wait: func(ctx context.Context) error {
			close(storing)
			select {
			case <-gate:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := b.do("POST", "/x", names("7"), bytes.NewReader(make([]byte, size))); string(got.body) != "done" {
			t.Errorf("%+v", got)
		}
	})
	<-storing
	const hold = 32 << 10
	b.until("all but the last bytes is there", func() bool { return came.Load() >= size-2*hold-1 })
	if n := came.Load(); n > size-hold {
		t.Errorf("%d bytes came without a receipt", n)
	}
	close(gate)
	wg.Wait()
	if came.Load() != size {
		t.Errorf("%d bytes came", came.Load())
	}
}

// TestAnyRequest: for requests of any size in any pieces, that end or do not, and a store that fails or does not, whatever
// reaches the provider whole has a receipt, and is what was sent.
func TestAnyRequest(t *testing.T) {
	t.Parallel()
	var b *bench
	u := provide(t, nil)
	var next fault
	b = stand(t, u.URL, func(c *witness.Config) { c.Hold, c.StoreTimeout = 1000, 20*time.Millisecond })
	b.requests.decide = func(*audit.Receipt) fault { return next }
	address := strings.TrimPrefix(b.url, "http://")
	whole := 0
	rapid.Check(t, func(rt *rapid.T) {
		body := []byte(strings.Repeat("0123456789", 500)[:rapid.IntRange(0, 5000).Draw(rt, "size")])
		chunked := rapid.Bool().Draw(rt, "chunked")
		ends := rapid.Float64Range(0, 1).Draw(rt, "ends") > 0.2
		next = fault{before: rapid.Float64Range(0, 1).Draw(rt, "before") > 0.9, after: rapid.Float64Range(0, 1).Draw(rt, "after") > 0.9}
		conn := raw(t, address)
		defer func() { _ = conn.Close() }()
		text := "POST /x HTTP/1.1\r\nHost: w\r\nX-Refold-Session: " + string(session) + "\r\nX-Refold-Seq: 9\r\n"
		rest := body
		if !ends {
			rest = body[:rapid.IntRange(0, len(body)).Draw(rt, "sent")]
		}
		if chunked {
			text += "Transfer-Encoding: chunked\r\n\r\n"
			for len(rest) > 0 {
				n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
				text += fmt.Sprintf("%x\r\n%s\r\n", n, rest[:n])
				rest = rest[n:]
			}
			if ends {
				text += "0\r\n\r\n"
			}
		} else {
			length := len(body)
			if !ends {
				length++
			}
			text += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", length, rest)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			rt.Fatal(err)
		}
		if !ends {
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				rt.Fatal(err)
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		status := 0
		if err == nil {
			status = resp.StatusCode
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if passes := ends && !next.before && !next.after; passes != (status == 200) {
			rt.Fatalf("status %d, %v, want a pass: %t", status, err, passes)
		} else if passes {
			whole++
		}
		if ends && !next.before && !b.requests.holds(body) {
			rt.Fatal("there is no receipt")
		}
	})
	n := 0
	for _, s := range u.all(whole) {
		if !s.whole {
			continue
		}
		n++
		if !b.requests.holds(s.body) {
			t.Errorf("a whole request of %d bytes without a receipt", len(s.body))
		}
	}
	if n != whole {
		t.Errorf("%d whole requests came, %d were answered", n, whole)
	}
}

// TestClientAborts: a body without an end gets no receipt and never becomes one that has an end.
func TestClientAborts(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"Content-Length: 50000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n9c40\r\n"} {
		var log bytes.Buffer
		u := provide(t, nil)
		b := stand(t, u.URL, func(c *witness.Config) {
			c.Hold, c.Log = 1000, slog.New(slog.NewTextHandler(&log, nil))
		})
		conn := raw(t, strings.TrimPrefix(b.url, "http://"))
		if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\nAuthorization: Bearer verysecret\r\n"+head+strings.Repeat("x", 40_000)); err != nil {
			t.Fatal(err)
		}
		b.until("it is under way", func() bool { return b.metric("refold_witness_inflight") == 1 })
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if s := u.all(1)[0]; s.whole || len(s.body) > 39_000 {
			t.Errorf("whole %t, %d bytes", s.whole, len(s.body))
		}
		b.outcome("aborted", 1)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if len(b.requests.all(0)) != 0 || len(b.answers.all(0)) != 0 {
			t.Error("there is a receipt")
		}
		if s := log.String(); !strings.Contains(s, "outcome=aborted") || strings.Contains(s, "verysecret") {
			t.Error(s)
		}
	}
}

// TestClientLeaves: who goes away in the middle of an answer ends the call at the provider.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the beginning")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(ended)
	})
	b := stand(t, u.URL)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/x", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, len("the beginning"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = resp.Body.Close()
	<-ended
	if r := b.answers.all(1)[0]; r.Complete || r.Status != 200 || r.Body != digestOf([]byte("the beginning")) {
		t.Errorf("%+v", r)
	}
	b.outcome("left", 1)
}

// TestUpstreamDies: an answer that breaks off breaks for the client too.
func TestUpstreamDies(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nd\r\n"} {
		u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = buf.WriteString("HTTP/1.1 200 OK\r\n" + head + "the beginning")
			_ = buf.Flush()
			_ = conn.Close()
		})
		b := stand(t, u.URL)
		got := b.do("POST", "/x", nil, strings.NewReader("x"))
		if !errors.Is(got.err, io.ErrUnexpectedEOF) || string(got.body) != "the beginning" {
			t.Errorf("%q, %v", got.body, got.err)
		}
		if r := b.answers.all(1)[0]; r.Complete || r.Status != 200 || r.Body != digestOf([]byte("the beginning")) {
			t.Errorf("%+v", r)
		}
		b.outcome("broken", 1)
	}
}

// TestUpstreamUnreachable: the receipt stands, and says nothing of an answer.
func TestUpstreamUnreachable(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b := stand(t, "http://"+l.Addr().String())
	got := b.do("POST", "/x?key=verysecret", names("7"), strings.NewReader("x"))
	message, kind := refusalOf(t, got)
	if got.status != http.StatusBadGateway || kind != "witness_unreachable" || !strings.Contains(message, l.Addr().String()) || strings.Contains(message, "verysecret") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if r := b.answers.all(1)[0]; r.Complete || r.Status != 0 || r.Body != digestOf(nil) {
		t.Errorf("%+v", r)
	}
	b.outcome("unreachable", 1)
}

// TestSecrets: a provider that echoes a credential where an answer should stand gets it into no log and no message.
func TestSecrets(t *testing.T) {
	t.Parallel()
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = buf.WriteString(r.Header.Get("Authorization") + "\r\n\r\n")
		_ = buf.Flush()
		_ = conn.Close()
	})
	var log bytes.Buffer
	b := stand(t, u.URL, func(c *witness.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	got := b.do("POST", "/x", http.Header{"Authorization": {"Bearer verysecret"}}, strings.NewReader("x"))
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if got.status != http.StatusBadGateway || bytes.Contains(got.body, []byte("verysecret")) || strings.Contains(log.String(), "verysecret") || !strings.Contains(log.String(), "[credential]") {
		t.Errorf("%d %s: %s", got.status, got.body, log.String())
	}
}

// TestNeverTwice: a provider that takes a request on a kept connection and hangs up gets it once, whatever the
// request says of itself.
func TestNeverTwice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, header, body string }{
		{"GET", "", ""},
		{"HEAD", "", ""},
		{"OPTIONS", "", ""},
		{"POST", "Idempotency-Key", "x"},
		{"POST", "Idempotency-Key", ""},
		{"POST", "X-Idempotency-Key", ""},
		{"POST", "Idempotency-Key", strings.Repeat("x", 100_000)},
		{"DELETE", "Idempotency-Key", ""},
		{"PUT", "", "x"},
	} {
		var n atomic.Int64
		u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) == 1 {
				return
			}
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Close()
		})
		b := stand(t, u.URL)
		header := http.Header{}
		if tt.header != "" {
			header.Set(tt.header, "k")
		}
		for i, want := range []int{200, 502} {
			var body io.Reader = strings.NewReader(tt.body)
			if tt.body == "" {
				body = http.NoBody
			}
			if got := b.do(tt.method, "/x", header, body); got.status != want {
				t.Errorf("%+v, call %d: %+v", tt, i, got)
			}
		}
		if got := u.all(2); len(got) != 2 || tt.header != "" && got[1].header.Get(tt.header) != "k" {
			t.Errorf("%+v: %d requests", tt, len(got))
		}
	}
}

// TestEarlyAnswer: a provider may refuse a request before it has all of it.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "too large")
	}))
	t.Cleanup(up.Close)
	b := stand(t, up.URL, func(c *witness.Config) { c.Hold = 10 })
	conn := raw(t, strings.TrimPrefix(b.url, "http://"))
	if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 100)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil) // while most of the request is still to come
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge || string(body) != "too large" {
		t.Errorf("%d, %q, %v", resp.StatusCode, body, err)
	}
	if r := b.answers.all(1)[0]; r.Status != 413 || r.Body != digestOf([]byte("too large")) || len(b.requests.all(0)) != 0 {
		t.Errorf("%+v, %d receipts of requests", r, len(b.requests.all(0)))
	}
}

// TestSwitch: no other protocol is spoken through a witness, and what is no call of an API is refused.
func TestSwitch(t *testing.T) {
	t.Parallel()
	u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = buf.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nanything")
		_ = buf.Flush()
		_ = conn.Close()
	})
	b := stand(t, u.URL)
	address := strings.TrimPrefix(b.url, "http://")
	for line, want := range map[string]int{
		"GET /x HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket": 502,
		"CONNECT example.com:443 HTTP/1.1":                             501,
		"TRACE /x HTTP/1.1":                                            501,
		"OPTIONS * HTTP/1.1":                                           501,
		"GET http://example.com HTTP/1.1":                              501,
	} {
		conn := raw(t, address)
		if _, err := io.WriteString(conn, line+"\r\nHost: w\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%q: %d, want %d", line, resp.StatusCode, want)
		}
	}
	b.outcome("unsupported", 4)
}

// TestWire: what a client does at the level of bytes.
func TestWire(t *testing.T) {
	t.Parallel()
	u := provide(t, nil)
	b := stand(t, u.URL)
	conn := raw(t, strings.TrimPrefix(b.url, "http://"))
	in := bufio.NewReader(conn)
	read := func(method, want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != want || resp.StatusCode != http.StatusOK {
			t.Errorf("%d, %q, %v", resp.StatusCode, body, err)
		}
	}
	// Several requests at once on one connection.
	_, _ = io.WriteString(conn, "POST /1 HTTP/1.1\r\nHost: w\r\nContent-Length: 3\r\n\r\none"+
		"HEAD /2 HTTP/1.1\r\nHost: w\r\n\r\n"+
		"POST /3 HTTP/1.1\r\nHost: w\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nt\r\n4;ext=1\r\nhree\r\n0\r\nX-Trailer: x\r\n\r\n"+
		"GET /4 HTTP/1.1\r\nHost: w\r\n\r\n")
	read("POST", "echo: one")
	read("HEAD", "")
	read("POST", "echo: three")
	read("GET", "echo: ")
	// A client that waits to be told to go on.
	_, _ = io.WriteString(conn, "POST /5 HTTP/1.1\r\nHost: w\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = io.WriteString(conn, "five")
	read("POST", "echo: five")
	for i, s := range u.all(5) {
		if s.uri != fmt.Sprintf("/%d", i+1) || !s.whole || s.header.Get("Expect") != "" {
			t.Errorf("%+v", s)
		}
	}
	for i, want := range []string{"one", "", "three", "", "five"} {
		if r := b.requests.all(5)[i]; r.Body != digestOf([]byte(want)) {
			t.Errorf("%+v", r)
		}
	}
}
