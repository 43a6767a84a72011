package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/refold-dev/refold/pkg/audit/bundle"
	translog "github.com/refold-dev/refold/pkg/tlog"
)

// growingTiles is a log whose checkpoint has a larger size with each look, up to the last of them.
type growingTiles struct {
	signer *translog.Signer
	sizes  []uint64
	looks  int
}

func (g *growingTiles) Read(context.Context, string, int) ([]byte, error) {
	size := g.sizes[min(g.looks, len(g.sizes)-1)]
	g.looks++
	root := translog.EmptyRoot()
	if size > 0 {
		root = translog.LeafHash([]byte("a verdict"))
	}
	return g.signer.Sign(translog.Checkpoint{Origin: g.signer.Origin(), Size: size, Root: root})
}

// TestExportWaitsForTheLog: a bundle is given the first checkpoint that covers its verdicts, and after some time the newest
// one, with a warning.
func TestExportWaitsForTheLog(t *testing.T) {
	t.Parallel()
	secret, err := translog.GenerateSigner(strings.NewReader(strings.Repeat("x", 64)), "example.com/verdicts")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := translog.NewSigner(secret)
	if err != nil {
		t.Fatal(err)
	}
	verdicts := []bundle.Record{{Place: 3}, {Place: 7}}
	for name, tt := range map[string]struct {
		sizes    []uint64
		verdicts []bundle.Record
		wait     time.Duration
		want     uint64
		looks    int // at least
		warns    bool
	}{
		"covered":     {[]uint64{7}, verdicts, time.Minute, 7, 1, false},
		"soon":        {[]uint64{0, 6, 9, 12}, verdicts, time.Minute, 9, 3, false},
		"never":       {[]uint64{6}, verdicts, time.Nanosecond, 6, 1, true},
		"no verdicts": {[]uint64{0}, nil, time.Minute, 0, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tiles := &growingTiles{signer: signer, sizes: tt.sizes}
			var warnings []string
			x := &exporter{tiles: tiles, wait: tt.wait, warn: func(s string) { warnings = append(warnings, s) }}
			_, point, err := x.covering(t.Context(), tt.verdicts)
			if err != nil || point.Size != tt.want || tiles.looks < tt.looks || (len(warnings) > 0) != tt.warns {
				t.Errorf("size %d after %d looks, %q, %v", point.Size, tiles.looks, warnings, err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := &exporter{tiles: &growingTiles{signer: signer, sizes: []uint64{0}}, wait: time.Minute, warn: func(string) {}}
	if _, _, err := x.covering(ctx, verdicts); err == nil {
		t.Error("nobody waits any more, and there is no error")
	}
}
