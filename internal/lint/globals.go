package lint

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// Globals returns the analyzer that reports state at package level: variables
// that functions assign to, change in place or take the address of, and
// variables of types that exist to be changed (those of sync and sync/atomic,
// channels). Tables and sentinels that nothing changes are permitted. Test
// files are left out.
func Globals() *analysis.Analyzer {
	return &analysis.Analyzer{
		Name: "globals",
		Doc:  "report mutable state at package level",
		Run: func(pass *analysis.Pass) (any, error) {
			for _, file := range sourceFiles(pass) {
				for _, decl := range file.Decls {
					switch decl := decl.(type) {
					case *ast.GenDecl:
						checkVarTypes(pass, decl)
					case *ast.FuncDecl:
						checkWrites(pass, decl)
					}
				}
			}
			return nil, nil
		},
	}
}

func checkVarTypes(pass *analysis.Pass, decl *ast.GenDecl) {
	if decl.Tok != token.VAR {
		return
	}
	for _, spec := range decl.Specs {
		for _, name := range spec.(*ast.ValueSpec).Names {
			if v, ok := pass.TypesInfo.Defs[name].(*types.Var); ok && isState(v.Type()) {
				pass.Reportf(name.Pos(), "%s holds state at package level: let its user own it", name.Name)
			}
		}
	}
}

// isState reports whether values of type t exist to be changed.
func isState(t types.Type) bool {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if pkg := t.Obj().Pkg(); pkg != nil && (pkg.Path() == "sync" || pkg.Path() == "sync/atomic") {
			return true
		}
		return isState(t.Underlying())
	case *types.Pointer:
		return isState(t.Elem())
	case *types.Array:
		return isState(t.Elem())
	case *types.Chan:
		return true
	case *types.Struct:
		for f := range t.Fields() {
			if _, pointer := f.Type().(*types.Pointer); !pointer && isState(f.Type()) {
				return true
			}
		}
	}
	return false
}

// checkWrites reports what the function changes of its package's variables.
func checkWrites(pass *analysis.Pass, fn *ast.FuncDecl) {
	report := func(e ast.Expr, how string) {
		if v := packageVar(pass, e); v != nil {
			pass.Reportf(e.Pos(), "%s is %s here: no mutable state at package level", v.Name(), how)
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				report(e, "assigned")
			}
		case *ast.IncDecStmt:
			report(n.X, "assigned")
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				report(n.Key, "assigned")
				report(n.Value, "assigned")
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				report(n.X, "taken the address of")
			}
		case *ast.CallExpr:
			id, ok := n.Fun.(*ast.Ident)
			if !ok || len(n.Args) == 0 {
				return true
			}
			if b, ok := pass.TypesInfo.Uses[id].(*types.Builtin); ok {
				switch b.Name() {
				case "delete", "clear", "copy":
					report(n.Args[0], "changed")
				}
			}
		}
		return true
	})
}

// packageVar returns the variable of this package that the expression is or
// reaches into, or nil.
func packageVar(pass *analysis.Pass, e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.ParenExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.Ident:
			v, ok := pass.TypesInfo.Uses[x].(*types.Var)
			if ok && v.Parent() == pass.Pkg.Scope() {
				return v
			}
			return nil
		default:
			return nil
		}
	}
}
