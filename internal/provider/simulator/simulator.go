// Package simulator is a model provider without a model: an HTTP server that speaks DeepSeek's chat completions and
// keeps uploaded files, checks requests as a strict vendor does, answers from a script or by simple built-in rules, goes wrong on demand and
// reports usage as a real prefix cache would give it. Equal requests in an equal order get equal answers.
package simulator

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/pkg/events"
)

// Config configures a simulator. The zero value answers by the built-in rules and accepts every key or none.
type Config struct {
	Script Script

	// Key is the bearer key that requests must carry; empty: any or none.
	Key string
	// ContextWindow is how many tokens a prompt may have unless the script says otherwise for its model; 0: 128,000.
	ContextWindow int64
	// CacheTTL is how long a cached unit lives after its last use; 0: 4 h.
	CacheTTL time.Duration
	// CacheUnits is how many units of 64 tokens the cache holds; 0: 65,536.
	CacheUnits int
	// Record keeps every request for [Simulator.Requests], uploads aside.
	Record bool

	Now    func() time.Time // the clock of cache and files; nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
}

const (
	defaultWindow = 128_000
	defaultTTL    = 4 * time.Hour
	defaultUnits  = 1 << 16
	maxBody       = 64 << 20
)

// Request is a request as it came.
type Request struct {
	Path    string
	Session string // X-Refold-Session
	Seq     uint64 // X-Refold-Seq, 0 when absent
	Body    []byte // exact
	Status  int    // of the response; 0: none was given
}

// Simulator is an [http.Handler] for POST requests to paths that end in /chat/completions or /files. Safe for
// concurrent use.
type Simulator struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	cache    *prefixCache
	matches  map[match]int
	requests []Request
	uploads  map[int]int // matches of the upload rules
	files    []keptFile
	fileIDs  int // given so far
}

// New returns a simulator. The error wraps [ErrScript].
func New(cfg Config) (*Simulator, error) {
	if err := cfg.Script.validate(); err != nil {
		return nil, err
	}
	if cfg.ContextWindow <= 0 {
		cfg.ContextWindow = defaultWindow
	}
	if cfg.CacheTTL <= 0 {
		cfg.CacheTTL = defaultTTL
	}
	if cfg.CacheUnits <= 0 {
		cfg.CacheUnits = defaultUnits
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Simulator{
		cfg: cfg, log: log, cache: newPrefixCache(cfg.CacheUnits, cfg.CacheTTL), matches: make(map[match]int),
		uploads: make(map[int]int),
	}, nil
}

// Requests returns a copy of the recorded requests in the order in which they came, Body shared.
func (s *Simulator) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// ServeHTTP implements [http.Handler].
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	upload := strings.HasSuffix(r.URL.Path, "/files")
	switch {
	case !upload && !strings.HasSuffix(r.URL.Path, "/chat/completions"):
		writeError(w, http.StatusNotFound, invalidRequest, "There is nothing at "+r.URL.Path)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		writeError(w, http.StatusMethodNotAllowed, invalidRequest, "Only POST is allowed")
		return
	case upload:
		s.log.DebugContext(r.Context(), "upload", slog.Int("status", s.upload(w, r)))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		writeError(w, http.StatusRequestEntityTooLarge, invalidRequest, "The request body is too large")
		return
	case err != nil: // the client broke off: there is nobody to answer
		s.log.DebugContext(r.Context(), "request broken off", slog.Any("error", err))
		return
	}
	status := s.respond(w, r, body, s.record(r, body))
	s.log.DebugContext(r.Context(), "request", slog.String("session", r.Header.Get(provider.HeaderSession)),
		slog.String("seq", r.Header.Get(provider.HeaderSeq)), slog.Int("bytes", len(body)), slog.Int("status", status))
}

// record keeps a request and returns a function that notes its status.
func (s *Simulator) record(r *http.Request, body []byte) func(status int) {
	if !s.cfg.Record {
		return func(int) {}
	}
	seq, _ := strconv.ParseUint(r.Header.Get(provider.HeaderSeq), 10, 64) // 0 when there is none
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.requests)
	s.requests = append(s.requests, Request{
		Path: r.URL.Path, Session: r.Header.Get(provider.HeaderSession), Seq: seq, Body: body,
	})
	return func(status int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests[i].Status = status
	}
}

// credential returns the bearer key of a request and whether it is the right one.
func (s *Simulator) credential(r *http.Request) (string, bool) {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	return key, s.cfg.Key == "" || subtle.ConstantTimeCompare([]byte(key), []byte(s.cfg.Key)) == 1
}

// reset breaks a connection off before a response.
func (s *Simulator) reset(w http.ResponseWriter, r *http.Request) {
	if err := reset(http.NewResponseController(w)); !errors.Is(err, errGone) {
		s.log.ErrorContext(r.Context(), "simulated reset failed", slog.Any("error", err))
	}
}

// respond answers a request and returns the status. note is told the status before the first byte is written.
func (s *Simulator) respond(w http.ResponseWriter, r *http.Request, body []byte, note func(int)) int {
	fail := func(status int, code, message string) int {
		note(status)
		return writeError(w, status, code, message)
	}
	credential, ok := s.credential(r)
	if !ok {
		return fail(http.StatusUnauthorized, badKey, badKeyMessage)
	}
	req, err := parseRequest(body)
	if err == nil {
		err = s.resolve(req, credential)
	}
	if err != nil {
		return fail(http.StatusBadRequest, invalidRequest, err.Error())
	}
	model := s.cfg.Script.model(req.model)
	if model.NoImages && req.countImages() > 0 {
		return fail(http.StatusBadRequest, invalidRequest, "Model "+req.model+" takes text only")
	}
	prompt := promptOf(req)
	if n, window := tokens(len(prompt)), cmp.Or(model.ContextWindow, s.cfg.ContextWindow); n > window {
		return fail(http.StatusBadRequest, tooLong, fmt.Sprintf(
			"This model's maximum context length is %d tokens. However, you requested %d tokens in the messages.", window, n))
	}
	answer := s.answerTo(req, r.Header.Get(provider.HeaderSession))
	if f := answer.Failure; f != nil {
		switch f.Kind {
		case FailHTTP:
			note(f.Status)
			return writeFailure(w, f)
		case FailResetBefore:
			s.reset(w, r)
			return 0
		case FailHangBefore:
			if hang(r.Context(), f) != nil {
				return 0
			}
		default: // the stream fails on its way
		}
	}
	note(http.StatusOK)
	s.stream(w, r, req, &answer, body, prompt, credential)
	return http.StatusOK
}

// stream writes a streamed answer and accounts for it.
func (s *Simulator) stream(w http.ResponseWriter, r *http.Request, req *chatRequest, a *Answer, body, prompt []byte, credential string) {
	owner := ownerKey(credential, req.model)
	m := a.message(body)
	hit := s.charge(owner, prompt)
	usage := []byte(a.Usage)
	if usage == nil {
		reasoning := tokens(len(m.reasoning))
		output := tokens(len(m.content))
		for _, c := range m.calls {
			output += tokens(len(c.name) + len(c.arguments))
		}
		usage = usageOf(tokens(len(prompt)), hit, reasoning+output, reasoning)
	}
	sum := sha256.Sum256(body)
	st := stream{
		w: w, rc: http.NewResponseController(w), ctx: r.Context(), answer: a, model: req.model, usage: usage,
	}
	if err := st.run(&m, "sim-"+hex.EncodeToString(sum[:8])); err != nil {
		if !errors.Is(err, errGone) {
			s.log.DebugContext(r.Context(), "answer broken off", slog.Any("error", err))
		}
		return
	}
	s.charge(owner, appendAnswer(slices.Clip(prompt), &m))
}

// charge returns how many tokens of text are read from the cache and writes all of its full units.
func (s *Simulator) charge(owner unitKey, text []byte) int64 {
	keys := unitKeys(owner, text)
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := s.cache.lookup(keys, now)
	s.cache.store(keys, now)
	return int64(hit) * unitTokens
}

// The codes of error responses.
const (
	invalidRequest = "invalid_request_error"
	badKey         = "authentication_error"
	tooLong        = "context_length_exceeded"
	simulated      = "simulated_error"
)

const badKeyMessage = "Authentication Fails, Your api key is invalid"

// writeError writes an error response and returns its status.
func writeError(w http.ResponseWriter, status int, code, message string) int {
	kind := code
	if code == tooLong {
		kind = invalidRequest
	}
	b := events.AppendQuote([]byte(`{"error":{"message":`), events.TextFromBytes([]byte(message)))
	b = fmt.Appendf(b, `,"type":%q,"param":null,"code":%q}}`, kind, code)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone
	return status
}

// writeFailure writes a scripted error response and returns its status.
func writeFailure(w http.ResponseWriter, f *Failure) int {
	if f.RetryAfter != "" {
		w.Header().Set("Retry-After", f.RetryAfter)
	}
	if f.Body == "" {
		return writeError(w, f.Status, simulated, "Simulated failure: "+http.StatusText(f.Status))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	_, _ = io.WriteString(w, string(f.Body)) // the client may be gone
	return f.Status
}
