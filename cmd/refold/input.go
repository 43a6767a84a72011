package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/files"
	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/internal/jetstream"
	"github.com/refold-dev/refold/internal/program"
	"github.com/refold-dev/refold/pkg/eventlog"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// maxInputBytes bounds what is read for one input.
const maxInputBytes = 32 << 20

func readText(cmd *cobra.Command, path string) (string, error) {
	read := func() ([]byte, error) { return files.Read(path, maxInputBytes) }
	if path == "-" {
		read = func() ([]byte, error) { return files.ReadFrom(cmd.InOrStdin(), "standard input", maxInputBytes) }
	}
	b, err := read()
	return events.TextFromBytes(b), err
}

// messageFlags are the flags of a message for the model.
type messageFlags struct {
	file   string
	images []string
}

func (m *messageFlags) flags(cmd *cobra.Command, what string) {
	f := cmd.Flags()
	f.StringVar(&m.file, "file", "", "file that holds "+what+"; - for standard input")
	f.StringArrayVar(&m.images, "image", nil, "PNG, JPEG, GIF or WebP file to show after the text; may be repeated")
}

// given reports whether there is a message at all.
func (m *messageFlags) given(args []string) bool {
	return len(args) > 0 || m.file != "" || len(m.images) > 0
}

var (
	errEmptyMessage = errors.New("the message is empty: give a text, --file with one, or --image")
	errTwoTexts     = errors.New("give the text either as an argument, with --prompt or with --file")
)

// message puts what the arguments and flags say into an input: the text first, then the images.
func (m *messageFlags) message(cmd *cobra.Command, args []string, in *events.Input) error {
	text := events.TextFromBytes([]byte(strings.Join(args, " ")))
	if m.file != "" {
		if len(args) > 0 {
			return errTwoTexts
		}
		var err error
		if text, err = readText(cmd, m.file); err != nil {
			return fmt.Errorf("--file: %w: give a file that can be read, or - for standard input", err)
		}
	}
	if text != "" {
		in.Content = append(in.Content, events.Text(text))
	} else if m.file != "" || len(args) > 0 || len(m.images) == 0 {
		return errEmptyMessage
	}
	for _, path := range m.images {
		block, data, err := readImage(path)
		if err != nil {
			return fmt.Errorf("--image %s: %w", path, err)
		}
		in.Content, in.Attachments = append(in.Content, block), append(in.Attachments, data)
	}
	return nil
}

// readImage returns the block for an image file, and its bytes.
func readImage(path string) (events.Block, []byte, error) {
	data, err := files.Read(path, images.DefaultMaxBytes)
	if err != nil {
		return events.Block{}, nil, unwrapped(err)
	}
	info, err := images.Inspect(data, images.Limits{})
	if err != nil {
		return events.Block{}, nil, err
	}
	return events.Block{
		Type:   events.BlockImage,
		Object: objects.Ref{Digest: objects.Sum(data), Bytes: int64(len(data)), MediaType: info.MediaType},
		Width:  int64(info.Width), Height: int64(info.Height), Name: events.TextFromBytes([]byte(filepath.Base(path))),
	}, data, nil
}

// unwrapped returns an error of the file system without the path, which stands before it.
func unwrapped(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Err
	}
	return err
}

// publish sends an input and tells its session; with wait it waits so long for what the input asks for. known says that
// the session is there already.
func (g *globals) publish(cmd *cobra.Command, id events.ID, in *events.Input, wait time.Duration, known bool) error {
	ctx := cmd.Context()
	client, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	return g.publishTo(ctx, cmd, client, id, in, wait, known)
}

func (g *globals) publishTo(ctx context.Context, cmd *cobra.Command, client *jetstream.Client, id events.ID, in *events.Input, wait time.Duration, known bool) error {
	var last uint64
	if known {
		var err error
		if last, err = takesInputs(ctx, client, id); err != nil {
			return err
		}
	}
	in.ID, in.Time = program.NewID(), time.Now().UnixMilli()
	payload, err := events.EncodeInput(in)
	if err != nil {
		return err
	}
	if err := fits(client, in, int64(len(payload))); err != nil {
		return err
	}
	seq, _, err := client.Inbox().Publish(ctx, id, in)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if g.json {
		err = printJSON(out, map[string]any{"session": id, "input": in.ID, "seq": seq})
	} else {
		_, err = fmt.Fprintln(out, id)
	}
	if err != nil || wait == 0 {
		return err
	}
	return g.waitFor(ctx, client, last+1, &waiter{
		session: id, claim: events.Claim{InboxSeq: seq, InputID: in.ID}, kind: in.Kind,
		say: func(text string) error { return g.say(out, text) },
		outcome: func(o events.CompactionOutcome) error {
			if g.json {
				return printJSON(out, map[string]any{"outcome": o})
			}
			_, err := fmt.Fprintln(out, o)
			return err
		},
	}, wait)
}

// fits returns an error when the server does not take messages as large as the input.
func fits(client *jetstream.Client, in *events.Input, size int64) error {
	const headerRoom = 4 << 10
	most := client.MaxPayload() - headerRoom
	switch {
	case size <= most:
		return nil
	case len(in.Attachments) > 0:
		return fmt.Errorf("the input has %d bytes with its images, the server takes %d: send a smaller image, send them one by one, or raise max_payload", size, most)
	}
	return fmt.Errorf("the input has %d bytes, the server takes %d: shorten it, or raise max_payload", size, most)
}

// takesInputs returns an error when it can be told that the session does not exist, or that it is closed; otherwise the
// sequence of its last event, 0 when that cannot be told. Credentials that may only publish cannot tell anything.
func takesInputs(ctx context.Context, client *jetstream.Client, id events.ID) (uint64, error) {
	log, err := client.Logs().Open(ctx, id)
	if errors.Is(err, eventlog.ErrNotFound) {
		if _, waiting, nextErr := client.Inbox().Next(ctx, id, 0); nextErr == nil && !waiting {
			return 0, fmt.Errorf("%w (refold session list shows those that exist)", err)
		}
		return 0, nil
	}
	if err != nil {
		return 0, nil // the publish will tell
	}
	last, err := log.Last(ctx)
	if err != nil || last == 0 {
		return 0, nil // as above
	}
	for m, err := range log.Read(ctx, last) {
		if err != nil {
			break
		}
		if e, err := m.Event(); err == nil && e.Type() == events.TypeSessionClosed {
			return 0, fmt.Errorf("session %s is closed and takes no more inputs: refold session new makes another", id)
		}
	}
	return last, nil
}
