package lint

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// unordered is the comment that permits one iteration over a map whose order
// cannot reach a result. It stands on the line of the iteration or on the line
// above, and a reason follows it.
const unordered = "//refold:unordered"

// MapRange returns the analyzer that reports iterations over maps: range
// statements, maps.Keys, maps.Values and maps.All whose sequence is not sorted
// at once, and the reflective ways to the same. Test files are left out.
//
// A directive without a reason, and one that permits nothing, are reported too.
func MapRange() *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "maprange",
		Doc:  "report iterations over maps, whose order differs from run to run",
		Run: func(pass *analysis.Pass) (any, error) {
			for _, file := range sourceFiles(pass) {
				checkMapRanges(pass, file)
			}
			return nil, nil
		},
	}
}

func checkMapRanges(pass *analysis.Pass, file *ast.File) {
	permits := directives(pass, file)
	report := func(pos token.Pos, what string) {
		line := pass.Fset.Position(pos).Line
		for _, l := range []int{line, line - 1} {
			if d, ok := permits[l]; ok {
				d.used = true
				return
			}
		}
		pass.Reportf(pos, "%s has no order: sort first, or say why none is needed with %s REASON", what, unordered)
	}

	sorted := map[ast.Expr]bool{} // arguments of calls that make the order irrelevant
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if isMap(pass.TypesInfo.TypeOf(n.X)) {
				report(n.Pos(), "a range over a map")
			}
		case *ast.CallExpr:
			switch name := calledFunc(pass, n); name {
			case "slices.Sorted", "slices.SortedFunc", "slices.SortedStableFunc", "maps.Collect", "maps.Insert":
				for _, arg := range n.Args {
					sorted[ast.Unparen(arg)] = true
				}
			case "maps.Keys", "maps.Values", "maps.All",
				"(reflect.Value).MapKeys", "(reflect.Value).MapRange", "(*sync.Map).Range":
				if !sorted[n] {
					report(n.Pos(), "the sequence of "+name)
				}
			}
		}
		return true
	})
	for _, d := range permits {
		if !d.used {
			pass.Reportf(d.pos, "%s permits nothing here", unordered)
		}
	}
}

type directive struct {
	pos  token.Pos
	used bool
}

// directives returns the permissions in file by line.
func directives(pass *analysis.Pass, file *ast.File) map[int]*directive {
	found := map[int]*directive{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			reason, ok := strings.CutPrefix(c.Text, unordered)
			if !ok {
				continue
			}
			if strings.TrimSpace(reason) == "" {
				pass.Reportf(c.Pos(), "%s needs a reason", unordered)
				continue
			}
			found[pass.Fset.Position(c.Pos()).Line] = &directive{pos: c.Pos()}
		}
	}
	return found
}

// isMap reports whether ranging over a value of type t is ranging over a map,
// also where t is a type parameter that maps may instantiate.
func isMap(t types.Type) bool {
	if t == nil {
		return false
	}
	switch u := t.Underlying().(type) {
	case *types.Map:
		return true
	case *types.Interface: // the constraint of a type parameter
		for t := range u.EmbeddedTypes() {
			if isMap(t) {
				return true
			}
		}
	case *types.Union:
		for term := range u.Terms() {
			if isMap(term.Type()) {
				return true
			}
		}
	}
	return false
}
