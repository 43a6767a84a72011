package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/refold-dev/refold/internal/httpserve"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/tlog"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// LogFlags say which transparency log a program keeps; the zero value: none.
type LogFlags struct {
	Dir      string // empty: none is kept
	Origin   string // empty: the one that the key file holds, or a random one
	KeyFile  string // empty: Dir with .key behind it
	Interval time.Duration
	Recheck  time.Duration
}

// LogPath is where a program's HTTP server hands out its transparency log.
const LogPath = "/log/"

// Flags adds the flags to a command.
func (l *LogFlags) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.Dir, "log", "", "directory in which a transparency log of all verdicts is kept; --metrics hands it out below /log/; empty: none is kept")
	f.StringVar(&l.Origin, "log-origin", "", "name of that log, for ever and nobody else's, such as example.com/refold")
	f.StringVar(&l.KeyFile, "log-key", "", "file with the key that signs its checkpoints; it is made when missing, the public one beside it (default the log's directory with .key behind it)")
	f.DurationVar(&l.Interval, "log-interval", tlog.DefaultInterval, "least time between two checkpoints")
	f.DurationVar(&l.Recheck, "log-recheck", tlog.DefaultRecheck, "time in which all stored verdicts are compared with the log again")
}

// check returns what is wrong with the flags of a program.
func (l *LogFlags) check() error {
	switch {
	case l.Dir == "" && (l.Origin != "" || l.KeyFile != ""):
		return errors.New("--log-origin and --log-key are for --log: give a directory too")
	case l.Dir == "":
		return nil
	case l.Origin == "":
		return errors.New("--log needs a name: give --log-origin, such as example.com/refold")
	case l.Interval <= 0 || l.Recheck <= 0:
		return errors.New("--log-interval and --log-recheck: want a time of more than 0")
	}
	if err := translog.CheckOrigin(l.Origin); err != nil {
		return fmt.Errorf("--log-origin: %w", err)
	}
	return nil
}

// NewLog returns what keeps a transparency log of the client's verdicts.
func NewLog(client *jetstream.Client, l LogFlags, reg prometheus.Registerer, log *slog.Logger) (*tlog.Integrator, error) {
	dir, err := filepath.Abs(l.Dir)
	if err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	if l.KeyFile == "" {
		l.KeyFile = dir + ".key"
	}
	if key, err := filepath.Abs(l.KeyFile); err != nil || strings.HasPrefix(key, dir+string(filepath.Separator)) {
		return nil, fmt.Errorf("--log-key %s is in the log's directory, which is handed out: keep it elsewhere", l.KeyFile)
	}
	signer, err := loadSigner(l.KeyFile, l.Origin)
	if err != nil {
		return nil, fmt.Errorf("--log-key: %w", err)
	}
	return tlog.New(tlog.Config{
		Dir: dir, Signer: signer, Verdicts: client.Verdicts(), Registry: reg, Interval: l.Interval, Recheck: l.Recheck, Log: log,
	})
}

// loadSigner loads or makes the key. A log that nobody has named gets a name that no other one has.
func loadSigner(file, origin string) (*translog.Signer, error) {
	if _, err := os.Stat(file); origin == "" && errors.Is(err, fs.ErrNotExist) {
		origin = "refold-dev/" + strings.ToLower(string(NewID()))
	}
	return tlog.LoadSigner(file, origin)
}

// mounting is a service that has more for readers than metrics and health.
type mounting interface{ Mounts() []httpserve.Mount }

// logged is a service that keeps a transparency log as well.
type logged struct {
	service interface {
		Runner
		healthy
	}
	log *tlog.Integrator
}

// withLog adds the transparency log that the flags ask for.
func withLog(service interface {
	Runner
	healthy
}, client *jetstream.Client, l LogFlags, reg prometheus.Registerer, log *slog.Logger,
) (Runner, error) {
	if l.Dir == "" {
		return service, nil
	}
	integrator, err := NewLog(client, l, reg, log)
	if err != nil {
		return nil, err
	}
	return &logged{service: service, log: integrator}, nil
}

// Run implements [Runner].
func (l *logged) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.service.Run(ctx) })
	group.Go(func() error { return l.log.Run(ctx) })
	return group.Wait()
}

// Health returns what is wrong with either.
func (l *logged) Health() error { return errors.Join(l.service.Health(), l.log.Health()) }

// Mounts returns the log's files.
func (l *logged) Mounts() []httpserve.Mount {
	return []httpserve.Mount{{Path: LogPath, Handler: l.log.Handler()}}
}
