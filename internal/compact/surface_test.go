package compact_test

import (
	"fmt"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/refold-dev/refold/internal/compact"
	"github.com/refold-dev/refold/pkg/events"
)

func user(seq uint64, text string) compact.Node {
	return compact.Node{Seq: seq, Message: &events.Message{
		ID: fmt.Sprint("u", seq), Role: events.RoleUser, Source: events.Source{Kind: events.SourceUser},
		Content: []events.Block{events.Text(text)},
	}}
}

func summary(seq uint64, text string) compact.Node {
	n := user(seq, text)
	n.Message.Source = events.Source{Kind: events.SourcePlugin, Plugin: compact.Plugin, CompactionID: fmt.Sprint("c", seq)}
	content, err := compact.Frame(n.Message.Content)
	if err != nil {
		panic(err)
	}
	n.Message.Content = content
	return n
}

// assistant returns an answer with a text, if it is not empty, and calls with the ids.
func assistant(seq uint64, text string, calls ...string) compact.Node {
	m := &events.Message{ID: fmt.Sprint("a", seq), Role: events.RoleAssistant, Source: events.Source{Kind: events.SourceModel}}
	if text != "" {
		m.Content = append(m.Content, events.Text(text))
	}
	for _, id := range calls {
		m.Content = append(m.Content, events.Block{Type: events.BlockToolCall, ID: id, Name: "read", Arguments: `{"n":1}`})
	}
	return compact.Node{Seq: seq, Message: m}
}

func result(seq uint64, call string, content ...events.Block) compact.Node {
	return compact.Node{Seq: seq, Message: &events.Message{
		ID: fmt.Sprint("r", seq), Role: events.RoleUser, Source: events.Source{Kind: events.SourceTool, CallID: call},
		Content: []events.Block{{Type: events.BlockToolResult, ToolCallID: call, Content: content}},
	}}
}

func output(seq uint64, call, text string) compact.Node { return result(seq, call, events.Text(text)) }

func header(system string, tools ...events.Tool) *events.Header {
	return &events.Header{Config: events.Config{Provider: "p", Model: "m"}, System: system, Tools: tools}
}

// words returns a text of about n tokens.
func words(n int) string { return strings.Repeat("word", n) }

func surface(nodes ...compact.Node) *compact.Meter {
	return compact.NewMeter(nodes, nil, compact.Anchor{})
}

// shorten is a pruner that cuts bytes of texts in ASCII.
func shorten() compact.Pruner {
	return compact.Pruner{Shorten: func(text string, head, tail int) (string, bool) {
		return text[:head] + "[cut]" + text[len(text)-tail:], true
	}}
}

// drawNodes draws a surface as a log could have it, and the sequences of the prompts in it. It may end anywhere,
// between a call and its result too.
func drawNodes(t *rapid.T, first uint64) (nodes []compact.Node, prompts []uint64) {
	seq := first
	next := func() uint64 { seq++; return seq }
	size := rapid.IntRange(1, 400)
	if rapid.Bool().Draw(t, "summary") {
		nodes = append(nodes, summary(next(), words(size.Draw(t, "size"))))
	}
	for range rapid.IntRange(0, 6).Draw(t, "turns") {
		prompts = append(prompts, next())
		nodes = append(nodes, user(seq, words(size.Draw(t, "size"))))
		for step := range rapid.IntRange(0, 4).Draw(t, "steps") {
			calls := make([]string, rapid.IntRange(0, 3).Draw(t, "calls"))
			for i := range calls {
				calls[i] = fmt.Sprintf("call%d.%d", step, i) // the same ids in every turn, as some providers give
			}
			text := ""
			if rapid.Bool().Draw(t, "text") {
				text = words(size.Draw(t, "size"))
			}
			a := assistant(next(), text, calls...)
			if len(a.Message.Content) == 0 {
				a.Message = nil
			}
			nodes = append(nodes, a)
			for _, id := range calls {
				nodes = append(nodes, output(next(), id, words(size.Draw(t, "size"))))
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
		nodes = nodes[:rapid.IntRange(0, len(nodes)).Draw(t, "length")]
	}
	prompts = slices.DeleteFunc(prompts, func(seq uint64) bool {
		return !slices.ContainsFunc(nodes, func(n compact.Node) bool { return n.Seq == seq })
	})
	return nodes, prompts
}

// balanced says it the long way round: every call in the run has a result behind it in the run, and every result a
// call before it.
func balanced(run []compact.Node) bool {
	type block struct {
		events.Block
		used bool
	}
	var all []block
	for _, n := range run {
		if n.Message != nil {
			for _, b := range n.Message.Content {
				all = append(all, block{Block: b})
			}
		}
	}
	for i := range all {
		if all[i].Type != events.BlockToolResult {
			continue
		}
		for k := 0; k < i && !all[i].used; k++ {
			if all[k].Type == events.BlockToolCall && all[k].ID == all[i].ToolCallID && !all[k].used {
				all[i].used, all[k].used = true, true
			}
		}
	}
	for _, b := range all {
		if (b.Type == events.BlockToolCall || b.Type == events.BlockToolResult) && !b.used {
			return false
		}
	}
	return true
}

func isResult(n compact.Node) bool {
	return n.Message != nil && len(n.Message.Content) > 0 && n.Message.Content[0].Type == events.BlockToolResult
}

func isSummary(n compact.Node) bool {
	return n.Message != nil && n.Message.Source.CompactionID != ""
}
