package witness

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
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
	header  http.Header   // of the request
	receipt audit.Receipt // of the request; of the answer, with changes
	source  *timedBody    // what body reads
	body    *heldBody     // nil for what is no call
	answer  answerWriter
	status  int // of the answer, 0 as long as there is none
	passed  bool
	aheads  int    // how many informational answers came ahead of the answer
	broke   error  // what reading the upstream's answer ended with, nil as long as it may go on and at its end
	outcome string // set where it is decided; empty: by how the answer ended
}

// ServeHTTP implements [http.Handler].
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.metrics.inflight.Inc()
	defer w.metrics.inflight.Dec()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := &call{witness: w, rw: rw, header: r.Header}
	control := http.NewResponseController(rw)
	c.answer = answerWriter{ResponseWriter: rw, control: control, wait: w.cfg.BodyTimeout, digest: sha256.New(), call: c, informed: r.ProtoAtLeast(1, 1)}
	_ = control.SetWriteDeadline(time.Time{}) // that of the call before on the connection
	c.receipt = audit.Receipt{Kind: audit.ReceiptRequest, Call: w.cfg.NewID()}
	c.receipt.Session, c.receipt.Seq = named(r.Header)
	c.receipt.Describe(r.Method, r.URL.EscapedPath()) // not the query, which may hold a key
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || !strings.HasPrefix(r.URL.Path, "/") {
		c.turnAway(ctx, http.StatusNotImplemented, outcomeUnsupported, "the witness passes calls of an API on, no "+c.receipt.Method)
		return
	}
	if underway := w.underway.Add(1); underway > int64(w.cfg.MaxCalls) {
		w.underway.Add(-1)
		rw.Header().Set("Retry-After", retryAfter)
		c.turnAway(ctx, http.StatusServiceUnavailable, outcomeBusy, fmt.Sprintf("the witness has %d calls under way and takes no more", w.cfg.MaxCalls))
		return
	}
	defer w.underway.Add(-1)
	_ = control.EnableFullDuplex() // always there in HTTP/1: answers may begin while requests are read
	c.source = &timedBody{src: r.Body, control: control, wait: w.cfg.BodyTimeout}
	c.body = newHeldBody(c.source, w.cfg.Hold, func(d events.BodyDigest) error { return c.permit(ctx, d) })
	defer c.end(ctx, cancel)
	whole, err := c.body.prefetch(r.ContentLength)
	if err != nil {
		c.failed(rw, r, err)
		return
	}
	r.Header.Del("Upgrade") // no other protocol is spoken: the request is one without
	out := r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: c.ahead}))
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

// turnAway answers a request of which nothing is read.
func (c *call) turnAway(ctx context.Context, status int, outcome, message string) {
	c.refuse(status, outcome, message)
	c.tell(ctx, message)
	c.count()
}

// permit stores the receipt of the request, whose body has been read to its end, when the log permits the request.
func (c *call) permit(ctx context.Context, body events.BodyDigest) error {
	w := c.witness
	began := w.cfg.Now()
	c.receipt.Body, c.receipt.Time = body, began.UnixMilli()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StoreTimeout)
	defer cancel()
	if err := w.recorded(ctx, &c.receipt); err != nil {
		return err
	}
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
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return errors.New("it switches to another protocol, which nobody asked for")
	case resp.StatusCode < http.StatusOK: // the lower ones ahead of an answer are dealt with elsewhere
		return fmt.Errorf("it answers with status %03d, which does not exist", resp.StatusCode)
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
	resp.Body = &answerBody{ReadCloser: resp.Body, call: c}
	return nil
}

// maxAhead bounds how many informational answers may come ahead of an answer.
const maxAhead = 100

// ahead counts what comes ahead of an answer. Its error ends the call.
func (c *call) ahead(int, textproto.MIMEHeader) error {
	if c.aheads++; c.aheads > maxAhead {
		return fmt.Errorf("it sends more than %d informational answers ahead of one", maxAhead)
	}
	return nil
}

// answerBody is what the upstream answers. It notes why that ends early.
type answerBody struct {
	io.ReadCloser
	call *call
}

// Read implements [io.Reader].
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.call.broke = err
	}
	return n, err
}

// failed answers a request that has no answer from the upstream.
func (c *call) failed(_ http.ResponseWriter, r *http.Request, err error) {
	fault := c.body.failure()
	why := scrub(err.Error(), c.header)
	var refused *receiptError
	switch {
	case fault != nil && !errors.As(fault, &refused):
		c.refuse(http.StatusBadRequest, outcomeAborted, "the request's body ended early: "+fault.Error())
	case r.Context().Err() != nil: // the client has gone; or, and then it reads this, the witness is to go
		c.refuse(http.StatusBadGateway, outcomeLeft, "the witness was told to stop and has ended the call")
	case fault != nil && errors.As(refused.err, new(*unrecordedError)):
		c.refuse(http.StatusConflict, outcomeUnrecorded, "the witness refuses the request, which no log permits: "+refused.err.Error())
	case fault != nil:
		c.refuse(http.StatusServiceUnavailable, outcomeRefused,
			"the witness refuses the request, of which the provider has not got the whole: "+fault.Error())
	case errors.Is(err, errEarly):
		c.refuse(http.StatusBadGateway, outcomeEarly, "the witness passes no answer of "+c.witness.upstream.Host+" on: "+why)
	default:
		c.refuse(http.StatusBadGateway, outcomeUnreachable, "the witness got no answer from "+c.witness.upstream.Host+": "+why)
	}
	c.tell(r.Context(), why)
}

// tell logs why a call, whose outcome is decided, has not passed to its end.
func (c *call) tell(ctx context.Context, why string) {
	level := slog.LevelWarn
	if ctx.Err() != nil {
		level = slog.LevelInfo // nobody waits for it any more
	}
	c.witness.cfg.Log.LogAttrs(ctx, level, "a call has not passed to its end", callAttrs(&c.receipt), slog.String("path", c.receipt.Target),
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
	left := cmp.Or(c.answer.err, ctx.Err())
	cancel()
	if !c.body.ended.Load() {
		c.source.stop() // the connection is not used again
	}
	request := c.body.finish()
	c.answer.limit() // for the end of the answer
	switch {
	case c.outcome != "":
	case c.passed:
		c.outcome = outcomeAnswered
	case left != nil:
		c.outcome = outcomeLeft
		c.tell(ctx, scrub(left.Error(), c.header))
	default:
		c.outcome = outcomeBroken
		c.tell(ctx, scrub(fmt.Sprint(c.broke), c.header))
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

// answerWriter hashes what the client is sent of an answer. A client that takes nothing of it for the time wait has left.
type answerWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	wait     time.Duration
	call     *call
	informed bool // the client knows of informational answers
	digest   hash.Hash
	n        int64
	err      error
}

// Unwrap lets a response controller through.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements [http.ResponseWriter]. Nothing that comes ahead of an answer passes before the request's receipt is
// stored: its headers may be an answer.
func (a *answerWriter) WriteHeader(status int) {
	if status >= http.StatusOK || a.informed && a.call.body.permitted.Load() {
		a.limit()
		a.ResponseWriter.WriteHeader(status)
	}
}

// Write implements [io.Writer].
func (a *answerWriter) Write(p []byte) (int, error) {
	a.limit()
	n, err := a.ResponseWriter.Write(p)
	a.digest.Write(p[:n])
	a.n += int64(n)
	if err != nil {
		a.err = fmt.Errorf("write to the client: %w", err)
	}
	return n, err
}

func (a *answerWriter) limit() {
	_ = a.control.SetWriteDeadline(time.Now().Add(a.wait)) // always there in HTTP/1
}
