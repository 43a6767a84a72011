package tools

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/refold-dev/refold/pkg/events"
)

type write struct{ w *Workspace }

func (*write) Schema() events.Tool {
	return events.Tool{
		Name:        "write",
		Description: "Write a file of the workspace: its whole content, in place of what it held. Directories that are missing are made.",
		Parameters:  `{"type":"object","properties":{"path":{"type":"string","minLength":1,"description":"File, relative to the workspace."},"content":{"type":"string","description":"What the file holds from then on."}},"required":["path","content"],"additionalProperties":false}`,
	}
}

// Safety is that of a tool whose calls change what others see.
func (*write) Safety() Safety { return Safety{} }

func (t *write) Run(ctx context.Context, raw string) Result {
	var args struct {
		Path    octets  `json:"path"`
		Content *octets `json:"content"`
	}
	if res := arguments(raw, &args); res != nil {
		return *res
	}
	if args.Path == "" || args.Content == nil {
		return Failed(events.ToolBadArguments, "path and content must be given")
	}
	name := clean(args.Path)
	mode := fs.FileMode(0o644)
	switch info, err := t.w.root.Lstat(name); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return pathFailure(name, err)
	case !info.Mode().IsRegular(): // a link would be replaced, not what it leads to
		return Failed(events.ToolFailed, "%s: not a regular file", name)
	case info.Mode()&0o200 == 0: // replacing it would get past that
		return Failed(events.ToolFailed, "%s: the file is read-only", name)
	default:
		mode = info.Mode().Perm()
	}
	if err := t.w.replace(ctx, name, string(*args.Content), mode); err != nil {
		return pathFailure(name, err)
	}
	return Result{Output: fmt.Appendf(nil, "Wrote %d bytes to %s", len(*args.Content), name)}
}

// replace makes content the file of that name and mode. Whoever reads it, then or after a crash, finds the old content
// or the new one, whole. A crash may leave a file .refold-*.tmp beside it. It gives up until the last moment when ctx
// ends.
func (w *Workspace) replace(ctx context.Context, name, content string, mode fs.FileMode) (err error) {
	dir := path.Dir(name)
	if err := w.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp := path.Join(dir, ".refold-"+rand.Text()+".tmp")
	f, err := w.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = w.root.Remove(temp) // the first error is the one to tell
		}
	}()
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close(), ctx.Err()) // past the umask: an old file keeps its mode
	if err != nil {
		return err
	}
	if err := w.root.Rename(temp, name); err != nil {
		return err
	}
	return w.syncDir(dir)
}

// syncDir makes the names in a directory outlive a crash.
func (w *Workspace) syncDir(dir string) error {
	d, err := w.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
