package tlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	translog "github.com/refold-dev/refold/pkg/tlog"
)

var (
	// ErrUnavailable means that a log's server gave no answer, or not the one that was asked for. Try again.
	ErrUnavailable = errors.New("the log's server gives no answer")
	// ErrURL means that a text is no address of a log.
	ErrURL = errors.New("no address of a log")
)

// httpTimeout bounds one question to a log's server.
const httpTimeout = 30 * time.Second

// HTTP reads a log over HTTP. It is safe for concurrent use.
type HTTP struct {
	base   string // with a final slash
	client *http.Client
}

var _ translog.Tiles = (*HTTP)(nil)

// NewHTTP returns the reader of the log at the address, below which its files stand. The error wraps [ErrURL].
func NewHTTP(address string, client *http.Client) (*HTTP, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: %.200q: want http://HOST/PATH or https://HOST/PATH", ErrURL, address)
	}
	return &HTTP{base: strings.TrimSuffix(u.String(), "/") + "/", client: client}, nil
}

// Read implements [translog.Tiles]. The other errors wrap [ErrUnavailable].
func (h *HTTP) Read(ctx context.Context, name string, limit int) ([]byte, error) {
	if _, ok := translog.ParsePath(name); !ok && name != translog.CheckpointPath {
		return nil, fmt.Errorf("%.80q: %w", name, translog.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, httpTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.base+name, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("%s: %w", h.base+name, translog.ErrNotFound)
	default:
		return nil, fmt.Errorf("%w: %s: %s", ErrUnavailable, h.base+name, resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, h.base+name, err)
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%s: %w: longer than %d bytes", h.base+name, translog.ErrTile, limit)
	}
	return b, nil
}

// Open returns the reader of a log in a directory, or at an address that begins with http:// or https://. The error wraps
// [ErrDir] or [ErrURL].
func Open(where string) (translog.Tiles, error) {
	if strings.HasPrefix(where, "http://") || strings.HasPrefix(where, "https://") {
		return NewHTTP(where, http.DefaultClient)
	}
	return OpenDir(where)
}

// Handler hands out the files of the log in a directory, at the paths that they have in it, and nothing else: the lock and what
// is being written are no part of it. It lets others keep for good what the newest checkpoint covers, which never changes; what
// stands beyond it may be replaced, and is to be asked for again.
func Handler(root string) http.Handler {
	dir := &Dir{root: root}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		limit, kind, cache := translog.MaxCheckpointBytes, "text/plain; charset=utf-8", "no-cache"
		if f, ok := translog.ParsePath(name); ok {
			limit, kind = f.Limit(), "application/octet-stream"
			if dir.covers(r.Context(), f) { // looked at first: the file may change until a checkpoint covers it
				cache = "max-age=31536000, immutable"
			}
		}
		b, err := dir.Read(r.Context(), name, limit)
		switch {
		case errors.Is(err, translog.ErrNotFound):
			http.Error(w, "not found", http.StatusNotFound)
		case err != nil:
			http.Error(w, "the file cannot be read", http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", cache)
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = w.Write(b) // the client may have gone
		}
	})
}

// covers reports whether the newest checkpoint covers the whole file.
func (d *Dir) covers(ctx context.Context, f translog.File) bool {
	signed, err := d.Read(ctx, translog.CheckpointPath, translog.MaxCheckpointBytes)
	if err != nil {
		return false
	}
	point, err := translog.ReadCheckpoint(signed)
	if err != nil {
		return false
	}
	full, hashes := uint64(f.Full().Width), point.Size // of the file's level
	for range f.Level {
		hashes /= full
	}
	width := uint64(f.Width)
	return width <= hashes && f.N <= (hashes-width)/full
}
