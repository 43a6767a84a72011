package program

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/internal/provider"
	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
)

// parseWorker returns the flags of a worker with those arguments, on a provider that is never called.
func parseWorker(t *testing.T, args ...string) *WorkerFlags {
	t.Helper()
	var w WorkerFlags
	cmd := &cobra.Command{Use: "x"}
	w.Flags(cmd)
	if err := cmd.ParseFlags(append([]string{"--provider-url", "http://127.0.0.1:1"}, args...)); err != nil {
		t.Fatal(err)
	}
	return &w
}

func TestLoopFlags(t *testing.T) {
	t.Parallel()
	cfg, err := parseWorker(t, "--retry", "always,base=1s", "--max-steps", "3", "--tool-timeout", "4s", "--tool-pool", "5",
		"--tool-output", "6", "--compact-threshold", "0.5", "--compact-retain", "0.25", "--compact-reserve", "7", "--compact-prune", "-1",
		"--compact-max", "8", "--compact-summary", "9", "--no-pressure", "--context", "date,cwd").Loop.settings()
	if err != nil {
		t.Fatal(err)
	}
	policy := compact.Policy{Threshold: 0.5, Retain: 0.25, Reserve: 7, PruneChars: -1, MaxPerTurn: 8}
	if cfg.Retry != (provider.RetryPolicy{Mode: provider.RetryAlways, Base: time.Second}) || cfg.MaxSteps != 3 ||
		cfg.ToolTimeout != 4*time.Second || cfg.ToolPool != 5 || cfg.ToolOutput != 6 || cfg.Compaction != policy ||
		cfg.SummaryMax != 9 || !cfg.NoPressure {
		t.Errorf("%+v", cfg)
	}
	var names []string
	for _, s := range cfg.Extensions.Contexts {
		names = append(names, s.Name())
	}
	if !slices.Equal(names, []string{"date", "cwd"}) {
		t.Errorf("the sections are %q", names)
	}
	if cfg, err = parseWorker(t).Loop.settings(); err != nil || cfg.Retry != (provider.RetryPolicy{}) || cfg.Extensions.Contexts != nil {
		t.Errorf("without flags: %+v, %v", cfg, err)
	}
}

func TestLoopFlagsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flag string // named by the error
		args []string
	}{
		{"--retry", []string{"--retry", "sometimes"}},
		{"--retry", []string{"--retry", "always,attempts=3"}},
		{"--max-steps", []string{"--max-steps", "-1"}},
		{"--tool-timeout", []string{"--tool-timeout", "-1s"}},
		{"--tool-pool", []string{"--tool-pool", "-1"}},
		{"--tool-output", []string{"--tool-output", "-1"}},
		{"--compact-threshold", []string{"--compact-threshold", "2"}},
		{"--compact-threshold", []string{"--compact-retain", "0.9"}},
		{"--compact-threshold", []string{"--compact-reserve", "-1"}},
		{"--compact-threshold", []string{"--compact-max", "-1"}},
		{"--compact-summary", []string{"--compact-summary", "-1"}},
		{"--context-window", []string{"--context-window", "-1"}},
		{"--context-window", []string{"--context-window", "5", "--model", ""}},
		{"--images", []string{"--images", "sometimes"}},
		{"--max-image-pixels", []string{"--max-image-pixels", "5"}},
		{"--max-image-pixels", []string{"--max-image-pixels", "5", "--images", "none"}},
		{"--context", []string{"--context", "time"}},
		{"--context", []string{"--context", "date,date"}},
	} {
		if err := parseWorker(t, tt.args...).Check(t.Context()); err == nil || !strings.Contains(err.Error(), tt.flag) {
			t.Errorf("%q: %v", tt.args, err)
		}
	}
}

// TestModelFlags compares what the adapter says of a model with and without flags about it.
func TestModelFlags(t *testing.T) {
	t.Parallel()
	type facts struct {
		window, max, off int64
		images, files    bool
		pixels           int64
	}
	of := func(model string, args ...string) facts {
		t.Helper()
		w := parseWorker(t, args...)
		adapter, err := w.adapter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		prepare := func(effort string) *provider.Prepared {
			p, err := adapter.Prepare(t.Context(), events.Config{Provider: w.name(), Model: model, ReasoningEffort: effort})
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		p := prepare("")
		return facts{p.ContextWindow(), p.MaxTokens(), prepare("off").MaxTokens(), p.AcceptsImages(), p.Files(), p.MaxImagePixels()}
	}
	const model = "deepseek-chat"
	known := of(model)
	if known.window == 0 || known.max == 0 || known.images {
		t.Fatalf("the catalogue says %+v", known)
	}
	wider, shown := known, known
	wider.window = 5_000_000
	shown.images, shown.files, shown.pixels = true, true, 99
	for _, tt := range []struct {
		model string
		args  []string
		want  facts
	}{
		{model, []string{"--context-window", "5000000"}, wider},
		{model, []string{"--context-window", "5000000", "--effort", "off"}, wider},
		{model, []string{"--context-window", "4000"}, facts{window: 4000, max: 4000, off: 4000}},
		{model, []string{"--images", "files", "--max-image-pixels", "99"}, shown},
		{model, []string{"--images", "none"}, known},
		{"another", []string{"--context-window", "4000"}, of("another")},
		{"another", []string{"--context-window", "4000", "--model", "another", "--images", "inline"}, facts{window: 4000, max: 4000, off: 4000, images: true}},
	} {
		if got := of(tt.model, tt.args...); got != tt.want {
			t.Errorf("%s with %q: %+v, want %+v", tt.model, tt.args, got, tt.want)
		}
	}
}

// TestAllowWrite has a worker offer the tools that change the workspace with the flag alone, and its system prompt say so.
func TestAllowWrite(t *testing.T) {
	t.Parallel()
	workspace, err := tools.OpenWorkspace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := workspace.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct {
		args   []string
		tools  []string
		system string
	}{
		{nil, []string{"list", "read"}, systemRead},
		{[]string{"--allow-write"}, []string{"list", "read", "write"}, systemWrite},
		{[]string{"--allow-write", "--system", "Mine."}, []string{"list", "read", "write"}, "Mine."},
		{[]string{"--system", ""}, []string{"list", "read"}, ""},
	} {
		w := parseWorker(t, tt.args...)
		var names []string
		for _, tool := range w.Loop.tools(workspace) {
			names = append(names, tool.Schema().Name)
		}
		if !slices.Equal(names, tt.tools) || w.system() != tt.system {
			t.Errorf("%q: %q, %q", tt.args, names, w.system())
		}
	}
}

func TestWorkerEffort(t *testing.T) {
	t.Parallel()
	key, err := provider.NewSecret("key")
	if err != nil {
		t.Fatal(err)
	}
	for effort, want := range map[string]bool{"": true, "off": true, "max": true, "zzz": false, "High": false} {
		w := parseWorker(t, "--effort", effort, "--workspace", t.TempDir(), "--provider-name", "sim")
		w.Key = key
		err := w.Check(t.Context())
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "--effort") {
			t.Errorf("--effort %q: %v", effort, err)
		}
	}
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]bool{-1: false, 0: false, 1: true, 2: false, 3: true, 4: false, 5: true, 6: false} {
		s := Service{NATS: "nats://127.0.0.1:1", Replicas: n, LogLevel: "error"}
		// Those that are taken fail later: nobody listens there.
		if _, err := s.Connect(t.Context(), "test"); strings.Contains(err.Error(), "--replicas") == want {
			t.Errorf("--replicas %d: %v", n, err)
		}
	}
}
