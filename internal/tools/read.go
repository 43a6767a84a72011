package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/refold-dev/refold/pkg/events"
)

type read struct{ w *Workspace }

func (*read) Schema() events.Tool {
	return events.Tool{
		Name: "read",
		Description: fmt.Sprintf("Read a file of the workspace. At most %d bytes a call; use offset to go on. "+
			"A picture (PNG, JPEG, GIF, WebP) read from its start is shown.", MaxReadBytes),
		Parameters: `{"type":"object","properties":{"path":{"type":"string","minLength":1,"description":"File, relative to the workspace."},"offset":{"type":"integer","minimum":0,"description":"First byte to read. Default 0."}},"required":["path"],"additionalProperties":false}`,
	}
}

// Safety leaves room for a whole part, each byte of which may be one that is not UTF-8 and has three bytes of text, and
// for the line after it.
func (*read) Safety() Safety {
	return Safety{Parallel: true, ReadOnly: true, MaxOutput: 3*MaxReadBytes + 128}
}

func (r *read) Run(ctx context.Context, raw string) Result {
	var args struct {
		Path   octets `json:"path"`
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
	part, err := readAt(f, args.Offset, MaxReadBytes+utf8.UTFMax)
	if err != nil {
		return pathFailure(name, err)
	}
	if err := ctx.Err(); err != nil {
		return Failed(events.ToolFailed, "interrupted: %v", err)
	}
	if format := pictureFormat(part); format != "" && args.Offset == 0 {
		return picture(f, name, format, info.Size())
	}
	n, _ := boundaries(string(part), MaxReadBytes, MaxReadBytes)
	out := part[:n:n]
	if rest := info.Size() - args.Offset - int64(n); rest > 0 {
		out = fmt.Appendf(out, "\n[%d more bytes: go on with offset %d]", rest, args.Offset+int64(n))
	}
	return Result{Output: out}
}

// readAt reads at most limit bytes from offset on; fewer are left at the end of the file.
func readAt(f *os.File, offset, limit int64) ([]byte, error) {
	buf := make([]byte, limit)
	n, err := io.ReadFull(io.NewSectionReader(f, offset, limit), buf)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return buf[:n], err
}

// pictureFormat says what a file that starts so shows, "" for none that models take.
func pictureFormat(start []byte) string {
	s := string(start[:min(len(start), 12)])
	switch {
	case strings.HasPrefix(s, "\x89PNG\r\n\x1a\n"):
		return "PNG"
	case strings.HasPrefix(s, "\xff\xd8\xff"):
		return "JPEG"
	case strings.HasPrefix(s, "GIF87a"), strings.HasPrefix(s, "GIF89a"):
		return "GIF"
	case len(s) == 12 && s[:4] == "RIFF" && s[8:] == "WEBP":
		return "WebP"
	}
	return ""
}

// picture answers with the whole file of that size.
func picture(f *os.File, name, format string, size int64) Result {
	if size > MaxImageBytes {
		return Failed(events.ToolFailed, "%s: a %s picture of %d bytes; at most %d can be shown", name, format, size, MaxImageBytes)
	}
	data, err := readAt(f, 0, size)
	if err != nil {
		return pathFailure(name, err)
	}
	return Result{
		Output: fmt.Appendf(nil, "[%s picture, %d bytes]", format, len(data)),
		Images: []Image{{Data: data, Name: events.TextFromBytes([]byte(path.Base(name)))}},
	}
}
