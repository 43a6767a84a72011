// Package program holds the programs as commands over the services, so that each can run as a process of its own or
// together with the others in one.
package program

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/pkg/events"
)

// exitUsage is the exit code after flags or arguments that a command does not take.
const exitUsage = 2

// failureCode is the name of the annotation that holds a command's exit code after an error.
const failureCode = "exit code after an error"

// FailWith gives a command and those below it, whose exit code 1 means something else, another one for errors that are no
// [ExitError]: also for those of flags that are required, and of output that cannot be written.
func FailWith(cmd *cobra.Command, code int) {
	if cmd.Annotations == nil {
		cmd.Annotations = make(map[string]string)
	}
	cmd.Annotations[failureCode] = strconv.Itoa(code)
}

// codeOf returns the exit code of a command after an error that is no [ExitError]. It began unless its flags or arguments
// were refused.
func codeOf(cmd *cobra.Command, began bool) int {
	for ; cmd != nil; cmd = cmd.Parent() {
		if code, err := strconv.Atoi(cmd.Annotations[failureCode]); err == nil {
			return code
		}
	}
	if !began {
		return exitUsage
	}
	return 1
}

// Main runs a command until it ends or the process is told to stop, and returns the exit code: 0; 2 after flags or arguments
// that it does not take; after another error that of its [ExitError], or that of [FailWith], or 1. It prints an error as one
// line. A second signal kills.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root.SilenceErrors, root.SilenceUsage = true, true
	began := false
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !began {
		err = fmt.Errorf("%w: %s --help shows what it takes", err, cmd.CommandPath())
	}
	var code *ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		if code.Err != nil {
			printError(root, code.Err)
		}
		return code.Code
	}
	printError(root, err)
	return codeOf(cmd, began)
}

func printError(root *cobra.Command, err error) {
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), OneLine(err)) // nobody is left to tell
}

// ExitError ends a program with an exit code of its own.
type ExitError struct {
	Code int
	Err  error // printed unless nil
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error to print.
func (e *ExitError) Unwrap() error { return e.Err }

// OneLine returns an error's text on one line, as [Printable] does.
func OneLine(err error) string { return Printable(strings.ReplaceAll(err.Error(), "\n", "; ")) }

// Printable returns text that a terminal can be given: what is not printable, such as control characters, marks that
// change the direction of writing, and halves of surrogate pairs, stands as the replacement character, line breaks and
// tabs as spaces.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// NewID returns a fresh ULID; those of one process increase within a millisecond.
func NewID() events.ID { return events.ID(ulid.MustNew(ulid.Now(), ulidEntropy).String()) }

// ulidEntropy is safe for concurrent use.
var ulidEntropy io.Reader = &ulid.LockedMonotonicReader{MonotonicReader: ulid.Monotonic(rand.Reader, 0)}

// Service holds the flags that all services share.
type Service struct {
	NATS     string
	Creds    string
	Inbox    string // where answers are received
	Replicas int
	Metrics  string
	AckWait  time.Duration
	LogLevel string

	log *slog.Logger
}

// Flags adds the shared flags to a command.
func (s *Service) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.NATS, "nats", env("REFOLD_NATS", ""), "URL of the NATS server or servers (REFOLD_NATS)")
	f.StringVar(&s.Creds, "creds", env("REFOLD_CREDS", ""), "NATS credentials file (REFOLD_CREDS)")
	f.StringVar(&s.Inbox, "inbox-prefix", env("REFOLD_INBOX_PREFIX", ""), "where NATS answers are received, as the credentials permit; empty: _INBOX (REFOLD_INBOX_PREFIX)")
	f.IntVar(&s.Replicas, "replicas", 1, "copies of each stream that is made: 1, 3 or 5")
	f.StringVar(&s.Metrics, "metrics", "", "address for /metrics and /healthz, such as :9100; empty: none")
	f.DurationVar(&s.AckWait, "ack-wait", 0, "time after which the inputs of a dead worker are handed to another; the streams' first maker decides (default 30s)")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
}

func env(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

// Logger returns the program's logger, which writes to standard error.
func (s *Service) Logger() (*slog.Logger, error) {
	if s.log != nil {
		return s.log, nil
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", s.LogLevel)
	}
	s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraries{s.log})
	return s.log, nil
}

// libraries takes what libraries print with the standard library's logger. An HTTP client quotes what a server has sent unasked, which
// may be a credential that it was given: that is left out.
type libraries struct{ log *slog.Logger }

// Write implements [io.Writer].
func (l libraries) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(strings.TrimSpace(string(p)), " starting with ")
	l.log.Warn("a library says", slog.String("text", text))
	return len(p), nil
}

// streamsOf names the shared streams that a program cannot do without. It makes those that are missing, when it may; one
// that another program writes is made by that one. A mirror needs none; all are named for a program that is not listed.
func streamsOf(name string) []string {
	switch name {
	case "loop-worker":
		return []string{jetstream.InboxStream, jetstream.ObjectsStream}
	case "verifier":
		return []string{jetstream.VerdictsStream}
	case "projector":
		return []string{jetstream.StepsStream}
	case "witness":
		return []string{jetstream.WitnessStream}
	case mirrorName:
		return nil
	}
	return jetstream.SharedStreams()
}

// Connect connects to NATS and sees to it that the shared streams are there which the program cannot do without.
func (s *Service) Connect(ctx context.Context, name string) (*jetstream.Client, error) {
	if s.NATS == "" {
		return nil, errors.New("no NATS server: give --nats URL or set REFOLD_NATS (refold dev needs neither)")
	}
	if !slices.Contains([]int{1, 3, 5}, s.Replicas) { // an even number survives no more than the odd one below it
		return nil, fmt.Errorf("--replicas %d: want 1, 3 or 5", s.Replicas)
	}
	log, err := s.Logger()
	if err != nil {
		return nil, err
	}
	cfg := jetstream.Config{URL: s.NATS, Creds: s.Creds, InboxPrefix: s.Inbox, Name: name, Replicas: s.Replicas, AckWait: s.AckWait, Logger: log}
	streams := streamsOf(name)
	if len(streams) == 0 {
		return jetstream.Connect(ctx, cfg)
	}
	client, err := connectStreams(ctx, cfg, streams...)
	if err == nil && name == "loop-worker" { // others read what is in them before anybody has written there
		if err := client.EnsureStreams(ctx); err != nil {
			log.DebugContext(ctx, "not all shared streams are there", slog.Any("error", err))
		}
	}
	return client, err
}

// Registry returns a metrics registry with the process's own metrics.
func Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
