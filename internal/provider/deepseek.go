package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/refold-dev/refold/internal/provider/sse"
	"github.com/refold-dev/refold/pkg/events"
)

const (
	deepSeekBase  = "https://api.deepseek.com"
	deepSeekCodec = "deepseek-chat/1"

	defaultEffort    = "high"
	effortOff        = "off"
	defaultWindow    = 128_000
	defaultMaxTokens = 32_768
)

// The headers by which a request is found in the log.
const (
	HeaderSession = "X-Refold-Session" // the session's id
	HeaderSeq     = "X-Refold-Seq"     // the sequence of its llm/stream event, decimal
)

// deepSeek calls DeepSeek's chat completions (https://api-docs.deepseek.com/api/create-chat-completion).
type deepSeek struct {
	cfg    Config
	client *http.Client
	models []Model
}

func newDeepSeek(cfg Config) (Adapter, error) {
	cfg, err := cfg.complete(KindDeepSeek, deepSeekBase, EnvDeepSeekKey)
	if err != nil {
		return nil, err
	}
	transport := cfg.Transport
	if transport == nil {
		transport = newTransport(cfg)
	}
	return &deepSeek{
		cfg: cfg,
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		models: []Model{
			{Name: "deepseek-chat", ContextWindow: defaultWindow, MaxTokens: defaultMaxTokens, MaxTokensOff: 8192},
			{ContextWindow: defaultWindow, MaxTokens: defaultMaxTokens},
		},
	}, nil
}

func newTransport(cfg Config) *http.Transport {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		ResponseHeaderTimeout:  cfg.HeaderTimeout,
		IdleConnTimeout:        90 * time.Second,
		MaxIdleConnsPerHost:    64,
		MaxResponseHeaderBytes: 256 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
}

// Close implements [io.Closer].
func (d *deepSeek) Close() error {
	d.client.CloseIdleConnections()
	return nil
}

// Prepare implements [Adapter].
func (d *deepSeek) Prepare(_ context.Context, proposed events.Config) (*Prepared, error) {
	c := cloneConfig(proposed)
	if c.Provider == "" {
		c.Provider = d.cfg.Name
	}
	refused := func(code events.FailureCode, format string, args ...any) (*Prepared, error) {
		return nil, &Error{Failure: events.Failure{Message: fmt.Sprintf(format, args...), Code: code}}
	}
	switch {
	case c.Provider != d.cfg.Name:
		return refused(events.FailureNoAdapter, "the config is for provider %q, this is %q", c.Provider, d.cfg.Name)
	case c.Model == "":
		return refused(events.FailureInvalid, "the config names no model")
	case c.MaxTokens < 0:
		return refused(events.FailureInvalid, "maxTokens is %d: want a positive number, or 0 for the model's own", c.MaxTokens)
	case !slices.Contains([]string{"", effortOff, "low", "high", "max"}, c.ReasoningEffort):
		return refused(events.FailureInvalid, "reasoningEffort is %q: want off, low, high or max", c.ReasoningEffort)
	}
	model := d.cfg.model(c.Model, d.models)
	var filled events.AdapterDefaults
	if c.ReasoningEffort == "" {
		c.ReasoningEffort, filled.ReasoningEffort = defaultEffort, true
	}
	maxTokens := model.MaxTokens
	if c.ReasoningEffort == effortOff && model.MaxTokensOff != 0 {
		maxTokens = model.MaxTokensOff
	}
	if c.MaxTokens == 0 {
		c.MaxTokens, filled.MaxTokens = maxTokens, maxTokens != 0
	}
	spec := Spec{
		Config: c, Defaults: filled, Codec: deepSeekCodec, Retry: d.cfg.Retry,
		ContextWindow: model.ContextWindow, MaxTokens: maxTokens, LeastEffort: effortOff,
		AcceptsImages: model.Images, MaxImagePixels: model.MaxImagePixels,
	}
	if model.Files {
		spec.Uploader = d
	}
	return NewPrepared(spec, d.stream), nil
}

// stream is the adapter's [Stream].
func (d *deepSeek) stream(ctx context.Context, call Call) iter.Seq2[events.Chunk, error] {
	return func(yield func(events.Chunk, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		resp, err := d.send(ctx, call)
		if err == nil {
			defer func() { _ = resp.Body.Close() }()
			err = d.accept(ctx, cancel, resp)
		}
		if err != nil {
			yield(events.Chunk{}, err)
			return
		}
		a := answer{
			adapter: d, ctx: ctx, body: idleReader{body: resp.Body, idle: d.cfg.IdleTimeout, cancel: cancel},
			chat: chatStream{seq: call.Seq, secret: d.cfg.Key}, requestID: requestID(resp.Header, d.cfg.Key), yield: yield,
			retryAfterMs: retryAfter(resp.Header, d.cfg.Now()).Milliseconds(),
		}
		a.run()
	}
}

// send sends the request and returns the response. Its error is an [*Error], or nil.
func (d *deepSeek) send(ctx context.Context, call Call) (*http.Response, error) {
	newBody := func() (io.ReadCloser, error) {
		return io.NopCloser(newBodyReader(call.Body(), call.Bytes, call.SHA256)), nil
	}
	body, _ := newBody()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.cfg.BaseURL+"/chat/completions", body)
	if err != nil {
		return nil, transportFailure(ctx, "make the request", err, d.cfg.Key)
	}
	// With GetBody the transport can replace a kept connection that had gone bad before a byte was written on it.
	// Once something was written, a POST is never sent again.
	req.GetBody = newBody
	req.ContentLength = call.Bytes
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "text/event-stream")
	h.Set(HeaderSession, string(call.Session))
	h.Set(HeaderSeq, strconv.FormatUint(call.Seq, 10))
	return d.do(req)
}

// do sends a request with the headers that all have. Its error is an [*Error], or nil.
func (d *deepSeek) do(req *http.Request) (*http.Response, error) {
	h := req.Header
	h.Set("Accept-Encoding", "identity")
	h.Set("Cache-Control", "no-cache")
	h.Set("User-Agent", "refold")
	if !d.cfg.Key.Empty() {
		h.Set("Authorization", "Bearer "+d.cfg.Key.reveal())
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, transportFailure(req.Context(), "request to "+d.cfg.BaseURL, err, d.cfg.Key)
	}
	return resp, nil
}

// encoded reports whether a response is encoded although none was asked for.
func encoded(resp *http.Response) bool {
	enc := resp.Header.Get("Content-Encoding")
	return enc != "" && !strings.EqualFold(enc, "identity")
}

const whyEncoded = "the response is encoded although none was asked for"

// accept checks that the response is a stream. Its error is an [*Error], or nil.
func (d *deepSeek) accept(ctx context.Context, cancel context.CancelCauseFunc, resp *http.Response) error {
	if encoded(resp) {
		return d.unexpected(resp, whyEncoded)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode == http.StatusOK && (kind == "text/event-stream" || kind == "") {
		return nil
	}
	r := idleReader{body: resp.Body, idle: d.cfg.IdleTimeout, cancel: cancel}
	body, err := io.ReadAll(io.LimitReader(&r, maxErrorBody))
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errIdle) {
		return transportFailure(ctx, "read the error response", err, d.cfg.Key)
	}
	if resp.StatusCode != http.StatusOK {
		return httpFailure(d.cfg.Name, resp, body, d.cfg.Key, d.cfg.Now())
	}
	if v, ok := parseVendorError(body); ok && bytes.Contains(body, []byte(`"error"`)) {
		e := httpFailure(d.cfg.Name, resp, body, d.cfg.Key, d.cfg.Now())
		e.Failure.Code = v.code(0)
		return e
	}
	return d.unexpected(resp, "the response is no event stream")
}

func (d *deepSeek) unexpected(resp *http.Response, why string) *Error {
	e := httpFailure(d.cfg.Name, resp, nil, d.cfg.Key, d.cfg.Now())
	if resp.StatusCode == http.StatusOK {
		e.Failure.Code, e.Failure.Message = events.FailureMalformed, "malformed response: "+why
	}
	return e
}

// answer reads one response to its end.
type answer struct {
	adapter   *deepSeek
	ctx       context.Context
	body      idleReader
	chat      chatStream
	requestID string
	yield     func(events.Chunk, error) bool
	stopped   bool // by the receiver

	retryAfterMs int64 // what the response's header asks for
	failed       *Error
}

// drainTime is how long the end of a complete answer is waited for, so that its connection can be used again.
const drainTime = 50 * time.Millisecond

func (a *answer) run() {
	err := a.read()
	if a.stopped {
		return
	}
	if a.failed == nil {
		a.failed = a.chat.closed(err)
	}
	if !a.flush() {
		return
	}
	if a.failed != nil {
		if a.failed.Failure.RequestID == "" {
			a.failed.Failure.RequestID = a.requestID
		}
		if a.failed.Failure.Code.Retryable() {
			a.failed.Failure.RetryAfterMs = a.retryAfterMs
		}
		a.yield(events.Chunk{}, a.failed)
		return
	}
	if a.chat.done {
		a.body.idle = drainTime
		_, _ = io.CopyN(io.Discard, &a.body, 4<<10)
	}
}

// read feeds the stream until it is done, has failed or ended. The error is what ended it, nil for a regular end.
func (a *answer) read() *Error {
	dec := sse.NewDecoder(a.adapter.cfg.MaxEventBytes)
	emit := func(ev sse.Event) bool {
		a.failed = a.chat.event(ev)
		return a.failed == nil && !a.chat.done && a.flush()
	}
	over := func() bool { return a.failed != nil || a.chat.done || a.stopped }
	buf := make([]byte, 16<<10)
	for {
		n, err := a.body.Read(buf)
		if ferr := dec.Feed(buf[:n], emit); ferr != nil {
			a.failed = a.chat.malformed(ferr)
		}
		switch {
		case over():
			return nil
		case errors.Is(err, io.EOF):
			_ = dec.Close(emit) // fails only if Feed did
			return nil
		case err != nil:
			return transportFailure(a.ctx, "stream from "+a.adapter.cfg.BaseURL, err, a.adapter.cfg.Key)
		}
	}
}

// flush hands out the chunks that are ready and reports whether the receiver wants more.
func (a *answer) flush() bool {
	for _, c := range a.chat.take() {
		if !a.yield(c, nil) {
			a.stopped = true
			return false
		}
	}
	return true
}
