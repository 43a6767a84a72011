package codec

import (
	"errors"
	"testing"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// No event of today's log holds the messages below.

func result(id, text string) events.Block {
	return events.Block{Type: events.BlockToolResult, ToolCallID: id, Content: []events.Block{events.Text(text)}}
}

// message returns the wire form of a message.
func message(m *events.Message, first bool) ([]byte, error) {
	w := &deepSeekWriter{src: new(objects.Set), first: first}
	return w.add(nil, m)
}

func TestUserMessageOfTextAndResults(t *testing.T) {
	for _, c := range []struct {
		content []events.Block
		first   bool
		want    string
	}{
		{nil, true, `{"role":"user","content":""}`},
		{[]events.Block{events.Text("")}, false, `,{"role":"user","content":""}`},
		{[]events.Block{result("a", "1")}, true, `{"role":"tool","tool_call_id":"a","content":"1"}`},
		{
			[]events.Block{result("a", "1"), events.Text("x"), result("b", ""), events.Text("y")},
			true,
			`{"role":"user","content":"xy"},{"role":"tool","tool_call_id":"a","content":"1"},` +
				`{"role":"tool","tool_call_id":"b","content":"(no output)"}`,
		},
	} {
		m := events.Message{ID: "m", Role: events.RoleUser, Content: c.content}
		got, err := message(&m, c.first)
		if err != nil || string(got) != c.want {
			t.Errorf("message\n %s, %v\nwant\n %s", got, err, c.want)
		}
	}
}

func TestUnsupported(t *testing.T) {
	nested := result("a", "")
	nested.Content = []events.Block{{Type: events.BlockReasoning, Text: "hm"}}
	for name, m := range map[string]events.Message{
		"a role":                {Role: "system", Content: []events.Block{events.Text("x")}},
		"no role":               {Content: []events.Block{events.Text("x")}},
		"a call of the user":    {Role: events.RoleUser, Content: []events.Block{events.Text("x"), {Type: events.BlockToolCall, ID: "a"}}},
		"thoughts of the user":  {Role: events.RoleUser, Content: []events.Block{{Type: events.BlockReasoning}}},
		"a result of the model": {Role: events.RoleAssistant, Content: []events.Block{result("a", "x")}},
		"a block of the model":  {Role: events.RoleAssistant, Content: []events.Block{events.Text("x"), {Type: events.BlockImage}}},
		"thoughts of a tool":    {Role: events.RoleUser, Content: []events.Block{nested}},
	} {
		if got, err := message(&m, true); !errors.Is(err, ErrUnsupported) || got != nil {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

// TestScratch checks that a builder without bytes gives long bodies away piece by piece.
func TestScratch(t *testing.T) {
	a := appender{digestOnly: true, sum: newSum()}
	for range 3 {
		a.buf = append(a.buf, make([]byte, 8*scratchBytes)...)
		a.settle()
		if len(a.buf) != 0 || cap(a.buf) > 4*scratchBytes {
			t.Errorf("%d bytes kept of %d", len(a.buf), cap(a.buf))
		}
	}
	if a.length != 24*scratchBytes {
		t.Errorf("%d bytes hashed", a.length)
	}
}
