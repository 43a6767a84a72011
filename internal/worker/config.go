package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// Config configures a worker. Fields without a default are required.
type Config struct {
	Name     string    // the worker's name, stable over restarts
	Instance events.ID // this run of it

	Defaults   events.Options   // what sessions get that choose nothing themselves
	Routes     *provider.Routes // the adapters, by the provider's name in the log
	Tools      *tools.Set
	Objects    objects.Store
	Sessions   eventlog.Store // the logs of all sessions, for forks; nil: forks are refused
	Extensions Extensions

	Retry       provider.RetryPolicy // what an adapter leaves open
	Compaction  compact.Policy
	NoPressure  bool  // compaction only on command and after an overflow
	SummaryMax  int64 // tokens that a summary may have, if the policy's reserve for an answer is no larger; 0: 4096
	ImageLimits images.Limits

	MaxSteps    int64         // steps per turn, unless the session has its own limit; 0: 200
	ToolTimeout time.Duration // of tools that have none of their own; 0: 2 min
	ToolGrace   time.Duration // after it, or a cancel, a tool or an extension that goes on is left to itself; 0: 2 s
	ToolPool    int           // parallel tools at a time; 0: 8
	ToolOutput  int           // bytes of a tool's output that are kept, of tools that say nothing else; 0: 1 MiB

	InlineMax     int           // bytes of one text that stay in its event; larger ones become objects; 0: 64 KiB
	MaxEventBytes int           // the largest payload that the log takes; 0: 1 MiB less 16 KiB for headers
	ChunkInterval time.Duration // chunks are durable at the latest after this; 0: 100 ms

	Now    func() time.Time // nil: time.Now
	NewID  func() events.ID
	Jitter func() float64          // in [0,1), spreads retries; nil: no jitter
	Live   func(events.ID, []byte) // told chunks as they come, undurable; nil: nobody is
	Log    *slog.Logger            // nil: silent

	metrics  *Metrics      // nil: nothing is counted
	decoding chan struct{} // holds a token for each image that is decoded now
}

const (
	kib              = 1 << 10
	mib              = 1 << 20
	defaultMaxEvent  = mib - 16*kib
	defaultInlineMax = 64 * kib
	inlineShare      = 8        // of an event that an inline text may take: its escapes may be six times as long
	minEventBytes    = 32 * kib // a message of an error fits, however it is escaped
	chunkRunBytes    = 64 * kib // a run of chunks is appended when it is this long
)

func (c *Config) complete() error {
	setDefault(&c.SummaryMax, 4096)
	setDefault(&c.MaxSteps, 200)
	setDefault(&c.ToolTimeout, 2*time.Minute)
	setDefault(&c.ToolGrace, 2*time.Second)
	setDefault(&c.ToolPool, 8)
	setDefault(&c.ToolOutput, mib)
	setDefault(&c.InlineMax, defaultInlineMax)
	setDefault(&c.MaxEventBytes, defaultMaxEvent)
	setDefault(&c.ChunkInterval, 100*time.Millisecond)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Jitter == nil {
		c.Jitter = func() float64 { return 0 }
	}
	if c.Live == nil {
		c.Live = func(events.ID, []byte) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.decoding == nil {
		c.decoding = make(chan struct{}, mostDecoding)
	}
	if c.Routes == nil {
		c.Routes = provider.NewRoutes(nil)
	}
	switch {
	case !validName(c.Name):
		return fmt.Errorf("worker: a name of at most %d bytes is required", maxName)
	case !c.Instance.Valid():
		return fmt.Errorf("worker: instance %q is no ULID", c.Instance)
	case c.Tools == nil || c.Objects == nil || c.NewID == nil:
		return errors.New("worker: tools, objects and an id source are required")
	case c.ToolTimeout < 0 || c.ToolGrace < 0:
		return errors.New("worker: a time is negative")
	case c.MaxSteps < 1 || c.ToolPool < 1 || c.ToolOutput < 1 || c.InlineMax < 1 || c.MaxEventBytes < minEventBytes || c.SummaryMax < 1:
		return errors.New("worker: a limit is too small")
	case c.InlineMax > c.MaxEventBytes/inlineShare:
		return fmt.Errorf("worker: %d bytes inline do not fit into events of %d bytes", c.InlineMax, c.MaxEventBytes)
	}
	return errors.Join(c.Retry.Validate(), c.Compaction.Validate(), c.Extensions.validate())
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
