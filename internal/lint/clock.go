package lint

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Clock returns the analyzer that reports every use of a clock or timer of
// package time: in the packages it is run over, time is an input. Types and
// arithmetic of package time are permitted. Test files are left out.
func Clock() *analysis.Analyzer {
	clocks := map[string]bool{
		"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
		"Tick": true, "NewTimer": true, "NewTicker": true,
	}
	return &analysis.Analyzer{
		Name: "clock",
		Doc:  "report uses of the clock and of timers",
		Run: func(pass *analysis.Pass) (any, error) {
			for _, file := range sourceFiles(pass) {
				ast.Inspect(file, func(n ast.Node) bool {
					id, ok := n.(*ast.Ident)
					if !ok {
						return true
					}
					f, ok := pass.TypesInfo.Uses[id].(*types.Func)
					if ok && f.Pkg() != nil && f.Pkg().Path() == "time" && f.Signature().Recv() == nil && clocks[f.Name()] {
						pass.Reportf(id.Pos(), "time.%s: take the time as an input", f.Name())
					}
					return true
				})
			}
			return nil, nil
		},
	}
}

// sourceFiles returns the files of the package that are not tests.
func sourceFiles(pass *analysis.Pass) []*ast.File {
	var files []*ast.File
	for _, file := range pass.Files {
		if !strings.HasSuffix(pass.Fset.Position(file.Pos()).Filename, "_test.go") {
			files = append(files, file)
		}
	}
	return files
}

// calledFunc returns the full name of the function or method that call calls,
// as in "maps.Keys" or "(*sync.Map).Range", or "" where it is not known by name.
func calledFunc(pass *analysis.Pass, call *ast.CallExpr) string {
	fun := ast.Unparen(call.Fun)
	switch f := fun.(type) { // explicit instantiation
	case *ast.IndexExpr:
		fun = f.X
	case *ast.IndexListExpr:
		fun = f.X
	}
	var id *ast.Ident
	switch f := fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return ""
	}
	if f, ok := pass.TypesInfo.Uses[id].(*types.Func); ok {
		return f.FullName()
	}
	return ""
}
