package dsh

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
)

// stepTool is a tool call of the step's answer.
type stepTool struct {
	ref     string // its id in the reference system's log
	id      string // its id in ours
	started bool   // the reference system recorded that it starts
	done    bool
}

// renaming says that the reference system sent ref where our log has id.
type renaming struct{ ref, id string }

// undo puts the reference system's ids back into a body.
func undo(body []byte, renamed []renaming) []byte {
	for _, n := range renamed {
		// Our id is a string of its own in the body: inside another one its quotes would be escaped.
		body = bytes.ReplaceAll(body, events.AppendQuote(nil, n.id), events.AppendQuote(nil, n.ref))
	}
	return body
}

// rename gives an id to each tool call of an answer that has none, or one that another call of the answer has: the
// reference system records and sends them so, our log does not. It returns the answer's calls.
func (t *translator) rename(r *row, content []events.Block) []stepTool {
	var tools []stepTool
	for i := range content {
		b := &content[i]
		if b.Type != events.BlockToolCall {
			continue
		}
		ref := b.ID
		if b.ID == "" || slices.ContainsFunc(tools, func(s stepTool) bool { return s.id == b.ID }) {
			sum := sha256.Sum256([]byte(string(t.out.ID) + "/" + strconv.FormatUint(r.Seq, 10) + "/" + strconv.Itoa(i)))
			b.ID = "refold-" + hex.EncodeToString(sum[:])
			t.renamed = append(t.renamed, renaming{ref: ref, id: b.ID})
		}
		tools = append(tools, stepTool{ref: ref, id: b.ID})
	}
	return tools
}

// toolCall translates the start of a tool. Our log wants the calls in model order; one whose predecessors have neither
// started nor a result yet is recorded when those have one.
func (t *translator) toolCall(r *row) (uint64, error) {
	var c struct {
		CallID text `json:"callId"`
	}
	if err := unmarshal(r.Data, &c); err != nil {
		return 0, err
	}
	i := slices.IndexFunc(t.tools, func(s stepTool) bool { return s.ref == string(c.CallID) && !s.started && !s.done })
	if i < 0 {
		return t.foreign(r)
	}
	t.tools[i].started = true
	return t.startTools()
}

// startTools records those calls that may be recorded now, and returns the sequence of the last one.
func (t *translator) startTools() (last uint64, err error) {
	turn, step := t.place()
	for _, p := range t.state.PendingTools() {
		if p.CallSeq != 0 {
			continue
		}
		i := slices.IndexFunc(t.tools, func(s stepTool) bool { return s.id == p.ID })
		if i < 0 || !t.tools[i].started {
			return last, nil
		}
		last, err = t.plain(&events.ToolCall{Turn: turn, Step: step, CallID: p.ID, Name: p.Name, Arguments: p.Arguments})
		if err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (t *translator) toolResult(r *row) (uint64, error) {
	var b struct {
		Message message `json:"message"`
		Error   *struct {
			Name text `json:"name"`
			Code text `json:"code"`
		} `json:"error"`
	}
	if err := unmarshal(r.Data, &b); err != nil {
		return 0, err
	}
	m, err := t.message(r, &b.Message, events.RoleUser)
	if err != nil {
		return 0, err
	}
	if len(m.Content) != 1 || m.Content[0].Type != events.BlockToolResult {
		return 0, fmt.Errorf("a tool result is one block of that type, not %d blocks", len(m.Content))
	}
	var failed events.ToolError
	if b.Error != nil {
		failed = events.ToolError{Code: events.ToolErrorCode(code(b.Error.Code, string(events.ToolFailed))), Message: string(b.Error.Name)}
	}
	if !isAppend(r.Surface) {
		return t.replaceResult(r, m)
	}
	i := slices.IndexFunc(t.tools, func(s stepTool) bool { return !s.done })
	if i < 0 || t.tools[i].ref != m.Content[0].ToolCallID {
		return 0, fmt.Errorf("a result for call %q, which is not the next one to be answered", m.Content[0].ToolCallID)
	}
	tool := &t.tools[i]
	m.Content[0].ToolCallID = tool.id
	m.Source = events.Source{Kind: events.SourceTool, CallID: tool.id}
	pending := t.state.PendingTools()
	at := slices.IndexFunc(pending, func(p fold.PendingTool) bool { return p.ID == tool.id })
	if at < 0 {
		return 0, fmt.Errorf("a result for call %q, which the step does not have", tool.ref)
	}
	var sources []uint64
	if seq := pending[at].CallSeq; seq != 0 {
		sources = []uint64{seq}
	} else { // the log has no tool/call, whatever the reference system called it
		failed.Code = events.ToolNotStarted
	}
	turn, step := t.place()
	seq, err := t.append(&events.ToolResult{Turn: turn, Step: step, Message: m, Error: failed}, events.AppendOp(), sources)
	if err != nil {
		return 0, err
	}
	t.show(seq)
	tool.done = true
	_, err = t.startTools()
	return seq, err
}

// replaceResult puts other content in the place of a tool result; everything else stays.
func (t *translator) replaceResult(r *row, m events.Message) (uint64, error) {
	if err := t.settle(); err != nil {
		return 0, err
	}
	op, err := t.surface(r.Surface)
	if err != nil {
		return 0, err
	}
	old, ok := t.out.Events[op.Region.Start-1].Body.(*events.ToolResult)
	if !ok || op.Region.Start != op.Region.End {
		return 0, fmt.Errorf("a tool result replaces exactly one tool result, not events %d to %d", op.Region.Start, op.Region.End)
	}
	body := &events.ToolResult{Turn: old.Turn, Step: old.Step, Message: old.Message.Clone(), Error: old.Error}
	body.Message.Content[0].Content = m.Content[0].Content
	return t.rewrite(r, body, op)
}
