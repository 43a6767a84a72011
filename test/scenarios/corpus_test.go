package scenarios_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestRequestsOfCorpus has refold requests write the bodies of every recorded scenario, from both forms of its log.
func TestRequestsOfCorpus(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	scenarios, err := filepath.Glob(filepath.Join(dir, "*", "index.json"))
	if err != nil || len(scenarios) == 0 {
		t.Skipf("SKIPPED: no recorded scenarios in %s (%v): set REFOLD_CORPUS to their folder", dir, err)
	}
	for _, index := range scenarios {
		scenario := filepath.Dir(index)
		for _, log := range []string{"session.jsonl", "session.jsonl.zstd"} {
			t.Run(filepath.Base(scenario)+"/"+log, func(t *testing.T) {
				t.Parallel()
				out := filepath.Join(t.TempDir(), "made", "bodies")
				text, err := exec.CommandContext(t.Context(), filepath.Join(programs, "refold"), "requests", "--dsh", filepath.Join(scenario, log), "--out", out).CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				compareBodies(t, scenario, out)
			})
		}
	}
}

// TestImagesOfCorpus refuses the scenario with images when what lies beside its log is not there.
func TestImagesOfCorpus(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "17-image", "session.jsonl"))
	if err != nil {
		t.Skipf("SKIPPED: no recorded scenario with images (%v): set REFOLD_CORPUS to their folder", err)
	}
	log, out := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "bodies")
	if err := os.WriteFile(log, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := exec.CommandContext(t.Context(), filepath.Join(programs, "refold"), "requests", "--dsh", log, "--out", out).CombinedOutput()
	if _, statErr := os.Stat(out); err == nil || statErr == nil || !bytes.Contains(text, []byte("--uploads")) {
		t.Errorf("requests with images were rebuilt, or something was written: %v, %v\n%s", err, statErr, text)
	}
}

// compareBodies compares a directory with the conversation's own requests as they were recorded.
func compareBodies(t *testing.T, scenario, out string) {
	t.Helper()
	var index []struct {
		N    int    `json:"n"`
		Kind string `json:"kind"`
	}
	raw, err := os.ReadFile(filepath.Join(scenario, "index.json"))
	if err == nil {
		err = json.Unmarshal(raw, &index)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, entry := range index {
		if entry.Kind != "loop" {
			continue
		}
		n++
		want, err := os.ReadFile(filepath.Join(scenario, "requests", fmt.Sprintf("%03d.json", entry.N)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(out, fmt.Sprintf("%03d.json", n)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("body %d is not request %d (%v)", n, entry.N, err)
		}
	}
	if files, err := os.ReadDir(out); err != nil || len(files) != n || n == 0 {
		t.Errorf("%d files for %d requests (%v)", len(files), n, err)
	}
}
