package witness_test

import (
	"bufio"
	"bytes"
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

	"github.com/refold-dev/refold/internal/witness"
)

// eager is a provider that answers as soon as it has a JSON value, and reads the rest of a request only when it is told.
func eager(t testing.TB, reads bool, answer func(http.ResponseWriter)) *httptest.Server {
	t.Helper()
	over := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		var v any
		if json.NewDecoder(r.Body).Decode(&v) != nil {
			return
		}
		answer(w)
		_ = http.NewResponseController(w).Flush()
		if reads {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		<-over
	}))
	t.Cleanup(up.Close)
	t.Cleanup(func() { close(over) })
	return up
}

// begun is a request of which most is still to come, with all that a provider wants.
func begun(length int) string {
	body := `{"messages":["a prompt"]}` + strings.Repeat(" ", 64<<10)
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Length: %d\r\n\r\n%s", max(length, len(body)), body)
}

// TestEarlySuccess: a request without an end gets nothing of an answer, whatever the provider has made of it.
func TestEarlySuccess(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		reads  bool // the provider waits for the rest
		leaves bool // the client sends no more, and says so
		answer func(http.ResponseWriter)
	}{
		"an answer": {200, true, false, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "the answer") }},
		"a long answer": {200, true, false, func(w http.ResponseWriter) {
			_, _ = w.Write(bytes.Repeat([]byte("the answer"), 1000))
		}},
		"a provider that reads no more": {200, false, false, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "the answer") }},
		"a client that sends no more":   {200, true, true, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "the answer") }},
		"no content": {204, true, false, func(w http.ResponseWriter) {
			w.Header().Set("X-Answer", "the answer")
			w.WriteHeader(http.StatusNoContent)
		}},
		"a redirection": {302, true, false, func(w http.ResponseWriter) {
			w.Header().Set("Location", "/the%20answer")
			w.WriteHeader(http.StatusFound)
		}},
		"early hints": {413, true, false, func(w http.ResponseWriter) {
			w.Header().Set("X-Answer", "the answer")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("X-Answer")
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := eager(t, tt.reads, tt.answer)
			b := stand(t, up.URL, func(c *witness.Config) { c.BodyTimeout = 200 * time.Millisecond })
			conn := raw(t, strings.TrimPrefix(b.url, "http://"))
			if _, err := io.WriteString(conn, begun(1_000_000)); err != nil {
				t.Fatal(err)
			}
			if tt.leaves {
				if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
			}
			got, err := io.ReadAll(conn) // to its end: the connection is closed
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") {
				t.Error(err)
			}
			if !bytes.HasPrefix(got, []byte("HTTP/1.1 4")) && !bytes.HasPrefix(got, []byte("HTTP/1.1 502")) || bytes.Contains(got, []byte("the answer")) {
				t.Errorf("the client got %.1000q", got)
			}
			answers := 1
			if tt.leaves { // the call may be over before the provider has said anything
				answers = 0
			}
			for _, r := range b.answers.all(answers) {
				if r.Complete && r.Status < 400 || r.Status != int64(tt.status) || r.Body != digestOf(nil) {
					t.Errorf("%+v", r)
				}
			}
			if len(b.requests.all(0)) != 0 {
				t.Error("a receipt of a request without an end")
			}
		})
	}
}

// TestAnswerWaits: an answer that begins early passes when the request has ended, behind its receipt.
func TestAnswerWaits(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	up := eager(t, true, func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, "the answer")
		close(answered)
	})
	b := stand(t, up.URL)
	conn := raw(t, strings.TrimPrefix(b.url, "http://"))
	text := begun(1_000_000)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	<-answered
	if len(b.requests.all(0)) != 0 {
		t.Fatal("a receipt of half a request")
	}
	rest := 1_000_000 - (len(text) - strings.Index(text, "\r\n\r\n") - 4)
	if _, err := io.WriteString(conn, strings.Repeat(" ", rest)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if len(b.requests.all(0)) != 1 {
		t.Error("the answer came before the receipt")
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "the answer" || resp.Close {
		t.Errorf("%q, %v", body, err)
	}
	if r := b.answers.all(1)[0]; !r.Complete || r.Status != 200 {
		t.Errorf("%+v", r)
	}
}

// answersTo sends a request whose body is first and then rest, in one of three forms, and returns how many answers come
// before the connection ends. If it waits, the rest is sent behind the first answer.
func answersTo(t *testing.T, address, path string, form int, first, rest string, waits bool) (answers int) {
	head, tail := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(first)+len(rest), first), rest
	if form > 0 {
		head, tail = "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(rest), rest)
		if first != "" {
			head += fmt.Sprintf("%x\r\n%s\r\n", len(first), first)
		}
	}
	if form == 2 { // no chunk
		tail = "no chunk\r\n" + rest
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	in := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: w\r\n"+head); err != nil {
		t.Error(err)
	}
	next := func() bool {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return false
		}
		answers++
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return err == nil && !resp.Close
	}
	if waits {
		next()
	}
	_, _ = io.WriteString(conn, tail)
	_ = conn.(*net.TCPConn).CloseWrite()
	for next() { // until the connection ends
	}
	return answers
}

// TestSmuggled: nothing within a request's body is ever taken for a request, however the first of it was answered.
func TestSmuggled(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	paths := map[string]int{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		paths[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/early":
			_ = http.NewResponseController(w).EnableFullDuplex() // otherwise the rest is read first
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		case "/late":
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(up.Close)
	var log linesOf
	b := stand(t, up.URL, func(c *witness.Config) { c.Hold, c.Log = 10, slog.New(slog.NewTextHandler(&log, nil)) })
	address := strings.TrimPrefix(b.url, "http://")
	inner := "POST /smuggled HTTP/1.1\r\nHost: w\r\nX-Refold-Session: " + string(session) + "\r\nX-Refold-Seq: 9\r\nContent-Length: 1\r\n\r\nz"
	var all sync.WaitGroup // each takes a second, in which the server waits for its connection to end
	for _, path := range []string{"/early", "/late", "/ignored"} {
		for _, before := range []int{0, 1, 5, 11, 30, 100, 5000} {
			for form := range 3 {
				for _, behind := range []int{0, 1, 100} {
					first, rest := strings.Repeat("x", before), inner+strings.Repeat("y", behind)
					all.Go(func() {
						if n := answersTo(t, address, path, form, first, rest, false); n > 1 {
							t.Errorf("%s, form %d, %d bytes before and %d behind: %d answers to one request", path, form, before, behind, n)
						}
					})
					if path == "/early" && before > 20 {
						all.Go(func() {
							if n := answersTo(t, address, path, form, first, rest, true); n > 1 {
								t.Errorf("form %d, %d bytes before and %d behind, sent behind the answer: %d answers", form, before, behind, n)
							}
						})
					}
				}
			}
		}
	}
	all.Wait()
	for _, line := range log.all() {
		if strings.Contains(line, "panic") {
			t.Errorf("%.1000s", line)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if paths["/smuggled"] != 0 {
		t.Errorf("%d requests were smuggled", paths["/smuggled"])
	}
	for _, r := range b.requests.all(0) {
		if r.Session != "" || r.Target == "/smuggled" {
			t.Errorf("a receipt of what was no request: %+v", r)
		}
	}
}

// TestStandstill: a body that stands still ends its call, and so does a connection without requests; an answer may take as
// long as it takes.
func TestStandstill(t *testing.T) {
	t.Parallel()
	const still = 50 * time.Millisecond
	var slow atomic.Bool
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() {
			select {
			case <-time.After(6 * still):
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "done")
	})
	b := stand(t, u.URL, func(c *witness.Config) { c.BodyTimeout, c.IdleTimeout, c.Hold = still, still, 1000 })
	address := strings.TrimPrefix(b.url, "http://")
	for _, head := range []string{
		"Content-Length: 10\r\n\r\nx", "Content-Length: 50000\r\n\r\n" + strings.Repeat("x", 20_000),
		"Transfer-Encoding: chunked\r\n\r\n5\r\nx", "Transfer-Encoding: chunked\r\n\r\n",
	} {
		conn := raw(t, address)
		if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\n"+head); err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(conn); !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("witness_aborted")) {
			t.Errorf("%.40q: %q", head, got)
		}
	}
	b.until("no call is under way", func() bool { return b.metric("refold_witness_inflight") == 0 })
	slow.Store(true)
	conn := raw(t, address)
	if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\nContent-Length: 1\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn) // which the witness ends
	if err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(got, []byte("done")) {
		t.Errorf("%q, %v", got, err)
	}
	if len(b.requests.all(0)) != 1 {
		t.Errorf("%d receipts", len(b.requests.all(0)))
	}
}
