package tools

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/refold-dev/refold/pkg/events"
)

// maxReason bounds the text of an [ArgumentError], in bytes, and half of it that of a place.
const maxReason = 600

// ArgumentError says why arguments do not fit a tool's parameter schema, in words for the model.
type ArgumentError struct {
	Place  string // the JSON pointer of the value that does not fit; empty: the arguments as a whole
	Reason string // what was found and what is wanted
}

// Error returns the place and the reason.
func (e *ArgumentError) Error() string {
	if e.Place == "" {
		return e.Reason
	}
	return "at " + e.Place + ": " + e.Reason
}

// Validator checks arguments against a parameter schema. It is safe for concurrent use.
type Validator struct {
	tree  *schemaTree
	whole *jsonschema.Resolved
	named *jsonschema.Schema // a copy under schemaID, for [explainer.part]
}

// Check returns an [*ArgumentError] when arguments, an argument string as the model wrote it, are not JSON or not what
// the schema asks for, and nil otherwise.
//
// It refuses nothing else, for the tool gets the string as it is: a string may hold lone surrogates, each counts as one
// character; a number may have any size, and is judged exactly when it is an integer of 64 bits and by the nearest double
// when it is not (bounds of a schema are doubles too); of members of one name the last one is judged. White space alone is
// what providers send for a call without arguments and counts as {}. Only nesting deeper than 512 is refused whatever the
// schema says.
func (v *Validator) Check(arguments string) error {
	value, err := decode(orEmpty(arguments))
	if err != nil {
		return &ArgumentError{Reason: clip("the arguments are not JSON: "+err.Error(), maxReason)}
	}
	if err := v.whole.Validate(value); err != nil {
		e := explainer{v: v, parts: map[string]*jsonschema.Resolved{"": v.whole}}
		return e.explain("", value, "", err)
	}
	return nil
}

// orEmpty returns the arguments, {} when there are none.
func orEmpty(arguments string) string {
	if strings.TrimSpace(arguments) == "" {
		return "{}"
	}
	return arguments
}

// explainer finds the smallest value that does not fit. The library only says which part of the schema was broken, and
// where several are, another one each time.
type explainer struct {
	v     *Validator
	parts map[string]*jsonschema.Resolved
}

// explain says what is wrong with a value at a place that does not fit the schema at another place. It goes into the
// first property or element that does not fit by itself; err is the library's word on the value.
func (e *explainer) explain(schemaPlace string, value any, place string, err error) *ArgumentError {
	s := e.v.tree.places[schemaPlace]
	if s.Ref != "" {
		if target, ok := e.v.tree.target(s.Ref); ok {
			if err := e.check(target, value); err != nil {
				return e.explain(target, value, place, err)
			}
		}
	}
	switch value := value.(type) {
	case object:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if inner, ok := propertySchema(s, name); ok {
				if err := e.check(schemaPlace+inner, value[name]); err != nil {
					return e.explain(schemaPlace+inner, value[name], place+pointer(name), err)
				}
			}
		}
	case array:
		for i, element := range value {
			if inner, ok := elementSchema(s, i); ok {
				if err := e.check(schemaPlace+inner, element); err != nil {
					return e.explain(schemaPlace+inner, element, place+"/"+strconv.Itoa(i), err)
				}
			}
		}
	}
	return &ArgumentError{Place: clip(shown(place), maxReason/2), Reason: clip(reason(s, schemaPlace, value, err), maxReason)}
}

// check judges a value by the schema at a place. A part that does not compile by itself, which draft 7 knows, judges
// nothing.
func (e *explainer) check(schemaPlace string, value any) error {
	part, ok := e.parts[schemaPlace]
	if !ok {
		root := &jsonschema.Schema{
			Schema: e.v.named.Schema,
			Ref:    schemaID + "#" + (&url.URL{Fragment: schemaPlace}).EscapedFragment(),
			Defs:   map[string]*jsonschema.Schema{"parameters": e.v.named},
		}
		part, _ = root.Resolve(nil) // nil when it fails
		e.parts[schemaPlace] = part
	}
	if part == nil {
		return nil
	}
	return part.Validate(value)
}

// propertySchema returns where s has the schema of one of its properties, if it has just one for it.
func propertySchema(s *jsonschema.Schema, name string) (place string, ok bool) {
	switch {
	case s.Properties[name] != nil:
		return "/properties" + pointer(name), true
	case s.AdditionalProperties != nil && len(s.PatternProperties) == 0 && !refusesAll(s.AdditionalProperties):
		return "/additionalProperties", true
	}
	return "", false
}

// elementSchema returns where s has the schema of one of its elements.
func elementSchema(s *jsonschema.Schema, i int) (place string, ok bool) {
	switch {
	case i < len(s.PrefixItems):
		return "/prefixItems/" + strconv.Itoa(i), true
	case i < len(s.ItemsArray):
		return "/items/" + strconv.Itoa(i), true
	case s.Items != nil:
		return "/items", true
	}
	return "", false
}

// refusesAll reports whether s is the schema false.
func refusesAll(s *jsonschema.Schema) bool {
	return s.Not != nil && reflect.ValueOf(*s.Not).IsZero()
}

// reason words what is wrong with a value whose parts fit.
func reason(s *jsonschema.Schema, schemaPlace string, value any, err error) string {
	if o, ok := value.(object); ok && s.AdditionalProperties != nil && refusesAll(s.AdditionalProperties) && len(s.PatternProperties) == 0 {
		var extra []string
		for _, name := range slices.Sorted(maps.Keys(o)) {
			if s.Properties[name] == nil {
				extra = append(extra, quote(name))
			}
		}
		if len(extra) > 0 {
			return "there is no property " + strings.Join(extra, ", ") + "; the schema has " + strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", ")
		}
	}
	leaf, trail := err, ""
	for {
		inner := errors.Unwrap(leaf)
		if inner == nil {
			break
		}
		trail = strings.TrimSuffix(leaf.Error(), ": "+inner.Error())
		leaf = inner
	}
	trail = strings.TrimPrefix(strings.TrimPrefix(trail, "validating "), "/$defs/parameters")
	below := strings.HasPrefix(trail, "/") && trail != schemaPlace
	if keyword, _, _ := strings.Cut(leaf.Error(), ":"); !below {
		if r := numberReason(s, keyword, value); r != "" {
			return r
		}
	}
	text := strings.NewReplacer("<invalid reflect.Value>", "null", "<nil>", "null").Replace(shown(leaf.Error()))
	if below {
		text += fmt.Sprintf(" (in the schema: %s)", trail)
	}
	return text
}

// numberReason words what a bound of s has against a number, which the library prints as a fraction.
func numberReason(s *jsonschema.Schema, keyword string, value any) string {
	var wording string
	var bound *float64
	switch keyword {
	case "minimum":
		wording, bound = "%v is less than %v", s.Minimum
	case "maximum":
		wording, bound = "%v is greater than %v", s.Maximum
	case "exclusiveMinimum":
		wording, bound = "%v is not greater than %v", s.ExclusiveMinimum
	case "exclusiveMaximum":
		wording, bound = "%v is not less than %v", s.ExclusiveMaximum
	case "multipleOf":
		wording, bound = "%v is not a multiple of %v", s.MultipleOf
	}
	if bound == nil {
		return ""
	}
	return fmt.Sprintf(keyword+": "+wording, value, *bound)
}

// clip shortens text to maxBytes bytes and says so.
func clip(text string, maxBytes int) string {
	const more = "..."
	if len(text) <= maxBytes {
		return text
	}
	head, _ := Cut(text, maxBytes-len(more))
	return head + more
}

// Check says whether the named tool takes the arguments, an argument string as the model wrote it: see
// [Validator.Check]. Where it does not, the result that answers the call has the code TOOL_BAD_ARGUMENTS and a text that
// names the place and what is wanted there. A tool that is not in the set is not judged.
func (s *Set) Check(name, arguments string) (refusal Result, ok bool) {
	i, found := s.find(name)
	if !found {
		return Result{}, true
	}
	if err := s.sorted[i].arguments.Check(arguments); err != nil {
		return Failed(events.ToolBadArguments, "the arguments are not what the tool's schema asks for: %v", err), false
	}
	return Result{}, true
}
