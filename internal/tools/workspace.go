package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/refold-dev/refold/pkg/events"
)

// The limits of the workspace tools, in bytes and entries.
const (
	MaxReadBytes   = 256 << 10
	MaxListEntries = 2000
)

// Workspace is a directory that tools may look into and not leave, not even through symbolic links.
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
func (w *Workspace) Tools() []Tool { return []Tool{&list{w}, &read{w}} }

// arguments decodes a call's argument string strictly; a result that is not nil goes back to the model.
func arguments(raw string, into any) *Result {
	if strings.TrimSpace(raw) == "" {
		raw = "{}" // what models send for a call without arguments
	}
	if err := json.Unmarshal([]byte(raw), into, json.RejectUnknownMembers(true)); err != nil {
		r := Failed(events.ToolBadArguments, "the arguments are not what the schema asks for: %v", err)
		return &r
	}
	return nil
}

// clean makes a path of the model's relative to the workspace.
func clean(p string) string {
	p = strings.TrimLeft(path.Clean("/"+p), "/")
	if p == "" {
		return "."
	}
	return p
}

// pathFailure words an error of the file system for the model, without the workspace's own location.
func pathFailure(p string, err error) Result {
	reason := err
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pe.Err
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
		Path string `json:"path"`
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

type read struct{ w *Workspace }

func (*read) Schema() events.Tool {
	return events.Tool{
		Name:        "read",
		Description: fmt.Sprintf("Read a file of the workspace. At most %d bytes a call; use offset to go on.", MaxReadBytes),
		Parameters:  `{"type":"object","properties":{"path":{"type":"string","description":"File, relative to the workspace."},"offset":{"type":"integer","minimum":0,"description":"First byte to read. Default 0."}},"required":["path"],"additionalProperties":false}`,
	}
}

func (*read) Safety() Safety { return Safety{Parallel: true, ReadOnly: true} }

func (r *read) Run(ctx context.Context, raw string) Result {
	var args struct {
		Path   string `json:"path"`
		Offset int64  `json:"offset"`
	}
	if res := arguments(raw, &args); res != nil {
		return *res
	}
	if args.Path == "" || args.Offset < 0 {
		return Failed(events.ToolBadArguments, "path must be given, and offset must not be negative")
	}
	name := clean(args.Path)
	info, err := r.w.root.Stat(name)
	if err != nil {
		return pathFailure(name, err)
	}
	if !info.Mode().IsRegular() { // opening a pipe or a device could block for ever
		return Failed(events.ToolFailed, "%s: not a regular file", name)
	}
	f, err := r.w.root.Open(name)
	if err != nil {
		return pathFailure(name, err)
	}
	defer func() { _ = f.Close() }() // only read from
	buf := make([]byte, MaxReadBytes)
	n, err := io.ReadFull(io.NewSectionReader(f, args.Offset, MaxReadBytes), buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return pathFailure(name, err)
	}
	if err := ctx.Err(); err != nil {
		return Failed(events.ToolFailed, "interrupted: %v", err)
	}
	out := buf[:n:n]
	if rest := info.Size() - args.Offset - int64(n); rest > 0 {
		out = fmt.Appendf(out, "\n[%d more bytes: go on with offset %d]", rest, args.Offset+int64(n))
	}
	return Result{Output: out}
}
