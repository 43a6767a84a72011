package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/pkg/eventlog"
)

// Config says how to reach the server and how to make streams.
type Config struct {
	// URL is the server's address, or several separated by commas. Empty: nats://127.0.0.1:4222. Ignored with
	// InProcess.
	URL string
	// Creds is a file with user credentials. Empty: none.
	Creds string
	// Name is what the server shows for this connection. Empty: refold.
	Name string
	// InProcess connects to a server in this process without a socket.
	InProcess nats.InProcessConnProvider
	// Domain is the JetStream domain. Empty: the server's own.
	Domain string
	// InboxPrefix is where answers are received, for credentials that may not subscribe to _INBOX.>: a subject without
	// wildcards. Empty: _INBOX.
	InboxPrefix string

	// Replicas is the number of copies of every stream that this client makes. 0: 1.
	Replicas int
	// MemoryStorage makes streams that are lost with the server. For tests.
	MemoryStorage bool

	// ConnectTimeout bounds Connect. 0: 5 s.
	ConnectTimeout time.Duration
	// RequestTimeout bounds one question to the server. 0: 5 s.
	RequestTimeout time.Duration
	// AppendTimeout bounds one append with all that it takes to settle it, unless its context ends before. 0: 30 s.
	AppendTimeout time.Duration

	// AckWait is how long a delivered input may stay without sign of life before it is delivered again. 0: 30 s.
	AckWait time.Duration
	// MaxAckPending is how many delivered inputs may be unacknowledged at a time, over all workers: at least the number
	// of turns that run at once. 0: 65,536.
	MaxAckPending int

	// Logger receives what no caller can be told. Nil: nobody.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.URL == "" {
		c.URL = nats.DefaultURL
	}
	if c.Name == "" {
		c.Name = "refold"
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	for _, d := range []struct {
		field *time.Duration
		def   time.Duration
	}{
		{&c.ConnectTimeout, 5 * time.Second},
		{&c.RequestTimeout, 5 * time.Second},
		{&c.AppendTimeout, 30 * time.Second},
		{&c.AckWait, 30 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if c.MaxAckPending == 0 {
		c.MaxAckPending = 1 << 16
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	if c.InboxPrefix != "" {
		for token := range strings.SplitSeq(c.InboxPrefix, ".") {
			if token == "" || strings.ContainsFunc(token, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune("*> ", r) }) {
				return fmt.Errorf("inbox prefix %q: want a subject without wildcards, spaces and empty parts, such as _INBOX_worker", c.InboxPrefix)
			}
		}
	}
	switch {
	case c.Replicas < 1 || c.Replicas > 5:
		return fmt.Errorf("replicas: %d, want 1 to 5", c.Replicas)
	case c.MaxAckPending < 1:
		return fmt.Errorf("max ack pending: %d, want at least 1", c.MaxAckPending)
	case c.ConnectTimeout < 0 || c.RequestTimeout < 0 || c.AppendTimeout < 0 || c.AckWait < 0:
		return errors.New("timeouts are not negative")
	}
	return nil
}

// Client is a connection to NATS with JetStream. It is safe for concurrent use. After a lost connection it reconnects
// by itself; meanwhile operations wait as long as their contexts and timeouts let them.
type Client struct {
	cfg     Config
	conn    *nats.Conn
	js      natsjs.JetStream
	prefix  string // of API subjects, with the final dot
	waiting *waiting
	closed  chan struct{}

	// exchange sends a message and waits for its answer. Tests put themselves in between.
	exchange func(context.Context, *nats.Msg) (*nats.Msg, error)
}

// maxCreds bounds what is read of a credentials file.
const maxCreds = 1 << 20

// Connect connects to the server and checks that it has JetStream. The errors wrap [eventlog.ErrUnavailable] (no
// server, one that does not speak NATS, one without JetStream) or [eventlog.ErrPermission] (refused credentials) and
// are one line. It returns within Config.ConnectTimeout, or ctx's deadline if that is earlier. The
// caller closes the client.
//
// Credentials that may not ask for the account's JetStream, such as a client's that may only publish inputs, pass.
func Connect(ctx context.Context, cfg Config) (*Client, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("NATS configuration: %w", err)
	}
	if cfg.Creds != "" {
		// A regular file, since it is read again, and as a whole, whenever the connection is made anew.
		if _, err := files.Regular(cfg.Creds, maxCreds); err != nil {
			return nil, fmt.Errorf("NATS credentials: %w: give the path of a .creds file", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()

	c := &Client{cfg: cfg, waiting: newWaiting(), closed: make(chan struct{})}
	conn, err := dial(ctx, c.options(), cfg.URL, cfg.ConnectTimeout)
	if err != nil {
		return nil, connectError(c.where(), err, cfg.InProcess == nil && someoneListens(cfg.URL))
	}
	c.conn = conn
	c.exchange = conn.RequestMsgWithContext
	if cfg.Domain != "" {
		c.prefix = "$JS." + cfg.Domain + ".API."
		c.js, err = natsjs.NewWithDomain(conn, cfg.Domain)
	} else {
		c.prefix = natsjs.DefaultAPIPrefix
		c.js, err = natsjs.New(conn)
	}
	if err == nil {
		err = c.checkJetStream(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dial connects and gives up when ctx ends, even if the other side accepts and then says nothing.
func dial(ctx context.Context, opts []nats.Option, url string, timeout time.Duration) (*nats.Conn, error) {
	type result struct {
		conn *nats.Conn
		err  error
	}
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	done := make(chan result, 1)
	go func() {
		conn, err := nats.Connect(url, append(opts, nats.Timeout(timeout))...)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		// The library's own attempt is bounded by the same time; what it still brings is given back.
		if r := <-done; r.conn != nil {
			r.conn.Close()
		}
		return nil, ctx.Err()
	}
}

func (c *Client) options() []nats.Option {
	opts := []nats.Option{
		nats.Name(c.cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.ReconnectBufSize(-1), // an append is sent now or reported as not sent, never later
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.waiting.fail("", errDisconnected)
			if err != nil {
				c.cfg.Logger.Warn("NATS connection lost", slog.Any("error", err))
			}
		}),
		nats.ReconnectHandler(func(conn *nats.Conn) {
			c.cfg.Logger.Info("NATS connection restored", slog.String("url", conn.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.asyncError(err) }),
		nats.ClosedHandler(func(*nats.Conn) {
			c.waiting.fail("", nats.ErrConnectionClosed)
			close(c.closed)
		}),
	}
	if c.cfg.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.cfg.Creds))
	}
	if c.cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.cfg.InProcess))
	}
	if c.cfg.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.cfg.InboxPrefix))
	}
	return opts
}

// asyncError takes what the server reports without saying to which request it belongs. A refused publish or
// subscription is the reason why a request gets no answer.
func (c *Client) asyncError(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		c.cfg.Logger.Warn("NATS reports", slog.Any("error", err))
		return
	}
	text := err.Error()
	subject := ""
	if _, rest, ok := strings.Cut(text, `"`); ok {
		subject, _, _ = strings.Cut(rest, `"`)
	}
	refused := &refusedError{subject: subject, subscribe: strings.Contains(strings.ToLower(text), "for subscription")}
	if refused.subscribe && strings.HasPrefix(subject, c.inboxPrefix()) {
		c.waiting.die(refused) // nobody on this connection will get an answer
		return
	}
	c.waiting.fail(subject, refused)
}

func (c *Client) inboxPrefix() string {
	if c.cfg.InboxPrefix != "" {
		return c.cfg.InboxPrefix + "."
	}
	return nats.InboxPrefix
}

// checkJetStream asks for the account's JetStream.
func (c *Client) checkJetStream(ctx context.Context) error {
	ctx, stop := c.watch(ctx, c.prefix+"INFO")
	defer stop()
	_, err := c.js.AccountInfo(ctx)
	if err == nil {
		return nil
	}
	err = cause(ctx, err)
	refused, isRefused := errors.AsType[*refusedError](err)
	switch {
	case isRefused && refused.subscribe:
		return fmt.Errorf("connect to %s: %w: no answer can be received: %w, or name the inbox prefix that they may", c.where(), eventlog.ErrPermission, err)
	case isRefused:
		return nil
	case errors.Is(err, natsjs.ErrJetStreamNotEnabled), errors.Is(err, natsjs.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: the server at %s has no JetStream for this account: enable it (nats-server -js) or use another account",
			eventlog.ErrUnavailable, c.where())
	}
	return fmt.Errorf("%w: JetStream at %s does not answer: check that its servers are up: %w", eventlog.ErrUnavailable, c.where(), err)
}

// where names the server without credentials.
func (c *Client) where() string {
	if c.cfg.InProcess != nil {
		return "the in-process server"
	}
	urls := strings.Split(c.cfg.URL, ",")
	for i, u := range urls {
		u = strings.TrimSpace(u)
		if scheme, rest, ok := strings.Cut(u, "://"); ok {
			urls[i] = scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
		} else {
			urls[i] = u[strings.LastIndex(u, "@")+1:]
		}
	}
	return strings.Join(urls, ",")
}

// connectError turns a failed connection into one line. A NATS server greets whoever connects, so one that listens and
// does not is something else; the client library calls that by many names.
func connectError(where string, err error, listens bool) error {
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired):
		return fmt.Errorf("connect to %s: %w: the server refuses the credentials: give valid ones", where, eventlog.ErrPermission)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("connect to %s: %w", where, err)
	case listens:
		return fmt.Errorf("connect to %s: %w: what listens there does not speak NATS: check the address (%s)",
			where, eventlog.ErrUnavailable, firstLine(err))
	case errors.Is(err, nats.ErrNoServers), errors.As(err, new(*net.OpError)):
		return fmt.Errorf("connect to %s: %w: no NATS server listens there: start one or check the address", where, eventlog.ErrUnavailable)
	case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return fmt.Errorf("connect to %s: %w: no answer in time: check that a NATS server listens there", where, eventlog.ErrUnavailable)
	}
	return fmt.Errorf("connect to %s: %w: %s", where, eventlog.ErrUnavailable, firstLine(err))
}

// someoneListens reports whether something accepts connections at the first address of urls.
func someoneListens(urls string) bool {
	const patience = 250 * time.Millisecond
	first, _, _ := strings.Cut(urls, ",")
	if !strings.Contains(first, "://") {
		first = "nats://" + first
	}
	u, err := url.Parse(strings.TrimSpace(first))
	if err != nil || u.Hostname() == "" {
		return false
	}
	port := u.Port()
	if port == "" {
		port = strconv.Itoa(nats.DefaultPort)
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(u.Hostname(), port), patience) //nolint:noctx // the context has ended
	if err != nil {
		return false
	}
	conn.Close() //nolint:errcheck // nothing was written
	return true
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// Close closes the connection and waits until it is closed. Operations that run fail with [eventlog.ErrUnavailable].
func (c *Client) Close() {
	c.conn.Close()
	<-c.closed
}

// MaxPayload returns the largest message that the server takes, in bytes, headers included.
func (c *Client) MaxPayload() int64 { return c.conn.MaxPayload() }

// Logs returns the sessions' logs.
func (c *Client) Logs() *Logs { return &Logs{client: c} }

// Inbox returns the sessions' inputs.
func (c *Client) Inbox() *Inbox { return &Inbox{client: c} }

// Objects returns the object store.
func (c *Client) Objects() *Objects {
	o := NewObjects(c.js)
	o.current = func(ctx context.Context) error { return c.current(ctx, ObjectsStream) }
	return o
}

// Verdicts returns the verifiers' verdicts.
func (c *Client) Verdicts() *Records {
	return &Records{client: c, stream: VerdictsStream, prefix: verdictPrefix}
}

// WireVerdicts returns the verifiers' verdicts on what passed a witness.
func (c *Client) WireVerdicts() *Records {
	return &Records{client: c, stream: VerdictsStream, prefix: verdictPrefix, suffix: wireSuffix}
}

// StrayVerdicts returns the verifiers' verdicts on calls that passed a witness and that no log permits.
func (c *Client) StrayVerdicts() *Records {
	return &Records{client: c, stream: VerdictsStream, prefix: verdictPrefix, suffix: straySuffix}
}

// Receipts returns the witnesses' receipts of requests.
func (c *Client) Receipts() *Records {
	return &Records{client: c, stream: WitnessStream, prefix: witnessPrefix, suffix: requestSuffix}
}

// AnswerReceipts returns the witnesses' receipts of answers.
func (c *Client) AnswerReceipts() *Records {
	return &Records{client: c, stream: WitnessStream, prefix: witnessPrefix, suffix: answerSuffix}
}

// Steps returns the projector's step records.
func (c *Client) Steps() *Records {
	return &Records{client: c, stream: StepsStream, prefix: stepPrefix}
}

// Hints returns the notices that sessions have grown.
func (c *Client) Hints() *Hints { return &Hints{client: c} }

// Live returns the undurable stream of what models are saying.
func (c *Client) Live() *Live { return &Live{client: c} }

// Presence returns the way to ask workers whether they live.
func (c *Client) Presence() *Presence { return &Presence{client: c} }
