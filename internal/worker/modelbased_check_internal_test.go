package worker

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/refold-dev/refold/internal/replay"
	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/fold"
	"github.com/refold-dev/refold/pkg/fold/dumb"
)

// events reads and folds a session's log, and tells each what stands before each event.
func (w *world) events(id events.ID, before func(s *fold.State, log []events.Event, e *events.Event)) ([]events.Event, *fold.State) {
	s := fold.New(id)
	log, err := w.logs.Open(w.ctx, id)
	if err != nil {
		w.violate("%v", err)
		return nil, s
	}
	var out []events.Event
	for m, err := range log.Read(w.ctx, 1) {
		var e events.Event
		if err == nil {
			e, err = m.Event()
		}
		if err == nil {
			before(s, out, &e)
			err = s.Apply(&e)
		}
		if err != nil {
			w.violate("the log is not valid: %v", err)
			return out, s
		}
		out = append(out, e)
	}
	return out, s
}

// story shows the session's events, one a line, for whoever reads a failure.
func (w *world) story() string {
	var b strings.Builder
	log, err := w.logs.Open(w.ctx, w.id)
	if err != nil {
		return err.Error()
	}
	for m, err := range log.Read(w.ctx, 1) {
		var e events.Event
		if err == nil {
			e, err = m.Event()
		}
		if err != nil {
			return b.String() + err.Error()
		}
		var what any
		switch body := e.Body.(type) {
		case *events.UserMessage:
			what = fmt.Sprintf("%d %s %s %.20q", body.InboxSeq, body.Delivery, body.Message.Source.Plugin, body.Message.Content[0].Text)
		case *events.AssistantMessage:
			what = body.Finish
		case *events.LLMStream:
			what = fmt.Sprintf("%d.%d attempt %d for %s", body.Turn, body.Step, body.Attempt, body.Purpose)
		case *events.ToolResult:
			what = body.Error.Code
		case *events.AssistantChunk, *events.CompactionSummary, *events.RequestHeader, *events.RequestContext, *events.RequestImages:
		default:
			what = fmt.Sprintf("%.300s", fmt.Sprintf("%+v", body))
		}
		_, _ = fmt.Fprintf(&b, "%4d %s %v\n", e.Seq, e.Type(), what)
	}
	return b.String()
}

// boundaries returns where a fork of the session may start.
func (w *world) boundaries(id events.ID) (seqs []uint64) {
	w.events(id, func(s *fold.State, _ []events.Event, e *events.Event) {
		if s.AtBoundary() {
			seqs = append(seqs, e.Seq-1)
		}
	})
	return seqs
}

// check checks the session, which is at rest.
func (w *world) check() {
	log, s := w.events(w.id, w.checkDumb)
	if len(log) == 0 {
		return // no input has opened it
	}
	own := log // of a fork: what it did not copy
	if created, _ := s.Created(); created.SeedLength > 0 {
		own = log[min(created.SeedLength+1, uint64(len(log))):]
	}
	if !s.AtBoundary() && !s.Closed() {
		w.violate("at rest, and something is open")
	}
	w.checkInputs(own, s)
	w.checkEnclosure(log)
	w.checkTools(own)
	w.checkRequests(own)
	w.checkView(log, s)
}

// checkDumb compares the fold with the dumb one at every model call.
func (w *world) checkDumb(s *fold.State, log []events.Event, e *events.Event) {
	b, ok := e.Body.(*events.LLMStream)
	if !ok || e.Seq <= w.checked {
		return
	}
	w.checked = e.Seq
	want, err := dumb.RequestOf(log, b)
	if err != nil {
		w.violate("%v", err)
		return
	}
	req, err := s.RequestOf(b)
	if err != nil {
		w.violate("%v", err)
		return
	}
	got := dumb.Request{Header: req.Header, Objects: s.ObjectsOf(b)}
	for _, m := range req.Messages.All() {
		got.Messages = append(got.Messages, m)
	}
	if last := len(got.Messages) - 1; b.Auxiliary != nil && last >= 0 {
		got.Messages[last].ID, got.Messages[last].Source = "", events.Source{}
	}
	if d := difference(want, got); d != "" {
		w.violate("request of event %d (-dumb +fold):\n%s", e.Seq, d)
	}
}

// difference shows how two values differ, apart from nil and empty; the quick look comes first.
func difference(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

// checkView compares the whole log's fold with the dumb one.
func (w *world) checkView(log []events.Event, s *fold.State) {
	v, err := dumb.Fold(log)
	if err != nil {
		w.violate("%v", err)
		return
	}
	var messages []events.Message
	for _, m := range s.Messages().All() {
		messages = append(messages, m)
	}
	if d := difference(v.Messages, messages); d != "" || !slices.Equal(v.Nodes, s.Nodes()) || v.Surface != s.Position() {
		w.violate("the surface is %v, %v at %+v of the dumb fold (-dumb +fold):\n%s", s.Nodes(), v.Nodes, v.Surface, d)
	}
	for _, c := range v.Inputs.Claims {
		if !s.Claimed(c) {
			w.violate("input %d is not claimed", c.InboxSeq)
		}
	}
}

// claimOf returns what an event claims of the inbox and what kinds of inputs it may.
func claimOf(e *events.Event) (c events.Claim, kinds []events.InputKind) {
	switch b := e.Body.(type) {
	case *events.UserMessage:
		kind := map[events.Delivery]events.InputKind{
			events.DeliveryPrompt: events.InputPrompt, events.DeliverySteer: events.InputSteer, events.DeliveryInject: events.InputInject,
		}[b.Delivery]
		if b.InboxSeq > 0 {
			c, kinds = events.Claim{InboxSeq: b.InboxSeq, InputID: events.ID(b.Message.ID)}, []events.InputKind{kind}
		}
	case *events.SessionConfigured:
		c, kinds = b.Claim, []events.InputKind{events.InputConfigure, events.InputFork}
	case *events.CompactionStart:
		c, kinds = b.Claim, []events.InputKind{events.InputCompact}
	case *events.SessionClosed:
		c, kinds = b.Claim, []events.InputKind{events.InputClose}
	case *events.TurnCancelled:
		c, kinds = b.Claim, []events.InputKind{events.InputCancel}
	case *events.InputDropped:
		c, kinds = b.Claim, []events.InputKind{b.Kind}
	}
	return c, kinds
}

// checkInputs checks that every input was used once, and none in vain.
func (w *world) checkInputs(log []events.Event, s *fold.State) {
	all := w.box.all()
	used := make(map[events.ID]uint64)
	var floor uint64
	for i := range log {
		e := &log[i]
		c, kinds := claimOf(e)
		if c == (events.Claim{}) {
			continue
		}
		if other := used[c.InputID]; other != 0 {
			w.violate("events %d and %d use the input %s", other, e.Seq, c.InputID)
		}
		used[c.InputID] = e.Seq
		k := slices.IndexFunc(all, func(in *input) bool { return in.seq == c.InboxSeq })
		if k < 0 || all[k].ID != c.InputID || !slices.Contains(kinds, all[k].Kind) {
			w.violate("event %d (%s) uses the input %+v, which nobody sent like that", e.Seq, e.Type(), c)
			continue
		}
		in := all[k]
		switch b := e.Body.(type) {
		case *events.UserMessage:
			if in.seq < floor {
				w.violate("event %d shows input %d, which the cancel at %d had dropped", e.Seq, in.seq, floor)
			}
			if strings.HasPrefix(in.Content[0].Text, textRejected) {
				w.violate("event %d shows input %d, which an extension rejects", e.Seq, in.seq)
			}
			if len(b.Message.Content) != len(in.Content) || b.Message.Content[0].Object.Bytes == 0 && b.Message.Content[0].Text != in.Content[0].Text {
				w.violate("event %d does not say what input %d says", e.Seq, in.seq)
			}
		case *events.TurnCancelled:
			if b.Cause != in.Cause || b.KeepQueue != in.KeepQueue {
				w.violate("event %d is not the cancel of input %d", e.Seq, in.seq)
			}
			if !b.KeepQueue {
				floor = max(floor, in.seq)
			}
		}
	}
	if s.Closed() {
		return
	}
	called := lastStep(log)
	for i, in := range all {
		if used[in.ID] == 0 && (in.Kind != events.InputInject || w.box.behind[i]+1 < called) {
			w.violate("at rest, and input %d (%s %s), sent behind event %d, was not used", in.seq, in.Kind, in.ID, w.box.behind[i])
		}
	}
}

// lastStep returns the start of the last step that made a call. What came before the event before it must have entered.
func lastStep(log []events.Event) (seq uint64) {
	var start uint64
	for i := range log {
		switch b := log[i].Body.(type) {
		case *events.StepStart:
			start = log[i].Seq
		case *events.LLMStream:
			if b.Purpose == events.PurposeLoop {
				seq = start
			}
		}
	}
	return seq
}

// checkEnclosure checks, without the fold, that turns enclose steps, steps their calls, and that a cancelled turn begins
// nothing.
func (w *world) checkEnclosure(log []events.Event) {
	var turn, step, last int64
	var cancelled *events.TurnCancelled
	var compacting, stopped bool
	wrong := func(e *events.Event) { w.violate("event %d (%s) stands in step %d.%d", e.Seq, e.Type(), turn, step) }
	within := func(e *events.Event, t, st int64) {
		if t != turn || st != step {
			wrong(e)
		}
	}
	for i := range log {
		e := &log[i]
		switch b := e.Body.(type) {
		case *events.TurnStart:
			within(e, 0, 0)
			turn, last, cancelled = b.Turn, 0, nil
		case *events.TurnEnd:
			within(e, b.Turn, 0)
			if cancelled != nil && (b.Kind != events.TurnAborted || b.Cause != cancelled.Cause) {
				w.violate("event %d ends a cancelled turn as %s", e.Seq, b.Kind)
			}
			turn, cancelled = 0, nil
		case *events.StepStart:
			within(e, b.Turn, 0)
			if step = b.Step; step != last+1 || turn == 0 {
				wrong(e)
			}
			last = step
		case *events.StepEnd:
			within(e, b.Turn, b.Step)
			step = 0
		case *events.TurnCancelled:
			if turn > 0 && cancelled == nil {
				cancelled = b
			}
			stopped = stopped || compacting
		case *events.CompactionStart:
			compacting, stopped = true, false
		case *events.UserMessage:
			if stopped && e.Surface.Kind == events.SurfaceReplace {
				w.violate("event %d puts the summary of a cancelled compaction in place", e.Seq)
			}
		case *events.CompactionEnd:
			if stopped && b.Outcome != events.CompactionInterrupted && b.Outcome != events.CompactionCompleted {
				w.violate("event %d ends a cancelled compaction as %s", e.Seq, b.Outcome)
			}
			compacting, stopped = false, false
		case *events.LLMStream:
			within(e, b.Turn, b.Step)
			if cancelled != nil || stopped {
				w.violate("event %d is a model call of a cancelled turn, or compaction", e.Seq)
			}
		case *events.AssistantMessage:
			within(e, b.Turn, b.Step)
		case *events.ToolCall:
			within(e, b.Turn, b.Step)
			if cancelled != nil {
				w.violate("event %d starts a tool in a cancelled turn", e.Seq)
			}
		case *events.ToolResult:
			if e.Surface.Kind == events.SurfaceAppend {
				within(e, b.Turn, b.Step)
			}
		}
	}
}

// checkTools checks that the model's calls and their results are pairs, and that results say what has happened.
func (w *world) checkTools(log []events.Event) {
	var open, running []string // calls without a result, and names of tools of those that were started
	names := make(map[string]string)
	w.mu.Lock()
	defer w.mu.Unlock()
	bad := func(format string, args ...any) { w.bad = append(w.bad, fmt.Sprintf(format, args...)) }
	for call, n := range w.effects {
		if n > 1 {
			bad("call %s took effect %d times", call, n)
		}
	}
	for i := range log {
		e := &log[i]
		switch b := e.Body.(type) {
		case *events.AssistantMessage:
			if len(open) > 0 {
				bad("event %d answers, and calls %v have no results", e.Seq, open)
			}
			for _, c := range b.Message.Content {
				if c.Type == events.BlockToolCall {
					open = append(open, c.ID)
					names[c.ID] = c.Arguments
				}
			}
		case *events.ToolCall:
			if running = append(running, b.Name); len(running) > 1 && slices.ContainsFunc(running, exclusive) {
				bad("event %d starts a tool beside another: %v", e.Seq, running)
			}
		case *events.ToolResult:
			if e.Surface.Kind != events.SurfaceAppend {
				continue
			}
			if len(e.Sources) > 0 {
				running = running[1:]
			}
			k := slices.Index(open, b.CallID())
			if k != 0 {
				bad("event %d answers call %q of %v", e.Seq, b.CallID(), open)
				continue
			}
			open = open[1:]
			var answer, call int
			if _, err := fmt.Sscanf(names[b.CallID()], `{"call":"%d.%d"}`, &answer, &call); err != nil {
				continue // its arguments are broken
			}
			took := w.effects[callName(answer-1, call-1)]
			tool := w.plan.answers[answer-1].calls[call-1].tool
			effective := tool == "mark" || tool == "note" && call != 3 // the third is answered by the extension
			switch {
			case b.Error.Code == events.ToolNotStarted && took > 0:
				bad("event %d says that call %d.%d did not start, and it took effect", e.Seq, answer, call)
			case b.Error.Code == "" && effective && took != 1:
				bad("event %d says that call %d.%d succeeded, and it took effect %d times", e.Seq, answer, call, took)
			}
		}
	}
	if len(open) > 0 {
		bad("calls %v have no results", open)
	}
}

func exclusive(tool string) bool { return tool != "note" && tool != "peek" }

// checkRequests rebuilds every request from the log and the objects, and compares it with what the provider got.
func (w *world) checkRequests(own []events.Event) {
	log, err := w.logs.Open(w.ctx, w.id)
	if err != nil {
		w.violate("%v", err)
		return
	}
	bodies := make(map[uint64][]byte)
	for r, err := range replay.Requests(w.ctx, w.id, log, w.store) {
		if err == nil {
			err = r.Err
		}
		switch {
		case err != nil:
			w.violate("request of event %d: %v", r.Seq, err)
		case r.Body.Digest() != r.Stream.Body:
			w.violate("request of event %d: rebuilt %v, recorded %v", r.Seq, r.Body.Digest(), r.Stream.Body)
		case len(own) > 0 && r.Seq >= own[0].Seq:
			bodies[r.Seq] = r.Body.Bytes()
		}
	}
	got := make(map[uint64]bool)
	for _, r := range w.sim.Requests() {
		if r.Session != string(w.id) {
			continue
		}
		body, ok := bodies[r.Seq]
		switch {
		case !ok:
			w.violate("the provider got a request for event %d, which is none", r.Seq)
		case got[r.Seq]:
			w.violate("the provider got the request of event %d twice", r.Seq)
		case !bytes.Equal(body, r.Body):
			w.violate("request of event %d: the provider got\n%s\nrebuilt\n%s", r.Seq, r.Body, body)
		}
		got[r.Seq] = true
	}
}
