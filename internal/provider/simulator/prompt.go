package simulator

import (
	"strconv"
)

// bytesPerToken is the size of a token. The tokenizer is as simple as can be: a prompt's or an answer's bytes in
// groups of four, the last one possibly shorter. What matters is that it is deterministic and that a longer text
// begins with the tokens of a shorter one that it extends.
const bytesPerToken = 4

func tokens(n int) int64 { return int64((n + bytesPerToken - 1) / bytesPerToken) }

// promptOf returns what the model would read: the model's name, the system prompt, the tools byte for byte, the other
// messages in order and the opening of the answer. An answer rendered by [appendAnswer] after it is the beginning of
// the next prompt, if the client sends back what it got, reasoning included.
func promptOf(r *chatRequest) []byte {
	p := append([]byte("<|model|>"), r.model...)
	rest := r.messages
	if rest[0].role == "system" {
		p = appendMessage(p, &rest[0])
		rest = rest[1:]
	}
	for _, t := range r.tools {
		p = append(append(p, "<|tool_schema|>"...), t.raw...)
	}
	for i := range rest {
		p = appendMessage(p, &rest[i])
	}
	return append(p, "<|assistant|>"...)
}

func appendMessage(p []byte, m *message) []byte {
	p = append(append(append(p, "<|"...), m.role...), "|>"...)
	if m.role == "tool" {
		p = append(strconv.AppendQuote(p, m.callID), ' ')
	}
	p = appendAnswer(p, m)
	return p
}

// appendAnswer renders what stands in a message, its end included.
func appendAnswer(p []byte, m *message) []byte {
	if m.reasoning != "" {
		p = append(append(append(p, "<think>"...), m.reasoning...), "</think>"...)
	}
	from := 0
	for i := range m.images {
		p = append(p, m.content[from:m.images[i].at]...)
		p, from = appendImage(p, &m.images[i]), m.images[i].at
	}
	p = append(p, m.content[from:]...)
	for _, c := range m.calls {
		p = append(p, "<|call|>"...)
		p = strconv.AppendQuote(p, c.id)
		p = append(append(p, ' '), c.name...)
		p = append(append(p, ' '), c.arguments...)
	}
	return append(p, "<|end|>"...)
}
