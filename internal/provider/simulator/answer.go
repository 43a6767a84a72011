package simulator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
	"github.com/refold-dev/refold/pkg/events"
)

// holds reports whether the condition holds, Nth and Times left aside.
func (c *Condition) holds(r *chatRequest) bool {
	text, results := r.lastUser()
	if !strings.Contains(text, string(c.Contains)) || c.Model != "" && c.Model != r.model ||
		c.ToolResults != nil && *c.ToolResults != results || c.Images != nil && *c.Images != r.countImages() {
		return false
	}
	return r.says(true, string(c.System)) && r.says(false, string(c.Anywhere))
}

// says reports whether a text stands in a system message, or in a message of another role. An empty text always does.
func (r *chatRequest) says(system bool, text string) bool {
	return text == "" || slices.ContainsFunc(r.messages, func(m message) bool {
		return (m.role == "system") == system && strings.Contains(m.content, text)
	})
}

// match names a rule's matches in a session.
type match struct {
	rule    int
	session string
}

// answerTo returns the answer to a request of a session: that of the first rule that holds, or a built-in one. Every
// rule counts its matches, those behind the one that answers too.
func (s *Simulator) answerTo(r *chatRequest, session string) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first *Rule
	for i := range s.cfg.Script.Rules {
		rule := &s.cfg.Script.Rules[i]
		if !rule.When.holds(r) {
			continue
		}
		if rule.When.Nth > 0 || rule.When.Times > 0 {
			m := match{i, session}
			s.matches[m]++
			if !counted(rule.When.Nth, rule.When.Times, s.matches[m]) {
				continue
			}
		}
		if first == nil {
			first = rule
		}
	}
	if first == nil {
		return builtIn(r)
	}
	return first.Answer
}

// requestWords is how many words at a message's start may ask for a tool. A long text has every word somewhere.
const requestWords = 8

// builtIn answers from the request alone, in short. A message that begins by asking to list or read something gets a
// call of a tool first, when tools are offered; tool results are repeated; anything else is echoed.
func builtIn(r *chatRequest) Answer {
	text, results := r.lastUser()
	if results > 0 {
		var last string
		for _, m := range slices.Backward(r.messages) {
			if m.role == "tool" {
				last = m.content
				break
			}
		}
		return Answer{Text: lossless.Text(fmt.Sprintf("After %d tool result(s), the last one begins: %s", results, head(last, 160)))}
	}
	words := strings.Fields(strings.ToLower(text))
	words = words[:min(len(words), requestWords)]
	for _, verb := range [...]string{"list", "read"} {
		for _, w := range words {
			if strings.Trim(w, ".,;:!?'\"") == verb && len(r.tools) > 0 {
				t := pick(r.tools, verb)
				return Answer{
					Reasoning: lossless.Text("The user wants me to " + verb + " something; " + t.name + " can do that."),
					Calls:     []Call{{Name: t.name, Arguments: lossless.Text(argumentsFor(t, text))}},
				}
			}
		}
	}
	return Answer{
		Reasoning: "A plain question: answer it directly.",
		Text:      lossless.Text(fmt.Sprintf("You said %q. That was message %d of this conversation.", head(text, 160), len(r.messages))),
	}
}

// pick returns the first tool with the word in its name, else the first one.
func pick(tools []tool, word string) *tool {
	for i := range tools {
		if strings.Contains(strings.ToLower(tools[i].name), word) {
			return &tools[i]
		}
	}
	return &tools[0]
}

// argumentsFor fills a tool's required parameters: the first word of the message that looks like a path for texts,
// one for numbers, true for booleans.
func argumentsFor(t *tool, text string) string {
	path := "."
	for w := range strings.FieldsSeq(text) {
		w = strings.Trim(w, ",;:!?'\"`()")
		w = strings.TrimSuffix(w, ".")
		if strings.ContainsAny(w, "/.") && w != "" {
			path = w
			break
		}
	}
	required, kinds := schemaOf(t.parameters)
	out := []byte{'{'}
	for i, name := range required {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(events.AppendQuote(out, name), ':')
		switch kinds[name] {
		case "integer", "number":
			out = append(out, '1')
		case "boolean":
			out = append(out, "true"...)
		case "array":
			out = append(out, "[]"...)
		case "object":
			out = append(out, "{}"...)
		default:
			out = events.AppendQuote(out, path)
		}
	}
	return string(append(out, '}'))
}

// schemaOf returns the required properties of a schema in order and the types of all. What it does not understand it
// leaves out.
func schemaOf(schema jsontext.Value) (required []string, kinds map[string]string) {
	kinds = make(map[string]string)
	dec := lossless.NewDecoder(schema)
	_ = lossless.Object(dec, func(name string) error { // a schema that cannot be read has no required properties
		switch name {
		case "required":
			return lossless.Array(dec, func(int) error {
				s, err := lossless.String(dec)
				required = append(required, s)
				return err
			})
		case "properties":
			return lossless.Object(dec, func(property string) error {
				return lossless.Object(dec, func(name string) error {
					if name == "type" && dec.PeekKind() == '"' {
						s, err := lossless.String(dec)
						kinds[property] = s
						return err
					}
					return dec.SkipValue()
				})
			})
		}
		return dec.SkipValue()
	})
	return required, kinds
}

// head returns at most the first n code points of text.
func head(text string, n int) string {
	rest := text
	for ; n > 0 && rest != ""; n-- {
		rest = rest[codePoint(rest):]
	}
	return text[:len(text)-len(rest)]
}

// message returns the answer as the message that the client will send back, its calls with their ids.
func (a *Answer) message(body []byte) message {
	m := message{role: "assistant", content: string(a.Text), hasContent: true, reasoning: string(a.Reasoning)}
	sum := sha256.Sum256(body)
	for i, c := range a.Calls {
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%s_%d", hex.EncodeToString(sum[:6]), i)
		}
		m.calls = append(m.calls, toolCall{id: c.ID, name: c.Name, arguments: string(c.Arguments)})
	}
	return m
}

// finish returns the finish_reason.
func (a *Answer) finish() string {
	switch {
	case a.Finish != "":
		return a.Finish
	case len(a.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}
