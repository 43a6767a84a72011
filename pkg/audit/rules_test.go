package audit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/audit"
)

// ruleRow is a row of the table of rules.
type ruleRow struct {
	rule, result string // the result empty when it is that of something else
	pkg, test    string // where the provoking test is; test empty for TestRuleTable
}

// ruleTable reads docs/format/rules.md.
func ruleTable(t *testing.T) []ruleRow {
	t.Helper()
	page, err := os.ReadFile("../../docs/format/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## The table\n")
	if !ok {
		t.Fatal("the page has no table")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	code := func(cell string) string {
		cell = strings.TrimSpace(cell)
		if in, ok := strings.CutPrefix(cell, "`"); ok && strings.HasSuffix(in, "`") {
			return strings.TrimSuffix(in, "`")
		}
		return ""
	}
	var rows []ruleRow
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 7 || strings.HasPrefix(line, "| rule") || strings.HasPrefix(line, "|---") {
			continue
		}
		row := ruleRow{rule: code(cells[1]), result: code(cells[2])}
		pkg, test, _ := strings.Cut(strings.TrimSpace(cells[5]), " ")
		row.pkg, row.test = code(pkg), code(test)
		rows = append(rows, row)
	}
	return rows
}

// TestRulesDocumented compares the table with the rules in the source: each has a row, and each row is one of them.
func TestRulesDocumented(t *testing.T) {
	inSource := make(map[string]string)
	for _, dir := range []string{".", "bundle", "../fold"} {
		for name, rule := range ruleConstants(t, dir) {
			inSource[rule] = name
		}
	}
	if len(inSource) < 40 {
		t.Fatalf("found %d rules in the source", len(inSource))
	}
	inTable := make(map[string]bool)
	for _, row := range ruleTable(t) {
		if inTable[row.rule+"/"+row.result] {
			t.Errorf("two rows for %q %q", row.rule, row.result)
		}
		inTable[row.rule+"/"+row.result], inTable[row.rule] = true, true
		if _, ok := inSource[row.rule]; !ok && row.rule != "" {
			t.Errorf("the table has %q, which is no rule", row.rule)
		}
		if row.result != "" && !slices.Contains(audit.Results(), audit.Result(row.result)) {
			t.Errorf("the table has %q, which is no result", row.result)
		}
	}
	for rule, name := range inSource {
		if !inTable[rule] {
			t.Errorf("%s (%q) has no row in docs/format/rules.md", name, rule)
		}
	}
	for _, result := range audit.Results() {
		named := slices.ContainsFunc(ruleTable(t), func(row ruleRow) bool { return row.result == string(result) })
		if !named && result != audit.Match {
			t.Errorf("no row has the result %q", result)
		}
	}
}

// ruleConstants returns the string constants of the package in dir whose names begin with Rule.
func ruleConstants(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	rules := make(map[string]string)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, ident := range spec.Names {
				if !strings.HasPrefix(ident.Name, "Rule") || i >= len(spec.Values) {
					continue
				}
				if lit, ok := spec.Values[i].(*ast.BasicLit); ok {
					value, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					rules[ident.Name] = value
				}
			}
			return true
		})
	}
	return rules
}

// TestRuleTable breaks the rule of each row, and nothing else: the check finds that rule with that result. Rows that name a test
// of their own have it.
func TestRuleTable(t *testing.T) {
	cases := ruleCases(t)
	for _, row := range ruleTable(t) {
		t.Run(row.rule+"/"+row.result, func(t *testing.T) {
			if row.test != "" {
				wantTest(t, filepath.Join("../..", row.pkg), row.test)
				return
			}
			if row.pkg != "pkg/audit" {
				t.Fatalf("the row names no test: %+v", row)
			}
			provoke, ok := cases[row.rule+"/"+row.result]
			if !ok {
				t.Fatal("no case provokes it")
			}
			delete(cases, row.rule+"/"+row.result)
			report, err := audit.CheckLog(t.Context(), provoke())
			if err != nil {
				t.Fatal(err)
			}
			found := 0
			for i := range report.Verdicts {
				v := &report.Verdicts[i]
				switch {
				case v.Result == audit.Match, v.Rule == audit.RuleEarlier && row.rule != audit.RuleEarlier:
				case v.Rule == row.rule && (row.result == "" || string(v.Result) == row.result):
					found++
				case row.rule == audit.RuleEarlier && v.Rule == audit.RuleID: // what breaks the log before
				default:
					t.Errorf("found %s", v)
				}
				if _, err := v.Encode(); err != nil {
					t.Error(err)
				}
			}
			if found == 0 {
				t.Errorf("not found: %v", report.Verdicts)
			}
		})
	}
	for name := range cases {
		t.Errorf("the case %q has no row", name)
	}
}

// wantTest looks for a test function in the sources of a package.
func wantTest(t *testing.T, dir, name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(src), "\nfunc "+name+"(t *testing.T)") {
			return
		}
	}
	t.Errorf("%s has no %s", dir, name)
}
