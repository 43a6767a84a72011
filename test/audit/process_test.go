package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/refold-dev/refold/internal/follow"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/keyfile"
	"github.com/refold-dev/refold/internal/verify"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/test/child"
)

// assignment is what a verifier process is told.
type assignment struct {
	NATS        string        `json:"nats"`
	Key         string        `json:"key"`     // the file of its seed
	Witness     string        `json:"witness"` // its public key
	Drop        float64       `json:"drop"`    // the share of the hints that get lost; 1: it does not listen at all
	Sweep       time.Duration `json:"sweep"`
	Recheck     time.Duration `json:"recheck"`
	MaxSessions int           `json:"maxSessions"`
	ColdShare   float64       `json:"coldShare"`
	AtStart     bool          `json:"atStart"`
}

// run is the main function of a verifier process.
func (a *assignment) run(ctx context.Context) error {
	client, err := jetstream.Connect(ctx, jetstream.Config{URL: a.NATS})
	if err != nil {
		return err
	}
	defer client.Close()
	key, err := keyfile.Load(a.Key)
	if err != nil {
		return err
	}
	cfg := verify.Config{
		Witness: verify.Witness{
			Keys: []string{a.Witness}, Receipts: client.Receipts(), Wires: client.WireVerdicts(), Strays: client.StrayVerdicts(),
		},
		Store: client.Logs(), Objects: client.Objects(), Verdicts: client.Verdicts(), Key: key, Registry: prometheus.NewRegistry(),
		Sweep: a.Sweep, Recheck: a.Recheck, MaxSessions: a.MaxSessions, ColdShare: a.ColdShare, AuditAtStart: a.AtStart,
		RetryMin: 5 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if a.Drop < 1 {
		all := follow.Hints(client.Hints())
		cfg.Hints = func(ctx context.Context, notify func(events.ID, uint64)) error {
			return all(ctx, func(id events.ID, last uint64) {
				if rand.Float64() >= a.Drop {
					notify(id, last)
				}
			})
		}
	}
	v, err := verify.New(cfg)
	if err != nil {
		return err
	}
	return v.Run(ctx)
}

// share is what the goroutines of a killer kill together.
type share struct {
	mu     sync.Mutex
	killed int
	want   int
	enough chan struct{} // closed when all are killed
}

func newShare(want int) *share { return &share{want: want, enough: make(chan struct{})} }

// add counts a process that was killed and reports whether more are to be.
func (s *share) add() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.killed++; s.killed == s.want {
		close(s.enough)
	}
	return s.killed < s.want
}

func (s *share) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed
}

// part returns the part of all kills that are done, in [0,1].
func (s *share) part() float64 { return min(float64(s.done())/float64(s.want), 1) }

// killer starts verifiers and kills them.
type killer struct {
	t       *testing.T
	url     string
	dir     string // of their keys
	witness string
	share   *share
}

// run kills one process after another until enough are dead.
func (k *killer) run(random *rand.Rand, key uint64) {
	for {
		select {
		case <-k.share.enough:
			return
		case <-k.t.Context().Done():
			return
		default:
		}
		a := assignment{
			Drop: []float64{0, 0.3, 0.9, 1}[random.IntN(4)], Sweep: time.Duration(20+random.IntN(500)) * time.Millisecond,
			MaxSessions: []int{4, 20, 0}[random.IntN(3)], ColdShare: 0.05, AtStart: random.IntN(5) == 0,
		}
		if random.IntN(3) == 0 {
			a.Recheck = 2 * time.Second
		}
		p := k.start(a, key)
		if p == nil {
			return
		}
		select {
		case <-time.After(time.Duration(30+random.IntN(1500)) * time.Millisecond):
		case <-p.Ended(): // it must not end by itself
			k.t.Errorf("a verifier ended by itself: %v", p.Kill())
		case <-k.t.Context().Done():
		}
		p.Kill()
		if k.t.Failed() || !k.share.add() {
			return
		}
	}
}

// start starts a verifier with one of the keys; nil after a failure, which it reports.
func (k *killer) start(a assignment, key uint64) *child.Process {
	k.t.Helper()
	a.NATS, a.Witness, a.Key = k.url, k.witness, filepath.Join(k.dir, fmt.Sprintf("%d.seed", key))
	p, err := child.Start(&a, func(cmd *exec.Cmd) { cmd.Stderr = k.t.Output() })
	if err != nil {
		k.t.Errorf("start a verifier: %v", err)
	}
	return p
}
