package codec_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/refold-dev/refold/pkg/codec"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold/foldtest"
)

const formatPage = "../../docs/format/codec-deepseek-chat-1.md"

// examples returns the bodies that the format's page shows, which must have the length and the digest that it says.
func examples(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(formatPage)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, e := range regexp.MustCompile("(?s)body of (\\d+) bytes:\n\n```json\n([^\n]*)\n```\n\nSHA-256: `([0-9a-f]*)`").FindAllSubmatch(page, -1) {
		sum := sha256.Sum256(e[2])
		if hex.EncodeToString(sum[:]) != string(e[3]) || fmt.Sprint(len(e[2])) != string(e[1]) {
			t.Errorf("the page's body has %d bytes and SHA-256 %x, it says %s and %s", len(e[2]), sum, e[1], e[3])
		}
		bodies = append(bodies, string(e[2]))
	}
	if len(bodies) != 2 {
		t.Fatalf("%d examples on the page", len(bodies))
	}
	return bodies
}

// TestFormatPageExample builds the request of the format's page.
func TestFormatPageExample(t *testing.T) {
	page, err := os.ReadFile(formatPage)
	if err != nil {
		t.Fatal(err)
	}
	header := events.Header{
		Config: events.Config{
			Provider: "deepseek", Model: "deepseek-chat", ReasoningEffort: "high", MaxTokens: 4096, Temperature: "0.7",
		},
		System: "Answer in one line.",
		Tools: []events.Tool{{
			Name: "read", Description: "Read a file.", Parameters: `{"type":"object", "properties":{"path":{"type":"string"}}}`,
		}},
	}
	l := foldtest.New()
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.User("What does hello.txt say?")
	l.Header(header)
	l.Reply(events.FinishToolCalls, foldtest.ReasoningBlock(0, "I read it."),
		foldtest.CallBlock(1, "call_1", "read", `{"path": "hello.txt"}`))
	l.ToolCall()
	l.ToolResult(events.Text("Grüß Gott <😀\n"))

	_, payload, err := l.Build(&events.RequestHeader{Header: header, Reason: events.HeaderChange})
	if err != nil {
		t.Fatal(err)
	}
	if shown := regexp.MustCompile("(?s)The header\n\n```json\n([^\n]*)\n```").FindSubmatch(page); shown == nil ||
		!bytes.Contains(payload, append([]byte(`"header":`), shown[1]...)) {
		t.Errorf("the page shows the header %s, the event is %s", shown, payload)
	}
	request, err := l.State.Request()
	if err != nil {
		t.Fatal(err)
	}
	body := build(t, newBuilder(t, codec.Options{}), &request, l.Objects)
	if want := examples(t)[0]; string(body.Bytes()) != want {
		t.Errorf("the body is\n%s\nthe page says\n%s", body.Bytes(), want)
	}
}

// TestFormatPageImages builds the request with images of the format's page.
func TestFormatPageImages(t *testing.T) {
	l := foldtest.New()
	a, b, c := picture(l, "a"), picture(l, "b"), picture(l, "c")
	l.Begin()
	l.TurnStart()
	l.StepStart()
	l.UserBlocks(events.Text("Which is it?"), a, b)
	l.Header(events.Header{Config: events.Config{Provider: "deepseek", Model: "m"}})
	show(l, file(a, "A:", "file-1"), placeholder(b, "[B]"), inline(c, "", l.Object([]byte{0, 0xff, 0x10}, png)))
	l.Reply(events.FinishToolCalls, foldtest.CallBlock(0, "c1", "shoot", "{}"), foldtest.CallBlock(1, "c2", "shoot", "{}"))
	l.ToolCall()
	l.ToolResult(events.Text("first"), a)
	l.ToolCall()
	l.ToolResult(c, b)
	body := build(t, newBuilder(t, codec.Options{}), request(t, l), l.Objects)
	if want := examples(t)[1]; string(body.Bytes()) != want {
		t.Errorf("the body is\n%s\nthe page says\n%s", body.Bytes(), want)
	}
}
