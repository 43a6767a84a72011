// Package tools holds the tools that a worker offers to models, behind one small interface.
package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
)

// Tool is one tool. Implementations are safe for concurrent use.
type Tool interface {
	// Schema returns what the model is shown. It MUST NOT change while the tool is registered: a change breaks the
	// provider's prompt cache.
	Schema() events.Tool
	// Safety says when the tool may run.
	Safety() Safety
	// Run executes one call with the argument string exactly as the model wrote it. A failure that the model should
	// read about is part of the result. Run returns soon after ctx ends.
	Run(ctx context.Context, arguments string) Result
}

// Safety is what a worker may do with a tool's calls.
type Safety struct {
	Parallel bool // may run beside other parallel tools
	ReadOnly bool // running it again changes nothing: a call whose outcome a crash lost is simply repeated
}

// Result is a tool's answer.
type Result struct {
	Output []byte           // what the model reads, byte for byte
	Error  events.ToolError // zero: success
}

// Failed returns the result of a call that did not succeed, whose text the model reads.
func Failed(code events.ToolErrorCode, format string, args ...any) Result {
	text := fmt.Sprintf(format, args...)
	return Result{Output: []byte("Error: " + text), Error: events.ToolError{Code: code, Message: text}}
}

// ErrDuplicate is wrapped by the error of [NewSet] for two tools of one name.
var ErrDuplicate = errors.New("two tools have the same name")

// Set is a fixed choice of tools.
type Set struct{ sorted []Tool }

// NewSet returns a set of the tools. The error wraps [ErrDuplicate].
func NewSet(list ...Tool) (*Set, error) {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b Tool) int { return cmp.Compare(a.Schema().Name, b.Schema().Name) })
	for i := 1; i < len(sorted); i++ {
		if n := sorted[i].Schema().Name; n == sorted[i-1].Schema().Name {
			return nil, fmt.Errorf("%w: %q", ErrDuplicate, n)
		}
	}
	return &Set{sorted: sorted}, nil
}

// Schemas returns the schemas of the named tools, all of them when there are no names, sorted by name in byte order.
// Names without a tool are left out: the worker that has the tool may come back.
func (s *Set) Schemas(names []string) []events.Tool {
	var out []events.Tool
	for _, t := range s.sorted {
		if schema := t.Schema(); len(names) == 0 || slices.Contains(names, schema.Name) {
			out = append(out, schema)
		}
	}
	return out
}

// Lookup returns the tool of that name.
func (s *Set) Lookup(name string) (Tool, bool) {
	for _, t := range s.sorted {
		if t.Schema().Name == name {
			return t, true
		}
	}
	return nil, false
}
