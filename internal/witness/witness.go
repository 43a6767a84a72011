package witness

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// Witness is an [http.Handler] that passes requests on to an upstream and keeps receipts of them.
//
// A request's receipt is stored before the last of its body leaves, one without a body before anything does. What that
// means when something fails:
//
//   - The receipt cannot be stored, or nobody says that it is: the request is answered with 503 and the upstream never
//     has the whole of it. The receipt may be there all the same.
//   - No log permits the request, where that is required: 409, and there is no receipt.
//   - There are too many calls under way: 503, and nothing of the request is read.
//   - The client does not send all of its body: there is no receipt and the upstream never has the whole.
//   - The upstream answers before it has the whole: an error passes at once, and the client's connection ends behind it. Any
//     other answer waits for the receipt, and becomes 502 when the request has no end.
//   - The upstream fails before it answers: 502, and the receipt stands. Nothing is ever sent again.
//   - The upstream fails in the middle of its answer: the client's connection breaks, so that it does not take the part
//     for the whole.
//
// The receipt of an answer is stored afterwards, and may be missing.
type Witness struct {
	cfg       Config
	upstream  *url.URL
	transport *http.Transport
	metrics   *metrics
	quiet     *log.Logger

	underway atomic.Int64   // calls
	answers  sync.WaitGroup // receipts of answers that are being stored
	stop     context.Context
	cancel   context.CancelFunc // of what is left when the witness ends
}

// New returns a witness. The error wraps [ErrConfig], or is the registry's. The caller calls [Witness.Serve], or
// [Witness.Close] when nobody serves.
func New(cfg Config) (*Witness, error) {
	cfg.setDefaults()
	upstream, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, err
	}
	stop, cancel := context.WithCancel(context.Background())
	return &Witness{
		cfg: cfg, upstream: upstream, transport: newTransport(&cfg), metrics: m, stop: stop, cancel: cancel,
		quiet: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}, nil
}

// Public returns the public key, which names the witness.
func (w *Witness) Public() string { return w.cfg.Key.Public() }

// Close gives up what is left to be stored and the kept connections. No request may come any more.
func (w *Witness) Close() {
	w.cancel()
	w.answers.Wait()
	w.transport.CloseIdleConnections()
}

// Listen takes an address, such as :8443; port 0 takes a free one.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("witness: listen on %q: %w: give a free HOST:PORT with --listen", addr, err)
	}
	return l, nil
}

const (
	headerTimeout = 10 * time.Second
	retryAfter    = "1"             // seconds, for who finds too many calls under way
	endTime       = 5 * time.Second // for what was ended to notice it, and for the last receipts
)

// Serve answers on the listener, which it closes, until ctx ends, which is no error. Then it takes no more calls, lets
// those under way go on for Config.Grace, ends what is left, stores the last receipts as far as that is possible in a few
// seconds, and closes the witness. It may be called once.
func (w *Witness) Serve(ctx context.Context, l net.Listener) error {
	defer w.Close()
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	server := &http.Server{
		Handler: w, ReadHeaderTimeout: headerTimeout, IdleTimeout: w.cfg.IdleTimeout, MaxHeaderBytes: maxHead,
		ErrorLog:    slog.NewLogLogger(w.cfg.Log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return requests }, DisableGeneralOptionsHandler: true,
		ConnState: limitConns(connsPerCall*w.cfg.MaxCalls, ctx.Done()),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("witness: serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	err := w.shutdown(ctx, server, cancelRequests)
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("witness: serve %s: %w", l.Addr(), end))
	}
	return err
}

// limitConns returns a hook for the states of a server's connections that has the server accept no other one while most are
// open, until stop is closed: a server that is shut down waits until it accepts no more.
func limitConns(most int, stop <-chan struct{}) func(net.Conn, http.ConnState) {
	open := make(chan struct{}, most)
	return func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew: // the server accepts the next one behind this
			select {
			case open <- struct{}{}:
			case <-stop:
			}
		case http.StateClosed, http.StateHijacked:
			select {
			case <-open:
			default: // it came when the server was to stop
			}
		case http.StateActive, http.StateIdle:
		}
	}
}

func (w *Witness) shutdown(ctx context.Context, server *http.Server, cancelRequests func()) error {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Grace)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		cancelRequests()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if err = server.Shutdown(last); err != nil {
			err = errors.Join(fmt.Errorf("witness: shut down: %w", err), server.Close())
		}
	}
	timer := time.AfterFunc(endTime, w.cancel)
	defer timer.Stop()
	w.answers.Wait()
	return err
}

// keep signs and stores a receipt.
func (w *Witness) keep(ctx context.Context, store Store, r *audit.Receipt) error {
	if err := w.cfg.Key.SignReceipt(r); err != nil {
		return err
	}
	payload, err := r.Encode()
	if err != nil {
		return err
	}
	session := r.Session
	if session == "" {
		session = audit.NoSession
	}
	_, err = store.Add(ctx, session, string(r.Call)+"."+string(r.Kind), payload)
	return err
}

// keepAnswer stores the receipt of an answer in the background, as often as it takes within Config.AnswerTimeout.
func (w *Witness) keepAnswer(ctx context.Context, r audit.Receipt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.AnswerTimeout)
	w.answers.Go(func() {
		defer cancel()
		defer context.AfterFunc(w.stop, cancel)() //nolint:contextcheck // the call has ended; the witness goes on
		var err error
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
			if err = w.keep(ctx, w.cfg.Answers, &r); err == nil || errors.Is(err, audit.ErrReceipt) || !follow.Wait(ctx, wait) {
				break
			}
		}
		w.metrics.receipt(string(audit.ReceiptAnswer), err)
		if err != nil {
			w.cfg.Log.WarnContext(ctx, "the receipt of an answer is not stored", callAttrs(&r), slog.Any("error", err))
		}
	})
}

func callAttrs(r *audit.Receipt) slog.Attr {
	return slog.Group("call", slog.String("id", string(r.Call)), slog.String("session", string(r.Session)), slog.Uint64("seq", r.Seq))
}

// named returns the session and sequence that a request's headers name. Headers that come twice or are malformed name
// nothing.
func named(h http.Header) (session events.ID, seq uint64) {
	sessions, seqs := h.Values(provider.HeaderSession), h.Values(provider.HeaderSeq)
	if len(sessions) != 1 || len(seqs) > 1 {
		return "", 0
	}
	session, err := events.ParseID(sessions[0])
	if err != nil || session == audit.NoSession {
		return "", 0
	}
	if len(seqs) == 1 {
		if seq = parseSeq(seqs[0]); seq == 0 {
			return "", 0
		}
	}
	return session, seq
}
