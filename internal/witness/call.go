package witness

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// parseSeq reads a sequence in its only form, decimal digits without a leading zero; 0 when it is none.
func parseSeq(s string) uint64 {
	seq, err := strconv.ParseUint(s, 10, 64)
	if err != nil || strconv.FormatUint(seq, 10) != s {
		return 0
	}
	return seq
}

// call is one request on its way through.
type call struct {
	witness *Witness
	rw      http.ResponseWriter
	receipt audit.Receipt // of the request; of the answer, with changes
	source  *timedBody    // what body reads
	body    *heldBody     // nil for what is no call
	answer  answerWriter
	status  int // of the answer, 0 as long as there is none
	passed  bool
	outcome string // set where it is decided; empty: by how the answer ended
}

// ServeHTTP implements [http.Handler].
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.metrics.inflight.Inc()
	defer w.metrics.inflight.Dec()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := &call{witness: w, rw: rw}
	c.answer = answerWriter{ResponseWriter: rw, digest: sha256.New(), call: c}
	c.receipt = audit.Receipt{Kind: audit.ReceiptRequest, Call: w.cfg.NewID()}
	c.receipt.Session, c.receipt.Seq = named(r.Header)
	c.receipt.Describe(r.Method, r.URL.EscapedPath()) // not the query, which may hold a key
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || !strings.HasPrefix(r.URL.Path, "/") {
		c.refuse(http.StatusNotImplemented, outcomeUnsupported, "the witness passes calls of an API on, no "+c.receipt.Method)
		c.count()
		return
	}
	control := http.NewResponseController(rw)
	_ = control.EnableFullDuplex() // always there in HTTP/1: answers may begin while requests are read
	c.source = &timedBody{src: r.Body, control: control, wait: w.cfg.BodyTimeout}
	c.body = newHeldBody(c.source, w.cfg.Hold, func(d events.BodyDigest) error { return c.permit(ctx, d) })
	defer c.end(ctx, cancel)
	whole, err := c.body.prefetch(r.ContentLength)
	if err != nil {
		c.failed(rw, r, err)
		return
	}
	out := r.WithContext(ctx)
	out.Body = c.body // the server's own stays out of the transport's hands
	proxy := &httputil.ReverseProxy{
		Rewrite:        func(p *httputil.ProxyRequest) { c.rewrite(p, r, whole) },
		Transport:      w.transport,
		FlushInterval:  -1,
		ModifyResponse: c.answered,
		ErrorHandler:   c.failed,
		ErrorLog:       w.quiet,
	}
	proxy.ServeHTTP(&c.answer, out)
	c.passed = true
}

// permit stores the receipt of the request, whose body has been read to its end.
func (c *call) permit(ctx context.Context, body events.BodyDigest) error {
	w := c.witness
	began := w.cfg.Now()
	c.receipt.Body, c.receipt.Time = body, began.UnixMilli()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StoreTimeout)
	defer cancel()
	err := w.keep(ctx, w.cfg.Requests, &c.receipt)
	w.metrics.waited(w.cfg.Now().Sub(began))
	w.metrics.receipt(string(audit.ReceiptRequest), err)
	return err
}

// rewrite makes the request for the upstream.
func (c *call) rewrite(p *httputil.ProxyRequest, in *http.Request, whole bool) {
	out := p.Out
	p.SetURL(c.witness.upstream)
	out.URL.RawQuery = in.URL.RawQuery
	h := out.Header
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := in.Header.Values(name); len(values) > 0 {
			h[name] = values
		}
	}
	for _, name := range []string{provider.HeaderSession, provider.HeaderSeq, "Expect", "Connection", "Upgrade"} {
		h.Del(name) // the witness itself has said "continue"
	}
	// A header by which the transport would know that it may send a request again. Under this name it does not see it.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values := h.Values(name); len(values) > 0 {
			h.Del(name)
			h[strings.ToLower(name)] = values
		}
	}
	out.Trailer, out.TransferEncoding = nil, nil
	out.GetBody, out.ContentLength = nil, in.ContentLength
	out.Body = c.body
	if whole && in.ContentLength == 0 {
		switch in.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			out.Body = emptyBody{}
		default:
			out.Body = http.NoBody
		}
	}
}

// errEarly means that the upstream has answered a request of which it cannot have got the whole.
var errEarly = errors.New("it has answered, and not taken the whole request, so that there is no receipt")

// answered looks at the head of the upstream's answer. One to a request that is not whole yet waits for the receipt: the
// upstream may have read all that it wanted. Only that the request has failed may be said before.
func (c *call) answered(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return errors.New("it switches to another protocol, which nobody asked for")
	}
	c.status = resp.StatusCode
	if resp.StatusCode < http.StatusBadRequest && !c.body.permitted.Load() {
		timer := time.NewTimer(c.witness.cfg.BodyTimeout) // it may not read on before somebody reads its answer
		defer timer.Stop()
		select {
		case <-c.body.over:
		case <-timer.C:
		case <-resp.Request.Context().Done():
		}
		if !c.body.permitted.Load() {
			return errEarly
		}
	}
	if !c.body.whole.Load() { // what is still to come must not be taken for another request
		resp.Header.Set("Connection", "close")
	}
	if _, ok := resp.Header["Content-Type"]; !ok {
		c.rw.Header()["Content-Type"] = nil // none is made up
	}
	return nil
}

// failed answers a request that has no answer from the upstream.
func (c *call) failed(_ http.ResponseWriter, r *http.Request, err error) {
	fault := c.body.failure()
	why := scrub(err.Error(), r.Header)
	var refused *receiptError
	switch {
	case fault != nil && !errors.As(fault, &refused):
		c.refuse(http.StatusBadRequest, outcomeAborted, "the request's body ended early: "+fault.Error())
	case r.Context().Err() != nil: // the client has gone; or, and then it reads this, the witness is to go
		c.refuse(http.StatusBadGateway, outcomeLeft, "the witness was told to stop and has ended the call")
	case fault != nil:
		c.refuse(http.StatusServiceUnavailable, outcomeRefused,
			"the witness refuses the request, of which the provider has not got the whole: "+fault.Error())
	case errors.Is(err, errEarly):
		c.refuse(http.StatusBadGateway, outcomeEarly, "the witness passes no answer of "+c.witness.upstream.Host+" on: "+why)
	default:
		c.refuse(http.StatusBadGateway, outcomeUnreachable, "the witness got no answer from "+c.witness.upstream.Host+": "+why)
	}
	level := slog.LevelWarn
	if r.Context().Err() != nil {
		level = slog.LevelInfo // nobody waits for it any more
	}
	c.witness.cfg.Log.LogAttrs(r.Context(), level, "a call has no answer", callAttrs(&c.receipt), slog.String("path", c.receipt.Target),
		slog.String("outcome", c.outcome), slog.String("error", audit.Reason(why)))
}

// scrub takes credentials of a request out of a text that an upstream may have had a hand in.
func scrub(text string, h http.Header) string {
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"} {
		for _, value := range h.Values(name) {
			for word := range strings.FieldsSeq(value) {
				const shortest = 6 // a scheme is no secret
				if len(word) > shortest {
					text = strings.ReplaceAll(text, word, "[credential]")
				}
			}
		}
	}
	return text
}

// refusal is what a client gets that the witness itself answers, in the form in which providers report errors.
type refusal struct {
	Error struct {
		Message string `json:"message"`
		Type    string `json:"type"`
	} `json:"error"`
}

func (c *call) refuse(status int, outcome, message string) {
	c.outcome = outcome
	var body refusal
	body.Error.Message, body.Error.Type = audit.Reason(message), "witness_"+outcome
	b, err := json.Marshal(body)
	if err != nil { // strings can be marshalled
		b = nil
	}
	h := c.rw.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	if c.body == nil || !c.body.whole.Load() { // what is left of the body must not be taken for another request
		h.Set("Connection", "close")
	}
	c.rw.WriteHeader(status)
	_, _ = c.rw.Write(b) // the client may have gone
}

// end waits until nobody reads the request any more, counts the call and has the answer's receipt stored. It runs also
// when the answer broke, which the proxy reports by a panic.
func (c *call) end(ctx context.Context, cancel func()) {
	left := ctx.Err() != nil || c.answer.err != nil
	cancel()
	if !c.body.ended.Load() {
		c.source.stop() // the connection is not used again
	}
	request := c.body.finish()
	switch {
	case c.outcome != "":
	case c.passed:
		c.outcome = outcomeAnswered
	case left:
		c.outcome = outcomeLeft
	default:
		c.outcome = outcomeBroken
	}
	c.count()
	if c.status == 0 && !errors.Is(request, io.EOF) {
		return // it never left, and nothing came back
	}
	r := c.receipt
	r.Kind, r.Signature = audit.ReceiptAnswer, nil
	r.Body = events.BodyDigest{Bytes: c.answer.n, SHA256: events.Hash(c.answer.digest.Sum(nil))}
	r.Status, r.Complete = int64(c.status), c.outcome == outcomeAnswered
	r.Time = c.witness.cfg.Now().UnixMilli()
	c.witness.keepAnswer(ctx, r)
}

func (c *call) count() { c.witness.metrics.requests.WithLabelValues(c.outcome).Inc() }

// answerWriter hashes what the client is sent of an answer.
type answerWriter struct {
	http.ResponseWriter
	call   *call
	digest hash.Hash
	n      int64
	err    error
}

// Unwrap lets a response controller through.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements [http.ResponseWriter]. Nothing that comes ahead of an answer passes before the request's receipt is
// stored: its headers may be an answer.
func (a *answerWriter) WriteHeader(status int) {
	if status >= http.StatusOK || a.call.body.permitted.Load() {
		a.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [io.Writer].
func (a *answerWriter) Write(p []byte) (int, error) {
	n, err := a.ResponseWriter.Write(p)
	a.digest.Write(p[:n])
	a.n += int64(n)
	if err != nil {
		a.err = fmt.Errorf("write to the client: %w", err)
	}
	return n, err
}
