// Package child runs a test's program again as another process, which the test may kill.
package child

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// env holds what a process that was started by [Start] is told.
const env = "REFOLD_TEST_CHILD"

// Main is to be called by TestMain before anything else. In a process that was started by [Start] it calls run with what the process
// is told, ends the process when run returns, with exit code 1 after an error, and at once when the process that started it is gone.
// In any other it returns.
func Main[T any](run func(ctx context.Context, told *T) error) {
	text, ok := os.LookupEnv(env)
	if !ok {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // returns when the parent is gone, too
		os.Exit(1)
	}()
	var told T
	err := json.Unmarshal([]byte(text), &told)
	if err == nil {
		err = run(context.Background(), &told)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Process is a process that was started. Somebody has to kill it.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts this program again, whose [Main] gets what the JSON of told says. Change, unless nil, changes the command before: it
// may add to the environment and set where errors go.
func Start(told any, change func(*exec.Cmd)) (*Process, error) {
	text, err := json.Marshal(told)
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	p := &Process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})} //nolint:noctx // it is killed
	p.cmd.Env = append(os.Environ(), env+"="+string(text))
	if change != nil {
		change(p.cmd)
	}
	if _, err := p.cmd.StdinPipe(); err != nil { // its end tells the process that this one is gone
		return nil, fmt.Errorf("start a process: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the state tells how it ended
	}()
	return p, nil
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Kill kills the process with SIGKILL, waits until it is gone and returns how it ended, which may be by itself and before. It may be
// called again.
func (p *Process) Kill() *os.ProcessState {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.ended
	return p.cmd.ProcessState
}
