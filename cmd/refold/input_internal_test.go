package main

import (
	"bytes"
	"image"
	"image/gif"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/refold-dev/refold/internal/images"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// parseMessage returns the input that the flags and arguments of a message command give.
func parseMessage(t *testing.T, args ...string) (events.Input, error) {
	t.Helper()
	var m messageFlags
	in := events.Input{Kind: events.InputPrompt}
	cmd := &cobra.Command{Use: "x"}
	m.flags(cmd, "the text")
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return in, m.message(cmd, cmd.Flags().Args(), &in)
}

func writeFile(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var first, second bytes.Buffer
	if err := png.Encode(&first, image.NewRGBA(image.Rect(0, 0, 3, 2))); err != nil {
		t.Fatal(err)
	}
	if err := gif.Encode(&second, image.NewRGBA(image.Rect(0, 0, 5, 4)), nil); err != nil {
		t.Fatal(err)
	}
	a, b := writeFile(t, dir, "a.txt", first.Bytes()), writeFile(t, dir, "b\xff.gif", second.Bytes())
	in, err := parseMessage(t, "--image", a, "--image", b, "--image", a, "look", "here")
	if err != nil {
		t.Fatal(err)
	}
	want := []events.Block{
		events.Text("look here"),
		{Type: events.BlockImage, Name: "a.txt", Width: 3, Height: 2, Object: objects.Ref{Digest: objects.Sum(first.Bytes()), Bytes: int64(first.Len()), MediaType: "image/png"}},
		{Type: events.BlockImage, Name: events.TextFromBytes([]byte("b\xff.gif")), Width: 5, Height: 4, Object: objects.Ref{Digest: objects.Sum(second.Bytes()), Bytes: int64(second.Len()), MediaType: "image/gif"}},
	}
	want = append(want, want[1])
	if len(in.Content) != len(want) || len(in.Attachments) != 3 {
		t.Fatalf("%d blocks, %d attachments", len(in.Content), len(in.Attachments))
	}
	for i := range want {
		if in.Content[i].Type != want[i].Type || in.Content[i].Text != want[i].Text || in.Content[i].Name != want[i].Name ||
			in.Content[i].Object != want[i].Object || in.Content[i].Width != want[i].Width || in.Content[i].Height != want[i].Height {
			t.Errorf("block %d is %+v, want %+v", i, in.Content[i], want[i])
		}
	}
	in.ID = mine.InputID
	if _, err := events.EncodeInput(&in); err != nil { // it compares attachments and blocks
		t.Error(err)
	}
	if in, err = parseMessage(t, "--image", a); err != nil || len(in.Content) != 1 {
		t.Errorf("an image alone: %d blocks, %v", len(in.Content), err)
	}
}

func TestMessageRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var whole bytes.Buffer
	if err := png.Encode(&whole, image.NewRGBA(image.Rect(0, 0, 3, 2))); err != nil {
		t.Fatal(err)
	}
	text := writeFile(t, dir, "text", []byte("no image"))
	for _, tt := range []struct {
		name string
		args []string
		want []string // all of it in the error
	}{
		{"nothing", nil, []string{"empty"}},
		{"an empty text", []string{""}, []string{"empty"}},
		{"an empty text beside an image", []string{"--image", text, ""}, []string{"empty"}},
		{"an empty file", []string{"--file", writeFile(t, dir, "empty", nil)}, []string{"empty"}},
		{"a file and a text", []string{"--file", text, "x"}, []string{"either"}},
		{"no image", []string{"--image", text, "x"}, []string{"--image " + text, "PNG, JPEG, GIF and WebP"}},
		{"an image that is not there", []string{"--image", dir + "/none.png", "x"}, []string{"--image " + dir + "/none.png: no such file"}},
		{"a directory", []string{"--image", dir, "x"}, []string{"--image " + dir + ": is a directory"}},
		{"half an image", []string{"--image", writeFile(t, dir, "half.png", whole.Bytes()[:whole.Len()-20]), "x"}, []string{"half.png", "does not decode"}},
		{"too large an image", []string{"--image", writeFile(t, dir, "large.png", make([]byte, images.DefaultMaxBytes+1)), "x"}, []string{"large.png", "larger than 20971520 bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parseMessage(t, tt.args...)
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v, want %q in it", err, w)
				}
			}
		})
	}
}
