package events

// TurnStart opens a turn.
type TurnStart struct{ Turn int64 }

// Type returns [TypeTurnStart].
func (*TurnStart) Type() Type { return TypeTurnStart }

func (b *TurnStart) fields(w *wire) { w.ordinal("turn", &b.Turn) }

// ordinal handles a count that starts at 1.
func (w *wire) ordinal(name string, n *int64) {
	w.int(name, n)
	if w.err == nil && *n == 0 {
		w.fail(ErrInvalid, "%s counts from 1", name)
	}
}

// TurnEndKind says how a turn ended.
type TurnEndKind string

// The ways in which a turn ends.
const (
	TurnCompleted   TurnEndKind = "completed"
	TurnAborted     TurnEndKind = "aborted"
	TurnBlocked     TurnEndKind = "blocked"
	TurnError       TurnEndKind = "error"
	TurnMaxTokens   TurnEndKind = "max-tokens"
	TurnInterrupted TurnEndKind = "interrupted"
)

func (k TurnEndKind) valid() bool {
	switch k {
	case TurnCompleted, TurnAborted, TurnBlocked, TurnError, TurnMaxTokens, TurnInterrupted:
		return true
	}
	return false
}

// TurnEnd closes a turn.
type TurnEnd struct {
	Turn    int64
	Kind    TurnEndKind
	Cause   string  // aborted, blocked: why
	Failure Failure // error: the failure of the last model call
}

// Type returns [TypeTurnEnd].
func (*TurnEnd) Type() Type { return TypeTurnEnd }

func (b *TurnEnd) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.begin("reason")
	enum(w, "kind", &b.Kind)
	switch b.Kind {
	case TurnAborted, TurnBlocked:
		w.str("cause", &b.Cause)
	case TurnError:
		b.Failure.fields(w, "failure")
	case TurnCompleted, TurnMaxTokens, TurnInterrupted:
	}
	w.close()
	hasCause := b.Kind == TurnAborted || b.Kind == TurnBlocked
	if !w.reading && (!hasCause && b.Cause != "" || b.Kind != TurnError && b.Failure != Failure{}) {
		w.fail(ErrInvalid, "a field is set that the end of a %s turn does not have", b.Kind)
	}
}

// StepStart opens a step: at most one answered model call and the tools it calls.
type StepStart struct{ Turn, Step int64 }

// Type returns [TypeStepStart].
func (*StepStart) Type() Type { return TypeStepStart }

func (b *StepStart) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
}

// StepEnd closes a step.
type StepEnd struct{ Turn, Step int64 }

// Type returns [TypeStepEnd].
func (*StepEnd) Type() Type { return TypeStepEnd }

func (b *StepEnd) fields(w *wire) { (*StepStart)(b).fields(w) }

// UserMessage puts a message of the user role on the surface: an input of the inbox, a plugin's context, or a
// compaction's summary. It stands on the surface.
type UserMessage struct {
	Message  Message
	InboxSeq uint64   // the input that it claims, 0 when it claims none; the message's id is then the input's
	Delivery Delivery // how the claimed input came
}

// Delivery says how the input came that a user message claims.
type Delivery string

// The deliveries. The empty one is a prompt's.
const (
	DeliveryPrompt Delivery = ""       // it opened the turn
	DeliverySteer  Delivery = "steer"  // it joined the next step, and woke the session
	DeliveryInject Delivery = "inject" // it joined the next step, and woke nobody
)

func (d Delivery) valid() bool { return d == DeliverySteer || d == DeliveryInject }

// Type returns [TypeUserMessage].
func (*UserMessage) Type() Type { return TypeUserMessage }

func (b *UserMessage) fields(w *wire) {
	b.Message.fields(w, RoleUser)
	b.Message.only(w, BlockText, BlockImage)
	w.optUint("inboxSeq", &b.InboxSeq)
	if w.optional("delivery", b.Delivery != DeliveryPrompt) {
		enum(w, "delivery", &b.Delivery)
	}
	if w.err == nil && b.Delivery != DeliveryPrompt && b.InboxSeq == 0 {
		w.fail(ErrInvalid, "a delivery without an input")
	}
}

// TurnCancelled records a cancel before anything is stopped for it.
type TurnCancelled struct {
	Turn      int64 // the open turn, 0 when none was open
	Cause     string
	KeepQueue bool // the inputs before it stay; otherwise those not claimed yet are dropped
	Claim     Claim
}

// Type returns [TypeTurnCancelled].
func (*TurnCancelled) Type() Type { return TypeTurnCancelled }

func (b *TurnCancelled) fields(w *wire) {
	w.optInt("turn", &b.Turn)
	w.str("cause", &b.Cause)
	w.optTrue("keepQueue", &b.KeepQueue)
	b.Claim.fields(w)
}

// ToolCall records that a tool is about to start.
type ToolCall struct {
	Turn, Step int64
	CallID     string
	Name       string
	Arguments  string // exactly as the model wrote it
}

// Type returns [TypeToolCall].
func (*ToolCall) Type() Type { return TypeToolCall }

func (b *ToolCall) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
	w.str("callId", &b.CallID)
	w.str("name", &b.Name)
	w.str("arguments", &b.Arguments)
	if w.err == nil && b.CallID == "" {
		w.fail(ErrInvalid, "a tool call needs an id")
	}
}

// ToolErrorCode is the stable class of a tool's failure.
type ToolErrorCode string

// The codes that the loop itself gives. A tool may give others of the same form.
const (
	ToolNotStarted     ToolErrorCode = "TOOL_NOT_STARTED"     // the call was never recorded; nothing happened
	ToolOutcomeUnknown ToolErrorCode = "TOOL_OUTCOME_UNKNOWN" // the call was recorded; its worker died before the result
	ToolFailed         ToolErrorCode = "TOOL_FAILED"          // the tool answered with an error
	ToolUnknown        ToolErrorCode = "TOOL_UNKNOWN"         // there is no tool of that name
	ToolBadArguments   ToolErrorCode = "TOOL_BAD_ARGUMENTS"   // the argument string does not fit the tool's schema
	ToolTimeout        ToolErrorCode = "TOOL_TIMEOUT"         // the tool gave no answer in its time
	ToolCancelled      ToolErrorCode = "TOOL_CANCELLED"       // the turn was cancelled while the tool ran
	ToolDenied         ToolErrorCode = "TOOL_DENIED"          // an extension did not let the tool run
)

func (c ToolErrorCode) valid() bool { return FailureCode(c).valid() }

// ToolError says that a tool did not succeed; the text for the model is in the message.
type ToolError struct {
	Code    ToolErrorCode
	Message string
}

// ToolResult puts a tool's answer on the surface: a message of the user role with one tool-result block.
type ToolResult struct {
	Turn, Step int64
	Message    Message
	Error      ToolError      // zero: none
	Meta       RawJSON        // for programs, never shown to the model
	Contexts   []AddedContext // in the order in which the next step owes them
}

// AddedContext is what an extension adds to a tool's answer: a user message that the next step owes.
type AddedContext struct {
	Plugin string // who added it, not empty
	Text   string
}

func addedContextFields(w *wire, c *AddedContext) {
	w.open()
	w.str("plugin", &c.Plugin)
	w.str("text", &c.Text)
	w.close()
	if w.err == nil && c.Plugin == "" {
		w.fail(ErrInvalid, "a context names who added it")
	}
}

// Type returns [TypeToolResult].
func (*ToolResult) Type() Type { return TypeToolResult }

// CallID returns the id of the call that the result answers.
func (b *ToolResult) CallID() string { return b.Message.Content[0].ToolCallID }

func (b *ToolResult) fields(w *wire) {
	w.ordinal("turn", &b.Turn)
	w.ordinal("step", &b.Step)
	b.Message.fields(w, RoleUser)
	b.Message.only(w, BlockToolResult)
	if w.optional("error", b.Error != ToolError{}) {
		w.begin("error")
		enum(w, "code", &b.Error.Code)
		w.optStr("message", &b.Error.Message)
		w.close()
	}
	w.optRaw("meta", &b.Meta)
	optList(w, "contexts", &b.Contexts, addedContextFields)
	if w.err != nil {
		return
	}
	if len(b.Message.Content) != 1 || b.Message.Content[0].ToolCallID == "" {
		w.fail(ErrInvalid, "a tool result's message has one block, which names its call")
	}
}
