package simulator

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/refold-dev/refold/internal/provider/lossless"
)

// chatRequest is what the simulator looks at of a request body. The rest must only be JSON.
type chatRequest struct {
	model    string
	messages []message
	tools    []tool
	stream   bool
}

type message struct {
	role       string
	content    string
	hasContent bool
	images     []image
	reasoning  string
	calls      []toolCall
	hasCalls   bool
	callID     string // of a tool message
}

type toolCall struct {
	id, kind, name, arguments string
	hasArguments              bool
}

type tool struct {
	name       string
	parameters jsontext.Value
	raw        jsontext.Value // the whole element of tools
}

// refusal is why a strict vendor answers 400.
type refusal struct{ message string }

func (r *refusal) Error() string { return r.message }

func refusef(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// parseRequest reads and checks a body. The error is a [*refusal].
func parseRequest(body []byte) (*chatRequest, error) {
	if !utf8.Valid(body) {
		return nil, refusef("Failed to parse the request body as JSON: not UTF-8")
	}
	r := &chatRequest{}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowInvalidUTF8(true)) // duplicate names are refused
	err := lossless.Object(dec, func(name string) error { return r.member(dec, name) })
	if err == nil {
		err = lossless.End(dec)
	}
	var ref *refusal
	switch {
	case errors.As(err, &ref):
		return nil, ref
	case err != nil:
		return nil, refusef("Failed to parse the request body as JSON: %v", err)
	}
	return r, r.validate()
}

func (r *chatRequest) member(dec *jsontext.Decoder, name string) (err error) {
	switch name {
	case "model":
		r.model, err = lossless.String(dec)
	case "messages":
		err = lossless.Array(dec, func(i int) error {
			m, err := readMessage(dec)
			r.messages = append(r.messages, m)
			return at(err, "messages[%d]", i)
		})
	case "tools":
		err = lossless.Array(dec, func(i int) error {
			t, err := readTool(dec)
			r.tools = append(r.tools, t)
			return at(err, "tools[%d]", i)
		})
	case "stream":
		var tok jsontext.Token
		if tok, err = dec.ReadToken(); err == nil {
			r.stream = tok.Kind() == 't'
		}
	case "max_tokens":
		err = number(dec, name, 1, 1<<31)
	case "temperature":
		err = number(dec, name, 0, 2)
	case "reasoning_effort":
		err = oneOf(dec, name, "low", "medium", "high", "max", "xhigh")
	case "thinking":
		err = lossless.Object(dec, func(n string) error {
			if n == "type" {
				return oneOf(dec, "thinking.type", "enabled", "disabled")
			}
			return dec.SkipValue()
		})
	case "stop":
		err = r.stop(dec)
	default:
		err = dec.SkipValue()
	}
	return at(err, "%s", name)
}

// at says where a value of the wrong type stands.
func at(err error, format string, args ...any) error {
	if errors.Is(err, lossless.ErrType) {
		return refusef("Invalid request: %s: %v", fmt.Sprintf(format, args...), err)
	}
	return err
}

func number(dec *jsontext.Decoder, name string, least, most float64) error {
	if lossless.Null(dec) {
		return nil
	}
	v, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if f, err := strconv.ParseFloat(string(v), 64); err != nil || f < least || f > most {
		return refusef("Invalid %s value, the valid range of %s is [%v, %v]", name, name, least, most)
	}
	return nil
}

func oneOf(dec *jsontext.Decoder, name string, words ...string) error {
	if lossless.Null(dec) {
		return nil
	}
	s, err := lossless.String(dec)
	if err == nil && !slices.Contains(words, s) {
		return refusef("Invalid %s value %q", name, s)
	}
	return err
}

const maxStops = 16

func (r *chatRequest) stop(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return dec.SkipValue()
	}
	return lossless.Array(dec, func(i int) error {
		if i >= maxStops {
			return refusef("Invalid stop value: more than %d", maxStops)
		}
		_, err := lossless.String(dec)
		return err
	})
}

func readMessage(dec *jsontext.Decoder) (message, error) {
	var m message
	err := lossless.Object(dec, func(name string) (err error) {
		switch name {
		case "role":
			m.role, err = lossless.String(dec)
		case "content":
			err = m.readContent(dec)
		case "reasoning_content":
			if !lossless.Null(dec) {
				m.reasoning, err = lossless.String(dec)
			}
		case "tool_call_id":
			m.callID, err = lossless.String(dec)
		case "tool_calls":
			if lossless.Null(dec) {
				return nil
			}
			m.hasCalls = true
			err = lossless.Array(dec, func(int) error {
				c, err := readToolCall(dec)
				m.calls = append(m.calls, c)
				return err
			})
		default:
			err = dec.SkipValue()
		}
		return err
	})
	return m, err
}

// readContent reads a string, or an array of parts. Null is no content.
func (m *message) readContent(dec *jsontext.Decoder) (err error) {
	m.content, m.images, m.hasContent = "", nil, false
	if lossless.Null(dec) {
		return nil
	}
	m.hasContent = true
	if dec.PeekKind() != '[' {
		m.content, err = lossless.String(dec)
		return err
	}
	return lossless.Array(dec, func(int) error { return m.readPart(dec) })
}

func readToolCall(dec *jsontext.Decoder) (toolCall, error) {
	var c toolCall
	err := lossless.Object(dec, func(name string) (err error) {
		switch name {
		case "id":
			c.id, err = lossless.String(dec)
		case "type":
			c.kind, err = lossless.String(dec)
		case "function":
			err = lossless.Object(dec, func(name string) (err error) {
				switch name {
				case "name":
					c.name, err = lossless.String(dec)
				case "arguments":
					c.hasArguments = true
					c.arguments, err = lossless.String(dec)
				default:
					err = dec.SkipValue()
				}
				return err
			})
		default:
			err = dec.SkipValue()
		}
		return err
	})
	return c, err
}

func readTool(dec *jsontext.Decoder) (tool, error) {
	raw, err := lossless.Raw(dec)
	if err != nil {
		return tool{}, err
	}
	t := tool{raw: raw}
	var kind string
	inner := lossless.NewDecoder(raw)
	err = lossless.Object(inner, func(name string) (err error) {
		switch name {
		case "type":
			kind, err = lossless.String(inner)
			return err
		case "function":
			return lossless.Object(inner, func(name string) (err error) {
				switch name {
				case "name":
					t.name, err = lossless.String(inner)
				case "parameters":
					t.parameters, err = lossless.Raw(inner)
				default:
					err = inner.SkipValue()
				}
				return err
			})
		}
		return inner.SkipValue()
	})
	if err == nil && kind != "function" {
		err = refusef("Invalid request: a tool's type is %q, want \"function\"", kind)
	}
	return t, err
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// validate checks what needs more than one field.
func (r *chatRequest) validate() error {
	switch {
	case r.model == "":
		return refusef("Invalid request: model is missing")
	case len(r.messages) == 0:
		return refusef("Invalid request: messages is missing or empty")
	case !r.stream:
		return refusef("Invalid request: stream must be true: this server only streams")
	}
	for i, t := range r.tools {
		if !toolName.MatchString(t.name) {
			return refusef("Invalid request: tools[%d].function.name %q must match %v", i, t.name, toolName)
		}
		if t.parameters != nil && t.parameters.Kind() != '{' {
			return refusef("Invalid request: tools[%d].function.parameters must be an object", i)
		}
		if slices.ContainsFunc(r.tools[:i], func(o tool) bool { return o.name == t.name }) {
			return refusef("Invalid request: Tool names must be unique: %q", t.name)
		}
	}
	return r.validateMessages()
}

// validateMessages checks each message, and that every call is answered exactly once, directly after its message.
func (r *chatRequest) validateMessages() error {
	var open []string // calls that wait for their answer
	for i := range r.messages {
		m := &r.messages[i]
		if m.role == "tool" {
			at := slices.Index(open, m.callID)
			switch {
			case m.callID == "" || !m.hasContent || len(m.images) > 0:
				return refusef("messages[%d]: a tool message needs tool_call_id and content, and may have no images", i)
			case at < 0:
				return refusef("messages[%d]: Messages with role 'tool' must be a response to a preceding message with 'tool_calls' (%q)", i, m.callID)
			}
			open = slices.Delete(open, at, at+1)
			continue
		}
		if len(open) > 0 {
			return refusef("messages[%d]: An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id' (%q)", i, open)
		}
		var err error
		if open, err = m.validate(i); err != nil {
			return err
		}
	}
	if len(open) > 0 {
		return refusef("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id' (%q)", open)
	}
	return nil
}

// validate checks a message that is no tool message and returns the ids of its calls.
func (m *message) validate(i int) ([]string, error) {
	if len(m.images) > 0 && m.role != "user" {
		return nil, refusef("messages[%d]: Only user messages may have images", i)
	}
	switch m.role {
	case "system", "user":
		if !m.hasContent {
			return nil, refusef("messages[%d]: content is missing", i)
		}
		return nil, nil
	case "assistant":
	default:
		return nil, refusef("messages[%d]: role %q is not one of system, user, assistant, tool", i, m.role)
	}
	if !m.hasContent && len(m.calls) == 0 {
		return nil, refusef("messages[%d]: Invalid assistant message: content or tool_calls must be set", i)
	}
	if m.hasCalls && len(m.calls) == 0 {
		return nil, refusef("messages[%d]: tool_calls must not be empty", i)
	}
	var ids []string
	for j, c := range m.calls {
		if c.id == "" || c.kind != "function" || c.name == "" || !c.hasArguments {
			return nil, refusef("messages[%d].tool_calls[%d] needs id, type \"function\", function.name and function.arguments", i, j)
		}
		if slices.Contains(ids, c.id) {
			return nil, refusef("messages[%d].tool_calls[%d]: Duplicate value for 'tool_call_id' %q", i, j, c.id)
		}
		ids = append(ids, c.id)
	}
	return ids, nil
}

// lastUser returns the text of the last user message and how many tool results follow it. User messages that stand
// together count as one, a line each; one that brings the images of tool results belongs to those.
func (r *chatRequest) lastUser() (text string, results int) {
	var run []string
	for i, m := range slices.Backward(r.messages) {
		switch {
		case m.role == "user" && !r.bringsResults(i):
			run = append(run, m.content)
			continue
		case len(run) > 0:
		case m.role == "tool":
			results++
			continue
		default:
			continue
		}
		break
	}
	slices.Reverse(run)
	return strings.Join(run, "\n"), results
}
