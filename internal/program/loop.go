package program

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/internal/worker"
	"github.com/refold-dev/refold/pkg/events"
)

// LoopFlags say how a worker runs loops. The zero value of each field is a sensible choice.
type LoopFlags struct {
	Retry       string // as [provider.ParseRetryPolicy] reads it
	MaxSteps    int64
	ToolTimeout time.Duration
	ToolPool    int
	ToolOutput  int

	Compaction compact.Policy
	SummaryMax int64
	NoPressure bool

	ContextWindow  int64  // of the default model, in tokens; 0: the catalogue's
	Images         string // how the default model is shown images; empty: as the catalogue says
	MaxImagePixels int64

	Contexts   []string // names of context sections
	AllowWrite bool
}

// The ways in which a model is shown images.
const (
	imagesNone   = "none"
	imagesInline = "inline"
	imagesFiles  = "files"
)

// Flags adds the flags to a command.
func (l *LoopFlags) Flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.Retry, "retry", "", "when failed model calls are made again: normal or always, attempts=N, base=DURATION, max=DURATION, separated by commas (default "+provider.DefaultRetryPolicy().String()+")")
	f.Int64Var(&l.MaxSteps, "max-steps", 0, "limit of a turn in steps, of sessions that choose none (default 200)")
	f.DurationVar(&l.ToolTimeout, "tool-timeout", 0, "limit of a tool call (default 2m)")
	f.IntVar(&l.ToolPool, "tool-pool", 0, "tool calls that run at a time, where tools permit that (default 8)")
	f.IntVar(&l.ToolOutput, "tool-output", 0, "bytes of a tool's output that are kept (default 1048576)")

	f.Float64Var(&l.Compaction.Threshold, "compact-threshold", 0, fmt.Sprintf("part of the context window from which on the older conversation is summarised (default %v)", compact.DefaultThreshold))
	f.Float64Var(&l.Compaction.Retain, "compact-retain", 0, fmt.Sprintf("part of the context window at the end of the conversation that is never summarised (default %v)", compact.DefaultRetain))
	f.Int64Var(&l.Compaction.Reserve, "compact-reserve", 0, "tokens of the context window that are kept for an answer (default an eighth, at most 16384)")
	f.IntVar(&l.Compaction.PruneChars, "compact-prune", 0, fmt.Sprintf("characters that a tool result may have when room is needed, longer ones are shortened before anything is summarised; negative: never (default %d)", compact.DefaultPruneChars))
	f.IntVar(&l.Compaction.MaxPerTurn, "compact-max", 0, fmt.Sprintf("summaries that are tried in a turn (default %d)", compact.DefaultMaxPerTurn))
	f.Int64Var(&l.SummaryMax, "compact-summary", 0, "limit of a summary in tokens (default 4096)")
	f.BoolVar(&l.NoPressure, "no-pressure", false, "summarise only when asked to (refold session compact), or when the provider refuses a request as too long")

	f.Int64Var(&l.ContextWindow, "context-window", 0, "context window of --model in tokens; 0: what is known of the model")
	f.StringVar(&l.Images, "images", "", "how --model is shown images: none (a text stands in their place), inline, or files (uploaded once); empty: what is known of the model")
	f.Int64Var(&l.MaxImagePixels, "max-image-pixels", 0, "pixels of an image that --model is shown, larger ones are made smaller; 0: no limit; needs --images")

	f.StringSliceVar(&l.Contexts, "context", nil, "what the model is told of its surroundings, again when it changes: cwd (the session's --cwd), date (in UTC)")
	f.BoolVar(&l.AllowWrite, "allow-write", false, "offer the tools that change the workspace: write")
}

// settings returns what the flags mean for the loop's configuration.
func (l *LoopFlags) settings() (worker.Config, error) {
	cfg := worker.Config{
		Compaction: l.Compaction, NoPressure: l.NoPressure, SummaryMax: l.SummaryMax,
		MaxSteps: l.MaxSteps, ToolTimeout: l.ToolTimeout, ToolPool: l.ToolPool, ToolOutput: l.ToolOutput,
	}
	var err error
	if cfg.Retry, err = provider.ParseRetryPolicy(l.Retry); err != nil {
		return cfg, fmt.Errorf("--retry %q: %w", l.Retry, err)
	}
	if err := l.Compaction.Validate(); err != nil {
		return cfg, fmt.Errorf("--compact-threshold and the like: %w", err)
	}
	for _, n := range []struct {
		flag  string
		value int64
	}{
		{"max-steps", l.MaxSteps},
		{"tool-timeout", int64(l.ToolTimeout)},
		{"tool-pool", int64(l.ToolPool)},
		{"tool-output", int64(l.ToolOutput)},
		{"compact-summary", l.SummaryMax},
		{"context-window", l.ContextWindow},
		{"max-image-pixels", l.MaxImagePixels},
	} {
		if n.value < 0 {
			return cfg, fmt.Errorf("--%s is negative: want a positive value, or 0 for the default", n.flag)
		}
	}
	switch {
	case !slices.Contains([]string{"", imagesNone, imagesInline, imagesFiles}, l.Images):
		return cfg, fmt.Errorf("--images %q: want %s, %s or %s", l.Images, imagesNone, imagesInline, imagesFiles)
	case l.MaxImagePixels > 0 && l.Images != imagesInline && l.Images != imagesFiles:
		return cfg, errors.New("--max-image-pixels is for models that are shown images: give --images inline or --images files too")
	}
	cfg.Extensions.Contexts, err = l.sections()
	return cfg, err
}

// sections returns the context sections in the order in which they are named.
func (l *LoopFlags) sections() ([]worker.ContextSection, error) {
	var out []worker.ContextSection
	for i, name := range l.Contexts {
		if slices.Contains(l.Contexts[:i], name) {
			return nil, fmt.Errorf("--context: %q is given twice", name)
		}
		switch name {
		case worker.SectionCwd:
			out = append(out, worker.CwdSection())
		case worker.SectionDate:
			out = append(out, worker.DateSection(time.Now))
		default:
			return nil, fmt.Errorf("--context: %q: want %s, %s or both, separated by a comma", name, worker.SectionCwd, worker.SectionDate)
		}
	}
	return out, nil
}

// model returns a catalogue entry for the model of a config that leaves the rest open, as the flags change what the adapter knows of it; ok is false when they
// change nothing.
func (l *LoopFlags) model(ctx context.Context, adapter provider.Adapter, config events.Config) (m provider.Model, ok bool, err error) {
	if l.ContextWindow == 0 && l.Images == "" {
		return m, false, nil
	}
	if config.Model == "" {
		return m, false, errors.New("--context-window and --images speak of --model: give one")
	}
	known, err := adapter.Prepare(ctx, config)
	if err != nil {
		return m, false, err
	}
	m = provider.Model{
		Name: config.Model, ContextWindow: known.ContextWindow(), MaxTokens: known.MaxTokens(),
		Images: known.AcceptsImages(), MaxImagePixels: known.MaxImagePixels(), Files: known.Files(),
	}
	config.ReasoningEffort = "off"
	if off, err := adapter.Prepare(ctx, config); err == nil { // else it has no such effort
		m.MaxTokensOff = off.MaxTokens()
	}
	if l.ContextWindow > 0 {
		m.ContextWindow = l.ContextWindow // no answer is longer than that
		m.MaxTokens, m.MaxTokensOff = min(m.MaxTokens, m.ContextWindow), min(m.MaxTokensOff, m.ContextWindow)
	}
	if l.Images != "" {
		m.Images, m.Files, m.MaxImagePixels = l.Images != imagesNone, l.Images == imagesFiles, l.MaxImagePixels
	}
	return m, true, nil
}

// tools returns the tools of the workspace that are offered.
func (l *LoopFlags) tools(w *tools.Workspace) []tools.Tool {
	return slices.DeleteFunc(w.Tools(), func(t tools.Tool) bool { return !l.AllowWrite && !t.Safety().ReadOnly })
}
