package witness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/pkg/audit"
	"github.com/refold-dev/refold/pkg/events"
)

// ErrConfig means that a configuration cannot be used. The message says which field and what is wanted.
var ErrConfig = errors.New("invalid witness configuration")

// Store keeps receipts of one kind, each once for its id. An error means that a receipt is not known to be stored. It
// is safe for concurrent use.
type Store interface {
	Add(ctx context.Context, session events.ID, id string, payload []byte) (place uint64, err error)
}

// Config says what a witness stands before and where its receipts go.
type Config struct {
	// Upstream is the base URL of the provider's API: http(s)://host[:port][/path].
	Upstream string
	// PlainHTTP permits an http upstream on another host, which would see keys of requests pass in the clear.
	PlainHTTP bool
	// Key signs the receipts.
	Key *audit.Key
	// Requests and Answers keep the receipts.
	Requests, Answers Store
	// NewID makes ids of calls.
	NewID func() events.ID
	// Registry takes the metrics.
	Registry prometheus.Registerer

	// Now is the clock of receipts. Nil: time.Now.
	Now func() time.Time
	// Record, unless nil, holds the logs of the sessions: a request that needs an event which permits it passes only when the log
	// of its session holds that event, with the digest of this body. Nil: requests pass unchecked.
	Record Logs
	// MaxCalls bounds the calls under way at once. Clients may have four times as many connections. 0: 1,000.
	MaxCalls int
	// Hold is how many of a request's last bytes wait for the receipt, at least 1. 0: 32 KiB.
	Hold int
	// StoreTimeout bounds the wait for a request's receipt. 0: 10 s.
	StoreTimeout time.Duration
	// AnswerTimeout bounds the attempts to store an answer's receipt. 0: 1 min.
	AnswerTimeout time.Duration
	// BodyTimeout is how long the body of a request, or of an answer that its client does not take, may stand still, and how
	// long an answer waits for the end of the request that it answers. 0: 1 min.
	BodyTimeout time.Duration
	// IdleTimeout is how long a client's connection is kept between requests. 0: 2 min.
	IdleTimeout time.Duration
	// Grace is how long calls under way may go on when the witness is told to stop. 0: 10 s.
	Grace time.Duration
	// TLS is for connections to the upstream. Nil: the system's authorities.
	TLS *tls.Config
	// Log. Nil: nobody is told.
	Log *slog.Logger
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		def   time.Duration
	}{
		{&c.StoreTimeout, 10 * time.Second},
		{&c.AnswerTimeout, time.Minute},
		{&c.BodyTimeout, time.Minute},
		{&c.IdleTimeout, 2 * time.Minute},
		{&c.Grace, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = DefaultMaxCalls
	}
	if c.Hold == 0 {
		c.Hold = 32 << 10
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// validate returns the upstream. The error wraps [ErrConfig] and does not show the URL, which may hold a password.
func (c *Config) validate() (*url.URL, error) {
	switch {
	case c.Key == nil, c.Requests == nil, c.Answers == nil, c.NewID == nil, c.Registry == nil:
		return nil, fmt.Errorf("%w: key, stores, ids and registry are required", ErrConfig)
	case c.MaxCalls < 1 || c.Hold < 1 || c.StoreTimeout < 0 || c.AnswerTimeout < 0 || c.BodyTimeout < 0 || c.IdleTimeout < 0 || c.Grace < 0:
		return nil, fmt.Errorf("%w: a number, size or time is negative", ErrConfig)
	}
	u, err := url.Parse(c.Upstream)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%w: the upstream is not http(s)://host[:port][/path]", ErrConfig)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, fmt.Errorf("%w: the upstream has user information, a query or a fragment", ErrConfig)
	case u.Scheme == "http" && !c.PlainHTTP && !loopback(u.Hostname()):
		return nil, fmt.Errorf("%w: %s would get keys over plain http: use https, or permit it with --plain-http", ErrConfig, u.Host)
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

const (
	// DefaultMaxCalls is how many calls may be under way at once when nobody says otherwise.
	DefaultMaxCalls = 1000

	connsPerCall = 4 // clients keep connections between their calls

	dialTimeout   = 10 * time.Second
	maxHead       = 64 << 10 // of a request
	maxAnswerHead = 256 << 10
)

// newTransport returns what carries requests to the upstream. It speaks HTTP/1.1 alone, in which a request is whole on
// one connection or not at all. A connection is kept for less time than servers keep theirs: one that they have given
// up meanwhile costs the call, because nothing is ever sent again.
func newTransport(c *Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        c.TLS,
		TLSHandshakeTimeout:    dialTimeout,
		IdleConnTimeout:        15 * time.Second,
		MaxIdleConns:           c.MaxCalls,
		MaxIdleConnsPerHost:    c.MaxCalls,
		MaxResponseHeaderBytes: maxAnswerHead,
		DisableCompression:     true,
		Protocols:              protocols,
	}
}
