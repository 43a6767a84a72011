package compact_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

func TestPrune(t *testing.T) {
	long := strings.Repeat("x", 400)
	short := events.Text("xxxx[cut]xx")
	image := events.Block{Type: events.BlockImage, Width: 10, Height: 10}
	object := func(n int64) events.Block {
		return events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: n}}
	}
	pruned := output(1, "c", long)
	pruned.Pruned = true
	policy := compact.Policy{PruneChars: 100, PruneHead: 4, PruneTail: 2}
	tests := []struct {
		name   string
		node   compact.Node
		policy compact.Policy
		want   []events.Block // nil: it stays
	}{
		{"long", output(1, "c", long), policy, []events.Block{short}},
		{"at the limit", output(1, "c", long[:100]), policy, nil},
		{"just beyond the limit", output(1, "c", long[:101]), policy, []events.Block{short}},
		{"characters, not bytes", output(1, "c", strings.Repeat("\u6f22", 100)), policy, nil},
		{"half a surrogate pair is one character", output(1, "c", strings.Repeat("\xed\xa0\xbd", 100)), policy, nil},
		{"too many half surrogate pairs", output(1, "c", long[:4]+strings.Repeat("\xed\xa0\xbd", 95)+long[:2]), policy, []events.Block{short}},
		{"pruned before", pruned, policy, nil},
		{"not a result", user(1, long), policy, nil},
		{"no message", compact.Node{Seq: 1}, policy, nil},
		{"no content", result(1, "c"), policy, nil},
		{"several blocks are one text", result(1, "c", events.Text(long[:60]), image, events.Text(long[:60])), policy, []events.Block{short, image}},
		{"an image alone", result(1, "c", image), policy, nil},
		{"an object", result(1, "c", object(400)), policy, []events.Block{short}},
		{"a small object is not loaded", result(1, "c", object(-1), object(100)), policy, nil},
		{"never", output(1, "c", long), compact.Policy{PruneChars: -1}, nil},
		{"not shorter", output(1, "c", long[:101]), compact.Policy{PruneChars: 100, PruneHead: 90, PruneTail: 9}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with := shorten()
			with.Load = func(r objects.Ref) (string, error) {
				if r.Bytes < 0 {
					t.Error("an object was loaded")
				}
				return strings.Repeat("x", int(max(r.Bytes, 0))), nil
			}
			got, err := compact.Prune([]compact.Node{tt.node}, 1, tt.policy, with)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == nil {
				if len(got) > 0 {
					t.Errorf("it was pruned to %+v", got[0].Content)
				}
				return
			}
			if len(got) != 1 || got[0].Seq != 1 || got[0].Index != 0 || got[0].Freed <= 0 {
				t.Fatalf("got %+v", got)
			}
			if diff := cmp.Diff(tt.want, got[0].Content); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestPruneOnlyBefore(t *testing.T) {
	long := strings.Repeat("x", 400)
	nodes := []compact.Node{
		assistant(1, "", "a", "b", "c"), output(2, "a", long), output(3, "b", "short"), output(4, "c", long),
		assistant(5, "", "d"), output(6, "d", long),
	}
	got, err := compact.Prune(nodes, 5, compact.Policy{PruneChars: 100}, shorten())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Seq != 2 || got[1].Seq != 4 || got[1].Index != 3 {
		t.Errorf("got %+v", got)
	}
	old, now := nodes[1].Message.Content[0].Content, got[0].Content
	if want := compact.MessageTokens(&events.Message{Content: old}) - compact.MessageTokens(&events.Message{Content: now}); got[0].Freed != want {
		t.Errorf("freed %d, want %d", got[0].Freed, want)
	}
}

func TestPruneWithout(t *testing.T) {
	broken := errors.New("unreachable")
	object := result(1, "c", events.Block{Type: events.BlockText, Object: objects.Ref{Bytes: 40000}})
	load := shorten()
	load.Load = func(objects.Ref) (string, error) { return "", broken }
	if got, err := compact.Prune([]compact.Node{object}, 1, compact.Policy{}, load); !errors.Is(err, broken) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := compact.Prune([]compact.Node{object}, 1, compact.Policy{}, shorten()); err != nil || got != nil {
		t.Errorf("without a loader: %+v, %v", got, err)
	}
	if got, err := compact.Prune([]compact.Node{output(1, "c", words(4000))}, 1, compact.Policy{}, compact.Pruner{}); err != nil || got != nil {
		t.Errorf("without a shortener: %+v, %v", got, err)
	}
}
