package events_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

const formatPage = "../../docs/format/events.md"

// constants returns the values of the exported string constants of the package whose names start with prefix.
func constants(t *testing.T, prefix string) []string {
	t.Helper()
	names, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, name := range names {
		if !strings.HasSuffix(name.Name(), ".go") || strings.HasSuffix(name.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, prefix) {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				v, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, v)
			}
			return true
		})
	}
	if len(values) == 0 {
		t.Fatalf("no constants %s...", prefix)
	}
	return values
}

func readPage(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile(formatPage)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestFormatPageNamesEveryWord(t *testing.T) {
	page := readPage(t)
	for _, prefix := range []string{
		"Type", "Block", "Chunk", "Source", "Role", "Finish", "Claim", "Turn", "Header", "Purpose", "Compaction", "Input",
		"Delivery", "Image", "Tool", "Failure", "Config", "TextMediaType", "typeHeaderDelta", "headerFallback",
	} {
		for _, v := range append(constants(t, prefix), events.ImageMediaTypes()...) {
			if v != "" && !bytes.Contains(page, []byte("`"+v+"`")) {
				t.Errorf("%s does not mention `%s`", formatPage, v)
			}
		}
	}
	for _, name := range []string{"ErrSyntax", "ErrInvalid", "ErrVersion", "ErrUnknownType", "ErrLegacy", "ErrTooLarge"} {
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("%s does not mention `%s`", formatPage, name)
		}
	}
}

// TestFormatPageNamesEveryField takes the field names from the samples, which hold every field of every type.
func TestFormatPageNamesEveryField(t *testing.T) {
	payloads := map[string][]byte{}
	for _, e := range samples(t) {
		payloads[string(e.Type())] = encode(t, e)
	}
	for name, e := range variants(t) {
		payloads[name] = encode(t, e)
	}
	for name, in := range sampleInputs() {
		payloads["input "+name] = encodeInput(t, in)
	}
	page := readPage(t)
	field := regexp.MustCompile(`[{,]"([a-zA-Z0-9]+)":[^ ]`) // raw values in the samples have a space there
	for what, b := range payloads {
		for _, m := range field.FindAllSubmatch(b, -1) {
			name := regexp.MustCompile("(`|[{ ])" + string(m[1]) + "(`|:)")
			if !name.Match(page) {
				t.Errorf("%s does not mention field %q of %s", formatPage, m[1], what)
			}
		}
	}
}

func TestFormatPageExamples(t *testing.T) {
	example := regexp.MustCompile("(?s)```json\n([^\n]*)\n```\n\nSHA-256: `([0-9a-f]+)`")
	found := example.FindAllSubmatch(readPage(t), -1)
	if len(found) != 4 {
		t.Fatalf("%d examples on the page, want 4", len(found))
	}
	var prev events.Hash
	for i, m := range found {
		want, err := events.ParseHash(string(m[2]))
		if err != nil || events.HashPayload(m[1]) != want {
			t.Errorf("example %d hashes to %s, the page says %s: %v", i+1, events.HashPayload(m[1]), m[2], err)
		}
		if i >= 2 {
			if _, err := events.DecodeInput(m[1]); err != nil {
				t.Error(err)
			}
			continue
		}
		e, err := events.Decode(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if e.Prev != prev || e.Seq != uint64(i+1) {
			t.Errorf("example %d does not follow the one before it", i+1)
		}
		prev, _ = e.Hash()
	}
}

func TestGeneratorsKnowEveryType(t *testing.T) {
	var got []string
	for _, typ := range eventstest.Types() {
		got = append(got, string(typ))
	}
	want := constants(t, "Type")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("eventstest generates %v, the package knows %v", got, want)
	}
}
