package program

import (
	"bytes"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// lines is a buffer that several goroutines write to.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{}
}

// Write implements [io.Writer].
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.text.Write(p)
	select {
	case l.news <- struct{}{}:
	default:
	}
	return n, err
}

// TestLibraries: a server that sends a credential back behind its answer, unasked, gets it into no log.
func TestLibraries(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nBearer verysecret"))
		_, _ = conn.Read(make([]byte, 1)) // returns when the client has hung up
		_ = conn.Close()
	})
	defer server.Wait()
	defer func() { _ = l.Close() }()
	out := &lines{news: make(chan struct{}, 1)}
	flags, writer := stdlog.Flags(), stdlog.Writer()
	defer func() { stdlog.SetFlags(flags); stdlog.SetOutput(writer) }()
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraries{slog.New(slog.NewTextHandler(out, nil))})
	client := &http.Client{Transport: &http.Transport{}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	<-out.news
	out.mu.Lock()
	defer out.mu.Unlock()
	if text := out.text.String(); !strings.Contains(text, "Unsolicited response") || strings.Contains(text, "verysecret") || strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
}
