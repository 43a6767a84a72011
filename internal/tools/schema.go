package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/refold-dev/refold/pkg/events"
)

// ErrSchema is wrapped by the error for a parameter schema that arguments cannot be checked with: it is no JSON schema
// of draft 7 or 2020-12, it needs something outside itself, or checking could go round in circles for ever.
var ErrSchema = errors.New("unusable parameter schema")

const (
	draft7    = "http://json-schema.org/draft-07/schema#"
	draft2020 = "https://json-schema.org/draft/2020-12/schema"

	// schemaID is what the copy of a schema is called that parts of it are looked up in.
	schemaID = "https://refold.invalid/parameters"
)

// NewValidator compiles a tool's parameter schema. References lead to other places of the same schema, by JSON pointer
// or anchor: nothing is ever fetched. The error wraps [ErrSchema].
func NewValidator(parameters events.RawJSON) (*Validator, error) {
	if err := parameters.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	if parameters == "null" { // which encoding/json takes for nothing at all
		return nil, fmt.Errorf("%w: null is no schema", ErrSchema)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal([]byte(parameters), &schema); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	switch strings.TrimSuffix(schema.Schema, "#") {
	case "":
	case strings.TrimSuffix(draft7, "#"), "https" + strings.TrimPrefix(strings.TrimSuffix(draft7, "#"), "http"):
		schema.Schema = draft7
	case draft2020:
		schema.Schema = draft2020
	default:
		return nil, fmt.Errorf("%w: $schema %q is neither draft 7 nor 2020-12", ErrSchema, schema.Schema)
	}
	schema.ID = "" // every reference is to the schema itself
	tree, err := takeApart(&schema, parameters)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	whole, err := schema.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	named := schema.CloneSchemas()
	named.ID = schemaID
	if named.Ref != "" && named.Schema == draft7 { // which ignores what stands beside a reference, the name too
		named.AllOf, named.Ref = append(named.AllOf, &jsonschema.Schema{Ref: named.Ref}), ""
	}
	return &Validator{tree: tree, whole: whole, named: named}, nil
}

// schemaTree is a schema taken apart into its subschemas.
type schemaTree struct {
	places  map[string]*jsonschema.Schema // by JSON pointer
	order   []string                      // the places, outer before inner
	anchors map[string]string             // from name to place
}

// takeApart returns the tree of a schema and finds what the library does not: references that lead outside or in
// circles, types that do not exist. It also gives the numbers in enum and const back the digits that the library rounded
// away.
func takeApart(root *jsonschema.Schema, raw events.RawJSON) (*schemaTree, error) {
	exact, err := decode(string(raw))
	if err != nil {
		return nil, err
	}
	tree := &schemaTree{places: map[string]*jsonschema.Schema{}, anchors: map[string]string{}}
	if err := tree.add(root, "", exact); err != nil {
		return nil, err
	}
	open, done := map[*jsonschema.Schema]bool{}, map[*jsonschema.Schema]bool{}
	for _, place := range tree.order {
		if err := tree.follow(tree.places[place], open, done); err != nil {
			return nil, fmt.Errorf("at %q: %w", place, err)
		}
	}
	return tree, nil
}

// child is a subschema: where it stands below its parent, and the same place in the exactly decoded JSON.
type child struct {
	path   string
	schema *jsonschema.Schema
	exact  any
}

// children returns the subschemas of s: those that judge the same value as s and those that judge parts of it.
func children(s *jsonschema.Schema, exact any) (same, inner []child) {
	members, _ := exact.(object)
	one := func(into *[]child, name string, c *jsonschema.Schema) {
		if c != nil {
			*into = append(*into, child{"/" + name, c, members[name]})
		}
	}
	list := func(into *[]child, name string, cs []*jsonschema.Schema) {
		values, _ := members[name].(array)
		for i, c := range cs {
			var v any
			if i < len(values) {
				v = values[i]
			}
			*into = append(*into, child{"/" + name + "/" + strconv.Itoa(i), c, v})
		}
	}
	named := func(into *[]child, name string, cs map[string]*jsonschema.Schema) {
		values, _ := members[name].(object)
		for _, key := range slices.Sorted(maps.Keys(cs)) {
			*into = append(*into, child{"/" + name + pointer(key), cs[key], values[key]})
		}
	}
	list(&same, "allOf", s.AllOf)
	list(&same, "anyOf", s.AnyOf)
	list(&same, "oneOf", s.OneOf)
	one(&same, "not", s.Not)
	one(&same, "if", s.If)
	one(&same, "then", s.Then)
	one(&same, "else", s.Else)
	named(&same, "dependentSchemas", s.DependentSchemas)
	named(&same, "dependencies", s.DependencySchemas)

	named(&inner, "$defs", s.Defs)
	named(&inner, "definitions", s.Definitions)
	named(&inner, "properties", s.Properties)
	named(&inner, "patternProperties", s.PatternProperties)
	one(&inner, "additionalProperties", s.AdditionalProperties)
	one(&inner, "propertyNames", s.PropertyNames)
	one(&inner, "unevaluatedProperties", s.UnevaluatedProperties)
	one(&inner, "items", s.Items)
	list(&inner, "items", s.ItemsArray)
	list(&inner, "prefixItems", s.PrefixItems)
	one(&inner, "additionalItems", s.AdditionalItems)
	one(&inner, "unevaluatedItems", s.UnevaluatedItems)
	one(&inner, "contains", s.Contains)
	one(&inner, "contentSchema", s.ContentSchema)
	return same, inner
}

// add enters s, which stands at place, and everything below it.
func (t *schemaTree) add(s *jsonschema.Schema, place string, exact any) error {
	if s == nil {
		return fmt.Errorf("at %q: null is no schema", place)
	}
	t.places[place] = s
	t.order = append(t.order, place)
	switch {
	case s.ID != "":
		return fmt.Errorf("at %q: an inner $id is not supported", place)
	case s.DynamicRef != "" || s.DynamicAnchor != "":
		return fmt.Errorf("at %q: dynamic references are not supported", place)
	case s.Ref != "" && !strings.HasPrefix(s.Ref, "#"):
		return fmt.Errorf("at %q: $ref %q leads outside: nothing is fetched", place, s.Ref)
	}
	if s.Anchor != "" {
		t.anchors[s.Anchor] = place
	}
	for _, name := range append(slices.Clone(s.Types), s.Type) {
		switch name {
		case "", "null", "boolean", "object", "array", "number", "integer", "string":
		default:
			return fmt.Errorf("at %q: there is no type %q", place, name)
		}
	}
	if s.MultipleOf != nil && *s.MultipleOf <= 0 {
		return fmt.Errorf("at %q: multipleOf is not above 0", place)
	}
	if o, ok := exact.(object); ok {
		if enum, ok := o["enum"].(array); ok && len(enum) == len(s.Enum) {
			s.Enum = []any(enum)
		}
		if constant, ok := o["const"]; ok && s.Const != nil {
			s.Const = &constant
		}
	}
	same, inner := children(s, exact)
	for _, c := range append(same, inner...) {
		if err := t.add(c.schema, place+c.path, c.exact); err != nil {
			return err
		}
	}
	return nil
}

// follow goes from s to every schema that judges the same value. To come back to one that is open means that checking a
// value would never end.
func (t *schemaTree) follow(s *jsonschema.Schema, open, done map[*jsonschema.Schema]bool) error {
	if done[s] {
		return nil
	}
	if open[s] {
		return errors.New("a reference leads back to itself without a step into the value")
	}
	open[s] = true
	same, _ := children(s, nil)
	if s.Ref != "" {
		place, ok := t.target(s.Ref)
		if !ok {
			return fmt.Errorf("$ref %q leads to no schema", s.Ref)
		}
		same = append(same, child{schema: t.places[place]})
	}
	for _, c := range same {
		if err := t.follow(c.schema, open, done); err != nil {
			return err
		}
	}
	delete(open, s)
	done[s] = true
	return nil
}

// target returns the place that a reference leads to.
func (t *schemaTree) target(ref string) (place string, ok bool) {
	u, err := url.Parse(ref)
	if err != nil {
		return "", false
	}
	if place, ok = t.anchors[u.Fragment]; !ok {
		place = u.Fragment
		_, ok = t.places[place]
	}
	return place, ok
}

// pointer returns the step of a JSON pointer (RFC 6901) to the member of that name.
func pointer(name string) string {
	return "/" + strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}
