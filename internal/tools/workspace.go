package tools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/pkg/events"
)

// The limits of the workspace tools, in bytes and entries.
const (
	MaxReadBytes   = 256 << 10
	MaxImageBytes  = 32 << 20 // of a picture that read shows
	MaxListEntries = 2000
)

// Workspace is a directory that tools may work in and not leave, not even through symbolic links.
type Workspace struct{ root *os.Root }

// OpenWorkspace opens the directory. The caller closes the workspace when its tools are no longer used.
func OpenWorkspace(dir string) (*Workspace, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w: give a directory that exists", err)
	}
	return &Workspace{root: root}, nil
}

// Close closes the directory.
func (w *Workspace) Close() error { return w.root.Close() }

// Tools returns the workspace's tools.
func (w *Workspace) Tools() []Tool { return []Tool{&list{w}, &read{w}, &write{w}} }

// arguments decodes a call's argument string strictly; a result that is not nil goes back to the model.
func arguments(raw string, into any) *Result {
	raw = orEmpty(raw)
	if !utf8.ValidString(raw) {
		raw = shown(standIn(raw)) // lone surrogates as escapes, which [octets] reads
	}
	err := json.Unmarshal([]byte(raw), into, json.RejectUnknownMembers(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		r := Failed(events.ToolBadArguments, "the arguments are not what the schema asks for: %v", err)
		return &r
	}
	return nil
}

// octets is a string argument as the bytes that [Tool.Run] would answer for it: a lone surrogate that stands for a byte
// becomes that byte again, so that what read and list showed comes back exactly.
type octets string

// UnmarshalJSON decodes a string.
func (o *octets) UnmarshalJSON(literal []byte) error {
	s, err := events.Unquote(literal)
	if err != nil {
		return err
	}
	*o = octets(events.BytesFromText(s))
	return nil
}

// clean makes a path of the model's relative to the workspace.
func clean(p octets) string {
	name := strings.TrimLeft(path.Clean("/"+string(p)), "/")
	if name == "" {
		return "."
	}
	return name
}

// pathFailure words an error of the file system for the model, without the workspace's own location.
func pathFailure(p string, err error) Result {
	reason := err
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err
	} else if le, ok := errors.AsType[*os.LinkError](err); ok {
		reason = le.Err
	}
	return Failed(events.ToolFailed, "%s: %v", p, reason)
}

type list struct{ w *Workspace }

func (*list) Schema() events.Tool {
	return events.Tool{
		Name:        "list",
		Description: "List the entries of a directory of the workspace, sorted by name. Directories end in a slash; files show their size in bytes.",
		Parameters:  `{"type":"object","properties":{"path":{"type":"string","description":"Directory, relative to the workspace. Default: the workspace itself."}},"additionalProperties":false}`,
	}
}

func (*list) Safety() Safety { return Safety{Parallel: true, ReadOnly: true} }

func (l *list) Run(ctx context.Context, raw string) Result {
	var args struct {
		Path octets `json:"path"`
	}
	if r := arguments(raw, &args); r != nil {
		return *r
	}
	name := clean(args.Path)
	dir, err := l.w.root.Open(name)
	if err != nil {
		return pathFailure(name, err)
	}
	defer func() { _ = dir.Close() }() // only read from
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return pathFailure(name, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var out []byte
	for i, e := range entries {
		if err := ctx.Err(); err != nil {
			return Failed(events.ToolFailed, "interrupted: %v", err)
		}
		if i == MaxListEntries {
			out = fmt.Appendf(out, "[%d more entries]\n", len(entries)-i)
			break
		}
		out = append(out, e.Name()...)
		if e.IsDir() {
			out = append(out, '/')
		} else if info, err := e.Info(); err == nil {
			out = fmt.Appendf(out, "\t%d", info.Size())
		}
		out = append(out, '\n')
	}
	return Result{Output: out}
}
