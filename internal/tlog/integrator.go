package tlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/eventlog"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// ErrStream means that the stream of verdicts is not what the log holds: it is shorter, has a gap, or holds something else.
// Final: what was signed cannot be signed again, and an operator must find out who changed the stream.
var ErrStream = errors.New("the stored verdicts are not those in the log")

const (
	// DefaultInterval is the least time between two checkpoints.
	DefaultInterval = time.Second
	// DefaultRecheck is how long a comparison of the whole stream with the log takes.
	DefaultRecheck = time.Hour

	// maxBatch bounds the leaves between two checkpoints, and with them what is lost and done again after a crash.
	maxBatch = 1 << 16
	// maxRecheck bounds the places that are compared again at a time: as many as one question brings.
	maxRecheck = 1 << 11
	// maxDoubts is how often a fault of the stream is seen before it is believed: a leader that has just been elected, or
	// a replica that is behind, may look so for a moment.
	maxDoubts = 3
)

// Verdicts is the stream of verdicts.
type Verdicts interface {
	// Entries is that of [jetstream.Records].
	Entries(ctx context.Context, from uint64) iter.Seq2[jetstream.Entry, error]
}

// Config says how to keep a log.
type Config struct {
	Dir      string           // where its files are; it is made when missing
	Signer   *translog.Signer // which names it
	Verdicts Verdicts
	Registry prometheus.Registerer

	Interval time.Duration // between two checkpoints; 0: [DefaultInterval]
	Recheck  time.Duration // in which all of the stream is compared with the log again; 0: [DefaultRecheck]
	Log      *slog.Logger  // nil: nobody
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "" || c.Signer == nil || c.Verdicts == nil || c.Registry == nil:
		return errors.New("a log needs a directory, a key, the verdicts and a registry of metrics")
	case c.Interval < 0 || c.Recheck < 0:
		return errors.New("times are not negative")
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Recheck == 0 {
		c.Recheck = DefaultRecheck
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Integrator keeps a log: it appends what the stream of verdicts gets, and signs checkpoints. It never signs one that
// does not continue the one before.
type Integrator struct {
	cfg     Config
	metrics *metrics

	mu     sync.Mutex
	health error

	dir     *writer
	builder *translog.Builder // nil: the state is to be read from the files
	point   translog.Checkpoint
	last    translog.Hash   // of the last leaf
	filled  []translog.File // full ones since the last checkpoint

	doubts    int
	failed    error
	told      string  // the error that was logged last
	recheckAt uint64  // the leaf that is compared next
	due       float64 // how many could have been compared since the last time
	passed    bool    // all leaves have been compared since the start
	suspect   bool    // the last comparison of older places went wrong
}

// New returns an integrator, which does nothing until it is run. Its metrics are in the registry.
func New(cfg Config) (*Integrator, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("transparency log: %w", err)
	}
	m, err := newMetrics(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("transparency log: %w", err)
	}
	return &Integrator{cfg: cfg, metrics: m}, nil
}

// Health returns nil while the log is kept, and otherwise why it is not.
func (i *Integrator) Health() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.health
}

// Handler hands out the log's files, as [Handler] does.
func (i *Integrator) Handler() http.Handler { return Handler(i.cfg.Dir) }

func (i *Integrator) setHealth(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.health = err
}

// Run keeps the log until ctx ends, which is no error. The error, which comes at once, wraps [ErrLocked], [ErrDir], or
// says that the log that is there cannot be continued: [translog.ErrTile], [translog.ErrCheckpoint],
// [translog.ErrSignature]. When the stream of verdicts is not what was signed, it stops to sign, says so in its log, its
// metrics and its health, and waits for ctx: the last checkpoint stays as evidence.
func (i *Integrator) Run(ctx context.Context) error {
	if err := i.open(ctx); err != nil {
		return fmt.Errorf("transparency log in %s: %w", i.cfg.Dir, err)
	}
	defer i.dir.close()
	i.cfg.Log.InfoContext(ctx, "transparency log", slog.String("dir", i.cfg.Dir), slog.String("origin", i.point.Origin),
		slog.Uint64("size", i.point.Size), slog.String("key", i.cfg.Signer.Key()))
	tick := time.NewTicker(i.cfg.Interval)
	defer tick.Stop()
	for {
		i.turn(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// open takes the directory, and makes the log of size 0 in an empty one.
func (i *Integrator) open(ctx context.Context) (err error) {
	if i.dir, err = lockDir(i.cfg.Dir); err != nil {
		return err
	}
	if err = i.load(ctx); errors.Is(err, errNoCheckpoint) {
		if err = i.dir.empty(); err == nil {
			err = i.publish(translog.Checkpoint{Origin: i.cfg.Signer.Origin(), Root: translog.EmptyRoot()})
		}
		if err == nil {
			err = i.load(ctx)
		}
	}
	if err != nil {
		i.dir.close()
	}
	return err
}

// errNoCheckpoint means that the directory has no checkpoint.
var errNoCheckpoint = errors.New("there is no checkpoint")

// load reads the state from the files.
func (i *Integrator) load(ctx context.Context) error {
	signed, err := i.dir.Read(ctx, translog.CheckpointPath, translog.MaxCheckpointBytes)
	if errors.Is(err, translog.ErrNotFound) {
		return errNoCheckpoint
	}
	if err != nil {
		return err
	}
	point, err := translog.OpenCheckpoint(signed, i.cfg.Signer.Key())
	if err != nil {
		return fmt.Errorf("%s: %w: give the key that it was kept with, or another directory", translog.CheckpointPath, err)
	}
	tree, err := translog.OpenTree(ctx, i.dir, point)
	if err != nil {
		return err
	}
	builder, err := tree.Builder(ctx, i.write)
	if err != nil {
		return err
	}
	last := translog.Hash{}
	if point.Size > 0 {
		if last, err = tree.Leaf(ctx, point.Size-1); err != nil {
			return err
		}
	}
	// A checkpoint whose writing failed may be there and not be durable yet.
	if err := i.dir.step("sync directory", ".", func() error { return i.dir.syncDir(i.dir.root) }); err != nil {
		return err
	}
	i.builder, i.point, i.last, i.filled = builder, point, last, nil
	i.metrics.size.Set(float64(point.Size))
	return nil
}

// write is the builder's.
func (i *Integrator) write(f translog.File, b []byte) error {
	if err := i.dir.install(f.Path(), b); err != nil {
		return err
	}
	if f == f.Full() {
		i.filled = append(i.filled, f)
	}
	return nil
}

// publish signs a checkpoint and makes it the newest, durably.
func (i *Integrator) publish(point translog.Checkpoint) error {
	signed, err := i.cfg.Signer.Sign(point)
	if err != nil {
		return err
	}
	if err := i.dir.install(translog.CheckpointPath, signed); err != nil {
		return err
	}
	return i.dir.sync()
}

// commit makes what was appended durable, and then publishes the checkpoint of it.
func (i *Integrator) commit() error {
	if err := i.builder.Flush(); err != nil {
		return err
	}
	if err := i.dir.sync(); err != nil {
		return err
	}
	root, err := i.builder.Root()
	if err != nil {
		return err
	}
	point := translog.Checkpoint{Origin: i.point.Origin, Size: i.builder.Size(), Root: root}
	if err := i.publish(point); err != nil {
		return err
	}
	i.point = point
	i.metrics.size.Set(float64(point.Size))
	i.metrics.checkpoints.Inc()
	for _, f := range i.filled {
		if err := i.dir.dropPartial(f); err != nil {
			return err
		}
	}
	i.filled = nil
	return nil
}

// turn does what is to be done now, and takes note of how it went.
func (i *Integrator) turn(ctx context.Context) {
	if i.failed != nil {
		return
	}
	err := i.compare(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		if i.told != "" {
			i.cfg.Log.InfoContext(ctx, "the transparency log is kept again", slog.Uint64("size", i.point.Size))
		}
		i.doubts, i.told = 0, ""
		i.setHealth(nil)
		return
	}
	i.builder = nil // whatever was appended and not committed is read again
	err = fmt.Errorf("transparency log %s, size %d: %w", i.cfg.Signer.Origin(), i.point.Size, err)
	if i.doubts++; !errors.Is(err, ErrStream) {
		i.doubts = 0
	}
	i.setHealth(err)
	if i.doubts >= maxDoubts || isFinal(err) {
		i.failed = err
		i.metrics.failed.Set(1)
		i.cfg.Log.ErrorContext(ctx, "the transparency log has stopped: its last checkpoint stays as evidence", slog.Any("error", err))
		return
	}
	i.metrics.errors.Inc()
	if i.told != err.Error() {
		i.told = err.Error()
		i.cfg.Log.WarnContext(ctx, "the transparency log was not brought forward: trying again", slog.Any("error", err))
	}
}

// compare brings the log forward and looks at older places. When these were not as they should be, nothing is signed before
// they are.
func (i *Integrator) compare(ctx context.Context) error {
	if i.suspect {
		if err := i.recheck(ctx); err != nil {
			return err
		}
		i.suspect = false
	}
	if err := i.forward(ctx); err != nil {
		return err
	}
	err := i.recheck(ctx)
	i.suspect = err != nil
	return err
}

// isFinal reports whether the log's own files are not what was signed.
func isFinal(err error) bool {
	return errors.Is(err, translog.ErrTile) || errors.Is(err, translog.ErrNotFound) || errors.Is(err, translog.ErrCheckpoint) ||
		errors.Is(err, translog.ErrSignature) || errors.Is(err, errNoCheckpoint)
}

// forward appends what the stream has got. It begins with the place of the last leaf, which must be what it was.
func (i *Integrator) forward(ctx context.Context) error {
	if i.builder == nil {
		if err := i.load(ctx); err != nil {
			return err
		}
	}
	size := i.point.Size
	seen := size == 0
	for entry, err := range i.cfg.Verdicts.Entries(ctx, max(size, 1)) {
		if err != nil {
			return streamError(err, size)
		}
		if hash := translog.LeafHash(entry.Payload); entry.Seq > size {
			if err := i.builder.Append(entry.Payload); err != nil {
				return err
			}
			i.last = hash
		} else if seen = true; hash != i.last {
			return fmt.Errorf("%w: place %d holds another one", ErrStream, size)
		}
		if i.builder.Size()-i.point.Size >= maxBatch {
			if err := i.commit(); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !seen {
		return fmt.Errorf("%w: they end before place %d", ErrStream, size)
	}
	if i.builder.Size() == i.point.Size {
		return nil
	}
	return i.commit()
}

// streamError tells what the stream lacks from what it does not say.
func streamError(err error, size uint64) error {
	if errors.Is(err, eventlog.ErrGap) || size > 0 && errors.Is(err, eventlog.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	return err
}

// recheck compares a run of places of the stream with the log again when it is time for it: all are, once in the time that
// the configuration says, and the first time as fast as it goes.
func (i *Integrator) recheck(ctx context.Context) error {
	if i.recheckAt >= i.point.Size {
		i.recheckAt, i.passed = 0, true
	}
	i.due += float64(i.point.Size) * float64(i.cfg.Interval) / float64(i.cfg.Recheck)
	n := min(maxRecheck, i.point.Size-i.recheckAt)
	if n == 0 || i.passed && i.due < float64(n) {
		return nil
	}
	tree, err := translog.OpenTree(ctx, i.dir, i.point)
	if err != nil {
		return err
	}
	end := i.recheckAt + n
	entries, stop := iter.Pull2(tree.Entries(ctx, i.recheckAt)) // each is checked against its leaf
	defer stop()
	for entry, err := range i.cfg.Verdicts.Entries(ctx, i.recheckAt+1) {
		if err != nil {
			return streamError(err, i.point.Size)
		}
		logged, err, _ := entries()
		if err != nil {
			return err
		}
		if !bytes.Equal(translog.Entry(entry.Payload), logged) {
			return fmt.Errorf("%w: place %d holds another one", ErrStream, entry.Seq)
		}
		i.metrics.rechecks.Inc()
		if i.recheckAt++; i.recheckAt == end {
			i.due = 0
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: they end before place %d", ErrStream, i.recheckAt+1)
}
