// Package tools holds the tools that a worker offers to models, behind one small interface.
package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/refold-dev/refold/pkg/events"
)

// Tool is one tool. Implementations are safe for concurrent use.
type Tool interface {
	// Schema returns what the model is shown. It MUST NOT change while the tool is registered: a change breaks the
	// provider's prompt cache.
	Schema() events.Tool
	// Safety says when the tool may run.
	Safety() Safety
	// Run executes one call with the argument string exactly as the model wrote it, once [Set.Check] has let it pass:
	// it may be blank, which means {}, and may hold members twice, lone surrogates and numbers of any size. A failure
	// that the model should read about is part of the result. Run returns soon after ctx ends.
	Run(ctx context.Context, arguments string) Result
}

// Safety is what a worker may do with a tool's calls.
type Safety struct {
	Parallel bool // may run beside other parallel tools
	ReadOnly bool // running it again changes nothing: a call whose outcome a crash lost is simply repeated
	// Timeout is how long a call may take. 0: as long as the worker allows to tools that do not say.
	Timeout time.Duration
	// MaxOutput is how much of the output the model gets, in bytes of text; see [Limit]. 0: what the worker gives to
	// tools that do not say.
	MaxOutput int
}

// Result is a tool's answer.
type Result struct {
	Output []byte           // what the model reads, byte for byte
	Images []Image          // what the model sees after the output, in this order
	Error  events.ToolError // zero: success
	// Meta is for programs and never shown to the model: one JSON value, or empty.
	Meta events.RawJSON
}

// Image is a picture in a tool's answer. The worker admits it, or tells the model why not, and keeps its bytes; the tool
// gives them away and does not change them.
type Image struct {
	Data []byte // a whole file in one of the formats that models take
	Name string // what to call it, a file name for example; may be empty
}

// Failed returns the result of a call that did not succeed, whose text the model reads.
func Failed(code events.ToolErrorCode, format string, args ...any) Result {
	text := fmt.Sprintf(format, args...)
	return Result{Output: []byte("Error: " + text), Error: events.ToolError{Code: code, Message: text}}
}

// ErrDuplicate is wrapped by the error of [NewSet] for two tools of one name.
var ErrDuplicate = errors.New("two tools have the same name")

// Set is a fixed choice of tools.
type Set struct{ sorted []entry }

type entry struct {
	tool      Tool
	name      string
	arguments *Validator
}

// NewSet returns a set of the tools, each with its parameter schema compiled once and for all. The error wraps
// [ErrDuplicate] or [ErrSchema] and names the tool.
func NewSet(list ...Tool) (*Set, error) {
	var s Set
	for _, t := range list {
		schema := t.Schema()
		v, err := NewValidator(schema.Parameters)
		if err != nil {
			return nil, fmt.Errorf("tool %q: %w", schema.Name, err)
		}
		s.sorted = append(s.sorted, entry{tool: t, name: schema.Name, arguments: v})
	}
	slices.SortFunc(s.sorted, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	for i := 1; i < len(s.sorted); i++ {
		if n := s.sorted[i].name; n == s.sorted[i-1].name {
			return nil, fmt.Errorf("%w: %q", ErrDuplicate, n)
		}
	}
	return &s, nil
}

// Schemas returns the schemas of the named tools, all of them when there are no names, sorted by name in byte order.
// Names without a tool are left out: the worker that has the tool may come back.
func (s *Set) Schemas(names []string) []events.Tool {
	var out []events.Tool
	for _, e := range s.sorted {
		if len(names) == 0 || slices.Contains(names, e.name) {
			out = append(out, e.tool.Schema())
		}
	}
	return out
}

// Lookup returns the tool of that name.
func (s *Set) Lookup(name string) (Tool, bool) {
	if i, ok := s.find(name); ok {
		return s.sorted[i].tool, true
	}
	return nil, false
}

// find returns where the tool of that name is.
func (s *Set) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, name, func(e entry, name string) int { return cmp.Compare(e.name, name) })
}
