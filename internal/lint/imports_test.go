package lint_test

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/refold-dev/refold"

// layer is a row of the table of import directions. It applies to the packages
// at and below its path, except where a row with a longer path does.
type layer struct {
	path string
	// own are paths in this module that may be imported, with what is below
	// them. A layer may always import within itself.
	own []string
	// modules are the other modules that may be imported.
	modules []string
	// notStd are packages of the standard library, with what is below them,
	// that may not be imported.
	notStd []string
}

const (
	cobraModule      = "github.com/spf13/cobra"
	compressModule   = "github.com/klauspost/compress"
	graphemeModule   = "github.com/rivo/uniseg"
	imageModule      = "golang.org/x/image"
	jsonModule       = "github.com/go-json-experiment/json"
	merkleModule     = "github.com/transparency-dev/merkle"
	noteModule       = "golang.org/x/mod/sumdb/note"
	mcpModule        = "github.com/modelcontextprotocol/go-sdk"
	natsModule       = "github.com/nats-io/nats.go"
	natsServerModule = "github.com/nats-io/nats-server/v2"
	nkeysModule      = "github.com/nats-io/nkeys"
	prometheusModule = "github.com/prometheus/client_golang"
	schemaModule     = "github.com/google/jsonschema-go"
	syncModule       = "golang.org/x/sync"
	toolsModule      = "golang.org/x/tools"
	ulidModule       = "github.com/oklog/ulid/v2"
)

var (
	// impure is what a package without I/O, clock, goroutine or randomness has
	// no use for.
	impure = []string{"context", "crypto/rand", "log", "math/rand", "net", "os", "sync", "syscall", "testing"}

	// serviceModules are for the programs' long-running parts.
	serviceModules = []string{prometheusModule, syncModule, ulidModule}

	// layers is the table of import directions, lowest first. A new package
	// gets a row here, or lies below one.
	layers = []layer{
		{path: "pkg/objects", notStd: []string{"log", "net", "testing"}},
		{path: "pkg/events", own: []string{"pkg/objects"}, modules: []string{jsonModule, ulidModule}, notStd: impure},
		{path: "pkg/fold", own: []string{"pkg/events", "pkg/objects"}, modules: []string{jsonModule}, notStd: impure},
		{path: "pkg/eventlog", own: []string{"pkg/events", "pkg/objects"}, notStd: []string{"net", "testing"}},
		{path: "pkg/codec", own: []string{"pkg/events", "pkg/fold", "pkg/objects"}, modules: []string{jsonModule}, notStd: impure},

		{
			path: "pkg/audit", own: []string{"pkg"}, modules: []string{jsonModule, merkleModule, nkeysModule, noteModule},
			notStd: []string{"crypto/rand", "log", "math/rand", "net", "os", "sync", "syscall", "testing"},
		},

		{
			path: "pkg/tlog", modules: []string{merkleModule, noteModule},
			notStd: []string{"crypto/rand", "log", "math/rand", "net", "os", "sync", "syscall", "testing"},
		},
		{path: "internal/tlog", own: []string{"pkg", "internal/files", "internal/jetstream"}, modules: serviceModules},
		{path: "internal/files"},
		{path: "internal/keyfile", own: []string{"pkg/audit", "internal/files"}},
		{path: "internal/dsh", own: []string{"pkg", "internal/images"}, modules: []string{compressModule, jsonModule, ulidModule}},
		{path: "internal/compact", own: []string{"pkg/events", "pkg/fold", "pkg/objects"}, notStd: impure},
		{path: "internal/replay", own: []string{"pkg"}},
		{path: "internal/images", own: []string{"pkg"}, modules: []string{imageModule}, notStd: impure},
		{path: "internal/httpserve", modules: []string{prometheusModule}},
		{path: "internal/faults", own: []string{"pkg"}, notStd: []string{"testing"}},
		{path: "internal/jetstream", own: []string{"pkg", "internal/files"}, modules: []string{natsModule, compressModule, syncModule, ulidModule}},
		{path: "internal/provider", own: []string{"pkg", "internal/files"}, modules: []string{jsonModule, prometheusModule, syncModule}},
		{path: "internal/witness", own: []string{"pkg", "internal/follow", "internal/provider"}, modules: []string{prometheusModule}},
		{path: "internal/tools", own: []string{"pkg"}, modules: []string{graphemeModule, jsonModule, mcpModule, schemaModule, syncModule}},
		{
			path:    "internal/worker",
			own:     []string{"pkg", "internal/compact", "internal/images", "internal/jetstream", "internal/provider", "internal/replay", "internal/tools"},
			modules: serviceModules,
		},
		{path: "internal/follow", own: []string{"pkg", "internal/jetstream"}, modules: serviceModules},
		{path: "internal/mirror", own: []string{"pkg", "internal/jetstream"}, modules: serviceModules},
		{path: "internal/verify", own: []string{"pkg", "internal/follow", "internal/jetstream"}, modules: serviceModules},
		{path: "internal/project", own: []string{"pkg", "internal/follow", "internal/jetstream"}, modules: serviceModules},
		{path: "internal/embedded", own: []string{"pkg", "internal"}, modules: append(serviceModules, natsModule, natsServerModule)},
		{path: "internal/program", own: []string{"pkg", "internal"}, modules: append(serviceModules, cobraModule)},
		{path: "internal/lint", modules: []string{toolsModule}},

		{path: "cmd", own: []string{"pkg", "internal"}, modules: append(serviceModules, cobraModule, compressModule, nkeysModule)},
		{path: "test", own: []string{"pkg", "internal"}, modules: append(serviceModules, compressModule, natsModule, natsServerModule)},
	}

	// testModules may be imported by tests and test suites of every layer.
	testModules = []string{
		"github.com/google/go-cmp", "github.com/rivo/uniseg", "github.com/rogpeppe/go-internal", "go.uber.org/goleak", "pgregory.net/rapid",
	}
	// integrationModules may be imported by tests outside pkg/ too.
	integrationModules = []string{natsModule, natsServerModule, nkeysModule, prometheusModule}
)

// goPackage is what "go list -json" says of a package.
type goPackage struct {
	ImportPath   string   `json:"ImportPath"`
	Imports      []string `json:"Imports"`
	TestImports  []string `json:"TestImports"`
	XTestImports []string `json:"XTestImports"`
}

// TestImportDirections compares the imports of every package with the table.
func TestImportDirections(t *testing.T) {
	packages := listPackages(t)
	if len(packages) == 0 {
		t.Fatal("the module has no packages")
	}
	for _, p := range packages {
		for _, problem := range importProblems(p) {
			t.Error(problem)
		}
	}
}

// TestImportRules shows that the table refuses what it must.
func TestImportRules(t *testing.T) {
	tests := []struct {
		name    string
		pkg     goPackage
		refused bool
	}{
		{"down", goPackage{ImportPath: "pkg/fold", Imports: []string{"own:pkg/events", "strings"}}, false},
		{"within a layer", goPackage{ImportPath: "pkg/codec", Imports: []string{"own:pkg/codec/deepseek"}}, false},
		{"up", goPackage{ImportPath: "pkg/events", Imports: []string{"own:pkg/fold"}}, true},
		{"sideways", goPackage{ImportPath: "pkg/eventlog", Imports: []string{"own:pkg/fold"}}, true},
		{"service into service", goPackage{ImportPath: "internal/verify", Imports: []string{"own:internal/worker"}}, true},
		{"pkg into internal", goPackage{ImportPath: "pkg/codec", Imports: []string{"own:internal/provider"}}, true},
		{"a pkg test into internal", goPackage{ImportPath: "pkg/codec", XTestImports: []string{"own:internal/provider"}}, true},
		{"a pkg test into pkg", goPackage{ImportPath: "pkg/objects", XTestImports: []string{"own:pkg/fold", "testing"}}, false},
		{"a clock's context", goPackage{ImportPath: "pkg/fold", Imports: []string{"context"}}, true},
		{"below a refused package", goPackage{ImportPath: "pkg/fold", Imports: []string{"math/rand/v2"}}, true},
		{"NATS in a service", goPackage{ImportPath: "internal/worker", Imports: []string{natsModule + "/jetstream"}}, true},
		{"NATS in its client", goPackage{ImportPath: "internal/jetstream", Imports: []string{natsModule + "/jetstream"}}, false},
		{"NATS in a command", goPackage{ImportPath: "cmd/refold", Imports: []string{natsModule}}, true},
		{"NATS in a service's test", goPackage{ImportPath: "internal/worker", TestImports: []string{natsServerModule + "/server"}}, false},
		{"a module of a similar name", goPackage{ImportPath: "internal/jetstream", Imports: []string{natsModule + "x"}}, true},
		{"a test suite", goPackage{ImportPath: "pkg/fold/foldtest", Imports: []string{"own:pkg/fold", "pgregory.net/rapid", "testing"}}, false},
		{"a test suite in a program", goPackage{ImportPath: "internal/worker", Imports: []string{"own:pkg/fold/foldtest"}}, true},
		{"a package without a row", goPackage{ImportPath: "internal/util"}, true},
	}
	full := func(paths []string) []string {
		var out []string
		for _, p := range paths {
			out = append(out, strings.Replace(p, "own:", module+"/", 1))
		}
		return out
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			problems := importProblems(goPackage{
				ImportPath:   module + "/" + tt.pkg.ImportPath,
				Imports:      full(tt.pkg.Imports),
				TestImports:  full(tt.pkg.TestImports),
				XTestImports: full(tt.pkg.XTestImports),
			})
			if refused := len(problems) > 0; refused != tt.refused {
				t.Errorf("refused = %v, want %v: %v", refused, tt.refused, problems)
			}
		})
	}
}

// importProblems returns what the table has against the imports of p.
func importProblems(p goPackage) []string {
	path := strings.TrimPrefix(p.ImportPath, module+"/")
	row, ok := layerOf(path)
	if !ok {
		return []string{path + " is in no layer: give it a row in the table of import directions"}
	}
	var problems []string
	refuse := func(imported string) {
		problems = append(problems, path+" may not import "+imported)
	}
	suite := isTestSuite(path)
	for _, imported := range p.Imports {
		if !row.permits(imported, suite) || isTestSuite(imported) && !suite {
			refuse(imported)
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		if !row.permits(imported, true) {
			refuse(imported)
		}
	}
	return problems
}

// permits reports whether the row permits the import, for a test if test is set.
func (l layer) permits(imported string, test bool) bool {
	if own, ok := strings.CutPrefix(imported, module+"/"); ok {
		switch {
		case under(own, l.path) || underAny(own, l.own):
			return true
		case under(l.path, "pkg"):
			return test && under(own, "pkg")
		default:
			return test
		}
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return test || !underAny(imported, l.notStd)
	}
	return underAny(imported, l.modules) || test && (underAny(imported, testModules) ||
		!under(l.path, "pkg") && underAny(imported, integrationModules))
}

// isTestSuite reports whether path is that of a package that exists for tests,
// as pkg/fold/foldtest for those of pkg/fold and all below test.
func isTestSuite(path string) bool {
	parts := strings.Split(path, "/")
	n := len(parts)
	return parts[0] == "test" || n > 1 && parts[n-1] == parts[n-2]+"test"
}

// layerOf returns the row with the longest path that path is under.
func layerOf(path string) (best layer, ok bool) {
	for _, l := range layers {
		if under(path, l.path) && len(l.path) > len(best.path) {
			best, ok = l, true
		}
	}
	return best, ok
}

func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func underAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return under(path, dir) })
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out := goCommand(t, moduleRoot(t), "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}
