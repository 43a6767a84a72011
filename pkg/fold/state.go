package fold

import (
	"fmt"
	"slices"

	"github.com/refold-dev/refold/pkg/events"
	"github.com/refold-dev/refold/pkg/objects"
)

// State is what a prefix of a session's log stands for. It is not safe for concurrent use.
type State struct {
	id   events.ID
	seq  uint64
	head events.Hash
	dead error

	created *events.SessionCreated
	endSeed uint64 // the last session/end-seed, 0 when there is none
	closed  bool
	title   string

	claim    events.LoopClaimed
	claimSeq uint64 // 0: nobody has claimed the session
	inputs   inputs

	options    events.Options
	optionsSeq uint64

	header         *events.Header // never changed once set
	headerSeq      uint64
	headerInstance bool // the current loop instance has recorded a header
	context        events.RequestContext
	contextSeq     uint64
	images         Images

	surface surface
	refs    refTracker

	turn, step         int64
	turnOpen, stepOpen bool
	attempt            int64 // the last attempt in the step
	call               *modelCall
	answered           bool           // the step has its assistant message
	finish             events.Finish  // of the step's answer
	failure            events.Failure // of the step's last failed attempt
	entered            int64          // user messages that entered in the turn
	prompted           bool           // the turn has claimed its prompt
	cancelled          *events.TurnCancelled
	tools              []toolCall

	retry     *events.LLMRetry // scheduled and not started
	retrySeq  uint64
	retryTime int64

	owed     []owedContext
	contexts []retained

	compaction   *compaction // the open one
	titleAttempt int64       // calls for a title since the last session/title

	usage    events.Usage // the last that an answer of the loop reported
	usageSeq uint64

	requested    events.SurfacePosition // of the loop's last llm/stream
	requestedSeq uint64

	seedHead     events.Hash // what the copied events of a fork add up to so far, chained as in the parent
	seedWithheld bool        // the content of one of them is withheld, so that seedHead is not known

	systemWithheld bool // the system prompt of the options comes from an event whose content is withheld
	headerWithheld bool // that of the header in force does
}

// modelCall is a model call that has neither an answer nor a failure yet.
type modelCall struct {
	stream    *events.LLMStream
	streamSeq uint64
	answer    Answer
	chunks    []uint64 // the sequences of its chunk events
}

// toolCall is one call of the step's assistant message.
type toolCall struct {
	id, name, arguments string
	callSeq             uint64 // 0: not recorded as started
	resultSeq           uint64 // 0: no result yet
}

// New returns the state of the empty log of session id.
func New(id events.ID) *State { return &State{id: id} }

// ID returns the session's id.
func (s *State) ID() events.ID { return s.id }

// Seq returns the sequence of the last event applied, 0 before the first.
func (s *State) Seq() uint64 { return s.seq }

// Head returns the hash of the last event applied, zero before the first.
func (s *State) Head() events.Hash { return s.head }

// Created returns a copy of the session's first event; ok is false before it.
func (s *State) Created() (c events.SessionCreated, ok bool) {
	if s.created == nil {
		return c, false
	}
	c = *s.created
	c.Labels = slices.Clone(c.Labels)
	c.Options = cloneOptions(c.Options)
	return c, true
}

// Closed reports whether the session takes no more inputs.
func (s *State) Closed() bool { return s.closed }

// Title returns the session's last title.
func (s *State) Title() string { return s.title }

// Claim returns the last loop/claimed and its sequence, 0 when there is none. A fork does not inherit its parent's
// claim: there is none behind session/end-seed.
func (s *State) Claim() (events.LoopClaimed, uint64) { return s.claim, s.claimSeq }

// LastRequest returns where the surface stood at the loop's last llm/stream; ok is false when there was none.
func (s *State) LastRequest() (p events.SurfacePosition, ok bool) {
	return s.requested, s.requestedSeq > 0
}

// Seeding returns the events that a fork has still to copy from its parent, [from,to], and whether it has not come to
// the end of its seed: when from > to only session/end-seed is missing.
func (s *State) Seeding() (from, to uint64, open bool) {
	if s.created == nil || s.created.SeedLength == 0 || s.endSeed > s.created.SeedLength {
		return 0, 0, false
	}
	return s.seq + 1, s.created.SeedLength + 1, true
}

// TitleAttempt returns how many calls for a title were made since the last session/title: the next one's attempt is one
// more.
func (s *State) TitleAttempt() int64 { return s.titleAttempt }

// AtBoundary reports whether a fork may start here: nothing is open, no turn, no compaction and no model call, and the
// session is not closed, since nothing may follow that.
func (s *State) AtBoundary() bool {
	return s.seq > 0 && !s.closed && !s.turnOpen && s.compaction == nil && s.call == nil
}

// Usage returns what the provider reported for the loop's last answer that came with a report, and the sequence of its
// assistant/message; 0 when there is none.
func (s *State) Usage() (events.Usage, uint64) { return s.usage, s.usageSeq }

// Header returns a copy of the header in force and its sequence, 0 when there is none.
func (s *State) Header() (events.Header, uint64) {
	if s.header == nil {
		return events.Header{}, 0
	}
	return s.header.Clone(), s.headerSeq
}

// HeaderOwed returns whether the current loop instance must record header before its next request, and with which
// reason: the log's first is initial, an instance's first is resume, one that differs from the folded one is change.
// One that is equal is a change too when the options were set since and do not give it: then an extension undoes what
// they ask for, and that has to be recorded.
func (s *State) HeaderOwed(header *events.Header) (reason events.HeaderReason, owed bool) {
	switch {
	case s.header == nil:
		return events.HeaderInitial, true
	case !s.headerInstance:
		return events.HeaderResume, true
	case !s.header.Equal(header) || s.outdated():
		return events.HeaderChange, true
	}
	return "", false
}

// Context returns the last request context and its sequence, 0 when there is none.
func (s *State) Context() (events.RequestContext, uint64) { return s.context, s.contextSeq }

// Turn returns the number of the last turn and whether it is open.
func (s *State) Turn() (turn int64, open bool) { return s.turn, s.turnOpen }

// Step returns the number of the last step of the last turn and whether it is open.
func (s *State) Step() (step int64, open bool) { return s.step, s.stepOpen }

// Attempt returns the last attempt of the open step, 0 before the first.
func (s *State) Attempt() int64 { return s.attempt }

// Answered reports whether the open step has its assistant message.
func (s *State) Answered() bool { return s.answered }

// Outcome says where the last step's model calls stand: the finish of its answer when it has one, how many tools that
// answer called, and the failure of its last attempt when that failed. It is kept until the next step or turn starts.
func (s *State) Outcome() (finish events.Finish, tools int, failure events.Failure) {
	return s.finish, len(s.tools), s.failure
}

// Entered returns how many user messages have entered in the last turn.
func (s *State) Entered() int64 { return s.entered }

// OpenCall returns the model call that has no end yet: its llm/stream, that event's sequence, what has come of the
// answer, and the sequences of its chunk events. ok is false when there is none. Everything is a copy.
func (s *State) OpenCall() (stream events.LLMStream, seq uint64, answer Answer, chunks []uint64, ok bool) {
	if s.call == nil {
		return stream, 0, answer, nil, false
	}
	stream = *s.call.stream
	stream.Objects = slices.Clone(stream.Objects)
	stream.Auxiliary = stream.Auxiliary.Clone()
	return stream, s.call.streamSeq, s.call.answer.clone(), slices.Clone(s.call.chunks), true
}

// PendingTool is a tool call of the open step that has no result yet.
type PendingTool struct {
	ID, Name, Arguments string
	CallSeq             uint64 // the sequence of its tool/call, 0 when it was not recorded as started
}

// PendingTools returns the tool calls of the open step that have no result yet, in model order.
func (s *State) PendingTools() []PendingTool {
	var out []PendingTool
	for _, t := range s.tools {
		if t.resultSeq == 0 {
			out = append(out, PendingTool{ID: t.id, Name: t.name, Arguments: t.arguments, CallSeq: t.callSeq})
		}
	}
	return out
}

// Position returns where the surface stands.
func (s *State) Position() events.SurfacePosition { return s.surface.position() }

// Nodes returns the sequences of the surface's nodes, in surface order.
func (s *State) Nodes() []uint64 {
	seqs := make([]uint64, len(s.surface.nodes))
	for i, n := range s.surface.nodes {
		seqs[i] = n.seq
	}
	return seqs
}

// Messages returns the conversation as it stands. The value keeps showing it as it was when it was taken.
func (s *State) Messages() Messages { return s.surface.messages() }

// NewObjects returns the objects that came into use since the last llm/stream, in log order, each once: what the
// next llm/stream of the loop must list. For an auxiliary one see [State.ObjectsOf].
func (s *State) NewObjects() []objects.Ref { return slices.Clone(s.refs.fresh) }

// Apply folds the next event into the state. It takes ownership of e: the caller must not change what e points to
// afterwards. The error is an [*Error], or the first one again when the state is dead.
func (s *State) Apply(e *events.Event) error {
	if s.dead != nil {
		return s.dead
	}
	if err := s.apply(e); err != nil {
		s.dead = err
		return err
	}
	return nil
}

func (s *State) apply(e *events.Event) error {
	hash, sealed := e.Hash()
	switch {
	case !sealed:
		return s.refuse(e, RuleSealed, "the event was neither decoded nor encoded")
	case e.Seq != s.seq+1:
		return s.refuse(e, RuleSequence, "sequence %d where %d belongs: events are missing, doubled or moved", e.Seq, s.seq+1)
	case e.Prev != s.head:
		return s.refuse(e, RuleChain, "prev is %s, the payload before hashes to %s", e.Prev, s.head)
	case (e.Type() == events.TypeSessionCreated) != (s.seq == 0):
		return s.refuse(e, RuleFirst, "session/created stands first and only there")
	case s.seq > 0 && s.seedBroken(e):
		return s.refuse(e, RuleSeed, "session/end-seed stands once behind the copied events: the session copied %d", s.created.SeedLength)
	case s.closed:
		return s.refuse(e, RuleClosed, "the session was closed")
	case s.seq > 0 && s.claimSeq == 0 && e.Type() != events.TypeLoopClaimed:
		return s.refuse(e, RuleClaim, "nobody has claimed the session")
	}
	if err := s.applyBody(e); err != nil {
		return err
	}
	s.seq, s.head = e.Seq, hash
	return s.checkSeed(e)
}

func (s *State) refuse(e *events.Event, rule Rule, format string, args ...any) error {
	err := &Error{Session: s.id, Seq: e.Seq, Rule: rule, Reason: fmt.Sprintf(format, args...)}
	if e.Body != nil {
		err.Type = e.Type()
	}
	return err
}

// seedBroken reports whether e ends the copied events of a fork in the wrong place, or fails to end them. What was
// copied may itself hold the end of an older seed, and needs no second one when that stands last. s.seq is not 0.
func (s *State) seedBroken(e *events.Event) bool {
	n, copied := s.created.SeedLength, s.seq-1 // so many stand before e; n+2 might not fit
	ends := e.Type() == events.TypeSessionEndSeed
	switch {
	case n == 0 || copied > n:
		return ends
	case copied == n:
		return ends == (s.endSeed == s.seq)
	}
	return false
}

// checkSeed follows the copied events of a fork as they were chained in the parent's log: they must end where a fork may
// start, and add up to the hash that the fork names.
func (s *State) checkSeed(e *events.Event) error {
	n, copied := s.created.SeedLength, e.Seq-1
	if copied > n {
		return nil
	}
	if copied == n && !s.AtBoundary() {
		return s.refuse(e, RuleSeed, "what was copied ends in the middle of a turn, a compaction or a model call, or closed the session")
	}
	p := &s.created.Parent
	if *p == (events.Parent{}) {
		return nil
	}
	if e.Seq == 1 {
		s.seedHead = p.First
	} else if s.seedWithheld = s.seedWithheld || e.Withheld(); !s.seedWithheld {
		c := events.Event{
			Seq: e.Seq, ID: e.ID, Time: e.Time, Prev: s.seedHead, Body: e.Body, Surface: e.Surface, Sources: e.Sources, Ignorable: e.Ignorable,
		}
		payload, err := events.Encode(&c)
		if err != nil {
			return s.refuse(e, RuleSeed, "it is no copy: %v", err)
		}
		s.seedHead = events.HashPayload(payload)
	}
	if copied == n && (s.seedHead != p.Chain && !s.seedWithheld || p.Seq != e.Seq) {
		return s.refuse(e, RuleSeed, "what was copied is not the log of session %s up to event %d", p.ID, p.Seq)
	}
	return nil
}

func (s *State) applyBody(e *events.Event) error {
	switch b := e.Body.(type) {
	case *events.SessionCreated:
		if b.Session != s.id {
			return s.refuse(e, RuleFirst, "it is the log of session %q", b.Session)
		}
		s.created = b
		s.options, s.optionsSeq, s.systemWithheld = b.Options, e.Seq, e.Withheld()
		return nil
	case *events.SessionConfigured:
		return s.applyConfigured(e, b)
	case *events.SessionEndSeed:
		s.endSeed = e.Seq
		s.claim, s.claimSeq, s.headerInstance = events.LoopClaimed{}, 0, false
		s.inputs = inputs{} // the fork has an inbox of its own
		return nil
	case *events.SessionTitle:
		return s.applyTitle(e, b)
	case *events.InputDropped:
		return s.applyDropped(e, b)
	case *events.TurnCancelled:
		return s.applyCancelled(e, b)
	case *events.SessionClosed:
		return s.applyClosed(e, b)
	case *events.LoopClaimed:
		s.claim, s.claimSeq, s.headerInstance = *b, e.Seq, false
		return nil
	case *events.TurnStart:
		return s.applyTurnStart(e, b)
	case *events.TurnEnd:
		return s.applyTurnEnd(e, b)
	case *events.StepStart:
		return s.applyStepStart(e, b)
	case *events.StepEnd:
		return s.applyStepEnd(e, b)
	case *events.UserMessage:
		return s.applyUserMessage(e, b)
	case *events.RequestHeader:
		return s.applyHeader(e, b)
	case *events.RequestContext:
		return s.applyContext(e, b)
	case *events.RequestImages:
		return s.applyImages(e, b)
	}
	return s.applyCallBody(e)
}

// applyCallBody goes on with the events of a model call and its tools.
func (s *State) applyCallBody(e *events.Event) error {
	switch b := e.Body.(type) {
	case *events.LLMStream:
		return s.applyStream(e, b)
	case *events.AssistantChunk:
		return s.applyChunk(e, b)
	case *events.AssistantMessage:
		return s.applyAnswer(e, b)
	case *events.LLMFailed:
		return s.applyFailed(e, b)
	case *events.LLMRetry:
		return s.applyRetry(e, b)
	case *events.LLMRetryStarted:
		return s.applyRetryStarted(e, b)
	case *events.ToolCall:
		return s.applyToolCall(e, b)
	case *events.ToolResult:
		return s.applyToolResult(e, b)
	case *events.CompactionStart:
		return s.applyCompactionStart(e, b)
	case *events.CompactionSummary:
		return s.applyCompactionSummary(e, b)
	case *events.CompactionEnd:
		return s.applyCompactionEnd(e, b)
	case *events.CompactionPrune, *events.ApprovalAsked, *events.ApprovalDecided, *events.Unknown:
		return nil
	}
	return s.refuse(e, RuleUnsupported, "no fold for this type")
}
