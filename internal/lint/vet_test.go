package lint_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/refold-dev/refold/internal/lint"
)

// vetTool, set in the environment, makes the test binary the tool of "go vet".
const vetTool = "REFOLD_LINT_VETTOOL"

func TestMain(m *testing.M) {
	if os.Getenv(vetTool) != "" {
		unitchecker.Main(lint.Analyzers()...) // exits
	}
	os.Exit(m.Run())
}

// TestMapOrder runs the analyzer for map ranges over the packages it is for.
func TestMapOrder(t *testing.T) {
	noFindings(t, vet(t, "maprange", existing(t, lint.Ordered())...))
}

// TestTimeIsAnInput runs the analyzer for clocks over the pure packages.
func TestTimeIsAnInput(t *testing.T) {
	noFindings(t, vet(t, "clock", existing(t, lint.Pure())...))
}

// TestNoPackageState runs the analyzer for package-level state over the module.
func TestNoPackageState(t *testing.T) {
	noFindings(t, vet(t, "globals", "./..."))
}

// TestAnalyzers compares what each analyzer reports about its test data with
// the "want" comments there.
func TestAnalyzers(t *testing.T) {
	for _, a := range lint.Analyzers() {
		t.Run(a.Name, func(t *testing.T) {
			dir := "internal/lint/testdata/" + a.Name
			want := wants(t, filepath.Join(moduleRoot(t), dir, a.Name+".go"))
			for _, f := range vet(t, a.Name, "./"+dir) {
				pattern, ok := want[f.line]
				if !ok {
					t.Errorf("%s:%d: unexpected finding: %s", f.file, f.line, f.message)
					continue
				}
				delete(want, f.line)
				if !pattern.MatchString(f.message) {
					t.Errorf("%s:%d: finding %q does not match %q", f.file, f.line, f.message, pattern)
				}
			}
			for line, pattern := range want {
				t.Errorf("%s:%d: no finding matches %q", dir, line, pattern)
			}
		})
	}
}

type finding struct {
	file    string
	line    int
	message string
}

func noFindings(t *testing.T, found []finding) {
	t.Helper()
	for _, f := range found {
		t.Errorf("%s:%d: %s", f.file, f.line, f.message)
	}
}

// vet runs the named analyzer over the packages and returns its findings in
// the order of go vet.
func vet(t *testing.T, analyzer string, packages ...string) []finding {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"vet", "-vettool=" + self, "-" + analyzer}, packages...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = moduleRoot(t)
	cmd.Env = append(os.Environ(), vetTool+"=1")
	out, err := cmd.CombinedOutput()

	var found []finding
	seen := map[string]bool{} // a package is vetted once more for its tests
	line := regexp.MustCompile(`^(\S+\.go):(\d+):\d+: (.+)$`)
	for text := range strings.Lines(string(out)) {
		text = strings.TrimSpace(text)
		if m := line.FindStringSubmatch(text); m != nil && !seen[text] {
			seen[text] = true
			f := finding{file: m[1], message: m[3]}
			if _, err := fmt.Sscan(m[2], &f.line); err != nil {
				t.Fatal(err)
			}
			found = append(found, f)
		}
	}
	if err != nil && len(found) == 0 {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return found
}

// wants reads the expectations of a file of test data, by line.
func wants(t *testing.T, file string) map[int]*regexp.Regexp {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]*regexp.Regexp{}
	want := regexp.MustCompile("want `([^`]+)`")
	for i, text := range bytes.Split(src, []byte("\n")) {
		if m := want.FindSubmatch(text); m != nil {
			found[i+1] = regexp.MustCompile(string(m[1]))
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s expects nothing", file)
	}
	return found
}

// existing returns the directories among dirs that hold Go files, as package
// patterns.
func existing(t *testing.T, dirs []string) []string {
	t.Helper()
	var patterns []string
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(moduleRoot(t), dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) > 0 {
			patterns = append(patterns, "./"+dir)
		}
	}
	if len(patterns) == 0 {
		t.Fatalf("none of %v holds a Go file", dirs)
	}
	return patterns
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	return filepath.Dir(strings.TrimSpace(goCommand(t, ".", "env", "GOMOD")))
}

// goCommand returns what the go command prints when run in dir.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}
