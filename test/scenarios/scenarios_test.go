// Package scenarios_test drives the real programs as their users do, from scripts in testdata.
package scenarios_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite what the scripts compare with")

// programs is the directory of the programs under test.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

// run builds the programs and runs the tests over them.
func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "refold-scenarios-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	programs = dir
	build := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-s -w", "-o", dir+string(filepath.Separator), "./cmd/...")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// scriptTime bounds one script.
const scriptTime = 3 * time.Minute

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Deadline:            time.Now().Add(scriptTime * time.Duration(max(1, 6/runtime.NumCPU()))),
		Setup:               setup,
		Condition:           condition(),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": cmdStart, "halt": cmdHalt, "nats": cmdNATS, "web": cmdWeb, "capture": cmdCapture, "oneline": cmdOneLine,
			"digest": cmdDigest, "bytes": cmdBytes, "retry": cmdRetry, "disk": cmdDisk, "say": cmdSay, "put": cmdPut,
			"example": cmdExample, "heed": cmdHeed, "noise": cmdNoise, "fill": cmdFill,
		},
	})
}

func setup(env *testscript.Env) error {
	env.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	for _, name := range []string{"REFOLD_DIR", "REFOLD_NATS", "REFOLD_CREDS", "DEEPSEEK_API_KEY", "REFOLD_PROVIDER_URL", "REFOLD_VERIFIER_KEY", "REFOLD_LOG"} {
		env.Setenv(name, "")
	}
	env.Setenv("HOME", env.WorkDir)
	docs, err := filepath.Abs(filepath.Join("..", "..", "docs"))
	if err != nil {
		return err
	}
	env.Setenv("DOCS", docs)
	env.Values[processesKey{}] = make(map[string]*process)
	return nil
}

func condition() func(string) (bool, error) {
	return func(name string) (bool, error) {
		switch name {
		case "root":
			return os.Geteuid() == 0, nil
		case "disk":
			return smallDisk(filepath.Join(programs, "disk")), nil
		case "long":
			return !testing.Short(), nil
		}
		return false, fmt.Errorf("unknown condition %q", name)
	}
}

// smallDisk reports whether a small disk can be mounted.
func smallDisk(dir string) bool {
	if os.MkdirAll(dir, 0o700) != nil || syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m") != nil {
		return false
	}
	return syscall.Unmount(dir, syscall.MNT_DETACH) == nil
}
