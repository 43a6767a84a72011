package provider

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/refold-dev/refold/internal/provider/sse"
)

// KindDeepSeek is the kind of DeepSeek's chat completions, of the service itself or of the simulator.
const KindDeepSeek = "deepseek"

// EnvDeepSeekKey names the environment variable that holds DeepSeek's key.
const EnvDeepSeekKey = "DEEPSEEK_API_KEY"

// Errors of [New]. All of them are faults of the configuration.
var (
	// ErrKind means that there is no adapter of that kind.
	ErrKind = errors.New("unknown provider kind")
	// ErrConfig means that a field of the configuration cannot be used as it is.
	ErrConfig = errors.New("invalid provider configuration")
	// ErrNoCredential means that the provider's own service needs a key and there is none.
	ErrNoCredential = errors.New("no credential")
)

// Config configures an adapter. The zero value is the provider's own service with the key from the environment.
type Config struct {
	// Name is the provider's name in the log; empty: the kind.
	Name string
	// BaseURL is what the endpoint's path is appended to; empty: the vendor's own service.
	BaseURL string
	// Key is the credential. When it is empty, the kind's environment variable is read once, by [New]. A BaseURL
	// other than the vendor's may do without one.
	Key Secret
	// PlainHTTP permits a key to be sent over http to a host that is not this one.
	PlainHTTP bool
	// Models replaces or extends the kind's model catalogue, by name.
	Models []Model
	// Retry is the policy that prepared calls carry; its zero fields leave the decision to the adapter's user, and
	// [DefaultRetryPolicy] is what counts in the end.
	Retry RetryPolicy

	// ConnectTimeout bounds making a connection, TLS included; 0: 15 s.
	ConnectTimeout time.Duration
	// HeaderTimeout bounds the wait for the response's headers once the request is written; 0: 5 min.
	HeaderTimeout time.Duration
	// IdleTimeout bounds the wait for the next byte of an answer; comments count; 0: 2 min.
	IdleTimeout time.Duration
	// MaxEventBytes bounds one event of an answer; 0: [sse.DefaultLimit].
	MaxEventBytes int

	// Transport replaces the HTTP transport, for tests. It MUST NOT follow redirects or decompress.
	Transport http.RoundTripper
	// Now is the clock that a Retry-After date is compared with; nil: time.Now.
	Now func() time.Time
}

// Model is an entry of a model catalogue. The empty name stands for every model that has no entry.
type Model struct {
	Name          string
	ContextWindow int64 // tokens
	MaxTokens     int64 // filled in when a config has none
	MaxTokensOff  int64 // the same without reasoning; 0: as MaxTokens

	Images         bool  // requests may show images
	MaxImagePixels int64 // width times height of one image; 0: no limit is known
	Files          bool  // images may be uploaded by the provider's files API and named by their id
}

func (m Model) validate() error {
	switch {
	case m.ContextWindow < 0 || m.MaxTokens < 0 || m.MaxTokensOff < 0 || m.MaxImagePixels < 0:
		return fmt.Errorf("%w: a limit of model %q is negative", ErrConfig, m.Name)
	case !m.Images && (m.Files || m.MaxImagePixels != 0):
		return fmt.Errorf("%w: model %q has limits or files for images but takes none", ErrConfig, m.Name)
	}
	return nil
}

// New returns the adapter of a kind. It implements [io.Closer] as well: Close gives up kept connections, for which the
// HTTP transport runs goroutines; calls under way go on. Errors wrap [ErrKind], [ErrConfig], [ErrNoCredential] or [ErrSecret]; none shows
// a credential.
func New(kind string, cfg Config) (Adapter, error) {
	kinds := [...]struct {
		name string
		make func(Config) (Adapter, error)
	}{
		{KindDeepSeek, newDeepSeek},
	}
	var known []string
	for _, k := range kinds {
		if k.name == kind {
			a, err := k.make(cfg)
			if err != nil {
				return nil, fmt.Errorf("provider %s: %w", kind, err)
			}
			return a, nil
		}
		known = append(known, k.name)
	}
	return nil, fmt.Errorf("%w %q: want one of %s", ErrKind, kind, strings.Join(known, ", "))
}

// complete fills in the defaults of a kind and checks the result.
func (c Config) complete(kind, base, env string) (Config, error) {
	if c.Name == "" {
		c.Name = kind
	}
	if c.ConnectTimeout < 0 || c.HeaderTimeout < 0 || c.IdleTimeout < 0 || c.MaxEventBytes < 0 {
		return c, fmt.Errorf("%w: a timeout or limit is negative", ErrConfig)
	}
	if err := c.Retry.Validate(); err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for _, m := range c.Models {
		if err := m.validate(); err != nil {
			return c, err
		}
	}
	c.ConnectTimeout = defaultTo(c.ConnectTimeout, 15*time.Second)
	c.HeaderTimeout = defaultTo(c.HeaderTimeout, 5*time.Minute)
	c.IdleTimeout = defaultTo(c.IdleTimeout, 2*time.Minute)
	c.MaxEventBytes = defaultTo(c.MaxEventBytes, sse.DefaultLimit)
	if c.Now == nil {
		c.Now = time.Now
	}
	if value := os.Getenv(env); c.Key.Empty() && value != "" {
		key, err := NewSecret(value)
		if err != nil {
			return c, fmt.Errorf("environment variable %s: %w", env, err)
		}
		c.Key = key
	}
	if c.BaseURL == "" {
		c.BaseURL = base
		if c.Key.Empty() {
			return c, fmt.Errorf("%w: set %s", ErrNoCredential, env)
		}
	}
	if err := c.checkURL(); err != nil {
		return c, err
	}
	c.BaseURL = strings.TrimRight(c.BaseURL, "/")
	return c, nil
}

func defaultTo[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// checkURL refuses base URLs that hold a credential of their own or would carry the key in the clear. Its errors do
// not show the URL, which may hold a password.
func (c Config) checkURL() error {
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%w: the base URL is not http(s)://host[:port][/path]", ErrConfig)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%w: the base URL has user information, a query or a fragment", ErrConfig)
	case u.Scheme == "http" && !c.Key.Empty() && !c.PlainHTTP && !loopback(u.Hostname()):
		return fmt.Errorf("%w: %s would get the key over plain http: use https, or permit it with PlainHTTP", ErrConfig, u.Host)
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// model returns the catalogue's entry for name: the configured ones first, then the kind's own, then the one without
// a name.
func (c Config) model(name string, own []Model) Model {
	for _, want := range [...]string{name, ""} {
		for _, list := range [...][]Model{c.Models, own} {
			for _, m := range list {
				if m.Name == want {
					return m
				}
			}
		}
	}
	return Model{Name: name}
}
