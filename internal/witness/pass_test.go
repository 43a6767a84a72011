package witness_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/witness"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

func TestReceipts(t *testing.T) {
	t.Parallel()
	u := provide(t, nil)
	b := stand(t, u.URL+"/v1/")
	body := []byte(`{"model":"m"}`)
	got := b.do("POST", "/chat/completions?key=secret", names("7"), bytes.NewReader(body))
	if got.status != 200 || string(got.body) != `echo: {"model":"m"}` || got.err != nil {
		t.Fatalf("%+v", got)
	}
	request, answer := b.requests.all(1)[0], b.answers.all(1)[0]
	want := audit.Receipt{
		Kind: audit.ReceiptRequest, Call: request.Call, Session: session, Seq: 7, Method: "POST", Target: "/chat/completions",
		Body: digestOf(body), Time: request.Time, Witness: b.key.Public(), Signature: request.Signature,
	}
	if diff := cmp.Diff(want, request); diff != "" || request.Time == 0 || !request.Call.Valid() {
		t.Errorf("-want +got\n%s", diff)
	}
	want.Kind, want.Status, want.Complete, want.Body = audit.ReceiptAnswer, 200, true, digestOf(got.body)
	want.Time, want.Signature = answer.Time, answer.Signature
	if diff := cmp.Diff(want, answer); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	s := u.all(1)[0]
	if s.method != "POST" || s.uri != "/v1/chat/completions?key=secret" || "http://"+s.host != u.URL || !bytes.Equal(s.body, body) {
		t.Errorf("%+v", s)
	}
	for name, want := range map[string]float64{"refold_witness_receipt_seconds": 1, "refold_witness_inflight": 0} {
		b.until(name, func() bool { return b.metric(name) == want })
	}
	b.outcome("answered", 1)
	b.until("both receipts are counted", func() bool {
		return b.metric("refold_witness_receipts_total", "kind", "request", "stored", "yes") == 1 &&
			b.metric("refold_witness_receipts_total", "kind", "answer", "stored", "yes") == 1
	})
}

// TestHeaders: what a client sends and a provider answers passes, but for what ends at each connection.
func TestHeaders(t *testing.T) {
	t.Parallel()
	u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["X-Many"] = []string{"a", "b"}
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "gone")
		h.Set("Location", "/elsewhere")
		h["Content-Type"] = nil
		h.Set("Trailer", "X-Late")
		w.WriteHeader(http.StatusTemporaryRedirect)
		_, _ = io.WriteString(w, "<html>")
		h.Set("X-Late", "late")
		h.Set(http.TrailerPrefix+"X-Unannounced", "too")
	})
	b := stand(t, u.URL)
	got := b.do("POST", "/a%2Fb;c?x=1;y=%zz", http.Header{
		"Authorization": {"Bearer s"}, "Accept-Encoding": {"br"}, "X-Forwarded-For": {"1.2.3.4"}, "Idempotency-Key": {"k"},
		"Connection": {"X-Private"}, "X-Private": {"gone"}, "User-Agent": {""}, "X-Refold-Session": {string(session)}, "X-Refold-Seq": {"3"},
		"Upgrade": {"websocket"},
	}, strings.NewReader("body"))
	if got.status != 307 || string(got.body) != "<html>" || got.trailer.Get("X-Late") != "late" || got.trailer.Get("X-Unannounced") != "too" {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"a", "b"}, got.header["X-Many"]); diff != "" || got.header.Get("X-Hop") != "" || got.header["Content-Type"] != nil || got.header.Get("Location") != "/elsewhere" {
		t.Errorf("%+v", got.header)
	}
	s := u.all(1)[0]
	want := http.Header{
		"Authorization": {"Bearer s"}, "Accept-Encoding": {"br"}, "X-Forwarded-For": {"1.2.3.4"}, "Idempotency-Key": {"k"},
		"Content-Length": {"4"},
	}
	if diff := cmp.Diff(want, s.header); diff != "" || s.uri != "/a%2Fb;c?x=1;y=%zz" {
		t.Errorf("%s: -want +got\n%s", s.uri, diff)
	}
	if r := b.requests.all(1)[0]; r.Target != "/a%2Fb;c" || r.Seq != 3 {
		t.Errorf("%+v", r)
	}
	if r := b.answers.all(1)[0]; r.Status != 307 || !r.Complete || r.Body != digestOf([]byte("<html>")) {
		t.Errorf("%+v", r)
	}
}

// TestNames: headers that are not clear name nothing.
func TestNames(t *testing.T) {
	t.Parallel()
	u := provide(t, nil)
	b := stand(t, u.URL)
	id := string(session)
	for i, tt := range []struct {
		sessions, seqs []string
		session        events.ID
		seq            uint64
	}{
		{nil, nil, "", 0},
		{[]string{id}, []string{"7"}, session, 7},
		{[]string{id}, []string{"18446744073709551615"}, session, 1<<64 - 1},
		{[]string{id}, nil, session, 0},
		{nil, []string{"7"}, "", 0},
		{[]string{id, id}, []string{"7"}, "", 0},
		{[]string{id, "x"}, []string{"7"}, "", 0},
		{[]string{id}, []string{"7", "7"}, "", 0},
		{[]string{id + ", " + id}, []string{"7"}, "", 0},
		{[]string{strings.ToLower(id)}, []string{"7"}, "", 0},
		{[]string{id + "x"}, []string{"7"}, "", 0},
		{[]string{"../" + id}, []string{"7"}, "", 0},
		{[]string{"*"}, []string{"7"}, "", 0},
		{[]string{id[:25] + "\u00c5"}, []string{"7"}, "", 0},
		{[]string{"\uff10" + id[1:]}, []string{"7"}, "", 0}, // a wide digit
		{[]string{id + "\xff"}, []string{"7"}, "", 0},
		{[]string{id}, []string{"\uff17"}, "", 0},
		{[]string{id}, []string{"\u0667"}, "", 0},
		{[]string{id}, []string{"7\xff"}, "", 0},
		{[]string{""}, []string{"7"}, "", 0},
		{[]string{string(audit.NoSession)}, []string{"7"}, "", 0},
		{[]string{id}, []string{"0"}, "", 0},
		{[]string{id}, []string{"-1"}, "", 0},
		{[]string{id}, []string{"+1"}, "", 0},
		{[]string{id}, []string{"07"}, "", 0},
		{[]string{id}, []string{"7.0"}, "", 0},
		{[]string{id}, []string{"18446744073709551616"}, "", 0},
		{[]string{id}, []string{""}, "", 0},
	} {
		h := http.Header{}
		if tt.sessions != nil {
			h[provider.HeaderSession] = tt.sessions
		}
		if tt.seqs != nil {
			h["x-ReFold-seq"] = tt.seqs // in any case of its letters
		}
		if got := b.do("POST", "/", h, strings.NewReader("x")); got.status != 200 {
			t.Fatalf("%+v: %+v", tt, got)
		}
		r := b.requests.all(i + 1)[i]
		if r.Session != tt.session || r.Seq != tt.seq {
			t.Errorf("%q, %q: session %q, event %d", tt.sessions, tt.seqs, r.Session, r.Seq)
		}
		if s := u.all(i + 1)[i]; s.header.Get(provider.HeaderSession) != "" || s.header.Get(provider.HeaderSeq) != "" {
			t.Errorf("the provider sees them: %v", s.header)
		}
	}
}

// TestShapes: requests of every shape arrive as they were sent.
func TestShapes(t *testing.T) {
	t.Parallel()
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.Header().Set("Content-Length", "1000")
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	b := stand(t, u.URL, func(c *witness.Config) { c.Hold = 100 })
	n := 0
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"} {
		for _, size := range []int{0, 1, 99, 100, 101, 200, 201, 202, 5000, 100_000} {
			for _, chunked := range []bool{false, true} {
				if (method == "GET" || method == "HEAD" || method == "OPTIONS") && size == 0 && chunked {
					continue // an empty body in chunks says no more than none
				}
				n++
				body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
				var r io.Reader = bytes.NewReader(body)
				switch {
				case chunked:
					r = unsized(r)
				case size == 0:
					r = http.NoBody
				}
				got := b.do(method, "/x", http.Header{"Idempotency-Key": {"k"}}, r)
				s, receipt := u.all(n)[n-1], b.requests.all(n)[n-1]
				where := fmt.Sprintf("%s, %d bytes, chunked %t", method, size, chunked)
				if got.status != 200 || got.err != nil || method != "HEAD" && !bytes.Equal(got.body, body) {
					t.Errorf("%s: %d, %d bytes, %v", where, got.status, len(got.body), got.err)
				}
				if method == "HEAD" && got.header.Get("Content-Length") != "1000" {
					t.Errorf("%s: %v", where, got.header)
				}
				if s.method != method || !bytes.Equal(s.body, body) || !chunked && s.length != int64(size) || receipt.Body != digestOf(body) {
					t.Errorf("%s: %s, length %d, %d bytes; receipt %+v", where, s.method, s.length, len(s.body), receipt.Body)
				}
				if (size > 0 || method == "POST") && s.chunked != chunked {
					t.Errorf("%s: it came chunked: %t", where, s.chunked)
				}
			}
		}
	}
	for _, r := range b.answers.all(n) {
		if r.Status != 200 || !r.Complete {
			t.Errorf("%+v", r)
		}
	}
}

// TestStreams: each piece of an answer is with the client before the next one is sent.
func TestStreams(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-arrived:
			case <-r.Context().Done():
				t.Error("the client has gone")
				return
			}
		}
	})
	b := stand(t, u.URL)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/x", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var all bytes.Buffer
	lines := bufio.NewReader(io.TeeReader(resp.Body, &all))
	for i := range 20 {
		for _, want := range []string{fmt.Sprintf("data: %d\n", i), "\n"} {
			if line, err := lines.ReadString('\n'); err != nil || line != want {
				t.Fatalf("%q, %v", line, err)
			}
		}
		arrived <- struct{}{}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if r := b.answers.all(1)[0]; !r.Complete || r.Body != digestOf(all.Bytes()) {
		t.Errorf("%+v", r)
	}
}

// TestStreamsUp: what comes of a request is passed on as it comes, but for what is held back.
func TestStreamsUp(t *testing.T) {
	t.Parallel()
	got := make(chan byte)
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for r := bufio.NewReader(r.Body); ; {
			c, err := r.ReadByte()
			if err != nil {
				close(got)
				return
			}
			got <- c
		}
	}))
	t.Cleanup(up.Close)
	b := stand(t, up.URL, func(c *witness.Config) { c.Hold = 10 })
	body, feed := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := b.do("POST", "/x", nil, body); got.status != 200 {
			t.Errorf("%+v", got)
		}
	})
	for i := range 200 {
		if _, err := feed.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if i >= 10 {
			if c := <-got; c != byte(i-10) {
				t.Fatalf("byte %d came after %d were sent", c, i+1)
			}
		}
	}
	select {
	case c := <-got:
		t.Errorf("byte %d was not held back", c)
	default:
	}
	if err := feed.Close(); err != nil {
		t.Fatal(err)
	}
	n := 190
	for c := range got {
		if c != byte(n) {
			t.Fatalf("byte %d in the place of %d", c, n)
		}
		n++
	}
	wg.Wait()
	if n != 200 {
		t.Errorf("%d bytes came", n)
	}
}

// TestEncoded: nobody decodes what passes.
func TestEncoded(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytes.Repeat([]byte("data: x\n\n"), 1000))
	_ = z.Close()
	u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	})
	b := stand(t, u.URL)
	got := b.do("POST", "/x", http.Header{"Content-Encoding": {"gzip"}}, bytes.NewReader(packed.Bytes()))
	if !bytes.Equal(got.body, packed.Bytes()) || got.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d bytes, %v", len(got.body), got.header)
	}
	if s := u.all(1)[0]; !bytes.Equal(s.body, packed.Bytes()) || s.header.Get("Accept-Encoding") != "" {
		t.Errorf("%d bytes, %v", len(s.body), s.header)
	}
	if b.answers.all(1)[0].Body != digestOf(packed.Bytes()) || b.requests.all(1)[0].Body != digestOf(packed.Bytes()) {
		t.Error("the receipts are of something else")
	}
}

func TestTLSUpstream(t *testing.T) {
	t.Parallel()
	u := &upstream{t: t, news: make(chan struct{})}
	u.Server = httptest.NewUnstartedServer(u)
	u.EnableHTTP2 = true
	u.StartTLS()
	t.Cleanup(u.Close)
	pool := x509.NewCertPool()
	pool.AddCert(u.Certificate())
	b := stand(t, u.URL+"/base", func(c *witness.Config) { c.TLS = &tls.Config{RootCAs: pool} })
	for range 3 {
		if got := b.do("POST", "/x", names("1"), strings.NewReader("hello")); string(got.body) != "echo: hello" {
			t.Errorf("%+v", got)
		}
	}
	stranger := stand(t, u.URL) // knows no authority that has signed it
	if got := stranger.do("POST", "/x", names("1"), strings.NewReader("hello")); got.status != http.StatusBadGateway || len(u.all(3)) != 3 {
		t.Errorf("%+v", got)
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	u := provide(t, nil)
	b := stand(t, u.URL)
	var wg sync.WaitGroup
	const workers, calls = 16, 20
	for w := range workers {
		wg.Go(func() {
			for i := range calls {
				body := bytes.Repeat([]byte{byte(w), byte(i)}, 1+i*2000)
				got := b.do("POST", "/x", names(fmt.Sprint(1+w*calls+i)), bytes.NewReader(body))
				if got.status != 200 || !bytes.Equal(got.body, append([]byte("echo: "), body...)) {
					t.Errorf("%d, %d bytes, %v", got.status, len(got.body), got.err)
				}
			}
		})
	}
	wg.Wait()
	requests := map[events.ID]audit.Receipt{}
	for _, r := range b.requests.all(workers * calls) {
		w, i := int(r.Seq-1)/calls, int(r.Seq-1)%calls
		if r.Body != digestOf(bytes.Repeat([]byte{byte(w), byte(i)}, 1+i*2000)) {
			t.Errorf("%v", r)
		}
		requests[r.Call] = r
	}
	for _, r := range b.answers.all(workers * calls) {
		if requests[r.Call].Seq != r.Seq || !r.Complete {
			t.Errorf("%v", r)
		}
	}
	if len(requests) != workers*calls {
		t.Errorf("%d calls", len(requests))
	}
}
