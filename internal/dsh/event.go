package dsh

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/refold-dev/refold/pkg/events"
)

var (
	errReplacedAnswer = errors.New("an assistant message that replaces others cannot be told as the answer to a model call")
	errUntold         = errors.New("no stream of chunks adds up to this message")
	errForeignSurface = errors.New("an event of this type on the surface cannot be rebuilt")
)

// event translates a row that is one event. It returns 0 for one that has no event of its own in our log.
func (t *translator) event(r *row) (uint64, error) {
	switch events.Type(r.Type) {
	case events.TypeTurnStart, events.TypeTurnEnd, events.TypeStepStart, events.TypeStepEnd:
		return 0, t.boundary(r)
	case events.TypeUserMessage:
		return t.userMessage(r)
	case events.TypeRequestHeader:
		return 0, t.header(r)
	case events.TypeRequestContext:
		return t.context(r)
	case events.TypeAssistantChunk:
		return 0, t.chunkRow(r)
	case events.TypeAssistantMessage:
		return t.answer(r)
	case events.TypeToolCall:
		return t.toolCall(r)
	case events.TypeToolResult:
		return t.toolResult(r)
	case events.TypeLLMRetry:
		return t.retry(r)
	case events.TypeLLMRetryStarted:
		return t.retryStarted(r)
	case events.TypeCompactionStart:
		return t.compactionStart(r)
	case events.TypeCompactionSummary:
		return t.compactionSummary(r)
	case events.TypeCompactionEnd:
		return t.compactionEnd(r)
	case events.TypeCompactionPrune:
		return t.prune(r)
	case events.TypeSessionTitle:
		return t.title(r)
	case events.TypeSessionEndSeed: // here another process, or a fork, begins
		t.process++
		if err := t.settle(); err != nil {
			return 0, err
		}
	default: // kept as it is
	}
	return t.foreign(r)
}

// foreign keeps an event that has no counterpart of ours, or whose counterpart holds more than the reference system
// recorded, as one that our readers skip.
func (t *translator) foreign(r *row) (uint64, error) {
	if strings.HasPrefix(string(r.Type), "request/header-") {
		return 0, events.ErrLegacy
	}
	if len(r.Surface) > 0 && !events.Type(r.Type).Surface() {
		return 0, errForeignSurface
	}
	return t.keep(string(r.Type), r.Data, t.sources(r.Sources))
}

// keep keeps data of the reference system as it stands. A name or data for which our log has no place goes into an
// object, which the event names.
func (t *translator) keep(name string, data []byte, sources []uint64) (uint64, error) {
	if len(data) == 0 {
		data = []byte("{}")
	}
	if !t.long(len(data)) {
		seq, err := t.append(&events.Unknown{Name: events.Type("dsh/" + name), Data: events.RawJSON(data)}, events.SurfaceOp{}, sources)
		if !errors.Is(err, errEncode) {
			return seq, err
		}
	}
	ref, err := t.object("application/octet-stream", data)
	if err != nil {
		return 0, err
	}
	out := append([]byte(nil), `{"type":`...)
	out = events.AppendQuote(out, name)
	out = append(out, `,"object":{"sha256":"`...)
	out = ref.Digest.AppendHex(out)
	out = append(out, `","bytes":`...)
	out = strconv.AppendInt(out, ref.Bytes, 10)
	out = append(out, `}}`...)
	return t.append(&events.Unknown{Name: "dsh/event", Data: events.RawJSON(out)}, events.SurfaceOp{}, sources)
}

// title names the session.
func (t *translator) title(r *row) (uint64, error) {
	var b struct {
		Title *text `json:"title"`
	}
	if err := unmarshal(r.Data, &b); err != nil || b.Title == nil {
		return t.foreign(r)
	}
	return t.plain(&events.SessionTitle{Title: string(*b.Title)})
}

// place returns our numbers of the turn and step that are open.
func (t *translator) place() (turn, step int64) {
	turn, _ = t.state.Turn()
	step, _ = t.state.Step()
	return turn, step
}

func (t *translator) closeStep() error {
	if err := t.settle(); err != nil {
		return err
	}
	if _, open := t.state.Step(); !open {
		return nil
	}
	turn, step := t.place()
	_, err := t.plain(&events.StepEnd{Turn: turn, Step: step})
	t.tools = nil
	return err
}

func (t *translator) closeTurn(end events.TurnEnd) error {
	if err := t.closeStep(); err != nil {
		return err
	}
	turn, open := t.state.Turn()
	if !open {
		return nil
	}
	end.Turn = turn
	_, err := t.plain(&end)
	return err
}

func (t *translator) openTurn() error {
	turn, open := t.state.Turn()
	if open {
		return nil
	}
	_, err := t.plain(&events.TurnStart{Turn: turn + 1})
	return err
}

func (t *translator) openStep() error {
	if err := t.openTurn(); err != nil {
		return err
	}
	turn, step := t.place()
	_, err := t.plain(&events.StepStart{Turn: turn, Step: step + 1})
	return err
}

// ready sees to it that a step is open that has no answer and no open call, and with untouched none that failed either.
// The reference system's steps are like that where it matters; a log that lacks a boundary still shows the same
// messages in the same order.
func (t *translator) ready(untouched bool) error {
	if err := t.settle(); err != nil {
		return err
	}
	_, open := t.state.Step()
	if open && !t.state.Answered() && (!untouched || t.state.Attempt() == 0) {
		return nil
	}
	if open {
		if err := t.closeStep(); err != nil {
			return err
		}
	}
	return t.openStep()
}

// boundary translates the events that open and close turns and steps. Our numbers follow from our own log.
func (t *translator) boundary(r *row) error {
	switch events.Type(r.Type) {
	case events.TypeTurnStart:
		if err := t.closeTurn(events.TurnEnd{Kind: events.TurnInterrupted}); err != nil {
			return err
		}
		return t.openTurn()
	case events.TypeStepStart:
		if err := t.closeStep(); err != nil {
			return err
		}
		return t.openStep()
	case events.TypeStepEnd:
		return t.closeStep()
	default: // turn/end
		return t.turnEnd(r)
	}
}

func (t *translator) turnEnd(r *row) error {
	var end turnEnd
	if err := unmarshal(r.Data, &end); err != nil {
		return err
	}
	b := events.TurnEnd{Kind: events.TurnEndKind(end.Reason.Kind)}
	switch b.Kind {
	case events.TurnError:
		b.Failure = end.Reason.Error.event()
	case events.TurnAborted, events.TurnBlocked:
		b.Cause = string(end.Reason.Cause)
	case events.TurnCompleted, events.TurnMaxTokens, events.TurnInterrupted:
	default:
		b = events.TurnEnd{Kind: events.TurnBlocked, Cause: string(end.Reason.Kind)}
	}
	return t.closeTurn(b)
}

func (t *translator) userMessage(r *row) (uint64, error) {
	var m message
	if err := unmarshal(r.Data, &m); err != nil {
		return 0, err
	}
	em, err := t.message(r, &m, events.RoleUser)
	if err != nil {
		return 0, err
	}
	body := &events.UserMessage{Message: em}
	if isAppend(r.Surface) {
		if err := t.ready(true); err != nil {
			return 0, err
		}
		seq, err := t.append(body, events.AppendOp(), t.messageSources(r, &em))
		t.show(seq)
		return seq, err
	}
	op, err := t.surface(r.Surface)
	if err != nil {
		return 0, err
	}
	sources, err := t.checkpoint(body, op)
	if err != nil {
		return 0, err
	}
	return t.rewrite(r, body, op, sources...)
}

// messageSources returns what a user message cites. One from a plugin cites nothing: in our log that means that a tool
// owed it.
func (t *translator) messageSources(r *row, m *events.Message) []uint64 {
	if m.Source.Kind == events.SourcePlugin {
		return nil
	}
	return t.sources(r.Sources)
}

// header translates a header. The reference system records resume for the first one of every process; the claim of
// that loop instance goes before it.
func (t *translator) header(r *row) error {
	var h header
	if err := unmarshal(r.Data, &h); err != nil {
		return err
	}
	if h.Reason == "fallback" {
		return events.ErrLegacy
	}
	eh, err := h.event()
	if err != nil {
		return err
	}
	if err := t.shorten(&eh); err != nil {
		return err
	}
	if err := t.ready(false); err != nil {
		return err
	}
	_, seq := t.state.Header()
	if seq != 0 && events.HeaderReason(h.Reason) != events.HeaderChange {
		t.process++
		if err := t.claim(events.ClaimResumed); err != nil {
			return err
		}
	}
	reason, owed := t.state.HeaderOwed(&eh)
	if !owed {
		return nil
	}
	b := &events.RequestHeader{Header: eh, Reason: reason}
	if fields := t.state.Departures(b); len(fields) > 0 { // the reference system does not record who changed what
		b.ChangedBy = []events.ConfigChange{{Extension: worker, Fields: fields}}
	}
	_, err = t.plain(b)
	return err
}

// context translates a request context. It takes no part in a request: one that our log has no place for is kept as a
// foreign event.
func (t *translator) context(r *row) (uint64, error) {
	var c struct {
		Provider      text    `json:"provider"`
		Model         text    `json:"model"`
		ContextWindow float64 `json:"contextWindow"`
	}
	if err := unmarshal(r.Data, &c); err != nil {
		return t.foreign(r)
	}
	body := events.RequestContext{Provider: string(c.Provider), Model: string(c.Model), ContextWindow: count(c.ContextWindow, new(bool))}
	_, open := t.state.Step()
	h, headerSeq := t.state.Header()
	last, contextSeq := t.state.Context()
	if !open || t.call != nil || t.state.Answered() || headerSeq == 0 || h.Config.Provider != body.Provider || h.Config.Model != body.Model || contextSeq != 0 && last == body {
		return t.foreign(r)
	}
	return t.plain(&body)
}

// shorten puts the long parts of a header into objects.
func (t *translator) shorten(h *events.Header) (err error) {
	if t.long(len(h.System)) {
		if h.SystemObject, err = t.object(events.TextMediaType, []byte(h.System)); err != nil {
			return err
		}
		h.System = ""
	}
	tools, err := events.AppendTools(nil, h.Tools)
	if err != nil {
		return err
	}
	if t.long(len(tools)) {
		h.ToolsObject, err = t.object(events.ToolsMediaType, tools)
		h.Tools = nil
	}
	return err
}

// rewrite appends an event that replaces a run of the surface, which it cites whole, with others that are cited.
func (t *translator) rewrite(r *row, body events.Body, op events.SurfaceOp, cited ...uint64) (uint64, error) {
	if err := t.abandon(); err != nil {
		return 0, err
	}
	nodes := t.state.Nodes()
	lo, hi := slices.Index(nodes, op.Region.Start), slices.Index(nodes, op.Region.End)
	sources := append(t.sources(r.Sources), cited...)
	if lo >= 0 && hi >= lo {
		sources = append(sources, nodes[lo:hi+1]...)
	}
	slices.Sort(sources)
	seq, err := t.append(body, op, slices.Compact(sources))
	t.show(seq)
	return seq, err
}
