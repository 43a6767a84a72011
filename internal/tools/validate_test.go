package tools_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/tools"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/events/eventstest"
)

// stub is a tool with a schema and nothing behind it.
type stub struct {
	name   string
	schema events.RawJSON
}

func (s stub) Schema() events.Tool                    { return events.Tool{Name: s.name, Parameters: s.schema} }
func (stub) Safety() tools.Safety                     { return tools.Safety{} }
func (stub) Run(context.Context, string) tools.Result { return tools.Result{} }

const order = `{
	"type": "object",
	"properties": {
		"id": {"type": "integer", "minimum": 1},
		"name": {"type": "string", "minLength": 2, "maxLength": 4},
		"state": {"enum": ["new", "paid", 9007199254740993, null]},
		"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "maxItems": 3},
		"tags": {"type": "array", "uniqueItems": true},
		"pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": false},
		"a/b~c": {"const": 18446744073709551615},
		"extra": {"type": "object", "additionalProperties": {"type": "boolean"}},
		"tree": {"$ref": "#/$defs/tree"},
		"when": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}]}
	},
	"required": ["id"],
	"additionalProperties": false,
	"$defs": {
		"line": {"type": "object", "properties": {"sku": {"type": "string", "pattern": "^[A-Z]+$"}}, "required": ["sku"]},
		"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "additionalProperties": false}
	}
}`

func TestValidatorAccepts(t *testing.T) {
	v, err := tools.NewValidator(order)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		`{"id":1}`,
		" \n{\"id\" : 1.0}\t",
		`{"id":9007199254740993}`,
		`{"id":1e400}`,
		`{"id":123456789012345678901234567890}`,
		`{"id":"x","id":2}`, // the last one counts
		`{"id":1,"name":"\ud83d\ud83d\ud83d\ud83d"}`,
		`{"id":1,"name":"\ud83d\ude00\ud83d\ude00"}`,
		"{\"id\":1,\"name\":\"" + surrogate + surrogate + surrogate + surrogate + "\"}",
		`{"id":1,"tags":["\ud800","\ud801","\ufffd",9007199254740992,9007199254740993]}`,
		`{"id":1,"state":9007199254740993}`,
		`{"id":1,"state":null}`,
		`{"id":1,"a/b~c":18446744073709551615}`,
		`{"id":1,"lines":[],"pair":["a",1.5],"extra":{"x":true},"when":{"year":2020}}`,
		`{"id":1,"tree":` + strings.Repeat(`{"kids":[`, 250) + strings.Repeat(`]}`, 250) + `}`,
	} {
		if err := v.Check(args); err != nil {
			t.Errorf("Check(%s) = %v", args, err)
		}
	}
}

func TestValidatorRefuses(t *testing.T) {
	v, err := tools.NewValidator(order)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, place, reason string }{
		{``, "", `missing properties: ["id"]`},
		{`{`, "", "not JSON: the text ends after 1 bytes"},
		{`{"id":1,}`, "", "not JSON: byte 7"},
		{`{"id":1} x`, "", "not JSON: byte"},
		{`{"id":1}{}`, "", "not JSON: byte"},
		{`{"id":01}`, "", "not JSON: byte"},
		{`{"id":NaN}`, "", "not JSON: byte"},
		{"{\"id\":1,\"name\":\"a\nb\"}", "", "not JSON: byte"},
		{`{"id":1,"name":"\x"}`, "", "not JSON: byte"},
		{`[]`, "", `the array has type "array", want "object"`},
		{`{"id":2,"id":"x"}`, "/id", `"x" has type "string", want "integer"`},
		{`{"id":0}`, "/id", "0 is less than 1"},
		{`{"id":1.5}`, "/id", `want "integer"`},
		{`{"id":null}`, "/id", `null has type "null", want "integer"`},
		{`{"id":-1e400}`, "/id", "is less than 1"},
		{`{"id":1,"labal":"x","zip":2}`, "", `there is no property "labal", "zip"; the schema has a/b~c, extra, id,`},
		{`{"id":1,"\ud800":"x"}`, "", `there is no property "\ud800"`},
		{`{"id":1,"name":"\ud83d"}`, "/name", "1 Unicode code points, fewer than 2"},
		{`{"id":1,"state":9007199254740992}`, "/state", `does not equal any of: ["new" "paid" 9007199254740993 null]`},
		{`{"id":1,"a/b~c":18446744073709551614}`, "/a~1b~0c", "does not equal 18446744073709551615"},
		{`{"id":1,"lines":[{"sku":"A"},{"sku":"b"}]}`, "/lines/1/sku", `does not match regular expression "^[A-Z]+$"`},
		{`{"id":1,"lines":[{"sku":"A"},{}]}`, "/lines/1", `missing properties: ["sku"]`},
		{`{"id":1,"lines":[1,2,3,4]}`, "/lines/0", `1 has type "integer", want "object"`},
		{`{"id":1,"pair":["a","b"]}`, "/pair/1", `"b" has type "string", want "number"`},
		{`{"id":1,"pair":["a",1,2]}`, "/pair/2", "not"},
		{`{"id":1,"tags":[1,1.0]}`, "/tags", "uniqueItems"},
		{`{"id":1,"extra":{"b":true,"a":"\ud800"}}`, "/extra/a", `"\ud800" has type "string", want "boolean"`},
		{`{"id":1,"tree":{"kids":[{},{"kids":[{"kid":1}]}]}}`, "/tree/kids/1/kids/0", `no property "kid"; the schema has kids`},
		{`{"id":1,"when":{"year":"x"}}`, "/when", `want "integer"`},
		{`{"id":1,"tree":` + strings.Repeat(`{"kids":[`, 257) + strings.Repeat(`]}`, 257) + `}`, "", "nested deeper than 512"},
	} {
		err := v.Check(c.args)
		refused, ok := errors.AsType[*tools.ArgumentError](err)
		if !ok {
			t.Errorf("Check(%.80s) = %v, want an ArgumentError", c.args, err)
			continue
		}
		if refused.Place != c.place || !strings.Contains(refused.Reason, c.reason) {
			t.Errorf("Check(%.80s):\n got %q: %s\nwant %q: %s", c.args, refused.Place, refused.Reason, c.place, c.reason)
		}
		for range 10 { // not one of the reasons, but the same one each time
			if again := v.Check(c.args); again.Error() != err.Error() {
				t.Errorf("Check(%.80s) is once %q and once %q", c.args, err, again)
			}
		}
	}
}

// TestValidatorOfDraft7 has a schema as generators write it, a reference at its root.
func TestValidatorOfDraft7(t *testing.T) {
	v, err := tools.NewValidator(`{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/args","definitions":{
		"args":{"type":"object","properties":{"rows":{"type":"array","items":[{"$ref":"#/definitions/row"}],"additionalItems":false}}},
		"row":{"allOf":[{"properties":{"n":{"maximum":5}}}]}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Check(`{"rows":[{"n":5}]}`); err != nil {
		t.Errorf("Check = %v", err)
	}
	for args, want := range map[string]string{
		`{"rows":[{"n":6}]}`: "at /rows/0: maximum: 6/1 is greater than 5.000000 (in the schema: /definitions/row/allOf/0/properties/n)",
		`{"rows":7}`:         `at /rows: type: 7 has type "integer", want "array"`,
	} {
		if err := v.Check(args); err == nil || err.Error() != want {
			t.Errorf("Check(%s) = %v, want %s", args, err, want)
		}
	}
}

// TestValidatorWordsAreBounded has arguments of which the library would print all, many times.
func TestValidatorWordsAreBounded(t *testing.T) {
	v, err := tools.NewValidator(`{"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"type":"array","items":{"$ref":"#/$defs/n"}},{"type":"integer"}]}}}`)
	if err != nil {
		t.Fatal(err)
	}
	args := strings.Repeat(`["`+strings.Repeat("x", 10_000)+`",`, 200) + "true" + strings.Repeat("]", 200)
	var refused *tools.ArgumentError
	if err := v.Check(args); !errors.As(err, &refused) {
		t.Fatalf("Check = %v, want an ArgumentError", err)
	}
	if len(refused.Error()) > 1000 {
		t.Errorf("the error has %d bytes", len(refused.Error()))
	}
}

func TestSchemas(t *testing.T) {
	for _, c := range []struct {
		name, schema string
		fine         bool
	}{
		{"true", `true`, true},
		{"empty", `{}`, true},
		{"draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a","definitions":{"a":{"type":"object"}}}`, true},
		{"draft 7 without its mark", `{"$schema":"https://json-schema.org/draft-07/schema"}`, true},
		{"draft 2020-12", `{"$schema":"https://json-schema.org/draft/2020-12/schema"}`, true},
		{"a name", `{"$id":"order.json","$ref":"#/$defs/a","$defs":{"a":{}}}`, true},
		{"an anchor", `{"$ref":"#a","$defs":{"x":{"$anchor":"a"}}}`, true},
		{"an escaped place", `{"$ref":"#/$defs/a~1b%20c","$defs":{"a/b c":{}}}`, true},
		{"a circle through the value", `{"properties":{"next":{"$ref":"#"}}}`, true},
		{"unknown keywords", `{"type":"object","x-order":1,"format":"nonsense"}`, true},

		{"nothing", ``, false},
		{"no JSON", `{`, false},
		{"null", `null`, false},
		{"a number", `1`, false},
		{"a null inside", `{"properties":{"a":null}}`, false},
		{"another draft", `{"$schema":"http://json-schema.org/draft-04/schema#"}`, false},
		{"no such type", `{"properties":{"a":{"type":"strnig"}}}`, false},
		{"no such type in a list", `{"type":["string","nil"]}`, false},
		{"no regular expression", `{"pattern":"("}`, false},
		{"look-ahead", `{"pattern":"^(?!x)"}`, false},
		{"a word for a number", `{"minLength":"two"}`, false},
		{"nothing is a multiple", `{"multipleOf":0}`, false},
		{"a reference to nothing", `{"$ref":"#/$defs/a"}`, false},
		{"a reference to no schema", `{"$ref":"#/properties","properties":{}}`, false},
		{"a reference outside", `{"items":{"$ref":"http://127.0.0.1:1/schema.json"}}`, false},
		{"a reference to a file", `{"items":{"$ref":"other.json#/a"}}`, false},
		{"an inner name", `{"items":{"$id":"http://example.com/x"}}`, false},
		{"a dynamic reference", `{"$dynamicAnchor":"a","items":{"$dynamicRef":"#a"}}`, false},
		{"a circle", `{"$ref":"#"}`, false},
		{"a circle of two", `{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"not":{"$ref":"#/$defs/a"}}}}`, false},
		{"a circle through dependencies", `{"dependentSchemas":{"a":{"$ref":"#"}}}`, false},
		{"too deep", strings.Repeat(`{"not":`, 600) + `{}` + strings.Repeat(`}`, 600), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tools.NewSet(stub{"fine", `{}`}, stub{"doubtful", events.RawJSON(c.schema)})
			if c.fine && err != nil {
				t.Fatalf("NewSet: %v", err)
			}
			if !c.fine && (!errors.Is(err, tools.ErrSchema) || !strings.Contains(err.Error(), `"doubtful"`)) {
				t.Fatalf("NewSet: %v, want ErrSchema and the tool's name", err)
			}
		})
	}
}

func TestSetCheck(t *testing.T) {
	set, err := tools.NewSet(stub{"none", `{"type":"object"}`}, stub{"one", `{"type":"object","required":["a"]}`})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tool, args string
		ok         bool
	}{
		{"none", "", true},
		{"none", " \n", true},
		{"none", "{}", true},
		{"none", "null", false},
		{"one", "", false},
		{"one", `{"a":null}`, true},
		{"nosuch", `{"x":`, true}, // unknown tools are the caller's business
	} {
		r, ok := set.Check(c.tool, c.args)
		if ok != c.ok {
			t.Errorf("Check(%s, %q) = %+v, %v", c.tool, c.args, r, ok)
		}
		if !ok && (r.Error.Code != events.ToolBadArguments || !strings.HasPrefix(string(r.Output), "Error: ") || !utf8.Valid(r.Output)) {
			t.Errorf("Check(%s, %q) = %+v", c.tool, c.args, r)
		}
	}
}

// TestCheckTakesAnyText has a schema that refuses nothing: then only what is not JSON is refused.
func TestCheckTakesAnyText(t *testing.T) {
	v, err := tools.NewValidator(`{"type":"object"}`)
	if err != nil {
		t.Fatal(err)
	}
	one, err := tools.NewValidator(`{"properties":{"a":{"maxLength":1}},"propertyNames":{"maxLength":1}}`)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		name, value := eventstest.Text().Draw(t, "name"), eventstest.Text().Draw(t, "value")
		args := string(events.AppendQuote([]byte("{"), name)) + ":" + string(events.AppendQuote(nil, value)) + "}"
		if err := v.Check(args); err != nil {
			t.Fatalf("Check(%s) = %v", args, err)
		}
		if err := one.Check(args); err != nil && !utf8.ValidString(err.Error()) {
			t.Fatalf("Check(%s): the error %q is not UTF-8", args, err)
		}
		half := rapid.SampledFrom([]string{`\ud83d`, `\udcff`, `\udfff`, surrogate, "😀", "a"}).Draw(t, "character")
		if err := one.Check(`{"a":"` + half + `"}`); err != nil {
			t.Fatalf("%q counts as more than one character: %v", half, err)
		}
	})
}

func FuzzCheck(f *testing.F) {
	f.Add(order, `{"id":1,"lines":[{"sku":"b"}],"tree":{"kids":[{}]}}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a","definitions":{"a":{"items":[{"type":"null"}]}}}`, `[1]`)
	f.Add(`{"anyOf":[{"type":"string"},{"enum":[1,null,"\ud800"]}]}`, `"\ud800"`)
	f.Add(`{"patternProperties":{"^a":{"minimum":1}},"unevaluatedProperties":false}`, `{"a":0,"a":1e999,"b":[]}`)
	f.Fuzz(func(t *testing.T, schema, args string) {
		v, err := tools.NewValidator(events.RawJSON(schema))
		if err != nil {
			if !errors.Is(err, tools.ErrSchema) {
				t.Fatalf("NewValidator(%q) = %v, want ErrSchema", schema, err)
			}
			return
		}
		err = v.Check(args)
		if err == nil {
			return
		}
		if refused, ok := errors.AsType[*tools.ArgumentError](err); !ok || len(refused.Place) > 300 || len(refused.Reason) > 600 {
			t.Fatalf("Check(%q) with %q = %v", args, schema, err)
		}
	})
}
