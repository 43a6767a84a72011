package lint_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFileLines = 600
	maxFuncLines = 80
	maxMainLines = 40
	maxTextBytes = 4 << 20 // larger files are data
)

// TestSourceShape checks sizes and a few habits in every Go file.
func TestSourceShape(t *testing.T) {
	for path, src := range repositoryFiles(t) {
		if strings.HasSuffix(path, ".go") {
			for _, problem := range shapeProblems(t, path, src) {
				t.Error(problem)
			}
		}
	}
}

// TestSourceShapeRules shows that the rules refuse what they must.
func TestSourceShapeRules(t *testing.T) {
	body := func(lines int) string { return "{" + strings.Repeat("\n", lines-1) + "}\n" }
	tests := []struct {
		name, path, src string
		problems        int
	}{
		{"a long function", "a.go", "package a\nfunc f() " + body(maxFuncLines), 0},
		{"too long a function", "a.go", "package a\nfunc f() " + body(maxFuncLines+1), 1},
		{"a long test", "a_test.go", "package a\nfunc f() " + body(maxFuncLines+1), 0},
		{"too long a main", "a.go", "package main\nfunc main() " + body(maxMainLines+1), 1},
		{"too long a file", "a.go", "package a\n" + strings.Repeat("\n", maxFileLines), 1},
		{"an init function", "a.go", "package a\nfunc init() {}\n", 1},
		{"an init method", "a.go", "package a\ntype t int\nfunc (t) init() {}\n", 0},
		{"a sleeping test", "a_test.go", "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", 1},
		{"a sleeping program", "a.go", "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := shapeProblems(t, tt.path, []byte(tt.src)); len(got) != tt.problems {
				t.Errorf("problems = %v, want %d", got, tt.problems)
			}
		})
	}
}

func shapeProblems(t *testing.T, path string, src []byte) []string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%v", err)
		return nil
	}
	var problems []string
	refuse := func(pos token.Pos, why string) {
		problems = append(problems, files.Position(pos).String()+": "+why)
	}
	isTest := strings.HasSuffix(path, "_test.go")

	if n := bytes.Count(src, []byte("\n")); n > maxFileLines {
		refuse(file.Pos(), "the file is too long: split it by noun")
	}
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		limit := maxFuncLines
		if fn.Recv == nil && fn.Name.Name == "main" && file.Name.Name == "main" {
			limit = maxMainLines
		}
		lines := files.Position(fn.End()).Line - files.Position(fn.Pos()).Line + 1
		if lines > limit && !isTest {
			refuse(fn.Pos(), fn.Name.Name+" is too long: split it")
		}
		if fn.Recv == nil && fn.Name.Name == "init" {
			refuse(fn.Pos(), "no init functions: let main wire it")
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if ok && isTest && sel.Sel.Name == "Sleep" {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
				refuse(sel.Pos(), "tests do not sleep: use testing/synctest or wait for the condition")
			}
		}
		return true
	})
	return problems
}

// machinePaths matches the paths of the machine that somebody works on, which
// mean nothing to a reader. They are spelled so that this file has none.
var machinePaths = regexp.MustCompile(`(^|[^\w.-])/(work|farm|tmp/bash[\w.-]*|tmp/brief|root/go)/`)

// TestNoMachinePaths keeps the repository about itself.
func TestNoMachinePaths(t *testing.T) {
	for path, src := range repositoryFiles(t) {
		if bytes.IndexByte(src, 0) >= 0 { // not a text
			continue
		}
		for i, line := range bytes.Split(src, []byte("\n")) {
			if m := machinePaths.Find(line); m != nil {
				t.Errorf("%s:%d: %q is a path of somebody's machine", path, i+1, m)
			}
		}
	}
}

// repositoryFiles returns the repository's files by slash-separated path,
// without those that .gitignore lists and those that are large.
func repositoryFiles(t *testing.T) map[string][]byte {
	t.Helper()
	ignored := []string{".git", "bin", "dist", ".cache"}
	root := moduleRoot(t)
	found := map[string][]byte{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if slices.Contains(ignored, rel) {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil // in a linked work tree .git is a file
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		info, err := entry.Info()
		if err != nil || info.Size() > maxTextBytes {
			return err
		}
		src, err := os.ReadFile(path)
		found[filepath.ToSlash(rel)] = src
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
