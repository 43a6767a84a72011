package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// pace is the time between the writes of an answer. It never ends together with a run of chunks.
const pace = 7 * time.Millisecond

// lateTime is how long after an answer something happens late: less than any backoff, and than a tool takes.
const lateTime = 5 * time.Millisecond

// settleTime is how long something takes after a deed: whoever it concerns has noticed by then.
const settleTime = time.Microsecond

// mostLeft is longer than anything that is left to itself goes on, such as a tool whose worker was killed: the bubble's clock
// stands still when the plan is carried out.
const mostLeft = time.Hour

// serve answers a request as the plan says.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	session := r.Header.Get(provider.HeaderSession)
	out := &pacedWriter{ResponseWriter: rw, w: w}
	n := 0
	if session != "" {
		w.mu.Lock()
		n = w.asked[session]
		w.asked[session]++
		w.mu.Unlock()
		if n < len(w.plan.answers) {
			a := &w.plan.answers[n]
			if len(a.before) > 0 && w.once(fmt.Sprint("before ", n)) {
				w.do(a.before)
				pass(settleTime)
			}
			out.at, out.during, out.name = a.at, a.during, fmt.Sprint("during ", n)
		}
	}
	w.sim.ServeHTTP(out, r)
	if session != "" && n < len(w.plan.answers) && len(w.plan.answers[n].late) > 0 && w.once(fmt.Sprint("late ", n)) {
		w.serving.Go(func() {
			pass(lateTime)
			w.do(w.plan.answers[n].late)
		})
	}
}

// pacedWriter writes slowly, and does deeds behind one of the writes.
type pacedWriter struct {
	http.ResponseWriter
	w      *world
	status int
	at     int
	during []deed
	name   string
}

// Unwrap is for [http.ResponseController].
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *pacedWriter) WriteHeader(status int) {
	p.status = status
	p.ResponseWriter.WriteHeader(status)
}

func (p *pacedWriter) Write(b []byte) (int, error) {
	if p.status == http.StatusBadRequest && bytes.Contains(b, []byte(`"code":"invalid_request_error"`)) {
		p.w.violate("the provider refuses a request: %s", b)
	}
	pass(pace)
	n, err := p.ResponseWriter.Write(b)
	if p.at--; p.at == 0 && len(p.during) > 0 && p.w.once(p.name) {
		p.w.do(p.during)
		pass(settleTime)
	}
	return n, err
}

// inProcess is an HTTP transport without a network.
type inProcess struct {
	handler http.Handler
	serving *sync.WaitGroup
}

func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	asked := r.Clone(ctx)
	asked.Body = io.NopCloser(bytes.NewReader(body))
	reader, writer := io.Pipe()
	p := &piped{header: make(http.Header), body: writer, begun: make(chan struct{}), broken: make(chan struct{})}
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	t.serving.Go(func() {
		t.handler.ServeHTTP(p, asked)
		_ = writer.Close()
	})
	select {
	case <-p.begun:
	case <-p.broken:
		cancel()
		return nil, syscall.ECONNRESET
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	return &http.Response{
		StatusCode: p.status, Status: http.StatusText(p.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: p.sent,
		Body: &pipedBody{reader, cancel}, ContentLength: -1, Request: r,
	}, nil
}

// pipedBody ends the request's context when it is closed, as a server notices that its client is gone.
type pipedBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *pipedBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// piped is the server's end of a response.
type piped struct {
	header, sent http.Header
	status       int
	body         *io.PipeWriter
	once         sync.Once
	begun        chan struct{} // the status is known
	broken       chan struct{} // the connection broke before
}

func (p *piped) Header() http.Header { return p.header }

func (p *piped) WriteHeader(status int) {
	p.once.Do(func() {
		p.status, p.sent = status, p.header.Clone()
		close(p.begun)
	})
}

func (p *piped) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

func (*piped) Flush() {}

// Hijack is how the simulator breaks a connection off: it closes what it gets.
func (p *piped) Hijack() (net.Conn, *bufio.ReadWriter, error) { return brokenConn{p: p}, nil, nil }

type brokenConn struct {
	net.Conn
	p *piped
}

func (c brokenConn) Close() error {
	c.p.once.Do(func() { close(c.p.broken) })
	return c.p.body.CloseWithError(syscall.ECONNRESET)
}

// worldTool is a tool whose effects are counted.
type worldTool struct {
	w      *world
	name   string
	safety tools.Safety
}

// Schema implements [tools.Tool].
func (t *worldTool) Schema() events.Tool {
	return events.Tool{Name: t.name, Description: "Do it.", Parameters: `{"type":"object","properties":{"call":{"type":"string"}}}`}
}

// Safety implements [tools.Tool].
func (t *worldTool) Safety() tools.Safety { return t.safety }

// Run implements [tools.Tool].
func (t *worldTool) Run(ctx context.Context, arguments string) tools.Result {
	t.w.running.Add(1)
	defer t.w.running.Add(-1)
	var args struct {
		Call string `json:"call"`
	}
	if err := json.Unmarshal([]byte(arguments), &args); err != nil {
		t.w.violate("tool %s got arguments that do not fit its schema: %s", t.name, arguments)
	}
	t.w.mu.Lock()
	if !t.safety.ReadOnly {
		t.w.effects[args.Call]++
	}
	t.w.mu.Unlock()
	t.w.calls(args.Call)
	timer := time.NewTimer(pace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return tools.Failed(events.ToolFailed, "stopped")
	case <-timer.C:
	}
	switch t.name {
	case "draw":
		data, _ := picture()
		return tools.Result{Output: []byte("drawn"), Images: []tools.Image{{Data: data, Name: "a.png"}, {Data: []byte("no image")}}}
	case "big":
		return tools.Result{Output: []byte(strings.Repeat("big result \U0001F1E9\U0001F1EA ", 400))}
	}
	return tools.Result{Output: []byte(t.name + " did " + args.Call)}
}

// calls does what the plan has for the running of a tool's call.
func (w *world) calls(name string) {
	for i, a := range w.plan.answers {
		for k, c := range a.calls {
			if callName(i, k) == name && len(c.during) > 0 && w.once("call "+name) {
				w.do(c.during)
				pass(settleTime)
			}
		}
	}
}

// worldExtension is all kinds of extensions at once. What it answers follows from what it is asked, so that every
// worker's gives the same answers.
type worldExtension struct{}

func (worldExtension) Name() string { return "world" }

func (worldExtension) PreStep(_ context.Context, _ Point, claimed []events.Input) (Entry, error) {
	var e Entry
	var err error
	for _, in := range claimed {
		switch text := in.Content[0].Text; {
		case strings.HasPrefix(text, textRejected):
			return Entry{Reject: "not like that"}, nil
		case strings.HasPrefix(text, textFailing):
			err = errors.New("it does not work")
		case strings.HasPrefix(text, textAdding):
			e.Texts = append(e.Texts, "added to "+text)
		}
	}
	return e, err
}

func (worldExtension) CallConfig(_ context.Context, at Point, seed events.Config) (events.Config, error) {
	if at.Turn%2 == 0 {
		seed.Temperature = "0.5"
	}
	return seed, nil
}

func (worldExtension) BeforeTool(_ context.Context, _ Point, call Invocation) (*tools.Result, error) {
	if call.Tool == "note" && strings.Contains(call.Arguments, ".3") {
		return &tools.Result{Output: []byte("known already")}, nil
	}
	return nil, nil //nolint:nilnil // the tool runs
}

func (worldExtension) AfterTool(_ context.Context, _ Point, call Invocation, r tools.Result) (tools.Result, string, error) {
	if call.Tool == "peek" {
		return r, "that was " + call.Arguments, nil
	}
	return r, "", nil
}

func (worldExtension) TurnStopping(_ context.Context, at Point) (string, error) {
	switch {
	case at.Turn%3 == 0 && at.Step == 1:
		return "one more thing", nil
	case at.Turn%5 == 0:
		return "", errors.New("it does not work")
	}
	return "", nil
}

func (worldExtension) RequestError(_ context.Context, _ Point, attempt int64, f events.Failure) (Advice, error) {
	switch {
	case f.Code == events.FailureQuota && attempt == 1:
		return AdviceRetry, nil
	case f.Code == events.FailureServer && attempt > 1:
		return AdviceStop, nil
	case f.Code == events.FailureCredential:
		return AdviceNone, errors.New("it does not work")
	}
	return AdviceNone, nil
}

func (worldExtension) Text(_ context.Context, at Point) (string, error) {
	const group = 2
	return fmt.Sprintf("turn group %d", at.Turn/group), nil
}

// pass lets the bubble's time go on: nobody really waits.
func pass(d time.Duration) { <-time.After(d) }
