package witness_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/refold-dev/refold/internal/witness"
)

// linesOf collects what is logged.
type linesOf struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *linesOf) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *linesOf) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.FieldsFunc(l.text.String(), func(r rune) bool { return r == '\n' })
}

// talk is an upstream that does with each connection what it is told.
func talk(t testing.TB, with func(conn net.Conn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				with(conn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return "http://" + l.Addr().String()
}

// reads takes one request with its body.
func reads(conn net.Conn) error {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

// TestHostileUpstream: whatever stands where an answer should, the client gets an answer or an end of its connection, nothing
// panics, and receipts say what passed.
func TestHostileUpstream(t *testing.T) {
	t.Parallel()
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"
	endless := func(begin, piece string) func(net.Conn) {
		return func(conn net.Conn) {
			_ = reads(conn)
			for text := begin; ; text = piece {
				if _, err := io.WriteString(conn, text); err != nil {
					return
				}
			}
		}
	}
	says := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			if reads(conn) == nil {
				_, _ = io.WriteString(conn, text)
			}
		}
	}
	for name, tt := range map[string]struct {
		upstream func(net.Conn)
		status   int    // that the client gets; 0: 200, unless the connection ends before the head has left
		body     string // and what of a body; not compared when the witness itself answers
		broken   bool   // and then its connection ends early
		answer   int64  // the status in the answer's receipt
		outcome  string
	}{
		"status 000":             {says("HTTP/1.1 000 Nothing\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status 001":             {says("HTTP/1.1 001 One\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status 099":             {says("HTTP/1.1 099 Less\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status -01":             {says("HTTP/1.1 -01 Less\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status +20":             {says("HTTP/1.1 +20 Plus\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status 1000":            {says("HTTP/1.1 1000 More\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status 20":              {says("HTTP/1.1 20 Less\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"status 600":             {says("HTTP/1.1 600 More\r\nContent-Length: 4\r\n\r\nbody"), 600, "body", false, 600, "answered"},
		"status 999":             {says("HTTP/1.1 999 More\r\nContent-Length: 4\r\n\r\nbody"), 999, "body", false, 999, "answered"},
		"100, and an answer":     {says("HTTP/1.1 100 Continue\r\n\r\n" + ok), 200, "body", false, 200, "answered"},
		"102, and an answer":     {says("HTTP/1.1 102 Processing\r\n\r\n" + ok), 200, "body", false, 200, "answered"},
		"103, and an answer":     {says("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + ok), 200, "body", false, 200, "answered"},
		"199, and an answer":     {says("HTTP/1.1 199 What\r\n\r\n" + ok), 200, "body", false, 200, "answered"},
		"103 alone":              {says("HTTP/1.1 103 Early Hints\r\n\r\n"), 502, "", false, 0, "unreachable"},
		"103 without end":        {endless("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), 502, "", false, 0, "unreachable"},
		"101":                    {says("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + ok), 502, "", false, 0, "unreachable"},
		"204 with a body":        {says("HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody"), 204, "", false, 204, "answered"},
		"304 with a body":        {says("HTTP/1.1 304 Not Modified\r\n\r\nbody"), 304, "", false, 304, "answered"},
		"no status line":         {says("\r\n\r\n"), 502, "", false, 0, "unreachable"},
		"nothing":                {says(""), 502, "", false, 0, "unreachable"},
		"garbage":                {says("\x00\x01\x02 what is this \xff\r\n\r\n"), 502, "", false, 0, "unreachable"},
		"garbage without end":    {endless("", "garbage"), 502, "", false, 0, "unreachable"},
		"another protocol":       {says("SSH-2.0-OpenSSH_9.9\r\n"), 502, "", false, 0, "unreachable"},
		"HTTP/0.9":               {says("body"), 502, "", false, 0, "unreachable"},
		"HTTP/1.0":               {says("HTTP/1.0 200 OK\r\n\r\nbody"), 200, "body", false, 200, "answered"},
		"HTTP/2":                 {says("HTTP/2.0 200 OK\r\nContent-Length: 4\r\n\r\nbody"), 200, "body", false, 200, "answered"},
		"frames of HTTP/2":       {says("\x00\x00\x12\x04\x00\x00\x00\x00\x00"), 502, "", false, 0, "unreachable"},
		"half a status line":     {says("HTTP/1.1 20"), 502, "", false, 0, "unreachable"},
		"half a header":          {says("HTTP/1.1 200 OK\r\nContent-Le"), 502, "", false, 0, "unreachable"},
		"headers without end":    {endless("HTTP/1.1 200 OK\r\n", "X-More: more\r\n"), 502, "", false, 0, "unreachable"},
		"a header without end":   {endless("HTTP/1.1 200 OK\r\nX-More: ", "more"), 502, "", false, 0, "unreachable"},
		"a header without name":  {says("HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"a malformed length":     {says("HTTP/1.1 200 OK\r\nContent-Length: four\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"a negative length":      {says("HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"two lengths":            {says("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"too little of a body":   {says("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody"), 200, "body", true, 200, "broken"},
		"too much of a body":     {says("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbody"), 200, "bod", false, 200, "answered"},
		"a huge length":          {says("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nbody"), 200, "body", true, 200, "broken"},
		"a length beyond":        {says("HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"no last chunk":          {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"), 200, "body", true, 200, "broken"},
		"no chunk":               {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nbody\r\n"), 0, "", true, 200, "broken"},
		"a huge chunk":           {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nbody"), 200, "body", true, 200, "broken"},
		"an unknown coding":      {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nbody"), 502, "", false, 0, "unreachable"},
		"a trailer without end":  {says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-More: "), 200, "body", true, 200, "broken"},
		"an answer, and another": {says(ok + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"), 200, "body", false, 200, "answered"},
		"hangs up at once":       {func(net.Conn) {}, 502, "", false, 0, "unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log linesOf
			b := stand(t, talk(t, tt.upstream), func(c *witness.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			const request = "the request"
			got := b.try("POST", "/x", names("7"), strings.NewReader(request))
			own := tt.outcome == "unreachable"
			if got.status != tt.status && (tt.status != 0 || got.status != 200) || !own && string(got.body) != tt.body || (got.err != nil) != tt.broken {
				t.Errorf("the client got %d, %q, %v", got.status, got.body, got.err)
			}
			if own {
				if _, kind := refusalOf(t, got); kind != "witness_unreachable" {
					t.Errorf("%s", got.body)
				}
			}
			b.outcome(tt.outcome, 1)
			passed := got.body
			if own {
				passed = nil
			}
			if r := b.requests.all(1)[0]; r.Body != digestOf([]byte(request)) {
				t.Errorf("%+v", r)
			}
			if r := b.answers.all(1)[0]; r.Status != tt.answer || r.Complete != (tt.outcome == "answered") || r.Body != digestOf(passed) {
				t.Errorf("%+v", r)
			}
			if err := b.stop(); err != nil {
				t.Error(err)
			}
			lines := log.all()
			if want := map[bool]int{false: 1, true: 0}[tt.outcome == "answered"]; len(lines) != want || len(lines) > 0 && len(lines[0]) > 1000 {
				t.Errorf("%d lines, want %d: %.2000q", len(lines), want, lines)
			}
		})
	}
}

// TestAnswerAhead: an upstream that answers before it is asked has answered the request that comes then, or none.
func TestAnswerAhead(t *testing.T) {
	t.Parallel()
	up := talk(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
		_ = reads(conn)
	})
	b := stand(t, up)
	const calls = 20
	var answered float64
	for range calls {
		got := b.do("POST", "/x", names("7"), strings.NewReader("x"))
		switch {
		case got.status == 200 && string(got.body) == "body":
			answered++
		case got.status != http.StatusBadGateway:
			t.Errorf("%+v", got)
		}
	}
	b.outcome("answered", answered)
	b.outcome("unreachable", calls-answered)
	if n := len(b.requests.all(calls)); n != calls {
		t.Errorf("%d receipts", n)
	}
	complete := 0.0
	for _, r := range b.answers.all(calls) {
		if r.Complete {
			complete++
		}
	}
	if complete != answered {
		t.Errorf("%v receipts of complete answers, %v came", complete, answered)
	}
}

// TestHostileClient: what a client sends that is no plain request gets an answer or an end of its connection, and only what
// reaches the upstream whole has a receipt, of that.
func TestHostileClient(t *testing.T) {
	t.Parallel()
	const host = "\r\nHost: w\r\n"
	huge := strings.Repeat("x", 300<<10)
	for name, tt := range map[string]struct {
		text   string
		status string // of the last answer, empty for none
		body   string // that the upstream gets
		passes bool
	}{
		"a WebSocket":             {"GET /x HTTP/1.1" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n\r\n", "200", "", true},
		"an upgrade to h2c":       {"POST /x HTTP/1.1" + host + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 1\r\n\r\nx", "200", "x", true},
		"an odd upgrade":          {"POST /x HTTP/1.1" + host + "Connection: Upgrade\r\nUpgrade: \xff\xfe\r\nContent-Length: 1\r\n\r\nx", "200", "x", true},
		"HTTP/2 at once":          {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "501", "", false},
		"CONNECT":                 {"CONNECT example.com:443 HTTP/1.1" + host + "\r\n", "501", "", false},
		"CONNECT with a body":     {"CONNECT /x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "501", "", false},
		"TRACE":                   {"TRACE /x HTTP/1.1" + host + "\r\n", "501", "", false},
		"TRACE with a body":       {"TRACE /x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "501", "", false},
		"a method of its own":     {"BREW /x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"a malformed method":      {"GE(T /x HTTP/1.1" + host + "\r\n", "400", "", false},
		"a star":                  {"OPTIONS * HTTP/1.1" + host + "\r\n", "501", "", false},
		"an absolute address":     {"POST http://example.com/x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"a file's address":        {"POST file:///x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"an opaque address":       {"POST mailto:x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "501", "", false},
		"another host's address":  {"POST //example.com/x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"user information":        {"POST http://u:verysecret@example.com/x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"no path":                 {"POST http://example.com HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "501", "", false},
		"chunks":                  {"POST /x HTTP/1.1" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "200", "x", true},
		"chunks and a length":     {"POST /x HTTP/1.1" + host + "Content-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "200", "x", true},
		"chunks of HTTP/1.0":      {"POST /x HTTP/1.0" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "200", "", true},
		"a malformed chunk":       {"POST /x HTTP/1.1" + host + "Transfer-Encoding: chunked\r\n\r\nchunk\r\nx\r\n", "400", "", false},
		"a huge chunk":            {"POST /x HTTP/1.1" + host + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n", "400", "", false},
		"an unknown coding":       {"POST /x HTTP/1.1" + host + "Transfer-Encoding: gzip\r\n\r\nx", "501", "", false},
		"two codings":             {"POST /x HTTP/1.1" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "501", "", false},
		"two lengths":             {"POST /x HTTP/1.1" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "400", "", false},
		"a negative length":       {"POST /x HTTP/1.1" + host + "Content-Length: -1\r\n\r\nx", "400", "", false},
		"a length beyond":         {"POST /x HTTP/1.1" + host + "Content-Length: 9223372036854775808\r\n\r\nx", "400", "", false},
		"no length":               {"POST /x HTTP/1.1" + host + "\r\n", "200", "", true},
		"a body in a GET":         {"GET /x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"to be told to go on":     {"POST /x HTTP/1.1" + host + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx", "200", "x", true},
		"told, without a body":    {"POST /x HTTP/1.1" + host + "Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", "200", "", true},
		"another expectation":     {"POST /x HTTP/1.1" + host + "Expect: wonders\r\nContent-Length: 1\r\n\r\nx", "417", "", false},
		"huge headers":            {"POST /x HTTP/1.1" + host + "X-Huge: " + huge + "\r\nContent-Length: 1\r\n\r\nx", "431", "", false},
		"a huge path":             {"POST /" + huge + " HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "431", "", false},
		"many headers":            {"POST /x HTTP/1.1" + host + strings.Repeat("X: y\r\n", 60<<10) + "\r\n", "431", "", false},
		"no host":                 {"POST /x HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", "400", "", false},
		"a malformed header":      {"POST /x HTTP/1.1" + host + "X y: z\r\n\r\n", "400", "", false},
		"a header in two lines":   {"POST /x HTTP/1.1" + host + "X: y\r\n z\r\nContent-Length: 1\r\n\r\nx", "200", "x", true},
		"garbage":                 {"\x00\x01\x02\r\n\r\n", "400", "", false},
		"TLS":                     {"\x16\x03\x01\x00\x05hello\r\n\r\n", "400", "", false},
		"HTTP/0.9":                {"GET /x\r\n\r\n", "400", "", false},
		"HTTP/3":                  {"GET /x HTTP/3.0" + host + "\r\n", "505", "", false},
		"nothing":                 {"", "", "", false},
		"half a request line":     {"POST /x", "400", "", false},
		"half a header":           {"POST /x HTTP/1.1\r\nHos", "400", "", false},
		"half a body":             {"POST /x HTTP/1.1" + host + "Content-Length: 2\r\n\r\nx", "400", "", false},
		"more than its body":      {"POST /x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nxyz", "200", "x", true},
		"a path out of the tree":  {"POST /../../x HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"NUL in a path":           {"POST /%00 HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
		"a query that is no pair": {"POST /x?a;b&%zz HTTP/1.1" + host + "Content-Length: 1\r\n\r\nx", "200", "x", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log linesOf
			u := provide(t, nil)
			b := stand(t, u.URL, func(c *witness.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			conn := raw(t, strings.TrimPrefix(b.url, "http://"))
			_, _ = io.WriteString(conn, tt.text) // which may be refused before it is read
			if !tt.passes {                      // otherwise that would end the call
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			var last string
			var answers []string
			for in := bufio.NewReader(conn); ; {
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				last = fmt.Sprintf("%03d", resp.StatusCode)
				answers = append(answers, last)
				if resp.StatusCode >= http.StatusOK {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
			}
			if last != tt.status {
				t.Errorf("answers %s, want %q", answers, tt.status)
			}
			if err := b.stop(); err != nil {
				t.Error(err)
			}
			var came []string
			for _, s := range u.all(0) {
				if s.whole {
					came = append(came, string(s.body))
				}
			}
			want := map[bool]int{true: 1}[tt.passes]
			if len(came) != want || want > 0 && came[0] != tt.body {
				t.Errorf("the upstream got %q", came)
			}
			if kept := b.requests.all(0); len(kept) != want || want > 0 && kept[0].Body != digestOf([]byte(tt.body)) {
				t.Errorf("receipts %+v", kept)
			}
			told := int(b.metric("refold_witness_requests_total", "outcome", "aborted") + b.metric("refold_witness_requests_total", "outcome", "unsupported"))
			if lines := log.all(); len(lines) != told { // what is no request in HTTP is no call
				t.Errorf("%d lines, want %d: %.2000q", len(lines), told, lines)
			}
			for _, line := range log.all() {
				if strings.Contains(line, "panic") || strings.Contains(line, "verysecret") || len(line) > 1000 {
					t.Errorf("%.1000s", line)
				}
			}
		})
	}
}

// TestMaxCalls: one call more than may be under way is refused unread, and has no receipt; when one has ended there is room.
func TestMaxCalls(t *testing.T) {
	t.Parallel()
	began, finish := make(chan struct{}), make(chan struct{})
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			began <- struct{}{}
			<-finish
		}
		_, _ = io.WriteString(w, "done")
	})
	const most = 2
	var log linesOf
	b := stand(t, u.URL, func(c *witness.Config) { c.MaxCalls, c.Log = most, slog.New(slog.NewTextHandler(&log, nil)) })
	var calls sync.WaitGroup
	for range most {
		calls.Go(func() {
			if got := b.do("POST", "/long", names("7"), strings.NewReader("x")); string(got.body) != "done" {
				t.Errorf("%+v", got)
			}
		})
		<-began
	}
	conn := raw(t, strings.TrimPrefix(b.url, "http://"))
	if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\nContent-Length: 10\r\n\r\n"); err != nil { // and nothing of a body
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := response{status: resp.StatusCode, header: resp.Header}
	got.body, _ = io.ReadAll(resp.Body)
	if _, kind := refusalOf(t, got); got.status != http.StatusServiceUnavailable || kind != "witness_busy" || got.header.Get("Retry-After") != "1" || !resp.Close {
		t.Errorf("%+v", got)
	}
	b.outcome("busy", 1)
	if n := len(b.requests.all(0)); n != most {
		t.Errorf("%d receipts", n)
	}
	if lines := log.all(); len(lines) != 1 || !strings.Contains(lines[0], "outcome=busy") {
		t.Errorf("%q", lines)
	}
	close(finish)
	calls.Wait()
	b.until("no call is under way", func() bool { return b.metric("refold_witness_inflight") == 0 })
	if got := b.do("POST", "/x", names("8"), strings.NewReader("x")); got.status != 200 {
		t.Errorf("%+v", got)
	}
}

// TestMaxConnections: while clients that send half a request have all connections, another one waits, and is served when one of
// them has gone. A witness that is told to stop meanwhile stops.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool
	u := provide(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" && !gone.Load() {
			t.Error("there were more connections")
		}
		_, _ = io.WriteString(w, "done")
	})
	const most = 4 // of one call at once
	b := stand(t, u.URL, func(c *witness.Config) { c.MaxCalls = 1 })
	address := strings.TrimPrefix(b.url, "http://")
	var conns []net.Conn
	ask := func(conn net.Conn, path string) {
		t.Helper()
		if _, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: w\r\nContent-Length: 1\r\n\r\nx"); err != nil {
			t.Error(err)
		}
	}
	answered := func(conn net.Conn) {
		t.Helper()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "done" {
			t.Errorf("%d, %q, %v", resp.StatusCode, body, err)
		}
	}
	settled := func() {
		b.until("no call is under way", func() bool { return b.metric("refold_witness_inflight") == 0 })
	}
	for range most {
		conn := raw(t, address)
		ask(conn, "/x")
		answered(conn)
		settled()
		conns = append(conns, conn)
	}
	for _, conn := range conns[1:] {
		if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHo"); err != nil {
			t.Error(err)
		}
	}
	late := raw(t, address)
	ask(late, "/late")
	for range 100 {
		ask(conns[0], "/x")
		answered(conns[0])
		settled()
	}
	gone.Store(true)
	_ = conns[0].Close()
	answered(late)
	for _, conn := range conns[1:] {
		settled()
		if _, err := io.WriteString(conn, "st: w\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Error(err)
		}
		answered(conn)
	}
	ask(raw(t, address), "/late") // while all connections are kept for further requests
	if err := b.stop(); err != nil {
		t.Error(err)
	}
}

// TestTakesNothing: a client that takes nothing of an answer any more has left.
func TestTakesNothing(t *testing.T) {
	t.Parallel()
	u := provide(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.CopyN(w, zeros{}, 1<<20); err != nil {
				return
			}
		}
	})
	var log linesOf
	b := stand(t, u.URL, func(c *witness.Config) {
		c.BodyTimeout, c.Log = 50*time.Millisecond, slog.New(slog.NewTextHandler(&log, nil))
	})
	conn := raw(t, strings.TrimPrefix(b.url, "http://"))
	if _, err := io.WriteString(conn, "POST /x HTTP/1.1\r\nHost: w\r\nContent-Length: 1\r\n\r\nx"); err != nil {
		t.Fatal(err)
	}
	b.outcome("left", 1)
	if r := b.answers.all(1)[0]; r.Complete || r.Status != 200 {
		t.Errorf("%+v", r)
	}
	if lines := log.all(); len(lines) != 1 || !strings.Contains(lines[0], "outcome=left") {
		t.Errorf("%q", lines)
	}
}
