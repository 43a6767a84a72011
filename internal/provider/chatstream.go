package provider

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/refold-dev/refold/internal/provider/sse"
	"github.com/refold-dev/refold/pkg/events"
)

// maxBlocks bounds the blocks of one answer.
const maxBlocks = 4096

// chatStream turns the events of a chat completions stream into chunks.
//
// The chunks come in this order: a block-start when a block first appears, deltas as they come, and when the answer is
// complete the block-ends in the order of the blocks, usage and finish. All text is one block, all reasoning another,
// each tool call one of its own. When the answer fails, usage that was reported comes before the error, block-ends do
// not.
type chatStream struct {
	seq    uint64 // of the llm/stream event; makes ids of calls that have none
	secret Secret

	out    []events.Chunk
	blocks []chatBlock
	usages []chatUsage // the latest last; earlier ones only as far as it builds on them
	finish string
	done   bool // [DONE] came
}

type chatBlock struct {
	kind     events.BlockType
	id, name string // of a call, as yielded
	wireID   string // of a call, as the provider sent it
	index    int64  // of a call, as the provider sent it; -1 when it did not
}

// take returns the chunks since the last time.
func (s *chatStream) take() []events.Chunk {
	out := s.out
	s.out = nil
	return out
}

// event handles one event. After an error or done, nothing more may come.
func (s *chatStream) event(ev sse.Event) *Error {
	data := bytes.TrimSpace(ev.Data)
	switch {
	case s.done:
		return nil
	case string(data) == "[DONE]":
		s.done = true
		return nil
	case ev.Type == "error":
		if ev.Incomplete {
			return nil
		}
		return s.vendorFailure(data)
	case len(data) == 0:
		return nil
	}
	c, err := parseChatChunk(data)
	if err != nil {
		if ev.Incomplete { // cut off; the end of the stream says what that means
			return nil
		}
		return s.malformed(err)
	}
	if c.err != nil {
		return s.vendorFailure(data)
	}
	return s.chunk(&c)
}

func (s *chatStream) chunk(c *chatChunk) *Error {
	if c.reasoning != "" {
		s.text(events.BlockReasoning, events.ChunkReasoningDelta, c.reasoning)
	}
	if c.content != "" {
		s.text(events.BlockText, events.ChunkTextDelta, c.content)
	}
	for i := range c.calls {
		if err := s.call(&c.calls[i]); err != nil {
			return err
		}
	}
	if c.finish != "" {
		s.finish = c.finish
	}
	if c.usage != nil {
		u, err := parseUsage(c.usage)
		if err != nil {
			return s.malformed(err)
		}
		s.report(u)
	}
	return nil
}

// report replaces the usage. A report that leaves out what an earlier one said builds on that one.
func (s *chatStream) report(u chatUsage) {
	if n := len(s.usages); n > 0 && u.partial() {
		earlier := s.usages[n-1]
		s.usages = append(s.usages[:0], earlier, u.over(earlier))
		return
	}
	s.usages = append(s.usages[:0], u)
}

func (s *chatStream) text(block events.BlockType, delta events.ChunkType, text string) {
	index := -1
	for i := range s.blocks {
		if s.blocks[i].kind == block {
			index = i
			break
		}
	}
	if index < 0 {
		index = s.start(chatBlock{kind: block})
	}
	s.out = append(s.out, events.Chunk{Type: delta, Index: int64(index), Texts: []string{text}})
}

func (s *chatStream) start(b chatBlock) int {
	s.blocks = append(s.blocks, b)
	index := len(s.blocks) - 1
	s.out = append(s.out, events.Chunk{Type: events.ChunkBlockStart, Index: int64(index), BlockType: b.kind})
	return index
}

// call handles a piece of a tool call. A piece that carries neither a beginning, a name nor arguments is dropped.
func (s *chatStream) call(c *callDelta) *Error {
	index := s.find(c)
	carries := c.args != ""
	if index < 0 {
		if len(s.blocks) >= maxBlocks {
			return s.malformed(fmt.Errorf("more than %d blocks", maxBlocks))
		}
		b := chatBlock{kind: events.BlockToolCall, wireID: c.id, index: -1}
		if c.hasIndex {
			b.index = c.index
		}
		b.id = s.freeID(c.id, len(s.blocks))
		index = s.start(b)
		carries = true
	}
	b := &s.blocks[index]
	if b.name == "" && c.name != "" {
		b.name = c.name
		carries = true
	}
	if b.wireID == "" {
		b.wireID = c.id // too late to be used: the call has its id already
	}
	if carries {
		s.out = append(s.out, events.Chunk{
			Type: events.ChunkToolCallDelta, Index: int64(index), ID: b.id, Name: b.name, Texts: []string{c.args},
		})
	}
	return nil
}

// find returns the block that a piece of a call goes on with, -1 when it begins one. Vendors number the calls of an
// answer; of those that give every call the same number, a new id with a name begins a call.
func (s *chatStream) find(c *callDelta) int {
	last := -1
	for i := len(s.blocks) - 1; i >= 0; i-- {
		b := &s.blocks[i]
		if b.kind != events.BlockToolCall {
			continue
		}
		last = max(last, i)
		switch {
		case c.hasIndex && b.index == c.index:
			if c.id != "" && b.wireID != "" && c.id != b.wireID && c.name != "" {
				return -1
			}
			return i
		case !c.hasIndex && c.id != "" && c.id == b.wireID:
			return i
		}
	}
	switch {
	case c.hasIndex || last < 0:
		return -1
	case c.name != "" && (c.id != "" || s.blocks[last].name != ""):
		return -1
	}
	return last // without a number and a name, it goes on with the last one, whatever its id
}

// maxCallID is the longest id of a call that is used, in bytes: events repeat it.
const maxCallID = 256

// freeID returns the provider's id for the call at a block's index if it can be used, else a deterministic one.
func (s *chatStream) freeID(id string, index int) string {
	if len(id) > maxCallID {
		id = ""
	}
	for n := 0; id == "" || s.idTaken(id); n++ {
		id = fmt.Sprintf("call_%d_%d", s.seq, index)
		if n > 0 {
			id += fmt.Sprintf("_%d", n)
		}
	}
	return id
}

func (s *chatStream) idTaken(id string) bool {
	for i := range s.blocks {
		if s.blocks[i].kind == events.BlockToolCall && s.blocks[i].id == id {
			return true
		}
	}
	return false
}

// end completes the answer and reports why it is none, if so.
func (s *chatStream) end() *Error {
	switch s.finish {
	case "content_filter":
		s.endBlocks()
		return s.fail(events.FailureContentFilter, "the model stopped: content_filter")
	case "insufficient_system_resource":
		return s.fail(events.FailureServer, "the model stopped: insufficient_system_resource")
	}
	finish := s.reason()
	if len(s.blocks) == 0 && finish.Kind == events.FinishStop {
		return s.fail(events.FailureEmpty, "the model completed its answer without any content")
	}
	for i := range s.blocks {
		if b := &s.blocks[i]; b.kind == events.BlockToolCall && b.name == "" && finish.Kind == events.FinishToolCalls {
			return s.fail(events.FailureMalformed, fmt.Sprintf("malformed response: tool call %s has no name", b.id))
		}
	}
	s.endBlocks()
	s.flushUsage()
	s.out = append(s.out, events.Chunk{Type: events.ChunkFinish, Finish: finish})
	return nil
}

// reason returns why the answer ended. The provider's word is kept where it is not the usual one: an unknown reason,
// or none but a complete answer, counts as stop, and as tool-calls when there are calls to run.
func (s *chatStream) reason() events.Finish {
	var f events.Finish
	switch s.finish {
	case "length":
		return events.Finish{Kind: events.FinishMaxTokens}
	case "tool_calls":
		return events.Finish{Kind: events.FinishToolCalls}
	case "stop", "":
		f.Kind = events.FinishStop
	default:
		f = events.Finish{Kind: events.FinishStop, Raw: s.secret.clean(s.finish, 128)}
	}
	for i := range s.blocks {
		if s.blocks[i].kind == events.BlockToolCall {
			return events.Finish{Kind: events.FinishToolCalls, Raw: s.secret.clean(s.finish, 128)}
		}
	}
	return f
}

func (s *chatStream) endBlocks() {
	for i := range s.blocks {
		s.out = append(s.out, events.Chunk{Type: events.ChunkBlockEnd, Index: int64(i)})
	}
}

func (s *chatStream) flushUsage() {
	for i := range s.usages {
		c := s.usages[i].chunk()
		c.RawUsage = events.RawJSON(s.secret.scrub(string(c.RawUsage))) // a provider may echo anything
		s.out = append(s.out, c)
	}
	s.usages = nil
}

// closed handles the end of the stream; err is what ended it, nil for a regular end. A stream that gave its
// finish_reason is complete even if [DONE] or the rest of the transfer never came.
func (s *chatStream) closed(err *Error) *Error {
	switch {
	case s.done || s.finish != "":
		return s.end()
	case err != nil:
		s.flushUsage()
		return err
	}
	return s.fail(events.FailureStreamClosed, "the stream ended without finish_reason and without [DONE]")
}

func (s *chatStream) fail(code events.FailureCode, message string) *Error {
	s.flushUsage()
	return &Error{Failure: events.Failure{Message: message, Code: code}}
}

func (s *chatStream) malformed(err error) *Error {
	e := s.fail(events.FailureMalformed, "malformed response: "+s.secret.clean(err.Error(), maxMessage))
	e.Err = s.secret.scrubError(err)
	return e
}

func (s *chatStream) vendorFailure(data []byte) *Error {
	v, ok := parseVendorError(data)
	if !ok && len(data) > 0 && data[0] != '{' {
		v.message = string(data)
	}
	message := s.secret.clean(v.message, maxMessage)
	if strings.TrimSpace(message) == "" {
		message = "the provider broke the answer off with an error event"
	}
	return s.fail(v.code(0), message)
}
