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

// TestFormatPageExample builds the request of the format's page.
func TestFormatPageExample(t *testing.T) {
	page, err := os.ReadFile(formatPage)
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)body of (\\d+) bytes:\n\n```json\n([^\n]*)\n```\n\nSHA-256: `([0-9a-f]*)`").FindSubmatch(page)
	if example == nil {
		t.Fatal("no example on the page")
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
	if !bytes.Equal(body.Bytes(), example[2]) {
		t.Errorf("the body is\n%s\nthe page says\n%s", body.Bytes(), example[2])
	}
	sum := sha256.Sum256(example[2])
	if hex.EncodeToString(sum[:]) != string(example[3]) || fmt.Sprint(len(example[2])) != string(example[1]) {
		t.Errorf("the page's body has %d bytes and SHA-256 %x, it says %s and %s", len(example[2]), sum, example[1], example[3])
	}
}
