package provider

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
)

// rawServer serves each connection with h, which writes what it likes. It is closed after the test.
func rawServer(t *testing.T, h func(conn *net.TCPConn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			if req, err := http.ReadRequest(r); err == nil {
				buf := make([]byte, req.ContentLength)
				_, _ = req.Body.Read(buf)
				h(conn.(*net.TCPConn))
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-served
	})
	return "http://" + l.Addr().String()
}

const rawHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// writeChunked writes each part as an HTTP chunk and a segment of its own.
func writeChunked(conn *net.TCPConn, parts ...string) {
	_ = conn.SetNoDelay(true)
	for _, p := range parts {
		_, _ = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(p), p)
	}
}

func write(conn *net.TCPConn, s string) { _, _ = conn.Write([]byte(s)) }

func TestConnectionFaults(t *testing.T) {
	a, stop := data(delta(`"content":"a"`)), data(finish("stop"))
	tests := []struct {
		name string
		h    func(conn *net.TCPConn)
		want string
		code events.FailureCode
	}{
		{"reset before a response", func(c *net.TCPConn) { _ = c.SetLinger(0) }, "", events.FailureTransport},
		{"closed before a response", func(*net.TCPConn) {}, "", events.FailureTransport},
		{"closed within the headers", func(c *net.TCPConn) { write(c, "HTTP/1.1 200 OK\r\nContent-Ty") }, "", events.FailureTransport},
		{"garbage", func(c *net.TCPConn) { write(c, "SSH-2.0-x\r\n\r\n") }, "", events.FailureTransport},
		{
			"closed within the stream", func(c *net.TCPConn) { write(c, rawHead); writeChunked(c, a) },
			`+0:text 0=["a"]`, events.FailureTransport,
		},
		{
			"closed within an event", func(c *net.TCPConn) { write(c, rawHead); writeChunked(c, a, `data: {"choi`) },
			`+0:text 0=["a"]`, events.FailureTransport,
		},
		{
			"ended within the stream", func(c *net.TCPConn) { write(c, rawHead); writeChunked(c, a, "") },
			`+0:text 0=["a"]`, events.FailureStreamClosed,
		},
		{
			"closed after finish_reason", func(c *net.TCPConn) { write(c, rawHead); writeChunked(c, a, stop) },
			`+0:text 0=["a"] -0 stop()`, "",
		},
		{
			"fewer bytes than announced", func(c *net.TCPConn) {
				write(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10000\r\n\r\n"+a)
			},
			`+0:text 0=["a"]`, events.FailureTransport,
		},
		{
			"no length at all", func(c *net.TCPConn) {
				write(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+a+stop+"data: [DONE]")
			},
			`+0:text 0=["a"] -0 stop()`, "",
		},
		{
			"an error response cut off", func(c *net.TCPConn) {
				write(c, "HTTP/1.1 503 No\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"error\":")
			},
			"", events.FailureServer,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			chunks, failed := dispatch(t, newAdapter(t, rawServer(t, tt.h)))
			var code events.FailureCode
			if failed != nil {
				code = failed.Failure.Code
				checkFailureEncodable(t, failed.Failure)
			}
			if got := say(chunks); got != tt.want || code != tt.code {
				t.Errorf("%s, %v\nwant %s, %q", got, failed, tt.want, tt.code)
			}
		})
	}
}

// TestReset: deltas that came before a reset count, then it is TRANSPORT. The server resets only after the client has
// read them, because a reset takes unread bytes with it.
func TestReset(t *testing.T) {
	read := make(chan struct{})
	p := prepare(t, newAdapter(t, rawServer(t, func(c *net.TCPConn) {
		write(c, rawHead)
		writeChunked(c, data(delta(`"content":"a"`)))
		<-read
		_ = c.SetLinger(0)
	})))
	var got []events.Chunk
	var code events.FailureCode
	for c, err := range p.Dispatch(t.Context(), callOf(p, "{}")) {
		if err != nil {
			code = FailureOf(err).Code
			break
		}
		if got = append(got, c); c.Type == events.ChunkTextDelta {
			close(read)
		}
	}
	if say(got) != `+0:text 0=["a"]` || code != events.FailureTransport {
		t.Errorf("%s, %s", say(got), code)
	}
}

// TestSplitBytes: an answer that comes byte by byte, so that characters and CR|LF are split, is the same answer.
func TestSplitBytes(t *testing.T) {
	in := strings.ReplaceAll(data(delta("\"content\":\"\u00e9\U0001F600\u2028\""), delta(`"content":"\ud83d"`), finish("stop"), done), "\n", "\r\n")
	for name, size := range map[string]int{"bytes": 1, "threes": 3, "whole": len(in)} {
		var parts []string
		for rest := in; rest != ""; {
			n := min(size, len(rest))
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		url := rawServer(t, func(c *net.TCPConn) {
			write(c, rawHead)
			writeChunked(c, append(parts, "")...)
		})
		chunks, failed := dispatch(t, newAdapter(t, url))
		want := fmt.Sprintf(`+0:text 0=[%q] 0=["\xed\xa0\xbd"] -0 stop()`, "\u00e9\U0001F600\u2028")
		if got := say(chunks); failed != nil || got != want {
			t.Errorf("%s: %s, %v\nwant %s", name, got, failed, want)
		}
	}
}

// TestRefusedConnection: nobody listens.
func TestRefusedConnection(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	if _, failed := dispatch(t, newAdapter(t, url)); failed == nil || failed.Failure.Code != events.FailureTransport {
		t.Errorf("%v", failed)
	}
}
