package crash_test

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"sync"
)

// operation is something of a worker that its surroundings see. Between two of them a crash makes no difference.
type operation string

// The operations of a worker. An input is acknowledged behind the last event that it leads to and before the next input
// is claimed, so a crash before the acknowledgement is one after that append, and one behind it a crash before the next.
const (
	opCreate   operation = "create"   // the session's log is made
	opAppend   operation = "append"   // an event is stored
	opPut      operation = "put"      // an object is stored
	opDispatch operation = "dispatch" // a request goes to the provider, until the headers of its answer are there
	opLook     operation = "look"     // the tool that only reads does it
	opMark     operation = "mark"     // the tool with an effect has it
)

// boundary is the place before or after an operation.
type boundary struct {
	when string // before or after
	op   operation
	n    int // the operation's place among the process's operations of its kind, from 1
}

const (
	before = "before"
	after  = "after"
)

func (b boundary) String() string { return fmt.Sprintf("%s %s %d", b.when, b.op, b.n) }

// passed is a boundary that a process has come to, and what the operation is about.
type passed struct {
	boundary
	what string
}

func (p passed) String() string { return strings.TrimSuffix(p.boundary.String()+" "+p.what, " ") }

// gate stops a process for good at one boundary, after telling its parent, or tells it about every one.
type gate struct {
	stop  string // the boundary to stop at, empty for none
	trace bool
	out   io.Writer

	mu     sync.Mutex
	counts map[operation]int
}

func newGate(stop string, trace bool, out io.Writer) *gate {
	return &gate{stop: stop, trace: trace, out: out, counts: make(map[operation]int)}
}

// around performs an operation between its boundaries. One that fails has none behind it.
func (g *gate) around(op operation, what string, do func() error) error {
	g.mu.Lock()
	g.counts[op]++
	n := g.counts[op]
	g.mu.Unlock()
	g.pass(passed{boundary{before, op, n}, what})
	if err := do(); err != nil {
		return err
	}
	g.pass(passed{boundary{after, op, n}, what})
	return nil
}

// pass never returns from the boundary to stop at, and lets nobody else pass from then on.
func (g *gate) pass(p passed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	stop := p.boundary.String() == g.stop
	if !stop && !g.trace {
		return
	}
	if _, err := fmt.Fprintf(g.out, "%s %s %d %s\n", p.when, p.op, p.n, p.what); err != nil {
		panic(err) // nobody would know
	}
	if stop {
		select {} // until the process is killed
	}
}

// reports yields what a gate told until the process is gone.
func reports(in io.Reader) <-chan passed {
	const most = 1 << 12 // more than a process has boundaries: it never waits for its parent
	out := make(chan passed, most)
	go func() {
		defer close(out)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			var p passed
			if n, _ := fmt.Sscan(lines.Text(), &p.when, &p.op, &p.n, &p.what); n >= 3 {
				out <- p
			}
		}
	}()
	return out
}
