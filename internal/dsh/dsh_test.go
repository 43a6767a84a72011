package dsh_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/refold-dev/refold/internal/dsh"
)

// corpus returns the folder of the recorded scenarios: REFOLD_CORPUS, or the one beside the checkout.
func corpus(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("REFOLD_CORPUS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "corpus", "dsh")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Logf("the recorded scenarios are not here (%v): set REFOLD_CORPUS to their folder", err)
		return ""
	}
	return dir
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestCorpus rebuilds every recorded loop request of every scenario byte for byte.
func TestCorpus(t *testing.T) {
	dir := corpus(t)
	if dir == "" {
		return
	}
	scenarios, err := filepath.Glob(filepath.Join(dir, "*", "index.json"))
	if err != nil || len(scenarios) == 0 {
		t.Fatalf("no scenarios in %s: %v", dir, err)
	}
	for _, index := range scenarios {
		scenario := filepath.Dir(index)
		for _, log := range []string{"session.jsonl", "session.jsonl.zstd"} {
			t.Run(filepath.Base(scenario)+"/"+log, func(t *testing.T) {
				f, err := os.Open(filepath.Join(scenario, log))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = f.Close() }() // only read from
				var cfg dsh.Config
				if uploads := filepath.Join(scenario, "files-api"); exists(uploads) {
					cfg.Uploads = os.DirFS(uploads)
				}
				session, err := cfg.Translate(f)
				if err != nil {
					t.Fatal(err)
				}
				want := loopRequests(t, scenario)
				if len(session.Requests) != len(want) {
					t.Errorf("%d requests, want %d", len(session.Requests), len(want))
				}
				for i := range min(len(want), len(session.Requests)) {
					if got := session.Requests[i].Bytes(); !bytes.Equal(got, want[i]) {
						t.Errorf("request %d:\n got %.2000s\nwant %.2000s", i+1, got, want[i])
					}
				}
			})
		}
	}
}

// loopRequests returns the recorded bodies of the conversation's own requests, in dispatch order.
func loopRequests(t *testing.T, scenario string) [][]byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(scenario, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index []struct {
		N    int    `json:"n"`
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for _, entry := range index {
		if entry.Kind != "loop" {
			continue
		}
		body, err := os.ReadFile(filepath.Join(scenario, "requests", fmt.Sprintf("%03d.json", entry.N)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, body)
	}
	return out
}
