package compact_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

var update = flag.Bool("update", false, "write the golden files anew; a difference changes what models are told")

// TestTexts pins what models are told. The texts stand in logs: a change matters to those who compare behaviour.
func TestTexts(t *testing.T) {
	framed, err := compact.Frame([]events.Block{events.Text("Goal: count."), events.Text(" Next: go on.")})
	if err != nil {
		t.Fatal(err)
	}
	for name, blocks := range map[string][]events.Block{"directive": compact.DirectiveBlocks(), "summary": framed} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, b := range blocks {
				if b.Type != events.BlockText {
					t.Errorf("a block of type %s", b.Type)
				}
				got += b.Text
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got+"\n"); diff != "" {
				t.Errorf("-golden +now:\n%s", diff)
			}
		})
	}
}

func TestFrame(t *testing.T) {
	object := events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: 9}}
	tests := []struct {
		name    string
		summary []events.Block
		blocks  int // 0: refused
	}{
		{"none", nil, 0},
		{"empty", []events.Block{events.Text("")}, 0},
		{"white space", []events.Block{events.Text(" \n"), events.Text("\t")}, 0},
		{"text", []events.Block{events.Text("notes")}, 3},
		{"text behind white space", []events.Block{events.Text(" "), events.Text("notes")}, 4},
		{"an object", []events.Block{object}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := compact.Frame(tt.summary)
			if len(got) != tt.blocks || (tt.blocks == 0) != errors.Is(err, compact.ErrEmptySummary) {
				t.Errorf("%d blocks, want %d: %v", len(got), tt.blocks, err)
			}
		})
	}
	framed, err := compact.Frame([]events.Block{events.Text(words(10))})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := compact.MessageTokens(&events.Message{Content: framed}), compact.FrameTokens()+10; got != want {
		t.Errorf("a framed summary of 10 tokens takes %d, want %d", got, want)
	}
	if got, want := compact.DirectiveTokens(), compact.MessageTokens(&events.Message{Content: compact.DirectiveBlocks()}); got != want {
		t.Errorf("the directive takes %d, want %d", got, want)
	}
}
